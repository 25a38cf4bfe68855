/** @file loss_rows.cuh  Cross-entropy over rows: loss, log-sum-exp and gradient in one pass over the logits. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_LOSS_ROWS_CUH
#define TS_CUDA_LOSS_ROWS_CUH

#include "backends/cuda/launch_rows.cuh"
#include "backends/cuda/softmax_rows.cuh"

namespace ts {

/**
 * loss[r] = lse - x[target]; where dx is given (x itself is allowed), dx = (exp(x - lse) - onehot) factor.
 * Rows whose target is `ignored` have loss 0 and gradient 0. factor is read from the device.
 */
template <class T, class S, int V>
__global__ void __launch_bounds__(S::threads *S::rows)
    cross_entropy_kernel(const T *x, const int64_t *target, wide_t<T> *loss, wide_t<T> *lse, T *dx, const wide_t<T> *factor,
                         int64_t rows, int64_t n, int64_t ignored)
{
    using A = wide_t<T>;
    A *place = row_place<S, 1, A>();
    int64_t r = row_index<S>();
    int64_t m = r < rows ? n : 0;
    row_part<T, S, V> part;
    part.load(x + r * n, m, narrow<T>(minus_infinity<A>()));
    int64_t goal = m ? target[r] : ignored;
    bool counts = goal != ignored, one = row_part<T, S, V>::first() == 0 && m;
    A z = one && counts ? widen(x[r * n + goal]) : (A)0;
    row_exps<T, S, V> all;
    all.of(part, place);
    if (one) {
        A total = all.top + log(all.sum);
        loss[r] = counts ? total - z : (A)0;
        if (lse)
            lse[r] = total;
    }
    if (!dx)
        return;
    A factor_here = counts ? (factor ? *factor : (A)1) : (A)0, scale = factor_here * all.shift / all.sum;
#pragma unroll
    for (int j = 0; j < S::vecs; j++) {
        int at = (int)(goal - (int64_t)(row_part<T, S, V>::first() + j * S::group) * V);
        if (counts && at >= 0 && at < V) {
#pragma unroll
            for (int k = 0; k < V; k++)
                part.at[j].at[k] = narrow<T>(all.e[j][k] * scale - (k == at ? factor_here : (A)0));
        } else {
#pragma unroll
            for (int k = 0; k < V; k++)
                part.at[j].at[k] = narrow<T>(counts ? all.e[j][k] * scale : (A)0);
        }
    }
    part.store(dx + r * n, m);
}

template <class T>
cudaError_t cross_entropy_rows(const T *x, const int64_t *target, wide_t<T> *loss, wide_t<T> *lse, T *dx,
                               const wide_t<T> *factor, int64_t rows, int64_t n, int64_t ignored, bool clusters,
                               cudaStream_t stream)
{
    return rows_dispatch<T, rows_once>(n, aligned16(x) && aligned16(dx), clusters, [&]<class S, int V>() {
        return rows_launch<S>(cross_entropy_kernel<T, S, V>, (rows + S::rows - 1) / S::rows, 0, stream, x, target, loss, lse,
                              dx, factor, rows, n, ignored);
    }, cudaErrorNotSupported);
}

} // namespace ts

#endif
