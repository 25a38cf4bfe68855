/**
 * @file profile.h
 * Profiles: whether computation, memory bandwidth or overhead limits a program, compared with
 * ceilings that ts_prof_calibrate() measures on the machine.
 *
 * A profile records calls by op, layer, scope and class of shapes: calls, self time, floating-point
 * operations and least bytes. Its rows sum to the wall time. `TS_PROF=1 ./program` profiles any
 * program without a change; see docs/profile.md.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_PROFILE_H
#define TESSERA_PROFILE_H

#include <stdio.h>
#include "dispatch.h"

TS_BEGIN_DECLS

/* -------------------------------------------------------------------------- recording ---- */

/** Options of ts_prof_start(); zero is the default everywhere. */
typedef struct ts_prof_opts {
    size_t size;        /**< sizeof(ts_prof_opts) */
    int64_t first_step; /**< steps before it are not recorded; 0 or 1: none */
    int64_t last_step;  /**< last recorded step; 0: record until ts_prof_stop() */
    bool trace;         /**< also keeps each call, 64 bytes, up to 256 MiB for all threads; calls
                             beyond that are counted as lost */
} ts_prof_opts;

/**
 * Begins a profile of all threads and forgets figures of an earlier one. Resets the timers, which
 * read the same counters; ts_timers_reset() begins a running profile anew.
 * @param opts  NULL is all zero
 * Errors: TS_ERR_VALUE for steps out of order, TS_ERR_STATE while one records, TS_ERR_UNSUPPORTED
 * in a build without timers, TS_ERR_MEMORY.
 */
TS_API ts_status ts_prof_start(const ts_prof_opts *opts);
/** Ends recording; the recorded data stays for ts_profile_take(). TS_OK if nothing records. */
TS_API ts_status ts_prof_stop(void);
/** Whether a profile records now. */
TS_API bool ts_prof_active(void);
/**
 * Ends a step of the program's loop. A program that never calls it has steps all the same: one ends
 * with the last call of an optimizer's update that other calls follow.
 */
TS_API void ts_prof_step(void);
/** Opens a part of the program, "data" or "attention", inside of the open one, for the calling
 *  thread. Backward passes have the scope "backward" by themselves. '/' and ';' become '_'; a name
 *  has at most 39 bytes. TS_ERR_NULL. Does nothing while no profile records. */
TS_API ts_status ts_prof_enter(const char *name);
/** Closes the part opened last; does nothing without an open part. */
TS_API void ts_prof_leave(void);

/** Used by TS_PROF_SCOPE(): leaves the part if it was entered. */
static inline void ts_prof_leave_block(const bool *entered)
{
    if (*entered)
        ts_prof_leave();
}
/** The rest of the block is the part `name`. */
#define TS_PROF_SCOPE(name)                                                                        \
    const bool TS_CAT(ts_prof_entered_, __LINE__)                                                  \
        __attribute__((cleanup(ts_prof_leave_block), unused)) = ts_prof_enter(name) == TS_OK

/* ------------------------------------------------------------------------ the machine ---- */

/** Sizes at which bandwidth is measured: 32 KiB times 4^i. */
#define TS_PROF_CURVE 8

/** Ceilings of this machine, measured with the number of threads that ops use. */
typedef struct ts_prof_machine {
    size_t size; /**< sizeof(ts_prof_machine), set by the caller */
    char name[64];
    int threads;
    double gemm_flops;             /**< FLOP/s of an f32 matrix product */
    double vector_flops;           /**< FLOP/s of f32 multiplications and additions, unfused */
    double bytes_at[TS_PROF_CURVE]; /**< bytes of a buffer */
    double bandwidth[TS_PROF_CURVE]; /**< bytes/s, read and written, of work on so many bytes */
    double call_ns;                /**< a call of one element inside of its backend */
    double entry_ns;               /**< the same call above its first slot: boxing, scopes */
    double stamp_ns;               /**< one time stamp */
    double record_ns;              /**< of a recorded call, beside its stamps */
    double measured_at;            /**< seconds since 1970 */
} ts_prof_machine;

/**
 * Measures the machine, or reads an earlier measurement from a file: one per host, processor and
 * number of threads in $XDG_CACHE_HOME/tessera (~/.cache/tessera), which must belong to the user.
 * Takes up to ten seconds. A folder that cannot be written is no error. Resets the timers.
 * @param anew  measure even if the file exists
 * Errors: TS_ERR_STATE while a profile records,
 * TS_ERR_MEMORY, TS_ERR_NULL, TS_ERR_UNSUPPORTED.
 */
TS_API ts_status ts_prof_calibrate(bool anew, ts_prof_machine *machine);

/* ------------------------------------------------------------------------ its results ---- */

/** A finished profile, in memory. */
typedef struct ts_profile ts_profile;

typedef enum ts_profile_format {
    TS_PROFILE_TABLES, /**< verdict and tables for a terminal, 100 columns */
    TS_PROFILE_JSON,   /**< all of it; ts_profile_read() takes it back */
    TS_PROFILE_CSV,    /**< one line per row */
    TS_PROFILE_CHROME, /**< the calls of a trace, for Perfetto and chrome://tracing */
    TS_PROFILE_FOLDED  /**< folded stacks, in ns: scope;op;layer, for flame graphs */
} ts_profile_format;

/** Division of the time, as used by the verdict. */
typedef struct ts_profile_shares {
    size_t size; /**< sizeof(ts_profile_shares), set by the caller */
    double wall_ns;
    /** Shares of the wall time, which sum to 1. outside: the program between calls; profiler: its
     *  own cost; unknown: ops without a cost. */
    double compute, memory, overhead, outside, profiler, unknown;
    const char *verdict; /**< "compute-bound", "memory-bound", "overhead-bound", "outside-bound",
                              "mixed", "unreliable" or "empty" */
    int64_t steps, errors; /**< errors: rows above a measured ceiling */
} ts_profile_shares;

/**
 * Makes a profile of the calls recorded so far. Measures the machine's ceilings if no file has
 * them.
 * @return owned by the caller; NULL with TS_ERR_STATE while a profile records, or TS_ERR_MEMORY
 */
TS_API ts_profile *ts_profile_take(void);
/** A profile from a JSON file. NULL with TS_ERR_IO, or TS_ERR_FORMAT with the reason. */
TS_API ts_profile *ts_profile_read(const char *path);
/** Prints a profile. TS_ERR_IO when the stream fails, TS_ERR_VALUE for a format, TS_ERR_STATE for
 *  CHROME of a profile without a trace: one from a file has none. */
TS_API ts_status ts_profile_write(const ts_profile *profile, FILE *out, ts_profile_format format);
/** Prints the differences from `before` to `after` by op, largest change first. */
TS_API ts_status ts_profile_compare(const ts_profile *before, const ts_profile *after, FILE *out);
TS_API ts_status ts_profile_get_shares(const ts_profile *profile, ts_profile_shares *shares);
/** NULL-safe. */
TS_API void ts_profile_free(ts_profile *profile);

TS_END_DECLS
#endif
