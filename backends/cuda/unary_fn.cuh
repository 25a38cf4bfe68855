/** @file unary_fn.cuh  Elementwise functors of elementary functions, for eager kernels (unary.cu)
 * and fused groups. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_UNARY_FN_CUH
#define TS_CUDA_UNARY_FN_CUH

#include "backends/cuda/apply.cuh"

namespace ts::fn {

/** Defines the functor name##_fn: `expr` of x, an element of the wide type A. The optional last
 *  argument, TS_NEAR(expr), adds near_as(), a cheaper f32 formula for results that are rounded to
 *  R, bf16 or f16 (apply_fn()). */
#define TS_UNARY(name, expr, ...)                                                                  \
    struct name##_fn {                                                                             \
        template <class A> __device__ __forceinline__ A operator()(A x) const                      \
        {                                                                                          \
            return (A)(expr);                                                                      \
        }                                                                                          \
        __VA_ARGS__                                                                                \
    };
#define TS_NEAR(expr)                                                                              \
    template <class R> __device__ __forceinline__ float near_as(float x) const                     \
    {                                                                                              \
        return expr;                                                                               \
    }
/** Defines a rounding functor: fn(x) for floats; integers are returned unchanged. */
#define TS_WHOLE(name, fn)                                                                         \
    struct name##_fn {                                                                             \
        template <class A> __device__ __forceinline__ A operator()(A x) const                      \
        {                                                                                          \
            if constexpr (real<A>)                                                                 \
                return fn(x);                                                                      \
            return x;                                                                              \
        }                                                                                          \
    };

template <class A> __device__ __forceinline__ A abs_of(A x)
{
    if constexpr (real<A>)
        return fabs(x);
    else
        return x < 0 ? -x : x;
}

/* Sine and cosine of arguments that are too large for sin_or_cos(). Not inlined, because such
 * arguments are rare. */
__device__ __noinline__ float sine_far(float x) { return sinf(x); }
__device__ __noinline__ float cosine_far(float x) { return cosf(x); }

/**
 * Sine (quarter = 0) or cosine (quarter = 1), to 1.53 ulp: subtracts a multiple of pi / 2 in three
 * steps (Cody and Waite), then evaluates an odd or an even polynomial. The multiple is rounded by
 * adding 1.5 * 2^23, because conversions to and from integers have an eighth of the throughput of
 * additions.
 */
__device__ __forceinline__ float sin_or_cos(float x, unsigned quarter)
{
    float sum = fmaf(x, 0.636619747f, 0x1.8p23f), n = sum - 0x1.8p23f;
    float r = fmaf(n, -1.57079601f, x);
    r = fmaf(n, -3.13916473e-07f, r);
    r = fmaf(n, -5.39030253e-15f, r);
    float s = r * r, odd = fmaf(-0.000195152959f, s, 0.00833216087f),
          even = fmaf(2.44677067e-05f, s, -0.00138877297f);
    odd = fmaf(fmaf(odd, s, -0.166666546f), fmaf(s, r, 0.0f), r); /* -0 gives -0 */
    even = fmaf(fmaf(fmaf(even, s, 0.0416666567f), s, -0.5f), s, 1);
    unsigned q = __float_as_uint(sum) + quarter;
    float y = __uint_as_float(__float_as_uint(q & 1 ? even : odd) ^ (q << 30 & 0x80000000u));
    if (!(fabsf(x) < 105615))
        y = quarter ? cosine_far(x) : sine_far(x);
    return y;
}
/**
 * Sine with an error of up to 2^-19, for results that are rounded to R, bf16 or f16: subtracts a
 * multiple of pi in two steps, then evaluates an odd polynomial. An f16 is at most 65504 and a bf16
 * has 8 significant bits, so the reduced argument is exact enough. For |x| of at least 105615,
 * which only bf16 has, calls sine_far().
 */
template <class R> __device__ __forceinline__ float sine_near(float x)
{
    float sum = x * 0.318309886f + 0x1.8p23f, n = sum - 0x1.8p23f;
    float r = fmaf(n, -1.5099580252808664e-07f, fmaf(n, -3.141592502593994f, x)), s = r * r;
    float p = fmaf(fmaf(-0.00018539631855674088f, s, 0.00831419788300991f), s,
                   -0.16665847599506378f);
    float y = r * fmaf(p, s, 1);
    y = __uint_as_float(__float_as_uint(y) ^ __float_as_uint(sum) << 31);
    if constexpr (!std::is_same_v<R, f16>)
        if (!(fabsf(x) < 105615))
            y = sine_far(x);
    return y;
}
__device__ __forceinline__ float sine_at(float x) { return sin_or_cos(x, 0); }
__device__ __forceinline__ float cosine_at(float x) { return sin_or_cos(x, 1); }
__device__ __forceinline__ double sine_at(double x) { return sin(x); }
__device__ __forceinline__ double cosine_at(double x) { return cos(x); }

TS_UNARY(neg, -x)
TS_UNARY(abs, abs_of(x))
TS_UNARY(sign, (x > 0) - (x < 0))
TS_UNARY(square, x * x)
TS_WHOLE(floor, floor)
TS_WHOLE(ceil, ceil)
TS_WHOLE(round, rint)
TS_WHOLE(trunc, trunc)
TS_UNARY(frac, x - trunc(x))
TS_UNARY(exp, exp(x))
TS_UNARY(exp2, exp2(x))
TS_UNARY(expm1, expm1(x))
TS_UNARY(log, log(x))
TS_UNARY(log2, log2(x))
TS_UNARY(log10, log10(x))
TS_UNARY(log1p, log1p(x))
TS_UNARY(sqrt, sqrt(x))
TS_UNARY(rsqrt, rsqrt(x))
TS_UNARY(reciprocal, 1 / x)
TS_UNARY(sin, sine_at(x), TS_NEAR(sine_near<R>(x)))
TS_UNARY(cos, cosine_at(x))
TS_UNARY(tan, tan(x))
TS_UNARY(asin, asin(x))
TS_UNARY(acos, acos(x))
TS_UNARY(atan, atan(x))
TS_UNARY(sinh, sinh(x))
TS_UNARY(cosh, cosh(x))
TS_UNARY(erf, erf(x))
TS_UNARY(erfc, erfc(x))

#undef TS_UNARY
#undef TS_NEAR
#undef TS_WHOLE

} // namespace ts::fn

#endif
