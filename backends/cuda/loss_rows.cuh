/** @file loss_rows.cuh  Cross-entropy over rows: loss, log-sum-exp and gradient in one pass over the logits. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_LOSS_ROWS_CUH
#define TS_CUDA_LOSS_ROWS_CUH

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
        int at = (int)(goal - (int64_t)(row_part<T, S, V>::first() + j * S::threads) * V);
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

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

template <class T> struct cross_entropy_formula : exp_sums<T> {
    const T *x;
    const int64_t *target;
    float *loss, *lse;
    T *dx;
    int64_t ignored;
    float scale_of_all;
    int64_t next, even, odd;    /* targets: of the row to come, and of those that are worked on */
    float even_own, odd_own;    /* the target's logit: dx may be x */

    __device__ __forceinline__ void fetch(int64_t row, int64_t rows)
    {
        if (row < rows)
            next = target[row];
    }
    template <class R> __device__ __forceinline__ float2 first(const R &r)
    {
        float own = r.column(0) == 0 && next != ignored ? widen(x[r.row * r.n + next]) : 0;
        if (r.turn & 1) {
            odd = next;
            odd_own = own;
        } else {
            even = next;
            even_own = own;
        }
        fetch(r.row + r.step, r.rows);
        return exp_sums<T>::first(r);
    }
    template <class R> __device__ __forceinline__ void second(const R &r, float2 whole) const
    {
        int64_t goal = r.turn & 1 ? odd : even;
        bool counts = goal != ignored;
        if (r.column(0) == 0) {
            float total = whole.x + logf(whole.y);
            loss[r.row] = counts ? total - (r.turn & 1 ? odd_own : even_own) : 0;
            if (lse)
                lse[r.row] = total;
        }
        if (!dx)
            return;
        float scale = scale_of_all / whole.y;
        exp_from<T> above(whole.x);
#pragma unroll
        for (int j = 0; j < R::vecs; j++)
            if (r.inside(j)) {
                float z[R::V];
                r.get(0, j, z);
#pragma unroll
                for (int k = 0; k < R::V; k++)
                    z[k] = counts ? above(z[k]) * scale : 0;
                int64_t at = goal - r.column(j);
                if (counts && at >= 0 && at < R::V)
#pragma unroll
                    for (int k = 0; k < R::V; k++)
                        z[k] -= k == at ? scale_of_all : 0;
                r.put(dx, j, z);
            }
    }
};

#endif /* sm_90 */

template <class T, class S>
__global__ void __launch_bounds__(S::threads, S::blocks)
    cross_entropy_stream_kernel(const T *x, const int64_t *target, float *loss, float *lse, T *dx, const float *factor,
                                int64_t rows, int64_t n, int64_t ignored)
{
#if __CUDA_ARCH__ >= 900
    TS_STREAM(s, T, S, 1, rows, n, x);
    cross_entropy_formula<T> f;
    f.x = x, f.target = target, f.loss = loss, f.lse = lse, f.dx = dx, f.ignored = ignored;
    f.scale_of_all = factor ? *factor : 1;
    f.fetch(s.row, rows);
    s.run(f);
#endif
}

template <class T>
cudaError_t cross_entropy_rows(const T *x, const int64_t *target, wide_t<T> *loss, wide_t<T> *lse, T *dx,
                               const wide_t<T> *factor, int64_t rows, int64_t n, int64_t ignored, const ts_cuda_device *d,
                               cudaStream_t stream)
{
    bool aligned = aligned16(x) && aligned16(dx);
    cudaError_t e = rows_dispatch<T>(n, aligned, [&]<class S, int V>() {
        return rows_launch<S>(cross_entropy_kernel<T, S, V>, rows, stream, x, target, loss, lse, dx, factor, rows, n, ignored);
    });
    if (e == cudaErrorNotSupported)
        e = stream_dispatch<T, rows_wide>(n, aligned, d, [&]<class S>() {
            return stream_launch<S>(cross_entropy_stream_kernel<T, S>, ring_bytes<T, S, 1>, rows, d->sms, stream, [](int64_t) {},
                                    x, target, loss, lse, dx, factor, rows, n, ignored);
        });
    return e;
}

} // namespace ts

#endif
