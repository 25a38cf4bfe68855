/**
 * @file addends.cuh
 * Adds an additive mask to a tile of scores in the forward kernel for Hopper (wgmma.cuh).
 * attention_adder::add_tile() reads the mask from a tile in shared memory, which TMA, the copy
 * engine, loads.
 * attention_addends loads the mask's elements into registers: for masks that TMA cannot load, for
 * depths of 129 to 192, and, up to a depth of 128, for the kernel of all options. Deeper kernels
 * have too few registers; they use attention_head (rules.cuh) instead.
 *
 * A raw score is q k, not yet scaled. The addend of a raw score is mask / scale, because the
 * softmax scales the sum later. Addends are limited to +-1e37, so that a row with only such scores
 * still has weights. A mask element of -Inf hides the pair. A lane has the scores of N tiles of 16
 * rows x 8 keys in the layout of mma() (instructions/mma.cuh).
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_ATTENTION_ADDENDS_CUH
#define TS_CUDA_ATTENTION_ADDENDS_CUH

#include "backends/cuda/attention/rules.cuh"

namespace ts {

/** at_least() returns max(x, least), at_most() min(x, most); NaN stays NaN. */
__device__ __forceinline__ float at_least(float x, float least)
{
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(least));
    return x;
}
__device__ __forceinline__ float at_most(float x, float most)
{
    asm("min.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(most));
    return x;
}

/** Adds a mask of dtype T to the raw scores of two adjacent keys, whose elements of the mask are in
 * one word. */
template <class T> struct attention_adder {
    static constexpr bool IS_F16 = std::is_same_v<T, f16>;
    uint32_t most; /* limit of the mask's elements, in both halves of the word: 1e37 * scale, at
                      most 65504 for f16 and 3e38 for bf16 */
    float by_scale;

    __device__ __forceinline__ explicit attention_adder(const attention_call &c)
        : by_scale(c.by_scale)
    {
        float limit = fminf(1e37f * (float)c.scale, IS_F16 ? 65504.f : 3e38f);
        most = pack2<T>(limit, limit);
    }
    /** Adds the two elements in `word` to two raw scores. */
    __device__ __forceinline__ void add(float &first, float &second, uint32_t word) const
    {
        uint32_t x = word, hidden = IS_F16 ? 0xfc00fc00u : 0xff80ff80u; /* -Inf, twice */
        if constexpr (IS_F16)
            asm("min.NaN.f16x2 %0, %0, %1;\n\tmax.NaN.f16x2 %0, %0, %2;"
                : "+r"(x)
                : "r"(most), "r"(most ^ 0x80008000u));
        else
            asm("min.NaN.bf16x2 %0, %0, %1;\n\tmax.NaN.bf16x2 %0, %0, %2;"
                : "+r"(x)
                : "r"(most), "r"(most ^ 0x80008000u));
        using two = vec<T, 2>;
        unpacked<T, 2> y(__builtin_bit_cast(two, x));
        first += y.at[0] * by_scale;
        second += y.at[1] * by_scale;
        if constexpr (IS_F16)
            asm("{\n\t.reg .pred p, q;\n\tsetp.eq.f16x2 p|q, %2, %3;\n\t"
                "selp.f32 %0, 0fff800000, %0, p;\n\tselp.f32 %1, 0fff800000, %1, q;\n\t}"
                : "+f"(first), "+f"(second)
                : "r"(word), "r"(hidden));
        else
            asm("{\n\t.reg .pred p, q;\n\tsetp.eq.bf16x2 p|q, %2, %3;\n\t"
                "selp.f32 %0, 0fff800000, %0, p;\n\tselp.f32 %1, 0fff800000, %1, q;\n\t}"
                : "+f"(first), "+f"(second)
                : "r"(word), "r"(hidden));
    }
    /** Adds a tile of the mask, 64 rows x 8 N keys, to the raw scores of a group of four warps. The
     * tile is one slab (instructions/wgmma.cuh) at shared-memory address `at`. */
    template <int N> __device__ __forceinline__ void add_tile(float (&s)[N][4], uint32_t at) const
    {
        mma_tile<64> tile{at};
#pragma unroll
        for (int k = 0; k < N / 2; k++) {
            uint32_t words[4];
            tile.left(words, (int)threadIdx.x % 128 / 32 * 16, k);
#pragma unroll
            for (int i = 0; i < 4; i++)
                add(s[2 * k + i / 2][i % 2 * 2], s[2 * k + i / 2][i % 2 * 2 + 1], words[i]);
        }
    }
};

/**
 * A lane's elements of a mask, for N tiles: fetch() loads them ahead of time, add() adds them to
 * the raw scores s. add_to_scaled() adds them to scaled scores instead, as attention_score() does.
 */
template <class T, int N> struct attention_addends {
    /* words[n][e]: element e of tile n. If `two` and the mask's dtype is T, words[n][half] has the
     * elements 2 half and 2 half + 1. */
    uint32_t words[N][4];
    bool two; /* two adjacent keys are loaded in one access */

    /** row, key: position of the lane's element 0 of tile 0; from: the first key of the tiles. For
     * positions outside the sequence, loads elements of other pairs. */
    __device__ __forceinline__ void fetch(const attention_call &c, const attention_span &span,
                                          int batch, int head, int row, int key, int from)
    {
        if (c.mask_type == MASK_OWN)
            fetch_of<uint16_t>(c, span, batch, head, row, key, from);
        else
            fetch_of<uint32_t>(c, span, batch, head, row, key, from);
    }
    __device__ __forceinline__ void add(const attention_call &c, float (&s)[N][4]) const
    {
        if (c.mask_type != MASK_OWN)
            add_floats(c, s);
        else if (two)
            add_pairs(c, s, [&](int n, int half) { return words[n][half]; });
        else
            add_pairs(c, s, [&](int n, int half) {
                return words[n][2 * half] | words[n][2 * half + 1] << 16;
            });
    }

    __device__ __forceinline__ void add_to_scaled(const attention_call &c, float (&s)[N][4]) const
    {
        bool own = c.mask_type == MASK_OWN;
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float x = __uint_as_float(words[n][2 * half]),
                      y = __uint_as_float(words[n][2 * half + 1]);
                if (own) {
                    uint32_t word = two ? words[n][half]
                                        : words[n][2 * half] | words[n][2 * half + 1] << 16;
                    unpacked<T, 2> pair(__builtin_bit_cast(vec<T, 2>, word));
                    x = pair.at[0];
                    y = pair.at[1];
                }
                s[n][2 * half] = attention_sum(s[n][2 * half], x);
                s[n][2 * half + 1] = attention_sum(s[n][2 * half + 1], y);
            }
    }

  private:
    template <class W>
    __device__ __forceinline__ void fetch_of(const attention_call &c, const attention_span &span,
                                             int batch, int head, int row, int key, int from)
    {
        constexpr int WORDS = 4 / sizeof(W); /* elements of a word */
        const W *mask = (const W *)c.mask + batch * c.mask_steps[0] + head * c.mask_steps[1];
        two = c.mask_steps[3] == 1 && from + 8 * N <= span.keys && c.mask_steps[2] % 2 == 0 &&
              (uintptr_t)mask % (2 * sizeof(W)) == 0;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const W *line = mask + (int64_t)min(row + 8 * half, span.rows - 1) * c.mask_steps[2];
            if (two) {
#pragma unroll
                for (int n = 0; n < N; n++)
                    if constexpr (WORDS == 2) {
                        words[n][half] = *(const uint32_t *)(line + key + 8 * n);
                    } else {
                        uint2 x = *(const uint2 *)(line + key + 8 * n);
                        words[n][2 * half] = x.x, words[n][2 * half + 1] = x.y;
                    }
                continue;
            }
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    words[n][2 * half + e] =
                        line[(int64_t)min(key + 8 * n + e, span.keys - 1) * (int)c.mask_steps[3]];
        }
    }
    template <class F>
    static __device__ __forceinline__ void add_pairs(const attention_call &c, float (&s)[N][4],
                                                     F &&word)
    {
        attention_adder<T> adder(c);
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                adder.add(s[n][2 * half], s[n][2 * half + 1], word(n, half));
    }
    __device__ __forceinline__ void add_floats(const attention_call &c, float (&s)[N][4]) const
    {
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float x = __uint_as_float(words[n][e]),
                      y = at_most(at_least(x * c.by_scale, -1e37f), 1e37f);
                s[n][e] = x == -INFINITY ? x : s[n][e] + y;
            }
    }
};

} // namespace ts

#endif
