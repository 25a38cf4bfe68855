/**
 * @file image.h
 * Layers over images (N, C, ...), contiguous or channels-last. Parameters are f32 on the thread's
 * default device. Constructors return a module that the caller owns until ts_module_add() takes
 * ownership, or NULL with TS_ERR_VALUE, TS_ERR_NULL, TS_ERR_MEMORY or an error of the device. The
 * sizes and options of pools and of ts_upsample_new() are checked by each forward, not by the
 * constructor.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_NN_IMAGE_H
#define TESSERA_NN_IMAGE_H

#include "../ops/pool.h"
#include "../ops/resample.h"
#include "module.h"

TS_BEGIN_DECLS

/** Options of ts_batch_norm_new(); zero selects the default. */
typedef struct ts_batch_norm_opts {
    size_t size;         /**< sizeof(ts_batch_norm_opts) */
    double eps;          /**< 0: 1e-5 */
    double momentum;     /**< weight of the batch in the running statistics, 0 to 1; 0: 0.1 */
    bool cumulative;     /**< running statistics are averages over all batches; momentum is
                              ignored. Each forward in training mode waits for the device */
    bool no_affine;      /**< no weight and bias */
    bool no_statistics;  /**< no running statistics; evaluation also uses the statistics of
                              the batch */
    bool relu;           /**< applies ts_relu() to the result (ts_batch_norm_relu()) */
} ts_batch_norm_opts;
/**
 * ts_batch_norm() over any number of spatial dims: PyTorch's BatchNorm1d, 2d and 3d. Parameters,
 * unless no_affine, both (channels): "weight", ones, and "bias", zeros. Buffers, unless
 * no_statistics: "running_mean" (channels), zeros; "running_var" (channels), ones;
 * "num_batches_tracked", i64 (). ts_forward() updates the buffers in training mode.
 * @param opts  NULL: defaults
 */
TS_API ts_module *ts_batch_norm_new(int64_t channels, const ts_batch_norm_opts *opts);

/** ts_group_norm(); with groups == channels, ts_instance_norm(). Parameters, both (channels), if
 *  `affine`: "weight", ones, and "bias", zeros.
 *  @param groups  a divisor of channels
 *  @param eps     0: 1e-5 */
TS_API ts_module *ts_group_norm_new(int64_t groups, int64_t channels, double eps, bool affine);

/** ts_max_pool1d(), 2d or 3d, without indices.
 *  @param dims  spatial dims, 1 to 3
 *  @param opts  copied; not NULL */
TS_API ts_module *ts_max_pool_new(int dims, const ts_pool_opts *opts);
/** ts_avg_pool1d(), 2d or 3d; arguments as for ts_max_pool_new(). */
TS_API ts_module *ts_avg_pool_new(int dims, const ts_pool_opts *opts);
/** ts_adaptive_avg_pool() to the `ndim` (1 to 3) spatial sizes `sizes`. */
TS_API ts_module *ts_adaptive_avg_pool_new(const int64_t *sizes, int ndim);
/** ts_adaptive_max_pool(), without indices; arguments as for ts_adaptive_avg_pool_new(). */
TS_API ts_module *ts_adaptive_max_pool_new(const int64_t *sizes, int ndim);
/** ts_interpolate() with a copy of opts, not NULL: PyTorch's Upsample. */
TS_API ts_module *ts_upsample_new(const ts_interpolate_opts *opts);

TS_END_DECLS
#endif
