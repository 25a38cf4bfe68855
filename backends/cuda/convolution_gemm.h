/**
 * @file convolution_gemm.h
 * Convolutions of bf16 and f16 as implicit matrix products: kernels read the elements of windows
 * straight from the image, so no matrix of windows exists in memory. Sums are in f32, in an order
 * that depends only on the shape.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_CONVOLUTION_GEMM_H
#define TS_CUDA_CONVOLUTION_GEMM_H

#include "backends/cuda/windows.h"

TS_BEGIN_DECLS

/** A product over all windows of an image; windows.first and windows.count are not used. */
typedef struct ts_cuda_window_product {
    ts_cuda_windows windows;
    int64_t all;       /* number of windows */
    int64_t rows;      /* output channels per group: of `to` in ts_cuda_multiply_windows(), of y in
                          ts_cuda_multiply_by_windows() */
    const void *other; /* weight (groups, rows, taps, channels / groups), or y (all, groups, rows);
                          dense */
    const void *bias;  /* (groups, rows), or NULL */
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

/** Queues the products of all windows with `weight`, plus bias, into `to`, in the frame's dtype
 *  (bf16 or f16). `to` is a dense image (batch, size[0], size[1], size[2], groups * rows). Window i
 *  along dim d writes position start + i * step, by the fields of windows.axis[d]; other elements
 *  keep their values. */
ts_status ts_cuda_multiply_windows(ts_frame *frame, const ts_cuda_window_product *product);

/** Queues the gradient of the weight, y transposed times the windows, into `to` (groups, rows,
 *  taps, channels / groups), in the frame's dtype (bf16 or f16). rows must be a multiple of 8; bias
 *  and size are not used. */
ts_status ts_cuda_multiply_by_windows(ts_frame *frame, const ts_cuda_window_product *product);

TS_END_DECLS
#endif
