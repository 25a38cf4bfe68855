/** @file unary.cu  Elementary functions of one tensor. */
// SPDX-License-Identifier: MIT
#include "backends/cuda/loops.cuh"

using namespace ts;

/** Kernel `name`: expr of x, an element of the wide type A. */
#define UNARY(name, dtypes, expr)                                                                  \
    struct name##_fn {                                                                             \
        template <class A> __device__ __forceinline__ A operator()(A x) const                      \
        {                                                                                          \
            return (A)(expr);                                                                      \
        }                                                                                          \
    };                                                                                             \
    static ts_status name##_kernel(ts_frame *f)                                                    \
    {                                                                                              \
        return pointwise<dtypes, 1>(f, name##_fn{});                                               \
    }
/** An integer is whole already. */
#define WHOLE(name, fn)                                                                  \
    struct name##_fn {                                                                   \
        template <class A> __device__ __forceinline__ A operator()(A x) const            \
        {                                                                                \
            if constexpr (std::is_floating_point_v<A>)                                   \
                return fn(x);                                                            \
            return x;                                                                    \
        }                                                                                \
    };                                                                                   \
    static ts_status name##_kernel(ts_frame *f) { return pointwise<numbers, 1>(f, name##_fn{}); }

template <class A> __device__ __forceinline__ A abs_of(A x)
{
    if constexpr (std::is_floating_point_v<A>)
        return fabs(x);
    else
        return x < 0 ? -x : x;
}

UNARY(neg, numbers, -x)
UNARY(abs, numbers, abs_of(x))
UNARY(sign, everything, (x > 0) - (x < 0))
UNARY(square, numbers, x * x)
WHOLE(floor, floor)
WHOLE(ceil, ceil)
WHOLE(round, rint)
WHOLE(trunc, trunc)
UNARY(frac, floats, x - trunc(x))
UNARY(exp, floats, exp(x))
UNARY(exp2, floats, exp2(x))
UNARY(expm1, floats, expm1(x))
UNARY(log, floats, log(x))
UNARY(log2, floats, log2(x))
UNARY(log10, floats, log10(x))
UNARY(log1p, floats, log1p(x))
UNARY(sqrt, floats, sqrt(x))
UNARY(rsqrt, floats, rsqrt(x))
UNARY(reciprocal, floats, 1 / x)
UNARY(sin, floats, sin(x))
UNARY(cos, floats, cos(x))
UNARY(tan, floats, tan(x))
UNARY(asin, floats, asin(x))
UNARY(acos, floats, acos(x))
UNARY(atan, floats, atan(x))
UNARY(sinh, floats, sinh(x))
UNARY(cosh, floats, cosh(x))
UNARY(erf, floats, erf(x))
UNARY(erfc, floats, erfc(x))

#define ROW(name, dtypes) {#name, name##_kernel, dtypes, true, true}
TS_CUDA_FAMILY(unary,
    ROW(neg, numbers), ROW(abs, numbers), ROW(sign, everything), ROW(square, numbers),
    ROW(floor, numbers),
    ROW(ceil, numbers), ROW(round, numbers), ROW(trunc, numbers), ROW(frac, floats),
    ROW(exp, floats),
    ROW(exp2, floats), ROW(expm1, floats), ROW(log, floats), ROW(log2, floats), ROW(log10, floats),
    ROW(log1p, floats), ROW(sqrt, floats), ROW(rsqrt, floats), ROW(reciprocal, floats),
    ROW(sin, floats),
    ROW(cos, floats), ROW(tan, floats), ROW(asin, floats), ROW(acos, floats), ROW(atan, floats),
    ROW(sinh, floats), ROW(cosh, floats), ROW(erf, floats), ROW(erfc, floats))
