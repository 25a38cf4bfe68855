/** @file activation.cu  Activation functions and their gradients. */
// SPDX-License-Identifier: MIT
#include "backends/cuda/loops.cuh"

using namespace ts;

struct two_numbers {
    double at[2];
};
/* x is an element; in a gradient g is the incoming gradient and x what the rule saved. p and q are
 * numbers among the arguments, from place AT on. A is the wide type. */
#define FORWARD_OF(name, dtypes, AT, expr)                                        \
    struct name##_fn {                                                            \
        two_numbers number;                                                       \
        template <class A> __device__ __forceinline__ A operator()(A x) const     \
        {                                                                         \
            A p = (A)number.at[0], q = (A)number.at[1];                                 \
            (void)p, (void)q;                                                     \
            return (A)(expr);                                                     \
        }                                                                         \
    };                                                                            \
    static ts_status name##_kernel(ts_frame *f) { return pointwise<dtypes, 1>(f, name##_fn{numbers_of(f, AT)}); }
#define BACKWARD_OF(name, AT, expr)                                               \
    struct name##_fn {                                                            \
        two_numbers number;                                                       \
        template <class A> __device__ __forceinline__ A operator()(A g, A x) const \
        {                                                                         \
            A p = (A)number.at[0], q = (A)number.at[1];                                 \
            (void)p, (void)q;                                                     \
            return (A)(expr);                                                     \
        }                                                                         \
    };                                                                            \
    static ts_status name##_kernel(ts_frame *f) { return pointwise<floats, 2>(f, name##_fn{numbers_of(f, AT)}); }

/** Up to two numbers among the arguments from place `at` on. */
static two_numbers numbers_of(const ts_frame *f, int at)
{
    two_numbers n = {{0, 0}};
    for (int i = 0; i < 2 && at + i < f->nargs; i++)
        n.at[i] = number_of(&f->args[at + i]);
    return n;
}

template <class A> __device__ __forceinline__ A sigmoid_at(A x) { return 1 / (1 + exp(-x)); }
template <class A> __device__ __forceinline__ A softplus_at(A x) { return (x > 0 ? x : (A)0) + log1p(exp(-fabs(x))); }

/* far out the slope is 0 or 1: cut there, so that no infinity meets a 0 */
template <class A> __device__ __forceinline__ A silu_slope(A x)
{
    x = x < -1000 ? (A)-1000 : x > 1000 ? (A)1000 : x;
    return sigmoid_at(x) * (1 + x * sigmoid_at(-x));
}

/* normal density and distribution; the tanh form's argument and its slope */
__device__ __forceinline__ double cdf2_at(double x) { return erfc(x * -0.70710678118654752440); }
/* twice the distribution; far out erfc magnifies the rounding of its argument, so that is put right */
__device__ __forceinline__ float cdf2_at(float x)
{
    const float high = -0.70710678f, low = -1.2101617e-8f;
    x = x > 40 ? 40 : x;
    float t = x * high, cut = fmaf(x, high, -t) + x * low;
    return erfcf(t) - 1.1283791671f * expf(-t * t) * cut;
}
template <class A> __device__ __forceinline__ A gelu_at(A x)
{
    x = x < -40 ? (A)-40 : x;
    return (A)0.5 * x * cdf2_at(x);
}
template <class A> __device__ __forceinline__ A gelu_slope(A x)
{
    x = x < -40 ? (A)-40 : x > 40 ? (A)40 : x;
    return (A)0.5 * cdf2_at(x) + x * (A)0.39894228040143267794 * exp((A)-0.5 * x * x);
}
/* (1 + tanh u) / 2 is the logistic function of 2 u, and does not cancel far out */
template <class A> __device__ __forceinline__ A gelu_tanh_inner(A x)
{
    return 2 * (A)0.79788456080286535588 * (x + (A)0.044715 * x * x * x);
}
template <class A> __device__ __forceinline__ A gelu_tanh_at(A x)
{
    x = x < -40 ? (A)-40 : x;
    return x * sigmoid_at(gelu_tanh_inner(x));
}
template <class A> __device__ __forceinline__ A gelu_tanh_slope(A x)
{
    x = x < -40 ? (A)-40 : x > 40 ? (A)40 : x;
    A s = sigmoid_at(gelu_tanh_inner(x)), slope = 2 * (A)0.79788456080286535588 * (1 + 3 * (A)0.044715 * x * x);
    return s + x * s * sigmoid_at(-gelu_tanh_inner(x)) * slope;
}

FORWARD_OF(relu, numbers, 1, x < 0 ? 0 : x)
BACKWARD_OF(threshold_backward, 2, x <= p ? 0 : g)
FORWARD_OF(leaky_relu, floats, 1, x > 0 ? x : x * p)
BACKWARD_OF(leaky_relu_backward, 2, x > 0 ? g : g * p)
FORWARD_OF(elu, floats, 1, x > 0 ? x : p * expm1(x))
BACKWARD_OF(elu_backward, 2, x > 0 ? g : g * p * exp(x))
FORWARD_OF(sigmoid, floats, 1, sigmoid_at(x))
BACKWARD_OF(sigmoid_backward, 2, g * (1 - x) * x)
FORWARD_OF(tanh, floats, 1, tanh(x))
BACKWARD_OF(tanh_backward, 2, g * (1 - x * x))
FORWARD_OF(log_sigmoid, floats, 1, -softplus_at(-x))
FORWARD_OF(silu, floats, 1, (x < -1000 ? (A)-1000 : x) * sigmoid_at(x))
BACKWARD_OF(silu_backward, 2, g * silu_slope(x))
FORWARD_OF(softplus, floats, 1, x * p > q ? x : softplus_at(x * p) / p)
BACKWARD_OF(softplus_backward, 2, x * p > q ? g : g * sigmoid_at(x * p))
FORWARD_OF(mish, floats, 1, x * tanh(softplus_at(x)))
FORWARD_OF(gelu_erf, floats, 2, gelu_at(x))
FORWARD_OF(gelu_tanh, floats, 2, gelu_tanh_at(x))
BACKWARD_OF(gelu_erf_backward, 3, g * gelu_slope(x))
BACKWARD_OF(gelu_tanh_backward, 3, g * gelu_tanh_slope(x))

static ts_status gelu_kernel(ts_frame *f) { return f->args[1].i ? gelu_tanh_kernel(f) : gelu_erf_kernel(f); }
static ts_status gelu_backward_kernel(ts_frame *f)
{
    return f->args[2].i ? gelu_tanh_backward_kernel(f) : gelu_erf_backward_kernel(f);
}

#define ROW(name) {#name, name##_kernel, floats, true}
TS_CUDA_FAMILY(activation,
    {"relu", relu_kernel, numbers, true},
    ROW(threshold_backward), ROW(leaky_relu), ROW(leaky_relu_backward), ROW(elu), ROW(elu_backward),
    ROW(sigmoid), ROW(sigmoid_backward), ROW(tanh), ROW(tanh_backward), ROW(log_sigmoid), ROW(silu),
    ROW(silu_backward), ROW(softplus), ROW(softplus_backward), ROW(mish), ROW(gelu), ROW(gelu_backward))
