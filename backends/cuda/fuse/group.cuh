/** @file group.cuh  Types of parameters and device functions for the generated kernels of fused
 * groups (source.c). NVRTC compiles this file at run time, together with the functors (*_fn.cuh).
 * An access is V adjacent elements that a thread loads or stores at once. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_GROUP_CUH
#define TS_CUDA_GROUP_CUH

#include "backends/cuda/activation_fn.cuh"
#include "backends/cuda/compare_fn.cuh"
#include "backends/cuda/copy_fn.cuh"
#include "backends/cuda/dropout_fn.cuh"
#include "backends/cuda/pointwise_fn.cuh"
#include "backends/cuda/read_once.cuh"
#include "backends/cuda/unary_fn.cuh"

namespace ts {

/** A group's iteration space, innermost dim first; in groups by rows, without the dims of a row.
 * sizes[0] counts accesses (elements in groups by rows); the other sizes count elements. The struct
 * must have the layout of the host type ts_cuda_group_space. */
struct group_space {
    uint64_t accesses; /* number of accesses of V elements; by rows: number of rows */
    uint32_t tail;     /* elements of the last access (0 means V); by rows: elements of a row */
    uint32_t none;     /* padding */
    divisor by[8];     /* `sizes` as divisors, for indices of 32 bits */
    uint64_t sizes[8]; /* 8: TS_MAX_DIMS */
};

/** A tensor in memory: address, and strides in bytes along the dims of the space. */
template <int N> struct group_tensor {
    char *data;
    int64_t strides[N];
};

/**
 * Up to M members of a group, each with T tensors in memory and N numbers. Blocks first[i] to
 * first[i + 1] - 1 compute member i. members.c writes this layout.
 */
template <int M, int T, int N> struct group_members {
    uint32_t count, first[M + 1];
    uint32_t accesses[M], tail[M]; /* as in group_space, but tail is never 0: V if the last access
                                      is whole */
    char *data[T][M];
    double number[N ? N : 1][M]; /* bits of the numbers, as in ts_cuda_formula */
    /** Index of the member that a block computes. */
    __device__ __forceinline__ uint32_t of_block(uint32_t block) const
    {
        uint32_t low = 0, high = count;
        while (high - low > 1) {
            uint32_t middle = (low + high) / 2;
            if (first[middle] <= block)
                low = middle;
            else
                high = middle;
        }
        return low;
    }
    /** Iteration space of member i, which has one dim: `by` and `sizes` are not set. */
    __device__ __forceinline__ group_space space(uint32_t i) const
    {
        group_space s;
        s.accesses = accesses[i];
        s.tail = tail[i];
        return s;
    }
};

/** Position of access number i along each of the N dims of a space. I: type of indices. */
template <int N, class I> struct position {
    I at[N];
    __device__ __forceinline__ position(const group_space &s, I i)
    {
#pragma unroll
        for (int d = 0; d < N - 1; d++) {
            I q;
            if constexpr (sizeof(I) == 4)
                q = s.by[d].of(i);
            else
                q = i / s.sizes[d];
            at[d] = i - q * (I)s.sizes[d];
            i = q;
        }
        at[N - 1] = i;
    }
    __device__ __forceinline__ char *of(const group_tensor<N> &t) const
    {
        char *p = t.data;
#pragma unroll
        for (int d = 0; d < N; d++)
            p += at[d] * t.strides[d];
        return p;
    }
};

/** Loads an access of V elements, or the first `some` of them and zeros. 16-byte loads use the
 * cache hint of `read`. */
template <class T, int V>
__device__ __forceinline__ vec<T, V> load(const char *p, int some, const read_once &read)
{
    using word = word_of<vec<T, V>>;
    vec<T, V> v;
    if (V == 1 || some == V) {
        if constexpr (sizeof(word) == 16)
            return from_word<vec<T, V>>(read((const word *)p));
        /* a copy in a register: from_word(*p) would load from memory byte by byte */
        const word w = *(const word *)p;
        return from_word<vec<T, V>>(w);
    }
#pragma unroll
    for (int e = 0; e < V; e++)
        v.at[e] = e < some ? ((const T *)p)[e] : T();
    return v;
}
/** Loads one element and repeats it V times. */
template <class T, int V> __device__ __forceinline__ vec<T, V> load_one(const char *p)
{
    vec<T, V> v;
#pragma unroll
    for (int e = 0; e < V; e++)
        v.at[e] = *(const T *)p;
    return v;
}
/** Stores the first `some` of V elements. */
template <class T, int V>
__device__ __forceinline__ void store(char *p, int some, const vec<T, V> &v)
{
    if (V == 1 || some == V) {
        *(word_of<vec<T, V>> *)p = to_word(v);
        return;
    }
#pragma unroll
    for (int e = 0; e < V; e++)
        if (e < some)
            ((T *)p)[e] = v.at[e];
}

/** The bits of x as another type. */
template <class T, class X> __device__ __forceinline__ T as(X x)
{
    static_assert(sizeof(T) == sizeof(X), "the same bits");
    T y;
    memcpy(&y, &x, sizeof y);
    return y;
}

/**
 * A value kept in a register between fused calls. bf16 is kept as the f32 with the same value:
 * rounding costs one instruction, reading none.
 */
template <class T> struct in_register {
    using type = T;
};
template <> struct in_register<bf16> {
    using type = float;
};
template <class T> using in_register_t = typename in_register<T>::type;

template <class T> __device__ __forceinline__ in_register_t<T> to_register(T x)
{
    if constexpr (std::is_same_v<T, bf16>)
        return widen(x);
    else
        return x;
}
template <class T> __device__ __forceinline__ T from_register(in_register_t<T> x)
{
    if constexpr (std::is_same_v<T, bf16>)
        return as<bf16>((uint16_t)(__float_as_uint(x) >> 16));
    else
        return x;
}

/** Converts a value of dtype T to the operand of a functor that takes X. X is T, or a type of the
 * same size for a functor that only moves bits. */
template <class X, class T> __device__ __forceinline__ wide_t<X> operand(in_register_t<T> x)
{
    if constexpr (!std::is_same_v<X, T>)
        return widen(as<X>(from_register<T>(x)));
    else if constexpr (std::is_same_v<T, bf16>)
        return x;
    else
        return widen(x);
}
/** Converts a functor's result, of element type R, to a value of dtype T, rounded as if stored. */
template <class T, class R> __device__ __forceinline__ in_register_t<T> result(wide_t<R> x)
{
    if constexpr (!std::is_same_v<R, T>)
        return to_register(as<T>(narrow<R>(x)));
    else if constexpr (std::is_same_v<T, bf16>)
        return __uint_as_float(as<uint32_t>(__floats2bfloat162_rn(0, x)));
    else
        return narrow<T>(x);
}
/** result() for a functor whose result needs no rounding: one of its operands of dtype T, the
 *  magnitude of one, or zero. */
template <class T> __device__ __forceinline__ in_register_t<T> exact(wide_t<T> x)
{
    if constexpr (std::is_same_v<T, bf16>)
        return x;
    else
        return narrow<T>(x);
}

/* Sums, differences and products of f16 as f16 instructions: add_halves(), sub_halves() and
 * mul_halves(). The eager kernels compute in f32 and round to f16, which gives the same bits: f32
 * has 24 = 2 * 11 + 2 significant bits, f16 has 11, so rounding twice is the same as rounding
 * once. */
#define TS_OF_HALVES(name)                                                                         \
    __device__ __forceinline__ f16 name##_halves(f16 a, f16 b)                                     \
    {                                                                                              \
        uint16_t y;                                                                                \
        asm(#name ".rn.f16 %0, %1, %2;" : "=h"(y) : "h"(as<uint16_t>(a)), "h"(as<uint16_t>(b)));   \
        return as<f16>(y);                                                                         \
    }
TS_OF_HALVES(add)
TS_OF_HALVES(sub)
TS_OF_HALVES(mul)
#undef TS_OF_HALVES

/** Converts a value of dtype T to dtype C with the rounding of ts_to(). */
template <class C, class T> __device__ __forceinline__ in_register_t<C> cast(in_register_t<T> x)
{
    return result<C, C>(apply_fn<C>(fn::convert_fn<C>{}, operand<T, T>(x)));
}
/** Converts the bits of a host number to the operand of a functor; N counts result and operands. */
template <class T, int N> __device__ __forceinline__ wide_t<T> number_as(double bits)
{
    if constexpr (number_is_wide<T, N>)
        return bits_as<float>(bits);
    else
        return widen(bits_as<T>(bits));
}

/** Random words of elements first to first + V - 1; `first` must be a multiple of V. */
template <int V> struct draw_words {
    uint32_t w[V];
    __device__ __forceinline__ draw_words(uint64_t seed, uint64_t offset, uint64_t first)
    {
        if constexpr (V % 4 == 0) {
#pragma unroll
            for (int b = 0; b < V / 4; b++) {
                philox_block block(seed, offset + first / 4 + b);
#pragma unroll
                for (int e = 0; e < 4; e++)
                    w[b * 4 + e] = block.w[e];
            }
        } else {
            philox_block b(seed, offset + first / 4);
            uint32_t i = first % 4;
#pragma unroll
            for (int e = 0; e < V; e++, i++)
                w[e] = i & 2 ? (i & 1 ? b.w[3] : b.w[2]) : (i & 1 ? b.w[1] : b.w[0]);
        }
    }
};

} // namespace ts

#endif
