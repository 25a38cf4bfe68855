/**
 * @file depthwise.h
 * Convolutions with one channel and one feature per group (depthwise), without a matrix of windows.
 * Sums are in f32, or f64 for f64, in an order that depends only on the shape and on the alignment
 * of the addresses.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_DEPTHWISE_H
#define TS_CUDA_DEPTHWISE_H

#include "backends/cuda/convolution/gemm.h"

TS_BEGIN_DECLS

/** ts_cuda_multiply_windows() (gemm.h) for depthwise convolutions, in any floating dtype. The
 *  windows have one channel per group, and product->rows is 1. product->other is the weight as a
 *  dense (taps, channels); product->after is not used. Error: TS_ERR_DEVICE. */
ts_status ts_cuda_multiply_channels(ts_frame *frame, const ts_cuda_window_product *product);

/** True if ts_cuda_spread_channels() supports the call: 3 x 3, 5 x 5 or 7 x 7 taps in the last two
 *  dims, with stride 2 and no dilation; one tap in the first dim, with stride 1 and no padding;
 *  padding below 2^29; elements of 2 or 4 bytes; pixels and addresses at multiples of 16 bytes; and
 *  1 to 2^31 - 1 elements of x and of y.
 *  @param item       bytes of an element
 *  @param addresses  the addresses of all operands, combined by OR */
bool ts_cuda_spreads(const ts_convolution *c, int item, uintptr_t addresses);

/** Queues the gradient of x of a depthwise convolution, or a transposed depthwise convolution, into
 *  `to`. One kernel computes all positions; ts_cuda_multiply_channels() would need a launch per
 *  form (ts_kernel_windows()). y and `to` are dense images, channels innermost, with the sizes
 *  c->y_size and c->size; weight is (taps, channels), dense; bias is (channels), or NULL. Error:
 *  TS_ERR_DEVICE. */
ts_status ts_cuda_spread_channels(ts_frame *frame, const ts_convolution *c, const void *y,
                                  const void *weight, const void *bias, void *to);

/** Queues the gradient of a weight with one channel per group, in any floating dtype.
 *  product->other: y (all, channels), dense. product->to receives (channels, taps). At most 65535
 *  taps. Errors: TS_ERR_DEVICE, TS_ERR_MEMORY. */
ts_status ts_cuda_weigh_channels(ts_frame *frame, const ts_cuda_window_product *product);

TS_END_DECLS
#endif
