/** @file cache.h  A compiled function: its plans and its statistics. */
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

struct ts_compiled {
    pthread_mutex_t lock;  /* guards the fields after `name`; fork() holds it */
    struct ts_compiled *next, **link; /* list of all compiled functions, under a lock of its own */
    ts_trace_fn fn;
    void *ctx;
    ts_compile_opts opts;
    char name[64];
    ts_exec **plans;       /* owned */
    int64_t nplans;
    uint64_t clock;        /* number of runs, the time unit of ts_exec.used */
    const ts_exec *newest; /* the plan that was made last */
    char cause[192];       /* difference between the newest plan and the previous one */
    ts_compile_stats stats;
    ts_break breaks[TS_MAX_BREAKS];
    int64_t small;         /* recordings in a row whose plans are small (ts_exec.small) */
    int64_t small_gap;     /* calls without a recording between the newest two recorded ones */
    char replay_why[320];  /* reason why the function ran instead of a replay; "": none */
    int64_t replayed;      /* index of the plan that was replayed last */
    int surprises;         /* calls that differed from a replay although its guards held */
    bool replay_over,      /* no more replays: too many surprises, or a failed check */
        verifying;         /* the running call checks what a replay would have done */
    /* read and written without the lock */
    _Atomic int64_t eager; /* calls that ran without a recording, because they are small */
    _Atomic int64_t eager_end; /* calls run without a recording while `eager` is below */
    _Atomic int64_t small_inputs; /* largest number of elements in the inputs of one of the small
                                     recordings in a row */
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
 *  max_plans plans are running, the new plan serves this run only. NULL with TS_ERR_MEMORY. */
ts_exec *ts_compiled_plan(ts_compiled *c, const ts_lazy *l);
/** Marks the kernel of a group as ready and counts it in the statistics. */
void ts_compiled_kernel(ts_compiled *c, ts_group_kernel *k, const ts_group_report *report);
/** Marks the kernel of a group as refused; the group then runs call by call. */
void ts_compiled_refused(ts_compiled *c, ts_group_kernel *k, const char *why);
/** Ends the run of a plan that ts_compiled_plan() returned; the plan may be freed from then on. */
void ts_compiled_ran(ts_compiled *c, ts_exec *e);

#endif
