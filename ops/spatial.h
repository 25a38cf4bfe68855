/**
 * @file spatial.h  Helpers of operators over images: lists of one number per spatial dim, windows
 * that slide over a dim, and the channels-last layout. Tensors are (N, C, spatial dims...).
 */
// SPDX-License-Identifier: MIT
#ifndef TS_OPS_SPATIAL_H
#define TS_OPS_SPATIAL_H

#include "include/tessera/check.h"
#include "ops/ops.h"

/** Maximum number of spatial dims: depth, height, width. */
#define TS_MAX_SPATIAL 3

/**
 * Reads a list argument of n numbers; a list of one number applies to all n dims.
 * @param least  smallest valid number
 * @param out    receives n numbers, each at most INT32_MAX
 * @return TS_ERR_VALUE if the list has another length or a number is out of range
 */
ts_status ts_spatial_list(ts_frame *f, int arg, int n, int64_t least, int64_t *out);
/** The number for spatial dim d in a list that has one number per dim, or one for all dims. */
TS_INLINE int64_t ts_spatial_number(const ts_value *v, int d)
{
    return v->ints[v->count == 1 ? 0 : d];
}
/** Checks n numbers of an options struct that belong to a spatial dim which the call lacks, such as
 *  the depth of a 2-dim convolution: TS_ERR_VALUE for argument 'opts' unless all are 0. */
ts_status ts_check_spatial_unused(ts_check_place at, const int64_t *numbers, int n);

/**
 * Output size of a sliding window along one dim. The window has `kernel` elements, `dilation`
 * apart, and moves by `stride` over `size` elements padded by `before` and `after` elements. With
 * `ceil` (PyTorch's ceil_mode) the number of moves is rounded up: the last window, even if it is
 * the only one, may extend past the padding at the end, if it starts before that padding. size is
 * at least -1; all other numbers are at most INT32_MAX.
 * @return the number of windows; 0 if no window fits or the size overflows
 */
int64_t ts_window_count(int64_t size, int64_t kernel, int64_t stride, int64_t dilation,
                        int64_t before, int64_t after, bool ceil);

/**
 * True if t has 3 to 5 dims, none of size 0, and its strides order them as (N, spatial dims, C) in
 * memory. Strides that fit several orders, as with sizes of 1, are judged by PyTorch's rule. t need
 * not be dense.
 */
bool ts_is_channels_last(const ts_tensor *t);

/** Plans a new result i of ndim dims as dense with channels innermost (plan->ordered, order). */
void ts_plan_channels_last(ts_plan *plan, int i, int ndim);

/**
 * Plans the layout by PyTorch's rule: if argument `like` is channels-last (ts_is_channels_last()),
 * the results in the bit set `rets` are created channels-last, and the kernel gets the tensors
 * among the arguments in the bit set `args` channels-last without gaps. The entry copies tensors of
 * another layout. The kernel recognises the layout by ts_is_dense_last() of these tensors. If
 * `like` is not channels-last, the plan keeps its default: contiguous tensors.
 */
void ts_plan_layout(ts_frame *f, int like, uint32_t args, uint32_t rets);

/** Shape rule of max and average pools, adaptive or not, and of their backward ops. */
ts_status ts_infer_pool_of(ts_frame *f);

#endif
