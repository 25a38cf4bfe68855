/** @file types.cuh  Element types on the device, for all kernels: conversions to and from the type
 * of arithmetic, and vectors of elements that move in one access. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_TYPES_CUH
#define TS_CUDA_TYPES_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>
#include <string.h>

#include <type_traits>

namespace ts {

using bf16 = __nv_bfloat16;
using f16 = __half;

/** The type in which arithmetic on T is done. */
template <class T> struct wide { using type = T; };
template <> struct wide<bf16> { using type = float; };
template <> struct wide<f16> { using type = float; };
template <class T> using wide_t = typename wide<T>::type;
/** True for bf16 and f16, the halves. */
template <class T> constexpr bool is_half = !std::is_same_v<wide_t<T>, T>;

/** An element in the wide type. */
template <class T> __device__ __forceinline__ wide_t<T> widen(T x) { return x; }
template <> __device__ __forceinline__ float widen<bf16>(bf16 x) { return __bfloat162float(x); }
template <> __device__ __forceinline__ float widen<f16>(f16 x) { return __half2float(x); }

/** Converts X to T: for bf16 and f16 from float, rounded once to nearest even; else by a cast. */
template <class T> struct narrow_to {
    template <class X> __device__ __forceinline__ static T from(X x) { return static_cast<T>(x); }
};
template <> struct narrow_to<bf16> {
    __device__ __forceinline__ static bf16 from(float x) { return __float2bfloat16_rn(x); }
};
template <> struct narrow_to<f16> {
    __device__ __forceinline__ static f16 from(float x) { return __float2half_rn(x); }
};
template <class T, class X> __device__ __forceinline__ T narrow(X x)
{
    return narrow_to<T>::from(x);
}

/** 2^x by the hardware instruction ex2.approx.ftz, with an error of about 2 ulp; subnormal results
 * become 0. */
__device__ __forceinline__ float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/** 1 / x by the hardware instruction, to 1 ulp; 0 for |x| > 2^126, since subnormal results become
 * 0. */
__device__ __forceinline__ float reciprocal_fast(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/** 1 / x to 1 ulp, including subnormal results. */
__device__ __forceinline__ float reciprocal(float x)
{
    float y;
    asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ double reciprocal(double x) { return 1 / x; }

/** N elements that move in one access. */
template <class T, int N> struct alignas(sizeof(T) * N) vec {
    T at[N];
};
/** Elements of T in 16 bytes. */
template <class T> constexpr int vec16 = 16 / (int)sizeof(T);

/** Converts the elements of a vector to the wide type; bf16 two at a time. */
template <class T, int N>
__device__ __forceinline__ void unpack(const vec<T, N> &v, wide_t<T> (&x)[N])
{
    if constexpr (std::is_same_v<T, bf16> && N % 2 == 0) {
        const uint32_t *u = reinterpret_cast<const uint32_t *>(&v);
#pragma unroll
        for (int k = 0; k < N; k += 2) {
            x[k] = __uint_as_float(u[k / 2] << 16);
            x[k + 1] = __uint_as_float(u[k / 2] & 0xffff0000u);
        }
    } else {
#pragma unroll
        for (int k = 0; k < N; k++)
            x[k] = widen(v.at[k]);
    }
}
/** Rounds wide numbers to a vector of T, to nearest even; bf16 and f16 two at a time. */
template <class T, int N> __device__ __forceinline__ vec<T, N> pack(const wide_t<T> (&x)[N])
{
    vec<T, N> v;
    if constexpr (std::is_same_v<T, bf16> && N % 2 == 0) {
        __nv_bfloat162 *u = reinterpret_cast<__nv_bfloat162 *>(&v);
#pragma unroll
        for (int k = 0; k < N; k += 2)
            u[k / 2] = __floats2bfloat162_rn(x[k], x[k + 1]);
    } else if constexpr (std::is_same_v<T, f16> && N % 2 == 0) {
        __half2 *u = reinterpret_cast<__half2 *>(&v);
#pragma unroll
        for (int k = 0; k < N; k += 2)
            u[k / 2] = __floats2half2_rn(x[k], x[k + 1]);
    } else {
#pragma unroll
        for (int k = 0; k < N; k++)
            v.at[k] = narrow<T>(x[k]);
    }
    return v;
}

/** The elements of a vector in the wide type. */
template <class T, int N> struct unpacked {
    wide_t<T> at[N];
    __device__ __forceinline__ explicit unpacked(const vec<T, N> &v) { unpack<T, N>(v, at); }
};

/** The unsigned type with which a vector of BYTES bytes is loaded and stored in one access. */
template <int BYTES> struct word;
template <> struct word<1> { using type = uint8_t; };
template <> struct word<2> { using type = uint16_t; };
template <> struct word<4> { using type = uint32_t; };
template <> struct word<8> { using type = uint2; };
template <> struct word<16> { using type = uint4; };
template <class V> using word_of = typename word<sizeof(V)>::type;

/* A vector as a word of the same bytes, and back. */
template <class V> __device__ __forceinline__ word_of<V> to_word(const V &v)
{
    word_of<V> w;
    memcpy(&w, &v, sizeof w);
    return w;
}
template <class V> __device__ __forceinline__ V from_word(const word_of<V> &w)
{
    V v;
    memcpy(&v, &w, sizeof v);
    return v;
}

/** The address of p, which is in shared memory, for PTX instructions on shared memory. */
__device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/** Stores a 16-byte vector with the streaming (evict-first) hint, for data that is not read
 * soon. */
template <class V> __device__ __forceinline__ void store_stream(V *p, V v)
{
    static_assert(sizeof(V) == 16, "a 16-byte vector");
    __stcs(reinterpret_cast<uint4 *>(p), *reinterpret_cast<uint4 *>(&v));
}
/** Stores a vector: in 16-byte accesses if its size is a multiple of 16 bytes, else by a plain
 * assignment, which the compiler may split into stores of elements, for example under a
 * condition. */
template <class V> __device__ __forceinline__ void store_whole(V *p, const V &v)
{
    if constexpr (sizeof(V) % 16 == 0)
#pragma unroll
        for (size_t i = 0; i < sizeof(V) / 16; i++)
            __stwb(reinterpret_cast<uint4 *>(p) + i, reinterpret_cast<const uint4 *>(&v)[i]);
    else
        *p = v;
}

} // namespace ts

#endif
