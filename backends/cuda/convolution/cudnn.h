/**
 * @file cudnn.h
 * Convolutions by cuDNN, which is opened at run time if it is installed. For each call,
 * convolution.c or weight.c asks ts_cuda_cudnn_of() for cuDNN's algorithm and passes it to
 * ts_cuda_cudnn_run(), which measures the candidates at the first call of a shape. Only cudnn.c
 * calls cuDNN's functions.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_CUDNN_H
#define TS_CUDA_CUDNN_H

#include "backends/cuda/runtime/runtime.h"

TS_BEGIN_DECLS

/** The kernels that the environment variable TS_CUDA_CONV allows. */
typedef enum ts_cuda_conv_kernels {
    TS_CUDA_CONV_AUTO,   /**< the faster of cuDNN's and the library's, measured once per shape */
    TS_CUDA_CONV_OWN,    /**< the library's */
    TS_CUDA_CONV_CUDNN,  /**< cuDNN's for all calls that it supports */
    TS_CUDA_CONV_MMA,    /**< the library's, without those for Hopper */
    TS_CUDA_CONV_MATRIX, /**< the library's, without those of few.h and gemm.h: mostly matrix
                              products over copied windows */
} ts_cuda_conv_kernels;
/** The value of TS_CUDA_CONV, which is read once. */
ts_cuda_conv_kernels ts_cuda_conv_allowed(void);

/** The tensor that a call computes from the other two of x, weight and y. X: a transposed
 *  convolution or the gradient of x; WEIGHT: the gradient of the weight. */
typedef enum ts_cuda_conv_result { TS_CUDA_CONV_Y, TS_CUDA_CONV_X, TS_CUDA_CONV_WEIGHT }
    ts_cuda_conv_result;

/** Operands and result of a call: x and y are dense channels-last images; weight is dense
 *  (features, taps, channels per group); bias is (channels of the result), or NULL. A gradient
 *  takes the place of its tensor. */
typedef struct ts_cuda_conv_operands {
    void *x, *weight, *y, *bias;
} ts_cuda_conv_operands;

/** cuDNN's algorithm for a shape, or the record that it is not yet chosen. The library keeps it
 *  until the process ends. */
typedef struct ts_cuda_cudnn ts_cuda_cudnn;

/**
 * Returns the algorithm for the running call, or NULL, without an error, if the library's own
 * kernels must run it: cuDNN is missing or does not support the call (f64, empty tensors),
 * deterministic mode is on, TS_CUDA_CONV excludes cuDNN, an earlier measurement of this shape chose
 * the library's kernels, or there is no room for another shape.
 * @param c      the call; if the caller padded operands with zeros, c->channels and c->features
 *               include the padding
 * @param bias   the call has a bias
 * @param after  the calls after the convolution: any number that differs for different calls; 0:
 *               none
 */
ts_cuda_cudnn *ts_cuda_cudnn_of(ts_frame *frame, const ts_convolution *c,
                                ts_cuda_conv_result result, bool bias, int after);

/** The library's kernels for a call, for the comparison with cuDNN's algorithms. Both functions get
 *  `context`. */
typedef struct ts_cuda_conv_own {
    ts_status (*run)(void *context);  /* queues the library's kernels for the whole call */
    ts_status (*then)(void *context); /* queues the calls after cuDNN's result; NULL: none */
    void *context;
} ts_cuda_conv_own;

/**
 * Queues the call on the frame's stream, with the calls after it (own->then). The first call of a
 * shape takes the choice of an earlier process from disk, or measures cuDNN's algorithms and,
 * unless TS_CUDA_CONV=cudnn, the library's kernels (own->run), and waits for the stream.
 *
 * Sets *done to true if cuDNN computes the result; to false if the caller must run its own kernels:
 * they are faster, no algorithm fits, an operand is not 16-byte aligned, or the shape has no choice
 * yet and a capture runs. The measurement may already have written the results.
 *
 * Errors: TS_ERR_DEVICE, TS_ERR_MEMORY, errors of `own`.
 */
ts_status ts_cuda_cudnn_run(ts_frame *frame, ts_cuda_cudnn *algorithm,
                            const ts_cuda_conv_operands *operands, const ts_cuda_conv_own *own,
                            bool *done);

TS_END_DECLS
#endif
