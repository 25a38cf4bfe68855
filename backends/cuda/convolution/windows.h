/**
 * @file windows.h  Kernels over the windows of convolutions on channels-last images. A window is
 * the part of an image that one position reads, and a tap one of its pixels (ts_window_axis in
 * kernel.h). The functions queue kernels on the frame's stream; elements have the frame's dtype
 * unless stated otherwise; taps is the product of the three axis[d].taps. Error: TS_ERR_DEVICE.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_WINDOWS_H
#define TS_CUDA_WINDOWS_H

#include "backends/cuda/runtime/runtime.h"

TS_BEGIN_DECLS

/** Windows of a dense image (batch, size[0], size[1], size[2], channels). They are numbered batch
 * by batch, with the last axis fastest. */
typedef struct ts_cuda_windows {
    const void *image;
    int64_t size[3], channels, groups;
    ts_window_axis axis[3];
    int64_t first, count; /* the kernel processes windows first to first + count - 1, except
                             ts_cuda_weigh_windows(), which processes windows 0 to count - 1 */
    int item;             /* bytes of an element */
} ts_cuda_windows;

/** Writes the windows to `to` as a dense matrix (count, groups, taps, channels / groups). Elements
 *  outside the image are 0. */
ts_status ts_cuda_gather_windows(ts_frame *frame, const ts_cuda_windows *windows, void *to);

/** Copies pixels of 2-byte channels from a dense image to a dense image with `extended` channels, a
 *  multiple of 8; the added channels are 0. The address `to` is a multiple of 16. */
ts_status ts_cuda_extend_channels(ts_frame *frame, const void *from, int64_t channels,
                                  int64_t pixels, void *to, int64_t extended);

/**
 * Computes the convolution without a matrix of windows, for groups with few channels: the product
 * of each window and the weights, plus bias.
 * @param weight  (groups, rows, taps, channels / groups), dense
 * @param bias    (groups, rows), or NULL
 * @param rows    output channels per group
 * @param to      receives (count, groups, rows)
 */
ts_status ts_cuda_sum_windows(ts_frame *frame, const ts_cuda_windows *windows, const void *weight,
                              const void *bias, int64_t rows, void *to);

/**
 * Computes the gradient of the weights as `parts` partial sums over windows, which the caller adds.
 * The windows of a part do not depend on the device. At most 65535 taps and 65535 parts.
 * @param y   dense matrix (count, groups, rows)
 * @param to  receives (parts, groups, rows, taps, channels / groups) in f64 for f64 images, else
 *            f32
 */
ts_status ts_cuda_weigh_windows(ts_frame *frame, const ts_cuda_windows *windows, const void *y,
                                int64_t rows, int64_t parts, void *to);

TS_END_DECLS
#endif
