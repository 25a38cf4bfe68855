/**
 * @file batch_norm.h  Batch and instance normalisation.
 * Dtypes, layouts and errors are those of the section batch_norm of generated.h.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPS_BATCH_NORM_H
#define TESSERA_OPS_BATCH_NORM_H

#include "../core.h"

TS_BEGIN_DECLS

/**
 * Normalises each channel: (x - mean) / sqrt(var + eps) * weight + bias (Ioffe, Szegedy 2015).
 * If `training`, mean and var are those of the batch, and the running statistics are updated in
 * place: running = (1 - momentum) * running + momentum * batch, where the batch's variance of n
 * elements is divided by n - 1. Otherwise mean and var are the running statistics.
 * @param self          (N, C, ...)
 * @param running_mean  (C). In training contiguous and of any floating dtype; otherwise of self's
 *                      dtype, or f32 if self is bf16 or f16. In training, running_mean and
 *                      running_var may both be TS_NONE: no statistics are kept
 * @param running_var   like running_mean
 * @param weight        (C), or TS_NONE
 * @param bias          (C), or TS_NONE
 * @param momentum      0 to 1; with 1 / k in call k = 1, 2, ..., running statistics are averages
 *                      over all calls
 * @param eps           finite, at least 0; added to the variance
 */
TS_API ts_tensor *ts_batch_norm(ts_tensor *self, ts_tensor *running_mean, ts_tensor *running_var,
                                ts_tensor *weight, ts_tensor *bias, bool training, double momentum,
                                double eps);

/** ts_relu() of ts_batch_norm(). On CUDA one kernel normalises and applies relu, and the gradient's
 *  kernel reads self instead of the result. */
TS_API ts_tensor *ts_batch_norm_relu(ts_tensor *self, ts_tensor *running_mean,
                                     ts_tensor *running_var, ts_tensor *weight, ts_tensor *bias,
                                     bool training, double momentum, double eps);

/** ts_group_norm() with one channel per group: each channel of each sample has its own mean and
 *  variance. self (N, C, ...); weight and bias (C), or TS_NONE. */
TS_API ts_tensor *ts_instance_norm(ts_tensor *self, ts_tensor *weight, ts_tensor *bias, double eps);

TS_END_DECLS
#endif
