/**
 * @file product.h
 * Code shared by the results of a convolution (convolution.c, weight.c): layouts of
 * images, and products over the windows of an image. Functions that return a tensor return NULL
 * with an error; the caller's scope owns the tensor.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_CONVOLUTION_PRODUCT_H
#define TS_CUDA_CONVOLUTION_PRODUCT_H

#include "backends/cuda/convolution/few.h"

#include "tessera/ops.h"

TS_BEGIN_DECLS

/** Groups with more channels use matrix products. */
enum { TS_CUDA_CONV_FEW = 4 };

/** A product over windows of an image: of x (form -1), or of y for one form of x's gradient. */
typedef struct ts_cuda_conv_product {
    ts_frame *f;
    ts_convolution c;
    ts_cuda_windows windows;
    ts_tensor *image; /* (N, ..., C), dense */
    int64_t all;      /* number of windows */
    int64_t taps, depth; /* taps of a window; elements of a window in one group */
    ts_tensor *into;  /* gradient of the weight: where it may be written, (features, ..., channels)
                         in memory; NULL: to a new tensor */
} ts_cuda_conv_product;

/** View of t (N, C, ...) as (N, ..., C). */
ts_tensor *ts_cuda_conv_last(ts_tensor *t);
/** View of t (N, ..., C) as (N, C, ...). */
ts_tensor *ts_cuda_conv_second(ts_tensor *t);
/** t, or a dense copy. NULL for t NULL. */
static inline ts_tensor *ts_cuda_conv_dense(ts_tensor *t) { return t ? ts_contiguous(t) : NULL; }

/** Returns t, which is dense, extended by zeros to `size` elements along the last dim; if that is
 *  more, a multiple of 8 elements of 2 bytes. NULL for t NULL. */
ts_tensor *ts_cuda_conv_padded(ts_frame *f, ts_tensor *t, int64_t size);
/** Returns t (N, C, ...) with channels innermost in memory. For bf16 and f16, zeros extend the
 *  channels of each group to a multiple of 8, because kernels copy 16 bytes at a time; with several
 *  groups only if the windows have several taps and more than TS_CUDA_CONV_FEW channels.
 *  each: channels per group of the image of the windows */
ts_tensor *ts_cuda_conv_innermost(ts_frame *f, ts_tensor *t, int64_t each);

/** Initialises *p for the windows of x that compute y (form -1), or the windows of y that compute
 *  one form of x (ts_kernel_windows()). from: the image of the windows (N, C, ...), with channels
 *  innermost and dense. TS_ERR_UNSUPPORTED if a window of all groups has more than INT32_MAX
 *  elements. */
ts_status ts_cuda_conv_open(ts_cuda_conv_product *p, ts_frame *f, ts_tensor *from, int64_t form);
/** Number of windows per chunk. */
int64_t ts_cuda_conv_chunk(const ts_cuda_conv_product *p);
/** True if each window is one pixel, in the order of the image. */
bool ts_cuda_conv_of_pixels(const ts_cuda_conv_product *p);
/** True for one channel and one feature per group. */
bool ts_cuda_conv_is_depthwise(const ts_cuda_conv_product *p);
/** Returns `count` windows from `first` on as a matrix (count, groups * depth). */
ts_tensor *ts_cuda_conv_gathered(ts_cuda_conv_product *p, int64_t first, int64_t count);
/** Arguments for a kernel of gemm.h. to: (N, C, ...) in memory (N, ..., C). */
ts_cuda_window_product ts_cuda_conv_in_place(const ts_cuda_conv_product *p, ts_tensor *other,
                                             ts_tensor *bias, int64_t rows, ts_tensor *to);

/** True if few.h may serve the windows of `from` (N, C, ...) that compute y (form -1) or x (form
 *  0): halves, one group, fewer than 8 channels, one form, and more than one tap or at most `most`
 *  channels of the other image. With one tap and more channels, products of matrices take less
 *  time. weight: the weight or its gradient. */
bool ts_cuda_conv_is_few(ts_frame *f, ts_tensor *from, ts_tensor *weight, int64_t form,
                         int64_t most);
/** Describes this call; the caller sets few->bias, after, to and other. *p holds the image. */
ts_status ts_cuda_conv_open_few(ts_cuda_few *few, ts_cuda_conv_product *p, ts_frame *f,
                                ts_tensor *from, ts_tensor *weight, int64_t form);

/** Computes the gradient of the weight from x and y's gradient (weight.c). */
ts_status ts_cuda_conv_weigh(ts_frame *f, ts_tensor *result, ts_tensor *x, ts_tensor *y);

TS_END_DECLS
#endif
