/**
 * @file mma.cuh
 * Attention forward in tiles on the tensor cores of sm_80 and later (Dao, FlashAttention-2, 2023),
 * which mma.cu launches, and functions of tiles for mma_backward.cuh, split.cuh and
 * split_backward.cuh.
 *
 * A block of four warps owns 64 * TALL query rows, 16 * TALL per warp, and iterates over tiles of
 * WIDE keys and values in shared memory. The scores of a row are in four lanes of one warp, so the
 * row's maximum and sum need two shuffles. The values of a tile are loaded while its scores are
 * computed, and the next keys are loaded while its probabilities are computed. TALL and WIDE are
 * `tall` and `wide` of attention_mma_shape.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_ATTENTION_MMA_CUH
#define TS_CUDA_ATTENTION_MMA_CUH

#include "backends/cuda/attention/rules.cuh"
#include "backends/cuda/instructions/mma.cuh"

namespace ts {

/** A tile of DEPTH columns of T. */
template <class T, int DEPTH> using attention_tile = mma_tile<DEPTH * (int)sizeof(T) / 2>;

/** d0 += a b0 and d1 += a b1, where b0 and b1 are the first and the last 8 columns of b. The
 * fragments a and b span 32 bytes of the depth: 16 halves or 8 f32. */
template <class T>
__device__ __forceinline__ void mma_pair(float (&d0)[4], float (&d1)[4], const uint32_t (&a)[4],
                                         const uint32_t (&b)[4])
{
    if constexpr (sizeof(T) == 4) {
        const split_f32 left[4] = {split_f32(a[0]), split_f32(a[1]), split_f32(a[2]),
                                   split_f32(a[3])};
        mma_f32(d0, left, split_f32(b[0]), split_f32(b[1]));
        mma_f32(d1, left, split_f32(b[2]), split_f32(b[3]));
    } else {
        mma<T>(d0, a, b[0], b[1]);
        mma<T>(d1, a, b[2], b[3]);
    }
}
/** s = a bT over the first `depth` columns, rounded up to 32: s[m][n] is the product of rows 16 m
 * to 16 m + 15 of a and rows 8 n to 8 n + 7 of b. */
template <class T, int DEPTH, int TALL, int WIDE>
__device__ __forceinline__ void products(float (&s)[TALL][WIDE / 8][4], attention_tile<T, DEPTH> a,
                                         attention_tile<T, DEPTH> b, int depth)
{
#pragma unroll
    for (int m = 0; m < TALL; m++)
#pragma unroll
        for (int n = 0; n < WIDE / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[m][n][e] = 0;
#pragma unroll
    for (int k = 0; k < DEPTH * (int)sizeof(T) / 32; k++) {
        if (k / (int)sizeof(T) * 32 >= depth) /* sizeof(T) fragments span 32 columns */
            continue;
        uint32_t left[TALL][4], right[4];
#pragma unroll
        for (int m = 0; m < TALL; m++)
            a.left(left[m], 16 * m, k);
#pragma unroll
        for (int n = 0; n < WIDE / 16; n++) {
            b.right(right, 16 * n, k);
#pragma unroll
            for (int m = 0; m < TALL; m++)
                mma_pair<T>(s[m][2 * n], s[m][2 * n + 1], left[m], right);
        }
    }
}

/**
 * sum[m] += p[m] b, for the WIDE rows of b and its first `depth` columns, rounded up to 32. The
 * caller's operand(left, m, k) sets `left` to columns 16 k to 16 k + 15 of p[m] as a left operand.
 * PARTS warps share the columns of b: each computes every PARTS-th run of 32 columns, this warp
 * starting at run `part`.
 */
template <class T, int DEPTH, int TALL, int WIDE, int PARTS = 1, class F>
__device__ __forceinline__ void accumulate_operand(float (&sum)[TALL][DEPTH / PARTS / 8][4],
                                                   F &&operand, attention_tile<T, DEPTH> b,
                                                   int depth, int part = 0)
{
#pragma unroll
    for (int k = 0; k < WIDE / 16; k++) {
        uint32_t left[TALL][4], right[4];
#pragma unroll
        for (int m = 0; m < TALL; m++)
            operand(left[m], m, k);
#pragma unroll
        for (int n = 0; n < DEPTH / PARTS / 16; n++) {
            int run = n / 2 * PARTS + part;
            if (run * 32 >= depth)
                continue;
            b.right_transposed(right, 16 * k, run * 2 + n % 2);
#pragma unroll
            for (int m = 0; m < TALL; m++) {
                mma<T>(sum[m][2 * n], left[m], right[0], right[1]);
                mma<T>(sum[m][2 * n + 1], left[m], right[2], right[3]);
            }
        }
    }
}

/** accumulate() for f32. */
template <int DEPTH, int PARTS, int TALL, int TILES>
__device__ __forceinline__ void accumulate_f32(float (&sum)[TALL][DEPTH / PARTS / 8][4],
                                               const float (&p)[TALL][TILES][4],
                                               attention_tile<float, DEPTH> b, int depth, int part)
{
    /* Of each eight rows of b, a lane loads rows 2 q and 2 q + 1 with q = lane % 4. They match the
       columns of p that the lane has. */
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < TILES; k++)
#pragma unroll
        for (int m = 0; m < TALL; m++) {
            auto of = [&](int e) { return split_f32(__builtin_bit_cast(uint32_t, p[m][k][e])); };
            const split_f32 left[4] = {of(0), of(2), of(1), of(3)};
#pragma unroll
            for (int n = 0; n < DEPTH / PARTS / 8; n++) {
                int run = n / 4 * PARTS + part;
                if (run * 32 >= depth)
                    continue;
                uint32_t x[2];
#pragma unroll
                for (int i = 0; i < 2; i++)
                    asm volatile(
                        "ld.shared.b32 %0, [%1];"
                        : "=r"(x[i])
                        : "r"(b.at(8 * k + lane % 4 * 2 + i, run * 8 + n % 4 * 2 + lane / 16) +
                              lane / 4 % 4 * 4)
                        : "memory");
                mma_f32(sum[m][n], left, split_f32(x[0]), split_f32(x[1]));
            }
        }
}
/** accumulate_operand() with the left operand p in registers, rounded to T. */
template <class T, int DEPTH, int TALL, int WIDE, int PARTS = 1>
__device__ __forceinline__ void accumulate(float (&sum)[TALL][DEPTH / PARTS / 8][4],
                                           const float (&p)[TALL][WIDE / 8][4],
                                           attention_tile<T, DEPTH> b, int depth, int part = 0)
{
    if constexpr (sizeof(T) == 4) {
        accumulate_f32<DEPTH, PARTS>(sum, p, b, depth, part);
    } else {
        auto operand = [&](uint32_t(&left)[4], int m, int k) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                left[i] =
                    pack2<T>(p[m][2 * k + i / 2][i % 2 * 2], p[m][2 * k + i / 2][i % 2 * 2 + 1]);
        };
        accumulate_operand<T, DEPTH, TALL, WIDE, PARTS>(sum, operand, b, depth, part);
    }
}

/** Multiplies a warp's 16 x COLUMNS accumulators by the factors of their rows (`low` for rows 0 to
 * 7, `high` for rows 8 to 15), rounds them, and stores them in rows row to row + 15 of a tile.
 * `parts` warps share the columns: each has every `parts`-th run of 32, this warp starting at run
 * `part`. */
template <class T, int DEPTH, int COLUMNS>
__device__ __forceinline__ void put(attention_tile<T, DEPTH> tile, int row,
                                    const float (&x)[COLUMNS / 8][4], float low, float high,
                                    int parts = 1, int part = 0)
{
    int lane = threadIdx.x % 32;
    if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float factor = half ? high : low;
                int chunk = (n / 4 * parts + part) * 8 + n % 4 * 2 + lane % 4 / 2;
                asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(
                                 tile.at(row + lane / 4 + 8 * half, chunk) + lane % 2 * 8),
                             "f"(x[n][2 * half] * factor), "f"(x[n][2 * half + 1] * factor)
                             : "memory");
            }
    } else {
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; n++) {
            int chunk = (n / 4 * parts + part) * 4 + n % 4;
            uint32_t at = tile.at(row + lane / 4, chunk) + lane % 4 * 4;
            asm volatile("st.shared.b32 [%0], %1;" ::"r"(at),
                         "r"(pack2<T>(x[n][0] * low, x[n][1] * low))
                         : "memory");
            at = tile.at(row + lane / 4 + 8, chunk) + lane % 4 * 4;
            asm volatile("st.shared.b32 [%0], %1;" ::"r"(at),
                         "r"(pack2<T>(x[n][2] * high, x[n][3] * high))
                         : "memory");
        }
    }
}

/** Writes the first `columns` columns of min(ROWS, rows) rows of a tile, beginning at row `row`, to
 * memory. `step`: elements from row to row of `to`. THREADS threads call; `thread` is the index
 * of the caller. */
template <int ROWS, int THREADS, class T, int HALVES>
__device__ __forceinline__ void write_rows(mma_tile<HALVES> tile, int row, T *to, int64_t step,
                                           int rows, int columns, int thread)
{
    constexpr int chunks = HALVES / 8, wide = 16 / sizeof(T);
#pragma unroll 1
    for (int index = thread; index < ROWS * chunks; index += THREADS) {
        int r = index / chunks, chunk = index % chunks;
        if (r < rows && chunk * wide < columns) {
            uint4 x;
            asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                         : "r"(tile.at(row + r, chunk))
                         : "memory");
            *(uint4 *)(to + r * step + chunk * wide) = x;
        }
    }
}

/** Returns a function that loads element i of a mask of dtype T and widens it. */
template <class T> __device__ __forceinline__ auto own_mask(const attention_call &c)
{
    return [&c](int64_t i) { return widen(((const T *)c.mask)[i]); };
}

/** Sizes of a block. DEPTH: columns of the tiles, at least those of the operands. rows: query rows;
 * bytes: shared memory for a tile of queries, one of keys and one of values. */
template <class T, int DEPTH_, bool RULES> struct attention_mma_shape {
    static constexpr int depth = DEPTH_, tall = depth > 128 || RULES ? 1 : 2,
                         wide = depth > 64 ? 32 : 64;
    static constexpr int rows = 64 * tall, threads = 128;
    /* blocks per multiprocessor, limited by registers */
    static constexpr int blocks = sizeof(T) == 4 && depth > 128 ? 1 : depth == 128 && RULES ? 3 : 2;
    static constexpr int bytes = (rows + 2 * wide) * depth * (int)sizeof(T);
};

/** A block computes S::rows query rows of one head and writes them to c.out and, unless NULL,
 * c.lse. RULES: the kernel supports calls with c.rules. */
template <class T, int DEPTH, bool RULES>
static __global__ void __launch_bounds__(128, attention_mma_shape<T, DEPTH, RULES>::blocks)
    attention_mma_kernel(const __grid_constant__ attention_call c)
{
    using S = attention_mma_shape<T, DEPTH, RULES>;
    constexpr int TALL = S::tall, WIDE = S::wide;
    extern __shared__ __align__(128) char shared[];
    attention_tile<T, DEPTH> q{shared_address(shared)},
        k{q.base + S::rows * DEPTH * (int)sizeof(T)}, v{k.base + WIDE * DEPTH * (int)sizeof(T)};

    /* the last rows of a head come first: under a causal mask they see the most keys */
    int blocks = (c.rows + S::rows - 1) / S::rows, head = (int)(blockIdx.x / blocks % c.heads),
        batch = (int)(blockIdx.x / blocks / c.heads);
    attention_span span = span_of(c, batch);
    int first = (blocks - 1 - (int)(blockIdx.x % blocks)) * S::rows,
        rows = min(S::rows, span.rows - first);
    if (rows <= 0)
        return;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, mine = warp * 16 * TALL;
    const T *keys = c.k.of<const T>(batch, head / c.share, span.first_key),
            *values = c.v.of<const T>(batch, head / c.share, span.first_key);
    attention_range seen = keys_of_rows(span, first, first + rows);
    attention_head rules{c, span, batch, head};

    float o[TALL][DEPTH / 8][4] = {}, top[TALL][2], sum[TALL][2] = {};
#pragma unroll
    for (int m = 0; m < TALL; m++)
        top[m][0] = top[m][1] = -INFINITY;

    int tile = seen.end > seen.first ? (seen.end - 1) / WIDE : -1, last = seen.first / WIDE;
    if (tile >= last) {
        q.template load<S::rows, 128>(c.q.of<const T>(batch, head, span.first_row + first), c.q.row,
                                      rows, c.depth);
        k.template load<WIDE, 128>(keys + tile * WIDE * c.k.row, c.k.row, span.keys - tile * WIDE,
                                   c.depth);
        copies_commit();
    }
    for (; tile >= last; tile--) {
        int from = tile * WIDE;
        copies_wait<0>();
        __syncthreads();
        v.template load<WIDE, 128>(values + from * c.v.row, c.v.row, span.keys - from,
                                   c.value_depth);
        copies_commit();

        attention_bits<WIDE / 8> kept = {}, shown = {};
        if (RULES && c.dropout)
            kept = rules.kept_of_rows<WIDE / 8>(first + mine, from);
        if (RULES && c.mask_type == MASK_BOOL)
            shown = rules.shown_of_rows<WIDE / 8>(first + mine, from);
        float s[TALL][WIDE / 8][4];
        products<T, DEPTH, TALL, WIDE>(s, q.from(mine), k, c.depth);
        copies_wait<0>();
        __syncthreads();
        if (tile > last) {
            k.template load<WIDE, 128>(keys + (from - WIDE) * c.k.row, c.k.row, WIDE, c.depth);
            copies_commit();
        }

        bool whole = sees_all(span, first, first + rows, from, from + WIDE);
#pragma unroll
        for (int m = 0; m < TALL; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int row = first + mine + 16 * m + lane / 4 + 8 * half;
                if ((RULES && c.rules) || !whole)
#pragma unroll
                    for (int n = 0; n < WIDE / 8; n++)
#pragma unroll
                        for (int e = 0; e < 2; e++) {
                            int key = from + n * 8 + lane % 4 * 2 + e;
                            float &x = s[m][n][2 * half + e], slope;
                            if (RULES && c.adjusted)
                                x = rules.score<T>(x, row, key, slope);
                            if ((!whole && !sees(span, row, key)) ||
                                (RULES && c.mask_type == MASK_BOOL && !shown.has(n, 2 * half + e)))
                                x = -INFINITY;
                        }
                float before = top[m][half], now = before;
#pragma unroll
                for (int n = 0; n < WIDE / 8; n++)
                    now = fmaxf(now, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
                now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 1));
                now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 2));
                top[m][half] = now;
                /* 0 for rows without a visible key so far */
                float base = now == -INFINITY ? 0 : RULES ? now : now * c.to_log2, total = 0;
                /* RULES: subtract before scaling. A mask may add the lowest finite numbers, for
                   which the rounding error of the product would be too large. */
                auto power = [&](float x) {
                    return exp2_fast(RULES ? (x - base) * c.to_log2 : x * c.to_log2 - base);
                };
                float rescale = power(before);
#pragma unroll
                for (int n = 0; n < WIDE / 8; n++)
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        float p = power(s[m][n][2 * half + e]);
                        s[m][n][2 * half + e] = p;
                        total += p;
                    }
                if (RULES && c.dropout)
#pragma unroll
                    for (int n = 0; n < WIDE / 8; n++)
#pragma unroll
                        for (int e = 2 * half; e < 2 * half + 2; e++)
                            s[m][n][e] = kept.has(n, e) ? s[m][n][e] : 0;
                sum[m][half] = sum[m][half] * rescale + total;
#pragma unroll
                for (int n = 0; n < DEPTH / 8; n++) {
                    o[m][n][2 * half] *= rescale;
                    o[m][n][2 * half + 1] *= rescale;
                }
            }
        accumulate<T, DEPTH, TALL, WIDE>(o, s, v, c.value_depth);
    }

    float inverse[TALL][2];
#pragma unroll
    for (int m = 0; m < TALL; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float total = sum[m][half];
            total += __shfl_xor_sync(0xffffffffu, total, 1);
            total += __shfl_xor_sync(0xffffffffu, total, 2);
            inverse[m][half] = total == 0 ? 0 : (RULES ? c.dropout_scale_half : 1) / total;
            int row = mine + 16 * m + lane / 4 + 8 * half;
            if (c.lse && lane % 4 == 0 && row < rows)
                ((float *)c.lse)[statistic_of(c, span, head, first + row)] =
                    total == 0 ? -INFINITY : top[m][half] * (c.to_log2 * ln_2) + logf(total);
        }

    /* only this warp reads its rows of q, so it may overwrite them */
    __syncwarp();
#pragma unroll
    for (int m = 0; m < TALL; m++)
        put<T, DEPTH, DEPTH>(q, mine + 16 * m, o[m], inverse[m][0], inverse[m][1]);
    __syncwarp();
    write_rows<16 * TALL, 32>(q, mine, c.out.of<T>(batch, head, span.first_row + first + mine),
                              c.out.row, rows - mine, c.value_depth, lane);
}

} // namespace ts

#endif
