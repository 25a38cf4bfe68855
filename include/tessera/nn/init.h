/**
 * @file init.h
 * Initial values of parameters. The functions write t in place; autograd does not record them.
 * Constants, zeros and ones accept any dtype. The other functions draw random numbers from the
 * calling thread's generator (ts_manual_seed()) and accept f64, f32, bf16 and f16. Errors:
 * TS_ERR_NULL, TS_ERR_VALUE, TS_ERR_SHAPE, TS_ERR_DTYPE, TS_ERR_MEMORY.
 *
 * The Xavier and Kaiming functions expect a weight of sizes (out, in, ...) with at least 2 dims:
 * fan_in = in * field and fan_out = out * field, where field is the product of the sizes after the
 * second (the elements of a convolution's kernel). Their gain is at least 0.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_NN_INIT_H
#define TESSERA_NN_INIT_H

#include "../core.h"

TS_BEGIN_DECLS

/** Sets all elements to 0. */
TS_API ts_status ts_init_zeros(ts_tensor *t);
/** Sets all elements to 1. */
TS_API ts_status ts_init_ones(ts_tensor *t);
/** Sets all elements to value. */
TS_API ts_status ts_init_constant(ts_tensor *t, double value);
/** Uniform distribution in [low, high), as ts_uniform(). */
TS_API ts_status ts_init_uniform(ts_tensor *t, double low, double high);
/** Normal distribution with mean and standard deviation std. */
TS_API ts_status ts_init_normal(ts_tensor *t, double mean, double std);
/** Normal distribution truncated to [low, high], low < high; std > 0. The bounds are values, not
 *  multiples of std. Each number is the inverse distribution function of a uniform number.
 *  TS_ERR_VALUE also if the interval is so far from the mean that its probability is 0 in f64. */
TS_API ts_status ts_init_trunc_normal(ts_tensor *t, double mean, double std, double low,
                                      double high);

/** The fan that Kaiming initialisation uses: TS_FAN_IN keeps the variance of activations in the
 *  forward pass, TS_FAN_OUT that of gradients in the backward pass. */
typedef enum ts_fan { TS_FAN_IN, TS_FAN_OUT } ts_fan;
/**
 * Factor of the standard deviation for a layer with this activation, as
 * torch.nn.init.calculate_gain: "linear" and "sigmoid" 1, "tanh" 5/3, "relu" sqrt 2, "leaky_relu"
 * sqrt(2 / (1 + slope^2)), "selu" 3/4. 0 with TS_ERR_VALUE for another name, TS_ERR_NULL for NULL.
 */
TS_API double ts_init_gain(const char *activation, double slope);
/** Glorot and Bengio (2010), uniform: standard deviation gain * sqrt(2 / (fan_in + fan_out)). */
TS_API ts_status ts_init_xavier_uniform(ts_tensor *t, double gain);
/** Glorot and Bengio (2010), normal: standard deviation gain * sqrt(2 / (fan_in + fan_out)). */
TS_API ts_status ts_init_xavier_normal(ts_tensor *t, double gain);
/** He et al. (2015), uniform: standard deviation gain / sqrt(fan). */
TS_API ts_status ts_init_kaiming_uniform(ts_tensor *t, ts_fan fan, double gain);
/** He et al. (2015), normal: standard deviation gain / sqrt(fan). */
TS_API ts_status ts_init_kaiming_normal(ts_tensor *t, ts_fan fan, double gain);

TS_END_DECLS
#endif
