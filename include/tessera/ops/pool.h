/**
 * @file pool.h
 * Pooling over windows of 1 to 3 spatial dims, as PyTorch's, of f64, f32, bf16 and f16. The result
 * is channels-last if self is. ts_adaptive_max_pool() and ts_adaptive_avg_pool() are in
 * generated.h.
 * Errors: TS_ERR_SHAPE, TS_ERR_DTYPE, TS_ERR_VALUE, TS_ERR_NULL, TS_ERR_MEMORY.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPS_POOL_H
#define TESSERA_OPS_POOL_H

#include "../core.h"

TS_BEGIN_DECLS

/** Options of pooling. Lists have a number per spatial dim; those behind the last dim are 0. */
typedef struct ts_pool_opts {
    size_t size;            /**< sizeof(ts_pool_opts) */
    int64_t kernel[3];      /**< elements of a window, at least 1 */
    int64_t stride[3];      /**< step of the window; 0 is the kernel */
    int64_t padding[3];     /**< at both ends, at most half of the window */
    int64_t dilation[3];    /**< distance of a window's elements, of max pools only; 0 is 1 */
    bool ceil;              /**< a last window may end behind the padding */
    bool exclude_padding;   /**< averages do not count elements in the padding */
    int64_t divisor;        /**< of averages, instead of the number of elements; 0: none */
} ts_pool_opts;

/**
 * Largest elements of windows; NaN wins, and the first of equal elements.
 * @param self     (N, C, L) or (C, L)
 * @param indices  receives i64 row-major places in the spatial dims; may be NULL
 * @return (N, C, (L + 2 padding - dilation (kernel - 1) - 1) / stride + 1), rounded down or, with
 *         ceil, up, without windows that begin behind the elements
 */
TS_API ts_tensor *ts_max_pool1d(ts_tensor *self, const ts_pool_opts *opts, ts_tensor **indices);
/** The same over two dims: (N, C, H, W) or (C, H, W). */
TS_API ts_tensor *ts_max_pool2d(ts_tensor *self, const ts_pool_opts *opts, ts_tensor **indices);
/** The same over three dims: (N, C, D, H, W) or (C, D, H, W). */
TS_API ts_tensor *ts_max_pool3d(ts_tensor *self, const ts_pool_opts *opts, ts_tensor **indices);

/** Averages of windows, whose places are those of ts_max_pool1d(). self (N, C, L) or (C, L). */
TS_API ts_tensor *ts_avg_pool1d(ts_tensor *self, const ts_pool_opts *opts);
/** The same over two dims: (N, C, H, W) or (C, H, W). */
TS_API ts_tensor *ts_avg_pool2d(ts_tensor *self, const ts_pool_opts *opts);
/** The same over three dims: (N, C, D, H, W) or (C, D, H, W). */
TS_API ts_tensor *ts_avg_pool3d(ts_tensor *self, const ts_pool_opts *opts);

TS_END_DECLS
#endif
