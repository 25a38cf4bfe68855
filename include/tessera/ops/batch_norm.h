/**
 * @file batch_norm.h  Batch and instance normalisation.
 * What holds for the family stands in generated.h.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPS_BATCH_NORM_H
#define TESSERA_OPS_BATCH_NORM_H

#include "../core.h"

TS_BEGIN_DECLS

/**
 * (x - mean) / sqrt(var + eps) * weight + bias by channel (Ioffe, Szegedy 2015). In training, mean
 * and variance are those of the batch, and running statistics move towards them: running =
 * (1 - momentum) running + momentum new, with the variance of n elements over n - 1. Otherwise they
 * are the running statistics.
 * @param self          (N, C, ...)
 * @param running_mean  (C), written in training; both or neither are TS_NONE, in training only
 * @param running_var   (C)
 * @param weight        (C), or TS_NONE
 * @param bias          (C), or TS_NONE
 * @param momentum      0 to 1; 1 / k in call k keeps averages of all calls
 */
TS_API ts_tensor *ts_batch_norm(ts_tensor *self, ts_tensor *running_mean, ts_tensor *running_var,
                                ts_tensor *weight, ts_tensor *bias, bool training, double momentum,
                                double eps);

/** Group norm with one channel a group: each channel of each sample has its own mean and variance.
 *  self (N, C, ...); weight and bias (C), or TS_NONE. */
TS_API ts_tensor *ts_instance_norm(ts_tensor *self, ts_tensor *weight, ts_tensor *bias, double eps);

TS_END_DECLS
#endif
