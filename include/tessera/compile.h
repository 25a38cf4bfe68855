/**
 * @file compile.h
 * Compiled functions: calls are recorded, and run as fused groups.
 *
 *     static ts_status act(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
 *     {
 *         out[0] = ts_gelu(ts_add(in[0], in[1]));
 *         return ts_status_of_pointer(out[0]);
 *     }
 *     ts_compiled *c = ts_compile(act, NULL, NULL);
 *     TS_TRY(ts_compiled_call(c, (ts_tensor *[]){x, bias}, 2, &y, 1));
 *     TS_TRY(ts_explain(c, stdout));
 *     ts_compiled_free(c);
 *
 * The function's C code runs on each call, so branches, loops and variables behave as in C. Its op
 * calls (forward, backward and optimizer) are recorded by the LAZY backend instead of run. When the
 * function returns or reads a value, the library searches a plan of an earlier call with the same
 * structure (ops, sizes, strides, dtypes, integers and flags, but not floating-point numbers, seeds
 * or step counts), makes one if there is none, and runs the recording by the plan. See
 * docs/compile.md.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_COMPILE_H
#define TESSERA_COMPILE_H

#include "trace.h"

TS_BEGIN_DECLS

/** A compiled function; several threads may call it. */
typedef struct ts_compiled ts_compiled;

/** Options of ts_compile(); zero is default. */
typedef struct ts_compile_opts {
    size_t size;        /**< sizeof(ts_compile_opts) */
    const char *name;   /**< in reports and errors; NULL: "function" */
    bool fullgraph;     /**< a break of the recording is an error (TS_ERR_STATE); so is a plan that
                             cannot be captured with `graph` (TS_ERR_UNSUPPORTED), and a call that
                             can have no replay with `replay` (TS_ERR_STATE, after the call) */
    int64_t max_plans;  /**< cached plans; the least recently used is freed first; 0: 64 */
    int64_t max_groups; /**< fused groups a plan; calls beyond them run one by one. 0: no limit; -1:
                             none, to distinguish a wrong group from a wrong plan */
    bool graph;         /**< plans on one device that can capture (CUDA) are captured on their
                             third run and replayed from then on, as one launch. Others run call by
                             call; ts_explain() says why */
    bool replay;        /**< calls like the two before run without the function; see below */
    int64_t verify;     /**< with replay: every verify-th call that could run without the function
                             runs it and compares. If the call differs, there are no more replays,
                             and the log's topic "warning" gets one line. 0: never */
} ts_compile_opts;

/**
 * Makes a compiled function of fn, which gets ctx, inputs and outputs as in ts_trace(). Nothing
 * runs yet. NULL with TS_ERR_NULL, TS_ERR_VALUE or TS_ERR_MEMORY.
 */
TS_API ts_compiled *ts_compile(ts_trace_fn fn, void *ctx, const ts_compile_opts *opts);
/**
 * A graph of what fn launches, by the eager kernels: ts_compile() with fullgraph, graph, replay and
 * no groups. The first two calls run fn, the third captures, later ones are one launch. What cannot
 * be captured is an error that names the call and its site: a read of a value, an op whose result
 * sizes depend on values, a kernel that waits for the device, a number that changes without a
 * declared source, a tensor that fn keeps.
 * Errors: as ts_compile(); those of ts_compiled_call() with these options.
 */
TS_API ts_compiled *ts_step_graph(ts_trace_fn fn, void *ctx);
/** Frees the function and its plans. NULL is allowed. No thread may be in a call of it. */
TS_API void ts_compiled_free(ts_compiled *compiled);

/**
 * Calls the function. Results, written tensors, gradients and the generator's state are as after a
 * direct call of fn. Temporaries of fn are released when it returns, as if it opened a scope.
 * Inside another compiled call, or inside ts_trace(), fn runs as a part of that call. With
 * TS_COMPILE=off fn runs eagerly; with TS_COMPILE=trace the recorded calls run one by one, unfused.
 * @param inputs   ninputs tensors, passed to fn
 * @param outputs  receives noutputs tensors in the innermost scope; fn may return TS_NONE
 *
 * Errors: those of fn and of the recorded calls, with their call sites; TS_ERR_STATE for a read of
 * a value with fullgraph; TS_ERR_UNSUPPORTED for a plan without a graph where both are set;
 * TS_ERR_NULL, TS_ERR_VALUE, TS_ERR_MEMORY.
 */
TS_API ts_status ts_compiled_call(ts_compiled *compiled, ts_tensor *const *inputs, int ninputs,
                                  ts_tensor **outputs, int noutputs);

/* -------------------------------------------------------------- calls without the function ---- */

/*
 * With `replay`, a call runs its plan without the function when two calls in a row were equal and
 * the guards of these hold: inputs (dtype, device, sizes, strides, offset, shared memory, requires
 * grad), tensors that the function takes from variables (alive, and the same), gradients (there or
 * not), modes of the thread, modules and optimizers (mode, members), registered kernels, and the
 * memory that ts_depends_on() names. The call leaves the state that the function would leave:
 * written tensors and their versions, gradients, the generator, counts of optimizers, outputs.
 *
 * What else the function does in C does not happen. Variables that it sets or counts, a pointer to
 * a tensor that it reads, or a branch keep the meaning of the two equal calls; `verify` finds such
 * a change. Numbers that change between calls need a declared source.
 *
 * The function runs on each call, and ts_explain() says why, if it reads a value, keeps a tensor
 * that is no output, returns a tensor with a history, sets the state of the generator, or if a
 * user's layer, anomaly mode or a profile sees its calls. A call whose guards fail runs the
 * function once; if that call is equal to those before, the next one is replayed again.
 */

/**
 * In a compiled function: the calling thread's next call of `op` with a floating-point number as
 * `argument` takes it from *cell, which replays read. The function must not change *cell. The cell
 * must stay valid as long as the compiled function is called, or until ts_state_changed().
 * Elsewhere it does nothing.
 * @param op, argument  names of the operators' page, such as "mul" and "other"
 * Errors: TS_ERR_NULL; TS_ERR_VALUE for unknown names; TS_ERR_MEMORY.
 */
TS_API ts_status ts_number_from(const char *op, const char *argument, const double *cell);
/**
 * The same for a list of n counts, such as "steps" of "adamw": each call, and each replay, adds 1
 * to *cells[i], and number i is the sum. The function adds it itself, before or after the call.
 */
TS_API ts_status ts_counts_from(const char *op, const char *argument, int64_t *const *cells,
                                int64_t n);
/** In a compiled function: its calls depend on these bytes, so a replay needs them as they are now.
 *  Errors: TS_ERR_NULL, TS_ERR_MEMORY. */
TS_API ts_status ts_depends_on(const void *memory, size_t bytes);
/**
 * In a compiled function, before it changes *variable: the variable owns a tensor or is NULL, and
 * the function may release that tensor and put another one there, of ts_retain(). Replays do the
 * same. The variable stays valid as a cell does. Without it a kept tensor forbids replays.
 * Errors: TS_ERR_NULL, TS_ERR_MEMORY.
 */
TS_API ts_status ts_replaces(ts_tensor **variable);
/** Tells that state has changed on which compiled functions depend: each runs its function in its
 *  next call. Modules and optimizers of the library call it. Cells that were declared before are
 *  not read again. */
TS_API void ts_state_changed(void);

/* --------------------------------------------------------------------------------- reports ---- */

/** Numbers about a compiled function. */
typedef struct ts_compile_stats {
    int64_t calls;      /**< of the function */
    int64_t segments;   /**< recordings that ran; one a call, and one more a break */
    int64_t breaks;     /**< reads of values, and ops that cannot be recorded */
    int64_t plans;      /**< that are kept */
    int64_t hits;       /**< recordings for which a plan was there */
    int64_t compiles;   /**< plans made */
    int64_t nodes;      /**< recorded calls in the newest plan */
    int64_t groups;     /**< fused groups in it */
    int64_t fused;      /**< recorded calls in these */
    int64_t bytes;      /**< that its calls move, run one by one */
    int64_t fused_bytes; /**< that they move as groups */
    double compile_ms;  /**< spent on making plans */
    int64_t captures;   /**< plans captured as graphs of a device, including repeated captures */
    int64_t replays;    /**< recordings that ran as such a graph */
    int64_t replaced;   /**< calls captured anew for a replay, as a number or an address changed */
    int64_t launches;   /**< of kernels in the newest graph */
    int64_t skipped;    /**< calls that ran without the function (replay) */
    int64_t verified;   /**< calls that ran it to be compared */
    int64_t kernels;    /**< compiled for groups on other devices than the CPU */
    int64_t kernels_read; /**< read from disk instead */
    double kernel_ms;   /**< spent on both */
} ts_compile_stats;
/** All zero for NULL. */
TS_API ts_compile_stats ts_compiled_get_stats(ts_compiled *compiled);
/**
 * Writes a report about the function: calls, breaks with op and call site, plans, and for the
 * newest plan its groups, the bytes they save, and the cause of the plan. Errors: TS_ERR_NULL,
 * TS_ERR_IO, TS_ERR_MEMORY.
 */
TS_API ts_status ts_explain(ts_compiled *compiled, FILE *out);

TS_END_DECLS
#endif
