/** @file pointwise_fn.cuh  Elementwise functors of binary and ternary arithmetic and of clamp, for
 * eager kernels (pointwise.cu) and fused groups. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_POINTWISE_FN_CUH
#define TS_CUDA_POINTWISE_FN_CUH

#include "backends/cuda/apply.cuh"

namespace ts::fn {

/** Defines the functor name##_fn: `expr` of a and b, in the compute type A. */
#define TS_BINARY(name, expr)                                                                      \
    struct name##_fn {                                                                             \
        template <class A> __device__ __forceinline__ A operator()(A a, A b) const                 \
        {                                                                                          \
            return (A)(expr);                                                                      \
        }                                                                                          \
    };

/** larger(), smaller(): the larger and the smaller number; NaN if a or b is NaN. */
template <class A> __device__ __forceinline__ A larger(A a, A b)
{
    if constexpr (real<A>)
        return a > b || a != a ? a : b;
    else
        return a > b ? a : b;
}
template <class A> __device__ __forceinline__ A smaller(A a, A b)
{
    if constexpr (real<A>)
        return a < b || a != a ? a : b;
    else
        return a < b ? a : b;
}

/** Sets n to the floor of a / b if b is finite and the quotient's magnitude is below 2^22; else
 * returns false. The rounded quotient may be on the wrong side of an integer; the sign of a - n b,
 * which fmaf() rounds once, shows it. */
__device__ __forceinline__ bool whole_quotient(float a, float b, float &n)
{
    float q = a / b;
    if (!(fabsf(q) < 0x1p22f && fabsf(b) < INFINITY))
        return false;
    n = floorf(q);
    float rest = fmaf(-n, b, a), beyond = fmaf(-(n + 1), b, a);
    if (rest != 0 && (rest < 0) != (b < 0))
        n -= 1;
    else if (beyond == 0 || (beyond < 0) == (b < 0))
        n += 1;
    n = n == 0 ? copysignf(0, q) : n;
    return true;
}
/** Other types: not supported. */
template <class A> __device__ __forceinline__ bool whole_quotient(A, A, A &) { return false; }

/** Remainder with the divisor's sign. For integers a divisor of 0 gives 0; the functor by_integer
 * (pointwise.cu) reports it. */
template <class A> __device__ __forceinline__ A remainder_of(A a, A b)
{
    if constexpr (real<A>) {
        A n;
        if (whole_quotient(a, b, n)) {
            A r = fma(-n, b, a);
            return r == 0 ? copysign((A)0, a) : r;
        }
        A r = fmod(a, b);
        return r != 0 && (b < 0) != (r < 0) ? r + b : r;
    } else {
        A r = b == 0 || (std::is_signed_v<A> && b == (A)-1) ? 0 : a % b;
        return r != 0 && (r < 0) != (b < 0) ? r + b : r;
    }
}
/** Floor of a / b. For integers a divisor of 0 gives 0, and lowest / -1 wraps around. */
template <class A> __device__ __forceinline__ A floor_of(A a, A b)
{
    if constexpr (real<A>) {
        A n;
        if (whole_quotient(a, b, n))
            return n;
        if (b == 0)
            return a / b;
        A r = fmod(a, b), q = (a - r) / b;
        if (r != 0 && (b < 0) != (r < 0)) /* adjusts q, not r: b may be infinite */
            q -= 1;
        return q == 0 ? copysign((A)0, a / b) : rint(q);
    } else {
        if (b == 0)
            return 0;
        if (std::is_signed_v<A> && b == (A)-1)
            return (A)(0 - (uint64_t)a);
        return a / b - (a % b != 0 && (a < 0) != (b < 0));
    }
}
/** a^e. For integers the power wraps around; a negative exponent gives 0 unless a is 1 or -1. */
template <class A> __device__ __forceinline__ A power_of(A a, A e)
{
    if constexpr (real<A>) {
        return pow(a, e);
    } else {
        if (e < 0)
            return a == 1 ? 1 : a == (A)-1 ? (e & 1 ? (A)-1 : (A)1) : 0;
        uint64_t result = 1, base = (uint64_t)a;
        for (uint64_t left = (uint64_t)e; left; left >>= 1, base *= base)
            if (left & 1)
                result *= base;
        return (A)result;
    }
}

/* hypot: dividing by the larger operand keeps its square from overflowing. ::hypot() is not used,
   because it returns infinity for the largest double. */
template <class A> __device__ __forceinline__ A length_of(A a, A b)
{
    A high = larger(fabs(a), fabs(b)), r = smaller(fabs(a), fabs(b)) / high;
    return isinf(a) || isinf(b) ? (A)INFINITY : high > 0 ? high * sqrt(1 + r * r) : high;
}

TS_BINARY(add, a + b)
TS_BINARY(sub, a - b)
TS_BINARY(mul, a * b)
TS_BINARY(div, a / b)
TS_BINARY(power, power_of(a, b))
TS_BINARY(power_square, ((void)b, a * a))
TS_BINARY(power_cube, ((void)b, a * a * a))
TS_BINARY(power_root, ((void)b, sqrt(a)))
TS_BINARY(maximum, larger(a, b))
TS_BINARY(minimum, smaller(a, b))
TS_BINARY(atan2, ::atan2(a, b))
TS_BINARY(hypot, length_of(a, b))

#undef TS_BINARY

/* a + w (b - a), computed from the nearer of a and b, so weights 0 and 1 return a and b exactly */
template <class A> __device__ __forceinline__ A lerp_of(A a, A b, A w)
{
    return fabs(w) < (A)0.5 ? a + w * (b - a) : b - (b - a) * (1 - w);
}
/** lerp with a weight per element. */
struct lerp_each_fn {
    template <class A> __device__ __forceinline__ A operator()(A a, A b, A w) const
    {
        return lerp_of(a, b, w);
    }
};
/** lerp with one weight for all elements. */
struct lerp_by_fn {
    double weight;
    template <class A> __device__ __forceinline__ A operator()(A a, A b) const
    {
        return lerp_of(a, b, (A)weight);
    }
};

struct addcmul_fn {
    double value;
    template <class A> __device__ __forceinline__ A operator()(A a, A b, A c) const
    {
        return a + (A)value * b * c;
    }
};
struct addcdiv_fn {
    double value;
    template <class A> __device__ __forceinline__ A operator()(A a, A b, A c) const
    {
        return a + (A)value * b / c;
    }
};

/** Bounds of clamp for floats and for integers; an absent bound is the limit of the type. */
struct bounds {
    double low, high;
    int64_t low_int, high_int;
};
/** Limits x to the bounds; NaN stays NaN. */
struct clamp_fn {
    bounds b;
    template <class A> __device__ __forceinline__ A operator()(A x) const
    {
        if constexpr (real<A>)
            return x != x ? x : smaller(larger(x, (A)b.low), (A)b.high);
        int64_t m = (int64_t)x < b.low_int ? b.low_int : (int64_t)x;
        return (A)(m > b.high_int ? b.high_int : m);
    }
};
/** Gradient of clamp: g where x is within the bounds, else 0. */
struct inside_fn {
    bounds b;
    template <class A> __device__ __forceinline__ A operator()(A g, A x) const
    {
        return x >= (A)b.low && x <= (A)b.high ? g : (A)0;
    }
};

} // namespace ts::fn

#endif
