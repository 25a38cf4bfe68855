/** @file profile.h  A profile in memory, for the files of profile/. Times are in ns, bandwidths in
 * bytes per second, rates in FLOP/s. A ceiling is a measured peak rate or peak bandwidth of the
 * machine or of a device. */
// SPDX-License-Identifier: MIT
#ifndef TS_PROFILE_PROFILE_H
#define TS_PROFILE_PROFILE_H

#include "dispatch/memory_log.h"
#include "dispatch/record.h"
#include "include/tessera/profile.h"

#define TS_PROFILE_SCHEMA 1 /* version of profile.json; a reader refuses other versions */

/** A rate above this multiple of a measured ceiling means a wrong cost or count. Smaller excesses
 *  are normal, because a CPU's ceilings vary with its clock and with other load. */
#define TS_ROOF_TOLERANCE 1.25
#define TS_ROOF_REACHED 0.6 /* share of a ceiling below which a row is inefficient */
/** Share of a time above which a report or warning states that the system ran other threads. */
#define TS_PREEMPTED_NOTED 0.02

/** Regime of a row: the limit of its speed. */
typedef enum ts_regime {
    TS_REGIME_NONE,      /* not judged yet */
    TS_REGIME_OVERHEAD,  /* a layer, the engine, calls without FLOPs and bytes, or calls hardly
                            longer than an empty call (on a device: than a kernel of one
                            element) */
    TS_REGIME_COMPUTE,   /* near the compute ceiling */
    TS_REGIME_MEMORY,    /* near the bandwidth of main memory */
    TS_REGIME_CACHE,     /* faster than main memory, below the bandwidth of the caches */
    TS_REGIME_SLOW_COMPUTE, /* compute-bound, below TS_ROOF_REACHED of the ceiling */
    TS_REGIME_SLOW_MEMORY,  /* memory-bound, below TS_ROOF_REACHED of the ceiling */
    TS_REGIME_OUTSIDE,   /* time outside of calls */
    TS_REGIME_UNKNOWN,   /* the cost of the work or the machine's ceilings are unknown */
    TS_REGIME_ERROR,     /* faster than a ceiling: a wrong cost or count */
    TS_REGIME_COUNT
} ts_regime;

extern const char *const ts_regime_names[TS_REGIME_COUNT];

enum { TS_SCOPE_TEXT = 128 };

/** A row of a profile: sums over the calls of one op, layer, scope and class of shapes. */
typedef struct ts_entry {
    char part[12]; /* "rule", "allocation", "casts"; "": the kernel, or the call without detail */
    char op[48], layer[24], scope[TS_SCOPE_TEXT]; /* layer: "CPU", "AUTOGRAD"; "-": no call */
    char call[96], dtype[8]; /* call: op and sizes, such as "relu((2, 3) f32)" */
    int64_t calls, unknown; /* unknown: calls without a cost */
    double chained; /* calls that read the result of another pointwise call or reduction, or whose
                       result such a call reads; extrapolated from a thread's first calls */
    double self_ns, flops, bytes; /* self_ns: host time without the calls inside */
    bool kernel;  /* the layer is a backend, and part is "" */
    bool product; /* a matrix product: the ceiling of matrix products applies */
    bool update;  /* the op updates parameters */
    double device_ns; /* time of the kernels, copies and memsets that the calls queued */
    int64_t kernels;  /* number of kernels that the calls queued */
    double delay_ns;  /* sum, over this device work, of the time from the call that queued a piece
                         of work to the start of that piece */
    double idle_ns;   /* idle time of the device because the host queued this work late. If the host
                         was late after a wait, the time counts for the row that waited instead */
    double partial_ns; /* time lost in the last, partial wave of kernels with few waves */
    double wait_ns;     /* host time in which these calls waited for the device */
    uint64_t row;       /* ts_tag_row() of its device work; only during ts_profile_take() */
    double pageable_ns; /* time of copies from or to pageable (not pinned) host memory */
    /* set by ts_profile_judge() */
    ts_regime regime;
    double roof_ns;     /* minimum time by the ceilings; 0 if unknown */
    double overhead_ns; /* part of the entry's time (ts_entry_time()) that is overhead */
} ts_entry;

/** Wall time of a step in the thread that marks steps, and its parts. */
typedef struct ts_step_times {
    double wall_ns, kernels_ns, layers_ns, outside_ns, profiler_ns;
    double busy_ns, idle_ns; /* times of the devices, on their clock */
} ts_step_times;

/** Causes of idle time of a device (docs/profile.md). */
typedef enum ts_idle {
    TS_IDLE_HOST,       /* the next work was not queued yet, for no reason listed below */
    TS_IDLE_DATA,       /* not queued yet: the host was in a scope "data" */
    TS_IDLE_SYNC,       /* not queued yet: a wait of the host for the device ended in the gap */
    TS_IDLE_ALLOCATOR,  /* not queued yet: the host allocated or freed device memory */
    TS_IDLE_LAUNCH,     /* from the call that queued the work to the start of the work */
    TS_IDLE_DEPENDENCY, /* the work was queued before the gap, but waited for other work */
    TS_IDLE_DEVICE,     /* the usual gap between two kernels */
    TS_IDLE_UNKNOWN,    /* the time of the queuing call is unknown */
    TS_IDLE_COUNT
} ts_idle;
extern const char *const ts_idle_names[TS_IDLE_COUNT];

/** Idle time of the device, caused by the host, while the host was in a scope or a layer. */
typedef struct ts_exposed {
    char name[TS_SCOPE_TEXT]; /* path of the scope, "" outside of all scopes; or the layer */
    bool layer;               /* false: a scope */
    double ns;
} ts_exposed;

/** Work and idle time of devices other than the CPU, and their ceilings. */
typedef struct ts_device_part {
    char source[32]; /* timing library, such as NVIDIA's CUPTI; "": no times */
    char note[160];  /* reason why there are no times, or "" */
    bool incomplete; /* a signal ended the program before the times came; the verdict is
                        "unreliable" */
    int64_t kernels, copies, lost; /* number of kernels; of copies and memsets; of kernels, copies
                                      and memsets without a record */
    int64_t untagged; /* number of kernels, copies and memsets that belong to no row */
    double busy_ns, untagged_ns; /* of the recording */
    double idle_ns; /* of the steps if they have device work, else of the recording */
    double idle[TS_IDLE_COUNT]; /* idle_ns by cause */
    double delay_ns;            /* median time from a queuing call to the start of its work */
    int64_t waits, allocations; /* number of host calls that wait for the device; that allocate or
                                   free device memory */
    int64_t lost_scopes;        /* changes of scope that did not fit into the list: the idle time
                                   after the last change in the list belongs to no scope */
    int64_t late_allocations;   /* those of `allocations` after the first recorded step */
    double wait_ns;          /* host time in waits */
    char wait_row[96];       /* ts_entry.call of the row that waits longest; "": no call waits */
    char kernel[256];        /* mangled name (ts_device_name_kernel()); "": unknown or longer */
    int64_t kernel_launches; /* number of launches of this kernel */
    bool measured;           /* the ceilings below are known */
    ts_prof_machine machine; /* as ts_prof_calibrate_device() fills it */
} ts_device_part;

/** A call of a trace. */
typedef struct ts_call_event {
    ts_event event;
    int thread;
    double begin_ns; /* since the first thread began */
} ts_call_event;

/** A kernel's name: the backend's text, and the profile's copy. */
typedef struct ts_kernel_name {
    const char *from;
    char *text;
} ts_kernel_name;
/** A kernel, copy or memset of a trace. */
typedef struct ts_work_event {
    double begin_ns; /* on the time axis of ts_call_event */
    double ns, delay_ns; /* device time; from the host's call to the start, or -1: unknown */
    const char *kernel;  /* mangled name; NULL: unknown */
    int64_t call, event; /* index of its text in ts_profile.calls, and of the call that queued it in
                            ts_profile.events; -1: unknown */
    uint32_t scope;
    uint8_t device;
} ts_work_event;

/** Number of owners of memory (ts_owner). */
#define TS_OWNERS TS_OWNER_COUNT

/** Bytes of tensors per owner at a time. */
typedef struct ts_memory_point {
    double ns; /* since the recording began */
    double bytes[TS_OWNERS];
} ts_memory_point;

/** Tensors of one op, scope and owner at the peak. */
typedef struct ts_memory_holder {
    char op[48], scope[TS_SCOPE_TEXT]; /* op and scope that made them; op "(program)": no op */
    int owner; /* a ts_owner */
    double bytes;
    int64_t blocks; /* number of allocations */
} ts_memory_holder;

enum { TS_MEMORY_POINTS = 256, TS_MEMORY_HOLDERS = 20 };

/** Memory of tensors on the devices of one backend: the backend other than the CPU that recorded
 *  tensors are on, else the CPU. npoints 0: no allocation was recorded. */
typedef struct ts_memory_part {
    char device[32];
    double shift_ns; /* begin of the recording on the time axis of a trace, which begins at the
                        first recorded step */
    double before;   /* bytes in use when the recording began */
    double capacity; /* bytes of the device's memory; 0: unknown */
    double peak_ns, peak_bytes, peak[TS_OWNERS]; /* time, bytes and bytes per owner, without
                                                    `before` */
    int64_t lost;                                /* allocations that did not fit into the log */
    int64_t npoints, nholders;
    ts_memory_point points[TS_MEMORY_POINTS]; /* the time is divided into TS_MEMORY_POINTS equal
                                                 parts; one point, that of the largest sum, for
                                                 each part in which the memory changed */
    ts_memory_holder holders[TS_MEMORY_HOLDERS]; /* at the peak, largest first */
} ts_memory_part;

struct ts_profile {
    bool traced; /* it was recorded with a trace */
    ts_call_event *events; /* NULL: no trace */
    char (*calls)[96]; /* texts of rows, by ts_event.row */
    int64_t nevents, lost_events, overwritten, ncalls; /* lost: did not fit into the trace;
                                                          overwritten: by later calls (flight) */
    ts_work_event *works;    /* of a trace, by begin; NULL: none */
    ts_kernel_name *kernels; /* names of works; see trace.c */
    int64_t nworks, nkernels;
    double tick_ns, steps_begin_ns; /* ns per tick; begin of the thread that marks steps */
    int steps_thread; /* number of the thread that marks steps; -1: none */
    ts_prof_machine machine;
    bool measured; /* the machine's ceilings are known */
    ts_entry *entries;
    int64_t count; /* number of entries */
    ts_step_times *steps;
    int64_t nsteps, first_step, lost_steps, shared_calls; /* shared_calls: in rows that classes of
                                                             shapes share (docs/profile.md) */
    double wall_ns, profiler_ns; /* summed over threads */
    double preempted_ns; /* part of wall_ns in which a thread was ready but the system ran others;
                            0: none, or unknown */
    int threads;
    double own_share; /* (self time of all rows + profiler_ns - wall_ns) / wall_ns; about 0 unless
                         the profiler has a bug */
    ts_profile_shares shares; /* set by ts_profile_judge() */
    ts_device_part device;
    ts_exposed *exposed; /* largest first */
    int64_t nexposed;
    ts_memory_part memory;
    char command[256]; /* command line of the program, quoted for a shell; "": unknown or longer */
};

extern const char *const ts_owner_names[TS_OWNERS];
/** Fills p->memory from the log of memory (dispatch/memory_log.h). first_tick: where the time axis
 *  of ts_call_event begins. devices: false leaves out the capacity of a device, so that no backend
 *  is called. Error: TS_ERR_MEMORY. */
ts_status ts_memory_study(ts_profile *p, int64_t first_tick, bool devices);
/** Stores the bytes in use on the CPU and on each backend's first device, for
 *  ts_memory_part.before. */
void ts_memory_begin(void);
/** Sets p->command. */
void ts_profile_name_program(ts_profile *p);

/** ts_profile_take() without the part of the devices, so that no backend is called. Other threads
 *  may still run. Sets p->device.incomplete if a backend has recorded. */
ts_profile *ts_profile_take_host(void);

/** True if profiles count calls of op in ts_entry.chained: a group can contain them, and they are
 *  neither products nor updates. */
bool ts_profile_chains(int op);
/** Makes an empty profile with memory for `count` entries and `nsteps` steps. Free it with
 *  ts_profile_free(). NULL with TS_ERR_MEMORY. */
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
/** Phase of the training step that an entry belongs to, by its op and scopes: "data", "forward",
 *  "backward", "optimizer" or "other". */
const char *ts_entry_phase(const ts_entry *e);
/** Sorts the entries by device time, then by self time of the host, largest first. */
void ts_profile_sort(ts_profile *p);

/** Flushes `out`, so that an error shows. TS_ERR_IO if a write to it failed. op: the public
 *  function for the error. */
ts_status ts_profile_flush(FILE *out, const char *op);

/** The median of n > 0 sorted numbers: of an even number, the mean of the two in the middle. */
static inline double ts_median_of(const double *sorted, int64_t n)
{
    return (sorted[(n - 1) / 2] + sorted[n / 2]) / 2;
}

/** Writes text as a JSON string, quoted and escaped. */
void ts_profile_print_text(FILE *out, const char *text);
/** Writes the trace for Perfetto. TS_ERR_STATE without a trace. */
ts_status ts_profile_write_chrome(const ts_profile *p, FILE *out);
/** Stores the path of a scope in text, outermost first, such as "step/attention"; cut to size. */
void ts_scope_path(char *text, size_t size, uint32_t scope);
/** Writes profile.json, which ts_profile_read() reads. The caller checks `out` for errors. */
ts_status ts_profile_write_json(const ts_profile *p, FILE *out);
/** Writes one paragraph: the verdict, the shares of the time, the ceilings. */
void ts_profile_write_verdict(const ts_profile *p, FILE *out);

/** Writes the tables of idle time and of memory, and the command for Nsight Compute; nothing for
 *  parts that the profile lacks. */
void ts_profile_write_device(const ts_profile *p, FILE *out);

/** Writes the rules that fire, with evidence and gain, as text or as elements of a JSON array.
 *  Returns their number; 0 if the machine's ceilings are unknown. */
int ts_profile_write_advice(const ts_profile *p, FILE *out, bool json);

/** Until the end of the block, calls skip all layers and run the backend's kernels directly. */
#define PLAIN_CALLS                                                                                \
    TS_KEEP_MODES;                                                                                 \
    ts_tls.include = 0;                                                                            \
    ts_tls.exclude |= ~TS_BACKEND_KEYS;                                                            \
    ts_tls.recorder = NULL;                                                                        \
    ts_tls.lazy = NULL

/** Measures this process's costs of an empty call, stamps and recording. trace: also of an event.
 *  Resets the timers. */
ts_status ts_prof_measure_calls(bool trace);
/** Fills *machine with the ceilings (from the cache file, or measured) and with the last result of
 *  ts_prof_measure_calls(). */
ts_status ts_prof_find_machine(ts_prof_machine *machine);
/** Fills *m, whose `threads` the caller has set, with the ceilings from the file of a processor or
 *  device. Without a valid file, calls measure(ctx, m) and stores the result if it can. identity:
 *  text that differs between processors or devices; NULL: there is no file. anew: measures even if
 *  the file exists. Logs a warning if the system ran other threads for more than the share
 *  TS_PREEMPTED_NOTED of the measurement; the file stores the share too. Errors: errors of
 *  measure(). */
ts_status ts_machine_kept(const char *identity, bool anew,
                          ts_status (*measure)(void *ctx, ts_prof_machine *m), void *ctx,
                          ts_prof_machine *m);
/** After this call ts_machine_kept() returns TS_ERR_STATE instead of measuring. */
void ts_machine_measure_no_more(void);

#endif
