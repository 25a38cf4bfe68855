/**
 * @file wgmma_queries.cuh
 * Gradients of queries on Hopper in a separate pass, which adds in a fixed order. A block holds a
 * tile of (q, g), where g is the gradient of the output, and streams tiles of (k, v). Each of two
 * groups of four warps owns 64 rows: the group computes the gradients of the scores in registers
 * and uses them as the left operand of the product for dq. A third group contains the producer, one
 * thread that starts the copies by TMA, the copy engine.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_ATTENTION_WGMMA_QUERIES_CUH
#define TS_CUDA_ATTENTION_WGMMA_QUERIES_CUH

#include "backends/cuda/attention/lists.cuh"
#include "backends/cuda/attention/rules.cuh"
#include "backends/cuda/attention/schedule.cuh"
#include "backends/cuda/runtime/early.cuh"
#include "backends/cuda/instructions/wgmma.cuh"

namespace ts {

/** Sizes of a block. rows: rows of the held tile; wide: keys of a streamed tile; stages: pairs of
 * streamed tiles in shared memory. RULES: an attention_hopper_rules. */
template <int DEPTH_, int RULES> struct attention_wgmma_queries_shape {
    static constexpr int depth = DEPTH_, groups = 2, rows = 64 * groups,
                         /* a mask's elements and slopes need registers */
                         wide = RULES == ADDED || RULES == ANY ? 64 : 128;
    static constexpr bool flush = depth == 128; /* wait for the products of dq after each tile */
    static constexpr int stages = wide * depth > 64 * 128 ? 2 : 3, threads = 128 * (groups + 1);
    static constexpr int held_bytes = rows * depth * 2, tile_bytes = wide * depth * 2;
    static constexpr int stage_bytes = 2 * tile_bytes;
    static constexpr int bytes =
        1024 + 2 * held_bytes + stages * stage_bytes + 8 + tile_ring<stages>::bytes;
};

/** Writes c.dq, unless NULL. One block per tile of rows, head and batch, or per unit in c.units and
 * head. together: see attention_longest_first(). */
template <class T, int DEPTH, int RULES>
static __global__ void __launch_bounds__(384, 1)
    attention_wgmma_queries_kernel(const __grid_constant__ attention_call c,
                                   const __grid_constant__ CUtensorMap q_map,
                                   const __grid_constant__ CUtensorMap g_map,
                                   const __grid_constant__ CUtensorMap k_map,
                                   const __grid_constant__ CUtensorMap v_map, int together)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    using S = attention_wgmma_queries_shape<DEPTH, RULES>;
    constexpr int WIDE = S::wide;
    extern __shared__ char shared[];
    uint32_t q = (shared_address(shared) + 1023) & ~1023u, g = q + S::held_bytes,
             passing = g + S::held_bytes, held_full = passing + S::stages * S::stage_bytes;
    tile_ring<S::stages> ring{held_full + 8};
    constexpr bool UNEVEN = RULES == LENGTHS || RULES == ANY, DRAWS = RULES == BITS || RULES == ANY,
                   BOUND = RULES == ADDED || RULES == ANY;

    int blocks = (c.rows + S::rows - 1) / S::rows, first;
    attention_place at;
    if constexpr (UNEVEN) {
        wait_for_kernel_in_front();
        if (blockIdx.x >= *c.unit_count * c.heads)
            return;
        int2 unit = c.units[blockIdx.x / c.heads];
        at = {unit.y, (int)(blockIdx.x % c.heads), unit.x};
        first = unit.y * S::rows;
    } else {
        at = attention_longest_first(blockIdx.x, blocks, c.heads, c.heads * c.batches, together);
        first = (blocks - 1 - at.block) * S::rows;
    }
    attention_span span = UNEVEN ? span_of(c, at.batch) : whole_span_of(c, at.batch);
    int rows = UNEVEN ? span.rows : c.rows;
    attention_range seen = keys_of_rows(span, first, min(first + S::rows, rows));
    int start = seen.first / WIDE,
        tiles = seen.end > seen.first ? (seen.end - 1) / WIDE + 1 - start : 0;

    if (threadIdx.x == 0) {
        barrier_init(held_full, 1);
        ring.init(S::groups);
        barriers_ready();
    }
    begin_next_kernel();
    wait_for_kernel_in_front();
    __syncthreads();

    int group = threadIdx.x / 128 - 1;
    if (group < 0) {
        registers_shrink<24>();
        if (threadIdx.x == 0 && tiles) {
            const CUtensorMap *q_from = &q_map, *g_from = &g_map, *k_from = &k_map,
                              *v_from = &v_map;
            int row = first, key = start * WIDE, batch = at.batch;
            if constexpr (UNEVEN) {
                q_from = attention_map(c.maps + batch * 4);
                g_from = attention_map(c.maps + batch * 4 + 1);
                k_from = attention_map(c.maps + batch * 4 + 2);
                v_from = attention_map(c.maps + batch * 4 + 3);
                row += (int)span.first_row;
                key += (int)span.first_key;
                batch = attention_batch(c, batch);
            }
            barrier_expect(held_full, 2 * S::held_bytes);
            tma_load_tile<S::rows, DEPTH>(q, q_from, row, at.head, batch, held_full);
            tma_load_tile<S::rows, DEPTH>(g, g_from, row, at.head, batch, held_full);
            for (int i = 0; i < tiles; i++) {
                uint32_t to = passing + i % S::stages * S::stage_bytes;
                ring.wait_empty(i);
                barrier_expect(ring.full(i), S::stage_bytes);
                tma_load_tile<WIDE, DEPTH>(to, k_from, key + i * WIDE, at.head / c.share, batch,
                                           ring.full(i));
                tma_load_tile<WIDE, DEPTH>(to + S::tile_bytes, v_from, key + i * WIDE,
                                           at.head / c.share, batch, ring.full(i));
            }
        }
    } else {
        registers_grow<240>();
        int thread = threadIdx.x % 128, lane = thread % 32, begin = first + group * 64,
            own = begin + thread / 32 * 16 + lane / 4; /* this lane's rows: own, own + 8 */
        uint32_t own_q = q + group * 64 * 128, own_g = g + group * 64 * 128;
        float dq[DEPTH / 8][4] = {}, s[WIDE / 8][4], dp[WIDE / 8][4];
        uint32_t ds[WIDE / 16][4];
        float2 pairs[2] = {}; /* (lse, delta) */
        const float to_log2 = RULES == ANY ? log2_e : c.raw_to_log2;
        const attention_head rules{c, span, at.batch, at.head};
        if (tiles) {
#pragma unroll
            for (int half = 0; half < 2; half++)
                pairs[half] =
                    own + 8 * half < rows
                        ? ((const float2 *)c.pairs)[pair_of<UNEVEN>(c, span, at.batch,
                                                                    at.head, own + 8 * half)]
                        : float2{INFINITY, 0};
            barrier_wait(held_full, 0);
        }
        for (int i = 0; i < tiles; i++) {
            int from = (start + i) * WIDE;
            uint32_t k = passing + i % S::stages * S::stage_bytes, v = k + S::tile_bytes;
            ring.wait_full(i);
            auto begin_products = [&](float(&to)[WIDE / 8][4], uint32_t left, uint32_t right) {
                wgmma_begin();
                wgmma_products<T, DEPTH, S::rows, WIDE>(to, left, right);
                wgmma_commit();
            };
            attention_bits<WIDE / 8> kept = {};
            discard_accumulators(s);
            [[maybe_unused]] uint32_t slopes[RULES == ANY ? WIDE / 8 : 1][2];
            if constexpr (DRAWS || RULES == ADDED) { /* one product at a time: fewer registers */
                begin_products(s, own_q, k);
                int mine = own - lane / 4;
                if (DRAWS && c.dropout)
                    kept = rules.template kept_of_rows<WIDE / 8>(mine, from);
                attention_bits<WIDE / 8> shown = {};
                if (DRAWS && c.mask_type == MASK_BOOL)
                    shown = rules.template shown_of_rows<WIDE / 8>(mine, from);
                wgmma_wait<0>();
                pin_accumulators(dq);
                pin_accumulators(s);
                auto place = [&](int n, int e) {
                    return make_int2(own + e / 2 * 8, from + n * 8 + lane % 4 * 2 + e % 2);
                };
                if constexpr (RULES == ADDED)
                    rules.template add_mask<T>(s, place);
                if constexpr (RULES == ANY)
                    rules.template adjust_scores<T>(
                        s, place, [&](int n, int half, uint32_t word) { slopes[n][half] = word; });
                if (DRAWS && c.mask_type == MASK_BOOL)
                    hide_scores(s, shown);
                discard_accumulators(dp);
                begin_products(dp, own_g, v);
            } else {
                discard_accumulators(dp);
                begin_products(s, own_q, k);
                begin_products(dp, own_g, v);
                wgmma_wait<1>();
                pin_accumulators(s);
            }
            if (i > 0 && thread == 0) /* the products of earlier tiles are done, too */
                barrier_arrive(ring.empty(i - 1));
#pragma unroll
            for (int n = 0; n < WIDE / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    float power = s[n][e] * to_log2 - pairs[e / 2].x;
                    s[n][e] = exp2_fast(BOUND && power > 0 ? 0 : power);
                }
            if (!sees_all(span, begin, min(begin + 64, rows), from, from + WIDE))
#pragma unroll
                for (int n = 0; n < WIDE / 8; n++)
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        int row = own + e / 2 * 8, key = from + n * 8 + lane % 4 * 2 + e % 2;
                        if (key >= span.keys || key - row < span.low || key - row > span.high)
                            s[n][e] = 0;
                    }
            if (DRAWS && c.dropout)
                mark_dropped(s, kept);
            wgmma_wait<0>();
            pin_accumulators(dp);
#pragma unroll
            for (int n = 0; n < WIDE / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    dp[n][e] = DRAWS
                                   ? marked_gradient(s[n][e], dp[n][e], pairs[e / 2].y,
                                                     c.dropout_scale_half)
                                   : s[n][e] * (dp[n][e] - pairs[e / 2].y);
            if (RULES == ANY && c.softcap > 0)
#pragma unroll
                for (int n = 0; n < WIDE / 8; n++)
#pragma unroll
                    for (int half = 0; half < 2; half++)
                        times_slopes(dp[n][2 * half], dp[n][2 * half + 1],
                                     slopes[RULES == ANY ? n : 0][half]);
            pack_left<T>(ds, dp);
            pin_accumulators(dq);
            wgmma_begin();
            wgmma_accumulate<T, WIDE>(dq, ds, k);
            wgmma_commit();
            if constexpr (S::flush) {
                wgmma_wait<0>();
                pin_accumulators(dq);
            }
        }
        wgmma_wait<0>();
        pin_accumulators(dq);
        if (c.dq.data)
            write_group<T, S::rows>(q, group * 64, dq, (float)c.scale, (float)c.scale,
                                    c.dq.of<T>(at.batch, at.head, span.first_row + begin), c.dq.row,
                                    rows - begin, c.depth);
    }
#endif
}

} // namespace ts

#endif
