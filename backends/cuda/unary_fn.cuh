/** @file unary_fn.cuh  Elementary functions of an element. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_UNARY_FN_CUH
#define TS_CUDA_UNARY_FN_CUH

#include "backends/cuda/apply.cuh"

namespace ts::fn {

/** Function `name`: expr of x, an element of the wide type A. */
#define TS_UNARY(name, expr)                                                                       \
    struct name##_fn {                                                                             \
        template <class A> __device__ __forceinline__ A operator()(A x) const                      \
        {                                                                                          \
            return (A)(expr);                                                                      \
        }                                                                                          \
    };
/** An integer is whole already. */
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
TS_UNARY(sin, sin(x))
TS_UNARY(cos, cos(x))
TS_UNARY(tan, tan(x))
TS_UNARY(asin, asin(x))
TS_UNARY(acos, acos(x))
TS_UNARY(atan, atan(x))
TS_UNARY(sinh, sinh(x))
TS_UNARY(cosh, cosh(x))
TS_UNARY(erf, erf(x))
TS_UNARY(erfc, erfc(x))

#undef TS_UNARY
#undef TS_WHOLE

} // namespace ts::fn

#endif
