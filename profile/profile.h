/** @file profile.h  A profile in memory, for the files of this room. */
// SPDX-License-Identifier: MIT
#ifndef TS_PROFILE_PROFILE_H
#define TS_PROFILE_PROFILE_H

#include "dispatch/record.h"
#include "include/tessera/profile.h"

#define TS_PROFILE_SCHEMA 1 /* version of profile.json; a reader refuses other versions */

/** Rates above this multiple of a measured ceiling are errors of a count, not of the clock: the
 *  ceilings of a CPU move with its clock and its neighbours. */
#define TS_ROOF_TOLERANCE 1.25
#define TS_ROOF_REACHED 0.6 /* share of a ceiling below which a row is inefficient */

/** Regime: the limit of a row's time. */
typedef enum ts_regime {
    TS_REGIME_NONE, /* no time */
    TS_REGIME_OVERHEAD,  /* a layer, the engine, or calls hardly larger than an empty one */
    TS_REGIME_COMPUTE,
    TS_REGIME_MEMORY,
    TS_REGIME_CACHE,     /* faster than DRAM, below the caches' ceiling */
    TS_REGIME_SLOW_COMPUTE, /* below TS_ROOF_REACHED of the ceiling that is nearer */
    TS_REGIME_SLOW_MEMORY,
    TS_REGIME_OUTSIDE,   /* no call */
    TS_REGIME_UNKNOWN,   /* an op without a cost */
    TS_REGIME_ERROR,     /* above a ceiling: a wrong cost or count */
    TS_REGIME_COUNT
} ts_regime;

extern const char *const ts_regime_names[TS_REGIME_COUNT];

enum { TS_SCOPE_TEXT = 128 };

/** Calls of one op, layer, scope and class of shapes. */
typedef struct ts_entry {
    char op[48], layer[24], scope[TS_SCOPE_TEXT], call[96], dtype[8];
    int64_t calls, unknown; /* unknown: calls without a cost */
    double self_ns, flops, bytes;
    bool kernel;  /* time in a backend's slot */
    bool product; /* judged by the ceiling of matrix products */
    bool update;  /* of an optimizer */
    /* by ts_profile_judge() */
    ts_regime regime;
    double roof_ns;     /* least time by the ceilings; 0 without */
    double overhead_ns; /* part of self_ns that the same number of empty calls takes */
} ts_entry;

/** A step: the same parts as the wall time. */
typedef struct ts_step_times {
    double wall_ns, kernels_ns, layers_ns, outside_ns, profiler_ns;
} ts_step_times;

/** A call of a trace. */
typedef struct ts_call_event {
    ts_event event;
    int thread;
    double begin_ns; /* since the first thread began */
} ts_call_event;

struct ts_profile {
    bool traced;
    ts_call_event *events;
    char (*calls)[96]; /* texts of rows, by ts_event.row */
    int64_t nevents, lost_events, ncalls;
    double tick_ns, steps_begin_ns;
    int steps_thread;
    ts_prof_machine machine;
    bool measured; /* the machine is known */
    ts_entry *entries;
    int64_t count;
    ts_step_times *steps;
    int64_t nsteps, first_step, lost_steps, shared_calls;
    double wall_ns, profiler_ns; /* wall: summed over threads */
    int threads;
    double own_share; /* wall time minus the rows' sum; 0 unless there is a bug */
    ts_profile_shares shares; /* by ts_profile_judge() */
};

ts_profile *ts_profile_new(int64_t count, int64_t nsteps);
/** Regime of each entry and the shares of all. */
void ts_profile_judge(ts_profile *p);
/** Bandwidth of work on so many bytes; 0: of main memory. */
double ts_machine_bandwidth(const ts_prof_machine *m, double bytes);
/** "data", "forward", "backward", "optimizer" or "other". */
const char *ts_entry_phase(const ts_entry *e);
/** Largest self time first. */
void ts_profile_sort(ts_profile *p);

/** A string of JSON, quoted and escaped. */
void ts_profile_print_text(FILE *out, const char *text);
ts_status ts_profile_write_chrome(const ts_profile *p, FILE *out);
/** "step/attention" from the outermost scope on. */
void ts_scope_path(char *text, size_t size, uint32_t scope);
ts_status ts_profile_write_json(const ts_profile *p, FILE *out);
ts_status ts_profile_write_tables(const ts_profile *p, FILE *out);
/** One paragraph: the regime, the shares, the ceilings. */
void ts_profile_write_verdict(const ts_profile *p, FILE *out);

/** Advice of the rules that apply, with evidence; returns their number. */
int ts_profile_write_advice(const ts_profile *p, FILE *out, bool json);

/** Measures this process's costs of an empty call, stamps and recording. Resets the timers. */
ts_status ts_prof_measure_calls(void);
/** The ceilings, with the last result of ts_prof_measure_calls(). */
ts_status ts_prof_find_machine(ts_prof_machine *machine);

#endif
