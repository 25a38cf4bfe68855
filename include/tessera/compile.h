/**
 * @file compile.h
 * Compiled functions: op calls are recorded and run as a whole, pointwise calls as fused groups.
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
 * The function's C code runs on each call (except with the option `replay`), so branches, loops and
 * variables behave as in C. The LAZY backend records the function's op calls (forward, backward and
 * optimizer) and does not run them. When the function returns or reads a value, the library looks
 * for a plan, makes one if there is none, and runs the recording by the plan.
 *
 * On the CPU a plan may be too small to repay its recording; for some plans the library times calls
 * with and without the plan. If a plan saves no time, most later calls run eagerly, without a
 * recording, and ts_explain() says so. With fullgraph, graph or replay, every call is recorded or
 * replayed.
 *
 * A plan says how to run all recordings of one structure: equal ops, sizes, strides, dtypes,
 * integers and flags. Floating-point numbers, seeds and step counts may differ. A read of a value,
 * or a call that cannot be recorded, is a break: it ends one recording, and the next call begins
 * another. See docs/compile.md.
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
    const char *name;   /**< name in reports and errors; copied and cut to 63 bytes; NULL:
                             "function" */
    bool fullgraph;     /**< a break is an error (TS_ERR_STATE). With `graph`, a plan that cannot be
                             captured is an error too (TS_ERR_UNSUPPORTED); with `replay`, a call
                             that cannot be replayed (TS_ERR_STATE, after the call ran) */
    int64_t max_plans;  /**< largest number of plans kept; the least recently used plan is freed
                             first; 0: 64 */
    int64_t max_groups; /**< largest number of fused groups per plan; other calls run one by one.
                             0: no limit; -1: no groups, for example to find out whether a wrong
                             result comes from a group. The environment variable
                             TS_COMPILE_MAX_GROUPS may lower the limit */
    bool graph;         /**< capture a plan on its third run and launch it as one device graph from
                             then on. Needs a plan on one device that can capture (CUDA). Other
                             plans run call by call; ts_explain() says why */
    bool replay;        /**< after two equal calls in a row, later calls run without the function;
                             see "calls without the function" below */
    int64_t verify;     /**< with `replay`: every verify-th call that could be replayed runs the
                             function instead and compares. After a difference the function is never
                             replayed again, and the log's topic "warning" gets one line. 0: no
                             comparisons */
    int64_t recompute;  /**< limit in bytes: if a plan needs more memory at a time, results of cheap
                             calls are recomputed when needed instead of kept, where that lowers the
                             peak. 0: 4 GiB; -1: never */
} ts_compile_opts;

/**
 * Makes a compiled function of fn, which gets ctx, inputs and outputs as in ts_trace(). Does not
 * run fn. Owned by the caller (ts_compiled_free()); NULL with TS_ERR_NULL, TS_ERR_VALUE or
 * TS_ERR_MEMORY.
 */
TS_API ts_compiled *ts_compile(ts_trace_fn fn, void *ctx, const ts_compile_opts *opts);
/**
 * Makes a compiled function that runs the eager kernels of fn as one device graph: ts_compile()
 * with fullgraph, graph, replay, no groups and no recomputation. The first two calls run fn, the
 * third call captures the graph, and each later call is one launch. Anything that prevents this is
 * an error that names the op call and its site: a read of a value, an op whose result sizes depend
 * on values, a kernel that waits for the device, a number that changes without a declared source
 * (ts_number_from()), a tensor that fn keeps without ts_replaces().
 * Errors: as ts_compile(). The calls have the errors of ts_compiled_call() with these options.
 */
TS_API ts_compiled *ts_step_graph(ts_trace_fn fn, void *ctx);
/** Frees the function and its plans. NULL-safe. No thread may be calling the function. */
TS_API void ts_compiled_free(ts_compiled *compiled);

/**
 * Calls the function. Results, written tensors, gradients and the generator's state are as after a
 * direct call of fn, except for the last bits in the cases that docs/compile.md lists. Temporaries
 * of fn are released when it returns, as if it opened a scope. Inside another compiled call, or
 * inside ts_trace(), fn runs as a part of that call; inside a kernel it runs eagerly. The
 * environment variable TS_COMPILE names the last stage that runs. off: fn runs eagerly; trace: the
 * recorded calls run one by one; lower: calls are also dropped and moved; fuse: pointwise groups
 * are also made; full, the default: all stages.
 * @param inputs   ninputs tensors, passed to fn; TS_NONE is an error
 * @param outputs  receives noutputs tensors in the innermost scope; fn may return TS_NONE. NULL
 *                 after an error. The arrays inputs and outputs may overlap
 *
 * Errors: those of fn and of the recorded calls, with their call sites; those of
 * ts_compile_opts.fullgraph; TS_ERR_STATE if fn left a scope open; TS_ERR_NULL, TS_ERR_VALUE,
 * TS_ERR_MEMORY.
 */
TS_API ts_status ts_compiled_call(ts_compiled *compiled, ts_tensor *const *inputs, int ninputs,
                                  ts_tensor **outputs, int noutputs);

/* -------------------------------------------------------------- calls without the function ---- */

/*
 * A replay runs the plan of an earlier call without running the function. With the option `replay`,
 * a call is replayed if two earlier calls in a row were equal and their guards still hold:
 *
 * - inputs: dtype, device, sizes, strides, offset, shared memory, requires grad
 * - tensors that the function reads through variables: alive, and the same ones
 * - gradients: present or absent as before
 * - grad mode, autocast, layers and default device of the thread; deterministic mode
 * - modules and optimizers: mode and members; registered kernels
 * - the memory that ts_depends_on() declares
 *
 * A replay leaves the state that the function would leave: written tensors and their versions,
 * gradients, the generator, step counts of optimizers, outputs. Because the function's C code does
 * not run, a replay does not change the function's variables, and it uses the branches and pointers
 * of the two equal calls. The option `verify` detects calls that would differ. A number that
 * changes between calls needs a declared source (ts_number_from()).
 *
 * There are no replays if the function reads a value, keeps a tensor that is not an output, returns
 * a tensor with a history or sets the generator's state, or if a user's layer, anomaly mode or a
 * profile sees its calls; ts_explain() says which. If a guard fails, the call runs the function; if
 * that call equals the earlier ones, the next call is replayed again. After four calls that differ
 * from the replay although its guards hold, there are no more replays.
 */

/**
 * Declares the source of a number: in the calling thread's next call of `op` that passes a
 * floating-point number as `argument`, the function passes the value of *cell. Replays read *cell
 * anew. Outside of a compiled function with the option `replay`, this and the other declarations
 * below only check pointers and counts. The function must not change *cell. The cell must stay
 * valid as long as the compiled function is called, or until ts_state_changed().
 * @param op, argument  names of docs/operators.md, such as "mul" and "other"
 * Errors: TS_ERR_NULL; TS_ERR_VALUE for unknown names; TS_ERR_MEMORY.
 */
TS_API ts_status ts_number_from(const char *op, const char *argument, const double *cell);
/**
 * Like ts_number_from(), for a list of n counts, such as "steps" of "adamw". The function passes
 * *cells[i] + 1 as number i and adds 1 to *cells[i] itself, before or after the call. A replay does
 * both.
 * Errors: TS_ERR_NULL; TS_ERR_VALUE for unknown names or n < 0; TS_ERR_MEMORY.
 */
TS_API ts_status ts_counts_from(const char *op, const char *argument, int64_t *const *cells,
                                int64_t n);
/** Declares memory that decides which calls the compiled function makes. Copies the bytes; the
 *  compiled function is replayed only while they are unchanged. The memory must stay valid as long
 *  as a cell of ts_number_from(). Errors: TS_ERR_NULL, TS_ERR_MEMORY. */
TS_API ts_status ts_depends_on(const void *memory, size_t bytes);
/**
 * Declares that the compiled function replaces the tensor in *variable: it releases the old one, if
 * any, and stores another that it got from ts_retain(). Call it before the change. Replays replace
 * the tensor in the same way. Without the declaration, a tensor that the function keeps forbids
 * replays. The variable must stay valid as long as a cell of ts_number_from().
 * @param variable  address of a variable that owns a tensor or is NULL or TS_NONE
 * Errors: TS_ERR_NULL, TS_ERR_MEMORY.
 */
TS_API ts_status ts_replaces(ts_tensor **variable);
/** Invalidates all replays: the next call of each compiled function runs the function. Call it when
 *  state changes on which compiled functions depend; the library's modules and optimizers call it
 *  themselves. Cells that were declared before the call are not read again. */
TS_API void ts_state_changed(void);

/* --------------------------------------------------------------------------------- reports ---- */

/** Counters of a compiled function. */
typedef struct ts_compile_stats {
    int64_t calls;      /**< calls of ts_compiled_call() */
    int64_t segments;   /**< recordings that ran: one per recorded call, one more per break */
    int64_t breaks;     /**< reads of values, and calls of ops that cannot be recorded */
    int64_t plans;      /**< plans in the cache now */
    int64_t hits;       /**< recordings whose plan was in the cache */
    int64_t compiles;   /**< plans made so far */
    int64_t nodes;      /**< newest plan: recorded calls */
    int64_t groups;     /**< newest plan: fused groups */
    int64_t fused;      /**< newest plan: recorded calls in fused groups */
    int64_t bytes;      /**< newest plan: bytes that its calls move if they run one by one */
    int64_t fused_bytes; /**< newest plan: bytes that its calls move with its groups */
    double compile_ms;  /**< time spent making plans, ms */
    int64_t captures;   /**< captures of plans as device graphs, repeated ones included */
    int64_t replays;    /**< recordings that ran as a device graph (option graph) */
    int64_t replaced;   /**< calls captured again before a launch of their device graph because a
                             number or an address had changed */
    int64_t launches;   /**< kernel launches in the newest device graph */
    int64_t skipped;    /**< calls that were replayed without the function (option replay) */
    int64_t verified;   /**< calls that ran the function for a comparison (option verify) */
    int64_t kernels;    /**< kernels compiled for groups on devices other than the CPU */
    int64_t kernels_read; /**< kernels for such groups that were read from disk */
    double kernel_ms;   /**< time spent compiling and reading these kernels, ms */
    int64_t peak;       /**< newest plan: largest number of bytes that its values need at a time,
                             without tensors that exist before the call */
    int64_t kept_peak;  /**< newest plan: `peak` if nothing were recomputed */
    int64_t recomputed; /**< newest plan: recomputed calls (option recompute) */
    int64_t merged;     /**< newest plan: dropped calls that equal earlier calls */
} ts_compile_stats;
/** Returns the counters; all zero for NULL. */
TS_API ts_compile_stats ts_compiled_get_stats(ts_compiled *compiled);
/**
 * Writes a report about the function: calls, breaks with op and call site, plans, and for the
 * newest plan why it was made, its groups, and the bytes that they save. Errors: TS_ERR_NULL,
 * TS_ERR_IO.
 */
TS_API ts_status ts_explain(ts_compiled *compiled, FILE *out);

TS_END_DECLS
#endif
