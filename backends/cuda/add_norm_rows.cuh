/** @file add_norm_rows.cuh  The layer norm of a sum, and the sum: a row stays in registers between the two. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_ADD_NORM_ROWS_CUH
#define TS_CUDA_ADD_NORM_ROWS_CUH

#include "backends/cuda/launch_rows.cuh"

namespace ts {

template <class T> struct add_norm {
    const T *x, *residual, *weight, *bias;
    T *y, *sum;
    wide_t<T> *mean, *rstd;
    int64_t rows, n;
    double eps;
};

/** The norm is that of the sum as it is rounded. */
template <class T, class S, int V> __global__ void __launch_bounds__(S::threads *S::rows) add_norm_kernel(add_norm<T> a)
{
    using A = wide_t<T>;
    using part_t = row_part<T, S, V>;
    A *place = row_place<S, 1, A>();
    int64_t r = row_index<S>(), m = r < a.rows ? a.n : 0, at = r * a.n;
    part_t row, other;
    row.load(a.x + at, m, narrow<T>((A)0));
    other.load(a.residual + at, m, narrow<T>((A)0));
    A scale = (A)1 / (A)a.n, sums[1] = {0};
#pragma unroll
    for (int j = 0; j < S::vecs; j++)
#pragma unroll
        for (int e = 0; e < V; e++) {
            row.at[j].at[e] = narrow<T>(widen(row.at[j].at[e]) + widen(other.at[j].at[e]));
            sums[0] += widen(row.at[j].at[e]);
        }
    if (a.sum)
        row.store(a.sum + at, m);
    row_reduce<S, op_sum>(sums, place, 0);
    A centre = sums[0] * scale;
    sums[0] = 0;
#pragma unroll
    for (int j = 0; j < S::vecs; j++)
        if (part_t::inside(j, a.n))
#pragma unroll
            for (int e = 0; e < V; e++) {
                A d = widen(row.at[j].at[e]) - centre;
                sums[0] += d * d;
            }
    row_reduce<S, op_sum>(sums, place, 1);
    A factor = rsqrt(sums[0] * scale + (A)a.eps);
    if (part_t::first() == 0 && m) {
        if (a.mean)
            a.mean[r] = centre;
        if (a.rstd)
            a.rstd[r] = factor;
    }
#pragma unroll
    for (int j = 0; j < S::vecs; j++) {
        int64_t i = (int64_t)(part_t::first() + j * S::threads) * V;
        if (i >= m)
            continue;
        vec<T, V> w, b;
        if (a.weight)
            w = *reinterpret_cast<const vec<T, V> *>(a.weight + i);
        if (a.bias)
            b = *reinterpret_cast<const vec<T, V> *>(a.bias + i);
#pragma unroll
        for (int e = 0; e < V; e++) {
            A z = (widen(row.at[j].at[e]) - centre) * factor;
            z = a.weight ? z * widen(w.at[e]) : z;
            row.at[j].at[e] = narrow<T>(a.bias ? z + widen(b.at[e]) : z);
        }
    }
    row.store(a.y + at, m);
}

/** cudaErrorNotSupported where no shape holds a row. */
template <class T> cudaError_t add_norm_rows(const add_norm<T> &a, cudaStream_t stream)
{
    bool aligned = aligned16(a.x) && aligned16(a.residual) && aligned16(a.weight) && aligned16(a.bias) && aligned16(a.y) &&
                   aligned16(a.sum);
    return rows_dispatch<T>(a.n, aligned, [&]<class S, int V>() {
        return rows_launch<S>(add_norm_kernel<T, S, V>, a.rows, stream, a);
    });
}

} // namespace ts

#endif
