/*
 * The thread pool of the host: loops over independent tasks.
 *
 * Only kernels run in the workers: a body must not call an op, allocate, or fail, and has no way to
 * report errors. A body gets ranges of tasks, and which ranges depends on the number of threads, so
 * a result must be a function of the task alone (split reductions by shape).
 *
 * One loop at a time uses the pool. A loop that another thread or a body starts meanwhile runs its
 * whole range in the calling thread, so loops never wait for each other. The calling thread of the
 * loop in the pool also runs tasks, and takes the parts that no worker has begun, so it never waits
 * for a worker to wake up.
 *
 * The pool starts at the first loop that is large enough, with ts_num_threads() - 1 workers (fewer
 * when the system refuses more; at most TS_PARALLEL_MAX - 1). Workers block all signals, have the
 * default floating-point environment, and sleep after a short spin. After fork() the child starts
 * its own pool when it needs one. No call allocates memory, except to start threads.
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
 * Covers the tasks 0 .. tasks-1 exactly once and returns when all are done. Each thread gets one
 * contiguous range; ranges differ by at most one task.
 * @param tasks  0 or less does nothing
 * @param grain  smallest number of tasks per thread; fewer than 2 * grain tasks run in the caller
 */
void ts_parallel_for(int64_t tasks, int64_t grain, ts_parallel_body body, void *ctx);

/** Ends the workers when the library unloads. */
void ts_parallel_stop(void);
/** Resets the pool in a forked child, which has no workers. */
void ts_parallel_forked(void);

/** True inside a body, where further loops run inline. */
bool ts_in_parallel(void);

#endif
