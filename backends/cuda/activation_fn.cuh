/** @file activation_fn.cuh  Elementwise functors of activation functions and their gradients, for
 * eager kernels (activation.cu) and fused groups. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_ACTIVATION_FN_CUH
#define TS_CUDA_ACTIVATION_FN_CUH

#include "backends/cuda/apply.cuh"

namespace ts::fn {

/** An op's parameters, such as the slope of leaky_relu; ops with fewer ignore the rest. */
struct two_numbers {
    double at[2];
};
/* TS_FORWARD and TS_BACKWARD define a functor from an expression. In the expression x is an element
 * or, in a gradient, an element of the saved tensor (the result of relu, sigmoid and tanh, else
 * the input); g is the upstream gradient; p and q are the op's two parameters (number.at); A is the
 * type of the arithmetic. The optional last argument, TS_NEAR(expr) or TS_NEAR_GRADIENT(expr), adds
 * near(), a cheaper f32 formula for results that are rounded to bf16 or f16 (apply_fn()). */
#define TS_FORWARD(name, expr, ...)                                                                \
    struct name##_fn {                                                                             \
        two_numbers number;                                                                        \
        template <class A> __device__ __forceinline__ A operator()(A x) const                      \
        {                                                                                          \
            A p = (A)number.at[0], q = (A)number.at[1];                                            \
            (void)p, (void)q;                                                                      \
            return (A)(expr);                                                                      \
        }                                                                                          \
        __VA_ARGS__                                                                                \
    };
#define TS_BACKWARD(name, expr, ...)                                                               \
    struct name##_fn {                                                                             \
        two_numbers number;                                                                        \
        template <class A> __device__ __forceinline__ A operator()(A g, A x) const                 \
        {                                                                                          \
            A p = (A)number.at[0], q = (A)number.at[1];                                            \
            (void)p, (void)q;                                                                      \
            return (A)(expr);                                                                      \
        }                                                                                          \
        __VA_ARGS__                                                                                \
    };
#define TS_NEAR(expr)                                                                              \
    __device__ __forceinline__ float near(float x) const                                           \
    {                                                                                              \
        return expr;                                                                               \
    }
#define TS_NEAR_GRADIENT(expr)                                                                     \
    __device__ __forceinline__ float near(float g, float x) const                                  \
    {                                                                                              \
        return expr;                                                                               \
    }

/* The hardware instructions for exponentials and reciprocals err by 1 to 2 ulp of f32, which is
 * accurate enough; the rounding error of their argument is corrected where it matters. */

template <class A> __device__ __forceinline__ A sigmoid_at(A x)
{
    return reciprocal(1 + exp(-x));
}
template <class A> __device__ __forceinline__ A softplus_at(A x)
{
    return (x > 0 ? x : (A)0) + log1p(exp(-fabs(x)));
}

__device__ __forceinline__ double tanh_at(double x)
{
    return tanh(x);
}
/* 1 - 2 / (1 + exp(2 |x|)) with the sign of x. For |x| < 0.55 this difference would cancel, so a
 * polynomial replaces it, with a relative error of 3e-9 besides rounding. */
__device__ __forceinline__ float tanh_at(float x)
{
    float t = fabsf(x), s = x * x;
    float p = fmaf(
        fmaf(fmaf(fmaf(-0.005905754129f, s, 0.02080529526f), s, -0.05378665984f), s, 0.13331958f),
        s, -0.3333329926f);
    float near = fmaf(p, s * x, x);
    float far = fmaf(-2, reciprocal_fast(1 + exp2_fast(2.885390082f * t)), 1);
    return t < 0.55f ? near : copysignf(far, x);
}

/* The derivative of silu, s + x s (1 - s) with s = sigmoid(x). x is clamped to +-80, which avoids
 * Inf * 0: outside of these bounds, the derivative differs from 0 or 1 by less than 2e-33. */
template <class A> __device__ __forceinline__ A silu_slope(A x)
{
    x = x < -80 ? (A)-80 : x > 80 ? (A)80 : x;
    A e = exp(-x), s = reciprocal(1 + e);
    return s * (1 + x * (e * s));
}

/* The derivative of mish, x t with t = tanh(softplus(x)), is t + x s (1 - t^2) with s = sigmoid(x).
 * With e = e^x and n = e (e + 2): t = n / (n + 2), s (1 - t^2) = 4 e (1 + e) / (n + 2)^2. x is
 * clamped to bounds beyond which the derivative rounds to 0 or 1. */
template <class A> __device__ __forceinline__ A mish_clamped(A x)
{
    return x < -1000 ? (A)-1000 : x > 40 ? (A)40 : x;
}
/* The derivative of mish from the clamped x and e = e^x. */
template <class A> __device__ __forceinline__ A mish_slope_by(A x, A e)
{
    A n = e * (e + 2), inverse = reciprocal(n + 2);
    return inverse * (n + x * 4 * e * ((1 + e) * inverse));
}
template <class A> __device__ __forceinline__ A mish_slope(A x)
{
    x = mish_clamped(x);
    return mish_slope_by(x, exp(x));
}

/* Q(t) / exp(-t^2 / 2) for t >= 0, where Q is the upper tail probability of the normal
 * distribution: a polynomial in u = 1 / (1 + c t). Its relative error up to t = 14 is 3e-8, or 4e-5
 * with NEAR, for results that are rounded to bf16 or f16. For larger t, exp(-t^2 / 2) is below the
 * normal f32 numbers. */
template <bool NEAR> __device__ __forceinline__ float tail_at(float t)
{
    constexpr float full[] = {0.1037590543f,  0.1030168393f, 0.1030296541f,
                              0.05102989615f, 0.1609429611f, -0.1509423238f,
                              0.2514858854f,  -0.152826411f, 0.03050443205f};
    constexpr float some[] = {0.151559491f, 0.157820346f, 0.0933813553f, 0.186922337f,
                              -0.0897017742f};
    constexpr int last = NEAR ? 4 : 8;
    float u = reciprocal_fast(fmaf(NEAR ? 0.38076923f : 0.26f, t, 1)),
          p = NEAR ? some[last] : full[last];
#pragma unroll
    for (int i = last - 1; i >= 0; i--)
        p = fmaf(p, u, NEAR ? some[i] : full[i]);
    return p * u;
}
/* exp(-x^2 / 2). Without NEAR, corrects the rounding error of the exponent. */
template <bool NEAR> __device__ __forceinline__ float bell_at(float x)
{
    const float high = -0.721347511f, low = -9.62981496e-09f; /* their sum is -log2(e) / 2 */
    float s = x * x, y = s * high, e = exp2_fast(y);
    if (NEAR)
        return e;
    float rest = fmaf(fmaf(x, x, -s), high, fmaf(s, low, fmaf(s, high, -y)));
    return fmaf(e, rest * 0.69314718f, e);
}

/* gelu(x) = x cdf(x) = max(x, 0) - t Q(t), where t = |x| and cdf is the normal distribution's. t is
 * clamped to avoid Inf * 0. */
template <bool NEAR> __device__ __forceinline__ float gelu_by(float x)
{
    float t = fminf(fabsf(x), 40);
    return fmaf(-t, bell_at<NEAR>(t) * tail_at<NEAR>(t), x < 0 ? 0 : x);
}
/* The derivative of gelu, cdf(x) + x density(x); for x > 0 it is 1 minus the value at -x. */
template <bool NEAR> __device__ __forceinline__ float gelu_slope_by(float x)
{
    float t = fminf(fabsf(x), 40),
          below = bell_at<true>(x) * fmaf(-0.39894228f, t, tail_at<NEAR>(t));
    return x < 0 ? below : 1 - below;
}
__device__ __forceinline__ float gelu_at(float x)
{
    return gelu_by<false>(x);
}
__device__ __forceinline__ double gelu_at(double x)
{
    x = x < -40 ? -40 : x;
    return x * normcdf(x);
}
__device__ __forceinline__ float gelu_slope(float x)
{
    return gelu_slope_by<false>(x);
}
__device__ __forceinline__ double gelu_slope(double x)
{
    x = x < -40 ? -40 : x > 40 ? 40 : x;
    return normcdf(x) + x * 0.39894228040143267794 * exp(-0.5 * x * x);
}

/* gelu with tanh is x (1 + tanh u) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3). The factor of x
 * is computed as sigmoid(2 u), which does not cancel for large negative u. This function returns
 * 2 u. */
template <class A> __device__ __forceinline__ A gelu_tanh_inner(A x)
{
    return 2 * (A)0.79788456080286535588 * (x + (A)0.044715 * x * x * x);
}
/* The factor of x. The constants of the f32 form are those of 2 u, times -log2(e). */
__device__ __forceinline__ double gelu_tanh_part(double x)
{
    return sigmoid_at(gelu_tanh_inner(x));
}
__device__ __forceinline__ float gelu_tanh_part(float x)
{
    return reciprocal_fast(1 + exp2_fast(x * fmaf(-0.10294324f, x * x, -2.3022082f)));
}
template <class A> __device__ __forceinline__ A gelu_tanh_at(A x)
{
    x = x < -40 ? (A)-40 : x;
    return x * gelu_tanh_part(x);
}
template <class A> __device__ __forceinline__ A gelu_tanh_slope(A x)
{
    x = x < -40 ? (A)-40 : x > 40 ? (A)40 : x;
    A s = gelu_tanh_part(x), rest = sizeof(A) == 8 ? gelu_tanh_part(-x) : 1 - s;
    A slope = 2 * (A)0.79788456080286535588 * (1 + 3 * (A)0.044715 * x * x);
    return s + x * s * rest * slope;
}

/* The *_near() functions are the formulas of near(). Rounding to bf16 or f16 has a relative error
 * of up to 2^-8 or 2^-11, so near() may have an error of a few times 2^-15. */
__device__ __forceinline__ float sigmoid_near(float x)
{
    return reciprocal_fast(1 + exp2_fast(-1.44269504f * x));
}
__device__ __forceinline__ float silu_slope_near(float x)
{
    x = x < -1000 ? -1000 : x > 1000 ? 1000 : x;
    float s = sigmoid_near(x);
    return s * fmaf(x, 1 - s, 1);
}
__device__ __forceinline__ float mish_slope_near(float x)
{
    x = mish_clamped(x);
    return mish_slope_by(x, exp2_fast(1.44269504f * x));
}

TS_FORWARD(relu, x < 0 ? 0 : x)
TS_BACKWARD(threshold_backward, x <= p ? 0 : g)
TS_FORWARD(leaky_relu, x > 0 ? x : x * p)
TS_BACKWARD(leaky_relu_backward, x > 0 ? g : g * p)
TS_FORWARD(elu, x > 0 ? x : p * expm1(x))
TS_BACKWARD(elu_backward, x > 0 ? g : g * p * exp(x))
TS_FORWARD(sigmoid, sigmoid_at(x), TS_NEAR(sigmoid_near(x)))
TS_BACKWARD(sigmoid_backward, g * (1 - x) * x)
TS_FORWARD(tanh, tanh_at(x))
TS_BACKWARD(tanh_backward, g * (1 - x * x))
TS_FORWARD(log_sigmoid, -softplus_at(-x))
/* silu of -Inf: x is limited to -1000, where the sigmoid is 0, because -Inf * 0 is NaN */
TS_FORWARD(silu, (x < -1000 ? (A)-1000 : x) * sigmoid_at(x),
           TS_NEAR((x < -1000 ? -1000 : x) * sigmoid_near(x)))
TS_BACKWARD(silu_backward, g * silu_slope(x), TS_NEAR_GRADIENT(g * silu_slope_near(x)))
TS_FORWARD(softplus, x * p > q ? x : softplus_at(x * p) / p)
TS_BACKWARD(softplus_backward, x * p > q ? g : g * sigmoid_at(x * p))
TS_FORWARD(mish, x * tanh(softplus_at(x)))
TS_BACKWARD(mish_backward, g * mish_slope(x), TS_NEAR_GRADIENT(g * mish_slope_near(x)))
TS_FORWARD(gelu_erf, gelu_at(x), TS_NEAR(gelu_by<true>(x)))
TS_FORWARD(gelu_tanh, gelu_tanh_at(x))
TS_BACKWARD(gelu_erf_backward, g * gelu_slope(x), TS_NEAR_GRADIENT(g * gelu_slope_by<true>(x)))
TS_BACKWARD(gelu_tanh_backward, g * gelu_tanh_slope(x))

#undef TS_FORWARD
#undef TS_BACKWARD
#undef TS_NEAR
#undef TS_NEAR_GRADIENT

} // namespace ts::fn

#endif
