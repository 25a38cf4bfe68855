/** @file extremes.cuh  Maximum and minimum with the same comparison: for a minimum the order of
 * elements is reversed. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_EXTREMES_CUH
#define TS_CUDA_EXTREMES_CUH

#include "backends/cuda/reduce.cuh"

namespace ts {

/** The type in which elements of T are compared. */
template <class T>
using ranked_t = std::conditional_t<std::is_integral_v<T> && sizeof(T) < 4, int32_t, wide_t<T>>;

template <class A> constexpr A lowest_of()
{
    if constexpr (std::is_floating_point_v<A>)
        return -(A)INFINITY;
    else
        return (A)((A)1 << (sizeof(A) * 8 - 1));
}

/** Reverses the order of numbers if the smallest is wanted: negates floats, inverts the bits of
 * integers. Applying it twice restores the number. */
template <class A> struct turning {
    using word = std::conditional_t<sizeof(A) == 8, int64_t, int32_t>;
    word bits;

    explicit turning(bool smallest)
        : bits(!smallest ? 0 : std::is_floating_point_v<A> ? lowest_of<word>() : (word)-1)
    {
    }
    __device__ __forceinline__ A operator()(A x) const
    {
        word w;
        memcpy(&w, &x, sizeof w);
        w ^= bits;
        memcpy(&x, &w, sizeof w);
        return x;
    }
};

/** Calls run.operator()<T>() for an element type that orders elements of the call's dtype. */
template <class F> ts_status with_ordered(ts_frame *f, F &&run)
{
    switch (ts_kernel_dtype(f)) {
    case TS_F64: return run.template operator()<double>();
    case TS_F32: return run.template operator()<float>();
    case TS_BF16: return run.template operator()<bf16>();
    case TS_F16: return run.template operator()<f16>();
    case TS_I64: return run.template operator()<int64_t>();
    case TS_I32: return run.template operator()<int32_t>();
    default: return run.template operator()<uint8_t>(); /* u8 and bool */
    }
}

} // namespace ts

#endif
