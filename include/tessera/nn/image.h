/**
 * @file image.h
 * Layers over images (N, C, ...), contiguous or channels-last. Parameters are f32 on the thread's
 * default device. Constructors return NULL with TS_ERR_VALUE or TS_ERR_MEMORY; the caller owns what
 * they return until ts_module_add() takes it.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_NN_IMAGE_H
#define TESSERA_NN_IMAGE_H

#include "../ops/pool.h"
#include "../ops/resample.h"
#include "module.h"

TS_BEGIN_DECLS

/** Options of ts_batch_norm_new(); zero is default. */
typedef struct ts_batch_norm_opts {
    size_t size;         /**< sizeof(ts_batch_norm_opts) */
    double eps;          /**< 0: 1e-5 */
    double momentum;     /**< of the running statistics; 0: 0.1 */
    bool cumulative;     /**< running statistics are averages of all batches, instead */
    bool no_affine;      /**< without weight and bias */
    bool no_statistics;  /**< without running statistics: those of the batch always */
} ts_batch_norm_opts;
/**
 * ts_batch_norm() over any number of spatial dims: BatchNorm1d, 2d and 3d of PyTorch. Parameters
 * "weight" of ones and "bias" of zeros (channels); buffers "running_mean" of zeros,
 * "running_var" of
 * ones and "num_batches_tracked" (i64), which ts_forward() changes in training.
 */
TS_API ts_module *ts_batch_norm_new(int64_t channels, const ts_batch_norm_opts *opts);

/** ts_group_norm(): "weight" of ones and "bias" of zeros (channels), unless `affine` is false.
 *  @param groups  divides channels
 *  @param eps     0: 1e-5 */
TS_API ts_module *ts_group_norm_new(int64_t groups, int64_t channels, double eps, bool affine);

/** ts_max_pool1d(), 2d or 3d.
 *  @param dims  spatial dims, 1 to 3 */
TS_API ts_module *ts_max_pool_new(int dims, const ts_pool_opts *opts);
/** ts_avg_pool1d(), 2d or 3d. */
TS_API ts_module *ts_avg_pool_new(int dims, const ts_pool_opts *opts);
/** ts_adaptive_avg_pool() to `sizes` of 1 to 3 spatial dims. */
TS_API ts_module *ts_adaptive_avg_pool_new(const int64_t *sizes, int ndim);
/** ts_interpolate(): Upsample of PyTorch. */
TS_API ts_module *ts_upsample_new(const ts_interpolate_opts *opts);

TS_END_DECLS
#endif
