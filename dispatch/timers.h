/** @file timers.h  Timers of calls. They take a time stamp when the kernel or layer in a slot
 * begins and when it ends; timers.c explains how the time between stamps is attributed. */
// SPDX-License-Identifier: MIT
#ifndef TS_DISPATCH_TIMERS_H
#define TS_DISPATCH_TIMERS_H

#include "dispatch/record.h"

#ifndef TS_TIMERS
#define TS_TIMERS 1
#endif

/** Runs `kernel`, the function in the slot of f->key, with stamps around it. */
ts_status ts_timed_hop(ts_frame *f, ts_kernel kernel);

/** Starts counting time for the backward engine, which runs outside of calls. Returns a token for
 *  ts_timer_leave(); NULL if timers are off or memory is short. */
void *ts_timer_enter(ts_thread *thread);
/** Stops counting the time that the ts_timer_enter() with this token started. NULL is allowed. */
void ts_timer_leave(ts_thread *thread, void *token);

/** The number of the innermost scope of the thread's profile; 0: none, or no profile records.
 *  seq: of the node that the running call made, for its event in a trace; 0: none. */
uint32_t ts_recorded_scope(const ts_thread *thread, uint64_t seq);
TS_INLINE uint32_t ts_timer_scope(const ts_thread *thread, uint64_t seq)
{
    return TS_UNLIKELY(atomic_load_explicit(&thread->state, memory_order_relaxed) &
                       TS_THREAD_RECORDING)
               ? ts_recorded_scope(thread, seq)
               : 0;
}
/** Sets the thread's scope for the calls of a backward rule: the path of the scope `forward` of its
 *  forward call, below `base`, the scope of the backward pass. seq: of the forward call's node.
 *  Does nothing unless a profile records. */
void ts_timer_follow(ts_thread *thread, uint32_t base, uint32_t forward, uint64_t seq);

/** Begins a part of the calling thread's running call; returns a token for ts_timer_part_leave(),
 *  NULL if the call has no row in the profile, or no row for this part. */
void *ts_timer_part(ts_thread *thread, ts_part part);
/** Ends the part. token: not NULL. */
void ts_timer_part_leave(ts_thread *thread, void *token);
/** ts_timer_part() in profiles with detail. */
TS_INLINE void *ts_detail(ts_thread *thread, ts_part part)
{
    return TS_UNLIKELY(atomic_load_explicit(&thread->state, memory_order_relaxed) &
                       TS_THREAD_DETAIL)
               ? ts_timer_part(thread, part)
               : NULL;
}
TS_INLINE void ts_detail_leave(ts_thread *thread, void *token)
{
    if (TS_UNLIKELY(token != NULL))
        ts_timer_part_leave(thread, token);
}

void ts_timers_install(void);

/** The first TS_TIMERS_ENDED ended threads keep separate rows. The last of these and all threads
 * that end later share rows with thread number TS_TIMERS_MERGED, which bounds memory. */
enum { TS_TIMERS_ENDED = 64, TS_TIMERS_MERGED = -1 };

/** One line of the report: calls and self time of (op, layer) in a thread. */
typedef struct ts_timer_row {
    const char *op, *layer;
    uint64_t calls;
    double self_ns;
    int thread;
} ts_timer_row;
/** Rows of all threads, including ended ones. */
typedef struct ts_timer_rows {
    ts_timer_row *items; /* free with ts_sys_free() */
    int count, capacity;
    bool failed; /* true: out of memory, some rows are missing */
} ts_timer_rows;
/** Appends the current rows of all threads. A build without timers has no rows. */
void ts_timers_rows(ts_timer_rows *rows);
/** The calibrated cost of a time stamp. */
double ts_timers_stamp_ns(void);

/* ----------------------------------------------------------------------------- profiles ---- */

/** A thread's totals at the end of a step, in ticks since the profile began. */
typedef struct ts_step {
    int64_t wall, stamps;
    int64_t parts[TS_PART_COUNT];
} ts_step;

/** Starts (with all counters at zero) or stops the recording of a profile in all threads. Timers
 *  run while a profile records, independent of ts_timers_enable(). Errors: those of
 *  ts_timers_enable(), TS_ERR_MEMORY. */
ts_status ts_timers_record(bool on);
bool ts_timers_recording(void);
/** True while a profile records or a schedule runs. */
bool ts_timers_active(void);
/** Stops the recording of calls and memory like ts_timers_record(false), but calls no backend. The
 *  device work stays in the backend until ts_device_times_end(). */
void ts_timers_halt(void);
/** Begins or ends a schedule: a series of recordings in which one thread marks all steps. */
void ts_timers_schedule(bool on);
/** In a schedule, calls passed() at the end of each step while nothing records, in the thread that
 * marks steps; NULL ends these calls. */
void ts_timers_watch_steps(void (*passed)(void));
/** Ends a step explicitly. If the program never calls this, a step ends at the first call after an
 *  op that updates parameters. */
void ts_timers_step(void);
/** Declares the ops that update parameters. They mark the steps of a program that does not call
 *  ts_timers_step(). */
void ts_timers_mark_updates(const int *ops, int n);
/** Enters a scope of the profile; NULL leaves the innermost scope. */
void ts_timers_scope(const char *name);
/** Sets the cost in ns of recording a backend's call beyond its stamps, and of each layer in a
 *  trace. The timers' own row gets this time. */
void ts_timers_record_cost(double ns, double trace_ns);
/** The rows that a thread recorded. */
typedef struct ts_thread_record {
    const ts_tally_table *table;
    int thread, threads; /* threads: number of threads that recorded the rows; above 1 if
                            threads were merged */
    double wall_ns, stamps_ns;
    double most_ns; /* the most that wall_ns can be: a thread that still ran when the profile ended
                       may count in its rows time after wall_ns was read */
    double preempted_ns; /* time in which the system ran others although the thread was ready */
    int64_t begun; /* tick at which wall_ns begins */
} ts_thread_record;
/** Calls fn with the record of each thread, ended threads included, under the timers' lock: fn must
 *  not call a function of the timers. */
void ts_timers_each_record(void (*fn)(const ts_thread_record *r, void *ctx), void *ctx);
/** The data that a recording keeps. */
typedef struct ts_recording {
    int64_t first, last; /* drop the steps before `first`, stop after step `last`; 0: no limit */
    int64_t before;      /* number of steps that ended before the recording */
    bool trace, flight;  /* trace: keep an event per call, of the first calls; flight: of the latest
                            calls instead */
    bool detail;         /* divide the time of backends' rows into parts (ts_part) */
} ts_recording;
/** Configures the next recording. */
void ts_timers_record_as(const ts_recording *r);
/** The totals at the end of each recorded step, borrowed; valid until the next recording.
 *  @param first   number of the first recorded step, counted on from ts_recording.before
 *  @param lost    number of later steps, which the full list does not contain
 *  @param thread  the thread that marks steps; -1: none
 *  @param traced  true if events were kept */
const ts_step *ts_timers_steps(int64_t *count, int64_t *first, int64_t *lost, int *thread,
                               bool *traced);
/** Time in ns, since a thread of this process started, in which the thread was ready to run while
 *  its processor ran others. tid: the system's number of the thread. -1 if the system does not
 *  provide it (Linux: /proc/self/task/TID/schedstat). */
int64_t ts_preempted_ns(int tid);
/** Length of a tick in ns, as calibrated. */
double ts_timers_tick_ns(void);

/** Runs a slot, with stamps if timers are on. Timers that are off cost one predictable branch;
 *  without TS_TIMERS there is no branch. */
TS_INLINE ts_status ts_hop(ts_frame *f, ts_kernel kernel)
{
#if TS_TIMERS
    if (TS_UNLIKELY(atomic_load_explicit(&f->thread->state, memory_order_relaxed) &
                    (TS_THREAD_TIMING | TS_THREAD_WATCHING)))
        return ts_timed_hop(f, kernel);
#endif
    return kernel(f);
}

#endif
