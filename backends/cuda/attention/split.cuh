/**
 * @file split.cuh
 * Attention forward of few rows, as in decoding: blocks split the keys (Dao et al., Flash-Decoding,
 * 2023). split.cu launches the kernels.
 *
 * The rows of all query heads that share a key head are packed into tiles of 16 or 32 rows. Each
 * tile of rows reads keys and values once. The visible keys are divided into runs. A block of four
 * warps processes one run for one tile of rows; each warp streams every fourth tile of keys and
 * values through its own ring in shared memory and keeps sums, maxima and results of the tile's
 * rows. The block merges the results of its warps. If there are several runs, a second kernel,
 * attention_merge_kernel(), merges their results. Both merge in a fixed order.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_ATTENTION_SPLIT_CUH
#define TS_CUDA_ATTENTION_SPLIT_CUH

#include "backends/cuda/attention/mma.cuh"
#include "backends/cuda/runtime/early.cuh"

namespace ts {

/** Sizes of a block. TALL: number of fragments of 16 rows. tile: bytes of a tile of keys or values;
 * ring: bytes of a warp's ring, which has `stages` tiles of keys and as many of values; bytes: of
 * the block's shared memory. */
template <class T, int DEPTH_, int TALL_> struct attention_split_shape {
    static constexpr int depth = DEPTH_, tall = TALL_, rows = 16 * tall, warps = 4,
                         threads = 32 * warps, stages = 3;
    static constexpr int row_bytes = depth * (int)sizeof(T),
                         keys = row_bytes > 128 ? 16 : 32; /* keys per warp's tile */
    static constexpr int tile = keys * row_bytes, ring = 2 * stages * tile,
                         blocks = row_bytes > 256 ? 1 : 2; /* blocks per multiprocessor */
    static constexpr int unit = keys * warps; /* runs begin at multiples of `unit` keys */
    static constexpr int bytes = warps * ring;
    static_assert(bytes >= warps * rows * (depth + 2) * 4, "the ring later holds f32 results");
};

/** Floats per row of a block's partial result: `depth` weighted sums of values before division, the
 * maximum score as an exponent of 2, and the sum of weights. */
constexpr int attention_part_floats(int depth) { return depth + 2; }

/** The query head and row of row r of the packed rows of a key head (`group`). */
struct attention_split_row {
    int head, row;
};
__device__ __forceinline__ attention_split_row split_row_of(const attention_call &c, int group,
                                                            int r)
{
    return {group * c.share + r / c.rows, r % c.rows};
}

/** A warp starts the asynchronous copy of a tile of ROWS rows; step: elements from row to row of
 * `from`. Rows at `rows` and above and columns at `columns` and above become zero. */
template <int ROWS, int HALVES, class T>
__device__ __forceinline__ void load_by_warp(mma_tile<HALVES> tile, const T *from, int64_t step,
                                             int rows, int columns, int lane)
{
    constexpr int wide = 16 / sizeof(T), chunks = HALVES / 8, across = chunks < 32 ? chunks : 32,
                  down = 32 / across;
    int chunk = lane % across, first = lane / across;
#pragma unroll
    for (int i = 0; i < ROWS / down; i++) {
        int row = first + i * down;
        bool some = row < rows && chunk * wide < columns;
        copy16(tile.at(row, chunk), some ? from + row * step + chunk * wide : from, some);
    }
}

/** Writes two adjacent elements of a row, rounded to T. */
template <class T> __device__ __forceinline__ void write_two(T *to, float first, float second)
{
    if constexpr (sizeof(T) == 4)
        *(float2 *)to = {first, second};
    else
        *(uint32_t *)to = pack2<T>(first, second);
}

/** Run number `split` of the `splits` runs of the visible keys. Runs begin at multiples of `unit`;
 * the last ones may be empty. */
__device__ __forceinline__ attention_range split_run(const attention_range &seen, int split,
                                                     int splits, int unit)
{
    int begin = seen.first / unit * unit, units = (max(seen.end - begin, 0) + unit - 1) / unit,
        each = (units + splits - 1) / splits;
    int first = begin + min(units, split * each) * unit;
    return {first, min(seen.end, first + each * unit)};
}

/** One block per tile of packed rows, run of keys, key head and batch. Writes c.out and, unless
 * NULL, c.lse; if c.splits > 1, writes the run's partial results to c.parts instead, for
 * attention_merge_kernel(). RULES: the kernel supports calls with c.rules. */
template <class T, int DEPTH, int TALL, bool RULES>
static __global__ void __launch_bounds__(128, attention_split_shape<T, DEPTH, TALL>::blocks)
    attention_split_kernel(const __grid_constant__ attention_call c)
{
    using S = attention_split_shape<T, DEPTH, TALL>;
    using tile = attention_tile<T, DEPTH>;
    constexpr int KEYS = S::keys, STAGES = S::stages, STEPS = S::row_bytes / 32;
    extern __shared__ __align__(128) char shared[];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, quad = lane % 4;
    int groups = c.heads / c.share, packed = c.share * c.rows,
        tiles = (packed + S::rows - 1) / S::rows;
    int tile_of_rows = (int)(blockIdx.x % tiles), split = (int)(blockIdx.x / tiles % c.splits),
        group = (int)(blockIdx.x / tiles / c.splits % groups),
        batch = (int)(blockIdx.x / tiles / c.splits / groups);
    int first_row = tile_of_rows * S::rows;
    attention_span span = span_of(c, batch);
    attention_range run = split_run(keys_of_rows(span, 0, span.rows), split, c.splits, S::unit);
    const T *keys = c.k.of<const T>(batch, group, span.first_key),
            *values = c.v.of<const T>(batch, group, span.first_key);
    uint32_t ring = shared_address(shared) + (uint32_t)(warp * S::ring);
    auto key_tile = [&](int stage) { return tile{ring + 2 * stage * S::tile}; };
    auto value_tile = [&](int stage) { return tile{ring + (2 * stage + 1) * S::tile}; };

    int count = max(0, run.end - run.first), all = (count + KEYS - 1) / KEYS,
        mine = all > warp ? (all - warp + S::warps - 1) / S::warps : 0;
    auto load = [&](int i) {
        if (i < mine) {
            int from = run.first + (i * S::warps + warp) * KEYS;
            load_by_warp<KEYS>(key_tile(i % STAGES), keys + from * c.k.row, c.k.row, run.end - from,
                               c.depth, lane);
            load_by_warp<KEYS>(value_tile(i % STAGES), values + from * c.v.row, c.v.row,
                               run.end - from, c.value_depth, lane);
        }
        copies_commit();
    };
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++)
        load(i);
    begin_next_kernel();

    /* queries as left operands, in registers */
    uint32_t q[TALL][STEPS][4];
    auto row_of = [&](int m, int half) { return first_row + 16 * m + lane / 4 + 8 * half; };
#pragma unroll
    for (int m = 0; m < TALL; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int r = row_of(m, half);
            attention_split_row at = split_row_of(c, group, r);
            bool there = r < packed && at.row < span.rows;
            const T *from =
                there ? c.q.of<const T>(batch, at.head, span.first_row + at.row) : nullptr;
#pragma unroll
            for (int k = 0; k < STEPS; k++)
#pragma unroll
                for (int side = 0; side < 2; side++) {
                    int column = (8 * k + 4 * side + quad) * 4 / (int)sizeof(T);
                    q[m][k][2 * side + half] =
                        there && column < c.depth ? *(const uint32_t *)(from + column) : 0;
                }
        }

    float o[TALL][DEPTH / 8][4] = {}, top[TALL][2], sum[TALL][2] = {};
#pragma unroll
    for (int m = 0; m < TALL; m++)
        top[m][0] = top[m][1] = -INFINITY;
#pragma unroll 1
    for (int i = 0; i < mine; i++) {
        /* a pair outside the sequence loads the value of another pair: the loads need no branch */
        float added[RULES ? TALL : 1][KEYS / 8][4] = {};
        if (RULES && c.mask_type != NO_MASK)
#pragma unroll
            for (int m = 0; m < TALL; m++)
#pragma unroll
                for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        attention_split_row at =
                            split_row_of(c, group, min(row_of(m, e / 2), packed - 1));
                        int key =
                            run.first + (i * S::warps + warp) * KEYS + n * 8 + quad * 2 + e % 2;
                        added[m][n][e] = attention_added<float>(
                            c, batch, at.head, min(at.row, max(span.rows - 1, 0)),
                            min(key, span.keys - 1), own_mask<T>(c));
                    }
        copies_wait<STAGES - 2>();
        __syncwarp();
        load(i + STAGES - 1); /* overwrites the tiles of iteration i - 1 */
        int from = run.first + (i * S::warps + warp) * KEYS;
        tile k_tile = key_tile(i % STAGES), v_tile = value_tile(i % STAGES);

        float s[TALL][KEYS / 8][4] = {};
#pragma unroll
        for (int k = 0; k < STEPS; k++)
#pragma unroll
            for (int n = 0; n < KEYS / 16; n++) {
                uint32_t right[4];
                k_tile.right(right, 16 * n, k);
#pragma unroll
                for (int m = 0; m < TALL; m++)
                    mma_pair<T>(s[m][2 * n], s[m][2 * n + 1], q[m][k], right);
            }

        bool whole = from + KEYS <= run.end && sees_all(span, 0, span.rows, from, from + KEYS);
        bool grown = false;
        float rescale[TALL][2];
#pragma unroll
        for (int m = 0; m < TALL; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                attention_split_row at = split_row_of(c, group, row_of(m, half));
                if ((RULES && c.rules) || !whole)
#pragma unroll
                    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                        for (int e = 0; e < 2; e++) {
                            int key = from + n * 8 + quad * 2 + e;
                            float &x = s[m][n][2 * half + e], slope;
                            if (RULES && c.adjusted)
                                x = attention_score(c, x, added[m][n][2 * half + e], slope);
                            if (!sees(span, at.row, key) || row_of(m, half) >= packed ||
                                (RULES && added[m][n][2 * half + e] == -INFINITY))
                                x = -INFINITY;
                        }
                float before = top[m][half], now = before;
#pragma unroll
                for (int n = 0; n < KEYS / 8; n++)
                    now = fmaxf(now, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
                now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 1));
                now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 2));
                top[m][half] = now;
                grown = grown || now != before;
                /* 0 for rows without a visible key so far */
                float base = now == -INFINITY ? 0 : RULES ? now : now * c.to_log2, total = 0;
                auto power = [&](float x) { /* as in attention_mma_kernel() */
                    return exp2_fast(RULES ? (x - base) * c.to_log2 : x * c.to_log2 - base);
                };
                rescale[m][half] = power(before);
#pragma unroll
                for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        float p = power(s[m][n][2 * half + e]);
                        s[m][n][2 * half + e] = p;
                        total += p;
                    }
                if (RULES && c.dropout)
#pragma unroll
                    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                        for (int e = 0; e < 2; e++)
                            s[m][n][2 * half + e] *= attention_kept<float>(
                                c, batch, at.head, at.row, from + n * 8 + quad * 2 + e);
                sum[m][half] = sum[m][half] * rescale[m][half] + total;
            }
        if (__any_sync(0xffffffffu, grown))
#pragma unroll
            for (int m = 0; m < TALL; m++)
#pragma unroll
                for (int n = 0; n < DEPTH / 8; n++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        o[m][n][e] *= rescale[m][e / 2];
        accumulate<T, DEPTH, TALL, KEYS>(o, s, v_tile, c.value_depth);
    }

    /* the warps exchange their results through the memory of the rings */
    copies_wait<0>();
    __syncthreads();
    constexpr int FLOATS = attention_part_floats(DEPTH);
    float *parts = (float *)shared;
#pragma unroll
    for (int m = 0; m < TALL; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float total = sum[m][half];
            total += __shfl_xor_sync(0xffffffffu, total, 1);
            total += __shfl_xor_sync(0xffffffffu, total, 2);
            float *at = parts + (warp * S::rows + 16 * m + lane / 4 + 8 * half) * FLOATS;
#pragma unroll
            for (int n = 0; n < DEPTH / 8; n++)
                *(float2 *)(at + 8 * n + 2 * quad) =
                    make_float2(o[m][n][2 * half], o[m][n][2 * half + 1]);
            if (quad == 0)
                *(float2 *)(at + DEPTH) = make_float2(top[m][half] * c.to_log2, total);
        }
    __syncthreads();
    int rows = min(S::rows, packed - first_row);
    constexpr int LANES = DEPTH / 4; /* threads of a row, four columns each */
    for (int r = threadIdx.x / LANES; r < rows; r += S::threads / LANES) {
        int column = threadIdx.x % LANES * 4;
        float most = -INFINITY, total = 0, x[4] = {};
#pragma unroll
        for (int w = 0; w < S::warps; w++)
            most = fmaxf(most, parts[(w * S::rows + r) * FLOATS + DEPTH]);
        float base = most == -INFINITY ? 0 : most;
#pragma unroll
        for (int w = 0; w < S::warps; w++) {
            const float *at = parts + (w * S::rows + r) * FLOATS;
            float factor = exp2_fast(at[DEPTH] - base);
            total += factor * at[DEPTH + 1];
#pragma unroll
            for (int e = 0; e < 4; e++)
                x[e] += factor * at[column + e];
        }
        attention_split_row to = split_row_of(c, group, first_row + r);
        if (c.splits > 1) {
            int64_t line = ((int64_t)batch * groups + group) * packed + first_row + r;
            float *at = c.parts + (line * c.splits + split) * FLOATS;
            *(float2 *)(at + column) = make_float2(x[0], x[1]);
            *(float2 *)(at + column + 2) = make_float2(x[2], x[3]);
            if (column == 0)
                *(float2 *)(at + DEPTH) = make_float2(most, total);
            continue;
        }
        if (to.row >= span.rows)
            continue;
        float inverse = total == 0 ? 0 : 1 / total;
        if (column < c.value_depth) {
            T *at = c.out.of<T>(batch, to.head, span.first_row + to.row) + column;
            write_two(at, x[0] * inverse, x[1] * inverse);
            write_two(at + 2, x[2] * inverse, x[3] * inverse);
        }
        if (c.lse && column == 0)
            ((float *)c.lse)[statistic_of(c, span, to.head, to.row)] =
                total == 0 ? -INFINITY : most * ln_2 + logf(total);
    }
}

/** With this many runs or more, attention_merge_kernel() uses 1,024 threads per row, else 256. */
constexpr int merge_many = 33;

/** Merges the partial results of the runs of keys and writes c.out and, unless NULL, c.lse. A block
 * computes one row; each team of DEPTH / 4 threads adds every TEAMS-th run. */
template <class T, int DEPTH, int THREADS>
static __global__ void __launch_bounds__(THREADS)
    attention_merge_kernel(const __grid_constant__ attention_call c)
{
    constexpr int FLOATS = attention_part_floats(DEPTH), LANES = DEPTH / 4, TEAMS = THREADS / LANES;
    __shared__ float sums[TEAMS][DEPTH + 1], tops[THREADS / 32];
    int groups = c.heads / c.share, packed = c.share * c.rows;
    int r = (int)(blockIdx.x % packed), group = (int)(blockIdx.x / packed % groups),
        batch = (int)(blockIdx.x / packed / groups);
    const float *parts = c.parts + (int64_t)blockIdx.x * c.splits * FLOATS;
    attention_span span = span_of(c, batch);
    attention_split_row to = split_row_of(c, group, r);
    wait_for_kernel_in_front();
    if (to.row >= span.rows)
        return;

    int team = threadIdx.x / LANES, column = threadIdx.x % LANES * 4;
    float most = -INFINITY;
    for (int i = threadIdx.x; i < c.splits; i += THREADS)
        most = fmaxf(most, parts[i * FLOATS + DEPTH]);
#pragma unroll
    for (int step = 16; step; step /= 2)
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    if (threadIdx.x % 32 == 0)
        tops[threadIdx.x / 32] = most;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < THREADS / 32; i++)
        most = fmaxf(most, tops[i]);
    float base = most == -INFINITY ? 0 : most;

    float total = 0, x[4] = {};
#pragma unroll 4
    for (int i = team; i < c.splits; i += TEAMS) {
        const float *at = parts + i * FLOATS;
        float2 state = *(const float2 *)(at + DEPTH), low = *(const float2 *)(at + column),
               high = *(const float2 *)(at + column + 2);
        float factor = exp2_fast(state.x - base);
        total += factor * state.y;
        x[0] += factor * low.x;
        x[1] += factor * low.y;
        x[2] += factor * high.x;
        x[3] += factor * high.y;
    }
#pragma unroll
    for (int e = 0; e < 4; e++)
        sums[team][column + e] = x[e];
    if (column == 0)
        sums[team][DEPTH] = total;
    __syncthreads();
    if ((int)threadIdx.x >= DEPTH / 2)
        return;
    total = x[0] = x[1] = 0;
    column = (int)threadIdx.x * 2;
#pragma unroll
    for (int i = 0; i < TEAMS; i++) {
        total += sums[i][DEPTH];
        x[0] += sums[i][column];
        x[1] += sums[i][column + 1];
    }
    float inverse = total == 0 ? 0 : 1 / total;
    if (column < c.value_depth)
        write_two(c.out.of<T>(batch, to.head, span.first_row + to.row) + column, x[0] * inverse,
                  x[1] * inverse);
    if (c.lse && column == 0)
        ((float *)c.lse)[statistic_of(c, span, to.head, to.row)] =
            total == 0 ? -INFINITY : most * ln_2 + logf(total);
}

} // namespace ts

#endif
