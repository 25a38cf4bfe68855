/**
 * @file pool.h
 * Max and average pooling over 1 to 3 spatial dims, as in PyTorch, for f64, f32, bf16 and f16.
 * The batch dim of an input is optional. The result of a batch is channels-last if self is.
 * ts_adaptive_max_pool() and ts_adaptive_avg_pool() are in generated.h.
 * Errors: TS_ERR_SHAPE, TS_ERR_DTYPE, TS_ERR_VALUE, TS_ERR_NULL, TS_ERR_MEMORY.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPS_POOL_H
#define TESSERA_OPS_POOL_H

#include "../core.h"

TS_BEGIN_DECLS

/** Options of pooling. Lists have one number per spatial dim; unused entries are 0. */
typedef struct ts_pool_opts {
    size_t size;            /**< sizeof(ts_pool_opts) */
    int64_t kernel[3];      /**< elements of a window, at least 1 */
    int64_t stride[3];      /**< distance between windows; 0: the kernel */
    int64_t padding[3];     /**< elements added at each end, -Inf for max pools, 0 for averages; at
                                 most half of the window's extent, dilation * (kernel - 1) + 1 */
    int64_t dilation[3];    /**< distance between elements of a window; 0: 1. Max pools only */
    bool ceil;              /**< the last window may extend past the padding (ceil_mode) */
    bool exclude_padding;   /**< averages divide by the number of elements outside of the padding */
    int64_t divisor;        /**< >= 1: averages divide by this number; 0: by the number of
                                 elements of the window (see exclude_padding) */
} ts_pool_opts;

/**
 * Maximum of each window. If a window contains NaN, the result is NaN; among equal elements, the
 * index is that of the first.
 * @param self     (N, C, L) or (C, L)
 * @param opts     not NULL, as for all functions here
 * @param indices  receives the indices of the maxima in the spatial dims of self (i64, row-major,
 *                 sizes of the result); may be NULL
 * @return (N, C, (L + 2 * padding - dilation * (kernel - 1) - 1) / stride + 1) or without N. The
 *         quotient is rounded down, or up with `ceil`: the last window, even if it is the only one,
 *         may then extend past the padding, but windows that start in the padding at the end are
 *         left out
 */
TS_API ts_tensor *ts_max_pool1d(ts_tensor *self, const ts_pool_opts *opts, ts_tensor **indices);
/** The same over two dims: (N, C, H, W) or (C, H, W). */
TS_API ts_tensor *ts_max_pool2d(ts_tensor *self, const ts_pool_opts *opts, ts_tensor **indices);
/** The same over three dims: (N, C, D, H, W) or (C, D, H, W). */
TS_API ts_tensor *ts_max_pool3d(ts_tensor *self, const ts_pool_opts *opts, ts_tensor **indices);

/** Average of each window; sizes and windows as in ts_max_pool1d(). self (N, C, L) or (C, L). */
TS_API ts_tensor *ts_avg_pool1d(ts_tensor *self, const ts_pool_opts *opts);
/** The same over two dims: (N, C, H, W) or (C, H, W). */
TS_API ts_tensor *ts_avg_pool2d(ts_tensor *self, const ts_pool_opts *opts);
/** The same over three dims: (N, C, D, H, W) or (C, D, H, W). */
TS_API ts_tensor *ts_avg_pool3d(ts_tensor *self, const ts_pool_opts *opts);

TS_END_DECLS
#endif
