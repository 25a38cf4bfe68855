/** @file copy_fn.cuh  Functors that copy an element or convert it to another dtype, for eager
 * kernels (copy.cu, factory.cu) and fused groups. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_COPY_FN_CUH
#define TS_CUDA_COPY_FN_CUH

#include "backends/cuda/apply.cuh"

namespace ts::fn
{

/** Returns an element unchanged. */
struct same_fn {
    template <class A> __device__ __forceinline__ A operator()(A x) const { return x; }
};

/** Truncates x toward zero to I, int32_t or int64_t. NaN and values out of range become the most
 * negative integer, as on the CPU. */
template <class I> __device__ __forceinline__ I truncated(double x)
{
    constexpr double end = sizeof(I) == 8 ? 0x1p63 : 0x1p31;
    bool fits = sizeof(I) == 8 ? x >= -end && x < end : x > -end - 1 && x < end;
    return fits ? (I)x : (I)((I)1 << (sizeof(I) * 8 - 1));
}

/** Converts an element of any dtype to R. A float becomes u8 through i64, of which u8 is the low
 * byte. For bf16 and f16 returns a float, which the caller rounds; if x is an f64, this float is
 * rounded to odd (float_beside()), so that the two roundings have the result of one. */
template <class R> struct convert_fn {
    template <class A> __device__ __forceinline__ auto operator()(A x) const
    {
        if constexpr (std::is_same_v<R, bool>)
            return x != 0;
        else if constexpr (std::is_same_v<wide_t<R>, float> && std::is_same_v<A, double> &&
                           !std::is_same_v<R, float>)
            return float_beside(x);
        else if constexpr (std::is_floating_point_v<A> && std::is_integral_v<R>)
            return (R)truncated<std::conditional_t<std::is_same_v<R, int32_t>, int32_t, int64_t>>(
                x);
        else
            return (wide_t<R>)x;
    }
};

} // namespace ts::fn

#endif
