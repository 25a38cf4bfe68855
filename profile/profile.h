/** @file profile.h  A profile in memory, for the files of this room. */
// SPDX-License-Identifier: MIT
#ifndef TS_PROFILE_PROFILE_H
#define TS_PROFILE_PROFILE_H

#include "dispatch/record.h"
#include "include/tessera/profile.h"

#define TS_PROFILE_SCHEMA 1 /* version of profile.json; a reader refuses other versions */

/** A rate above this multiple of a measured ceiling shows a wrong cost or count. Smaller excesses
 *  are normal, because a CPU's ceilings vary with its clock and with other load. */
#define TS_ROOF_TOLERANCE 1.25
#define TS_ROOF_REACHED 0.6 /* share of a ceiling below which a row is inefficient */

/** Regime: the limit of a row's time. */
typedef enum ts_regime {
    TS_REGIME_NONE, /* the row has no time */
    TS_REGIME_OVERHEAD,  /* a layer, the engine, or calls hardly longer than an empty call */
    TS_REGIME_COMPUTE,   /* near the compute ceiling */
    TS_REGIME_MEMORY,    /* near the bandwidth of main memory */
    TS_REGIME_CACHE,     /* faster than main memory, below the bandwidth of the caches */
    TS_REGIME_SLOW_COMPUTE, /* compute-bound, below TS_ROOF_REACHED of the ceiling */
    TS_REGIME_SLOW_MEMORY,  /* memory-bound, below TS_ROOF_REACHED of the ceiling */
    TS_REGIME_OUTSIDE,   /* time outside of calls */
    TS_REGIME_UNKNOWN,   /* an op without a cost */
    TS_REGIME_ERROR,     /* faster than a ceiling: a wrong cost or count */
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
    bool product; /* a matrix product: the ceiling of matrix products applies */
    bool update;  /* the op updates parameters */
    double device_ns; /* time of the kernels, copies and memsets that the calls queued */
    int64_t kernels;  /* number of kernels that the calls queued */
    /* set by ts_profile_judge() */
    ts_regime regime;
    double roof_ns;     /* minimum time by the ceilings; 0 if unknown */
    double overhead_ns; /* part of self_ns that the same number of empty calls takes */
} ts_entry;

/** Wall time of a step and its parts. */
typedef struct ts_step_times {
    double wall_ns, kernels_ns, layers_ns, outside_ns, profiler_ns;
    double busy_ns, idle_ns; /* times of the devices, on their clock */
} ts_step_times;

/** Work of devices other than the CPU. */
typedef struct ts_device_part {
    char source[32]; /* timing library, such as CUPTI; "": no times */
    char note[160];  /* reason why there are no times, or "" */
    int64_t kernels, copies, lost; /* numbers of works; copies include memsets */
    int64_t untagged; /* kernels and copies that belong to no row */
    double busy_ns, idle_ns, untagged_ns; /* of all steps if there are steps, else of the recording;
                                             untagged_ns: always of the recording */
    bool measured;           /* the ceilings below are known */
    ts_prof_machine machine; /* gemm_flops: f32 products; also the ceiling of elementwise ops */
    double half_flops;       /* FLOP/s of a bf16 matrix product */
} ts_device_part;

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
    double own_share; /* (sum of the rows - wall time) / wall time; 0 unless there is a bug */
    ts_profile_shares shares; /* set by ts_profile_judge() */
    ts_device_part device;
};

ts_profile *ts_profile_new(int64_t count, int64_t nsteps);
/** Sets the regime, roof_ns and overhead_ns of each entry, and p->shares. */
void ts_profile_judge(ts_profile *p);
/** Bandwidth in bytes per second for a working set of `bytes`; 0: of main memory. */
double ts_machine_bandwidth(const ts_prof_machine *m, double bytes);
/** True if regimes and shares are computed from device time, false if from host time. */
static inline bool ts_profile_is_of_device(const ts_profile *p) { return p->device.busy_ns > 0; }
/** Time of an entry in ns: device time in a profile of device time, else self time of the host. */
static inline double ts_entry_time(const ts_profile *p, const ts_entry *e)
{
    return ts_profile_is_of_device(p) ? e->device_ns : e->self_ns;
}
/** Total time in ns of which shares are fractions: busy plus idle time in a profile of device time,
 *  else wall time. */
static inline double ts_profile_time(const ts_profile *p)
{
    return ts_profile_is_of_device(p) ? p->device.busy_ns + p->device.idle_ns : p->wall_ns;
}
/** "data", "forward", "backward", "optimizer" or "other". */
const char *ts_entry_phase(const ts_entry *e);
/** Sorts the entries by self time, largest first. */
void ts_profile_sort(ts_profile *p);

/** Writes text as a JSON string, quoted and escaped. */
void ts_profile_print_text(FILE *out, const char *text);
ts_status ts_profile_write_chrome(const ts_profile *p, FILE *out);
/** Writes the path of a scope, outermost first, such as "step/attention". */
void ts_scope_path(char *text, size_t size, uint32_t scope);
ts_status ts_profile_write_json(const ts_profile *p, FILE *out);
ts_status ts_profile_write_tables(const ts_profile *p, FILE *out);
/** Writes one paragraph: the regime, the shares of the wall time, the ceilings. */
void ts_profile_write_verdict(const ts_profile *p, FILE *out);

/** Writes the advice that applies, with evidence; returns the number of pieces of advice. */
int ts_profile_write_advice(const ts_profile *p, FILE *out, bool json);

/** Until the end of the block, calls skip all layers and run the backend's kernels directly. */
#define PLAIN_CALLS                                                                                \
    TS_KEEP_MODES;                                                                                 \
    ts_tls.include = 0;                                                                            \
    ts_tls.exclude |= ~TS_BACKEND_KEYS;                                                            \
    ts_tls.recorder = NULL;                                                                        \
    ts_tls.lazy = NULL

/** Measures this process's costs of an empty call, stamps and recording. Resets the timers. */
ts_status ts_prof_measure_calls(void);
/** Fills *machine with the ceilings (from the cache file, or measured) and with the last result of
 *  ts_prof_measure_calls(). */
ts_status ts_prof_find_machine(ts_prof_machine *machine);

#endif
