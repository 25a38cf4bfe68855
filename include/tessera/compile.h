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
 * The function runs on every call, so branches, loops and captured variables mean what they mean
 * in C. Its calls of ops are recorded by the LAZY backend instead of run; forward, backward and
 * optimizer are recorded alike. When the function returns, or reads a value, the recording is
 * looked up among the plans of earlier calls by its structure (ops, sizes, strides, dtypes,
 * integers and flags; not floating-point numbers, seeds or step counts), and run by the plan. See
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
    bool fullgraph;     /**< a break of the recording is an error (TS_ERR_STATE); with `graph`, so
                             is a plan that cannot be captured (TS_ERR_UNSUPPORTED) */
    int64_t max_plans;  /**< cached plans; the least recently used is freed first; 0: 64 */
    int64_t max_groups; /**< fused groups a plan; calls beyond them run one by one. 0: no limit; -1:
                             none, to distinguish a wrong group from a wrong plan */
    bool graph;         /**< plans on one device that can capture (CUDA) are captured on their
                             third run and replayed from then on, as one launch. Others run call by
                             call; ts_explain() says why */
} ts_compile_opts;

/**
 * Makes a compiled function of fn, which gets ctx, inputs and outputs as in ts_trace(). Nothing
 * runs yet. NULL with TS_ERR_NULL, TS_ERR_VALUE or TS_ERR_MEMORY.
 */
TS_API ts_compiled *ts_compile(ts_trace_fn fn, void *ctx, const ts_compile_opts *opts);
/** Frees the function and its plans. NULL is allowed. No thread may be in a call of it. */
TS_API void ts_compiled_free(ts_compiled *compiled);

/**
 * Calls the function. When it returns, all results, written tensors, gradients and the state of the
 * generator are as after a call of fn itself. Temporaries of fn that are no outputs end with it, as
 * if it opened a scope. Inside another compiled call, or inside ts_trace(), fn runs as a part of
 * that. With TS_COMPILE=off fn runs eagerly, with TS_COMPILE=trace the recorded calls run one by
 * one, unfused.
 * @param inputs   ninputs tensors; passed on to fn
 * @param outputs  receives noutputs tensors of the innermost scope; TS_NONE is allowed
 *
 * Errors: those of fn and of the recorded calls, with their call sites; TS_ERR_STATE for a read of
 * a value with fullgraph; TS_ERR_UNSUPPORTED for a plan without a graph where both are set;
 * TS_ERR_NULL, TS_ERR_VALUE, TS_ERR_MEMORY.
 */
TS_API ts_status ts_compiled_call(ts_compiled *compiled, ts_tensor *const *inputs, int ninputs,
                                  ts_tensor **outputs, int noutputs);

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
