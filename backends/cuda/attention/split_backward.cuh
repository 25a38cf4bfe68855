/**
 * @file split_backward.cuh
 * Gradients of attention of few rows: blocks split the keys, as split.cuh does.
 *
 * The rows of all query heads that share a key head are *packed rows*. A block processes a run of
 * the keys of one key head, for all packed rows. A team of lanes has one or two keys at a time in
 * registers: it computes the pairs of these keys with all rows, writes the gradients of keys and
 * values, and adds to the gradients of the rows. The block adds the sums of its teams. If there are
 * several runs, a second kernel adds the sums of the runs. Both kernels add in a fixed order.
 *
 * The first kernel reads keys and values once, and multiplies in f32 without tensor cores: for few
 * rows, memory limits its speed.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_ATTENTION_SPLIT_BACKWARD_CUH
#define TS_CUDA_ATTENTION_SPLIT_BACKWARD_CUH

#include "backends/cuda/attention/split.cuh"

namespace ts {

/** Sizes of a block. A lane has `wide` columns of a key and of a value, in CHUNKS vectors of 16
 * bytes. A block has up to `columns` columns and up to `rows` packed rows (1 unless MANY). `keys`:
 * keys that a team has at a time; `blocks`: blocks per multiprocessor. */
template <class T, int CHUNKS, bool MANY> struct attention_split_backward_shape {
    static constexpr int wide = CHUNKS * vec16<T>, columns = 32 * wide, threads = 256,
                         warps = threads / 32,
                         rows = !MANY            ? 1
                                : sizeof(T) == 4 ? 64 / wide
                                                 : 4,
                         keys = MANY || CHUNKS == 2 ? 1 : 2, blocks = MANY ? 2 : 3;
};

/** Sums x, and y, over each team of `lanes` lanes, 4 to 32; all lanes of a team get the same bits.
 * After the first step odd lanes add y and even lanes add x. */
__device__ __forceinline__ void sum_both(float &x, float &y, int lanes)
{
    bool odd = threadIdx.x % 2;
    float sum = (odd ? y : x) + __shfl_xor_sync(0xffffffffu, odd ? x : y, 1);
#pragma unroll
    for (int step = 16; step > 2; step /= 2)
        if (lanes > step)
            sum += __shfl_xor_sync(0xffffffffu, sum, step);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    float other = __shfl_xor_sync(0xffffffffu, sum, 1);
    x = odd ? other : sum;
    y = odd ? sum : other;
}

/** One block per run of keys, key head and batch. Writes c.dk, c.dv and c.dq, unless NULL; if
 * c.splits > 1, writes the run's sums for dq to c.parts instead of c.dq, for
 * attention_split_backward_merge_kernel(). `lanes`: lanes of a team. */
template <class T, int CHUNKS, bool MANY>
static __global__ void __launch_bounds__(256,
                                         (attention_split_backward_shape<T, CHUNKS, MANY>::blocks))
    attention_split_backward_kernel(const __grid_constant__ attention_call c, int lanes)
{
    using S = attention_split_backward_shape<T, CHUNKS, MANY>;
    constexpr int VEC = vec16<T>, WIDE = S::wide, ROWS = S::rows, KEYS = S::keys;
    __shared__ __align__(16) float queries[ROWS][S::columns], grads[ROWS][S::columns];
    __shared__ float2 pairs[ROWS]; /* as in c.pairs */
    __shared__ attention_split_row places[ROWS];
    __shared__ float sums[S::warps][S::columns];
    /* of a team's pairs: the mask's addend, and the factor of dropout. Computed outside the
       unrolled loops, whose code must fit the instruction cache */
    __shared__ float2 rules[S::threads / 4][KEYS][ROWS];
    begin_next_kernel();
    int warp = threadIdx.x / 32, lane = threadIdx.x % lanes, team = threadIdx.x / lanes,
        teams = S::threads / lanes, groups = c.heads / c.share, packed = c.share * c.rows;
    int split = (int)(blockIdx.x % c.splits), group = (int)(blockIdx.x / c.splits % groups),
        batch = (int)(blockIdx.x / c.splits / groups);
    attention_span span = span_of(c, batch);
    attention_range run = split_run({0, span.keys}, split, c.splits, KEYS * teams),
                    seen = keys_of_rows(span, 0, span.rows);
    auto column_of = [&](int chunk) { return (chunk * lanes + lane) * VEC; };

    for (int i = threadIdx.x; i < ROWS * S::columns; i += S::threads) {
        int r = i / S::columns, column = i % S::columns;
        attention_split_row at = split_row_of(c, group, r);
        bool there = r < packed && at.row < span.rows;
        int64_t row = span.first_row + at.row;
        queries[r][column] =
            there && column < c.depth ? widen(c.q.of<T>(batch, at.head, row)[column]) : 0;
        grads[r][column] =
            there && column < c.value_depth ? widen(c.g.of<T>(batch, at.head, row)[column]) : 0;
    }
    for (int r = warp; r < ROWS; r += S::warps) {
        attention_split_row at = split_row_of(c, group, r);
        float2 pair = {INFINITY, 0};
        if (r < packed && at.row < span.rows) {
            int64_t row = span.first_row + at.row, place = statistic_of(c, span, at.head, at.row);
            for (int i = threadIdx.x % 32; i < c.value_depth; i += 32)
                pair.y += widen(c.g.of<T>(batch, at.head, row)[i]) *
                          widen(c.out.of<T>(batch, at.head, row)[i]);
#pragma unroll
            for (int step = 16; step; step /= 2)
                pair.y += __shfl_xor_sync(0xffffffffu, pair.y, step);
            float lse = ((const float *)c.lse)[place];
            pair.x = lse == -INFINITY ? 0 : lse * log2_e;
            if (c.g_lse)
                pair.y -= ((const float *)c.g_lse)[place];
        }
        if (threadIdx.x % 32 == 0) {
            pairs[r] = pair;
            places[r] = at;
        }
    }
    __syncthreads();

    const float scale = (float)c.scale;
    float dq[ROWS][WIDE] = {};
#pragma unroll 1
    for (int from = run.first; from < run.end; from += KEYS * teams) {
        vec<T, VEC> keys[KEYS][CHUNKS] = {}, values[KEYS][CHUNKS] = {};
#pragma unroll
        for (int j = 0; j < KEYS; j++) {
            int key = from + j * teams + team;
            bool some = key >= seen.first && key < seen.end;
            const T *k = c.k.of<const T>(batch, group, span.first_key + key),
                    *v = c.v.of<const T>(batch, group, span.first_key + key);
#pragma unroll
            for (int i = 0; i < CHUNKS; i++) {
                if (some && column_of(i) < c.depth)
                    keys[j][i] = *(const vec<T, VEC> *)(k + column_of(i));
                if (some && column_of(i) < c.value_depth)
                    values[j][i] = *(const vec<T, VEC> *)(v + column_of(i));
            }
        }
        if (c.rules) {
            __syncwarp();
#pragma unroll 1
            for (int i = lane; i < KEYS * packed; i += lanes) {
                int r = i / KEYS, key = from + i % KEYS * teams + team;
                attention_split_row at = places[r];
                float2 rule = {0, 1};
                if (sees(span, at.row, key)) {
                    if (c.mask_type != NO_MASK)
                        rule.x =
                            attention_added<float>(c, batch, at.head, at.row, key, own_mask<T>(c));
                    if (c.dropout)
                        rule.y = attention_kept<float>(c, batch, at.head, at.row, key);
                }
                rules[team][i % KEYS][r] = rule;
            }
            __syncwarp();
        }
        float k[KEYS][WIDE], v[KEYS][WIDE], dk[KEYS][WIDE] = {}, dv[KEYS][WIDE] = {};
#pragma unroll
        for (int j = 0; j < KEYS; j++)
#pragma unroll
            for (int i = 0; i < CHUNKS; i++) {
                unpacked<T, VEC> one(keys[j][i]), other(values[j][i]);
#pragma unroll
                for (int e = 0; e < VEC; e++) {
                    k[j][i * VEC + e] = one.at[e];
                    v[j][i * VEC + e] = other.at[e];
                }
            }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (r >= packed)
                break;
            attention_split_row at = places[r];
            float2 pair = pairs[r];
            float q[WIDE], g[WIDE];
#pragma unroll
            for (int i = 0; i < CHUNKS; i++)
#pragma unroll
                for (int e = 0; e < VEC; e += 4) {
                    *(float4 *)(q + i * VEC + e) = *(const float4 *)(queries[r] + column_of(i) + e);
                    *(float4 *)(g + i * VEC + e) = *(const float4 *)(grads[r] + column_of(i) + e);
                }
#pragma unroll
            for (int j = 0; j < KEYS; j++) {
                float score = 0, change = 0, slope = 1;
                float2 rule = c.rules ? rules[team][j][r] : float2{0, 1};
                bool visible = sees(span, at.row, from + j * teams + team);
#pragma unroll
                for (int e = 0; e < WIDE; e++) {
                    score += q[e] * k[j][e];
                    change += g[e] * v[j][e];
                }
                sum_both(score, change, lanes);
                if (c.adjusted)
                    score = attention_score(c, score, rule.x, slope);
                float power = score * c.to_log2 - pair.x;
                if (c.adjusted) /* > 0 only by rounding, for scores near -2e38 */
                    power = power > 0 ? 0 : power;
                float p = 0, ds = 0;
                if (visible && rule.x != -INFINITY) {
                    p = exp2_fast(power);
                    ds = p * (change * rule.y - pair.y) * slope;
                    p *= rule.y;
                }
#pragma unroll
                for (int e = 0; e < WIDE; e++) {
                    dk[j][e] += ds * q[e];
                    dv[j][e] += p * g[e];
                    dq[r][e] += ds * k[j][e];
                }
            }
        }
#pragma unroll
        for (int j = 0; j < KEYS; j++) {
            int key = from + j * teams + team;
            if (key >= run.end)
                break;
#pragma unroll
            for (int i = 0; i < CHUNKS; i++) {
                float x[VEC], y[VEC];
#pragma unroll
                for (int e = 0; e < VEC; e++) {
                    x[e] = dk[j][i * VEC + e] * scale;
                    y[e] = dv[j][i * VEC + e];
                }
                if (c.dk.data && column_of(i) < c.depth)
                    *(vec<T, VEC> *)(c.dk.of<T>(batch, group, span.first_key + key) +
                                     column_of(i)) = pack<T, VEC>(x);
                if (c.dv.data && column_of(i) < c.value_depth)
                    *(vec<T, VEC> *)(c.dv.of<T>(batch, group, span.first_key + key) +
                                     column_of(i)) = pack<T, VEC>(y);
            }
        }
    }
    if (!c.dq.data)
        return;

#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (r >= packed)
            break;
        __syncthreads();
#pragma unroll
        for (int e = 0; e < WIDE; e++) {
            float x = dq[r][e];
            for (int step = lanes; step < 32; step *= 2)
                x += __shfl_xor_sync(0xffffffffu, x, step);
            if ((int)threadIdx.x % 32 < lanes)
                sums[warp][column_of(e / VEC) + e % VEC] = x * scale;
        }
        __syncthreads();
        int column = (int)threadIdx.x;
        attention_split_row at = places[r];
        if (column >= c.depth || at.row >= span.rows)
            continue;
        float x = 0;
#pragma unroll
        for (int w = 0; w < S::warps; w++)
            x += sums[w][column];
        int64_t line = ((int64_t)batch * groups + group) * packed + r;
        if (c.splits > 1)
            c.parts[(line * c.splits + split) * c.depth + column] = x;
        else
            c.dq.of<T>(batch, at.head, span.first_row + at.row)[column] = narrow<T>(x);
    }
}

/** Adds the sums of all runs of keys and writes them to c.dq. A block computes one packed row; each
 * team of c.depth / 4 threads adds every `teams`-th run. */
template <class T>
static __global__ void __launch_bounds__(256)
    attention_split_backward_merge_kernel(const __grid_constant__ attention_call c)
{
    __shared__ float4 sums[256];
    int groups = c.heads / c.share, packed = c.share * c.rows, lanes = c.depth / 4,
        teams = min(256 / lanes, 32), team = (int)threadIdx.x / lanes;
    attention_split_row at =
        split_row_of(c, (int)(blockIdx.x / packed % groups), (int)(blockIdx.x % packed));
    int batch = (int)(blockIdx.x / packed / groups);
    attention_span span = span_of(c, batch);
    wait_for_kernel_in_front();
    if (at.row >= span.rows)
        return;
    const float4 *from =
        (const float4 *)c.parts + (int64_t)blockIdx.x * c.splits * lanes + threadIdx.x % lanes;
    float4 sum = {};
#pragma unroll 4
    for (int i = team; i < c.splits && team < teams; i += teams) {
        float4 x = from[(int64_t)i * lanes];
        sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    int column = (int)threadIdx.x;
    if (column >= c.depth)
        return;
    float x = 0;
    for (int i = 0; i < teams; i++)
        x += ((const float *)sums)[i * c.depth + column];
    c.dq.of<T>(batch, at.head, span.first_row + at.row)[column] = narrow<T>(x);
}

} // namespace ts

#endif
