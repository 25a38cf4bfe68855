/**
 * @file attention_wgmma_deep.cuh
 * Gradients of attention for depths above 128 on Hopper, in one pass over keys.
 *
 * As in attention_wgmma_keys.cuh, a block holds a tile of (k, v) and streams tiles of (q, g). Sums
 * of 64 keys by 256 columns fill the registers of two groups, so the groups share the 64 keys: each
 * computes the scores of half of a tile's 64 rows, and the sums of dk, dv and dq in half of the
 * columns. They exchange probabilities and gradients of scores through shared memory, where these
 * are the left operands of all three products. The sums of dq are added to c.sums by f32 atomics.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_ATTENTION_WGMMA_DEEP_CUH
#define TS_CUDA_ATTENTION_WGMMA_DEEP_CUH

#include "backends/cuda/attention_wgmma_keys.cuh"

namespace ts {

/** Mask and dropout are runtime choices. together, counter: see attention_wgmma_keys_kernel(). */
template <class T>
static __global__ void __launch_bounds__(384, 1)
    attention_wgmma_deep_kernel(const __grid_constant__ attention_call c,
                                const __grid_constant__ CUtensorMap k_map,
                                const __grid_constant__ CUtensorMap v_map,
                                const __grid_constant__ CUtensorMap q_map,
                                const __grid_constant__ CUtensorMap g_map, int together,
                                unsigned *counter)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    constexpr int DEPTH = 256;
    using S = attention_wgmma_keys_shape<DEPTH>;
    using work = attention_keys_work<S::keys, S::rows>;
    constexpr int ROWS = S::rows, OWN = ROWS / S::groups, COLUMNS = DEPTH / S::groups,
                  SLAB = 64 * 128; /* bytes of 64 rows x 64 columns */
    extern __shared__ char shared[];
    __shared__ unsigned work_item; /* index of the block's item; >= all: the end of the work */
    const attention_keys_memory<S> memory(shared_address(shared));
    const tile_ring<S::stages> ring = memory.ring;
    unsigned blocks = (c.keys + S::keys - 1) / S::keys,
             all = c.heads / c.share * c.batches * blocks;

    if (threadIdx.x == 0)
        memory.init();
    begin_next_kernel();
    wait_for_kernel_in_front();
    __syncthreads();

    int group = threadIdx.x / 128 - 1;
    if (group < 0) {
        registers_shrink<24>();
        if (threadIdx.x == 0)
            load_keys_work<S>(c, {&k_map, &v_map, &q_map, &g_map}, memory, &work_item, blocks, all,
                              together, counter);
        return;
    }
    registers_grow<240>();
    enum { EXCHANGED = 1, DONE, WRITTEN }; /* indices of named barriers */
    int thread = threadIdx.x % 128, lane = thread % 32, warp = thread / 32;
    const uint32_t rows = group * OWN * 128,              /* offset of the group's rows in a slab */
        columns = group * (COLUMNS / 64) * SLAB,          /* offset of its columns in a tile */
        own_slabs = memory.slabs + group * 2 * SLAB;      /* where it puts dk and dv at the end */
    int passed = 0; /* tiles of rows so far */

    for (int round = 0; true; round++) {
        barrier_wait(memory.held_full, round & 1);
        unsigned index = work_item;
        if (index >= all)
            break;
        work w(c, index, blocks, together);
        int own = w.first + warp * 16 + lane / 4; /* this lane's keys are own and own + 8 */
        float dk[COLUMNS / 8][4] = {}, dv[COLUMNS / 8][4] = {}, dq[8][4], s[OWN / 8][4],
                           dp[OWN / 8][4];
        attention_bits<OWN / 8> kept = {}, shown = {};
        auto begin_scores = [&](int i) {
            uint32_t q = memory.passing + (passed + i) % S::stages * S::stage_bytes;
            ring.wait_full(passed + i);
            discard_accumulators(s);
            discard_accumulators(dp);
            wgmma_begin();
            wgmma_products<T, DEPTH, S::keys, ROWS>(s, memory.k, q + rows);
            wgmma_products<T, DEPTH, S::keys, ROWS>(dp, memory.v, q + S::tile_bytes + rows);
            wgmma_commit();
        };
        /* the 64 columns of dq from slab `half` of the group's columns on */
        auto begin_queries = [&](uint32_t left, int half) {
            discard_accumulators(dq);
            wgmma_begin();
            wgmma_crossed<T, S::keys, 0>(dq, left, memory.k + columns + half * SLAB);
            wgmma_commit();
        };
        auto add_queries = [&](float *to, int half) {
            pin_accumulators(dq);
#pragma unroll
            for (int n = 0; n < 8; n++)
                add_to_memory(to + half * 64 * 64 + n * 128 * 4, dq[n]);
        };
        /* computes the bits of dropout and boolean mask for tile i, while products run */
        auto draw_bits = [&](int i) {
            attention_head rules{c, w.span, w.batch, w.head * c.share + i / w.tiles};
            int from = (w.start + i % w.tiles) * ROWS + group * OWN;
            if (c.dropout)
                kept = rules.template kept_of_keys<OWN / 8>(from, own - lane / 4);
            if (c.mask_type == MASK_BOOL)
                shown = rules.template shown_of_keys<OWN / 8>(from, own - lane / 4);
        };
        float *to = c.sums +
                    pair_of(c, w.span, w.batch, w.head * c.share, w.start * ROWS) * DEPTH +
                    group * (COLUMNS / 64) * 64 * 64 + thread * 4;
        int tile = 0;
        if (w.total) {
            begin_scores(0);
            if (c.rules)
                draw_bits(0);
            wgmma_wait<0>();
        }
        for (int i = 0; i < w.total; i++) {
            int from = (w.start + tile) * ROWS + group * OWN;
            uint32_t stage = (uint32_t)(passed + i) % S::stages,
                     q = memory.passing + stage * S::stage_bytes, g = q + S::tile_bytes,
                     own_pairs = memory.pairs + stage * S::pair_bytes + group * OWN * 8 +
                                 lane % 4 * 16,
                     p_slab = memory.slabs + i % 2 * 2 * SLAB, ds_slab = p_slab + SLAB;
            pin_accumulators(s);
            pin_accumulators(dp);
            if (c.mask_type > MASK_BOOL) {
                attention_head rules{c, w.span, w.batch, w.head * c.share + i / w.tiles};
                rules.template add_mask<T>(s, [&](int n, int e) {
                    return make_int2(from + n * 8 + lane % 4 * 2 + e % 2, own + e / 2 * 8);
                });
            }
            bool whole = sees_all(w.span, from, min(from + OWN, c.rows), w.first, w.first + 64);
#pragma unroll
            for (int n = 0; n < OWN / 8; n++) {
                float4 two; /* (lse, delta) of this lane's two rows of eight */
                asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                             : "=f"(two.x), "=f"(two.y), "=f"(two.z), "=f"(two.w)
                             : "r"(own_pairs + n * 64)
                             : "memory");
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    int key = own + e / 2 * 8, row = from + n * 8 + lane % 4 * 2 + e % 2;
                    float power = s[n][e] * c.raw_to_log2 - (e % 2 ? two.z : two.x),
                          change = dp[n][e];
                    if (c.mask_type > MASK_BOOL && power > 0)
                        power = 0;
                    float p = exp2_fast(power), weight;
                    if (!whole && (key >= w.span.keys || key - row < w.span.low ||
                                   key - row > w.span.high))
                        p = 0;
                    if (c.mask_type == MASK_BOOL && !shown.has(n, e))
                        p = 0;
                    weight = p;
                    if (c.dropout) {
                        weight = kept.has(n, e) ? p : 0;
                        change = kept.has(n, e) ? change * c.grow_half : 0;
                    }
                    s[n][e] = weight;
                    dp[n][e] = p * (change - (e % 2 ? two.w : two.y));
                }
            }
            uint32_t p[OWN / 16][4], ds[OWN / 16][4];
            pack_left<T>(p, s);
            pack_left<T>(ds, dp);
            put_transposed(p_slab + rows, p);
            put_transposed(ds_slab + rows, ds);
            tma_sees_shared();
            turn_wait(EXCHANGED, 256);
            begin_queries(ds_slab, 0);
            pin_accumulators(dk);
            pin_accumulators(dv);
            wgmma_begin();
            wgmma_transposed<T, ROWS>(dv, p_slab, g + columns);
            wgmma_transposed<T, ROWS>(dk, ds_slab, q + columns);
            wgmma_commit();
            wgmma_wait<1>();
            add_queries(to, 0);
            begin_queries(ds_slab, 1);
            /* the scores after the last tile are unused, but cheaper than a loop with an exit in
             * its middle */
            bool more = i + 1 < w.total;
            begin_scores(more ? i + 1 : i);
            if (c.rules && more)
                draw_bits(i + 1);
            wgmma_wait<1>();
            pin_accumulators(dk);
            pin_accumulators(dv);
            if (more && thread == 0)
                barrier_arrive(ring.empty(passed + i));
            add_queries(to, 1);
            wgmma_wait<0>();
            to += ROWS * DEPTH;
            if (++tile == w.tiles)
                tile = 0, to += (c.pair_rows - w.tiles * ROWS) * DEPTH;
        }
        if (w.total && thread == 0)
            barrier_arrive(ring.empty(passed + w.total - 1));
        turn_wait(DONE, 256); /* both groups have finished reading k, v and the slabs */
        if (thread == 0)
            barrier_arrive(memory.held_empty);
        passed += w.total;
        float grow = c.grow_half;
        int first = group * COLUMNS; /* first of the group's columns */
        if (c.dk.data && first < c.depth)
            write_group<T, 64>(own_slabs, 0, dk, (float)c.scale, (float)c.scale,
                               c.dk.of<T>(w.batch, w.head, w.first) + first, c.dk.row,
                               c.keys - w.first, c.depth - first);
        if (c.dv.data && first < c.value_depth)
            write_group<T, 64>(own_slabs, 0, dv, grow, grow,
                               c.dv.of<T>(w.batch, w.head, w.first) + first, c.dv.row,
                               c.keys - w.first, c.value_depth - first);
        turn_wait(WRITTEN, 256); /* both groups use the slabs next */
    }
#endif
}

} // namespace ts

#endif
