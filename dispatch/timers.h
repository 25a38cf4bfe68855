/** @file timers.h  Stamps at every hop. See timers.c for the accounting. */
// SPDX-License-Identifier: MIT
#ifndef TS_DISPATCH_TIMERS_H
#define TS_DISPATCH_TIMERS_H

#include "dispatch/op.h"

#ifndef TS_TIMERS
#define TS_TIMERS 1
#endif

/** Runs the slot of f->key with stamps around it. */
ts_status ts_timed_hop(ts_frame *f, ts_kernel kernel);

/** Stamps the backward engine, which is no call; returns the cell to give to leave. */
void *ts_timer_enter(ts_thread *thread);
void ts_timer_leave(ts_thread *thread, void *token);

void ts_timers_install(void);

/** Threads that ended keep rows of their own up to this many; the last of these and all that end
 * later share the rows of "thread" TS_TIMERS_MERGED, so that memory stays bounded. */
enum { TS_TIMERS_ENDED = 64, TS_TIMERS_MERGED = -1 };

/** One line of the report: calls and self time of (op, layer) in a thread. */
typedef struct ts_timer_row {
    const char *op, *layer;
    uint64_t calls;
    double self_ns;
    int thread;
} ts_timer_row;
/** Rows of all threads, those that ended included. */
typedef struct ts_timer_rows {
    ts_timer_row *items; /* to be given to ts_sys_free() */
    int count, room;
    bool failed; /* no memory for the rest */
} ts_timer_rows;
/** Adds the rows of now; none in a build without timers. */
void ts_timers_rows(ts_timer_rows *rows);
/** The calibrated cost of a time stamp. */
double ts_timers_stamp_ns(void);

/** One hop: a predictable branch when timers are off, none in a build without them. */
TS_INLINE ts_status ts_hop(ts_frame *f, ts_kernel kernel)
{
#if TS_TIMERS
    if (TS_UNLIKELY(atomic_load_explicit(&f->thread->state, memory_order_relaxed) &
                    TS_THREAD_TIMING))
        return ts_timed_hop(f, kernel);
#endif
    return kernel(f);
}

#endif
