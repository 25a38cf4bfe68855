/**
 * @file loss_pairs.cuh  Losses over pairs of elements, input and target: formulas, and kernels for
 * the losses, their sums per block and their gradients. loss.cu launches them.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_LOSS_PAIRS_CUH
#define TS_CUDA_LOSS_PAIRS_CUH

#include "backends/cuda/lines.cuh"
#include "backends/cuda/units.cuh"

namespace ts {

/* Defines the functor `name`: of() is the loss of an input element x and a target element t, and
 * slopes() sets dx and dt to its derivatives by x and t. p is the op's parameter, such as beta of
 * smooth_l1_loss. */
#define PAIR(name, value, slope, target_slope)                                                     \
    struct name {                                                                                  \
        double number;                                                                             \
        template <class A> __device__ __forceinline__ A of(A x, A t) const                         \
        {                                                                                          \
            A p = (A)number;                                                                       \
            (void)p;                                                                               \
            return value;                                                                          \
        }                                                                                          \
        template <class A> __device__ __forceinline__ void slopes(A x, A t, A &dx, A &dt) const    \
        {                                                                                          \
            A p = (A)number;                                                                       \
            (void)p;                                                                               \
            dx = slope;                                                                            \
            dt = target_slope;                                                                     \
        }                                                                                          \
    };
template <class A> __device__ __forceinline__ A sign_of(A d)
{
    return d != d ? d : (A)((d > 0) - (d < 0));
}
template <class A> __device__ __forceinline__ A logistic(A x) { return 1 / (1 + exp(-x)); }
/** t log t, 0 at 0. */
template <class A> __device__ __forceinline__ A t_log_t(A t)
{
    return t > 0 ? t * log(t) : t == 0 ? (A)0 : (A)NAN;
}

/* bce: binary cross-entropy of a logit x. kl_log: kl, where t is the logarithm of the target. */
PAIR(mse, (x - t) * (x - t), 2 * (x - t), -2 * (x - t))
PAIR(l1, fabs(x - t), sign_of(x - t), -sign_of(x - t))
PAIR(smooth_l1, fabs(x - t) < p ? (A)0.5 * (x - t) * (x - t) / p : fabs(x - t) - (A)0.5 * p,
     fabs(x - t) < p ? (x - t) / p : sign_of(x - t),
     fabs(x - t) < p ? (t - x) / p : -sign_of(x - t))
PAIR(huber, fabs(x - t) <= p ? (A)0.5 * (x - t) * (x - t) : p * (fabs(x - t) - (A)0.5 * p),
     fabs(x - t) <= p ? x - t : p * sign_of(x - t), fabs(x - t) <= p ? t - x : -p * sign_of(x - t))
PAIR(bce, fabs(x) * (x > 0 ? 1 - t : t) + log1p(exp(-fabs(x))), logistic(x) - t, -x)
PAIR(kl, t_log_t(t) - t * x, -t, t > 0 ? log(t) + 1 - x : t == 0 ? (A)0 : (A)NAN)
PAIR(kl_log, exp(t) * (t - x), -exp(t), exp(t) * (t - x + 1))

enum {
    PAIR_THREADS = 256,
    PAIR_SHARE = 4096, /* elements that a block of a sum adds */
    PAIR_FEW = 16384,  /* up to this many elements, one block is faster than two launches */
    PAIR_WALKED = 1 << 18, /* up to this many elements, a kernel that reads operands with strides
                              is faster than contiguous copies of these operands */
    PAIR_FEW_THREADS = 1024 /* threads of the one block */
};

/** The V elements starting at `first`; elements at n and above are 0. `whole`: one aligned
 * vector. */
template <class T, int V = vec16<T>>
static __device__ __forceinline__ vec<T, V> load_run(const T *x, int64_t first, int64_t n,
                                                     bool whole)
{
    if (whole)
        return *reinterpret_cast<const vec<T, V> *>(x + first);
    vec<T, V> v = {};
#pragma unroll
    for (int e = 0; e < V; e++)
        if (first + e < n)
            v.at[e] = x[first + e];
    return v;
}
/** Stores V elements, rounded to T, starting at `first`, except those at n and above. */
template <class T, int V>
static __device__ __forceinline__ void store_run(T *y, int64_t first, int64_t n, bool whole,
                                                 const wide_t<T> (&v)[V])
{
    vec<T, V> out = pack<T, V>(v);
    if (whole) {
        *reinterpret_cast<vec<T, V> *>(y + first) = out;
        return;
    }
#pragma unroll
    for (int e = 0; e < V; e++)
        if (first + e < n)
            y[first + e] = out.at[e];
}

/** Calls f(i, whole) for each of this thread's runs of vec16<T> elements: i is the run's first
 * element, and whole tells that the run is one aligned vector. */
template <class T, class F>
static __device__ __forceinline__ void each_run(int64_t n, bool aligned, F &&f)
{
    constexpr int V = vec16<T>;
    for (int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * V; i < n;
         i += (int64_t)gridDim.x * blockDim.x * V)
        f(i, aligned && i + V <= n);
}

/** Contiguous operands of a loss. */
template <class T> struct contiguous_pairs {
    static constexpr int unroll = 2;
    const T *x, *t;
    bool aligned; /* both begin at multiples of 16 bytes */

    /** Loads the operands' vectors starting at element i, as far as they are below `end`. */
    __device__ __forceinline__ void load(int64_t i, int64_t end, vec<T, vec16<T>> &a,
                                         vec<T, vec16<T>> &b) const
    {
        bool whole = aligned && i + vec16<T> <= end;
        a = load_run(x, i, end, whole);
        b = load_run(t, i, end, whole);
    }
};
/** Operands of a loss with any strides. */
template <class T> struct strided_pairs {
    static constexpr int unroll = 1;
    const T *x, *t;
    walk<uint32_t, 2> offsets;

    __device__ __forceinline__ void load(int64_t i, int64_t end, vec<T, vec16<T>> &a,
                                         vec<T, vec16<T>> &b) const
    {
#pragma unroll
        for (int e = 0; e < vec16<T>; e++)
            if (i + e < end) {
                int64_t at[2];
                offsets.at((uint32_t)(i + e), at);
                a.at[e] = x[at[0]];
                b.at[e] = t[at[1]];
            }
    }
};

/** Stores the loss of each of n pairs. aligned: `out` is aligned to 16 bytes. */
template <class T, class P, class L>
static __global__ void __launch_bounds__(PAIR_THREADS)
    pairs_kernel(P pair, const __grid_constant__ L operands, T *out, int64_t n, bool aligned)
{
    constexpr int V = vec16<T>;
    each_run<T>(n, aligned, [&](int64_t i, bool whole) {
        vec<T, V> x = {}, t = {};
        operands.load(i, n, x, t);
        unpacked<T, V> a(x), b(t);
        wide_t<T> y[V];
#pragma unroll
        for (int e = 0; e < V; e++)
            y[e] = pair.of(a.at[e], b.at[e]);
        store_run(out, i, n, whole, y);
    });
}

/** The sum of the losses of elements `from` to `end` - 1. A block of (1, THREADS) threads adds them
 * in an order that depends on `from`, `end`, T and THREADS only. Every thread of the block must
 * call. */
template <int THREADS, class T, class P, class L>
static __device__ __forceinline__ double pair_sum(const P &pair, const L &operands, int64_t from,
                                                  int64_t end)
{
    constexpr int V = vec16<T>;
    double sum = 0;
#pragma unroll(L::unroll)
    for (int64_t i = from + threadIdx.y * V; i < end; i += THREADS * V) {
        vec<T, V> x = {}, t = {};
        operands.load(i, end, x, t);
        unpacked<T, V> a(x), b(t);
#pragma unroll
        for (int e = 0; e < V; e++)
            if (i + e < end)
                sum += (double)pair.of(a.at[e], b.at[e]);
    }
    return line_reduce<1, THREADS, op_sum>(sum);
}

/** Block i stores the sum of its PAIR_SHARE losses in parts[i]. */
template <class T, class P, class L>
static __global__ void __launch_bounds__(PAIR_THREADS)
    pair_sums_kernel(P pair, const __grid_constant__ L operands, double *parts, int64_t n)
{
    int64_t from = (int64_t)blockIdx.x * PAIR_SHARE;
    double sum = pair_sum<PAIR_THREADS, T>(pair, operands, from, min(from + PAIR_SHARE, n));
    if (threadIdx.y == 0)
        parts[blockIdx.x] = sum;
}

/** One block stores the sum of n losses times `factor`. */
template <class T, class P, class L>
static __global__ void __launch_bounds__(PAIR_FEW_THREADS)
    pair_total_kernel(P pair, const __grid_constant__ L operands, T *out, int64_t n, double factor)
{
    double sum = pair_sum<PAIR_FEW_THREADS, T>(pair, operands, 0, n);
    if (threadIdx.y == 0)
        *out = narrow<T>((wide_t<T>)(sum * factor));
}

/** Stores the gradients dx and dt of n pairs; NULL: not requested. g is the upstream gradient: one
 * number per loss with `each`, else one number for all losses. `factor` multiplies g. */
template <class T, class P>
static __global__ void __launch_bounds__(PAIR_THREADS)
    pairs_backward_kernel(P pair, const T *g, bool each, double factor, const T *x, const T *t,
                          T *dx, T *dt, int64_t n, bool aligned)
{
    using A = wide_t<T>;
    constexpr int V = vec16<T>;
    each_run<T>(n, aligned, [&](int64_t i, bool whole) {
        unpacked<T, V> a(load_run(x, i, n, whole)), b(load_run(t, i, n, whole));
        vec<T, V> up = {};
        if (each)
            up = load_run(g, i, n, whole);
        A by_x[V], by_t[V];
#pragma unroll
        for (int e = 0; e < V; e++) {
            A scale = widen(each ? up.at[e] : *g) * (A)factor;
            pair.slopes(a.at[e], b.at[e], by_x[e], by_t[e]);
            by_x[e] *= scale;
            by_t[e] *= scale;
        }
        if (dx)
            store_run(dx, i, n, whole, by_x);
        if (dt)
            store_run(dt, i, n, whole, by_t);
    });
}

/** pairs_backward_kernel() for tensors of any strides. offsets: in g, x, t, dx and dt. */
template <class T, class P>
static __global__ void __launch_bounds__(PAIR_THREADS)
    pairs_backward_strided_kernel(P pair, const T *g, bool each, double factor, const T *x,
                                  const T *t, T *dx, T *dt, uint32_t n,
                                  const __grid_constant__ walk<uint32_t, 5> offsets)
{
    using A = wide_t<T>;
    uint32_t i = blockIdx.x * PAIR_THREADS + threadIdx.x;
    if (i >= n)
        return;
    int64_t at[5];
    offsets.at(i, at);
    A scale = widen(g[each ? at[0] : 0]) * (A)factor, by_x, by_t;
    pair.slopes(widen(x[at[1]]), widen(t[at[2]]), by_x, by_t);
    if (dx)
        dx[at[3]] = narrow<T>(by_x * scale);
    if (dt)
        dt[at[4]] = narrow<T>(by_t * scale);
}

} // namespace ts

#endif
