/**
 * @file attention_wgmma_backward.cuh
 * Gradients of attention on Hopper, in the two passes of attention_mma_backward.cuh: a block holds a pair of
 * tiles, (q, g) or (k, v), while the other pair passes by. What a group of four warps computes is the left
 * operand, in registers, of the products that it adds up; only operands go through shared memory.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_ATTENTION_WGMMA_BACKWARD_CUH
#define TS_CUDA_ATTENTION_WGMMA_BACKWARD_CUH

#include "backends/cuda/attention_schedule.cuh"
#include "backends/cuda/wgmma.cuh"

namespace ts {

template <int DEPTH_, bool KEYS> struct attention_wgmma_backward_shape {
    static constexpr int depth = DEPTH_, groups = 2, rows = 64 * groups, wide = KEYS ? 64 : 128;
    static constexpr bool flush = depth == 128;
    static constexpr int stages = wide * depth > 64 * 128 ? 2 : 3, threads = 128 * (groups + 1);
    static constexpr int held_bytes = rows * depth * 2, tile_bytes = wide * depth * 2, pair_bytes = KEYS ? wide * 8 : 0;
    static constexpr int stage_bytes = 2 * tile_bytes;
    static constexpr int bytes =
        1024 + 2 * held_bytes + stages * (stage_bytes + pair_bytes) + 8 + tile_ring<stages>::bytes;
};

template <class T, int DEPTH, bool KEYS>
static __global__ void __launch_bounds__(384, 1)
    attention_wgmma_backward_kernel(const __grid_constant__ attention_call c, const __grid_constant__ CUtensorMap own1,
                                    const __grid_constant__ CUtensorMap own2,
                                    const __grid_constant__ CUtensorMap other1,
                                    const __grid_constant__ CUtensorMap other2, int together)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    using S = attention_wgmma_backward_shape<DEPTH, KEYS>;
    constexpr int WIDE = S::wide;
    extern __shared__ char shared[];
    uint32_t held1 = (shared_address(shared) + 1023) & ~1023u, held2 = held1 + S::held_bytes,
             passing = held2 + S::held_bytes;
    uint32_t pairs = passing + S::stages * S::stage_bytes, held_full = pairs + S::stages * S::pair_bytes;
    tile_ring<S::stages> ring{held_full + 8};

    int length = KEYS ? c.keys : c.rows, heads = KEYS ? c.heads / c.share : c.heads,
        blocks = (length + S::rows - 1) / S::rows;
    attention_place at = attention_longest_first(blockIdx.x, blocks, heads, heads * c.batches, together);
    attention_span span = span_of(c, at.batch);
    int first = (KEYS ? at.block : blocks - 1 - at.block) * S::rows, held = min(S::rows, length - first);
    attention_range seen = KEYS ? rows_of_keys(span, first, first + held) : keys_of_rows(span, first, first + held);
    int start = seen.first / WIDE, tiles = seen.end > seen.first ? (seen.end - 1) / WIDE + 1 - start : 0;
    int first_head = KEYS ? at.head * c.share : at.head,
        total = KEYS ? tiles * c.share : tiles; /* tiles that pass, head by head */

    if (threadIdx.x == 0) {
        barrier_init(held_full, 1);
        ring.init(S::groups);
        barriers_ready();
    }
    __syncthreads();

    int group = threadIdx.x / 128 - 1;
    if (group < 0) {
        registers_shrink<24>();
        if (threadIdx.x == 0 && total) {
            barrier_expect(held_full, 2 * S::held_bytes);
            tma_load_tile<S::rows, DEPTH>(held1, &own1, first, at.head, at.batch, held_full);
            tma_load_tile<S::rows, DEPTH>(held2, &own2, first, at.head, at.batch, held_full);
            int tile = 0, head = KEYS ? first_head : at.head / c.share;
            for (int i = 0; i < total; i++) {
                int stage = i % S::stages, from = (start + tile) * WIDE;
                uint32_t to = passing + stage * S::stage_bytes;
                ring.wait_empty(i);
                barrier_expect(ring.full(i), S::stage_bytes + S::pair_bytes);
                tma_load_tile<WIDE, DEPTH>(to, &other1, from, head, at.batch, ring.full(i));
                tma_load_tile<WIDE, DEPTH>(to + S::tile_bytes, &other2, from, head, at.batch, ring.full(i));
                if (KEYS)
                    bulk_load(pairs + stage * S::pair_bytes,
                              (const float2 *)c.pairs + pair_of(c, span, at.batch, head, from), S::pair_bytes,
                              ring.full(i));
                if (++tile == tiles)
                    tile = 0, head++;
            }
        }
    } else {
        registers_grow<240>();
        int thread = threadIdx.x % 128, lane = thread % 32, begin = first + group * 64,
            own = begin + thread / 32 * 16 + lane / 4; /* and own + 8 */
        uint32_t mine1 = held1 + group * 64 * 128, mine2 = held2 + group * 64 * 128;
        float sum1[DEPTH / 8][4] = {}, sum2[KEYS ? DEPTH / 8 : 1][4] = {}, s[WIDE / 8][4] = {}, dp[WIDE / 8][4] = {};
        uint32_t p[KEYS ? WIDE / 16 : 1][4], ds[WIDE / 16][4];
        float2 own_pairs[2] = {};
        if (!KEYS && total)
#pragma unroll
            for (int half = 0; half < 2; half++)
                own_pairs[half] = own + 8 * half < c.rows
                                      ? ((const float2 *)c.pairs)[pair_of(c, span, at.batch, at.head, own + 8 * half)]
                                      : float2{INFINITY, 0};
        if (total)
            barrier_wait(held_full, 0);
        int tile = 0;
        for (int i = 0; i < total; i++) {
            int stage = i % S::stages, from = (start + tile) * WIDE;
            uint32_t passing1 = passing + stage * S::stage_bytes, passing2 = passing1 + S::tile_bytes;
            if (++tile == tiles)
                tile = 0;
            ring.wait_full(i);
            settle(s);
            settle(dp);
            wgmma_begin();
            wgmma_products<T, DEPTH, S::rows, WIDE>(s, mine1, passing1);
            wgmma_commit();
            wgmma_products<T, DEPTH, S::rows, WIDE>(dp, mine2, passing2);
            wgmma_commit();
            wgmma_wait<1>();
            settle(s);
            if (i > 0 && thread == 0) /* what was added up of the tiles before is done, too */
                barrier_arrive(ring.empty(i - 1));
            bool whole = KEYS ? sees_all(span, from, min(from + WIDE, c.rows), begin, begin + 64)
                              : sees_all(span, begin, min(begin + 64, c.rows), from, from + WIDE);
            /* (lse, delta) of this lane's two columns of eight */
            auto pairs_of = [&](int n) {
                float4 two;
                asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                             : "=f"(two.x), "=f"(two.y), "=f"(two.z), "=f"(two.w)
                             : "r"(pairs + stage * S::pair_bytes + n * 64 + lane % 4 * 16)
                             : "memory");
                return two;
            };
#pragma unroll
            for (int n = 0; n < WIDE / 8; n++) {
                float4 two = KEYS ? pairs_of(n) : float4{};
#pragma unroll
                for (int e = 0; e < 4; e++)
                    s[n][e] = exp2_fast(s[n][e] * c.to_log2 - (KEYS ? e % 2 ? two.z : two.x : own_pairs[e / 2].x));
            }
            if (!whole)
#pragma unroll
                for (int n = 0; n < WIDE / 8; n++)
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        int mine = own + e / 2 * 8, other = from + n * 8 + lane % 4 * 2 + e % 2,
                            row = KEYS ? other : mine, key = KEYS ? mine : other;
                        if (key >= span.keys || key - row < span.low || key - row > span.high)
                            s[n][e] = 0;
                    }
            wgmma_wait<0>();
            settle(dp);
#pragma unroll
            for (int n = 0; n < WIDE / 8; n++) {
                float4 two = KEYS ? pairs_of(n) : float4{};
#pragma unroll
                for (int e = 0; e < 4; e++)
                    dp[n][e] = s[n][e] * (dp[n][e] - (KEYS ? e % 2 ? two.w : two.y : own_pairs[e / 2].y));
            }
            if constexpr (KEYS)
                pack_left<T>(p, s);
            pack_left<T>(ds, dp);
            settle(sum1);
            settle(sum2);
            wgmma_begin();
            if constexpr (KEYS)
                wgmma_accumulate<T, WIDE>(sum2, p, passing2);
            wgmma_accumulate<T, WIDE>(sum1, ds, passing1);
            wgmma_commit();
            if constexpr (S::flush) {
                wgmma_wait<0>();
                settle(sum1);
                settle(sum2);
            }
        }
        wgmma_wait<0>();
        settle(sum1);
        settle(sum2);
        const attention_operand &to = KEYS ? c.dk : c.dq;
        if (to.data)
            write_group<T, S::rows>(held1, group * 64, sum1, (float)c.scale, (float)c.scale,
                                    to.of<T>(at.batch, at.head, begin), to.row, length - begin, c.depth);
        if constexpr (KEYS)
            if (c.dv.data)
                write_group<T, S::rows>(held2, group * 64, sum2, 1, 1, c.dv.of<T>(at.batch, at.head, begin), c.dv.row,
                                        length - begin, c.value_depth);
    }
#endif
}

} // namespace ts

#endif
