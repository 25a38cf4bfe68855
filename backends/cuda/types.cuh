/** @file types.cuh  Element types on the device: wide arithmetic, 16-byte vectors. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_TYPES_CUH
#define TS_CUDA_TYPES_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

namespace ts {

using bf16 = __nv_bfloat16;
using f16 = __half;

/** The type in which arithmetic on T is done. */
template <class T> struct wide { using type = T; };
template <> struct wide<bf16> { using type = float; };
template <> struct wide<f16> { using type = float; };
template <class T> using wide_t = typename wide<T>::type;

template <class T> __device__ __forceinline__ wide_t<T> widen(T x) { return x; }
template <> __device__ __forceinline__ float widen<bf16>(bf16 x) { return __bfloat162float(x); }
template <> __device__ __forceinline__ float widen<f16>(f16 x) { return __half2float(x); }

/** Rounds to nearest even, once. */
template <class T> struct narrow_to {
    template <class X> __device__ __forceinline__ static T from(X x) { return static_cast<T>(x); }
};
template <> struct narrow_to<bf16> {
    __device__ __forceinline__ static bf16 from(float x) { return __float2bfloat16_rn(x); }
};
template <> struct narrow_to<f16> {
    __device__ __forceinline__ static f16 from(float x) { return __float2half_rn(x); }
};
template <class T, class X> __device__ __forceinline__ T narrow(X x) { return narrow_to<T>::from(x); }

/** N elements that move in one access. */
template <class T, int N> struct alignas(sizeof(T) * N) vec {
    T at[N];
};
/** Elements of T in 16 bytes. */
template <class T> constexpr int vec16 = 16 / (int)sizeof(T);

/** Streaming accesses: data that this kernel touches once. */
template <class V> __device__ __forceinline__ V load_stream(const V *p)
{
    static_assert(sizeof(V) == 16, "a 16-byte vector");
    uint4 raw = __ldcs(reinterpret_cast<const uint4 *>(p));
    V v;
    *reinterpret_cast<uint4 *>(&v) = raw;
    return v;
}
template <class V> __device__ __forceinline__ void store_stream(V *p, V v)
{
    static_assert(sizeof(V) == 16, "a 16-byte vector");
    __stcs(reinterpret_cast<uint4 *>(p), *reinterpret_cast<uint4 *>(&v));
}

} // namespace ts

#endif
