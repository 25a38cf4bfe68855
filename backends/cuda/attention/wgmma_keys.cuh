/**
 * @file wgmma_keys.cuh
 * Gradients of keys and values on Hopper and, if wanted, of queries in the same pass (Shah et al.,
 * FlashAttention-3, 2024). wgmma_backward.cu launches the kernels.
 *
 * A block holds a tile of (k, v) and streams tiles of (q, g), where g is the gradient of the
 * output. Each of two groups of four warps owns 64 keys and computes transposed scores, which in
 * registers are the left operands of the products for dk and dv. For dq, the groups exchange the
 * gradients of scores through shared memory; each computes a half of the tile of dq over all 128
 * keys and adds it to c.sums by f32 atomics, so the order of these sums is not fixed.
 * attention_wgmma_sums_kernel() then rounds the sums. If one block has all keys of a head (OWNED),
 * it writes dq itself.
 *
 * A third group of four warps contains the producer, one thread that starts the copies by TMA, the
 * copy engine.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_ATTENTION_WGMMA_KEYS_CUH
#define TS_CUDA_ATTENTION_WGMMA_KEYS_CUH

#include "backends/cuda/attention/lists.cuh"
#include "backends/cuda/attention/pairs.cuh"
#include "backends/cuda/attention/rules.cuh"
#include "backends/cuda/attention/schedule.cuh"
#include "backends/cuda/runtime/early.cuh"
#include "backends/cuda/instructions/wgmma.cuh"

namespace ts {

/** Sizes of a block. keys: keys of the held tile; rows: rows of a streamed tile; stages: pairs of
 * streamed tiles in shared memory. RULES: an attention_hopper_rules. */
template <int DEPTH_, int RULES = NO_RULES> struct attention_wgmma_keys_shape {
    static constexpr int depth = DEPTH_, groups = 2, keys = 64 * groups,
                         rows = depth == 64 ? 128 : 64;
    static constexpr int stages = depth == 64 ? 2 : 3, threads = 128 * (groups + 1);
    static constexpr int held_bytes = keys * depth * 2, tile_bytes = rows * depth * 2,
                         pair_bytes = rows * 8;
    static constexpr int stage_bytes = 2 * tile_bytes;
    static constexpr int slab_bytes = rows * 128; /* gradients of a group's scores in one tile */
    /* slopes of the softcap in one tile, as f16 */
    static constexpr int slope_bytes = RULES == ANY ? keys * rows * 2 : 0;
    static constexpr int bytes = 1024 + 2 * held_bytes + stages * (stage_bytes + pair_bytes) +
                                 groups * 2 * slab_bytes + slope_bytes + 16 +
                                 tile_ring<stages>::bytes;
};

/** A unit of work of a block: KEYS keys of a head, starting at key `first`, and the tiles of ROWS
 * rows that see them. Each query head that shares the keys has `tiles` such tiles, starting at tile
 * `start`; `total` is the number of tiles of all these heads. ALL: all tiles, even of rows that see
 * none of the keys. */
template <int KEYS, int ROWS, bool UNEVEN, bool ALL> struct attention_keys_work {
    attention_span span;
    int head, batch, first, start, tiles, total;

    __device__ __forceinline__ attention_keys_work(const attention_call &c, unsigned index,
                                                   unsigned blocks, unsigned together)
    {
        int heads = c.heads / c.share;
        attention_place at;
        if constexpr (UNEVEN) {
            int2 unit = c.units[index / heads];
            at = {unit.y, (int)(index % heads), unit.x};
        } else {
            at = attention_longest_first(index, blocks, heads, heads * c.batches, together);
        }
        head = at.head;
        batch = at.batch;
        span = UNEVEN ? span_of(c, batch) : whole_span_of(c, batch);
        first = at.block * KEYS;
        attention_range seen = rows_of_keys(span, first, min(first + KEYS, span.keys));
        start = seen.first / ROWS;
        tiles = seen.end > seen.first ? (seen.end - 1) / ROWS + 1 - start : 0;
        if constexpr (ALL)
            start = 0, tiles = (c.rows + ROWS - 1) / ROWS;
        total = tiles * c.share;
    }
};

/** How attention_wgmma_keys_kernel() computes gradients of queries. NO_DQ: it does not. SUMMED: all
 * blocks of keys add to c.sums. OWNED: a head has only one block of keys, which computes the whole
 * gradient; it also computes the pairs (lse, delta), so that no other kernel is needed. */
enum attention_dq { NO_DQ, SUMMED, OWNED };

/** Scales a group's 64 x 64 gradients of queries, rounds them, and writes them 16 bytes at a time.
 * to(half, side): address of eight elements of row lane / 4 + 8 half of the warp's 16 rows, columns
 * lane % 4 * 8 + 32 side; NULL: not written. */
template <class T, class F>
__device__ __forceinline__ void attention_write_dq(const float (&v)[8][4], float scale, F &&to)
{
    int lane = threadIdx.x % 32;
    uint32_t x[2][2][4]; /* packed pairs: [row, row + 8][column, column + 32][n % 4] */
#pragma unroll
    for (int n = 0; n < 8; n++) {
        x[0][n / 4][n % 4] = pack2<T>(v[n][0] * scale, v[n][1] * scale);
        x[1][n / 4][n % 4] = pack2<T>(v[n][2] * scale, v[n][3] * scale);
    }
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int side = 0; side < 2; side++) {
            uint32_t(&y)[4] = x[half][side];
#pragma unroll
            for (int step = 1; step < 4; step *= 2)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (!(i & step)) {
                        bool upper = lane & step;
                        uint32_t got =
                            __shfl_xor_sync(0xffffffffu, upper ? y[i] : y[i | step], step);
                        y[i] = upper ? got : y[i];
                        y[i | step] = upper ? y[i | step] : got;
                    }
            if (T *at = to(half, side))
                *(uint4 *)at = make_uint4(y[0], y[1], y[2], y[3]);
        }
}

/** Writes c.dk and c.dv unless they are NULL. DQ, an attention_dq: whether and how the kernel
 * computes the gradients of queries. RULES: an attention_hopper_rules. together: see
 * attention_longest_first(). counter: blocks take their next units of work from it; NULL: one unit
 * per block, or with OWNED every gridDim.x-th unit. */
template <class T, int DEPTH, int DQ, int RULES>
static __global__ void __launch_bounds__(384, 1)
    attention_wgmma_keys_kernel(const __grid_constant__ attention_call c,
                                const __grid_constant__ CUtensorMap k_map,
                                const __grid_constant__ CUtensorMap v_map,
                                const __grid_constant__ CUtensorMap q_map,
                                const __grid_constant__ CUtensorMap g_map, int together,
                                unsigned *counter)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    using S = attention_wgmma_keys_shape<DEPTH, RULES>;
    constexpr int ROWS = S::rows;
    constexpr bool SUMS = DQ != NO_DQ;                        /* computes gradients of queries */
    constexpr bool UNEVEN = RULES == LENGTHS || RULES == ANY, /* units are in c.units */
        DRAWS = RULES == BITS || RULES == ANY;
    using work = attention_keys_work<S::keys, ROWS, UNEVEN, DQ == OWNED>;
    extern __shared__ char shared[];
    __shared__ unsigned work_item; /* index of the block's unit; >= all: the end of the work */
    uint32_t k = (shared_address(shared) + 1023) & ~1023u, v = k + S::held_bytes,
             passing = v + S::held_bytes;
    uint32_t slabs = passing + S::stages * S::stage_bytes,
             pairs = slabs + S::groups * 2 * S::slab_bytes,
             slopes = pairs + S::stages * S::pair_bytes, held_full = slopes + S::slope_bytes,
             held_empty = held_full + 8;
    tile_ring<S::stages> ring{held_empty + 8};
    unsigned blocks = (c.keys + S::keys - 1) / S::keys,
             all = c.heads / c.share * c.batches * blocks;

    if (threadIdx.x == 0) {
        barrier_init(held_full, 1);
        barrier_init(held_empty, S::groups);
        ring.init(S::groups);
        barriers_ready();
    }
    begin_next_kernel();
    wait_for_kernel_in_front();
    if constexpr (UNEVEN)
        all = *c.unit_count * (c.heads / c.share);
    __syncthreads();

    /* passed: tiles of rows so far; round: units of work so far */
    int group = threadIdx.x / 128 - 1, passed = 0, round = 0;
    if (group < 0) {
        registers_shrink<24>();
        /* loads a unit of work with c.maps; few variables, because a producer has 24 registers */
        [[maybe_unused]] auto load_uneven = [&](const work &w) {
            const CUtensorMap *maps = c.maps + w.batch * 4;
            int batch = attention_batch(c, w.batch), key = (int)w.span.first_key + w.first,
                row = (int)w.span.first_row + w.start * ROWS, end = row + w.tiles * ROWS,
                head = w.head * c.share;
            const float2 *pair =
                (const float2 *)c.pairs + pair_of(c, w.span, w.batch, head, w.start * ROWS);
            barrier_expect(held_full, 2 * S::held_bytes);
            tma_load_tile<S::keys, DEPTH>(k, attention_map(maps + 2), key, w.head, batch,
                                          held_full);
            tma_load_tile<S::keys, DEPTH>(v, attention_map(maps + 3), key, w.head, batch,
                                          held_full);
            attention_map(maps + 1);
            attention_map(maps);
#pragma unroll 1
            for (int left = w.total; left; left--, passed++) {
                uint32_t stage = (uint32_t)passed % S::stages,
                         to = passing + stage * S::stage_bytes;
                ring.wait_empty(passed);
                barrier_expect(ring.full(passed), S::stage_bytes + S::pair_bytes);
                tma_load_tile<ROWS, DEPTH>(to, maps, row, head, batch, ring.full(passed));
                tma_load_tile<ROWS, DEPTH>(to + S::tile_bytes, maps + 1, row, head, batch,
                                           ring.full(passed));
                bulk_load(pairs + stage * S::pair_bytes, pair, S::pair_bytes, ring.full(passed));
                row += ROWS;
                pair += ROWS;
                if (row == end) {
                    row -= w.tiles * ROWS;
                    pair += c.pair_rows - w.tiles * ROWS;
                    head++;
                }
            }
        };
        if (threadIdx.x == 0)
            for (unsigned index = blockIdx.x; true; index = DQ == OWNED ? index + gridDim.x
                                                            : counter
                                                                ? gridDim.x + atomicAdd(counter, 1)
                                                                : all) {
                barrier_wait(held_empty, ~round & 1);
                work_item = index;
                if (index >= all) {
                    barrier_arrive(held_full);
                    break;
                }
                work w(c, index, blocks, together);
                if constexpr (UNEVEN) {
                    load_uneven(w);
                    round++;
                    continue;
                }
                barrier_expect(held_full, 2 * S::held_bytes);
                tma_load_tile<S::keys, DEPTH>(k, &k_map, w.first, w.head, w.batch, held_full);
                tma_load_tile<S::keys, DEPTH>(v, &v_map, w.first, w.head, w.batch, held_full);
                int from = w.start * ROWS, head = w.head * c.share;
#pragma unroll 1
                for (int left = w.total; left; left--, passed++) {
                    uint32_t stage = (uint32_t)passed % S::stages,
                             to = passing + stage * S::stage_bytes;
                    ring.wait_empty(passed);
                    barrier_expect(ring.full(passed),
                                   S::stage_bytes + (DQ == OWNED ? 0 : S::pair_bytes));
                    tma_load_tile<ROWS, DEPTH>(to, &q_map, from, head, w.batch, ring.full(passed));
                    tma_load_tile<ROWS, DEPTH>(to + S::tile_bytes, &g_map, from, head, w.batch,
                                               ring.full(passed));
                    if constexpr (DQ != OWNED)
                        bulk_load(pairs + stage * S::pair_bytes,
                                  (const float2 *)c.pairs +
                                      pair_of<UNEVEN>(c, w.span, w.batch, head, from),
                                  S::pair_bytes, ring.full(passed));
                    from += ROWS;
                    if (from == (w.start + w.tiles) * ROWS)
                        from = w.start * ROWS, head++;
                }
                round++;
            }
    } else {
        registers_grow<240>();
        int thread = threadIdx.x % 128, lane = thread % 32, warp = thread / 32;
        uint32_t own_k = k + group * 64 * 128, own_v = v + group * 64 * 128,
                 own_slabs = slabs + group * 2 * S::slab_bytes;
        /* a group computes 64 x 64 of a tile of dq: half of 128 rows, or half of 128 columns */
        uint32_t dq_left = slabs + (ROWS == 128 ? group * 64 * 128 : 0),
                 dq_right = k + (ROWS == 128 ? 0 : group * S::keys * 128);
        /* Indices of named barriers. The barriers of scores alternate, because one group may be a
         * tile ahead of the other. */
        enum { SCORES = 1, DONE = SCORES + 2 * S::groups, WRITTEN, PAIRS = 11 };
        constexpr bool MASKS = DRAWS || RULES == ADDED, BOUND = RULES == ADDED || RULES == ANY;

        for (; true; round++) {
            barrier_wait(held_full, round & 1);
            unsigned index = work_item;
            if (index >= all)
                break;
            work w(c, index, blocks, together);
            /* this lane's keys are own and own + 8 */
            int begin = w.first + group * 64, own = begin + warp * 16 + lane / 4;
            float dk[DEPTH / 8][4] = {}, dv[DEPTH / 8][4] = {}, s[ROWS / 8][4], dp[ROWS / 8][4],
                             dq[8][4];
            uint32_t p[ROWS / 16][4], ds[ROWS / 16][4];
            auto stage = [&](int i) { return (uint32_t)((passed + i) % S::stages); };
            auto begin_scores = [&](int i) {
                ring.wait_full(passed + i);
                discard_accumulators(s);
                wgmma_begin();
                wgmma_products<T, DEPTH, S::keys, ROWS>(s, own_k,
                                                        passing + stage(i) * S::stage_bytes);
                wgmma_commit();
            };
            float *to =
                c.sums +
                pair_of<UNEVEN>(c, w.span, w.batch, w.head * c.share, w.start * ROWS) * DEPTH +
                group * 64 * 64 + thread * 4;
            attention_bits<ROWS / 8> kept = {}, shown = {};
            /* computes the bits of dropout and boolean mask for tile i, while its products run */
            auto draw_bits = [&](int i) {
                attention_head rules{c, w.span, w.batch, w.head * c.share + i / w.tiles};
                int from = (w.start + i % w.tiles) * ROWS;
                if (DRAWS && c.dropout)
                    kept = rules.template kept_of_keys<ROWS / 8>(from, own - lane / 4);
                if (DRAWS && c.mask_type == MASK_BOOL)
                    shown = rules.template shown_of_keys<ROWS / 8>(from, own - lane / 4);
            };
            /* this thread's word with the slopes of two elements */
            auto slope_at = [&](int n, int half) {
                return slopes + ((2 * n + half) * 256 + group * 128 + thread) * 4;
            };
            auto mask_scores = [&](int i) {
                attention_head rules{c, w.span, w.batch, w.head * c.share + i / w.tiles};
                int from = (w.start + i % w.tiles) * ROWS;
                auto place = [&](int n, int e) {
                    return make_int2(from + n * 8 + lane % 4 * 2 + e % 2, own + e / 2 * 8);
                };
                if (RULES == ADDED)
                    rules.template add_mask<T>(s, place);
                else if (RULES == ANY)
                    rules.template adjust_scores<T>(s, place, [&](int n, int half, uint32_t word) {
                        asm volatile("st.shared.b32 [%0], %1;" ::"r"(slope_at(n, half)), "r"(word)
                                     : "memory");
                    });
                if (DRAWS && c.mask_type == MASK_BOOL)
                    hide_scores(s, shown);
            };
            /* stores the pairs of the rows of tile i, as attention_pairs_kernel() does */
            auto make_pairs = [&](int i) {
                constexpr int LANES = DEPTH / 8, EACH = ROWS * LANES / 256;
                int head = w.head * c.share + i / w.tiles, first = (w.start + i % w.tiles) * ROWS,
                    at = (group * 128 + thread) / LANES, column = thread % LANES * 8;
                float sums[EACH], lse[EACH];
#pragma unroll
                for (int j = 0; j < EACH; j++) {
                    int row = first + at + j * (256 / LANES);
                    sums[j] = 0;
                    lse[j] = INFINITY;
                    if (row < c.rows && column < c.value_depth) {
                        using eight = vec<T, 8>;
                        const T *x_row = c.out.of<const T>(w.batch, head, row) + column,
                                *y_row = c.g.of<const T>(w.batch, head, row) + column;
                        unpacked<T, 8> x(*(const eight *)x_row), y(*(const eight *)y_row);
#pragma unroll
                        for (int e = 0; e < 8; e++)
                            sums[j] += x.at[e] * y.at[e];
                    }
                    int64_t statistic = statistic_of(c, w.span, head, row);
                    if (row < c.rows && column == 0) {
                        lse[j] = ((const float *)c.lse)[statistic];
                        lse[j] = lse[j] == -INFINITY ? 0 : lse[j] * log2_e;
                        if (c.g_lse)
                            sums[j] -= ((const float *)c.g_lse)[statistic];
                    }
                }
#pragma unroll
                for (int j = 0; j < EACH; j++) {
#pragma unroll
                    for (int step = LANES / 2; step; step >>= 1)
                        sums[j] += __shfl_xor_sync(0xffffffffu, sums[j], step);
                    if (column == 0)
                        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(
                                         pairs + stage(i) * S::pair_bytes +
                                         (at + j * (256 / LANES)) * 8),
                                     "f"(lse[j]), "f"(sums[j])
                                     : "memory");
                }
            };
            int tile = 0;
            if (w.total) {
                if constexpr (DQ == OWNED)
                    make_pairs(0);
                begin_scores(0);
                if constexpr (DRAWS)
                    draw_bits(0);
                wgmma_wait<0>();
                pin_accumulators(s);
                if constexpr (MASKS)
                    mask_scores(0);
            }
            for (int i = 0; i < w.total; i++) {
                int from = (w.start + tile) * ROWS;
                uint32_t q = passing + stage(i) * S::stage_bytes, g = q + S::tile_bytes,
                         own_pairs = pairs + stage(i) * S::pair_bytes + lane % 4 * 16,
                         buffer = i % 2 * S::slab_bytes;
                /* (lse, delta) of this lane's two columns of eight */
                auto pairs_of = [&](int n) {
                    float4 two;
                    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                                 : "=f"(two.x), "=f"(two.y), "=f"(two.z), "=f"(two.w)
                                 : "r"(own_pairs + n * 64)
                                 : "memory");
                    return two;
                };
                auto begin_weights = [&] {
                    discard_accumulators(dp);
                    wgmma_begin();
                    wgmma_products<T, DEPTH, S::keys, ROWS>(dp, own_v, g);
                    wgmma_commit();
                };
                if constexpr (!DRAWS)
                    begin_weights();
                if constexpr (DQ == OWNED)
                    turn_wait(PAIRS, 256);
#pragma unroll
                for (int n = 0; n < ROWS / 8; n++) {
                    float4 two = pairs_of(n);
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        float power = s[n][e] * (RULES == ANY ? log2_e : c.raw_to_log2) -
                                      (e % 2 ? two.z : two.x);
                        s[n][e] = exp2_fast(BOUND && power > 0 ? 0 : power);
                    }
                }
                if (!sees_all(w.span, from, min(from + ROWS, UNEVEN ? w.span.rows : c.rows), begin,
                              begin + 64))
#pragma unroll
                    for (int n = 0; n < ROWS / 8; n++)
#pragma unroll
                        for (int e = 0; e < 4; e++) {
                            int key = own + e / 2 * 8, row = from + n * 8 + lane % 4 * 2 + e % 2;
                            if (key >= w.span.keys || key - row < w.span.low ||
                                key - row > w.span.high)
                                s[n][e] = 0;
                        }
                if constexpr (DRAWS) {
                    if (c.dropout)
                        mark_dropped(s, kept);
                    pack_kept<T>(p, s);
                } else {
                    pack_left<T>(p, s);
                }
                pin_accumulators(dv);
                wgmma_begin();
                wgmma_accumulate<T, ROWS>(dv, p, g);
                wgmma_commit();
                if constexpr (DRAWS) { /* starts later, because bits need registers */
                    wgmma_wait<0>();
                    pin_accumulators(dv);
                    begin_weights();
                    wgmma_wait<0>();
                } else {
                    wgmma_wait<1>();
                }
                pin_accumulators(dp);
#pragma unroll
                for (int n = 0; n < ROWS / 8; n++) {
                    float4 two = pairs_of(n);
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        dp[n][e] = DRAWS ? marked_gradient(s[n][e], dp[n][e], e % 2 ? two.w : two.y,
                                                           c.dropout_scale_half)
                                         : s[n][e] * (dp[n][e] - (e % 2 ? two.w : two.y));
                }
                if (RULES == ANY && c.softcap > 0)
#pragma unroll
                    for (int n = 0; n < ROWS / 8; n++)
#pragma unroll
                        for (int half = 0; half < 2; half++) {
                            uint32_t word;
                            asm volatile("ld.shared.b32 %0, [%1];"
                                         : "=r"(word)
                                         : "r"(slope_at(n, half))
                                         : "memory");
                            times_slopes(dp[n][2 * half], dp[n][2 * half + 1], word);
                        }
                pack_left<T>(ds, dp);
                if constexpr (SUMS) {
                    put_transposed(own_slabs + buffer, ds);
                    tma_sees_shared();
                    turn_give(SCORES + i % 2 * 2 + group, 256);
                }
                pin_accumulators(dk);
                wgmma_begin();
                wgmma_accumulate<T, ROWS>(dk, ds, q);
                wgmma_commit();
                if constexpr (SUMS) {
                    turn_wait(SCORES + i % 2 * 2 + 1 - group, 256);
                    discard_accumulators(dq);
                    wgmma_begin();
                    wgmma_crossed<T, S::keys, 2 * S::slab_bytes>(dq, dq_left + buffer, dq_right);
                    wgmma_commit();
                }
                if constexpr (DQ == OWNED)
                    if (i + 1 < w.total) /* here, because the registers of s are free */
                        make_pairs(i + 1);
                wgmma_wait<1 + SUMS>();
                pin_accumulators(dv);
                /* the scores after the last tile are unused, but cheaper than a loop with an exit
                 * in its middle */
                begin_scores(i + 1 < w.total ? i + 1 : i);
                if constexpr (SUMS) {
                    wgmma_wait<1>();
                    pin_accumulators(dq);
                }
                if constexpr (DQ == SUMMED) {
#pragma unroll
                    for (int n = 0; n < 8; n++)
                        add_to_memory(to + n * 128 * 4, dq[n]);
                    to += ROWS * DEPTH;
                }
                if constexpr (DQ == OWNED) {
                    int head = w.head * c.share + i / w.tiles,
                        row = from + (ROWS == 128 ? group * 64 : 0) + warp * 16 + lane / 4,
                        column = (ROWS == 128 ? 0 : group * 64) + lane % 4 * 8;
                    attention_write_dq<T>(dq, (float)c.scale, [&](int half, int side) {
                        bool there =
                            c.dq.data && row + 8 * half < c.rows && column + 32 * side < c.depth;
                        return there
                                   ? c.dq.of<T>(w.batch, head, row + 8 * half) + column + 32 * side
                                   : nullptr;
                    });
                }
                if (DRAWS && i + 1 < w.total)
                    draw_bits(i + 1);
                wgmma_wait<0>();
                pin_accumulators(s);
                pin_accumulators(dk);
                if (thread == 0)
                    barrier_arrive(ring.empty(passed + i));
                if (MASKS && i + 1 < w.total)
                    mask_scores(i + 1);
                if (++tile == w.tiles)
                    tile = 0, to += (c.pair_rows - w.tiles * ROWS) * DEPTH;
            }
            turn_wait(DONE, 256); /* both groups have finished reading k, v and the slabs */
            if (thread == 0)
                barrier_arrive(held_empty);
            passed += w.total;
            wgmma_wait<0>();
            pin_accumulators(dk);
            pin_accumulators(dv);
            int key = UNEVEN ? (int)w.span.first_key + begin : begin,
                left = (UNEVEN ? w.span.keys : c.keys) - begin;
            if (c.dk.data)
                write_group<T, 64>(own_slabs, 0, dk, (float)c.scale, (float)c.scale,
                                   c.dk.of<T>(w.batch, w.head, key), c.dk.row, left, c.depth);
            if (c.dv.data)
                write_group<T, 64>(own_slabs, 0, dv, DRAWS ? c.dropout_scale_half : 1,
                                   DRAWS ? c.dropout_scale_half : 1,
                                   c.dv.of<T>(w.batch, w.head, key), c.dv.row, left,
                                   c.value_depth);
            turn_wait(WRITTEN + group, 128);
        }
    }
#endif
}

/** Scales c.sums, whose layout is that of the groups' accumulators, rounds them and writes dq,
 * after attention_wgmma_keys_kernel() with SUMMED. A warp converts 16 rows x 64 columns. */
template <class T, int DEPTH>
static __global__ void __launch_bounds__(256)
    attention_wgmma_sums_kernel(const __grid_constant__ attention_call c)
{
    constexpr int ROWS = attention_wgmma_keys_shape<DEPTH>::rows;
    begin_next_kernel();
    wait_for_kernel_in_front();
    uint32_t parts = (uint32_t)(c.pair_rows * DEPTH / 4096), blocks = parts / 2,
             heads = blockIdx.x / blocks;
    int part = blockIdx.x % blocks * 2 + threadIdx.x / 128, head = (int)(heads % c.heads),
        batch = (int)(heads / c.heads);
    int thread = threadIdx.x % 128, lane = thread % 32;
    int64_t base = 0; /* of rows in c.pairs */
    int rows = c.rows;
    int64_t row = part / 2 * ROWS + (ROWS == 128 ? part % 2 * 64 : 0) + thread / 32 * 16 + lane / 4,
            column = (ROWS == 128 ? 0 : part % 2 * 64) + lane % 4 * 8;
    if (c.q_starts) { /* the part is in the rows of one sequence */
        int sequence = attention_sequence_of(c, row - thread / 32 * 16 - lane / 4);
        attention_span span = span_of(c, sequence);
        row -= first_pair_of(c, sequence, span.first_row);
        base = span.first_row;
        rows = span.rows;
    }
    const float4 *from = (const float4 *)c.sums + ((int64_t)heads * parts + part) * 1024 + thread;
    float x[8][4];
#pragma unroll
    for (int n = 0; n < 8; n++) {
        float4 v = from[n * 128];
        x[n][0] = v.x, x[n][1] = v.y, x[n][2] = v.z, x[n][3] = v.w;
    }
    attention_write_dq<T>(x, (float)c.scale, [&](int half, int side) {
        bool there = row + half * 8 < rows && column + side * 32 < c.depth;
        return there ? c.dq.of<T>(batch, head, base + row + half * 8) + column + side * 32
                     : nullptr;
    });
}

} // namespace ts

#endif
