/**
 * @file rules.cuh  Applies masks, dropout and softcap to a tile of scores on tensor cores.
 *
 * For boolean masks and dropout, a lane holds bits in registers, one per pair of its scores:
 * whether the mask shows the pair, and whether dropout keeps it. A lane first computes the bits of
 * consecutive keys, because one Philox block (four random words) serves four pairs. Lanes then
 * exchange bits, so that each lane has the bits of its own elements.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_ATTENTION_RULES_CUH
#define TS_CUDA_ATTENTION_RULES_CUH

#include "backends/cuda/attention/attention.cuh"
#include "backends/cuda/instructions/mma.cuh"

namespace ts {

/** Bits of a lane's elements of N tiles of 16 x 8: bit 4 n + e is for element e of tile n, in the
 * layout of mma(). */
template <int N> struct attention_bits {
    uint32_t words[(N + 7) / 8];

    __device__ __forceinline__ bool has(int n, int e) const
    {
        return words[n / 8] >> (n % 8 * 4 + e) & 1;
    }
    /** Sets the bits from element e of tile n on. */
    __device__ __forceinline__ void add(int n, int e, uint32_t bits)
    {
        words[n / 8] |= bits << (n % 8 * 4 + e);
    }
    /** Two lanes whose indices differ in the bit `lane` exchange half of each group of four bits:
     * the lower lane gives its bits outside `low` and receives the upper lane's bits inside `low`,
     * shifted by `shift`. With low 0x33333333 and shift 2, the pairs of bits (ab, cd) of
     * the lower and (ef, gh) of the upper lane, low pair first, become (ab, ef) and (cd, gh). */
    __device__ __forceinline__ void trade(int lane, int shift, uint32_t low)
    {
#pragma unroll
        for (uint32_t &mine : words) {
            uint32_t theirs = __shfl_xor_sync(0xffffffffu, mine, lane);
            mine = threadIdx.x & lane ? (mine & ~low) | (theirs >> shift & low)
                                      : (mine & low) | (theirs << shift & ~low);
        }
    }
};

/** The bits of a warp that has 16 rows and 8 N keys. chunk(row, key) returns the bits of 2 N keys
 *  of a row; bit i is for key + i. */
template <int N, class F>
__device__ __forceinline__ attention_bits<N> attention_bits_of_rows(F &&chunk)
{
    constexpr int COUNT = 2 * N;
    int lane = threadIdx.x % 32, quad = lane % 4;
    attention_bits<N> bits = {};
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t mine = chunk(lane / 4 + 8 * half, quad * COUNT);
#pragma unroll
        for (int from = 0; from < 4; from++) {
            uint32_t theirs = __shfl_sync(0xffffffffu, mine, from, 4) >> (2 * quad);
#pragma unroll
            for (int i = 0; i < COUNT / 8; i++)
                bits.add(from * (COUNT / 8) + i, 2 * half, theirs >> 8 * i & 3);
        }
    }
    return bits;
}

/** The bits of a warp that has 16 keys and 8 N rows. chunk(row) returns the bits of a row's 16
 *  keys. */
template <int N, class F>
__device__ __forceinline__ attention_bits<N> attention_bits_of_keys(F &&chunk)
{
    int lane = threadIdx.x % 32, quad = lane % 4, team = lane / 4;
    attention_bits<N> bits = {};
    /* The 8 lanes with the same `quad` need bits of the same 2 N rows. In each iteration, each of
       them computes the bits of one row and sends them to the others. */
#pragma unroll
    for (int first = 0; first < 2 * N; first += 8) {
        int own = first + team;
        uint32_t mine = chunk(own / 2 * 8 + quad * 2 + own % 2);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            uint32_t theirs = __shfl_sync(0xffffffffu, mine, i * 4 + quad) >> team;
            bits.add((first + i) / 2, i % 2, (theirs & 1) | (theirs >> 8 & 1) << 2);
        }
    }
    return bits;
}

/** Sets the weights of dropped pairs to 0. */
template <int N>
__device__ __forceinline__ void drop_weights(float (&p)[N][4], const attention_bits<N> &kept)
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            p[n][e] = kept.has(n, e) ? p[n][e] : 0;
}
/** Marks dropped pairs by negating their probabilities, so that the bits no longer occupy
 * registers. */
template <int N>
__device__ __forceinline__ void mark_dropped(float (&p)[N][4], const attention_bits<N> &kept)
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            p[n][e] = kept.has(n, e) ? p[n][e] : -p[n][e];
}
/** Rounds marked probabilities to T and packs them as a left operand; dropped pairs become 0. */
template <class T, int N>
__device__ __forceinline__ void pack_kept(uint32_t (&to)[N / 2][4], const float (&p)[N][4])
{
    auto kept = [](float x) { return x < 0 ? 0 : x; }; /* NaN stays */
#pragma unroll
    for (int k = 0; k < N / 2; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int n = 2 * k + i / 2, e = i % 2 * 2;
            to[k][i] = pack2<T>(kept(p[n][e]), kept(p[n][e + 1]));
        }
}
/** The gradient of a score, from its marked probability p and the gradient dp of its weight. */
__device__ __forceinline__ float marked_gradient(float p, float dp, float delta,
                                                 float dropout_scale)
{
    return fabsf(p) * ((p < 0 ? 0 : dp * dropout_scale) - delta);
}

/** Multiplies two gradients by two slopes, which are packed as f16. */
__device__ __forceinline__ void times_slopes(float &x, float &y, uint32_t slopes)
{
    unpacked<f16, 2> two(__builtin_bit_cast(vec<f16, 2>, slopes));
    x *= two.at[0];
    y *= two.at[1];
}

/** The sum of a scaled score and its addend, as attention_score() computes it. */
__device__ __forceinline__ float attention_sum(float score, float added)
{
    float sum = score + added;
    return added == -INFINITY ? added : sum < -2e38f ? -2e38f : sum;
}

/** Sets the scores of pairs that a boolean mask hides to -Inf. */
template <int N>
__device__ __forceinline__ void hide_scores(float (&s)[N][4], const attention_bits<N> &shown)
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[n][e] = shown.has(n, e) ? s[n][e] : -INFINITY;
}

/** Bit i: whether key i of this lane is among the first `keys` keys of the tile. A lane has two of
 * each 8 keys. */
template <int N> __device__ __forceinline__ uint32_t attention_first_keys(int keys)
{
    int mine = keys - (int)(threadIdx.x % 4) * 2,
        count = mine <= 0 ? 0 : mine / 8 * 2 + min(mine % 8, 2);
    return count >= 2 * N ? ~0u : (1u << count) - 1;
}
/** Sets the scores of keys that rows `row` and row + 8 do not see to -Inf; the tile's first key is
 * `from`. */
template <int N>
__device__ __forceinline__ void attention_mask(float (&s)[N][4], const attention_span &span,
                                               int row, int from)
{
    static_assert(N <= 16, "a bit for each of a row's keys");
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int low = row + 8 * half + span.low, high = min(span.keys - 1, row + 8 * half + span.high);
        uint32_t seen =
            attention_first_keys<N>(high + 1 - from) & ~attention_first_keys<N>(low - from);
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                if (!(seen >> (2 * n + e) & 1))
                    s[n][2 * half + e] = -INFINITY;
    }
}

/** tanh(x), with a relative error of about 2^-21. */
__device__ __forceinline__ float attention_tanh(float x)
{
    float a = fabsf(x), xx = x * x;
    float large = copysignf(1 - 2 * reciprocal(1 + exp2_fast(a * (2 * log2_e))), x);
    float small = x + x * xx *
                          (-0x1.555556p-2f +
                           xx * (0x1.111112p-3f + xx * (-0x1.ba1ba2p-5f + xx * 0x1.664f48p-6f)));
    return a > 0.3f ? large : small; /* NaN stays */
}

/** Bit i: whether byte i of four is not 0. */
__device__ __forceinline__ uint32_t bits_of_bytes(uint32_t x)
{
    return (__vcmpne4(x, 0) & 0x01010101u) * 0x01020408u >> 24 & 15;
}

/** Mask, dropout and softcap of one query head. Rows and keys are indices in the sequence. */
struct attention_head {
    const attention_call &c;
    const attention_span &span;
    int batch, head;

    /**
     * The pairs that dropout keeps among a warp's 16 rows starting at `row` and 8 N keys starting
     * at `key`. The bits of pairs outside the window are unspecified. If c.keys is a multiple of 4,
     * a lane draws one Philox block, of four keys, for each tile of 8 keys.
     */
    template <int N>
    __device__ __forceinline__ attention_bits<N> kept_of_rows(int row, int key) const
    {
        if (N < 8 || c.keys % 4) /* kernels with narrow tiles have no registers to spare */
            return attention_bits_of_rows<N>(
                [&](int r, int k) { return kept<2 * N>(row + r, key + k); });
        int lane = threadIdx.x % 32, quad = lane % 4;
        attention_range seen = keys_of_rows(span, row, row + 16);
        attention_bits<N> bits =
            kept_of_tiles<N>(block_of(row + lane / 4 + quad % 2 * 8, key + quad / 2 * 4), 2,
                             seen.first - key, seen.end - key);
        bits.trade(1, 2, 0x33333333);
        return bits;
    }
    /** kept_of_rows() for a warp's 16 keys starting at `key` and 8 N rows starting at `row`, whose
     * scores are transposed: tile n has keys x rows. */
    template <int N>
    __device__ __forceinline__ attention_bits<N> kept_of_keys(int row, int key) const
    {
        if (c.keys % 4)
            return attention_bits_of_keys<N>([&](int r) { return kept<16>(row + r, key); });
        int lane = threadIdx.x % 32, team = lane / 4;
        attention_range seen = rows_of_keys(span, key, key + 16);
        attention_bits<N> bits = kept_of_tiles<N>(
            block_of(row + lane % 4 * 2 + team % 2, key + team / 4 * 4 + team / 2 % 2 * 8),
            (uint32_t)c.keys * 2, seen.first - row, seen.end - row);
        bits.trade(4, 1, 0x55555555); /* four lanes transpose their four bits of a tile */
        bits.trade(8, 2, 0x33333333);
        return bits;
    }

    /** The pairs that the boolean mask shows, for the same rows and keys as kept_of_rows() and
     * kept_of_keys(). */
    template <int N>
    __device__ __forceinline__ attention_bits<N> shown_of_rows(int row, int key) const
    {
        return attention_bits_of_rows<N>(
            [&](int r, int k) { return shown<2 * N>(row + r, key + k); });
    }
    template <int N>
    __device__ __forceinline__ attention_bits<N> shown_of_keys(int row, int key) const
    {
        return attention_bits_of_keys<N>([&](int r) { return shown<16>(row + r, key); });
    }

    /** The mask's addend to the score of a pair. A pair outside the sequence reads the value of
     * another pair, so that loads are unconditional and overlap. */
    template <class T> __device__ __forceinline__ float added(int row, int key) const
    {
        int64_t at = mask_place(min(row, span.rows - 1), min(key, span.keys - 1));
        return c.mask_type == MASK_OWN ? widen(((const T *)c.mask)[at])
                                       : ((const float *)c.mask)[at];
    }

    /** attention_score() of a pair, with the element of an additive mask of dtype T or f32. */
    template <class T>
    __device__ __forceinline__ float score(float raw, int row, int key, float &slope) const
    {
        return attention_score(c, raw, c.mask_type > MASK_BOOL ? added<T>(row, key) : 0.0f, slope);
    }

    /**
     * Adds mask / scale to a lane's raw scores, for an additive mask of dtype T or f32; the scale
     * multiplies the sums later. Addends are clamped to +-1e37, so that a row with only such scores
     * still has weights; -Inf hides a pair. The mask's row and key strides must be below 2^31.
     * @param place  place(n, e): (row, key) of element e of tile n
     */
    template <class T, int N, class F>
    __device__ __forceinline__ void add_mask(float (&s)[N][4], F &&place) const
    {
        if (c.mask_type == MASK_OWN)
            add_mask_of((const T *)c.mask, s, place);
        else
            add_mask_of((const float *)c.mask, s, place);
    }

    /**
     * Scales a lane's raw scores and applies the softcap.
     * @param slope  slope(n, half, word): receives the slopes of elements 2 half and 2 half + 1 of
     *               tile n, as two f16; called only if there is a softcap
     */
    template <int N, class G>
    __device__ __forceinline__ void scale_scores(float (&s)[N][4], G &&slope) const
    {
        float scale = (float)c.scale;
        if (c.softcap > 0) {
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    float &x = s[n][2 * half], &y = s[n][2 * half + 1];
                    x = attention_tanh(x * c.by_softcap);
                    y = attention_tanh(y * c.by_softcap);
                    slope(n, half, pack2<f16>(1 - x * x, 1 - y * y));
                    x *= c.softcap;
                    y *= c.softcap;
                }
        } else {
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    s[n][e] *= scale;
        }
    }
    /**
     * Replaces a lane's raw scores by attention_score(), with the elements of an additive mask of
     * dtype T or f32, if there is one. Limits of the mask's strides: see add_mask().
     * @param place  place(n, e): (row, key) of element e of tile n
     * @param slope  as in scale_scores()
     */
    template <class T, int N, class F, class G>
    __device__ __forceinline__ void adjust_scores(float (&s)[N][4], F &&place, G &&slope) const
    {
        scale_scores(s, slope);
        if (c.mask_type == MASK_OWN)
            add_to_scores((const T *)c.mask, s, place);
        else if (c.mask_type == MASK_F32)
            add_to_scores((const float *)c.mask, s, place);
    }

  private:
    /** Adds the mask to scaled scores, as attention_score() does. */
    template <class M, int N, class F>
    __device__ __forceinline__ void add_to_scores(const M *mask, float (&s)[N][4], F &&place) const
    {
        mask += batch * c.mask_steps[0] + head * c.mask_steps[1];
#pragma unroll
        for (int n = 0; n < N; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int2 at = place(n, e);
                float x = widen(mask[(int64_t)min(at.x, span.rows - 1) * (int)c.mask_steps[2] +
                                     (int64_t)min(at.y, span.keys - 1) * (int)c.mask_steps[3]]);
                s[n][e] = attention_sum(s[n][e], x);
            }
        }
    }
    template <class M, int N, class F>
    __device__ __forceinline__ void add_mask_of(const M *mask, float (&s)[N][4], F &&place) const
    {
        mask += batch * c.mask_steps[0] + head * c.mask_steps[1];
#pragma unroll
        for (int n = 0; n < N; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int2 at = place(n, e);
                float x = widen(mask[(int64_t)min(at.x, span.rows - 1) * (int)c.mask_steps[2] +
                                     (int64_t)min(at.y, span.keys - 1) * (int)c.mask_steps[3]]),
                      y = x * c.by_scale;
                y = y < -1e37f ? -1e37f : y > 1e37f ? 1e37f : y;
                s[n][e] = x == -INFINITY ? x : s[n][e] + y;
            }
        }
    }
    __device__ __forceinline__ int64_t mask_place(int row, int key) const
    {
        return batch * c.mask_steps[0] + head * c.mask_steps[1] + row * c.mask_steps[2] +
               key * c.mask_steps[3];
    }
    /** Bit i, for i < COUNT: whether the boolean mask shows the pair of a row and key + i. */
    template <int COUNT> __device__ __forceinline__ uint32_t shown(int row, int key) const
    {
        static_assert(COUNT % 8 == 0 && COUNT <= 32, "loads of eight bytes");
        int there = span.keys - key;
        if (row >= span.rows || there <= 0)
            return 0;
        int64_t step = c.mask_steps[3];
        const uint8_t *mask = (const uint8_t *)c.mask + mask_place(row, key);
        uint32_t bits = 0;
        if (step == 0)
            return *mask ? ~0u >> (32 - COUNT) : 0;
        if (step == 1 && there >= COUNT && (uintptr_t)mask % 8 == 0) {
#pragma unroll
            for (int i = 0; i < COUNT; i += 8) {
                uint2 x = *(const uint2 *)(mask + i);
                bits |= (bits_of_bytes(x.x) | bits_of_bytes(x.y) << 4) << i;
            }
            return bits;
        }
        if (step == 1 && there >= COUNT + 4) { /* words around the bytes, all of them in the row */
            uint32_t skip = (uint32_t)((uintptr_t)mask % 4);
            const uint32_t *words = (const uint32_t *)(mask - skip);
            uint32_t x = words[0];
#pragma unroll
            for (int i = 0; i < COUNT; i += 4) {
                uint32_t y = words[i / 4 + 1];
                bits |= bits_of_bytes(__funnelshift_r(x, y, 8 * skip)) << i;
                x = y;
            }
            return bits;
        }
#pragma unroll 4
        for (int i = 0; i < COUNT; i++)
            bits |= (uint32_t)(i < there && mask[i * step]) << i;
        return bits;
    }

    __device__ __forceinline__ uint64_t pair_at(int row, int key) const
    {
        return (((uint64_t)batch * c.heads + head) * c.rows + row) * c.keys + key;
    }
    __device__ __forceinline__ uint64_t block_of(int row, int key) const
    {
        return c.offset + pair_at(row, key) / 4;
    }
    /** Bit i: whether dropout keeps pair i of a block. */
    __device__ __forceinline__ uint32_t kept_of_block(uint64_t block) const
    {
        philox_block b(c.seed, block);
        uint32_t bits = 0, highest_dropped = (c.dropped << 8) - 1;
#pragma unroll
        for (int i = 0; i < 4; i++)
            bits |= (uint32_t)(b.w[i] > highest_dropped) << i;
        return bits;
    }
    /** Draws one Philox block for each of N tiles: block + n * step for tile n, which has the keys
     * (of transposed scores: the rows) 8 n to 8 n + 7. Skips tiles that have none of the keys (or
     * rows) `first` to `end` - 1; their bits are 0. */
    template <int N>
    __device__ __forceinline__ attention_bits<N> kept_of_tiles(uint64_t block, uint32_t step,
                                                               int first, int end) const
    {
        attention_bits<N> bits = {};
        constexpr int EACH = N < 8 ? N : 8;
#pragma unroll
        for (int word = 0; word < N / EACH; word++) {
            int i = max(first - 64 * word, 0) / 8, last = min(end - 64 * word, 8 * EACH);
            uint64_t at = block + (uint64_t)step * (uint32_t)(word * 8 + i);
#pragma unroll(N > 8 ? 2 : 1)
            for (; 8 * i < last; i++, at += step)
                bits.words[word] |= kept_of_block(at) << 4 * i;
        }
        return bits;
    }
    /** Bit i, for i < COUNT: whether dropout keeps the pair of a row and key + i. */
    template <int COUNT> __device__ __forceinline__ uint32_t kept(int row, int key) const
    {
        static_assert(COUNT % 4 == 0 && COUNT <= 32, "blocks of four pairs");
        uint64_t block = block_of(row, key);
        uint32_t bits = 0, skip = (uint32_t)pair_at(row, key) % 4;
#pragma unroll 1
        for (int i = 0; i < COUNT / 4; i++)
            bits |= kept_of_block(block + i) << 4 * i;
        if (skip)
            bits = bits >> skip | kept_of_block(block + COUNT / 4) << (COUNT - skip);
        return bits;
    }
};

} // namespace ts

#endif
