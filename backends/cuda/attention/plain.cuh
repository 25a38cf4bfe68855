/**
 * @file plain.cuh  Attention without tensor cores, in f32 or f64, for calls that the
 * tensor core kernels do not support: f64, depths that are 0, above 256 or not a multiple of 8, and
 * depths for which a block lacks shared memory; also for tests. Scores exist only as tiles of
 * SIDE x SIDE in shared memory.
 *
 * A block of 16 x 16 threads owns SIDE rows and SLICE columns of the result. Blocks of other slices
 * recompute the same scores. A thread holds rows y, y + 16 and columns x, x + 16 of a tile.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_ATTENTION_PLAIN_CUH
#define TS_CUDA_ATTENTION_PLAIN_CUH

#include "backends/cuda/attention/attention.cuh"

namespace ts {

enum { SIDE = 32, SLICE = 128, PLAIN_THREADS = 256 };

/* A is the type of the arithmetic: double for f64, else float. */

/** Two numbers of a row for the backward passes: see attention_plain_pairs_kernel(). */
template <class A> struct plain_pair {
    A lse, delta;
};
template <class A> using plain_tile = A[SIDE][SIDE + 1];

/** Loads element i of `data`, which has the call's dtype. */
template <class A>
__device__ __forceinline__ A plain_get(const attention_call &c, const void *data, int64_t i)
{
    if constexpr (sizeof(A) == 8)
        return ((const double *)data)[i];
    else
        return c.type == ATTENTION_F32    ? ((const float *)data)[i]
               : c.type == ATTENTION_BF16 ? widen(((const bf16 *)data)[i])
                                          : widen(((const f16 *)data)[i]);
}
/** Stores x as element i of `data`, which has the call's dtype. */
template <class A>
__device__ __forceinline__ void plain_set(const attention_call &c, void *data, int64_t i, A x)
{
    if constexpr (sizeof(A) == 8)
        ((double *)data)[i] = x;
    else if (c.type == ATTENTION_F32)
        ((float *)data)[i] = x;
    else if (c.type == ATTENTION_BF16)
        ((bf16 *)data)[i] = narrow<bf16>(x);
    else
        ((f16 *)data)[i] = narrow<f16>(x);
}

/** The rows of one head of an operand, starting at row `first`; start and step are in elements. */
struct plain_matrix {
    const void *data;
    int64_t start, step;
    int rows, columns;

    __device__ __forceinline__ plain_matrix(const attention_operand &x, int batch, int head,
                                            int64_t first, int rows, int columns)
        : data(x.data), start(batch * x.batch + head * x.head + first * x.row), step(x.row),
          rows(rows), columns(columns)
    {
    }
};

/** Loads rows row to row + SIDE - 1 and columns column to column + SIDE - 1 into shared memory,
 * with zeros outside the matrix. The whole block calls; the caller synchronizes. */
template <class A>
__device__ __forceinline__ void plain_load(const attention_call &c, plain_tile<A> &to,
                                           const plain_matrix &m, int row, int column)
{
    for (int i = threadIdx.x; i < SIDE * SIDE; i += PLAIN_THREADS) {
        int r = i / SIDE, k = i % SIDE;
        bool some = row + r < m.rows && column + k < m.columns;
        to[r][k] = some ? plain_get<A>(c, m.data, m.start + (row + r) * m.step + column + k) : (A)0;
    }
}

/** s = a thread's dot products of SIDE rows of a, starting at `row`, and SIDE rows of b, starting
 * at `other`. The tiles `left` and `right` are scratch. The whole block calls. */
template <class A>
__device__ __forceinline__ void
plain_products(const attention_call &c, A (&s)[2][2], const plain_matrix &a, int row,
               const plain_matrix &b, int other, plain_tile<A> &left, plain_tile<A> &right)
{
    int x = threadIdx.x % 16, y = threadIdx.x / 16;
    s[0][0] = s[0][1] = s[1][0] = s[1][1] = 0;
    for (int column = 0; column < a.columns; column += SIDE) {
        __syncthreads();
        plain_load<A>(c, left, a, row, column);
        plain_load<A>(c, right, b, other, column);
        __syncthreads();
#pragma unroll 8
        for (int k = 0; k < SIDE; k++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[i / 2][i % 2] += left[y + i / 2 * 16][k] * right[x + i % 2 * 16][k];
    }
}

/** sum += p b, for the SIDE rows of b starting at `row` and SLICE columns starting at `column`. The
 * tile `right` is scratch. The whole block calls. */
template <class A>
__device__ __forceinline__ void plain_accumulate(const attention_call &c, A (&sum)[2][SLICE / 16],
                                                 const plain_tile<A> &p, const plain_matrix &b,
                                                 int row, int column, plain_tile<A> &right)
{
    int x = threadIdx.x % 16, y = threadIdx.x / 16;
#pragma unroll
    for (int part = 0; part < SLICE / SIDE; part++) {
        if (column + part * SIDE >= b.columns)
            break;
        __syncthreads();
        plain_load<A>(c, right, b, row, column + part * SIDE);
        __syncthreads();
#pragma unroll 8
        for (int k = 0; k < SIDE; k++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                sum[i / 2][part * 2 + i % 2] += p[y + i / 2 * 16][k] * right[k][x + i % 2 * 16];
    }
}

/** Multiplies a block's sums by the factors of their rows and writes them to m, the rows of one
 * head of `to`, starting at row `row` and column `column`. */
template <class A>
__device__ __forceinline__ void plain_write(const attention_call &c, const attention_operand &to,
                                            const plain_matrix &m, int row, int column,
                                            const A (&sum)[2][SLICE / 16], const A (&factor)[2])
{
    int x = threadIdx.x % 16, y = threadIdx.x / 16;
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int j = 0; j < SLICE / 16; j++) {
            int r = row + y + 16 * half, k = column + x + 16 * j;
            if (r < m.rows && k < m.columns)
                plain_set<A>(c, to.data, m.start + r * m.step + k, sum[half][j] * factor[half]);
        }
}

/** The score of a pair from its raw score, or -Inf if window or mask hide the pair. Sets `slope` to
 * the derivative of the score with respect to the scaled score. */
template <class A>
__device__ __forceinline__ A plain_score(const attention_call &c, const attention_span &span, A raw,
                                         int batch, int head, int row, int key, A &slope)
{
    slope = 1;
    if (!sees(span, row, key))
        return -INFINITY;
    auto own = [&](int64_t i) { return plain_get<A>(c, c.mask, i); };
    return attention_score(c, raw, attention_added<A>(c, batch, head, row, key, own), slope);
}

/** Forward: writes c.out and, unless NULL, c.lse. slices: number of blocks among which the columns
 * of a result are divided. */
template <class A>
static __global__ void __launch_bounds__(PLAIN_THREADS)
    attention_plain_kernel(const __grid_constant__ attention_call c, int slices)
{
    __shared__ plain_tile<A> left, right, p;
    __shared__ A top[SIDE], sum[SIDE], rescale[SIDE];
    int blocks = (c.rows + SIDE - 1) / SIDE, x = threadIdx.x % 16, y = threadIdx.x / 16,
        warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int64_t index = blockIdx.x / slices;
    int column = (int)(blockIdx.x % slices) * SLICE, first = (int)(index % blocks) * SIDE,
        head = (int)(index / blocks % c.heads), batch = (int)(index / blocks / c.heads);
    attention_span span = span_of(c, batch);
    if (first >= span.rows)
        return;
    plain_matrix q(c.q, batch, head, span.first_row, span.rows, c.depth),
        k(c.k, batch, head / c.share, span.first_key, span.keys, c.depth),
        v(c.v, batch, head / c.share, span.first_key, span.keys, c.value_depth);
    attention_range seen = keys_of_rows(span, first, min(first + SIDE, span.rows));
    A o[2][SLICE / 16] = {}, s[2][2], slope;
    if (threadIdx.x < SIDE) {
        top[threadIdx.x] = -INFINITY;
        sum[threadIdx.x] = 0;
    }
    for (int from = seen.first; from < seen.end; from += SIDE) {
        plain_products(c, s, q, first, k, from, left, right);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int r = y + i / 2 * 16, j = x + i % 2 * 16;
            p[r][j] =
                plain_score<A>(c, span, s[i / 2][i % 2], batch, head, first + r, from + j, slope);
        }
        __syncthreads();
        for (int r = warp * 4; r < warp * 4 + 4; r++) { /* a warp a row, a lane a key */
            A score = p[r][lane], now = score, before = top[r];
#pragma unroll
            for (int step = 16; step; step >>= 1)
                now = max(now, __shfl_xor_sync(0xffffffffu, now, step));
            now = max(now, before);
            A base = now == (A)-INFINITY ? (A)0 : now, weight = exp(score - base), total = weight;
#pragma unroll
            for (int step = 16; step; step >>= 1)
                total += __shfl_xor_sync(0xffffffffu, total, step);
            if (c.dropout && weight > 0)
                weight *= attention_kept<A>(c, batch, head, first + r, from + lane);
            p[r][lane] = weight;
            __syncwarp();
            if (lane == 0) {
                rescale[r] = exp(before - base);
                sum[r] = sum[r] * rescale[r] + total;
                top[r] = now;
            }
        }
        __syncthreads();
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int j = 0; j < SLICE / 16; j++)
                o[half][j] *= rescale[y + 16 * half];
        plain_accumulate(c, o, p, v, from, column, right);
    }
    __syncthreads();
    const A inverse[2] = {sum[y] == 0 ? 0 : 1 / sum[y], sum[y + 16] == 0 ? 0 : 1 / sum[y + 16]};
    plain_matrix out(c.out, batch, head, span.first_row, span.rows, c.value_depth);
    plain_write(c, c.out, out, first, column, o, inverse);
    if (c.lse && column == 0 && threadIdx.x < SIDE && first + (int)threadIdx.x < span.rows)
        ((A *)c.lse)[statistic_of(c, span, head, first + (int)threadIdx.x)] =
            sum[threadIdx.x] == 0 ? (A)-INFINITY : top[threadIdx.x] + log(sum[threadIdx.x]);
}

/** Writes (lse, delta) of each row to c.pairs: lse, or 0 for rows without visible keys; delta is
 * the row sum of g * out, minus g_lse. A warp computes one row of the tensors. */
template <class A>
static __global__ void __launch_bounds__(PLAIN_THREADS)
    attention_plain_pairs_kernel(const __grid_constant__ attention_call c)
{
    int64_t index = (int64_t)blockIdx.x * 8 + threadIdx.x / 32, heads = index / c.q_tokens,
            row = index % c.q_tokens;
    int head = (int)(heads % c.heads), batch = (int)(heads / c.heads), lane = threadIdx.x % 32;
    if (batch >= (c.q_starts ? 1 : c.batches))
        return;
    plain_matrix out(c.out, batch, head, row, 1, c.value_depth),
        g(c.g, batch, head, row, 1, c.value_depth);
    A sum = 0;
    for (int i = lane; i < c.value_depth; i += 32)
        sum += plain_get<A>(c, out.data, out.start + i) * plain_get<A>(c, g.data, g.start + i);
#pragma unroll
    for (int step = 16; step; step >>= 1)
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (lane == 0) {
        A lse = ((const A *)c.lse)[index];
        ((plain_pair<A> *)c.pairs)[index] = {lse == (A)-INFINITY ? 0 : lse,
                                             c.g_lse ? sum - ((const A *)c.g_lse)[index] : sum};
    }
}

/** The pass over keys (dk, dv) if KEYS, else the pass over queries (dq), like
 * attention_mma_backward_kernel(). slices: see attention_plain_kernel(). */
template <class A, bool KEYS>
static __global__ void __launch_bounds__(PLAIN_THREADS)
    attention_plain_backward_kernel(const __grid_constant__ attention_call c, int slices)
{
    __shared__ plain_tile<A> left, right, p, ds;
    __shared__ plain_pair<A> pairs[SIDE];
    int most = KEYS ? c.keys : c.rows, heads = KEYS ? c.heads / c.share : c.heads,
        blocks = (most + SIDE - 1) / SIDE;
    int64_t index = blockIdx.x / slices;
    int column = (int)(blockIdx.x % slices) * SLICE, first = (int)(index % blocks) * SIDE,
        head = (int)(index / blocks % heads), batch = (int)(index / blocks / heads),
        x = threadIdx.x % 16, y = threadIdx.x / 16;
    attention_span span = span_of(c, batch);
    int held = min((int)SIDE, (KEYS ? span.keys : span.rows) - first);
    if (held <= 0)
        return;
    attention_range seen =
        KEYS ? rows_of_keys(span, first, first + held) : keys_of_rows(span, first, first + held);
    A sum1[2][SLICE / 16] = {}, sum2[2][SLICE / 16] = {}, s[2][2], dp[2][2], slope;
    for (int h = KEYS ? head * c.share : head; h < (KEYS ? (head + 1) * c.share : head + 1); h++) {
        plain_matrix q(c.q, batch, h, span.first_row, span.rows, c.depth),
            g(c.g, batch, h, span.first_row, span.rows, c.value_depth),
            k(c.k, batch, h / c.share, span.first_key, span.keys, c.depth),
            v(c.v, batch, h / c.share, span.first_key, span.keys, c.value_depth);
        for (int from = seen.first; from < seen.end; from += SIDE) {
            int first_row = KEYS ? from : first;
            __syncthreads();
            if (threadIdx.x < SIDE && first_row + (int)threadIdx.x < span.rows)
                pairs[threadIdx.x] =
                    ((const plain_pair<A> *)c.pairs)[pair_of(c, span, batch, h,
                                                             first_row + (int)threadIdx.x)];
            plain_products(c, s, KEYS ? k : q, first, KEYS ? q : k, from, left, right);
            plain_products(c, dp, KEYS ? v : g, first, KEYS ? g : v, from, left, right);
            __syncthreads();
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int own = y + i / 2 * 16, other = x + i % 2 * 16,
                    row = KEYS ? from + other : first + own,
                    key = KEYS ? first + own : from + other;
                A score = plain_score<A>(c, span, s[i / 2][i % 2], batch, h, row, key, slope),
                  kept = 1, weight = 0, score_grad = 0;
                if (score > (A)-INFINITY || score != score) {
                    plain_pair<A> pair = pairs[row - first_row];
                    if (c.dropout)
                        kept = attention_kept<A>(c, batch, h, row, key);
                    weight = exp(score - pair.lse);
                    score_grad = weight * (dp[i / 2][i % 2] * kept - pair.delta) * slope;
                }
                p[own][other] = weight * kept;
                ds[own][other] = score_grad;
            }
            plain_accumulate(c, sum1, ds, KEYS ? q : k, from, column, right);
            if (KEYS)
                plain_accumulate(c, sum2, p, g, from, column, right);
        }
    }
    const A factor[2] = {(A)c.scale, (A)c.scale}, one[2] = {1, 1};
    const attention_operand &to = KEYS ? c.dk : c.dq;
    int64_t start = KEYS ? span.first_key : span.first_row;
    int length = KEYS ? span.keys : span.rows;
    if (to.data)
        plain_write(c, to, plain_matrix(to, batch, head, start, length, c.depth), first, column,
                    sum1, factor);
    if (KEYS && c.dv.data)
        plain_write(c, c.dv, plain_matrix(c.dv, batch, head, start, length, c.value_depth), first,
                    column, sum2, one);
}

} // namespace ts

#endif
