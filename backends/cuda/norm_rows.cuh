/**
 * @file norm_rows.cuh  Layer and RMS normalisation over rows, forward and backward.
 *
 * Blocks stay: each takes every gridDim-th row, keeps weight and bias in registers, and loads the next
 * row while it works on one. In the backward a thread owns the same columns in every row, so sums over
 * rows for the weight's and the bias' gradients stay in registers too; a second kernel adds the blocks.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_NORM_ROWS_CUH
#define TS_CUDA_NORM_ROWS_CUH

#include "backends/cuda/launch_rows.cuh"

namespace ts {

/** Row of a staying block: the first, and the step to the next. */
template <class S> __device__ __forceinline__ int64_t row_step()
{
    return (int64_t)gridDim.x / S::cluster * S::rows;
}

template <class T, class S, int V, bool RMS>
__global__ void __launch_bounds__(S::threads *S::rows)
    norm_kernel(const T *x, const T *weight, const T *bias, T *y, wide_t<T> *mean, wide_t<T> *rstd, int64_t rows, int64_t n,
                double eps)
{
    using A = wide_t<T>;
    A *place = row_place<S, 1, A>();
    int64_t r = row_index<S>();
    int64_t m = r < rows ? n : 0;
    row_part<T, S, V> part;
    part.load(x + r * n, m, narrow<T>((A)0));
    A scale = (A)1 / (A)n, centre = 0, sums[1] = {0};
    if constexpr (!RMS) {
#pragma unroll
        for (int j = 0; j < S::vecs; j++)
#pragma unroll
            for (int e = 0; e < V; e++)
                sums[0] += widen(part.at[j].at[e]);
        row_reduce<S, op_sum>(sums, place, 0);
        centre = sums[0] * scale;
        sums[0] = 0;
    }
#pragma unroll
    for (int j = 0; j < S::vecs; j++)
        if (part.inside(j, n))
#pragma unroll
            for (int e = 0; e < V; e++) {
                A d = widen(part.at[j].at[e]) - centre;
                sums[0] += d * d;
            }
    row_reduce<S, op_sum>(sums, place, 1);
    A factor = rsqrt(sums[0] * scale + (A)eps);
    if (row_part<T, S, V>::first() == 0 && m) {
        if (mean)
            mean[r] = centre;
        if (rstd)
            rstd[r] = factor;
    }
#pragma unroll
    for (int j = 0; j < S::vecs; j++) {
        int64_t i = (int64_t)(row_part<T, S, V>::first() + j * S::group) * V;
        if (i >= m)
            continue;
        vec<T, V> w, b;
        if (weight)
            w = *reinterpret_cast<const vec<T, V> *>(weight + i);
        if (bias)
            b = *reinterpret_cast<const vec<T, V> *>(bias + i);
#pragma unroll
        for (int e = 0; e < V; e++) {
            A z = (widen(part.at[j].at[e]) - centre) * factor;
            if (weight)
                z *= widen(w.at[e]);
            if (bias)
                z += widen(b.at[e]);
            part.at[j].at[e] = narrow<T>(z);
        }
    }
    part.store(y + r * n, m);
}

/**
 * dx, and for each block its share of the weight's and the bias' gradients: (blocks, n) each.
 * With h = (x - mean) rstd and q = g weight: dx = rstd (q - avg(q) - h avg(q h)); RMS lacks avg(q).
 */
template <class T, class S, int V, bool RMS, int STAGES>
__global__ void __launch_bounds__(S::threads *S::rows)
    norm_backward_kernel(const T *g, const T *x, const T *weight, const wide_t<T> *mean, const wide_t<T> *rstd, T *dx,
                         wide_t<T> *dweight, wide_t<T> *dbias, int64_t rows, int64_t n)
{
    using A = wide_t<T>;
    using part_t = row_part<T, S, V>;
    extern __shared__ uint4 shared[];
    row_ring<T, S, V, 2, STAGES> ring = {reinterpret_cast<vec<T, V> *>(shared)};
    A *place = row_place<S, 2, A>();
    part_t w;
    A dw[S::vecs][V], db[RMS ? 1 : S::vecs][V];
#pragma unroll
    for (int j = 0; j < S::vecs; j++)
#pragma unroll
        for (int e = 0; e < V; e++) {
            dw[j][e] = 0;
            if constexpr (!RMS)
                db[j][e] = 0;
        }
    if (weight)
        w.load(weight, n, narrow<T>((A)0));
    int64_t r = row_index<S>(), step = row_step<S>(), turns = (rows + step - 1) / step;
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; stage++) {
        int64_t ahead = r + stage * step;
        ring.begin(stage, 0, g + ahead * n, ahead < rows ? n : 0);
        ring.begin(stage, 1, x + ahead * n, ahead < rows ? n : 0);
        ring.commit();
    }
    A scale = (A)1 / (A)n;
    int stage = 0;
    for (int64_t turn = 0; turn < turns; turn++, r += step) {
        bool some = r < rows;
        A centre = some && !RMS ? mean[r] : (A)0, factor = some ? rstd[r] : (A)0;
        int64_t ahead = r + (STAGES - 1) * step;
        int free = stage == 0 ? STAGES - 1 : stage - 1;
        ring.begin(free, 0, g + ahead * n, ahead < rows ? n : 0);
        ring.begin(free, 1, x + ahead * n, ahead < rows ? n : 0);
        ring.commit();
        ring.template wait<STAGES - 1>();
        vec<T, V> up[S::vecs], in[S::vecs];
        A sums[2] = {0, 0};
#pragma unroll
        for (int j = 0; j < S::vecs; j++) {
            up[j] = *ring.slot(stage, 0, j);
            in[j] = *ring.slot(stage, 1, j);
            if (some && part_t::inside(j, n))
#pragma unroll
                for (int e = 0; e < V; e++) {
                    A a = widen(up[j].at[e]), h = (widen(in[j].at[e]) - centre) * factor;
                    A q = weight ? a * widen(w.at[j].at[e]) : a;
                    sums[0] += q * h;
                    dw[j][e] += a * h;
                    if constexpr (!RMS) {
                        sums[1] += q;
                        db[j][e] += a;
                    }
                }
        }
        row_reduce<S, op_sum>(sums, place, (int)turn);
        A along = sums[0] * scale, shift = RMS ? (A)0 : sums[1] * scale;
        if (dx && some)
#pragma unroll
            for (int j = 0; j < S::vecs; j++)
                if (part_t::inside(j, n)) {
#pragma unroll
                    for (int e = 0; e < V; e++) {
                        A h = (widen(in[j].at[e]) - centre) * factor, q = widen(up[j].at[e]);
                        if (weight)
                            q *= widen(w.at[j].at[e]);
                        up[j].at[e] = narrow<T>(factor * (q - shift - h * along));
                    }
                    store_stream(reinterpret_cast<vec<T, V> *>(dx + r * n) + part_t::first() + j * S::group, up[j]);
                }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    ring.template wait<0>();
    if (!dweight && !dbias)
        return;
    /* rows of a block, one after the other, then the block's line of the partial sums */
    int64_t line = (int64_t)blockIdx.x / S::cluster * n;
    for (int k = 0; k < S::rows; k++) {
        if (S::rows == 1 || threadIdx.x / S::threads == (unsigned)k) {
#pragma unroll
            for (int j = 0; j < S::vecs; j++)
#pragma unroll
                for (int e = 0; e < V; e++) {
                    int64_t i = (int64_t)(part_t::first() + j * S::group) * V + e;
                    if (i >= n)
                        continue;
                    if (dweight)
                        dweight[line + i] = k ? dweight[line + i] + dw[j][e] : dw[j][e];
                    if constexpr (!RMS)
                        if (dbias)
                            dbias[line + i] = k ? dbias[line + i] + db[j][e] : db[j][e];
                }
        }
        __syncthreads();
    }
}

/** Sums of columns of (lines, n) in a fixed order: 32 columns and 32 shares of the lines a block. */
template <class T> __global__ void __launch_bounds__(1024) column_sum_kernel(const wide_t<T> *part, T *out, int64_t lines, int64_t n)
{
    using A = wide_t<T>;
    __shared__ A share[32][33];
    int64_t column = (int64_t)blockIdx.x * 32 + threadIdx.x;
    A sum = 0;
    if (column < n)
        for (int64_t i = threadIdx.y; i < lines; i += 32)
            sum += part[i * n + column];
    share[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    sum = share[threadIdx.x][threadIdx.y];
#pragma unroll
    for (int lane = 16; lane; lane >>= 1)
        sum += __shfl_xor_sync(0xffffffffu, sum, lane);
    column = (int64_t)blockIdx.x * 32 + threadIdx.y;
    if (threadIdx.x == 0 && column < n)
        out[column] = narrow<T>(sum);
}

/** Blocks that stay: as many as fit at once. */
template <class S, class K> int64_t blocks_that_fit(K kernel, int shared, int sms)
{
    int per_sm = 0;
    if (shared > 48 * 1024)
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, kernel, S::threads * S::rows, shared);
    return (int64_t)sms * (per_sm > 0 ? per_sm : 1) / S::cluster;
}

template <class T, bool RMS>
cudaError_t norm_rows(const T *x, const T *weight, const T *bias, T *y, wide_t<T> *mean, wide_t<T> *rstd, int64_t rows,
                      int64_t n, double eps, bool clusters, cudaStream_t stream)
{
    bool aligned = aligned16(x) && aligned16(y) && aligned16(weight) && aligned16(bias);
    return rows_dispatch<T, rows_once>(n, aligned, clusters, [&]<class S, int V>() {
        return rows_launch<S>(norm_kernel<T, S, V, RMS>, (rows + S::rows - 1) / S::rows, 0, stream, x, weight, bias, y, mean,
                              rstd, rows, n, eps);
    }, cudaErrorNotSupported);
}

/** scratch: a line of n for each staying block, twice. */
template <class T, bool RMS>
cudaError_t norm_backward_rows(const T *g, const T *x, const T *weight, const wide_t<T> *mean, const wide_t<T> *rstd, T *dx,
                               T *dweight, T *dbias, wide_t<T> *scratch, int64_t rows, int64_t n, bool clusters, int sms,
                               cudaStream_t stream)
{
    bool aligned = aligned16(x) && aligned16(g) && aligned16(dx) && aligned16(weight);
    return rows_dispatch<T, rows_stay>(n, aligned, clusters, [&]<class S, int V>() {
        /* two stages: with more of them fewer blocks fit beside each other, which costs more than it brings */
        constexpr int stages = 2, shared = row_ring<T, S, V, 2, stages>::bytes, most_shared = 220 * 1024;
        if constexpr (shared > most_shared) {
            return cudaErrorNotSupported;
        } else {
            auto kernel = norm_backward_kernel<T, S, V, RMS, stages>;
            static const int64_t most = blocks_that_fit<S>(kernel, shared, sms); /* asked once */
            int64_t need = (rows + S::rows - 1) / S::rows, lines = need < most ? need : most;
            wide_t<T> *dw = dweight ? scratch : nullptr, *db = dbias ? scratch + lines * n : nullptr;
            cudaError_t e = rows_launch<S>(kernel, lines, shared, stream, g, x, weight, mean, rstd, dx, dw, db, rows, n);
            dim3 block(32, 32);
            if (e == cudaSuccess && dw)
                column_sum_kernel<T><<<(unsigned)((n + 31) / 32), block, 0, stream>>>(dw, dweight, lines, n);
            if (e == cudaSuccess && db)
                column_sum_kernel<T><<<(unsigned)((n + 31) / 32), block, 0, stream>>>(db, dbias, lines, n);
            return e == cudaSuccess ? cudaGetLastError() : e;
        }
    }, cudaErrorNotSupported);
}

} // namespace ts

#endif
