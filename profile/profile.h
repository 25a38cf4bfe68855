/** @file profile.h  A profile in memory, for the files of this room. */
// SPDX-License-Identifier: MIT
#ifndef TS_PROFILE_PROFILE_H
#define TS_PROFILE_PROFILE_H

#include "dispatch/memory_log.h"
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
    char part[12]; /* "rule", "allocation" or "casts"; "": the kernel, or all of the call */
    char op[48], layer[24], scope[TS_SCOPE_TEXT], call[96], dtype[8];
    int64_t calls, unknown; /* unknown: calls without a cost */
    double self_ns, flops, bytes;
    bool kernel;  /* time in a backend's slot */
    bool product; /* a matrix product: the ceiling of matrix products applies */
    bool update;  /* the op updates parameters */
    double device_ns; /* time of the kernels, copies and memsets that the calls queued */
    int64_t kernels;  /* number of kernels that the calls queued */
    double delay_ns;  /* time from the calls that queued the work to its begin */
    double idle_ns;   /* idle time of the device until the host queued this work */
    double partial_ns; /* time lost in the last, partial wave of kernels with few waves */
    double wait_ns;     /* time in which the host waited for the device */
    uint64_t row;       /* row in tags; only while a profile is taken */
    double pageable_ns; /* time of copies from or to ordinary host memory */
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

/** Causes of idle time of a device. */
typedef enum ts_idle {
    TS_IDLE_HOST,       /* the host had not queued the next work */
    TS_IDLE_DATA,       /* the same, in a scope "data" */
    TS_IDLE_SYNC,       /* the same, after the host had waited for the device */
    TS_IDLE_ALLOCATOR,  /* the same, while the host allocated or freed device memory */
    TS_IDLE_LAUNCH,     /* the work was on its way to the device */
    TS_IDLE_DEPENDENCY, /* the work was queued, but waited for other work */
    TS_IDLE_DEVICE,     /* the usual gap between two kernels */
    TS_IDLE_UNKNOWN,    /* the time of queuing is unknown */
    TS_IDLE_COUNT
} ts_idle;
extern const char *const ts_idle_names[TS_IDLE_COUNT];

/** Idle time of the device during which the host was in a scope or a layer. */
typedef struct ts_exposed {
    char name[TS_SCOPE_TEXT]; /* scope: "" is outside of all scopes */
    bool layer;               /* false: a scope */
    double ns;
} ts_exposed;

/** Work of devices other than the CPU. */
typedef struct ts_device_part {
    char source[32]; /* timing library, such as CUPTI; "": no times */
    char note[160];  /* reason why there are no times, or "" */
    int64_t kernels, copies, lost; /* numbers of works; copies include memsets */
    int64_t untagged; /* kernels and copies that belong to no row */
    double busy_ns, idle_ns, untagged_ns; /* of all steps if there are steps, else of the recording;
                                             untagged_ns: always of the recording */
    double idle[TS_IDLE_COUNT]; /* idle_ns by cause */
    double delay_ns;         /* median time from a call to the begin of its work */
    int64_t waits, allocations; /* host calls that wait for the device, that allocate or free */
    int64_t late_allocations;   /* allocations after the first recorded step */
    double wait_ns;          /* time of the host in waits */
    char wait_row[96];       /* call that waits longest; "": outside of calls */
    char kernel[256];        /* the kernel that loses most time, for ncu; "": unknown */
    int64_t kernel_launches; /* its launches */
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

/** Owners of memory; ts_storage.owner. */
#define TS_OWNERS TS_OWNER_COUNT

/** Bytes per owner at a time. */
typedef struct ts_memory_point {
    double ns;
    double bytes[TS_OWNERS];
} ts_memory_point;

/** Memory of the calls of one op and scope at the peak. */
typedef struct ts_memory_holder {
    char op[48], scope[TS_SCOPE_TEXT];
    int owner;
    double bytes;
    int64_t blocks;
} ts_memory_holder;

enum { TS_MEMORY_POINTS = 256, TS_MEMORY_HOLDERS = 20 };

/** Memory of tensors on one device; npoints 0: not recorded. */
typedef struct ts_memory_part {
    char device[32];
    double before;   /* bytes in use when the recording began */
    double capacity; /* bytes of the device's memory; 0: unknown */
    double peak_ns, peak_bytes, peak[TS_OWNERS];
    int64_t lost;    /* events without room */
    int64_t npoints, nholders;
    ts_memory_point points[TS_MEMORY_POINTS];
    ts_memory_holder holders[TS_MEMORY_HOLDERS]; /* at the peak, largest first */
} ts_memory_part;

struct ts_profile {
    bool traced;
    ts_call_event *events;
    char (*calls)[96]; /* texts of rows, by ts_event.row */
    int64_t nevents, lost_events, overwritten, ncalls;
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
    ts_exposed *exposed; /* largest first */
    int64_t nexposed;
    ts_memory_part memory;
    char command[256]; /* of the program, quoted for a shell */
};

extern const char *const ts_owner_names[TS_OWNERS];
/** Studies the log of memory and fills p->memory. TS_ERR_MEMORY. */
ts_status ts_memory_study(ts_profile *p);
/** Keeps the bytes in use at the beginning of a recording. */
void ts_memory_begin(void);
/** Sets p->command. */
void ts_profile_name_program(ts_profile *p);

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

/** Writes the tables of idle time and of memory, and the command for Nsight Compute. */
void ts_profile_write_device(const ts_profile *p, FILE *out);

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
