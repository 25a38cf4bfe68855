/*
 * The thread pool of the host: loops over independent tasks.
 *
 * Workers run loop bodies of kernels only. A body must not call an op or allocate, and cannot
 * report an error. The ranges that a body gets depend on the number of threads. To get the same
 * bits for any number of threads, compute each task's result from the task alone, and divide
 * reductions into tasks by shape.
 *
 * One loop at a time uses the pool. A loop that another thread or a body starts meanwhile runs its
 * whole range in the calling thread, so loops never wait for each other. The thread that owns the
 * loop in the pool runs one range itself, then each range that no worker has begun, so it never
 * waits for a worker to wake up.
 *
 * A loop of n ranges needs n - 1 workers. It starts those that the pool lacks, unless the system
 * refuses, and they serve later loops. Workers block all signals and have the default
 * floating-point environment. An idle worker spins for at most 0.1 ms, then sleeps. After fork()
 * the child starts its own pool when it needs one. No call allocates memory, except to start
 * threads.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CORE_PARALLEL_H
#define TS_CORE_PARALLEL_H

#include <stdbool.h>
#include <stdint.h>

/** Most threads that one loop uses, the caller included. */
#define TS_PARALLEL_MAX 256

/** Works on the tasks begin <= i < end. */
typedef void (*ts_parallel_body)(void *ctx, int64_t begin, int64_t end);

/**
 * Runs each of the tasks 0 to tasks - 1 once and returns when all are done. The tasks are divided
 * into at most ts_num_threads() contiguous ranges, whose lengths differ by at most one task.
 * @param tasks  0 or less does nothing
 * @param grain  smallest number of tasks per range, at least 1; fewer than 2 * grain tasks run in
 *               the caller
 */
void ts_parallel_for(int64_t tasks, int64_t grain, ts_parallel_body body, void *ctx);

/** Fixes ts_num_threads() for the calling thread, so that memory sized by it suits the loops that
 * follow, even if another thread sets a new number. Pair each call with ts_threads_unpin(). */
void ts_threads_pin(void);
void ts_threads_unpin(void);

/** Ends the workers when the library unloads; later loops run in their callers. Does nothing while
 *  a loop uses the pool. */
void ts_parallel_stop(void);
/** Resets the pool in a forked child, which has no workers. */
void ts_parallel_forked(void);

/** True inside a body of a loop that uses the pool: inner loops then run in the calling thread.
 *  A loop that runs its whole range in its caller does not change the value. */
bool ts_in_parallel(void);

#endif
