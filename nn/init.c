/** @file init.c  Initial values of parameters. */
// SPDX-License-Identifier: MIT
#include "nn/nn.h"

#include <math.h>
#include <string.h>

ts_status ts_init_constant(ts_tensor *t, double value)
{
    TS_TRY(TS_CHECK_TENSORS(t));
    TS_NO_GRAD;
    return TS_STATUS_OF(ts_fill_(t, value));
}

ts_status ts_init_zeros(ts_tensor *t) { return ts_init_constant(t, 0); }
ts_status ts_init_ones(ts_tensor *t) { return ts_init_constant(t, 1); }

ts_status ts_init_uniform(ts_tensor *t, double low, double high)
{
    TS_TRY(TS_CHECK_TENSORS(t));
    TS_NO_GRAD;
    return TS_STATUS_OF(ts_uniform_(t, low, high));
}

ts_status ts_init_normal(ts_tensor *t, double mean, double std)
{
    TS_TRY(TS_CHECK_TENSORS(t));
    TS_NO_GRAD;
    return TS_STATUS_OF(ts_normal_(t, mean, std));
}

/* ----------------------------------------------------------------------- truncated normal ---- */

/** The quantile x of the standard normal distribution: P(Z <= x) = u, for u in (0, 1). Newton's
 *  method from x = 0 converges monotonically, because P is convex for x < 0. */
static double normal_quantile(double u)
{
    /* solved in the lower half, where erfc keeps its digits */
    double x = 0, tail = u < 0.5 ? u : 1 - u;
    for (int i = 0; i < 200; i++) {
        double p = 0.5 * erfc(-x * M_SQRT1_2),
               density = exp(-0.5 * x * x) * 0.5 * M_SQRT1_2 * M_2_SQRTPI;
        double step = (p - tail) / density;
        if (!(fabs(step) < 1e300))
            break;
        x -= step;
        if (fabs(step) <= 1e-15 * fmax(1, fabs(x)))
            break;
    }
    return u < 0.5 ? x : -x;
}

static double normal_probability(double x) { return 0.5 * erfc(-x * M_SQRT1_2); }

ts_status ts_init_trunc_normal(ts_tensor *t, double mean, double std, double low, double high)
{
    TS_TRY(TS_CHECK_TENSORS(t));
    if (!ts_dtype_is_float(ts_dtype_of(t)))
        return ts_error_set(TS_ERR_DTYPE,
                            "init_trunc_normal: argument 't': expected a floating dtype, got %s",
                            ts_dtype_name(ts_dtype_of(t)));
    TS_TRY(TS_CHECK_VALUE(mean, isfinite(mean), "a finite number"));
    TS_TRY(TS_CHECK_VALUE(std, std > 0 && isfinite(std), "a finite number above 0"));
    if (!(low < high))
        return ts_error_set(TS_ERR_VALUE,
                            "init_trunc_normal: argument 'high': expected a number above 'low', "
                            "%g, got %g", low, high);
    double a = (low - mean) / std, b = (high - mean) / std;
    bool mirrored = a > 0; /* the lower tail has more digits than the upper one */
    double from = normal_probability(mirrored ? -b : a), to = normal_probability(mirrored ? -a : b);
    if (!(from < to))
        return ts_error_set(TS_ERR_VALUE,
                            "init_trunc_normal: argument 'low': expected an interval with a "
                            "probability above 0, got %g to %g", low, high);
    TS_SCOPE;
    TS_NO_GRAD;
    ts_tensor *u = ts_uniform_on(ts_sizes(t), ts_ndim(t), 0, 1, TS_F64, TS_DEVICE_CPU);
    double *x = u ? ts_data_mut(u) : NULL;
    TS_TRY(u);
    for (int64_t i = 0; i < ts_numel(u); i++) {
        double z = normal_quantile(from + (x[i] + 0x1p-54) * (to - from));
        x[i] = fmin(fmax(mean + std * (mirrored ? -z : z), low), high);
    }
    return TS_STATUS_OF(ts_copy_(t, u));
}

/* --------------------------------------------------------------------------------- fans ---- */

double ts_init_gain(const char *activation, double slope)
{
    if (TS_CHECK_POINTERS(activation) != TS_OK)
        return 0;
    if (strcmp(activation, "linear") == 0 || strcmp(activation, "sigmoid") == 0)
        return 1;
    if (strcmp(activation, "tanh") == 0)
        return 5.0 / 3;
    if (strcmp(activation, "relu") == 0)
        return sqrt(2);
    if (strcmp(activation, "leaky_relu") == 0)
        return sqrt(2 / (1 + slope * slope));
    if (strcmp(activation, "selu") == 0)
        return 0.75;
    ts_error_set(TS_ERR_VALUE,
                 "init_gain: argument 'activation': expected linear, sigmoid, tanh, relu, "
                 "leaky_relu or selu, got '%.200s'", activation);
    return 0;
}

static ts_status fans(ts_tensor *t, const char *function, double *in, double *out)
{
    if (ts_ndim(t) < 2)
        return ts_error_set(TS_ERR_SHAPE, "%s: argument 't': expected at least 2 dims, got %d",
                            function, ts_ndim(t));
    double field = 1;
    for (int d = 2; d < ts_ndim(t); d++)
        field *= (double)ts_sizes(t)[d];
    *out = (double)ts_sizes(t)[0] * field;
    *in = (double)ts_sizes(t)[1] * field;
    return TS_OK;
}

/** Sets *std to the standard deviation of Xavier initialisation; 0 for an empty weight. */
static ts_status xavier(ts_tensor *t, const char *function, double gain, double *std)
{
    double in, out;
    TS_TRY(fans(t, function, &in, &out));
    *std = in + out > 0 ? gain * sqrt(2 / (in + out)) : 0;
    return TS_OK;
}

static ts_status kaiming(ts_tensor *t, const char *function, ts_fan fan, double gain, double *std)
{
    double in, out;
    TS_TRY(fans(t, function, &in, &out));
    double n = fan == TS_FAN_IN ? in : out;
    *std = n > 0 ? gain / sqrt(n) : 0;
    return TS_OK;
}

/* a uniform distribution in [-s sqrt 3, s sqrt 3] has the standard deviation s */
static ts_status uniform_of(ts_tensor *t, double std)
{
    return ts_init_uniform(t, -std * sqrt(3), std * sqrt(3));
}

ts_status ts_init_xavier_uniform(ts_tensor *t, double gain)
{
    double std;
    TS_TRY(TS_CHECK_TENSORS(t));
    TS_TRY(xavier(t, "init_xavier_uniform", gain, &std));
    return uniform_of(t, std);
}

ts_status ts_init_xavier_normal(ts_tensor *t, double gain)
{
    double std;
    TS_TRY(TS_CHECK_TENSORS(t));
    TS_TRY(xavier(t, "init_xavier_normal", gain, &std));
    return ts_init_normal(t, 0, std);
}

ts_status ts_init_kaiming_uniform(ts_tensor *t, ts_fan fan, double gain)
{
    double std;
    TS_TRY(TS_CHECK_TENSORS(t));
    TS_TRY(kaiming(t, "init_kaiming_uniform", fan, gain, &std));
    return uniform_of(t, std);
}

ts_status ts_init_kaiming_normal(ts_tensor *t, ts_fan fan, double gain)
{
    double std;
    TS_TRY(TS_CHECK_TENSORS(t));
    TS_TRY(kaiming(t, "init_kaiming_normal", fan, gain, &std));
    return ts_init_normal(t, 0, std);
}
