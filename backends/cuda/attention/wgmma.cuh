/**
 * @file wgmma.cuh
 * Attention forward on Hopper (Shah et al., FlashAttention-3, 2024), which wgmma.cu launches.
 *
 * A block consists of a producer group of four warps, which loads tiles, and one to three consumer
 * groups of four warps, which own 64 query rows each. A consumer starts the scores of the next tile
 * of keys, then the products of the current probabilities and values, and computes the next
 * probabilities while these products run. Consumers take turns at the tensor cores, so one
 * multiplies while another computes exponentials.
 *
 * Blocks are persistent and overlap their units of work: the first scores of the next rows start
 * before the last products of the current rows, and the copy engine stores results while the next
 * rows are computed. The kernel of all options, and dropout with several consumer groups, use a
 * simpler loop, which takes no turns and does not overlap the products of two units.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_ATTENTION_WGMMA_CUH
#define TS_CUDA_ATTENTION_WGMMA_CUH

#include "backends/cuda/attention/addends.cuh"
#include "backends/cuda/attention/lists.cuh"
#include "backends/cuda/attention/rules.cuh"
#include "backends/cuda/attention/schedule.cuh"
#include "backends/cuda/instructions/wgmma.cuh"

namespace ts {

/** Sizes of a block. groups: consumer groups; rows: query rows; wide: keys per tile; stages: tiles
 * in the ring of keys and in that of values; row_stages: tiles of queries; many, few: registers per
 * thread of consumers and of the producer, if groups > 1; mask_stages: tiles in the ring of an
 * additive mask, or 0 if the kernel has no such ring. RULES: an attention_hopper_rules. */
template <int DEPTH_, int GROUPS, int RULES> struct attention_wgmma_shape {
    static constexpr int depth = DEPTH_, groups = GROUPS, rows = 64 * groups,
                         row_stages = depth > 128 && groups > 1 ? 1 : 2;
    /* rules need registers, so fewer remain for scores */
    static constexpr int wide = RULES == ADDED || RULES == ANY || (RULES == BITS && depth > 64)
                                    ? 64
                                    : 128,
                         mask_stages = RULES != ADDED || depth > 128 ? 0
                                       : depth > 64                  ? 2
                                                                     : 4,
                         stages = depth > 128                 ? 2
                                  : mask_stages && depth > 64 ? 3
                                  : depth == 64 || wide == 64 ? 4
                                                              : 2;
    static constexpr int threads = 128 * (groups + 1), many = groups == 2 ? 232 : 160,
                         few = groups == 2 ? 40 : 32;
    static_assert(!mask_stages || wide == 64, "a tile of the mask has one slab");
    static constexpr int q_bytes = rows * depth * 2, tile_bytes = wide * depth * 2,
                         mask_bytes = rows * wide * 2;
    static constexpr int bytes = 1024 + (row_stages + 1) * q_bytes + 2 * stages * tile_bytes +
                                 mask_stages * mask_bytes + tile_ring<row_stages>::bytes +
                                 2 * tile_ring<stages>::bytes + tile_ring<mask_stages>::bytes;
};

/** A unit of work of a block: rows starting at `first`, and the number of tiles of keys that they
 * see. tiles = 0 ends the work. */
struct alignas(16) attention_rows {
    int first, head, batch, tiles;
};
/** The sequence of a unit of work: its lengths, and where its rows begin in the tensor. */
struct alignas(16) attention_lengths {
    int rows, keys, first_row;
};

/**
 * Online softmax: replaces scores by probabilities relative to the running maximum `top` and adds
 * them to `sum`. Returns whether the maximum was raised; then `rescale` is the factor for earlier
 * results. The maximum is raised only if it grows by more than 8, as an exponent of 2, in some row
 * of the warp; so probabilities may reach 2^8. EXACT subtracts before scaling if the maximum is so
 * large that the rounding error of the product would matter, such as the lowest numbers that a mask
 * adds.
 */
template <bool EXACT, int N>
__device__ __forceinline__ bool attention_softmax(float (&s)[N][4], float (&top)[2],
                                                  float (&sum)[2], float (&rescale)[2],
                                                  float to_log2)
{
    float now[2];
    bool grows = false;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        now[half] = top[half];
#pragma unroll
        for (int n = 0; n < N; n++)
            now[half] = fmaxf(now[half], fmaxf(s[n][2 * half], s[n][2 * half + 1]));
        now[half] = fmaxf(now[half], __shfl_xor_sync(0xffffffffu, now[half], 1));
        now[half] = fmaxf(now[half], __shfl_xor_sync(0xffffffffu, now[half], 2));
        grows = grows || (now[half] - top[half]) * to_log2 > 8;
    }
    grows = __any_sync(0xffffffffu, grows);
    if (grows) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            rescale[half] =
                now[half] == -INFINITY ? 1 : exp2_fast((top[half] - now[half]) * to_log2);
            sum[half] *= rescale[half];
            top[half] = now[half];
        }
    }
    /* 0 for rows without a visible key so far */
    float base[2] = {top[0] == -INFINITY ? 0 : top[0], top[1] == -INFINITY ? 0 : top[1]};
    auto powers = [&](auto &&power) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float total = 0;
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float &x = s[n][2 * half + e];
                    x = exp2_fast(power(x, base[half]));
                    total += x;
                }
            sum[half] += total;
        }
    };
    constexpr float LARGE = 0x1p12f; /* as an exponent of 2: its rounding error is below 2^-12 */
    if (EXACT && __any_sync(0xffffffffu, fmaxf(fabsf(base[0]), fabsf(base[1])) * to_log2 > LARGE)) {
        powers([&](float x, float from) { return (x - from) * to_log2; });
    } else {
        base[0] *= to_log2;
        base[1] *= to_log2;
        powers([&](float x, float from) { return x * to_log2 - from; });
    }
    return grows;
}

/** Writes c.out and, unless NULL, c.lse. DEPTH, GROUPS, RULES: see attention_wgmma_shape. together:
 * see attention_longest_first(). counter: blocks take their next units of work from it; NULL: a
 * block computes every gridDim.x-th unit. turns: named barriers order the consumers' turns. staged:
 * the ring of the mask is in use, and mask_map describes the mask. */
template <class T, int DEPTH, int GROUPS, int RULES>
static __global__ void __launch_bounds__(attention_wgmma_shape<DEPTH, GROUPS, RULES>::threads, 1)
    attention_wgmma_kernel(const __grid_constant__ attention_call c,
                           const __grid_constant__ CUtensorMap q_map,
                           const __grid_constant__ CUtensorMap k_map,
                           const __grid_constant__ CUtensorMap v_map,
                           const __grid_constant__ CUtensorMap out_map,
                           const __grid_constant__ CUtensorMap mask_map, int together,
                           unsigned *counter, bool turns, bool staged)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    using S = attention_wgmma_shape<DEPTH, GROUPS, RULES>;
    constexpr int WIDE = S::wide;
    extern __shared__ char shared[];
    constexpr bool UNEVEN = RULES == LENGTHS || RULES == ANY; /* units are in c.units */
    __shared__ attention_rows work_item[4]; /* more than stages of queries, because an item is read
                                               after its stage is released */
    __shared__ attention_lengths lengths[UNEVEN ? 4 : 1];
    uint32_t q = (shared_address(shared) + 1023) & ~1023u, out = q + S::row_stages * S::q_bytes,
             k = out + S::q_bytes, v = k + S::stages * S::tile_bytes,
             mask = v + S::stages * S::tile_bytes;
    tile_ring<S::row_stages> rows{mask + S::mask_stages * S::mask_bytes};
    tile_ring<S::stages> keys{rows.barriers + rows.bytes}, values{keys.barriers + keys.bytes};
    tile_ring<S::mask_stages> masks{values.barriers + values.bytes};
    attention_span span = {
        0, 0, 0, c.rows, c.keys, c.keys - c.rows - c.left, c.keys - c.rows + c.right};
    auto last_tile = [&](int first) {
        return (min(span.keys, min(first + S::rows, span.rows) + span.high) - 1) / WIDE;
    };
    const float to_log2 = RULES == ANY ? log2_e : c.raw_to_log2;

    if (threadIdx.x == 0) {
        rows.init(S::groups);
        keys.init(S::groups);
        values.init(S::groups);
        if constexpr (S::mask_stages > 0)
            masks.init(4 * S::groups); /* each warp reads its part */
        barriers_ready();
    }
    if constexpr (UNEVEN)
        wait_for_kernel_in_front();
    __syncthreads();

    /* round: tiles of rows so far; passed: tiles of keys so far */
    int group = threadIdx.x / 128 - 1, round = 0, passed = 0;
    if (group < 0) {
        if constexpr (GROUPS > 1)
            registers_shrink<S::few>();
        if (threadIdx.x >= 32)
            return;
        unsigned blocks = (c.rows + S::rows - 1) / S::rows, heads = c.heads * c.batches,
                 all = heads * blocks;
        int v_row = 0; /* first row of the pending values, loaded after the next keys */
        const CUtensorMap *k_from = &k_map, *v_from = &v_map, *v_pending = &v_map;
        if constexpr (UNEVEN)
            all = *c.unit_count * c.heads;
        auto tensor_batch = [&](int batch) { return UNEVEN ? attention_batch(c, batch) : batch; };
        auto fetch_values = [&](int of) {
            int at = passed - 1;
            values.wait_empty(at);
            barrier_expect(values.full(at), S::tile_bytes);
            tma_load_tile<WIDE, DEPTH>(v + at % S::stages * S::tile_bytes,
                                       UNEVEN ? v_pending : &v_map, v_row,
                                       work_item[of % 4].head / c.share,
                                       tensor_batch(work_item[of % 4].batch), values.full(at));
        };
        for (unsigned index = blockIdx.x, next; index < all; index = next) {
            next = gridDim.x + index;
            if (counter && threadIdx.x == 0)
                next = gridDim.x + atomicAdd(counter, 1);
            attention_place at;
            int first;
            if constexpr (UNEVEN) {
                int2 unit = c.units[index / c.heads];
                at = {unit.y, (int)(index % c.heads), unit.x};
                first = unit.y * S::rows;
                span = span_of(c, at.batch);
            } else {
                at = attention_longest_first(index, blocks, c.heads, heads, together);
                first = (blocks - 1 - at.block) * S::rows;
            }
            attention_range seen = keys_of_rows(span, first, min(first + S::rows, span.rows));
            if (seen.end <= seen.first) {
                if constexpr (!UNEVEN)
                    span.first_statistic = (int64_t)at.batch * c.heads * c.rows;
                attention_clear_rows<T, S::rows, DEPTH>(c, span, at.batch, at.head, first);
            } else if (threadIdx.x == 0) {
                int last = last_tile(first), tiles = last + 1 - seen.first / WIDE;
                /* With one stage of queries, their load waits for the last scores of the previous
                 * rows, so the pending values are loaded before; else after the next keys. */
                bool late = S::row_stages > 1;
                if (!late && passed)
                    fetch_values(round - 1);
                rows.wait_empty(round);
                work_item[round % 4] = {first, at.head, at.batch, tiles};
                int q_row = first, k_row = 0, batch = at.batch;
                const CUtensorMap *q_from = &q_map;
                if constexpr (UNEVEN) {
                    lengths[round % 4] = {span.rows, span.keys, (int)span.first_row};
                    q_from = attention_map(c.maps + batch * 4);
                    k_from = attention_map(c.maps + batch * 4 + 1);
                    v_from = attention_map(c.maps + batch * 4 + 2);
                    q_row += (int)span.first_row;
                    k_row = (int)span.first_key;
                    batch = tensor_batch(batch);
                }
                barrier_expect(rows.full(round), S::q_bytes);
                tma_load_tile<S::rows, DEPTH>(q + round % S::row_stages * S::q_bytes,
                                              UNEVEN ? q_from : &q_map, q_row, at.head, batch,
                                              rows.full(round));
#pragma unroll 1
                for (int i = 0; i < tiles; i++) {
                    keys.wait_empty(passed);
                    barrier_expect(keys.full(passed), S::tile_bytes);
                    tma_load_tile<WIDE, DEPTH>(k + passed % S::stages * S::tile_bytes,
                                               UNEVEN ? k_from : &k_map, k_row + (last - i) * WIDE,
                                               at.head / c.share, batch, keys.full(passed));
                    if (passed && (i || late))
                        fetch_values(i ? round : round - 1);
                    if constexpr (S::mask_stages > 0)
                        if (staged) {
                            masks.wait_empty(passed);
                            barrier_expect(masks.full(passed), S::mask_bytes);
                            tma_load(mask + passed % S::mask_stages * S::mask_bytes, &mask_map,
                                     (last - i) * WIDE, first, c.mask_steps[1] ? at.head : 0,
                                     c.mask_steps[0] ? at.batch : 0, masks.full(passed));
                        }
                    v_row = k_row + (last - i) * WIDE;
                    v_pending = v_from;
                    passed++;
                }
                round++;
            }
            if (counter)
                next = __shfl_sync(0xffffffffu, next, 0);
        }
        if (threadIdx.x == 0) {
            if (passed)
                fetch_values(round - 1);
            rows.wait_empty(round);
            work_item[round % 4].tiles = 0;
            barrier_arrive(rows.full(round));
        }
        return;
    }

    if constexpr (GROUPS > 1) /* a thread of a single group has the most already */
        registers_grow<S::many>();
    constexpr int turn = 2 * 128;
    int thread = threadIdx.x % 128, lane = thread % 32,
        mine = group * 64 + thread / 32 * 16 + lane / 4;
    float o[DEPTH / 8][4] = {}, s[WIDE / 8][4] = {}, top[2] = {-INFINITY, -INFINITY}, sum[2] = {},
                    rescale[2];
    /* top and sum of the rows of `round` while the previous round's rows are not yet written */
    float next_top[2], next_sum[2];
    uint32_t p[WIDE / 16][4];
    int first, tiles; /* rows of `round`: first row, and number of tiles of keys that they see */
    auto release = [&](uint32_t barrier) {
        if (thread == 0)
            barrier_arrive(barrier);
    };
    auto meet_rows = [&] {
        rows.wait_full(round);
        first = work_item[round % 4].first;
        tiles = work_item[round % 4].tiles;
        if constexpr (UNEVEN) {
            attention_lengths of = lengths[round % 4];
            span = {of.first_row, 0, 0, of.rows, of.keys, of.keys - of.rows - c.left,
                    of.keys - of.rows + c.right};
        }
    };
    attention_bits<WIDE / 8> kept = {}, shown = {};
    constexpr bool STAGES = S::mask_stages > 0, /* FETCHES: registers are left to hold addends */
        FETCHES = (RULES == ADDED && DEPTH <= 192) || (RULES == ANY && DEPTH <= 128);
    attention_addends<T, FETCHES ? WIDE / 8 : 1> added; /* mask of the next tile */
    auto fetch_added = [&](int from) {
        if constexpr (FETCHES)
            if (RULES == ANY ? c.mask_type > MASK_BOOL : !STAGES || !staged)
                added.fetch(c, span, work_item[round % 4].batch, work_item[round % 4].head,
                            first + mine, from + lane % 4 * 2, from);
    };
    /* with several groups, dropout has a separate loop; kernels of all options have only that */
    constexpr bool ONLY_APART = RULES == ANY, APART = (RULES == BITS && GROUPS > 1) || ONLY_APART;
    constexpr std::bool_constant<!APART> BESIDE;
    /* sets `kept` (if `draws`) and `shown`, the pairs of tile i that dropout keeps and the mask
     * shows, while products run */
    auto draw_bits = [&](int i, auto draws) {
        if constexpr (RULES == BITS || RULES == ANY) {
            attention_head rules{c, span, work_item[round % 4].batch, work_item[round % 4].head};
            int from = (last_tile(first) - i) * WIDE, row = first + mine - lane / 4;
            if (draws && c.dropout)
                kept = rules.template kept_of_rows<WIDE / 8>(row, from);
            if (c.mask_type == MASK_BOOL)
                shown = rules.template shown_of_rows<WIDE / 8>(row, from);
        }
    };
    /* applies the mask to the scores of tile i, whose first key is `from` */
    auto mask_scores = [&](int i, int from) {
        if constexpr (STAGES)
            if (staged) {
                masks.wait_full(passed);
                attention_adder<T>(c).add_tile(s, mask + passed % S::mask_stages * S::mask_bytes +
                                                      group * 64 * 128);
                __syncwarp();
                if (lane == 0)
                    barrier_arrive(masks.empty(passed));
                return;
            }
        if constexpr (RULES == ADDED && FETCHES) {
            added.add(c, s);
            if (i + 1 < tiles)
                fetch_added(from - WIDE);
        } else if constexpr (RULES == ADDED) {
            attention_head rules{c, span, work_item[round % 4].batch, work_item[round % 4].head};
            rules.template add_mask<T>(s, [&](int n, int e) {
                return make_int2(first + mine + e / 2 * 8, from + n * 8 + lane % 4 * 2 + e % 2);
            });
        } else if constexpr (RULES == ANY) {
            attention_head rules{c, span, work_item[round % 4].batch, work_item[round % 4].head};
            auto no_slope = [](int, int, uint32_t) {};
            if constexpr (FETCHES) {
                rules.scale_scores(s, no_slope);
                if (c.mask_type > MASK_BOOL)
                    added.add_to_scaled(c, s);
            } else {
                rules.template adjust_scores<T>(
                    s,
                    [&](int n, int e) {
                        return make_int2(first + mine + e / 2 * 8,
                                         from + n * 8 + lane % 4 * 2 + e % 2);
                    },
                    no_slope);
            }
            if (c.mask_type == MASK_BOOL)
                hide_scores(s, shown);
        } else if (c.mask_type == MASK_BOOL) {
            hide_scores(s, shown);
        }
    };
    auto take_turn = [&] {
        keys.wait_full(passed);
        if (turns)
            turn_wait(1 + group, turn);
    };
    auto give_turn = [&] {
        if (turns)
            turn_give(1 + (group + 1) % S::groups, turn);
    };
    auto start_scores = [&] {
        pin_accumulators(s);
        wgmma_begin();
        wgmma_products<T, DEPTH, S::rows, WIDE>(
            s, q + round % S::row_stages * S::q_bytes + group * 64 * 128,
            k + passed % S::stages * S::tile_bytes);
        wgmma_commit();
    };
    auto start_sums = [&] { /* o += p v for the previous tile */
        values.wait_full(passed - 1);
        pin_accumulators(o);
        wgmma_begin();
        wgmma_accumulate<T, WIDE>(o, p, v + (passed - 1) % S::stages * S::tile_bytes);
        wgmma_commit();
    };
    /* the probabilities of tile i, whose scores are complete; returns whether to multiply earlier
     * sums by rescale */
    auto probabilities = [&](int i, float(&of_top)[2], float(&of_sum)[2], auto draws) {
        pin_accumulators(s);
        release(keys.empty(passed));
        int begin = first + group * 64, from = (last_tile(first) - i) * WIDE;
        if constexpr (RULES != NO_RULES && RULES != LENGTHS)
            mask_scores(i, from);
        if (i == tiles - 1)
            release(rows.empty(round));
        if (!sees_all(span, begin, min(begin + 64, span.rows), from, from + WIDE))
            attention_mask(s, span, first + mine, from);
        bool rescales = attention_softmax<RULES == ADDED || RULES == ANY>(s, of_top, of_sum,
                                                                          rescale, to_log2);
        if ((RULES == BITS || RULES == ANY) && draws && c.dropout)
            drop_weights(s, kept);
        return rescales;
    };
    auto end_sums = [&] {
        wgmma_wait<0>();
        pin_accumulators(o);
        release(values.empty(passed - 1));
        pack_left<T>(p, s);
        passed++;
    };
    auto clear_sums = [&] {
#pragma unroll
        for (int n = 0; n < DEPTH / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                o[n][e] = 0;
    };
    auto shrink_sums = [&] {
#pragma unroll
        for (int n = 0; n < DEPTH / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                o[n][e] *= rescale[e / 2];
    };
    /* completes tile i after its scores and the previous tile's sums have started */
    auto step = [&](int i) {
        draw_bits(i, BESIDE);
        wgmma_wait<1>();
        bool rescales = probabilities(i, top, sum, BESIDE);
        end_sums();
        if (rescales)
            shrink_sums();
    };
    /* writes the rows of round `of`; if `more`, switches top, sum and o to the next rows */
    auto finish = [&](int of, bool more) {
        attention_rows r = work_item[of % 4];
        attention_span own = {
            0, 0, (int64_t)r.batch * c.heads * c.rows, c.rows, c.keys, 0, 0};
        const CUtensorMap *out_to = &out_map;
        if constexpr (UNEVEN) {
            own.rows = lengths[of % 4].rows;
            own.first_row = lengths[of % 4].first_row;
            if (c.q_starts)
                own.first_statistic = own.first_row;
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float total = sum[half];
            total += __shfl_xor_sync(0xffffffffu, total, 1);
            total += __shfl_xor_sync(0xffffffffu, total, 2);
            float dropout_scale = RULES == BITS || RULES == ANY ? c.dropout_scale_half : 1;
            rescale[half] = total == 0 ? 0 : reciprocal(total) * dropout_scale;
            int row = r.first + mine + 8 * half;
            float lse = total == 0 ? -INFINITY : top[half] * (to_log2 * ln_2) + __logf(total);
            if (c.lse && lane % 4 == 0 && row < own.rows)
                ((float *)c.lse)[statistic_of(c, own, r.head, row)] = lse;
            if (more) {
                top[half] = next_top[half];
                sum[half] = next_sum[half];
            }
        }
        if (thread == 0)
            tma_stores_wait();
        turn_wait(8 + group, 128);
        put_group<T>(out + group * 64 * DEPTH * 2, o, rescale[0], rescale[1]);
        tma_sees_shared();
        turn_wait(8 + group, 128);
        if (thread == 0) {
            if constexpr (UNEVEN)
                out_to = attention_map(c.maps + r.batch * 4 + 3);
            tma_store_tile<64, DEPTH>(out + group * 64 * DEPTH * 2, UNEVEN ? out_to : &out_map,
                                      (UNEVEN ? (int)own.first_row : 0) + r.first + group * 64,
                                      r.head, UNEVEN ? attention_batch(c, r.batch) : r.batch);
        }
        if (more)
            clear_sums();
    };

    /* Dropout's bits take most of the time, and code larger than the instruction cache is slow, so
     * this loop contains each step once. The bits of a tile are drawn while its scores and the
     * previous tile's sums are computed. */
    if (ONLY_APART || (APART && c.dropout)) {
        for (;; round++) {
            meet_rows();
            if (!tiles)
                break;
            top[0] = top[1] = -INFINITY;
            sum[0] = sum[1] = 0;
            clear_sums();
#pragma unroll 1
            for (int i = 0; i < tiles; i++) {
                keys.wait_full(passed);
                start_scores();
                if constexpr (RULES == ANY)
                    fetch_added((last_tile(first) - i) * WIDE);
                draw_bits(i, std::true_type());
                wgmma_wait<0>();
                pin_accumulators(o);
                if (i)
                    release(values.empty(passed - 1));
                if (probabilities(i, top, sum, std::true_type()))
                    shrink_sums();
                pack_left<T>(p, s);
                passed++;
                start_sums();
            }
            wgmma_wait<0>();
            pin_accumulators(o);
            release(values.empty(passed - 1));
            finish(round, false);
        }
        if (thread == 0)
            tma_stores_wait();
        return;
    }
    if (turns && group == S::groups - 1)
        turn_give(1, turn);
    meet_rows();
    if (!tiles)
        return;
    fetch_added(last_tile(first) * WIDE);
    keys.wait_full(passed);
    start_scores();
    draw_bits(0, BESIDE);
    wgmma_wait<0>();
    probabilities(0, top, sum, BESIDE);
    pack_left<T>(p, s);
    passed++;
    while (true) {
        int i = 1;
        /* The scores of these rows overlap with the end of the previous rows. The two cases are
         * separate calls: with one call under conditions ptxas serializes the products (C7514). */
        if (round && tiles > 1) {
            take_turn();
            start_scores();
            give_turn();
            finish(round - 1, true);
            start_sums();
            step(i++);
        } else if (round) {
            finish(round - 1, true);
        }
        for (; i < tiles; i++) {
            take_turn();
            start_scores();
            start_sums();
            give_turn();
            step(i);
        }
        round++;
        meet_rows();
        if (!tiles)
            break;
        fetch_added(last_tile(first) * WIDE);
        take_turn();
        start_scores();
        start_sums();
        give_turn();
        draw_bits(0, BESIDE);
        wgmma_wait<1>();
        next_top[0] = next_top[1] = -INFINITY;
        next_sum[0] = next_sum[1] = 0;
        probabilities(0, next_top, next_sum, BESIDE);
        end_sums();
    }
    start_sums();
    wgmma_wait<0>();
    pin_accumulators(o);
    finish(round - 1, false);
    if (thread == 0)
        tma_stores_wait();
#endif
}

} // namespace ts

#endif
