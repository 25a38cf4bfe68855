/** @file timers_state.h  Counters of the timers, for the files that write and read them. */
// SPDX-License-Identifier: MIT
#ifndef TS_DISPATCH_TIMERS_STATE_H
#define TS_DISPATCH_TIMERS_STATE_H

#include "dispatch/device_times.h"
#include "dispatch/timers.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

typedef ts_cell cell;

/* Cells of time outside of calls: those of TS_ROW_OUTSIDE with keys 0, 1 and 2. */
enum {
    CELLS = TS_MAX_OPS * TS_KEY_COUNT,
    ENGINE = TS_ROW_OUTSIDE * TS_KEY_COUNT, /* the backward engine between rules */
    STAMPS,                                 /* cost of stamps */
    OUTSIDE                                 /* no call is running */
};

/** The counters of one thread. */
struct ts_timers {
    cell *running;         /* the cell that gets the time since the last stamp */
    _Atomic int64_t last;  /* tick of the last stamp */
    _Atomic int64_t begun; /* tick from which the thread's wall time counts; pauses of the
                              timers move it forward */
    ts_timers *next; /* list of ended threads' timers */
    int64_t period;  /* timing period of this thread's last stamp; 0: no stamp since the reset */
    int64_t reset;   /* value of ts_timing.reset at the last stamp; the cells are ignored if
                      ts_timing.reset has changed since */
    int thread_id;
    int threads; /* number of merged threads that made a call, this thread included; 0: no thread
                    was merged into it */
    atomic_bool updated; /* an update was the last call, so the next one ends a step */
    ts_tally_table record; /* while a profile records, its rows replace the cells */
    uint32_t follows;      /* scope of the backward pass for which `following` is valid */
    uint16_t following[TS_SCOPES_MOST]; /* forward scope -> scope of its backward calls; 0: unknown
                                         */
    int tid;           /* the system's number of the thread, while a profile records it; else 0 */
    int64_t preempted; /* ts_preempted_ns() when the profile began; after the profile, by
                          how much it grew */
    int64_t wall, stamps; /* ticks of the profile's wall time and stamps, set at the end of the
                             profile or of the thread */
    int64_t most;         /* ts_thread_record.most_ns in ticks */
    cell cells[CELLS]; /* by op, then key; the system provides a page when it is first written */
};

/** State of the timers and of the profile's recording, for all threads. */
struct ts_timing_state {
    pthread_mutex_t lock;  /* held to change the fields that are not atomic */
    ts_timers *ended; /* timers of ended threads, newest first */
    int nended;
    _Atomic double ns_per_tick;
    _Atomic int64_t stamp_cost; /* cost of a stamp in ticks */
    atomic_bool on; /* the timers are on, by ts_timers_enable() */
    atomic_bool recording; /* a profile records */
    atomic_bool tracing;   /* the profile keeps an event per call */
    bool detail, flight;   /* of the profile, as in ts_recording */
    _Atomic int64_t record_cost; /* ticks that recording adds to a call, without its stamps */
    _Atomic int64_t trace_cost;  /* ticks that a trace adds to each layer of a call */
    ts_step *steps;
    _Atomic int64_t nsteps, lost_steps;
    int64_t before_steps, /* ts_recording.before */
        all_steps, /* steps since the recording began */
        first_step, last_step; /* the recording keeps steps first_step to last_step; 0: no limit */
    int step_thread; /* the thread that marks steps; -1: none yet */
    int64_t guessed; /* steps ended by updates since step_thread was forgotten */
    atomic_bool marked; /* the program marks its steps itself */
    atomic_bool scheduled; /* step_thread and marked stay the same for all recordings */
    void (*_Atomic watching)(void); /* `passed` of ts_timers_watch_steps() */
    atomic_bool updates[TS_MAX_OPS]; /* ops that update parameters */
    _Atomic int64_t period; /* number of the timing period; grows at each start and reset */
    int64_t reset;          /* number of resets */
    _Atomic int64_t off_at; /* tick at which timing was last switched off */
    _Atomic(const ts_backend *) device; /* the backend that records its devices' work for the
                                           profile */
};
extern struct ts_timing_state ts_timing;

/** Names of the cells for time outside of calls: ENGINE, STAMPS, OUTSIDE. */
extern const char *const ts_timers_outside[3];

/** True while the timers are on or a profile records. */
static inline bool running(void)
{
    return atomic_load_explicit(&ts_timing.on, memory_order_relaxed) ||
           atomic_load_explicit(&ts_timing.recording, memory_order_relaxed);
}

/* A counter has one writer at a time (its thread, or the holder of ts_timing.lock), so add() needs
 * no atomic read-modify-write. */
static inline int64_t get(const _Atomic int64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}
static inline void set(_Atomic int64_t *counter, int64_t value)
{
    atomic_store_explicit(counter, value, memory_order_relaxed);
}
static inline void add(_Atomic int64_t *counter, int64_t value)
{
    set(counter, get(counter) + value);
}

static inline int64_t nanoseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

/** The clock of the timers: the time stamp counter on x86-64, elsewhere nanoseconds(). */
static inline int64_t ticks(void)
{
#if defined(__x86_64__)
    return (int64_t)__rdtsc();
#else
    return nanoseconds();
#endif
}

static inline bool is_recording(const ts_thread *thread)
{
    return atomic_load_explicit(&thread->state, memory_order_relaxed) & TS_THREAD_RECORDING;
}

/** The profile row that begins with this cell; NULL for a cell of t's table. */
static inline ts_tally_row *row_of(ts_timers *t, cell *c)
{
    uintptr_t at = (uintptr_t)c - (uintptr_t)t->cells;
    return at < sizeof t->cells ? NULL : (ts_tally_row *)c;
}

/** The cell to add to: c, or if c is a row of a profile that has ended, the thread's own cell. */
static inline cell *counted(ts_timers *t, cell *c)
{
    if (TS_LIKELY(atomic_load_explicit(&ts_timing.recording, memory_order_relaxed)))
        return c;
    const ts_tally_row *row = row_of(t, c);
    return TS_LIKELY(!row) ? c : &t->cells[row->op * TS_KEY_COUNT + row->key];
}

/** Makes a stamp: adds the ticks since the last stamp to the running cell, less the cost of the
 *  stamp and `more` ticks of the timers' own work in it, and makes `next` the running cell. Returns
 *  the cell that ran before. */
static inline cell *stamp_with(ts_timers *t, cell *next, int64_t more)
{
    int64_t now = ticks(), cost = get(&ts_timing.stamp_cost) + more;
    cell *before = t->running;
    add(&counted(t, before)->ticks, now - get(&t->last) - cost);
    add(&t->cells[STAMPS].ticks, cost);
    set(&t->last, now);
    t->running = next;
    return before;
}
static inline cell *stamp(ts_timers *t, cell *next) { return stamp_with(t, next, 0); }

/** Tags the device work that this thread queues from now on with the row of `c`. */
static inline void tag(ts_timers *t, cell *c)
{
    const ts_backend *b = atomic_load_explicit(&ts_timing.device, memory_order_acquire);
    if (TS_UNLIKELY(b != NULL))
        ts_device_times_tag(b, row_of(t, c), t->reset);
}

/** Adds the ticks up to now to the calling thread's running cell; if timing was switched off, the
 *  ticks up to that moment. */
void ts_timers_close(ts_timers *t);
/** The calling thread's timers in the current period, or NULL if out of memory. */
ts_timers *ts_timers_of(ts_thread *thread);
/** Records the thread's totals at the end of a step. One thread marks the steps of a profile. */
void ts_timers_mark_step(ts_timers *t);
/** Adds a step that ends at t's last stamp, if t's thread marks the steps; ts_timing.lock is held.
 *  parts: ts_tally_sum(). If another thread ends the step, the parts may contain time after the
 *  last stamp that this thread sees; that time counts as time of the step. Returns true if a step
 *  is added. */
bool ts_timers_add_step(const ts_timers *t, const int64_t parts[TS_PART_COUNT]);
/** Stores whether the thread's latest call was an update of parameters, and its nesting depth. */
void ts_timers_note_call(const ts_thread *thread, bool update, int depth);
/** Call it when the program marks its first step. From then on only marks end steps, and steps that
 *  optimizer updates ended before become part of the marked step. False if a waiting schedule has
 *  already counted steps that updates ended; a recording that runs is then reset. */
bool ts_timers_take_over(const ts_thread *thread);
/** Ends a step of `thread` while nothing records. Does nothing unless a schedule waits and the
 *  thread marks the steps. */
void ts_timers_pass_step(ts_thread *thread);

#endif
