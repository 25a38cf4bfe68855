/** @file windows.h  Kernels over the windows of convolutions, of channels-last images. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_WINDOWS_H
#define TS_CUDA_WINDOWS_H

#include "backends/cuda/runtime.h"

TS_BEGIN_DECLS

/** Windows of a dense image (batch, size, channels), numbered through batch and axes. */
typedef struct ts_cuda_windows {
    const void *image;
    int64_t size[3], channels, groups;
    ts_window_axis axis[3];
    int64_t first, count; /* of these windows the kernel works on */
    int item;             /* bytes of an element */
} ts_cuda_windows;

/** Writes the windows as rows of a matrix: (count, groups, taps, channels / groups), 0 outside of
 *  the image. */
ts_status ts_cuda_gather_windows(ts_frame *frame, const ts_cuda_windows *windows, void *to);

/**
 * Sums over windows without a matrix, for groups of few channels: (count, groups, rows) of
 * weight (groups, rows, taps, channels / groups).
 * @param bias  (groups, rows), or NULL
 */
ts_status ts_cuda_sum_windows(ts_frame *frame, const ts_cuda_windows *windows, const void *weight,
                              const void *bias, int64_t rows, void *to);

/**
 * Products of windows with the elements of a dense matrix y (windows, groups, rows), added up over
 * windows in parts: (parts, groups, rows, taps, channels / groups), of f64 or f32.
 * @param parts  their number; each has the same windows whatever the device
 */
ts_status ts_cuda_weigh_windows(ts_frame *frame, const ts_cuda_windows *windows, const void *y,
                                int64_t rows, int64_t parts, void *to);

TS_END_DECLS
#endif
