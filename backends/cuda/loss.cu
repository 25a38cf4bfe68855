/**
 * @file loss.cu
 * Losses over classes (cross_entropy, nll_loss) and over pairs of elements (mse_loss and kin), and their
 * gradients. Sums go by position or block, then in a fixed order by one block, in double.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/index.cuh"
#include "backends/cuda/lines.cuh"
#include "backends/cuda/softmax_rows.cuh"
#include "tessera/ops/loss.h"

using namespace ts;

/* ------------------------------------------------------------------------------ totals ---- */

enum { TOTAL = 1024 };

/** Adds n numbers; *count, where given, holds how many of them count for a mean. */
template <class A, class R> static __global__ void total_kernel(const A *parts, int64_t n, double factor, const int64_t *count, R *out)
{
    double sum = 0;
    for (int64_t i = threadIdx.y; i < n; i += TOTAL)
        sum += (double)parts[i];
    sum = line_reduce<1, TOTAL, op_sum>(sum);
    if (threadIdx.y == 0)
        *out = narrow<R>((wide_t<R>)(count ? sum / (double)*count : sum * factor));
}

template <class A, class R> static __global__ void narrow_kernel(const A *x, R *y, int64_t n)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x)
        y[i] = narrow<R>(x[i]);
}

/** Positions whose target is not ignored. */
static __global__ void count_kernel(indices target, int64_t n, int64_t ignored, int64_t *count)
{
    double sum = 0;
    for (int64_t i = threadIdx.y; i < n; i += TOTAL)
        sum += target.at(i) != ignored;
    sum = line_reduce<1, TOTAL, op_sum>(sum);
    if (threadIdx.y == 0)
        *count = (int64_t)sum;
}

/* ------------------------------------------------------------------------------ classes ---- */

struct classes {
    lines l;
    int64_t ignored;
    double smoothing;
};

template <class T, int X, int Y>
static __global__ void __launch_bounds__(X *Y)
    cross_entropy_lines(classes c, const T *x, indices target, wide_t<T> *loss, wide_t<T> *lse)
{
    using A = wide_t<T>;
    line_place<X, Y> at(c.l);
    A top = minus_infinity<A>(), sum = 0, spread = 0;
    if (at.some)
        for (int64_t i = threadIdx.y; i < c.l.count; i += Y)
            top = op_max::of(top, widen(x[at.first + i * c.l.inner]));
    top = line_reduce<X, Y, op_max>(top);
    if (at.some)
        for (int64_t i = threadIdx.y; i < c.l.count; i += Y) {
            A z = widen(x[at.first + i * c.l.inner]);
            sum += exp(z - top);
            spread += z - top;
        }
    sum = line_reduce<X, Y, op_sum>(sum);
    if (c.smoothing != 0)
        spread = line_reduce<X, Y, op_sum>(spread);
    if (!at.some || threadIdx.y)
        return;
    A rest = log(sum), value = 0;
    if (target.at(at.number) != c.ignored) {
        int64_t goal = target.checked(at.number, c.l.count);
        A own = goal < 0 ? (A)NAN : widen(x[at.first + goal * c.l.inner]);
        value = (A)(1 - c.smoothing) * (top - own + rest);
        if (c.smoothing != 0)
            value += (A)c.smoothing * (rest - spread / (A)c.l.count);
    }
    loss[at.number] = value;
    if (lse)
        lse[at.number] = top + rest;
}

/** dx = (exp(x - lse) - smoothing / n - (1 - smoothing) [class is the target]) scale */
template <class T>
static __global__ void cross_entropy_backward_kernel(classes c, const T *g, bool each, const int64_t *count, const T *x,
                                                     indices target, const wide_t<T> *lse, T *dx, int64_t n)
{
    using A = wide_t<T>;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        int64_t j = i % c.l.inner, k = i / c.l.inner % c.l.count, at = i / c.l.inner / c.l.count * c.l.inner + j;
        int64_t goal = target.at(at);
        A scale = each ? widen(g[at]) : widen(*g);
        if (count)
            scale /= (A)*count;
        A z = exp(widen(x[i]) - lse[at]) - (A)(c.smoothing / (double)c.l.count) - (k == goal ? (A)(1 - c.smoothing) : (A)0);
        dx[i] = narrow<T>(goal == c.ignored ? (A)0 : z * scale);
    }
}

template <class T>
static __global__ void nll_kernel(classes c, const T *x, indices target, wide_t<T> *loss, int64_t positions)
{
    using A = wide_t<T>;
    int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= positions)
        return;
    A value = 0;
    if (target.at(at) != c.ignored) {
        int64_t goal = target.checked(at, c.l.count);
        value = goal < 0 ? (A)NAN : -widen(x[at / c.l.inner * c.l.count * c.l.inner + goal * c.l.inner + at % c.l.inner]);
    }
    loss[at] = value;
}

template <class T>
static __global__ void nll_backward_kernel(classes c, const T *g, bool each, const int64_t *count, indices target, T *dx, int64_t n)
{
    using A = wide_t<T>;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        int64_t j = i % c.l.inner, k = i / c.l.inner % c.l.count, at = i / c.l.inner / c.l.count * c.l.inner + j;
        int64_t goal = target.at(at);
        A scale = each ? widen(g[at]) : widen(*g);
        if (count)
            scale /= (A)*count;
        dx[i] = narrow<T>(goal != c.ignored && k == goal ? -scale : (A)0);
    }
}

static unsigned blocks_for(int64_t n) { return (unsigned)((n + 255) / 256 < 65535 ? (n + 255) / 256 : 65535); }

/** Memory of a call: a number a position, and the count. */
struct class_scratch {
    ts_device where;
    int64_t bytes;
    char *data;

    class_scratch(ts_frame *f, int64_t positions) : where(ts_kernel_device(f)), bytes(positions * 8 + 8)
    {
        data = (char *)ts_scratch_take(where, bytes);
    }
    ~class_scratch()
    {
        if (data)
            ts_scratch_give(where, data, bytes);
    }
    int64_t *count() const { return (int64_t *)data; }
    void *parts() const { return data + 8; }
};

static classes classes_of(const ts_frame *f, int ignore_arg, double smoothing)
{
    ts_rows r = ts_kernel_rows(f);
    return {{r.outer, r.count, r.inner}, f->args[ignore_arg].i, smoothing};
}

template <bool NLL> static ts_status forward_classes(ts_frame *f)
{
    classes c = classes_of(f, 3, NLL ? 0 : f->args[4].d);
    int64_t reduction = f->args[2].i, positions = c.l.outer * c.l.inner;
    class_scratch scratch(f, positions);
    if (!scratch.data)
        return ts_error_code();
    return with_float(f, [&]<class T>(const call &k) {
        using A = wide_t<T>;
        indices target(f, f->args[1].t, k.device);
        const T *x = data_of<T>(f->args[0]);
        A *loss = (A *)scratch.parts();
        T *out = data_of<T>(f->rets[0]);
        if (positions) {
            if constexpr (NLL) {
                nll_kernel<T><<<(unsigned)((positions + 255) / 256), 256, 0, k.stream>>>(c, x, target, loss, positions);
            } else {
                A *lse = data_of<A>(f->rets[1]);
                lines_dispatch(c.l, [&]<int X, int Y>(dim3 grid, dim3 block) {
                    cross_entropy_lines<T, X, Y><<<grid, block, 0, k.stream>>>(c, x, target, loss, lse);
                });
            }
        }
        if (reduction == TS_REDUCTION_NONE) {
            if (positions)
                narrow_kernel<A, T><<<blocks_for(positions), 256, 0, k.stream>>>(loss, out, positions);
            return cudaPeekAtLastError();
        }
        int64_t *count = reduction == TS_REDUCTION_MEAN ? scratch.count() : nullptr;
        if (count)
            count_kernel<<<1, dim3(1, TOTAL), 0, k.stream>>>(target, positions, c.ignored, count);
        total_kernel<A, T><<<1, dim3(1, TOTAL), 0, k.stream>>>(loss, positions, 1, count, out);
        return cudaPeekAtLastError();
    });
}

/** (grad, self, target, [lse,] reduction, ignore_index[, smoothing]) -> gradient of self */
template <bool NLL> static ts_status backward_classes(ts_frame *f)
{
    classes c = classes_of(f, NLL ? 4 : 5, NLL ? 0 : f->args[6].d);
    int64_t reduction = f->args[NLL ? 3 : 4].i, positions = c.l.outer * c.l.inner;
    class_scratch scratch(f, 0);
    if (!scratch.data)
        return ts_error_code();
    return with_float(f, [&]<class T>(const call &k) {
        using A = wide_t<T>;
        indices target(f, f->args[2].t, k.device);
        const T *g = data_of<T>(f->args[0]), *x = data_of<T>(f->args[1]);
        T *dx = data_of<T>(f->rets[0]);
        bool each = reduction == TS_REDUCTION_NONE;
        int64_t *count = reduction == TS_REDUCTION_MEAN ? scratch.count() : nullptr, n = positions * c.l.count;
        if (!n)
            return cudaSuccess;
        if (count)
            count_kernel<<<1, dim3(1, TOTAL), 0, k.stream>>>(target, positions, c.ignored, count);
        if constexpr (NLL)
            nll_backward_kernel<T><<<blocks_for(n), 256, 0, k.stream>>>(c, g, each, count, target, dx, n);
        else
            cross_entropy_backward_kernel<T><<<blocks_for(n), 256, 0, k.stream>>>(c, g, each, count, x, target,
                                                                                 data_of<A>(f->args[3]), dx, n);
        return cudaPeekAtLastError();
    });
}

static ts_status cross_entropy(ts_frame *f) { return forward_classes<false>(f); }
static ts_status nll_loss(ts_frame *f) { return forward_classes<true>(f); }
static ts_status cross_entropy_backward(ts_frame *f) { return backward_classes<false>(f); }
static ts_status nll_loss_backward(ts_frame *f) { return backward_classes<true>(f); }

/* -------------------------------------------------------------------------------- pairs ---- */

/* Of elements x and t: the loss, and its slopes in both. p is the op's number. */
#define PAIR(name, value, slope, target_slope)                                                             \
    struct name {                                                                                          \
        double number;                                                                                     \
        template <class A> __device__ __forceinline__ A of(A x, A t) const                                 \
        {                                                                                                  \
            A p = (A)number;                                                                               \
            (void)p;                                                                                       \
            return value;                                                                                  \
        }                                                                                                  \
        template <class A> __device__ __forceinline__ void slopes(A x, A t, A &dx, A &dt) const            \
        {                                                                                                  \
            A p = (A)number;                                                                               \
            (void)p;                                                                                       \
            dx = slope;                                                                                    \
            dt = target_slope;                                                                             \
        }                                                                                                  \
    };
template <class A> __device__ __forceinline__ A sign_of(A d) { return d != d ? d : (A)((d > 0) - (d < 0)); }
template <class A> __device__ __forceinline__ A logistic(A x) { return 1 / (1 + exp(-x)); }
/** A product that is rounded before it is subtracted from: what cancels must cancel. */
__device__ __forceinline__ float times(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ double times(double a, double b) { return __dmul_rn(a, b); }
/** t log t, 0 at 0. */
template <class A> __device__ __forceinline__ A t_log_t(A t) { return t > 0 ? t * log(t) : t == 0 ? (A)0 : (A)NAN; }

PAIR(mse, (x - t) * (x - t), 2 * (x - t), -2 * (x - t))
PAIR(l1, fabs(x - t), sign_of(x - t), -sign_of(x - t))
PAIR(smooth_l1, fabs(x - t) < p ? (A)0.5 * (x - t) * (x - t) / p : fabs(x - t) - (A)0.5 * p,
     fabs(x - t) < p ? (x - t) / p : sign_of(x - t), fabs(x - t) < p ? (t - x) / p : -sign_of(x - t))
PAIR(huber, fabs(x - t) <= p ? (A)0.5 * (x - t) * (x - t) : p * (fabs(x - t) - (A)0.5 * p),
     fabs(x - t) <= p ? x - t : p * sign_of(x - t), fabs(x - t) <= p ? t - x : -p * sign_of(x - t))
PAIR(bce, ((x > 0 ? x : (A)0) - times(x, t)) + log1p(exp(-fabs(x))), logistic(x) - t, -x)
PAIR(kl, t_log_t(t) - t * x, -t, t > 0 ? log(t) + 1 - x : t == 0 ? (A)0 : (A)NAN)
PAIR(kl_log, exp(t) * (t - x), -exp(t), exp(t) * (t - x + 1))

template <class T, class P> static __global__ void pairs_kernel(P pair, const T *x, const T *t, T *out, int64_t n)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x)
        out[i] = narrow<T>(pair.of(widen(x[i]), widen(t[i])));
}

enum { PAIR_THREADS = 256, PAIR_SHARE = 4096 };

template <class T, class P> static __global__ void pair_sums_kernel(P pair, const T *x, const T *t, double *parts, int64_t n)
{
    int64_t from = (int64_t)blockIdx.x * PAIR_SHARE;
    double sum = 0;
    for (int64_t i = from + threadIdx.y; i < n && i < from + PAIR_SHARE; i += PAIR_THREADS)
        sum += (double)pair.of(widen(x[i]), widen(t[i]));
    sum = line_reduce<1, PAIR_THREADS, op_sum>(sum);
    if (threadIdx.y == 0)
        parts[blockIdx.x] = sum;
}

template <class T, class P>
static __global__ void pairs_backward_kernel(P pair, const T *g, bool each, double factor, const T *x, const T *t, T *dx, T *dt,
                                             int64_t n)
{
    using A = wide_t<T>;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        A a, b, scale = (each ? widen(g[i]) : widen(*g)) * (A)factor;
        pair.slopes(widen(x[i]), widen(t[i]), a, b);
        if (dx)
            dx[i] = narrow<T>(a * scale);
        if (dt)
            dt[i] = narrow<T>(b * scale);
    }
}

/** 1 / n for a mean, 1 / batch for batchmean, else 1. */
static double pair_factor(const ts_tensor *x, int64_t reduction)
{
    if (reduction == TS_REDUCTION_MEAN)
        return 1 / (double)ts_numel(x);
    return reduction == TS_REDUCTION_BATCHMEAN && ts_ndim(x) ? 1 / (double)ts_sizes(x)[0] : 1;
}

template <class P> static ts_status forward_pairs(ts_frame *f, P pair)
{
    int64_t n = ts_numel(f->args[0].t), reduction = f->args[2].i, blocks = (n + PAIR_SHARE - 1) / PAIR_SHARE;
    class_scratch scratch(f, blocks);
    if (!scratch.data)
        return ts_error_code();
    return with_float(f, [&]<class T>(const call &k) {
        const T *x = data_of<T>(f->args[0]), *t = data_of<T>(f->args[1]);
        T *out = data_of<T>(f->rets[0]);
        if (reduction == TS_REDUCTION_NONE) {
            if (n)
                pairs_kernel<T><<<blocks_for(n), 256, 0, k.stream>>>(pair, x, t, out, n);
            return cudaPeekAtLastError();
        }
        double *parts = (double *)scratch.parts();
        if (n)
            pair_sums_kernel<T><<<(unsigned)blocks, dim3(1, PAIR_THREADS), 0, k.stream>>>(pair, x, t, parts, n);
        total_kernel<double, T><<<1, dim3(1, TOTAL), 0, k.stream>>>(parts, blocks, pair_factor(f->args[0].t, reduction),
                                                                   nullptr, out);
        return cudaPeekAtLastError();
    });
}

template <class P> static ts_status backward_pairs(ts_frame *f, P pair)
{
    return with_float(f, [&]<class T>(const call &k) {
        int64_t n = ts_numel(f->args[1].t), reduction = f->args[3].i;
        if (n)
            pairs_backward_kernel<T><<<blocks_for(n), 256, 0, k.stream>>>(
                pair, data_of<T>(f->args[0]), reduction == TS_REDUCTION_NONE, pair_factor(f->args[1].t, reduction),
                data_of<T>(f->args[1]), data_of<T>(f->args[2]), data_of<T>(f->rets[0]), data_of<T>(f->rets[1]), n);
        return cudaPeekAtLastError();
    });
}

#define PAIR_OPS(op, kind, forward_number, backward_number)                                                  \
    static ts_status op(ts_frame *f) { return forward_pairs(f, kind{forward_number}); }                      \
    static ts_status op##_backward(ts_frame *f) { return backward_pairs(f, kind{backward_number}); }
PAIR_OPS(mse_loss, mse, 0, 0)
PAIR_OPS(l1_loss, l1, 0, 0)
PAIR_OPS(smooth_l1_loss, smooth_l1, f->args[3].d, f->args[4].d)
PAIR_OPS(huber_loss, huber, f->args[3].d, f->args[4].d)
PAIR_OPS(binary_cross_entropy_with_logits, bce, 0, 0)
static ts_status kl_div(ts_frame *f) { return f->args[3].i ? forward_pairs(f, kl_log{0}) : forward_pairs(f, kl{0}); }
static ts_status kl_div_backward(ts_frame *f) { return f->args[4].i ? backward_pairs(f, kl_log{0}) : backward_pairs(f, kl{0}); }

#define ROWS(name) {#name, name, floats, false}, {#name "_backward", name##_backward, floats, false}
TS_CUDA_FAMILY(loss,
    ROWS(cross_entropy), ROWS(nll_loss), ROWS(mse_loss), ROWS(l1_loss), ROWS(smooth_l1_loss), ROWS(huber_loss),
    ROWS(binary_cross_entropy_with_logits), ROWS(kl_div))
