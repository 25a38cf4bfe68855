/** @file softmax_rows.cuh  Softmax, log-softmax and their gradients over rows. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_SOFTMAX_ROWS_CUH
#define TS_CUDA_SOFTMAX_ROWS_CUH

#include "backends/cuda/launch_rows.cuh"

namespace ts {

template <class A> __device__ __forceinline__ A minus_infinity() { return -(A)INFINITY; }

/** exp(x - m): ex2 for what is rounded to 8 or 11 bits afterwards, else the exact function. */
template <class T> __device__ __forceinline__ wide_t<T> exp_of(wide_t<T> x, wide_t<T> m)
{
    if constexpr (sizeof(T) == 2)
        return exp2f((x - m) * 1.4426950408889634f);
    else
        return exp(x - m);
}

/**
 * Largest value and sum of exp(x - largest) of a row. Each thread sums relative to its own largest
 * value, so the two are reduced together and each element costs one exponential: e keeps them.
 */
template <class T, class S, int V> struct row_exps {
    using A = wide_t<T>;
    A e[S::vecs][V];
    A top, sum, shift; /* exp(x - top) = e * shift */

    __device__ __forceinline__ void of(const row_part<T, S, V> &x, A *place)
    {
        A mine[1] = {minus_infinity<A>()};
#pragma unroll
        for (int j = 0; j < S::vecs; j++)
#pragma unroll
            for (int k = 0; k < V; k++)
                mine[0] = op_max::of(mine[0], e[j][k] = widen(x.at[j].at[k]));
        A base = mine[0] == minus_infinity<A>() ? 0 : mine[0], sums[1] = {0};
#pragma unroll
        for (int j = 0; j < S::vecs; j++)
#pragma unroll
            for (int k = 0; k < V; k++)
                sums[0] += e[j][k] = exp_of<T>(e[j][k], base);
        row_reduce<S, op_max>(mine, place, 0);
        top = mine[0];
        shift = exp_of<T>(base, top);
        sums[0] *= shift;
        row_reduce<S, op_sum>(sums, place, 1);
        sum = sums[0];
    }
};

template <class T, class S, int V, bool LOG>
__global__ void __launch_bounds__(S::threads *S::rows) softmax_kernel(const T *x, T *y, int64_t rows, int64_t n)
{
    using A = wide_t<T>;
    A *place = row_place<S, 1, A>();
    int64_t r = row_index<S>();
    int64_t m = r < rows ? n : 0;
    row_part<T, S, V> part;
    part.load(x + r * n, m, narrow<T>(minus_infinity<A>()));
    row_exps<T, S, V> all;
    all.of(part, place);
    A scale = LOG ? log(all.sum) : all.shift / all.sum;
#pragma unroll
    for (int j = 0; j < S::vecs; j++)
#pragma unroll
        for (int k = 0; k < V; k++)
            part.at[j].at[k] = narrow<T>(LOG ? widen(part.at[j].at[k]) - all.top - scale : all.e[j][k] * scale);
    part.store(y + r * n, m);
}

/** dx = y (g - sum(g y)); for the logarithm dx = g - exp(y) sum(g). */
template <class T, class S, int V, bool LOG>
__global__ void __launch_bounds__(S::threads *S::rows)
    softmax_backward_kernel(const T *g, const T *y, T *dx, int64_t rows, int64_t n)
{
    using A = wide_t<T>;
    A *place = row_place<S, 1, A>();
    int64_t r = row_index<S>();
    int64_t m = r < rows ? n : 0;
    row_part<T, S, V> up, out;
    up.load(g + r * n, m, narrow<T>((A)0));
    out.load(y + r * n, m, narrow<T>((A)0));
    A sum[1] = {0};
#pragma unroll
    for (int j = 0; j < S::vecs; j++)
#pragma unroll
        for (int e = 0; e < V; e++)
            sum[0] += LOG ? widen(up.at[j].at[e]) : widen(up.at[j].at[e]) * widen(out.at[j].at[e]);
    row_reduce<S, op_sum>(sum, place, 0);
#pragma unroll
    for (int j = 0; j < S::vecs; j++)
#pragma unroll
        for (int e = 0; e < V; e++) {
            A a = widen(up.at[j].at[e]), b = widen(out.at[j].at[e]);
            up.at[j].at[e] = narrow<T>(LOG ? a - exp_of<T>(b, 0) * sum[0] : b * (a - sum[0]));
        }
    up.store(dx + r * n, m);
}

template <class T, bool LOG>
cudaError_t softmax_rows(const T *x, T *y, int64_t rows, int64_t n, bool clusters, cudaStream_t stream)
{
    return rows_dispatch<T, rows_once>(n, aligned16(x) && aligned16(y), clusters, [&]<class S, int V>() {
        return rows_launch<S>(softmax_kernel<T, S, V, LOG>, (rows + S::rows - 1) / S::rows, 0, stream, x, y, rows, n);
    }, cudaErrorNotSupported);
}

template <class T, bool LOG>
cudaError_t softmax_backward_rows(const T *g, const T *y, T *dx, int64_t rows, int64_t n, bool clusters,
                                  cudaStream_t stream)
{
    return rows_dispatch<T, rows_once>(n, aligned16(g) && aligned16(y) && aligned16(dx), clusters, [&]<class S, int V>() {
        return rows_launch<S>(softmax_backward_kernel<T, S, V, LOG>, (rows + S::rows - 1) / S::rows, 0, stream, g, y, dx,
                              rows, n);
    }, cudaErrorNotSupported);
}

} // namespace ts

#endif
