/**
 * @file attention_mma_backward.cuh
 * Gradients of attention on the tensor cores of sm_80, in two passes that add in a fixed order.
 *
 * With p = exp(scale q kT - lse), dp = g vT and ds = p (dp - delta), delta the row's sum of g out:
 *   dq = scale ds k,  dk = scale dsT q,  dv = pT g.
 * A block holds a pair of tiles: (q, g) in the pass over queries, (k, v) in the one over keys.
 * The other pair passes by. In either pass s = (first of the pair held) (first of the pair
 * passing)T and dp is the same of the seconds, so that what a warp computes is at once the left
 * operand of the products it adds up, and nothing but the operands goes through shared memory.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_ATTENTION_MMA_BACKWARD_CUH
#define TS_CUDA_ATTENTION_MMA_BACKWARD_CUH

#include "backends/cuda/attention_mma.cuh"

namespace ts {

/** Sizes of a block. SPLIT warps share 16 rows, each adding up its part of the columns. */
template <int DEPTH_, bool KEYS> struct attention_mma_backward_shape {
    static constexpr int depth = DEPTH_, split = depth > 128 ? 2 : 1;
    static constexpr int warps = 8, threads = 32 * warps, rows = 16 * warps / split,
                         wide = depth > 128 || (KEYS && depth > 64) ? 32 : 64;
    static constexpr int stages = depth > 128 ? 1 : 2;
    static constexpr int pair = wide * depth * 2 * 2;
    static constexpr int bytes =
        rows * depth * 2 * 2 + stages * (pair + wide * (int)sizeof(float2));
};

template <class T, int DEPTH, bool KEYS, bool RULES>
static __global__ void __launch_bounds__(256, 1)
    attention_mma_backward_kernel(const __grid_constant__ attention_call c)
{
    using S = attention_mma_backward_shape<DEPTH, KEYS>;
    constexpr int WIDE = S::wide, COLUMNS = DEPTH / S::split;
    extern __shared__ __align__(128) char shared[];
    mma_tile<DEPTH> held1{shared_address(shared)}, held2{held1.base + S::rows * DEPTH * 2};
    uint32_t passing = held2.base + S::rows * DEPTH * 2;
    float2 *pairs = (float2 *)(shared + S::rows * DEPTH * 4 + S::stages * S::pair);

    /* the longest first: under a causal mask the first keys and the last rows */
    int most = KEYS ? c.keys : c.rows, heads = KEYS ? c.heads / c.share : c.heads,
        blocks = (most + S::rows - 1) / S::rows;
    int head = (int)(blockIdx.x / blocks % heads), batch = (int)(blockIdx.x / blocks / heads),
        block = (int)(blockIdx.x % blocks);
    attention_span span = span_of(c, batch);
    int first = (KEYS ? block : blocks - 1 - block) * S::rows,
        held = min(S::rows, (KEYS ? span.keys : span.rows) - first);
    if (held <= 0)
        return;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, mine = warp / S::split * 16,
        part = warp % S::split * (COLUMNS / 16);

    const attention_operand &own1 = KEYS ? c.k : c.q, &own2 = KEYS ? c.v : c.g,
                            &other1 = KEYS ? c.q : c.k, &other2 = KEYS ? c.g : c.v;
    attention_range seen =
        KEYS ? rows_of_keys(span, first, first + held) : keys_of_rows(span, first, first + held);
    int begin = seen.first / WIDE,
        tiles = seen.end > seen.first ? (seen.end - 1) / WIDE + 1 - begin : 0;
    int first_head = KEYS ? head * c.share : head,
        total = KEYS ? tiles * c.share : tiles; /* tiles that pass, head by head */
    int limit = KEYS ? span.rows : span.keys;
    int64_t own_start = (KEYS ? span.first_key : span.first_row) + first,
            other_start = KEYS ? span.first_row : span.first_key;

    auto fetch = [&](int i) {
        int stage = i % S::stages, from = (begin + i % tiles) * WIDE,
            h = KEYS ? first_head + i / tiles : head / c.share;
        mma_tile<DEPTH> to1{passing + stage * S::pair}, to2{to1.base + WIDE * DEPTH * 2};
        to1.template load<WIDE, 256>(other1.of<const T>(batch, h, other_start + from), other1.row,
                                     limit - from, c.depth);
        to2.template load<WIDE, 256>(other2.of<const T>(batch, h, other_start + from), other2.row,
                                     limit - from, c.value_depth);
        if (KEYS && threadIdx.x < WIDE) {
            int row = from + (int)threadIdx.x;
            /* rows past the end get probabilities of 0 */
            pairs[stage * WIDE + threadIdx.x] =
                row < span.rows ? ((const float2 *)c.pairs)[pair_of(c, span, batch, h, row)]
                                : float2{INFINITY, 0};
        }
    };

    float sum1[1][COLUMNS / 8][4] = {}, sum2[1][KEYS ? COLUMNS / 8 : 1][4] = {};
    float2 own_pairs[2] = {};
    if (total) {
        held1.template load<S::rows, 256>(own1.of<const T>(batch, head, own_start), own1.row, held,
                                          c.depth);
        held2.template load<S::rows, 256>(own2.of<const T>(batch, head, own_start), own2.row, held,
                                          c.value_depth);
        if (S::stages > 1)
            fetch(0);
        copies_commit();
        if (!KEYS)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int row = mine + lane / 4 + 8 * half;
                own_pairs[half] =
                    row < held
                        ? ((const float2 *)c.pairs)[pair_of(c, span, batch, head, first + row)]
                        : float2{INFINITY, 0};
            }
    }
    for (int i = 0; i < total; i++) {
        int stage = i % S::stages, from = (begin + i % tiles) * WIDE;
        if (S::stages == 1) {
            __syncthreads();
            fetch(i);
            copies_commit();
        }
        copies_wait<0>();
        __syncthreads();
        if (S::stages > 1 && i + 1 < total) {
            fetch(i + 1);
            copies_commit();
        }
        mma_tile<DEPTH> passing1{passing + stage * S::pair},
            passing2{passing1.base + WIDE * DEPTH * 2};

        float s[1][WIDE / 8][4], dp[1][WIDE / 8][4];
        products<T, DEPTH, 1, WIDE>(s, held1.from(mine), passing1);
        products<T, DEPTH, 1, WIDE>(dp, held2.from(mine), passing2);
        bool whole = KEYS ? sees_all(span, from, from + WIDE, first, first + held)
                          : sees_all(span, first, first + held, from, from + WIDE);
#pragma unroll
        for (int n = 0; n < WIDE / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int own = first + mine + lane / 4 + e / 2 * 8, place = n * 8 + lane % 4 * 2 + e % 2,
                    other = from + place;
                float2 pair = KEYS ? pairs[stage * WIDE + place] : own_pairs[e / 2];
                int row = KEYS ? other : own, key = KEYS ? own : other;
                /* rows and keys past the end, which a whole tile may have,
                 * have no place in a mask */
                bool visible = (whole && !(RULES && c.rules)) || sees(span, row, key);
                float x = s[0][n][e], slope = 1, kept = 1;
                if (RULES && c.rules && visible) {
                    int h = KEYS ? first_head + i / tiles : head;
                    x = attention_score(c, x, batch, h, row, key, slope, own_mask<T>(c));
                    if (c.dropout)
                        kept = attention_kept<float>(c, batch, h, row, key);
                }
                float p = visible ? exp2_fast(x * c.to_log2 - pair.x) : 0;
                s[0][n][e] = RULES ? p * kept : p;
                dp[0][n][e] =
                    RULES ? p * (dp[0][n][e] * kept - pair.y) * slope : p * (dp[0][n][e] - pair.y);
            }
        if constexpr (KEYS)
            accumulate<T, DEPTH, COLUMNS, 1, WIDE>(sum2, s, passing2, part);
        accumulate<T, DEPTH, COLUMNS, 1, WIDE>(sum1, dp, passing1, part);
    }

    copies_wait<0>();
    __syncthreads();
    put<T, DEPTH, COLUMNS>(held1, mine, part, sum1[0], (float)c.scale, (float)c.scale);
    if constexpr (KEYS)
        put<T, DEPTH, COLUMNS>(held2, mine, part, sum2[0], 1, 1);
    __syncthreads();
    const attention_operand &to = KEYS ? c.dk : c.dq;
    if (to.data)
        write_rows<S::rows, 256>(held1, 0, to.of<T>(batch, head, own_start), to.row, held, c.depth,
                                 (int)threadIdx.x);
    if (KEYS && c.dv.data)
        write_rows<S::rows, 256>(held2, 0, c.dv.of<T>(batch, head, own_start), c.dv.row, held,
                                 c.value_depth, (int)threadIdx.x);
}

} // namespace ts

#endif
