/** @file timers_state.h  Counters of the timers, for the files that write and read them. */
// SPDX-License-Identifier: MIT
#ifndef TS_DISPATCH_TIMERS_STATE_H
#define TS_DISPATCH_TIMERS_STATE_H

#include "dispatch/timers.h"

#include <pthread.h>
#include <stdatomic.h>

typedef ts_cell cell;

/* The last op number is unused: its cells hold time outside of calls. */
enum {
    CELLS = TS_MAX_OPS * TS_KEY_COUNT,
    ENGINE = CELLS - TS_KEY_COUNT, /* the backward engine between rules */
    STAMPS,                        /* cost of stamps */
    OUTSIDE,                       /* no call is running */
    BESIDE = TS_MAX_OPS - 1        /* op number for time outside of calls; the keys are ENGINE and
                                      so on */
};
_Static_assert(ENGINE == BESIDE * TS_KEY_COUNT, "rows of a profile name these by op and key");

struct ts_timers {
    cell *running;
    _Atomic int64_t last; /* tick of the last stamp */
    _Atomic int64_t begun;
    ts_timers *next; /* of threads that ended */
    int64_t period;  /* the last period of timing it took part in; 0: none since the reset */
    int64_t reset;   /* number of the last reset seen; cells of an older reset are ignored */
    int thread_id;
    ts_tally_table record; /* while a profile records, its rows take the place of cells */
    uint32_t follows;      /* the scope of the backward pass that `following` is for */
    uint16_t following[TS_SCOPES_MOST]; /* by forward scope: that of backward calls; 0: unknown */
    int64_t wall, stamps; /* rows of the profile, kept at its end or at the thread's end */
    cell cells[CELLS]; /* by op, then key; the system provides a page when it is first written */
};

struct ts_timing_state {
    pthread_mutex_t lock;
    ts_timers *ended; /* timers of ended threads, newest first */
    int nended;
    _Atomic double ns_per_tick;
    _Atomic int64_t stamp_cost; /* ticks */
    atomic_bool on; /* the program wants timers */
    atomic_bool recording; /* a profile does */
    atomic_bool tracing;   /* and keeps each call */
    _Atomic int64_t record_cost; /* ticks of a recorded call beyond its stamps */
    ts_step *steps;
    _Atomic int64_t nsteps, lost_steps;
    int64_t all_steps, first_step, last_step; /* steps since recording began; steps kept */
    int step_thread; /* the thread that marks steps; -1: none yet */
    atomic_bool marked; /* the program marks its steps itself */
    uint8_t updates[TS_MAX_OPS]; /* ops that update parameters */
    _Atomic int64_t period; /* times switched on or reset */
    int64_t reset;          /* times reset */
    _Atomic int64_t off_at; /* tick of the last switch off */
};
extern struct ts_timing_state ts_timing;

/** Names of the cells that hold time of no call, from ENGINE on. */
extern const char *const ts_timers_beside[3];

static inline bool running(void)
{
    return atomic_load_explicit(&ts_timing.on, memory_order_relaxed) ||
           atomic_load_explicit(&ts_timing.recording, memory_order_relaxed);
}

static inline int64_t get(const _Atomic int64_t *place)
{
    return atomic_load_explicit(place, memory_order_relaxed);
}
static inline void set(_Atomic int64_t *place, int64_t value)
{
    atomic_store_explicit(place, value, memory_order_relaxed);
}
static inline void add(_Atomic int64_t *place, int64_t value) { set(place, get(place) + value); }

/** Updates a thread's own counters to now, or to the moment when timing was switched off. */
void ts_timers_close(ts_timers *t);

#endif
