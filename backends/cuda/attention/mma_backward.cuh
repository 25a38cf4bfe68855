/**
 * @file mma_backward.cuh
 * Gradients of attention on the tensor cores of sm_80 and later, in two passes that add in a fixed
 * order.
 *
 * With p = exp(scale q kT - lse), dp = g vT and ds = p (dp - delta), where g is the gradient of the
 * output, delta the row sum of g * out (pairs.cuh) and kT is k transposed:
 *   dq = scale ds k,  dk = scale dsT q,  dv = pT g.
 * A block holds one pair of tiles in shared memory and streams the tiles of the other pair: it
 * holds (q, g) in the pass over queries and (k, v) in the pass over keys. In both passes
 *   s = first held tile * first streamed tileT,  dp = second held tile * second streamed tileT,
 * so the accumulators of s and dp are the left operands of the warp's next products.
 *
 * Beyond 128 columns two warps share 16 rows, and each sums half of the columns. In bf16 and f16,
 * each warp computes half of the columns of p and ds, and the two exchange them in shared memory.
 * In f32, whose tiles fill the shared memory, both compute all of p and ds. If there are too few
 * blocks, the streamed tiles are divided into runs, one per block, and a second kernel adds the
 * partial sums of the runs.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_ATTENTION_MMA_BACKWARD_CUH
#define TS_CUDA_ATTENTION_MMA_BACKWARD_CUH

#include "backends/cuda/attention/mma.cuh"
#include "backends/cuda/runtime/early.cuh"

namespace ts {

/** Sizes of a block. `parts` warps share 16 held rows. A warp computes the scores of `own` of the
 * `wide` rows of each streamed tile. A multiprocessor holds `blocks` blocks. In bytes: held (a held
 * tile), tile and pair (one and two streamed tiles), slab (exchanged p or ds). */
template <class T, int DEPTH_, bool KEYS> struct attention_mma_backward_shape {
    static constexpr int depth = DEPTH_, parts = depth > 128 ? 2 : 1;
    static constexpr int warps = 8, threads = 32 * warps, rows = 16 * warps / parts,
                         wide = KEYS && sizeof(T) == 4 && depth == 64 ? 16
                                : (KEYS && depth == 128) || sizeof(T) == 4 ? 32 : 64,
                         own = sizeof(T) == 4 ? wide : wide / parts;
    static constexpr int blocks = sizeof(T) == 4 && depth <= 64 ? 2 : 1;
    static constexpr bool meets = own < wide; /* warps exchange p and ds in shared memory */
    static constexpr int held = rows * depth * (int)sizeof(T), tile = wide * depth * (int)sizeof(T),
                         pair = 2 * tile, slab = meets ? rows * wide * 2 : 0;
    static constexpr int bytes(int stages)
    {
        return 2 * held + (KEYS ? 2 : 1) * slab + stages * (pair + wide * (int)sizeof(float2));
    }
};

/** Number of tiles that a block streams if all rows see all keys. With `keys` (the pass over keys)
 * these are tiles of queries of all heads that share the keys; else tiles of keys. */
inline int64_t attention_mma_passing(const attention_call &c, bool keys, int wide)
{
    int64_t tiles = ((keys ? c.rows : c.keys) + wide - 1) / wide;
    return keys ? tiles * c.share : tiles;
}

/** False only if no row first_row to end_row - 1 sees a key first_key to end_key - 1. */
__device__ __forceinline__ bool sees_some(const attention_span &s, int first_row, int end_row,
                                          int first_key, int end_key)
{
    return end_key - 1 - first_row >= s.low && first_key - (end_row - 1) <= s.high;
}

/** Address in c.parts of the f32 sums of one row in one run: with `keys` those of dk and then of
 * dv, else those of dq. */
__device__ __forceinline__ float *attention_part(const attention_call &c, bool keys, int run,
                                                 int batch, int head, int row)
{
    int64_t heads = keys ? c.heads / c.share : c.heads, length = keys ? c.keys : c.rows;
    return c.parts + (((run * (int64_t)c.batches + batch) * heads + head) * length + row) *
                         (keys ? c.depth + c.value_depth : c.depth);
}

/** The pass over keys (c.dk, c.dv) if KEYS, else the pass over queries (c.dq). With c.splits > 1
 * the results go to c.parts instead. stages: number of pairs of streamed tiles in shared memory, 1
 * or 2. RULES: the kernel supports calls with c.rules. */
template <class T, int DEPTH, bool KEYS, bool RULES>
static __global__ void
__launch_bounds__(256, (attention_mma_backward_shape<T, DEPTH, KEYS>::blocks))
    attention_mma_backward_kernel(const __grid_constant__ attention_call c, int stages)
{
    using S = attention_mma_backward_shape<T, DEPTH, KEYS>;
    constexpr int WIDE = S::wide, OWN = S::own, COLUMNS = DEPTH / S::parts;
    begin_next_kernel();
    wait_for_kernel_in_front();
    extern __shared__ __align__(128) char shared[];
    using tile = attention_tile<T, DEPTH>;
    tile held1{shared_address(shared)}, held2{held1.base + S::held};
    mma_tile<64> ds_slab{held2.base + S::held}, p_slab{ds_slab.base + S::slab};
    uint32_t passing = p_slab.base + (KEYS ? S::slab : 0);
    float2 *pairs = (float2 *)(shared + (passing - held1.base) + stages * S::pair);

    /* blocks with the most work come first: under a causal mask the first keys or the last rows */
    int most = KEYS ? c.keys : c.rows, heads = KEYS ? c.heads / c.share : c.heads,
        blocks = (most + S::rows - 1) / S::rows;
    int run = (int)(blockIdx.x % c.splits), index = (int)(blockIdx.x / c.splits);
    int head = index / blocks % heads, batch = index / blocks / heads, block = index % blocks;
    attention_span span = span_of(c, batch);
    int first = (KEYS ? block : blocks - 1 - block) * S::rows,
        held = min(S::rows, (KEYS ? span.keys : span.rows) - first);
    if (held <= 0)
        return;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, mine = warp / S::parts * 16,
        part = warp % S::parts, piece = S::meets ? part * OWN : 0;

    const attention_operand &own1 = KEYS ? c.k : c.q, &own2 = KEYS ? c.v : c.g,
                            &other1 = KEYS ? c.q : c.k, &other2 = KEYS ? c.g : c.v;
    attention_range seen =
        KEYS ? rows_of_keys(span, first, first + held) : keys_of_rows(span, first, first + held);
    int begin = seen.first / WIDE,
        tiles = seen.end > seen.first ? (seen.end - 1) / WIDE + 1 - begin : 0;
    int first_head = KEYS ? head * c.share : head,
        total = KEYS ? tiles * c.share : tiles; /* streamed tiles, head by head */
    int limit = KEYS ? span.rows : span.keys, start = (int)((int64_t)total * run / c.splits),
        end = (int)((int64_t)total * (run + 1) / c.splits);
    int64_t own_start = (KEYS ? span.first_key : span.first_row) + first,
            other_start = KEYS ? span.first_row : span.first_key;

    auto fetch = [&](int i) {
        int stage = i % stages, from = (begin + i % tiles) * WIDE,
            h = KEYS ? first_head + i / tiles : head / c.share;
        tile to1{passing + stage * S::pair}, to2{to1.base + S::tile};
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
        copies_commit();
    };

    float sum1[1][COLUMNS / 8][4] = {}, sum2[1][KEYS ? COLUMNS / 8 : 1][4] = {};
    float2 own_pairs[2] = {};
    if (start < end) {
        held1.template load<S::rows, 256>(own1.of<const T>(batch, head, own_start), own1.row, held,
                                          c.depth);
        held2.template load<S::rows, 256>(own2.of<const T>(batch, head, own_start), own2.row, held,
                                          c.value_depth);
        fetch(start);
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
    for (int i = start; i < end; i++) {
        int stage = i % stages, from = (begin + i % tiles) * WIDE + piece;
        attention_head rules{c, span, batch, KEYS ? first_head + i / tiles : head};
        attention_bits<OWN / 8> kept = {}, shown = {};
        /* false if the warp's rows (KEYS: keys) are past the end, or form no visible pair with
           the tile */
        bool some = mine < held && sees_some(span, KEYS ? from - piece : first + mine,
                                             KEYS ? from - piece + WIDE : first + mine + 16,
                                             KEYS ? first + mine : from - piece,
                                             KEYS ? first + mine + 16 : from - piece + WIDE);
        if (RULES && c.dropout && some) {
            if constexpr (KEYS)
                kept = rules.kept_of_keys<OWN / 8>(from, first + mine);
            else
                kept = rules.kept_of_rows<OWN / 8>(first + mine, from);
        }
        if (RULES && c.mask_type == MASK_BOOL && some) {
            if constexpr (KEYS)
                shown = rules.shown_of_keys<OWN / 8>(from, first + mine);
            else
                shown = rules.shown_of_rows<OWN / 8>(first + mine, from);
        }
        copies_wait<0>();
        __syncthreads();
        if (stages > 1 && i + 1 < end)
            fetch(i + 1);
        if (!some) {
            if (stages == 1 && i + 1 < end) {
                __syncthreads();
                fetch(i + 1);
            }
            continue;
        }
        tile passing1{passing + stage * S::pair}, passing2{passing1.base + S::tile};

        float s[1][OWN / 8][4], dp[1][OWN / 8][4];
        products<T, DEPTH, 1, OWN>(s, held1.from(mine), passing1.from(piece), c.depth);
        products<T, DEPTH, 1, OWN>(dp, held2.from(mine), passing2.from(piece), c.value_depth);
        bool whole = KEYS ? sees_all(span, from, from + OWN, first, first + held)
                          : sees_all(span, first, first + held, from, from + OWN);
#pragma unroll
        for (int n = 0; n < OWN / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int own = first + mine + lane / 4 + e / 2 * 8, place = n * 8 + lane % 4 * 2 + e % 2,
                    other = from + place;
                float2 pair = KEYS ? pairs[stage * WIDE + piece + place] : own_pairs[e / 2];
                int row = KEYS ? other : own, key = KEYS ? own : other;
                /* a whole tile may include rows or keys past the end, which are never written */
                bool visible = whole || sees(span, row, key);
                if (RULES && c.mask_type == MASK_BOOL)
                    visible = visible && shown.has(n, e);
                float x = s[0][n][e], slope = 1;
                if (RULES && c.adjusted)
                    x = rules.score<T>(x, row, key, slope);
                float power = x * c.to_log2 - pair.x, change = dp[0][n][e];
                if (RULES && c.adjusted) /* > 0 only by rounding, for scores near -2e38 */
                    power = power > 0 ? 0 : power;
                float p = visible ? exp2_fast(power) : 0;
                s[0][n][e] = p;
                if (RULES && c.dropout) {
                    s[0][n][e] = kept.has(n, e) ? p : 0;
                    change = kept.has(n, e) ? change * c.dropout_scale_half : 0;
                }
                dp[0][n][e] = RULES ? p * (change - pair.y) * slope : p * (change - pair.y);
            }
        if constexpr (S::meets) {
            put<T, 64, OWN>(ds_slab, mine, dp[0], 1, 1, 2, part);
            if (KEYS)
                put<T, 64, OWN>(p_slab, mine, s[0], 1, 1, 2, part);
            asm volatile("bar.sync %0, 64;" ::"r"(1 + warp / 2) : "memory");
            if constexpr (KEYS)
                accumulate_operand<T, DEPTH, 1, WIDE, 2>(
                    sum2, [&](uint32_t(&left)[4], int, int k) { p_slab.left(left, mine, k); },
                    passing2, c.value_depth, part);
            accumulate_operand<T, DEPTH, 1, WIDE, 2>(
                sum1, [&](uint32_t(&left)[4], int, int k) { ds_slab.left(left, mine, k); },
                passing1, c.depth, part);
        } else {
            if constexpr (KEYS)
                accumulate<T, DEPTH, 1, WIDE, S::parts>(sum2, s, passing2, c.value_depth, part);
            accumulate<T, DEPTH, 1, WIDE, S::parts>(sum1, dp, passing1, c.depth, part);
        }
        if (stages == 1 && i + 1 < end) {
            __syncthreads();
            fetch(i + 1);
        }
    }

    const float scale = (float)c.scale, dropout_scale = RULES ? c.dropout_scale_half : 1;
    if (c.splits > 1) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = mine + lane / 4 + 8 * half;
            if (row >= held)
                continue;
            float *to = attention_part(c, KEYS, run, batch, head, first + row);
#pragma unroll
            for (int n = 0; n < COLUMNS / 8; n++) {
                int column = (n / 4 * S::parts + part) * 32 + n % 4 * 8 + lane % 4 * 2;
                if (column < c.depth)
                    *(float2 *)(to + column) = {sum1[0][n][2 * half] * scale,
                                                sum1[0][n][2 * half + 1] * scale};
                if (KEYS && column < c.value_depth)
                    *(float2 *)(to + c.depth +
                                column) = {sum2[0][KEYS ? n : 0][2 * half] * dropout_scale,
                                           sum2[0][KEYS ? n : 0][2 * half + 1] * dropout_scale};
            }
        }
        return;
    }
    copies_wait<0>();
    __syncthreads();
    put<T, DEPTH, COLUMNS>(held1, mine, sum1[0], scale, scale, S::parts, part);
    if constexpr (KEYS)
        put<T, DEPTH, COLUMNS>(held2, mine, sum2[0], dropout_scale, dropout_scale, S::parts, part);
    __syncthreads();
    const attention_operand &to = KEYS ? c.dk : c.dq;
    if (to.data)
        write_rows<S::rows, 256>(held1, 0, to.of<T>(batch, head, own_start), to.row, held, c.depth,
                                 (int)threadIdx.x);
    if (KEYS && c.dv.data)
        write_rows<S::rows, 256>(held2, 0, c.dv.of<T>(batch, head, own_start), c.dv.row, held,
                                 c.value_depth, (int)threadIdx.x);
}

/** Adds the sums of all runs in order and rounds them to T. A thread computes four columns of a
 * row. */
template <class T, bool KEYS>
static __global__ void __launch_bounds__(128)
    attention_mma_merge_kernel(const __grid_constant__ attention_call c)
{
    begin_next_kernel();
    wait_for_kernel_in_front();
    int columns = KEYS ? c.depth + c.value_depth : c.depth, length = KEYS ? c.keys : c.rows,
        heads = KEYS ? c.heads / c.share : c.heads;
    int64_t fours = (int64_t)c.batches * heads * length * (columns / 4),
            index = (int64_t)blockIdx.x * 128 + threadIdx.x;
    if (index >= fours)
        return;
    const float4 *from = (const float4 *)c.parts + index;
    float4 sum = {};
#pragma unroll 8
    for (int run = 0; run < c.splits; run++) {
        float4 x = from[run * fours];
        sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
    }
    int column = (int)(index % (columns / 4)) * 4;
    int64_t line = index / (columns / 4);
    int row = (int)(line % length), head = (int)(line / length % heads),
        batch = (int)(line / length / heads);
    const attention_operand &to = !KEYS ? c.dq : column < c.depth ? c.dk : c.dv;
    if (KEYS && column >= c.depth)
        column -= c.depth;
    if (!to.data)
        return;
    if constexpr (sizeof(T) == 4)
        *(float4 *)(to.of<T>(batch, head, row) + column) = sum;
    else
        *(uint2 *)(to.of<T>(batch, head, row) + column) = {pack2<T>(sum.x, sum.y),
                                                           pack2<T>(sum.z, sum.w)};
}

} // namespace ts

#endif
