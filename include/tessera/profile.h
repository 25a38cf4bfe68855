/**
 * @file profile.h
 * Profiles: whether computation, memory bandwidth or overhead limits a program, compared with
 * ceilings that ts_prof_calibrate() measures on the machine.
 *
 * A profile has one row for each combination of op, layer, scope and class of shapes (calls whose
 * tensors have the same sizes, dtypes and devices are of one class). A row has the number of calls,
 * their self time (without inner calls), their floating-point operations, and the fewest bytes that
 * they must move. The rows sum to the wall time. `TS_PROF=1 ./program` profiles any program without
 * a change; see docs/profile.md.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_PROFILE_H
#define TESSERA_PROFILE_H

#include <stdio.h>
#include "dispatch.h"

TS_BEGIN_DECLS

/** A finished profile, in memory. */
typedef struct ts_profile ts_profile;

/* -------------------------------------------------------------------------- recording ---- */

/** Options of ts_prof_start(); zero is default. */
typedef struct ts_prof_opts {
    size_t size;        /**< sizeof(ts_prof_opts) */
    int64_t first_step; /**< first recorded step; 0 or 1: record from the start */
    int64_t last_step;  /**< last recorded step; 0: record until ts_prof_stop() */
    bool trace;         /**< also record each single call, in 64 bytes of memory per call, up to
                             256 MiB for all threads; further calls are counted as lost */
    bool memory;        /**< also record when the memory of tensors is allocated and freed, except
                             for CPU tensors of at most 1 KiB */
    bool ranges;        /**< also mark scopes and steps as ranges for external tools (NVTX, NVIDIA
                             Tools Extension), if a loaded backend has profile_range() */
    bool detail;        /**< divide the time of a backend's row into shape rule, allocation, casts
                             and kernel */
    bool flight;        /**< with trace: each thread keeps its latest 65,536 calls instead of its
                             first calls */
    /** A schedule, if `active` is above 0: after skip_first steps, cycles of wait, warmup and
     *  active steps follow one another. first_step and last_step are then 0. */
    int64_t skip_first; /**< steps before the first cycle */
    int64_t wait;       /**< steps of a cycle in which nothing is recorded */
    int64_t warmup;     /**< the following steps of a cycle, whose records are dropped */
    int64_t active;     /**< the last steps of a cycle, which make its profile; 0: no schedule */
    int64_t repeat;     /**< number of cycles; 0: until ts_prof_stop() */
    /** Receives each cycle's profile and owns it (ts_profile_free()); cycles count from 1. The
     *  thread that ends the cycle's last step calls `ready`, inside ts_prof_step(), ts_prof_stop()
     *  or, in a program without ts_prof_step(), inside the op call that ends the step. `ready` may
     *  call ts_prof_stop() but no operators: under the key masks of that op call an operator could
     *  skip layers such as autograd, and a random operator would change the program's random
     *  numbers. */
    void (*ready)(ts_profile *profile, int64_t cycle, void *user);
    void *user; /**< passed to `ready` */
} ts_prof_opts;

/**
 * Starts a profile of all threads and discards the data of the previous one. Resets the timers,
 * which use the same counters; ts_timers_reset() restarts a running profile.
 * @param opts  NULL: all members zero
 * Errors: TS_ERR_VALUE for an invalid size, steps out of order or an invalid schedule, TS_ERR_NULL
 * for a schedule without `ready`, TS_ERR_STATE while a profile records or a schedule runs, or if
 * the system's clock does not advance, TS_ERR_UNSUPPORTED in a build without timers, TS_ERR_MEMORY.
 */
TS_API ts_status ts_prof_start(const ts_prof_opts *opts);
/** Ends recording; the recorded data stays for ts_profile_take(). Ends a schedule: `ready` receives
 *  the active steps of an unfinished cycle, if there are any. TS_OK if nothing records. */
TS_API ts_status ts_prof_stop(void);
/** True while a profile records or a schedule runs. */
TS_API bool ts_prof_active(void);
/**
 * Ends a step of the training loop. In a program that never calls it, a step ends at the first op
 * call after an optimizer's update. A profile counts the steps of one thread only: the first thread
 * that ends a step.
 */
TS_API void ts_prof_step(void);
/** Opens a scope such as "data" or "attention" for the calling thread, nested in its current scope.
 *  The library opens the scope "backward" itself. '/' and ';' in the name become '_', control
 *  characters are escaped as by ts_escape_text(), and names are cut to 39 bytes. Does nothing while
 *  no profile records. Errors: TS_ERR_NULL. */
TS_API ts_status ts_prof_enter(const char *name);
/** Closes the calling thread's innermost scope; does nothing if none is open. */
TS_API void ts_prof_leave(void);

/** Purposes of a tensor's memory that the library cannot recognise itself. */
typedef enum ts_hold {
    TS_HOLD_INPUT,    /**< a batch; ts_loader_next() declares its batches */
    TS_HOLD_OPTIMIZER /**< state of an optimizer; ts_optimizer declares its own */
} ts_hold;
/** Declares the purpose of t's memory, for profiles with `memory`. The library itself recognises
 *  parameters (leaves that require grad), gradients, and tensors saved for backward passes; other
 *  memory counts as temporary. Ignores NULL and a tensor that was released. */
TS_API void ts_prof_hold(ts_tensor *t, ts_hold hold);

/** Used by TS_PROF_SCOPE(): closes the scope if ts_prof_enter() opened it. */
static inline void ts_prof_leave_block(const bool *entered)
{
    if (*entered)
        ts_prof_leave();
}
/** Opens the scope `name` until the end of the enclosing block. */
#define TS_PROF_SCOPE(name)                                                                        \
    const bool TS_CAT(ts_prof_entered_, __LINE__)                                                  \
        __attribute__((cleanup(ts_prof_leave_block), unused)) = ts_prof_enter(name) == TS_OK

/* ------------------------------------------------------------------------ the machine ---- */

/** Number of buffer sizes for which ts_prof_machine has the bandwidth: for the CPU 32 KiB times
 *  4^i, 0 <= i < 8 (up to 512 MiB), for another device eight sizes from 2 to 512 MiB. */
#define TS_PROF_CURVE 8

/** Ceilings of this machine, measured with the number of threads that ops use. */
typedef struct ts_prof_machine {
    size_t size; /**< sizeof(ts_prof_machine), set by the caller */
    char name[64];                 /**< name of the processor or device */
    int threads;                   /**< number of threads of the measurement */
    double gemm_flops;             /**< FLOP/s of an f32 matrix product */
    double vector_flops;           /**< FLOP/s of f32 multiplications and additions, not fused */
    double bytes_at[TS_PROF_CURVE]; /**< buffer sizes, bytes, ascending; one half is the source of
                                        the copy, the other its destination */
    double bandwidth[TS_PROF_CURVE]; /**< bytes/s, reads plus writes, in a buffer of bytes_at[i]. On
                                        the CPU, sizes above an eighth of the main memory are not
                                        measured; they get the bandwidth of the largest measured
                                        size */
    double call_ns;                /**< time of a one-element call in the backend's slot, ns; of
                                        another device than the CPU: the host's time of that call */
    double entry_ns;               /**< time that such a call takes to box its arguments, before its
                                        first slot, ns */
    double stamp_ns;               /**< cost of one time stamp, ns */
    double record_ns;              /**< cost of recording a call, without its time stamps, ns */
    double measured_at;            /**< time of the measurement, seconds since 1970 */
    double half_flops; /**< of a device: FLOP/s of a bf16 matrix product; of the CPU: 0 */
    double double_flops; /**< FLOP/s of an f64 matrix product; 0: unknown */
    double kernel_ns;  /**< of a device: time of a one-element kernel and the gap before it while
                            the host queues kernels faster than the device runs them, in ns; of
                            the CPU: 0 */
} ts_prof_machine;

/**
 * Measures the machine, or reads an earlier measurement from a file: one per host, processor and
 * number of threads in $XDG_CACHE_HOME/tessera, or ~/.cache/tessera if the variable is not an
 * absolute path. A file that belongs to another user, or that others may write, is ignored. Takes
 * up to ten seconds. A folder that cannot be written is not an error. Resets the timers.
 * @param anew     measure even if the file exists
 * @param machine  receives the ceilings; the caller sets machine->size
 * Errors: TS_ERR_STATE while a profile records, TS_ERR_VALUE for an invalid size, TS_ERR_MEMORY,
 * TS_ERR_NULL, TS_ERR_UNSUPPORTED in a build without timers.
 */
TS_API ts_status ts_prof_calibrate(bool anew, ts_prof_machine *machine);
/**
 * The same for another device: its f64, f32 and bf16 matrix products, a fused chain of f32
 * multiplications and additions, copies of 2 to 512 MiB (profiles assume the bandwidth of 2 MiB for
 * smaller ones), and kernels of one element. Takes about a second. The file is per host, device,
 * driver and TS_CUDA_TF32; a backend without ts_backend.identify has no file. vector_flops is
 * gemm_flops if the device has no fused groups; entry_ns, stamp_ns and record_ns are 0.
 * Errors: those of ts_prof_calibrate(); TS_ERR_DEVICE for the CPU, META and a device that does not
 * exist; those of the device's operators.
 */
TS_API ts_status ts_prof_calibrate_device(ts_device device, bool anew, ts_prof_machine *machine);

/* ------------------------------------------------------------------ finished profiles ---- */

/** Formats of ts_profile_write(). */
typedef enum ts_profile_format {
    TS_PROFILE_TABLES, /**< verdict and tables for a terminal, 100 columns */
    TS_PROFILE_JSON,   /**< all data except the trace; ts_profile_read() reads it */
    TS_PROFILE_CSV,    /**< one line per row */
    TS_PROFILE_CHROME, /**< the calls of a trace, for Perfetto and chrome://tracing */
    TS_PROFILE_FOLDED  /**< folded stacks "program;scope;op;layer ns", for flame graphs */
} ts_profile_format;

/** The fractions ("shares") of the wall time that work and overhead take, and the verdict that
 *  follows from them. */
typedef struct ts_profile_shares {
    size_t size; /**< sizeof(ts_profile_shares), set by the caller */
    double wall_ns; /**< wall time of the profile, ns, summed over threads */
    /** Fractions of the wall time, which sum to 1. compute: ops limited by arithmetic; memory: ops
     *  limited by bandwidth; overhead: dispatch; outside: the program's own code between calls;
     *  profiler: the profiler's overhead; unknown: ops without a cost formula. */
    double compute, memory, overhead, outside, profiler, unknown;
    const char *verdict; /**< "compute-bound", "memory-bound", "overhead-bound", "outside-bound",
                              "mixed", "unreliable" or "empty"; a string constant */
    int64_t steps, errors; /**< steps: recorded steps. errors: rows faster than a measured ceiling,
                                whose cost or count must be wrong */
} ts_profile_shares;

/**
 * Makes a profile of the calls recorded so far. Measures the machine's ceilings if no file has
 * them.
 * @return owned by the caller; NULL with TS_ERR_STATE while a profile records, or TS_ERR_MEMORY
 */
TS_API ts_profile *ts_profile_take(void);
/** Reads a profile from a JSON file. @return owned by the caller; NULL with TS_ERR_NULL, TS_ERR_IO,
 *  TS_ERR_MEMORY, or TS_ERR_FORMAT, which names the field and the expected value. */
TS_API ts_profile *ts_profile_read(const char *path);
/** Prints a profile. Errors: TS_ERR_NULL, TS_ERR_MEMORY, TS_ERR_IO if writing fails, TS_ERR_VALUE
 * for an unknown format, TS_ERR_STATE for TS_PROFILE_CHROME without a trace (files hold no trace).
 */
TS_API ts_status ts_profile_write(const ts_profile *profile, FILE *out, ts_profile_format format);
/** Prints the differences from `before` to `after` by op, largest change first. Errors:
 * TS_ERR_NULL, TS_ERR_MEMORY, TS_ERR_IO. */
TS_API ts_status ts_profile_compare(const ts_profile *before, const ts_profile *after, FILE *out);
/** Copies the shares of a profile to *shares; the caller sets shares->size. Errors: TS_ERR_NULL,
 *  TS_ERR_VALUE for an invalid size. */
TS_API ts_status ts_profile_get_shares(const ts_profile *profile, ts_profile_shares *shares);

/* ----------------------------------------------------------------------- trying advice ---- */

/** Kinds of knobs (ts_knob). The kind says what the knob's number is, or what the step function
 *  does when the number is `trial`. */
typedef enum ts_knob_kind {
    TS_KNOB_BATCH,    /**< the number of samples in a step; gains are per sample */
    TS_KNOB_PADDING,  /**< a size in matrix products, such as the vocabulary */
    TS_KNOB_AUTOCAST, /**< `trial` makes the step run in bf16 */
    TS_KNOB_COMPILE,  /**< `trial` makes the step a compiled function */
    TS_KNOB_GRAPH,    /**< `trial` makes the compiled step one launch of a device graph */
    TS_KNOB_DRY       /**< `trial` makes the step use META tensors, so no kernel runs; shows the
                           host's time */
} ts_knob_kind;

/** A number that the step function reads, and another value to try. */
typedef struct ts_knob {
    const char *name;
    ts_knob_kind kind;
    int64_t *value; /**< read by the step function; ts_prof_try() changes and restores it */
    int64_t trial;  /**< the value to try */
    /* results */
    double predicted, measured;  /**< fraction of a step's time that `trial` saves (BATCH: of the
                                      time per sample); negative if the step is slower */
    double noise; /**< half the range of `measured` over the rounds; INFINITY for one round. A gain
                       that is not larger is noise */
    double before_ns, after_ns; /**< time of a step with *value and with `trial`, ns */
} ts_knob;

/** Options of ts_prof_try(); zero is default. */
typedef struct ts_try_opts {
    size_t size;    /**< sizeof(ts_try_opts) */
    int64_t warmup; /**< steps before each measurement; 0: 3 */
    int64_t steps;  /**< steps per measurement; 0: 10 for the profile, and for measurements without
                         a profile as many as take 2 ms, 10 to 100,000 */
    int64_t rounds; /**< measurements per value; the shortest counts; 0: 3 */
    FILE *out;      /**< receives the report; NULL: stdout */
} ts_try_opts;

/**
 * Profiles a training step and predicts the gain of each knob from the profile. Then measures the
 * gains without a profile, one knob at a time, and prints the predicted and the measured gains.
 * @param step   runs one step with the knobs' current values, and first rebuilds the objects, such
 *               as a batch, that depend on a changed value. Each call has a scope of its own.
 * @param user   passed to step
 * @param knobs  `count` knobs, at least one; receives the results
 * @param opts   NULL: all members zero
 * Errors: those of step, of ts_prof_start() and of ts_profile_take(); TS_ERR_VALUE for count,
 * opts or a knob; TS_ERR_NULL, also for a knob without name or value; TS_ERR_IO if the report
 * cannot be written.
 */
TS_API ts_status ts_prof_try(ts_status (*step)(void *user), void *user, ts_knob *knobs, int count,
                             const ts_try_opts *opts);

/** Frees a profile; NULL is allowed. */
TS_API void ts_profile_free(ts_profile *profile);

TS_END_DECLS
#endif
