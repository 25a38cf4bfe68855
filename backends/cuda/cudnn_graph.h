/**
 * @file cudnn_graph.h
 * Plans of cuDNN for a convolution: the graph of a call, the engines that may run it, execution.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_CUDNN_GRAPH_H
#define TS_CUDA_CUDNN_GRAPH_H

#include "backends/cuda/cudnn.h"

/** A cudnnBackendDescriptor_t. */
typedef void *ts_cudnn_descriptor;

/** Everything that the choice of an engine depends on. */
typedef struct ts_cudnn_key {
    int64_t device, dtype, result, bias, dims;
    int64_t batch, groups, channels, features;
    int64_t size[3], places[3], kernel[3], stride[3], dilation[3], padding[3];
} ts_cudnn_key;

enum { TS_CUDNN_PLANS = 6, /* engines to measure */
       TS_CUDNN_MADE = 16  /* descriptors of a graph */ };

/** The plan of an engine. */
typedef struct ts_cudnn_plan {
    ts_cudnn_descriptor config, plan;
    int64_t workspace; /* bytes */
} ts_cudnn_plan;

/** A graph; zeroed except for the key before ts_cudnn_plans(). */
typedef struct ts_cudnn_graph {
    ts_cudnn_key key;
    ts_cudnn_descriptor made[TS_CUDNN_MADE]; /* descriptors, which plans refer to */
    int nmade, status;                       /* status: of the first call that failed */
} ts_cudnn_graph;

/** Whether cuDNN can be used. Opens it at the first call. */
bool ts_cudnn_is_there(void);
/** Text of a status of cuDNN. */
const char *ts_cudnn_text(int status);
/** Opens a handle for the current device; returns cuDNN's status, 0 for success. */
int ts_cudnn_open(void **handle);
/** Whether cuDNN can describe the call: sizes that 32 bits index, and paddings. */
bool ts_cudnn_is_supported(const ts_cudnn_key *key);
/** Makes the graph, and plans of the engines that the heuristic lists; returns their number. */
int ts_cudnn_plans(ts_cudnn_graph *graph, void *handle, ts_cudnn_plan plans[TS_CUDNN_PLANS]);
/** Destroys a plan; the graph after its plans. */
void ts_cudnn_drop_plan(ts_cudnn_plan *plan);
void ts_cudnn_drop(ts_cudnn_graph *graph);
/** Queues a plan on a stream; returns cuDNN's status. */
int ts_cudnn_queue(const ts_cudnn_plan *plan, const ts_cuda_conv_operands *operands,
                   void *workspace, void *handle, cudaStream_t stream);

#endif
