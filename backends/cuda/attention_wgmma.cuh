/**
 * @file attention_wgmma.cuh
 * Attention forward on Hopper (Shah et al., FlashAttention-3, 2024).
 *
 * A block is one group of four warps that brings tiles, and two or three groups that each own 64 rows of
 * queries. A group starts the scores of the next tile of keys, then the products of the last tile's
 * probabilities with their values, and works out the next probabilities while the latter run. Groups take
 * turns at the tensor cores, so that one multiplies while another exponentiates.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_ATTENTION_WGMMA_CUH
#define TS_CUDA_ATTENTION_WGMMA_CUH

#include "backends/cuda/attention.cuh"
#include "backends/cuda/wgmma.cuh"

namespace ts {

template <int DEPTH_> struct attention_wgmma_shape {
    static constexpr int depth = DEPTH_, groups = depth == 64 ? 3 : 2, rows = 64 * groups, wide = 128, stages = 2;
    static constexpr int threads = 128 * (groups + 1), many = groups == 2 ? 240 : 160, few = groups == 2 ? 24 : 32;
    static constexpr int q_bytes = rows * depth * 2, tile_bytes = wide * depth * 2;
    static constexpr int bytes = 1024 + 2 * q_bytes + 2 * stages * tile_bytes + 16 + 2 * tile_ring<stages>::bytes;
};

/** Which rows of which head a block works on. */
struct attention_place {
    int block, head, batch;
};
/**
 * Blocks with the most keys first (the last rows of a head under a causal mask), among as many heads as have
 * their keys and values in the cache together.
 */
__device__ __forceinline__ attention_place attention_longest_first(int64_t index, int blocks, int heads, int64_t all,
                                                                   int together)
{
    int64_t section = index / ((int64_t)together * blocks), first = section * together, rest = index - first * blocks;
    int here = (int)(all - first < together ? all - first : together);
    int64_t which = first + rest % here;
    return {(int)(rest / here), (int)(which % heads), (int)(which / heads)};
}

/** Makes scores probabilities, relative to the maximum so far; returns by what sums so far shrink. */
template <int N>
__device__ __forceinline__ void attention_softmax(float (&s)[N][4], float (&top)[2], float (&sum)[2],
                                                  float (&shrink)[2], float to_log2)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float before = top[half], now = before;
#pragma unroll
        for (int n = 0; n < N; n++)
            now = fmaxf(now, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
        now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 1));
        now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 2));
        top[half] = now;
        float base = now == -INFINITY ? 0 : now * to_log2; /* rows that have seen nothing yet */
        shrink[half] = exp2_fast(before * to_log2 - base);
        float total = 0;
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float p = exp2_fast(s[n][2 * half + e] * to_log2 - base);
                s[n][2 * half + e] = p;
                total += p;
            }
        sum[half] = sum[half] * shrink[half] + total;
    }
}

/** The rows that a block works on next, and the tiles of WIDE keys that they see, from the last on down. */
template <int ROWS, int WIDE> struct attention_work {
    attention_span span;
    int head, batch, first, last, tiles;

    __device__ __forceinline__ attention_work(const attention_call &c, int64_t index, int blocks, int together)
    {
        attention_place at = attention_longest_first(index, blocks, c.heads, (int64_t)c.heads * c.batches, together);
        head = at.head;
        batch = at.batch;
        span = span_of(c, batch);
        first = (blocks - 1 - at.block) * ROWS;
        attention_range seen = keys_of_rows(span, first, min(first + ROWS, span.rows));
        last = seen.end > seen.first ? (seen.end - 1) / WIDE : -1;
        tiles = last < 0 ? 0 : last + 1 - seen.first / WIDE;
    }
};

/* Blocks stay: while a group writes one result, the next tiles are on their way. */
template <class T, int DEPTH>
static __global__ void __launch_bounds__(attention_wgmma_shape<DEPTH>::threads, 1)
    attention_wgmma_kernel(const __grid_constant__ attention_call c, const __grid_constant__ CUtensorMap q_map,
                           const __grid_constant__ CUtensorMap k_map, const __grid_constant__ CUtensorMap v_map,
                           int together)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    using S = attention_wgmma_shape<DEPTH>;
    constexpr int WIDE = S::wide;
    using work = attention_work<S::rows, WIDE>;
    extern __shared__ char shared[];
    uint32_t q = (shared_address(shared) + 1023) & ~1023u, out = q + S::q_bytes, k = out + S::q_bytes,
             v = k + S::stages * S::tile_bytes;
    uint32_t q_full = v + S::stages * S::tile_bytes, q_empty = q_full + 8;
    tile_ring<S::stages> keys{q_empty + 8}, values{keys.barriers + keys.bytes};
    int blocks = (c.rows + S::rows - 1) / S::rows;
    int64_t all = (int64_t)c.heads * c.batches * blocks;

    if (threadIdx.x == 0) {
        barrier_init(q_full, 1);
        barrier_init(q_empty, S::groups);
        keys.init(S::groups);
        values.init(S::groups);
        barriers_ready();
    }
    __syncthreads();

    int group = threadIdx.x / 128 - 1, passed = 0, round = 0; /* tiles of keys, and of rows, so far */
    if (group < 0) {
        registers_shrink<S::few>();
        if (threadIdx.x == 0)
            for (int64_t index = blockIdx.x; index < all; index += gridDim.x) {
                work w(c, index, blocks, together);
                if (!w.tiles)
                    continue;
                auto fetch = [&](const tile_ring<S::stages> &ring, uint32_t to, const CUtensorMap *map, int i) {
                    int at = passed + i;
                    ring.wait_empty(at);
                    barrier_expect(ring.full(at), S::tile_bytes);
                    tma_load_tile<WIDE, DEPTH>(to + at % S::stages * S::tile_bytes, map, (w.last - i) * WIDE,
                                               w.head / c.share, w.batch, ring.full(at));
                };
                barrier_wait(q_empty, ~round & 1);
                barrier_expect(q_full, S::q_bytes);
                tma_load_tile<S::rows, DEPTH>(q, &q_map, w.first, w.head, w.batch, q_full);
                fetch(keys, k, &k_map, 0);
                for (int i = 0; i < w.tiles; i++) {
                    if (i + 1 < w.tiles)
                        fetch(keys, k, &k_map, i + 1);
                    fetch(values, v, &v_map, i);
                }
                passed += w.tiles;
                round++;
            }
    } else {
        registers_grow<S::many>();
        int thread = threadIdx.x % 128, lane = thread % 32;
        uint32_t own_q = q + group * 64 * 128;
        auto release = [&](uint32_t barrier) {
            if (thread == 0)
                barrier_arrive(barrier);
        };
        constexpr int turn = 2 * 128;
        if (group == S::groups - 1)
            turn_give(1, turn);
        for (int64_t index = blockIdx.x; index < all; index += gridDim.x) {
            work w(c, index, blocks, together);
            int begin = w.first + group * 64, row = begin + thread / 32 * 16 + lane / 4; /* and row + 8 */
            float o[DEPTH / 8][4] = {}, s[WIDE / 8][4] = {}, top[2] = {-INFINITY, -INFINITY}, sum[2] = {}, shrink[2];
            uint32_t p[WIDE / 16][4];
            auto mask = [&](int i) {
                int from = (w.last - i) * WIDE;
                if (sees_all(w.span, begin, min(begin + 64, w.span.rows), from, from + WIDE))
                    return;
#pragma unroll
                for (int n = 0; n < WIDE / 8; n++)
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        int key = from + n * 8 + lane % 4 * 2 + e % 2, apart = key - row - e / 2 * 8;
                        if (key >= w.span.keys || apart < w.span.low || apart > w.span.high)
                            s[n][e] = -INFINITY;
                    }
            };
            auto stage = [&](int i) { return (passed + i) % S::stages * S::tile_bytes; };
            if (w.tiles) {
                barrier_wait(q_full, round & 1);
                keys.wait_full(passed);
                settle(s);
                wgmma_begin();
                wgmma_products<T, DEPTH, S::rows, WIDE>(s, own_q, k + stage(0));
                wgmma_commit();
                wgmma_wait<0>();
                settle(s);
                release(keys.empty(passed));
                mask(0);
                attention_softmax(s, top, sum, shrink, c.to_log2);
                pack_left<T>(p, s);
            }
            for (int i = 1; i < w.tiles; i++) {
                keys.wait_full(passed + i);
                turn_wait(1 + group, turn);
                settle(s);
                settle(o);
                wgmma_begin();
                wgmma_products<T, DEPTH, S::rows, WIDE>(s, own_q, k + stage(i));
                wgmma_commit();
                values.wait_full(passed + i - 1);
                wgmma_begin();
                wgmma_accumulate<T, WIDE>(o, p, v + stage(i - 1));
                wgmma_commit();
                turn_give(1 + (group + 1) % S::groups, turn);
                wgmma_wait<1>();
                settle(s);
                release(keys.empty(passed + i));
                mask(i);
                attention_softmax(s, top, sum, shrink, c.to_log2);
                wgmma_wait<0>();
                settle(o);
                release(values.empty(passed + i - 1));
                pack_left<T>(p, s);
#pragma unroll
                for (int n = 0; n < DEPTH / 8; n++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        o[n][e] *= shrink[e / 2];
            }
            if (w.tiles) {
                release(q_empty);
                values.wait_full(passed + w.tiles - 1);
                settle(o);
                wgmma_begin();
                wgmma_accumulate<T, WIDE>(o, p, v + stage(w.tiles - 1));
                wgmma_commit();
                wgmma_wait<0>();
                settle(o);
                release(values.empty(passed + w.tiles - 1));
                passed += w.tiles;
                round++;
            }
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float total = sum[half];
                total += __shfl_xor_sync(0xffffffffu, total, 1);
                total += __shfl_xor_sync(0xffffffffu, total, 2);
                shrink[half] = total == 0 ? 0 : 1 / total;
                if (c.lse && lane % 4 == 0 && row + 8 * half < c.rows)
                    ((float *)c.lse)[statistic_of(c, w.span, w.head, row + 8 * half)] =
                        total == 0 ? -INFINITY : top[half] * (c.to_log2 * ln_2) + logf(total);
            }
            write_group<T, S::rows>(out, group * 64, o, shrink[0], shrink[1], c.out.of<T>(w.batch, w.head, begin),
                                    c.out.row, c.rows - begin, c.value_depth);
        }
    }
#endif
}

/** How many heads' keys and values, or whatever `bytes` a head are, fit into the second-level cache. */
inline int attention_together(int64_t bytes, int64_t heads)
{
    int64_t fit = bytes > 0 ? (32 << 20) / bytes : heads;
    return (int)(fit < 1 ? 1 : fit > heads ? heads : fit);
}

} // namespace ts

#endif
