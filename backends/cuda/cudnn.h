/**
 * @file cudnn.h
 * Convolutions by cuDNN, which is opened at run time if it is installed.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_CUDNN_H
#define TS_CUDA_CUDNN_H

#include "backends/cuda/runtime.h"

TS_BEGIN_DECLS

/** The kernels that TS_CUDA_CONV allows; read once. */
typedef enum ts_cuda_conv_kernels {
    TS_CUDA_CONV_AUTO,   /**< the faster of cuDNN's and the library's, measured once per shape */
    TS_CUDA_CONV_OWN,    /**< the library's */
    TS_CUDA_CONV_CUDNN,  /**< cuDNN's for all calls that it supports */
    TS_CUDA_CONV_MMA,    /**< the library's, without those for Hopper */
    TS_CUDA_CONV_MATRIX, /**< matrix products over copied windows */
} ts_cuda_conv_kernels;
ts_cuda_conv_kernels ts_cuda_conv_allowed(void);

/** What a convolution computes from the other two of x, weight and y. */
typedef enum ts_cuda_conv_result { TS_CUDA_CONV_Y, TS_CUDA_CONV_X, TS_CUDA_CONV_WEIGHT }
    ts_cuda_conv_result;

/** Operands of a call: dense, channels-last images, and a weight (features, taps, channels per
 *  group). bias: (channels of the result), or NULL. */
typedef struct ts_cuda_conv_operands {
    void *x, *weight, *y, *bias;
} ts_cuda_conv_operands;

/** cuDNN's algorithm for a shape. The library keeps it. */
typedef struct ts_cuda_cudnn ts_cuda_cudnn;

/**
 * Returns the algorithm for the running call, or NULL if the library's kernels run it: without
 * cuDNN, in deterministic mode, for f64 and empty tensors, by TS_CUDA_CONV, and if they are as
 * fast.
 * @param c     the call, with the channels and features that the operands have in memory
 * @param bias  the call has a bias
 */
ts_cuda_cudnn *ts_cuda_cudnn_of(ts_frame *frame, const ts_convolution *c,
                                ts_cuda_conv_result result, bool bias);

/**
 * Queues the call. At the first call of a shape, measures cuDNN's algorithms and the library's
 * kernels, which own(context) runs; during a capture nothing is measured, and own kernels run.
 * *done: false if the caller must run its own kernels; they may have written results already.
 * Errors: TS_ERR_DEVICE, TS_ERR_MEMORY, errors of own().
 */
ts_status ts_cuda_cudnn_run(ts_frame *frame, ts_cuda_cudnn *algorithm,
                            const ts_cuda_conv_operands *operands, ts_status (*own)(void *context),
                            void *context, bool *done);

TS_END_DECLS
#endif
