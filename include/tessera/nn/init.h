/**
 * @file init.h
 * Initial values of parameters, drawn from the calling thread's generator (ts_manual_seed).
 * They write t in place, without history; t is f64, f32, bf16 or f16. Constants, zeros and ones
 * take any dtype. Errors: TS_ERR_VALUE, TS_ERR_SHAPE, TS_ERR_DTYPE.
 *
 * The fans of a weight (out, in, ...) are fan-in, in times the sizes behind it, and fan-out, out
 * times these sizes.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_NN_INIT_H
#define TESSERA_NN_INIT_H

#include "../core.h"

TS_BEGIN_DECLS

/** Sets all elements to value. */
TS_API ts_status ts_init_zeros(ts_tensor *t);
TS_API ts_status ts_init_ones(ts_tensor *t);
TS_API ts_status ts_init_constant(ts_tensor *t, double value);
/** Uniform in [low, high). */
TS_API ts_status ts_init_uniform(ts_tensor *t, double low, double high);
/** Normal. */
TS_API ts_status ts_init_normal(ts_tensor *t, double mean, double std);
/** Normal, cut at low and high (absolute values, low < high):
 * by the inverse of the distribution. */
TS_API ts_status ts_init_trunc_normal(ts_tensor *t, double mean, double std, double low,
                                      double high);

/** Which fan keeps its variance. */
typedef enum ts_fan { TS_FAN_IN, TS_FAN_OUT } ts_fan;
/**
 * Factor for the standard deviation behind an activation, as torch.nn.init.calculate_gain:
 * "linear", "sigmoid" 1, "tanh" 5/3, "relu" sqrt 2, "leaky_relu" sqrt(2 / (1 + slope^2)),
 * "selu" 3/4. 0 with TS_ERR_VALUE for another name.
 */
TS_API double ts_init_gain(const char *activation, double slope);
/** Glorot and Bengio (2010): deviation gain * sqrt(2 / (fan_in + fan_out)). */
TS_API ts_status ts_init_xavier_uniform(ts_tensor *t, double gain);
TS_API ts_status ts_init_xavier_normal(ts_tensor *t, double gain);
/** He et al. (2015): deviation gain / sqrt(fan). */
TS_API ts_status ts_init_kaiming_uniform(ts_tensor *t, ts_fan fan, double gain);
TS_API ts_status ts_init_kaiming_normal(ts_tensor *t, ts_fan fan, double gain);

TS_END_DECLS
#endif
