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
 * A graph holds calls, shapes and ids of tensors, and no data. Tensors from outside that are no
 * inputs (parameters, optimizer state) are captured by reference: a replay reads and writes them
 * as they are then. What is made of values of the program inside the function (ts_from_array())
 * is kept as a constant. See docs/tracing.md.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_TRACE_H
#define TESSERA_TRACE_H

#include "dispatch.h"

TS_BEGIN_DECLS

/** The recorded calls of a function; immutable, and may be used by several threads at a time. */
typedef struct ts_graph ts_graph;

/**
 * A function to be traced. It runs once, with effects; it writes results to `outputs`, kept with
 * ts_keep() if it opens a scope. Branches are recorded as they were taken.
 */
typedef ts_status (*ts_trace_fn)(void *ctx, ts_tensor *const *inputs, int ninputs,
                                 ts_tensor **outputs, int noutputs);

/**
 * Runs fn and records the calls that the calling thread makes meanwhile, in the TRACING layer: with
 * the casts of AUTOCAST, and above AUTOGRAD. Inner calls of composites and kernels are not
 * recorded; a call of ts_backward() or ts_grad_of() has the ops of its rules as parts.
 * @param inputs   ninputs tensors that a replay may replace
 * @param outputs  receives noutputs tensors from fn; TS_NONE is allowed
 * @param graph    receives the graph, to be given to ts_graph_free(). Also set after an error of
 *                 fn: then the graph is incomplete and has the calls before. NULL if no graph could
 *                 be started.
 *
 * Out of memory in the recorder does not disturb fn: the graph says that it is incomplete.
 * Errors: those of fn; TS_ERR_STATE inside another trace or inside a kernel;
 * TS_ERR_NULL, TS_ERR_VALUE; TS_ERR_MEMORY.
 */
TS_API ts_status ts_trace(ts_trace_fn fn, void *ctx, ts_tensor *const *inputs, int ninputs,
                          ts_tensor **outputs, int noutputs, ts_graph **graph);
/** True while a trace is under way in the calling thread. */
TS_API bool ts_tracing(void);

/**
 * Makes the recorded calls again, in order, with other inputs. Random ops draw from the calling
 * thread's generator as the function would; written tensors and gradients of leaves are written
 * again. A graph that contains a backward runs its parts, so nothing is recorded for gradients;
 * any other graph is recorded by AUTOGRAD as its calls were. Casts are made as recorded,
 * whatever AUTOCAST is now.
 * @param inputs   ninputs tensors of the recorded sizes, dtypes and devices
 * @param outputs  receives noutputs tensors of the innermost scope.
 *                 One that was an input or a captured tensor is that tensor.
 *
 * Errors, before anything runs: TS_ERR_STATE for an incomplete graph; TS_ERR_VALUE for a wrong
 * count, or inputs that share memory otherwise than recorded where one is written;
 * TS_ERR_SHAPE, TS_ERR_DTYPE, TS_ERR_DEVICE, TS_ERR_NULL. Later: those of the calls;
 * then outputs are NULL, and the generator is as before.
 */
TS_API ts_status ts_replay(const ts_graph *graph, ts_tensor *const *inputs, int ninputs,
                           ts_tensor **outputs, int noutputs);
/** Frees a graph and releases the tensors that it captured. NULL-safe; any thread. */
TS_API void ts_graph_free(ts_graph *graph);

/** Numbers about a graph. */
typedef struct ts_graph_info {
    int64_t inputs, outputs;
    int64_t captures;       /**< tensors from outside, held by reference */
    int64_t constants;      /**< tensors made of values of the program */
    int64_t tensors;        /**< all of these, and results */
    int64_t calls;          /**< calls of ops */
    int64_t regions;        /**< calls that are shown with their parts: backward, ops by parts */
    int64_t casts;          /**< calls that AUTOCAST inserted */
    int64_t bytes;          /**< memory of the graph, without tensors held by reference */
    bool complete;          /**< false: it cannot be replayed */
    const char *reason;     /**< why it is not complete, or "" */
} ts_graph_info;
/** All zero for NULL. */
TS_API ts_graph_info ts_graph_get_info(const ts_graph *graph);
/** How often an op is called; -1 with an error for an unknown name. */
TS_API int64_t ts_graph_count(const ts_graph *graph, const char *op);

/** Forms of ts_graph_write(). */
typedef enum ts_graph_format {
    TS_GRAPH_TEXT, /**< a line a call, for people */
    TS_GRAPH_DOT,  /**< for Graphviz: boxes are calls, arrows tensors,
                        clusters calls with their parts */
    TS_GRAPH_JSON  /**< everything, see docs/tracing.md */
} ts_graph_format;
/**
 * Writes the graph with shapes, dtypes and call sites (the return address of the public function,
 * as function+offset where the dynamic symbols tell, else module+offset for addr2line).
 * Errors: TS_ERR_NULL, TS_ERR_VALUE, TS_ERR_IO, TS_ERR_MEMORY.
 */
TS_API ts_status ts_graph_write(const ts_graph *graph, FILE *out, ts_graph_format format);

TS_END_DECLS
#endif
