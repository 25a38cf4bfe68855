/**
 * @file gemm.h
 * Convolutions of bf16 and f16 as implicit matrix products: kernels read the elements of windows
 * straight from the image, so no matrix of windows exists in memory. Sums are in f32, in an order
 * that depends only on the shape.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_CONVOLUTION_GEMM_H
#define TS_CUDA_CONVOLUTION_GEMM_H

#include "backends/cuda/convolution/windows.h"

TS_BEGIN_DECLS

/** Calls after a convolution. They compute, for each element x of its result, rounded to the dtype:
 *
 *  1. x = (x - mean) * scale + add, if there are factors;
 *  2. x = relu(x), if relu_first;
 *  3. x = x + added, if there is an `added`; x is rounded to the dtype before;
 *  4. x = relu(x), if relu_last; then x is rounded to the dtype.
 *
 *  Arithmetic is in f32. The bits are those of separate calls. */
typedef struct ts_cuda_conv_after {
    const float *factors; /* mean, scale and add, each with a number per channel of the result;
                             NULL: none */
    const void *added;    /* an image with the result's sizes, layout and dtype; NULL: none */
    bool relu_first, relu_last; /* relu before, and after, the addition */
} ts_cuda_conv_after;

/** A product over all windows of an image (windows.h); windows.first and windows.count are not
 * used. */
typedef struct ts_cuda_window_product {
    ts_cuda_windows windows;
    int64_t all;       /* number of windows */
    int64_t rows;      /* output channels per group: of `to` in ts_cuda_multiply_windows(), of y in
                          ts_cuda_multiply_by_windows() */
    const void *other; /* weight (groups, rows, taps, channels / groups), or y (all, groups, rows);
                          dense */
    const void *bias;  /* (groups, rows), or NULL */
    const ts_cuda_conv_after *after; /* epilogue of ts_cuda_multiply_windows(), or NULL */
    void *to;
    int64_t size[3];   /* spatial sizes of the image `to` */
} ts_cuda_window_product;

/**
 * True if the kernels support this product: elements of 2 bytes, a positive multiple of 8 channels
 * per group, rows > 0, at most 65535 groups, `image` and `other` at multiples of 16 bytes, and
 * sizes below 2^29 (number of windows, taps * channels, groups * rows, offsets of taps). False with
 * TS_CUDA_CONV=matrix. The functions below require true. Their errors are TS_ERR_DEVICE and
 * TS_ERR_MEMORY.
 */
bool ts_cuda_window_product_fits(const ts_cuda_window_product *product);

/** Queues the products of all windows with `other`, the weight, plus bias, with the calls of
 *  `after`, into `to`, in the frame's dtype (bf16 or f16). `to` is a dense image (batch, size[0],
 *  size[1], size[2], groups * rows). Window i along dim d writes position start + i * step, by the
 *  fields of windows.axis[d]; other elements keep their values. */
ts_status ts_cuda_multiply_windows(ts_frame *frame, const ts_cuda_window_product *product);

/** Queues the gradient of the weight, `other` (y) transposed times the windows, into `to` (groups,
 *  rows, taps, channels / groups), in the frame's dtype (bf16 or f16). rows must be a multiple of
 *  8; bias, after and size are not used. */
ts_status ts_cuda_multiply_by_windows(ts_frame *frame, const ts_cuda_window_product *product);

/** Queues the calls of `after` on the dense image `to` (pixels, channels), in place, in the frame's
 *  dtype (bf16 or f16). Error: TS_ERR_DEVICE. */
ts_status ts_cuda_conv_apply(ts_frame *frame, const ts_cuda_conv_after *after, int64_t pixels,
                             int64_t channels, void *to);

TS_END_DECLS
#endif
