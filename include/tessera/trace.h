/**
 * @file trace.h
 * Graphs of calls: record the calls of a function, print them, replay them on other tensors.
 *
 *     static ts_status step(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
 *     {
 *         TS_SCOPE;
 *         ts_tensor *loss = ts_mse_loss(ts_forward(ctx, in[0]), in[1]);
 *         TS_TRY(ts_backward(loss));
 *         out[0] = ts_keep(ts_detach(loss));
 *         return TS_OK;
 *     }
 *     ts_graph *graph;
 *     TS_TRY(ts_trace(step, model, (ts_tensor *[]){x, y}, 2, &loss, 1, &graph));
 *     TS_TRY(ts_graph_write(graph, stdout, TS_GRAPH_TEXT));
 *     TS_TRY(ts_replay(graph, (ts_tensor *[]){x2, y2}, 2, &loss, 1));
 *     ts_graph_free(graph);
 *
 * A graph contains op calls, each with the shapes and ids of its tensors. Tensors that are not
 * inputs but were made outside of the function (parameters, optimizer state) are captures: the
 * graph keeps a reference, and a replay reads and writes their current values. A tensor that the
 * function makes from host values (ts_from_array()) is a constant of the graph. See
 * docs/tracing.md.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_TRACE_H
#define TESSERA_TRACE_H

#include "dispatch.h"

TS_BEGIN_DECLS

/** The recorded calls of a function; immutable, and may be used by several threads at a time. */
typedef struct ts_graph ts_graph;

/**
 * A function to be traced. ts_trace() runs it once, as a direct call would, so the graph contains
 * the branches that this run takes. If the function opens a scope, it calls ts_keep() on the
 * results that it writes to `outputs`.
 */
typedef ts_status (*ts_trace_fn)(void *ctx, ts_tensor *const *inputs, int ninputs,
                                 ts_tensor **outputs, int noutputs);

/**
 * Runs fn and records the calls of the calling thread in the TRACING layer, which is below AUTOCAST
 * and above AUTOGRAD, so casts of AUTOCAST are recorded as calls. Calls inside composites and
 * kernels are not recorded. A call of ts_backward() or ts_grad_of() is recorded as a region, which
 * contains the op calls of the gradient rules (its parts).
 * @param inputs   ninputs tensors, which a replay may replace by others; TS_NONE is an error
 * @param outputs  receives noutputs tensors from fn, or TS_NONE; NULL after an error
 * @param graph    receives the graph, owned by the caller (ts_graph_free()). If fn fails, the graph
 *                 is incomplete and has the calls before the error. NULL if the recording could not
 *                 start
 *
 * If the recorder runs out of memory, fn continues and the graph is incomplete.
 * Errors: those of fn; TS_ERR_STATE inside another trace, if the thread excludes the TRACING layer
 * (as in a kernel), or if fn left a scope open; TS_ERR_NULL, also if fn left an output NULL;
 * TS_ERR_VALUE (a negative count); TS_ERR_MEMORY.
 */
TS_API ts_status ts_trace(ts_trace_fn fn, void *ctx, ts_tensor *const *inputs, int ninputs,
                          ts_tensor **outputs, int noutputs, ts_graph **graph);
/** True while the calling thread records a trace. */
TS_API bool ts_tracing(void);

/**
 * Runs the recorded calls in order with other inputs. Random ops draw from the calling thread's
 * generator as the function would; written tensors and gradients of leaves are written again. If
 * the graph contains a backward, its parts run as calls and autograd records nothing; otherwise
 * autograd records the calls. Casts run as recorded; the current autocast state has no effect.
 * @param inputs   ninputs tensors of the recorded sizes, dtypes and devices
 * @param outputs  receives noutputs tensors in the innermost scope. An output that was an input or
 *                 a captured tensor is that tensor itself.
 *
 * Errors, before anything runs: TS_ERR_STATE for an incomplete graph; TS_ERR_VALUE for a wrong
 * count, for two different tensors where the trace had the same tensor twice, and for a written
 * input that shares memory with other inputs than in the trace; TS_ERR_SHAPE, TS_ERR_DTYPE,
 * TS_ERR_DEVICE, TS_ERR_MEMORY. Later, with outputs NULL and the generator as before: those of the
 * calls; TS_ERR_STATE if a leaf has no gradient although it had one in the trace; TS_ERR_VALUE if
 * the graph has an alias that no call made (docs/tracing.md), and the tensor behind the alias has
 * other strides or a smaller storage than in the trace.
 */
TS_API ts_status ts_replay(const ts_graph *graph, ts_tensor *const *inputs, int ninputs,
                           ts_tensor **outputs, int noutputs);
/** Frees a graph and releases the tensors that it captured. NULL-safe; any thread. */
TS_API void ts_graph_free(ts_graph *graph);

/** Counts of a graph. */
typedef struct ts_graph_info {
    int64_t inputs, outputs;
    int64_t captures;       /**< tensors made outside of the function, other than inputs */
    int64_t constants;      /**< tensors made from host values */
    int64_t tensors;        /**< inputs, captures, constants and results of calls */
    int64_t calls;          /**< op calls */
    int64_t regions;        /**< recorded calls that contain inner calls (parts): backward, and
                                 composites whose ops autograd records */
    int64_t casts;          /**< casts that AUTOCAST inserted */
    int64_t bytes;          /**< memory of the graph in bytes, without the captured tensors */
    bool complete;          /**< false: the graph cannot be replayed */
    const char *reason;     /**< reason why it is incomplete, or "" */
} ts_graph_info;
/** Returns the counts of a graph; for NULL all zero, with the reason "". */
TS_API ts_graph_info ts_graph_get_info(const ts_graph *graph);
/** Number of recorded calls of an op; -1 with TS_ERR_REGISTRY for an unknown name, or with
 *  TS_ERR_NULL. */
TS_API int64_t ts_graph_count(const ts_graph *graph, const char *op);

/** Formats of ts_graph_write(). */
typedef enum ts_graph_format {
    TS_GRAPH_TEXT, /**< one line per call */
    TS_GRAPH_DOT,  /**< for Graphviz: boxes are calls, arrows are tensors,
                        clusters are regions */
    TS_GRAPH_JSON  /**< all data of the graph; docs/tracing.md describes the format */
} ts_graph_format;
/**
 * Writes the graph with shapes, dtypes and call sites. A site is the return address of the public
 * function, as function+offset if the dynamic symbol table has the function, else as module+offset
 * for addr2line.
 * Errors: TS_ERR_NULL, TS_ERR_VALUE, TS_ERR_IO, TS_ERR_MEMORY.
 */
TS_API ts_status ts_graph_write(const ts_graph *graph, FILE *out, ts_graph_format format);

TS_END_DECLS
#endif
