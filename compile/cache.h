/** @file cache.h  A compiled function: its plans, its statistics, and the choice of calls that run
 * without a recording (small.c). A trial measures for a plan whether recorded calls are faster than
 * eager ones. */
// SPDX-License-Identifier: MIT
#ifndef TS_COMPILE_CACHE_H
#define TS_COMPILE_CACHE_H

#include <pthread.h>

#include "compile/compile.h"

/** A graph break: an event that ended a recording before the end of the function. */
typedef struct ts_break {
    char what[48];    /* the cause, such as "a read of values" */
    const void *site; /* call site; may be NULL */
    int64_t count;
} ts_break;
enum { TS_MAX_BREAKS = 16 };

/** A compiled function. */
struct ts_compiled {
    pthread_mutex_t lock;  /* guards the fields from `plans` to `verifying`; fork() holds it */
    struct ts_compiled *next, **link; /* list of all compiled functions, under a lock of its own */
    ts_trace_fn fn;
    void *ctx;
    ts_compile_opts opts;
    char name[64];
    ts_exec **plans;       /* owned */
    int64_t nplans, room;  /* room: length of the array */
    uint64_t clock;        /* number of runs, the time unit of ts_exec.used */
    const ts_exec *newest; /* the plan that was added to `plans` last */
    char cause[320];       /* why the last plan was made (cause.c) */
    uint64_t seen;         /* bit i: a recording with ts_lazy_segment() i has needed a new plan */
    ts_compile_stats stats;
    ts_break breaks[TS_MAX_BREAKS];
    int64_t small;         /* recordings in a row whose plans are small (ts_exec.small) */
    int64_t small_gap;     /* calls without a recording between the newest two recorded ones */
    int64_t calls;         /* recorded calls */
    int64_t same, trial;   /* same: number of recorded calls, beginning with the last one whose plan
                              was new, or neither small nor tried (ts_exec); trial: value of `same`
                              at which the next trial begins, or the running one began */
    int64_t tried;         /* value of `same` at the last call whose plan is tried */
    struct ts_trial_times {
        int64_t n;
        double sum, squares;
    } times[2];            /* of the calls of the trial in nanoseconds, eager and recorded */
    int64_t length;        /* recorded calls of the running trial, and calls without a recording
                              that follow them */
    int64_t largest, fresh; /* elements of the inputs of the largest of the calls since `same` was
                               0, and of the last call */
    uint64_t last, before; /* last: ts_exec.number of the plan of the last recorded call; before: of
                              the last call of the running trial, recorded or not; 0: unknown */
    char replay_why[320];  /* reason why the function ran instead of a replay; "": none */
    int64_t replayed;      /* index of the plan that was replayed last */
    int mismatches;        /* calls that differed from a replay although its guards held */
    bool verifying;        /* the running call tests whether a replay would have been right */
    /* read and written without the lock */
    _Atomic bool replay_over; /* no more replays: too many mismatches, or a failed check */
    _Atomic bool timed;    /* a trial is running */
    _Atomic int64_t eager; /* calls that ran without a recording (small.c) */
    _Atomic int64_t eager_end; /* calls run without a recording while `eager` < eager_end */
    _Atomic int64_t small_inputs; /* calls whose inputs have more elements are recorded */
};

/** Makes fork() hold the locks of all compiled functions. */
void ts_compiled_install(void);
/** Reads the environment variable TS_COMPILE. */
void ts_compiled_from_environment(void);
/** True if groups of the function's plans may contain norms, softmax and reductions (rows.c). */
bool ts_compiled_by_rows(const ts_compiled *c);
/** The statistics; the caller holds c->lock. */
ts_compile_stats ts_compiled_stats(const ts_compiled *c);
/** Counts a graph break; TS_ERR_STATE if the function was compiled with fullgraph. */
ts_status ts_compiled_break(ts_compiled *c, const char *what, const void *site);
/** Finds or makes the plan of a recording. The plan is not freed before ts_compiled_ran(). If
 *  the list of plans is full or cannot grow, a new plan replaces the least recently used plan that
 *  is not running; if there is none, the new plan serves this run only. NULL with TS_ERR_MEMORY. */
ts_exec *ts_compiled_plan(ts_compiled *c, const ts_lazy *l);
/** Writes to c->cause why a recording needs a new plan: the first field in which it differs from
 *  the recording of the most recently used plan for the same part of a call. The caller holds
 *  c->lock. */
void ts_cause_find(ts_compiled *c, const ts_lazy *l);
/** Marks the kernel of a group as ready and counts it in the statistics. */
void ts_compiled_kernel(ts_compiled *c, ts_group_kernel *k, const ts_group_report *report);
/** Marks the kernel of a group as refused; the group then runs call by call. */
void ts_compiled_refused(ts_compiled *c, ts_group_kernel *k, const char *why);
/** Ends the run of a plan that ts_compiled_plan() returned; the plan may be freed from then on. */
void ts_compiled_ran(ts_compiled *c, ts_exec *e);

/** Sets e->small and e->tried of a new plan. */
void ts_small_set(ts_exec *e);
/** Sets how many of the next calls run without a recording. Call it after the plan of a recording
 *  was found or made. e: that plan, or NULL if there is none. made: the plan is new. first: it is
 *  the first recording of a call. The caller holds c->lock. */
void ts_small_recorded(ts_compiled *c, ts_exec *e, bool made, bool first);
/** True if a call runs without a recording, and counts it. Such calls are about as short
 *  as taking the function's lock, so ts_small_is_eager() does not take it. */
bool ts_small_is_eager(ts_compiled *c, ts_tensor *const *inputs, int ninputs);
/** Counts a call that is recorded or replayed. */
void ts_small_count(ts_compiled *c, ts_tensor *const *inputs, int ninputs);
/** A clock in nanoseconds, for trials. */
int64_t ts_small_clock(void);
/** Notes the time of a call of a trial that began at `begin`. */
void ts_small_time(ts_compiled *c, bool recorded, ts_tensor *const *inputs, int ninputs,
                   int64_t begin);

#endif
