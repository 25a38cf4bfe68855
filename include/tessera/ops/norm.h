/**
 * @file norm.h  Layer and RMS normalisation. The section norm of generated.h states the
 * dtypes and errors.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPS_NORM_H
#define TESSERA_OPS_NORM_H

#include "../core.h"

TS_BEGIN_DECLS

/** Options of the _ex forms; zero is default. */
typedef struct ts_normalization_opts {
    size_t size;      /**< sizeof(ts_normalization_opts) */
    double eps;       /**< 0: 1e-5 for layer_norm; for rms_norm the epsilon of f64 if self is f64,
                           else of f32 */
    int dims;         /**< number of last dims to normalise; 0: as many as weight or bias has, or 1
                           if both are TS_NONE */
    ts_tensor **mean; /**< receives the means: self's sizes, with 1 for each normalised dim; f32 for
                           bf16 and f16. May be NULL; rms_norm ignores it */
    ts_tensor **rstd; /**< receives 1 / sqrt(variance + eps), for rms_norm 1 / sqrt(mean(x^2) +
                           eps), in the same sizes and dtype; may be NULL */
} ts_normalization_opts;

/**
 * (x - mean(x)) / sqrt(var(x) + eps) * weight + bias over the last dims, where var is the mean of
 * the squared deviations and eps is 1e-5 (Ba, Kiros, Hinton 2016).
 * @param self    any sizes; its last dims, which are normalised, have the sizes of weight and bias
 * @param weight  sizes of the normalised dims; TS_NONE: 1
 * @param bias    sizes of the normalised dims; TS_NONE: 0
 */
TS_API ts_tensor *ts_layer_norm(ts_tensor *self, ts_tensor *weight, ts_tensor *bias);
/** The same with options. */
TS_API ts_tensor *ts_layer_norm_ex(ts_tensor *self, ts_tensor *weight, ts_tensor *bias,
                                   const ts_normalization_opts *opts);
/**
 * ts_layer_norm() of self + residual in one pass over memory, as transformer blocks need it. The
 * sum is rounded to self's dtype before it is normalised.
 * @param residual  has self's sizes and dtype
 * @param sum       receives self + residual; may be NULL
 */
TS_API ts_tensor *ts_add_layer_norm(ts_tensor *self, ts_tensor *residual, ts_tensor *weight,
                                    ts_tensor *bias, ts_tensor **sum);
/** The same with options. */
TS_API ts_tensor *ts_add_layer_norm_ex(ts_tensor *self, ts_tensor *residual, ts_tensor *weight,
                                       ts_tensor *bias, ts_tensor **sum,
                                       const ts_normalization_opts *opts);

/** x / sqrt(mean(x^2) + eps) * weight over the last dims (Zhang, Sennrich 2019), with the default
 *  eps of ts_normalization_opts. weight has the sizes of the normalised dims; TS_NONE: 1, over the
 *  last dim. */
TS_API ts_tensor *ts_rms_norm(ts_tensor *self, ts_tensor *weight);
/** The same with options. */
TS_API ts_tensor *ts_rms_norm_ex(ts_tensor *self, ts_tensor *weight,
                                 const ts_normalization_opts *opts);

TS_END_DECLS
#endif
