/**
 * @file shifted.cuh  Vectors of 16 bytes at any element's address, read and written in aligned
 * 16-byte words; row_stream.cuh uses them for rows that are not whole vectors.
 *
 * `shift` is the number of elements from the start of the aligned word to the address. A vector at
 * a shift is the end of one word and the start of the next. Words are read whole: the backend's
 * memory consists of blocks of whole words (runtime/alloc.c), so a word that contains an element of
 * a tensor lies in the tensor's block.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_SHIFTED_CUH
#define TS_CUDA_SHIFTED_CUH

#include "backends/cuda/types.cuh"

namespace ts {

/** Number of elements from the start of the aligned word that contains *p to p. */
template <class T> __device__ __forceinline__ int shift_of(const T *p)
{
    return (int)((uintptr_t)p / sizeof(T)) & (vec16<T> - 1);
}

/** The vector that starts `shift` elements after the start of the word `low`; `high` is the next
 * word, which is not used if shift is 0. */
template <class T>
__device__ __forceinline__ vec<T, vec16<T>> joined(const uint4 &low, const uint4 &high, int shift)
{
    uint32_t w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    int bytes = shift * (int)sizeof(T);
#pragma unroll
    for (int by = 2; by; by /= 2)
#pragma unroll
        for (int i = 0; i < 4 + by; i++)
            w[i] = bytes & (4 * by) ? w[i + by] : w[i];
    if constexpr (sizeof(T) == 2)
#pragma unroll
        for (int i = 0; i < 4; i++)
            w[i] = __funnelshift_r(w[i], w[i + 1], 8 * (bytes & 2));
    return from_word<vec<T, vec16<T>>>(make_uint4(w[0], w[1], w[2], w[3]));
}

/** The vector at column c, a multiple of vec16<T>, of a line of n adjacent elements, which may
 * begin at any address; `fill` outside the line. */
template <class T>
__device__ __forceinline__ vec<T, vec16<T>> load_shifted(const T *line, int64_t c, int64_t n,
                                                         T fill)
{
    constexpr int V = vec16<T>;
    int shift = shift_of(line);
    const uint4 *word = reinterpret_cast<const uint4 *>(line + c - shift);
    uint4 low = {}, high = {}; /* no word without an element of the line is read */
    if (c < n)
        low = word[0];
    if (shift && c - shift + V < n)
        high = word[1];
    vec<T, V> x = joined<T>(low, high, shift);
#pragma unroll
    for (int e = 0; e < V; e++)
        x.at[e] = c + e < n ? x.at[e] : fill;
    return x;
}

/**
 * Stores a warp's n adjacent elements at any address. The lane with the vector x at element i calls
 * with i = (j * 32 + lane) * vec16<T>; all lanes call, for j = 0, 1, ... `carried` keeps lane 31's
 * vector for lane 0's next call. A lane stores the word with the start of its vector and the end of
 * the previous vector. A word of which only a part is the warp's is stored element by element.
 */
template <class T>
__device__ __forceinline__ void store_shifted(T *to, int i, int n, const vec<T, vec16<T>> &x,
                                              uint4 &carried)
{
    constexpr int V = vec16<T>;
    int shift = shift_of(to), word = i - shift;
    bool whole = word >= 0 && word + V <= n;
    vec<T, V> all = x;
    if (shift) {
        uint4 own = to_word(x), before;
        auto exchange = [](uint32_t mine, uint32_t &last) {
            uint32_t got = __shfl_sync(0xffffffffu, mine, (int)threadIdx.x + 31), old = last;
            last = got;
            return threadIdx.x % 32 ? got : old;
        };
        before.x = exchange(own.x, carried.x);
        before.y = exchange(own.y, carried.y);
        before.z = exchange(own.z, carried.z);
        before.w = exchange(own.w, carried.w);
        all = joined<T>(before, own, V - shift);
    }
    if (whole)
        store_stream(reinterpret_cast<vec<T, V> *>(to + word), all);
    int first = whole ? V - shift : 0, end = word + 2 * V > n ? min(V, n - i) : V - shift;
    if (first < end)
#pragma unroll
        for (int e = 0; e < V; e++)
            if (first <= e && e < end)
                to[i + e] = x.at[e];
}

} // namespace ts

#endif
