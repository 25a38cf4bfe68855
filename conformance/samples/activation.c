/** @file activation.c  Samples of the activation functions and their fused gradients. */
// SPDX-License-Identifier: MIT
#include <math.h>

#include "conformance/sample.h"

/* The formulas of PyTorch's documentation, with their limits where they make inf * 0. */
static double logistic(double x) { return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x)); }
static double softplus_of(double x) { return fmax(x, 0) + log1p(exp(-fabs(x))); }
static double normal_pdf(double x) { return exp(-0.5 * x * x) / sqrt(2 * M_PI); }
/* erfc multiplies the relative error of t = -x / sqrt(2) by 2 t^2; its derivative corrects that. */
static double normal_cdf(double x)
{
    double t = -x * M_SQRT1_2, rest = fma(-x, M_SQRT1_2, -t) + x * 0x1.bdd3413b26456p-55;
    return isinf(t) ? 0.5 * erfc(t) : 0.5 * erfc(t) - M_SQRT2 * rest * normal_pdf(x);
}
static double gelu_y(double x) { return sqrt(2 / M_PI) * (x + 0.044715 * x * x * x); }
static double gelu_of(double x, bool tanh_form)
{
    if (x < -45)
        return -0.0;
    return tanh_form ? x * logistic(2 * gelu_y(x)) : x * normal_cdf(x);
}
static double gelu_slope(double x, bool tanh_form)
{
    if (!tanh_form)
        return normal_cdf(x) + x * normal_pdf(x);
    double t = tanh(gelu_y(x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

REF_POINTWISE(ref_relu, 1, a < 0 ? 0 : a)
REF_POINTWISE(ref_threshold_backward, 3, b <= c ? 0 : a)
REF_POINTWISE(ref_leaky_relu, 2, a > 0 ? a : a * b)
REF_POINTWISE(ref_leaky_relu_backward, 3, b > 0 ? a : a * c)
REF_POINTWISE(ref_elu, 2, a > 0 ? a : b * expm1(a))
REF_POINTWISE(ref_elu_backward, 3, b > 0 ? a : a * c * exp(b))
REF_POINTWISE(ref_sigmoid, 1, logistic(a))
REF_POINTWISE(ref_sigmoid_backward, 2, a * b * (1 - b))
REF_POINTWISE(ref_tanh, 1, tanh(a))
REF_POINTWISE(ref_tanh_backward, 2, a * (1 - b * b))
REF_POINTWISE(ref_log_sigmoid, 1, -softplus_of(-a))
REF_POINTWISE(ref_gelu, 2, gelu_of(a, b != 0))
REF_POINTWISE(ref_gelu_backward, 3, a * gelu_slope(b, c != 0))
REF_POINTWISE(ref_silu, 1, a == -INFINITY ? -0.0 : a * logistic(a))
REF_POINTWISE(ref_silu_backward, 2, a * logistic(b) * (1 + b * logistic(-b)))
REF_POINTWISE(ref_softplus, 3, a * b > c ? a : softplus_of(a * b) / b)
REF_POINTWISE(ref_mish, 1, a * tanh(softplus_of(a)))
static double mish_slope(double x)
{
    double t = tanh(softplus_of(x));
    return x < -700 ? 0 : t + fmin(x, 700) * logistic(x) * (1 - t) * (1 + t);
}
REF_POINTWISE(ref_mish_backward, 2, a * mish_slope(b))

static double softplus_backward_element(const double *v)
{
    return v[1] * v[2] > v[3] ? v[0] : v[0] * logistic(v[1] * v[2]);
}
static void ref_softplus_backward(ts_ref *r) { ref_pointwise(r, 4, softplus_backward_element); }

#define TINY 0x1p-126
#define PAIR T(SWEEP, 3), T(SWEEP, 3)

#define ACTIVATION(op, ulps, ...)                                                                  \
    {#op, "values", {T(SWEEP, 3) __VA_ARGS__}, ref_##op, .c = ulps, .grad = true,                  \
     .inplace = true},                                                                             \
    {#op, "wide", {T_UNIFORM(-12, 12, SWEEP, 3) __VA_ARGS__}, ref_##op, .c = ulps, .scale = 1e-6}, \
    {#op, "0-dim", {T() __VA_ARGS__}, ref_##op, .c = ulps, .inplace = true}
#define SPECIAL(op, ulps, ...) \
    {#op, "special", {T_SPECIAL(20, 19) __VA_ARGS__}, ref_##op, .c = ulps, .scale = TINY}
#define NOT_FOR_INTEGERS .bad = {{0, T_OF(TS_I64, 3), TS_ERR_DTYPE, "i64"}}

static const ts_sample samples[] = {
    {"relu", "values", {T(SWEEP, 3)}, ref_relu, .c = 0, .dtypes = DT_NUMBERS, .grad = true,
     .inplace = true},
    {"relu", "special", {T_SPECIAL(20, 19)}, ref_relu, .c = 0, .dtypes = DT_NUMBERS},
    {"threshold_backward", "values", {PAIR, FLOAT(0.25)}, ref_threshold_backward, .c = 0,
     .grad = true},
    {"threshold_backward", "row", {T(SWEEP, 3), T(3), FLOAT(0.25)}, ref_threshold_backward, .c = 0},
    ACTIVATION(leaky_relu, 1, , FLOAT(0.01)),
    SPECIAL(leaky_relu, 1, , FLOAT(0.01)),
    {"leaky_relu", "integers", {T(3), FLOAT(0.5)}, ref_leaky_relu, .c = 1, NOT_FOR_INTEGERS},
    {"leaky_relu_backward", "values", {PAIR, FLOAT(0.01)}, ref_leaky_relu_backward, .c = 1,
     .grad = true},
    ACTIVATION(elu, 4, , FLOAT(1.5)),
    SPECIAL(elu, 4, , FLOAT(1)),
    {"elu_backward", "values", {PAIR, FLOAT(1.5)}, ref_elu_backward, .c = 4, .grad = true},
    ACTIVATION(sigmoid, 4),
    SPECIAL(sigmoid, 4),
    {"sigmoid", "integers", {T(SWEEP, 3)}, ref_sigmoid, .c = 4, .dtypes = DT_INTS | TS_DT(TS_BOOL),
     .out = {OUT_FLOAT}},
    {"sigmoid_backward", "values", {PAIR}, ref_sigmoid_backward, .c = 4, .scale = 1, .grad = true},
    ACTIVATION(tanh, 4),
    SPECIAL(tanh, 4),
    {"tanh", "integers", {T(SWEEP, 3)}, ref_tanh, .c = 4, .dtypes = DT_INTS | TS_DT(TS_BOOL),
     .out = {OUT_FLOAT}},
    {"tanh_backward", "values", {PAIR}, ref_tanh_backward, .c = 4, .scale = 4, .grad = true},
    ACTIVATION(log_sigmoid, 4),
    SPECIAL(log_sigmoid, 4),
    ACTIVATION(gelu, 6, , BOOL(false)),
    SPECIAL(gelu, 6, , BOOL(false)),
    {"gelu", "tanh", {T(SWEEP, 3), BOOL(true)}, ref_gelu, .c = 12, .grad = true, .inplace = true},
    {"gelu", "tanh, wide", {T_UNIFORM(-12, 12, SWEEP, 3), BOOL(true)}, ref_gelu, .c = 12,
     .scale = 1e-3},
    {"gelu", "tanh, special", {T_SPECIAL(20, 19), BOOL(true)}, ref_gelu, .c = 12, .scale = 1e-3},
    {"gelu", "integers", {T(3), BOOL(false)}, ref_gelu, .c = 6, NOT_FOR_INTEGERS},
    {"gelu_backward", "erf", {PAIR, BOOL(false)}, ref_gelu_backward, .c = 4, .scale = 4,
     .grad = true},
    {"gelu_backward", "tanh", {PAIR, BOOL(true)}, ref_gelu_backward, .c = 8, .scale = 4,
     .grad = true},
    ACTIVATION(silu, 5),
    {"silu", "special", {T_SPECIAL(20, 19)}, ref_silu, .c = 5, .scale = 1e-36},
    {"silu_backward", "values", {PAIR}, ref_silu_backward, .c = 4, .scale = 4, .grad = true},
    ACTIVATION(softplus, 5, , FLOAT(2), FLOAT(20)),
    {"softplus", "low threshold", {T(SWEEP, 3), FLOAT(1), FLOAT(0.5)}, ref_softplus, .c = 5,
     .grad = true},
    SPECIAL(softplus, 5, , FLOAT(1), FLOAT(20)),
    {"softplus_backward", "values", {PAIR, FLOAT(2), FLOAT(1)}, ref_softplus_backward, .c = 8,
     .grad = true},
    ACTIVATION(mish, 10),
    {"mish_backward", "values", {PAIR}, ref_mish_backward, .c = 8, .scale = 4, .grad = true},
    {"mish_backward", "wide", {T_UNIFORM(-100, 100, SWEEP, 3), T_UNIFORM(-100, 100, SWEEP, 3)},
     ref_mish_backward, .c = 8, .scale = 400},
};
TS_SAMPLES(activation, samples)
