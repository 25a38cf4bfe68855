/**
 * @file cudnn_graph.h
 * Plans of cuDNN for a convolution: the graph of a call, the engines that may run it, execution. An
 * engine is an algorithm of cuDNN; a plan is an engine prepared for a graph. cudnn.c implements
 * these functions, cudnn_choice.c measures the plans.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_CUDNN_GRAPH_H
#define TS_CUDA_CUDNN_GRAPH_H

#include "backends/cuda/convolution/cudnn.h"

/** A cudnnBackendDescriptor_t, cuDNN's type for all its objects. */
typedef void *ts_cudnn_descriptor;

/** Everything that the choice of an engine depends on. device: index; dtype: ts_dtype; result:
 *  ts_cuda_conv_result; bias: 1 if the call has a bias, else 0; after: as in ts_cuda_cudnn_of();
 *  the fields starting at `dims`: as in ts_convolution. */
typedef struct ts_cudnn_key {
    int64_t device, dtype, result, bias, after, dims;
    int64_t batch, groups, channels, features;
    int64_t size[3], y_size[3], kernel[3], stride[3], dilation[3], padding[3];
} ts_cudnn_key;

enum { TS_CUDNN_PLANS = 10, /* maximum engines to measure */
       TS_CUDNN_MADE = 16  /* maximum descriptors of a graph */ };

/** The plan of an engine. */
typedef struct ts_cudnn_plan {
    ts_cudnn_descriptor config, plan;
    int64_t workspace; /* bytes */
    int index;         /* the engine's index in the heuristic's list */
} ts_cudnn_plan;

/** A graph. Set `key` and zero the other fields before ts_cudnn_plans(). */
typedef struct ts_cudnn_graph {
    ts_cudnn_key key;
    ts_cudnn_descriptor made[TS_CUDNN_MADE]; /* the graph's descriptors; plans refer to them */
    int nmade, status; /* number of descriptors in `made`; cuDNN's status of the first call that
                          failed, 0: none */
} ts_cudnn_graph;

/** True if cuDNN can be used. Opens the library at the first call: the file that TS_CUDA_CUDNN
 *  names, or the installed one. Except ts_cudnn_is_supported(), the functions below require that it
 *  returned true. */
bool ts_cudnn_is_available(void);
/** The library's version, as cudnnGetVersion() returns it. */
int64_t ts_cudnn_version(void);
/** cuDNN's text for one of its statuses. */
const char *ts_cudnn_text(int status);
/** Opens a handle for the current device; returns cuDNN's status, 0 for success. Handles stay open
 *  until the process ends. */
int ts_cudnn_open(void **handle);
/** True if cuDNN can describe the call: no size is 0, each tensor has fewer than 2^31 elements, and
 *  the padding after x need not be negative. */
bool ts_cudnn_is_supported(const ts_cudnn_key *key);
/** Makes the graph and up to TS_CUDNN_PLANS plans, of the engines that cuDNN's heuristic lists.
 *  Skips engines that cannot run the graph, are not deterministic, compute less exactly than the
 *  dtype requires, compile code, have kernels that never end for some sizes, or need a workspace
 *  above 256 MiB and above the size of all operands plus 64 MiB. With only >= 0, makes at most the
 *  plan of the engine with this index. Returns the number of plans; 0 after an error, whose status
 *  is in graph->status. The caller destroys the plans, then the graph, also after an error. */
int ts_cudnn_plans(ts_cudnn_graph *graph, void *handle, int only,
                   ts_cudnn_plan plans[TS_CUDNN_PLANS]);
/** Destroys a plan. */
void ts_cudnn_drop_plan(ts_cudnn_plan *plan);
/** Destroys a graph's descriptors. Destroy its plans first. */
void ts_cudnn_drop(ts_cudnn_graph *graph);
/** Queues a plan on a stream; returns cuDNN's status, 0 for success. Several threads may use a
 *  handle at the same time. workspace: plan->workspace bytes of device memory. Operands must be
 *  16-byte aligned. */
int ts_cudnn_queue(const ts_cudnn_plan *plan, const ts_cuda_conv_operands *operands,
                   void *workspace, void *handle, cudaStream_t stream);

#endif
