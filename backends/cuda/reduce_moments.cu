/** @file reduce_moments.cu  Variances, and logarithms of sums of exponentials, over dims. */
// SPDX-License-Identifier: MIT
#include "backends/cuda/exponentials.cuh"
#include "backends/cuda/reduce_plain.cuh"

using namespace ts;

/**
 * Number of elements, their mean, and the sum of squared deviations from it. Pieces are reduced in
 * two passes over registers and merged by the formula of Chan, Golub and LeVeque (1979), so nothing
 * cancels. Means are kept as differences from an element, so the mean of equal elements is exact
 * and their variance is 0.
 */
template <class X> struct moments {
    X n, mean, squares;
};
template <class X> struct moments_fold {
    using state = moments<X>;
    double degrees;
    bool root;

    /* quotient of counts: 2 ulp in f32, with fewer instructions than an exact quotient */
    static __device__ __forceinline__ float ratio(float a, float b) { return __fdividef(a, b); }
    static __device__ __forceinline__ double ratio(double a, double b) { return a / b; }

    __device__ __forceinline__ state none() const { return {0, 0, 0}; }
    __device__ __forceinline__ state merge(const state &a, const state &b) const
    {
        X n = a.n + b.n, part = n > 0 ? ratio(b.n, n) : (X)0, d = b.mean - a.mean;
        return {n, a.mean + d * part, a.squares + b.squares + d * (d * (a.n * part))};
    }
    template <int N> __device__ __forceinline__ void take(state &s, const X (&x)[N]) const
    {
        X mean = 0, squares = 0;
#pragma unroll
        for (int e = 0; e < N; e++)
            mean += x[e] - x[0];
        mean = x[0] + mean / N;
#pragma unroll
        for (int e = 0; e < N; e++)
            squares += (x[e] - mean) * (x[e] - mean);
        s = merge(s, {(X)N, mean, squares});
    }
    __device__ __forceinline__ X finish(const state &s) const
    {
        X v = s.n > 0 ? s.squares / (X)degrees : (X)NAN;
        return root ? sqrt(v) : v;
    }
};

static ts_status variance(ts_frame *f, bool root)
{
    double degrees = (double)length_of(f) - f->args[3].d;
    degrees = degrees > 0 ? degrees : 0;
    switch (ts_kernel_dtype(f)) {
    case TS_F64: return reduce<double>(f, moments_fold<double>{degrees, root});
    case TS_BF16: return reduce<bf16>(f, moments_fold<float>{degrees, root});
    case TS_F16: return reduce<f16>(f, moments_fold<float>{degrees, root});
    default: return reduce<float>(f, moments_fold<float>{degrees, root});
    }
}
ts_status ts::reduce_var(ts_frame *f) { return variance(f, false); }
ts_status ts::reduce_std(ts_frame *f) { return variance(f, true); }

/* --------------------------------------------------------------- sums of exponentials ---- */

ts_status ts::reduce_logsumexp(ts_frame *f)
{
    switch (ts_kernel_dtype(f)) {
    case TS_F64: return reduce<double>(f, exponentials_fold<double>{});
    case TS_BF16: return reduce<bf16>(f, exponentials_fold<bf16>{});
    case TS_F16: return reduce<f16>(f, exponentials_fold<f16>{});
    default: return reduce<float>(f, exponentials_fold<float>{});
    }
}

template <class T>
ts_status ts::exponentials_into(ts_frame *f, const reduction &r, const T *x,
                                exponentials<wide_t<T>> *states)
{
    return reduce_into<T>(f, r, exponentials_fold<T>{}, x, states, (T *)nullptr);
}
template ts_status ts::exponentials_into<double>(ts_frame *, const reduction &, const double *,
                                                 exponentials<double> *);
template ts_status ts::exponentials_into<float>(ts_frame *, const reduction &, const float *,
                                                exponentials<float> *);
template ts_status ts::exponentials_into<bf16>(ts_frame *, const reduction &, const bf16 *,
                                               exponentials<float> *);
template ts_status ts::exponentials_into<f16>(ts_frame *, const reduction &, const f16 *,
                                              exponentials<float> *);
