/**
 * @file product.h
 * Code that convolution.c and weight.c share: layouts of images, and products over the windows of
 * an image. A window is the part of an image that one position reads (ts_window_axis). Functions
 * that return a tensor return NULL after an error; the caller's scope owns the tensor. N is the
 * batch, C the number of channels.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_CONVOLUTION_PRODUCT_H
#define TS_CUDA_CONVOLUTION_PRODUCT_H

#include "backends/cuda/convolution/few.h"

#include "tessera/ops.h"

TS_BEGIN_DECLS

/** With several groups, the maximum channels per group for kernels that sum windows directly
 *  (windows.h). */
enum { TS_CUDA_CONV_FEW = 4 };

/** A product over windows of an image: of x (form -1), or of y for one form of x's gradient. */
typedef struct ts_cuda_conv_product {
    ts_frame *f;
    ts_convolution c;
    ts_cuda_windows windows;
    ts_tensor *image; /* (N, ..., C), dense */
    int64_t all;      /* number of windows */
    int64_t taps, depth; /* taps of a window; elements of a window in one group */
    ts_tensor *into;  /* for the gradient of the weight: a tensor that may receive it, (features,
                         ..., channels) in memory; NULL: it is written to a new tensor */
} ts_cuda_conv_product;

/** View of t (N, C, ...) as (N, ..., C). */
ts_tensor *ts_cuda_conv_last(ts_tensor *t);
/** View of t (N, ..., C) as (N, C, ...). */
ts_tensor *ts_cuda_conv_second(ts_tensor *t);
/** t, or a dense copy. NULL for t NULL. */
static inline ts_tensor *ts_cuda_conv_dense(ts_tensor *t) { return t ? ts_contiguous(t) : NULL; }

/** Returns t, which is dense, or a copy that zeros extend to `size` elements along the last dim. If
 *  t has fewer than `size`, elements must have 2 bytes and `size` must be a multiple of 8. NULL for
 *  t NULL. */
ts_tensor *ts_cuda_conv_padded(ts_frame *f, ts_tensor *t, int64_t size);
/** Returns t (N, C, ...) with channels innermost in memory. For bf16 and f16, zeros extend the
 *  channels of each group to a multiple of 8, because kernels copy 16 bytes at a time; with several
 *  groups only if the windows have several taps and more than TS_CUDA_CONV_FEW channels per group.
 *  each: channels per group of the image of the windows */
ts_tensor *ts_cuda_conv_innermost(ts_frame *f, ts_tensor *t, int64_t each);

/** Initialises *p for the windows of x that compute y (form -1), or the windows of y that compute
 *  one form of x (ts_kernel_windows()). from: the image of the windows (N, C, ...), with channels
 *  innermost and dense. TS_ERR_UNSUPPORTED if a window of all groups has more than INT32_MAX
 *  elements. */
ts_status ts_cuda_conv_open(ts_cuda_conv_product *p, ts_frame *f, ts_tensor *from, int64_t form);
/** Number of windows per chunk, for products over gathered windows: a chunk of more than one window
 *  has at most 256 MiB. */
int64_t ts_cuda_conv_chunk(const ts_cuda_conv_product *p);
/** True if each window is one pixel, in the order of the image. */
bool ts_cuda_conv_of_pixels(const ts_cuda_conv_product *p);
/** True for several groups with one channel and one feature each. */
bool ts_cuda_conv_is_depthwise(const ts_cuda_conv_product *p);
/** Returns `count` windows from `first` on as a matrix (count, groups * depth): a view of the image
 *  if ts_cuda_conv_of_pixels(), else a copy. */
ts_tensor *ts_cuda_conv_gathered(ts_cuda_conv_product *p, int64_t first, int64_t count);
/** Returns the arguments for a kernel of gemm.h. bias: NULL if there is none. to: (N, C, ...), in
 *  memory (N, ..., C). */
ts_cuda_window_product ts_cuda_conv_in_place(const ts_cuda_conv_product *p, ts_tensor *other,
                                             ts_tensor *bias, int64_t rows, ts_tensor *to);

/** True if few.h may serve the windows of `from` (N, C, ...) that compute y (form -1) or x (form
 *  0): halves, no empty tensor, one group, fewer than 8 channels of `from`, a multiple of 8
 *  channels of the other image, for x only one form, and more than one tap or at most `most`
 *  channels of the other image. With one tap and more channels, products of matrices take less
 *  time. weight: the weight or its gradient. */
bool ts_cuda_conv_is_few(ts_frame *f, ts_tensor *from, ts_tensor *weight, int64_t form,
                         int64_t most);
/** Describes such a call in *few, except few->bias, after, to and other, which the caller sets.
 *  Also initialises *p, whose image must live as long as *few is used. */
ts_status ts_cuda_conv_open_few(ts_cuda_few *few, ts_cuda_conv_product *p, ts_frame *f,
                                ts_tensor *from, ts_tensor *weight, int64_t form);

/** Computes the gradient of the weight, `result`, from x and from y's gradient `y` (weight.c). */
ts_status ts_cuda_conv_weigh(ts_frame *f, ts_tensor *result, ts_tensor *x, ts_tensor *y);

TS_END_DECLS
#endif
