/**
 * @file spatial.h  What operators over images share: lists of one number per spatial dim, windows
 * that slide over a dim, and the channels-last layout. Tensors are (N, C, spatial dims...).
 */
// SPDX-License-Identifier: MIT
#ifndef TS_OPS_SPATIAL_H
#define TS_OPS_SPATIAL_H

#include "ops/ops.h"

/** Most spatial dims: depth, height, width. */
#define TS_MAX_SPATIAL 3

/**
 * Reads a list argument of n numbers, or of one that stands for all n.
 * @param least  smallest number that is valid
 * @param out    receives n numbers, each at most INT32_MAX
 */
ts_status ts_spatial_list(ts_frame *f, int arg, int n, int64_t least, int64_t *out);

/**
 * Places of a window of `kernel` elements, `dilation` apart, that moves by `stride` over `size`
 * elements with `before` and `after` more at the ends. With `ceil` a last window may begin inside
 * the elements or `before`, and end behind `after` (PyTorch's ceil_mode).
 * @return the number of places; 0 if the window is longer than its range. size is a size of a
 *         tensor or -1 at least, all others at most INT32_MAX.
 */
int64_t ts_window_places(int64_t size, int64_t kernel, int64_t stride, int64_t dilation,
                         int64_t before, int64_t after, bool ceil);

/**
 * Whether strides order a tensor of 3 to 5 dims as (N, spatial dims, C) in memory, by PyTorch's
 * rule for tensors whose sizes leave the order open. The tensor need not be dense.
 */
bool ts_is_channels_last(const ts_tensor *t);

/** A new result i, of ndim dims, is dense with its channels innermost. */
void ts_plan_channels_last(ts_plan *plan, int i, int ndim);

/**
 * Keeps the layout of images: if the tensors among `args` (bits) are channels-last and dense, the
 * kernel gets them unpacked and writes results among `rets` (bits) channels-last, and the function
 * returns true. The kernel sees it by ts_is_dense_last() of all these tensors.
 */
bool ts_plan_layout(ts_frame *f, uint32_t args, uint32_t rets);

/** The rule of all pools, of averages and of largest elements, and of their backwards. */
ts_status ts_infer_pool_of(ts_frame *f);

#endif
