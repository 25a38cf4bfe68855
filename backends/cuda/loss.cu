/**
 * @file loss.cu
 * Losses over classes (cross_entropy, nll_loss) and over pairs of elements (mse_loss and others),
 * and their gradients. A loss is first summed per position or block; then one block adds these sums
 * in double, in a fixed order.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/aligned.cuh"
#include "backends/cuda/lines.cuh"
#include "backends/cuda/loss_pairs.cuh"
#include "backends/cuda/loss_rows.cuh"
#include "backends/cuda/statistics.cuh"
#include "tessera/ops/loss.h"

using namespace ts;

/* ------------------------------------------------------------------------------ totals ---- */

enum { TOTAL = 1024 };

/** One block adds n numbers and stores the sum divided by *count (a mean) or, if count is NULL,
 *  times `factor`. */
template <class R>
static __global__ void total_kernel(const double *parts, int64_t n, double factor,
                                    const unsigned long long *count, R *out)
{
    double sum = 0;
    for (int64_t i = threadIdx.y; i < n; i += TOTAL)
        sum += parts[i];
    sum = line_reduce<1, TOTAL, op_sum>(sum);
    if (threadIdx.y == 0)
        *out = narrow<R>((wide_t<R>)(count ? sum / (double)*count : sum * factor));
}

/* ------------------------------------------------------------------------------ classes ---- */

enum { FEW_POSITIONS = 16384 /* positions that one block counts sooner than two launches */ };

/** The number of positions whose target is not ignored, counted by a block of TOTAL threads. */
static __device__ __forceinline__ double count_of(const indices &target, int64_t positions,
                                                  int64_t ignored)
{
    int some = 0;
#pragma unroll 8
    for (int i = threadIdx.y; i < (int)positions; i += TOTAL)
        some += target.at(i) != ignored;
    return line_reduce<1, TOTAL, op_sum>((double)some);
}

static __global__ void __launch_bounds__(TOTAL)
    count_few_kernel(indices target, int64_t positions, int64_t ignored, unsigned long long *count)
{
    double some = count_of(target, positions, ignored);
    if (threadIdx.y == 0)
        *count = (unsigned long long)some;
}

/** total_kernel() for a mean over at most FEW_POSITIONS positions, which the block counts. */
template <class R>
static __global__ void __launch_bounds__(TOTAL)
    mean_few_kernel(const double *parts, int64_t n, indices target, int64_t positions,
                    int64_t ignored, R *out)
{
    double sum = 0, some = count_of(target, positions, ignored);
    for (int64_t i = threadIdx.y; i < n; i += TOTAL)
        sum += parts[i];
    sum = line_reduce<1, TOTAL, op_sum>(sum);
    if (threadIdx.y == 0)
        *out = narrow<R>((wide_t<R>)(sum / some));
}

struct classes {
    lines l;
    int64_t ignored;
    double smoothing;
};

enum { POSITIONS = 256,    /* positions per block */
       FEW_LOSSES = 4096,  /* positions whose losses one block of TOTAL threads adds sooner than two
                              kernels */
       ALONE = 1 << 16     /* positions that keep a device busy with one thread each */ };

/** Adds to *count the positions whose target is not ignored. */
static __global__ void __launch_bounds__(POSITIONS)
    count_kernel(indices target, int64_t n, int64_t ignored, unsigned long long *count)
{
    int64_t i = (int64_t)blockIdx.x * POSITIONS + threadIdx.x;
    int some = __syncthreads_count(i < n && target.at(i) != ignored);
    if (threadIdx.x == 0 && some)
        atomicAdd(count, (unsigned long long)some);
}

/** Results of a loss over classes. */
template <class R> struct loss_results {
    R *each;       /* per position; NULL: not requested */
    double *parts; /* sum of each block, if `each` and `total` are NULL */
    R *total;      /* sum or mean of all losses, of a grid of one block; NULL: not requested */
    bool mean;     /* total is the mean over the positions whose target is not ignored */
};

/** Stores the losses of a block's positions, or their sum or mean. */
template <int THREADS, class R, class F>
static __device__ __forceinline__ void give_losses(const classes &c, const indices &target,
                                                   const loss_results<R> &out, F &&loss)
{
    using A = wide_t<R>;
    int64_t positions = c.l.outer * c.l.inner;
    double sum = 0, some = 0;
#pragma unroll(THREADS == TOTAL ? 4 : 1)
    for (int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.y; at < positions;
         at += (int64_t)gridDim.x * THREADS) {
        A value = 0;
        if (target.at(at) != c.ignored) {
            int64_t goal = target.checked(at, c.l.count),
                    first = at / c.l.inner * c.l.count * c.l.inner + at % c.l.inner;
            value = goal < 0 ? (A)NAN : loss(at, first + goal * c.l.inner);
            some++;
        }
        if (out.each)
            out.each[at] = narrow<R>(value);
        sum += (double)value;
    }
    if (out.each)
        return;
    sum = line_reduce<1, THREADS, op_sum>(sum);
    if (out.total && out.mean)
        sum /= line_reduce<1, THREADS, op_sum>(some);
    if (threadIdx.y > 0)
        return;
    if (out.total)
        *out.total = narrow<R>((A)sum);
    else
        out.parts[blockIdx.x] = sum;
}

/** Statistics of each position's logits. */
template <class T> struct position_sums {
    using A = wide_t<T>;
    const exponentials<A> *known;
    const A *own;    /* the target's logit; NULL: read it from the logits */
    const A *totals; /* (parts, positions): sums of logits; NULL: `known` has them */
    int parts;

    __device__ __forceinline__ A total(int64_t at, int64_t positions) const
    {
        A sum = totals ? (A)0 : known[at].total;
        for (int p = 0; totals && p < parts; p++)
            sum += totals[p * positions + at];
        return sum;
    }
};

template <class T, class R, int THREADS>
static __global__ void __launch_bounds__(THREADS)
    cross_entropy_kernel(classes c, const T *x, indices target, position_sums<T> sums,
                         wide_t<T> *lse, loss_results<R> out)
{
    using A = wide_t<T>;
    int64_t positions = c.l.outer * c.l.inner;
    for (int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.y; lse && at < positions;
         at += (int64_t)gridDim.x * THREADS)
        lse[at] = exponentials_fold<T>().finish(sums.known[at]);
    give_losses<THREADS>(c, target, out, [&](int64_t at, int64_t own) {
        A rest = log(sums.known[at].sum), top = exponentials_fold<T>::base(sums.known[at].top);
        A value = (A)(1 - c.smoothing) * (top - (sums.own ? sums.own[at] : widen(x[own])) + rest);
        if (c.smoothing != 0)
            value += (A)c.smoothing * (rest + top - sums.total(at, positions) / (A)c.l.count);
        return value;
    });
}

template <class T, int THREADS>
static __global__ void __launch_bounds__(THREADS)
    nll_kernel(classes c, const T *x, indices target, loss_results<T> out)
{
    give_losses<THREADS>(c, target, out, [&](int64_t, int64_t own) { return -widen(x[own]); });
}

/** Factor that makes the probabilities exp(x - lse) of a position sum to 1 if lse lost digits;
 * otherwise 1. LANES adjacent threads per position, a power of 2. */
template <class T, int LANES>
static __global__ void __launch_bounds__(POSITIONS)
    share_kernel(classes c, const T *x, const wide_t<T> *lse, wide_t<T> *share)
{
    using A = wide_t<T>;
    int64_t at = ((int64_t)blockIdx.x * POSITIONS + threadIdx.x) / LANES;
    int lane = threadIdx.x % LANES;
    bool in = at < c.l.outer * c.l.inner;
    A known = in ? lse[at] : (A)0, sum = 0;
    bool exact = known >= -(A)TS_LSE_EXACT && known <= (A)TS_LSE_EXACT;
    const T *row = x + at / c.l.inner * c.l.count * c.l.inner + at % c.l.inner;
    for (int64_t k = lane; !exact && k < c.l.count; k += LANES)
        sum += exp_from<T>(known)(widen(row[k * c.l.inner]));
    for (int far = LANES / 2; far; far /= 2)
        sum += __shfl_xor_sync(~0u, sum, far);
    if (in && lane == 0)
        share[at] = exact ? (A)1 : (A)1 / sum;
}

/** dx = (share exp(x - lse) - smoothing / n - (1 - smoothing) [class is the target]) scale */
template <class T> struct cross_entropy_slope {
    using A = wide_t<T>;
    int64_t goal;
    A lse, share, scale, even, own; /* scale 0: ignored */

    /** g NULL: 1 */
    __device__ __forceinline__ cross_entropy_slope(const classes &c, const T *g, bool each,
                                                   const unsigned long long *count,
                                                   const indices &target, const wide_t<T> *known,
                                                   const wide_t<T> *shares, int64_t at)
        : goal(target.at(at)), lse(known[at]), share(shares[at]),
          scale(!g ? (A)1 : each ? widen(g[at]) : widen(*g)),
          even((A)(c.smoothing / (double)c.l.count)), own((A)(1 - c.smoothing))
    {
        if (count)
            scale /= (A)*count;
        if (goal == c.ignored)
            scale = 0;
    }
    /** other() and own_class(): the gradient of a logit x whose class is not, or is, the target. */
    __device__ __forceinline__ T other(A x) const
    {
        return narrow<T>(scale == 0 ? (A)0 : (fma(exp_from<T>(lse)(x), share, -even)) * scale);
    }
    __device__ __forceinline__ T own_class(A x) const
    {
        A p = exp_from<T>(lse)(x);
        return narrow<T>(scale == 0 ? (A)0 : (fma(p, share, -even) - own) * scale);
    }
};

template <class T>
static __global__ void
cross_entropy_backward_kernel(classes c, const T *g, bool each, const unsigned long long *count,
                              const T *x, indices target, const wide_t<T> *lse,
                              const wide_t<T> *share, T *dx, int64_t n)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        int64_t j = i % c.l.inner, k = i / c.l.inner % c.l.count,
                at = i / c.l.inner / c.l.count * c.l.inner + j;
        cross_entropy_slope<T> slope(c, g, each, count, target, lse, share, at);
        if (k == 0 && slope.goal != c.ignored)
            target.checked(at, c.l.count);
        dx[i] = k == slope.goal ? slope.own_class(widen(x[i])) : slope.other(widen(x[i]));
    }
}

enum { LONG = 256, LONG_UNROLL = 4 };

/**
 * The same gradient for many adjacent classes: blockIdx.y is the position. aligned: x and dx are
 * 16-byte aligned; if a row is not, its first vector starts before the row.
 */
template <class T>
static __global__ void __launch_bounds__(LONG)
    cross_entropy_backward_long(classes c, const T *g, bool each, const unsigned long long *count,
                                const T *x, indices target, const wide_t<T> *lse,
                                const wide_t<T> *share, T *dx, bool aligned)
{
    constexpr int V = vec16<T>;
    int64_t at = blockIdx.y, n = c.l.count,
            start = blockIdx.x * (LONG * LONG_UNROLL * V) + threadIdx.x * V;
    int64_t begin = aligned ? start - at * n % V : start;
    const T *row = x + at * n;
    T *to = dx + at * n;
    vec<T, V> in[LONG_UNROLL];
#pragma unroll
    for (int u = 0; u < LONG_UNROLL; u++) {
        int64_t first = begin + u * (LONG * V);
        if (aligned && first >= 0 && first + V <= n) {
            in[u] = *reinterpret_cast<const vec<T, V> *>(row + first);
        } else {
#pragma unroll
            for (int e = 0; e < V; e++)
                if (first + e >= 0 && first + e < n)
                    in[u].at[e] = row[first + e];
        }
    }
    cross_entropy_slope<T> slope(c, g, each, count, target, lse, share, at);
    if (start == 0 && slope.goal != c.ignored)
        target.checked(at, n);
#pragma unroll
    for (int u = 0; u < LONG_UNROLL; u++) {
        int64_t first = begin + u * (LONG * V);
        if (first >= n)
            break;
        vec<T, V> out;
#pragma unroll
        for (int e = 0; e < V; e++)
            out.at[e] = slope.other(widen(in[u].at[e]));
        if (slope.goal >= first && slope.goal < first + V) {
#pragma unroll
            for (int e = 0; e < V; e++)
                if (slope.goal == first + e)
                    out.at[e] = slope.own_class(widen(in[u].at[e]));
        }
        if (aligned && first >= 0 && first + V <= n) {
            store_stream(reinterpret_cast<vec<T, V> *>(to + first), out);
        } else {
#pragma unroll
            for (int e = 0; e < V; e++)
                if (first + e >= 0 && first + e < n)
                    to[first + e] = out.at[e];
        }
    }
}

enum {
    NLL_SHORT = 1 << 18 /* elements of a gradient that one kernel writes sooner than a memset
                           and a kernel */
};

/** The number of positions whose target is not ignored, counted by a block of POSITIONS threads. */
static __device__ __forceinline__ unsigned long long counted(const classes &c,
                                                             const indices &target)
{
    int positions = (int)(c.l.outer * c.l.inner), some = 0;
    for (int i = 0; i < positions; i += POSITIONS) {
        int at = i + (int)threadIdx.x;
        some += __syncthreads_count(at < positions && target.at(at) != c.ignored);
    }
    return (unsigned long long)some;
}

enum { NLL_FEW = 8 * POSITIONS /* positions that each block of the gradient counts itself */ };

/** Writes the gradient of each position's target; all other elements of dx are 0 already. counts:
 * the result is that of a mean, and each block counts its positions, at most NLL_FEW. */
template <class T>
static __global__ void __launch_bounds__(POSITIONS)
    nll_backward_kernel(classes c, const T *g, bool each, const unsigned long long *count,
                        bool counts, indices target, T *dx)
{
    unsigned long long some = counts ? counted(c, target) : count ? *count : 1;
    int64_t at = (int64_t)blockIdx.x * POSITIONS + threadIdx.x;
    if (at >= c.l.outer * c.l.inner || target.at(at) == c.ignored)
        return;
    int64_t goal = target.checked(at, c.l.count);
    if (goal >= 0)
        dx[(at / c.l.inner * c.l.count + goal) * c.l.inner + at % c.l.inner] =
            narrow<T>(-widen(g[each ? at : 0]) / (wide_t<T>)some);
}

/** nll_backward_kernel() for a gradient of at most NLL_SHORT elements, all of which it writes. */
template <class T>
static __global__ void __launch_bounds__(POSITIONS)
    nll_backward_short(classes c, const T *g, bool each, const unsigned long long *count,
                       bool counts, indices target, T *dx, split<uint32_t> inner,
                       split<uint32_t> length)
{
    unsigned long long some = counts ? counted(c, target) : count ? *count : 1;
    uint32_t i = blockIdx.x * POSITIONS + threadIdx.x;
    if (i >= (uint32_t)(c.l.outer * c.l.count * c.l.inner))
        return;
    uint32_t line = inner.of(i), outer = length.of(line), k = line - outer * length.d,
             at = outer * inner.d + i - line * inner.d;
    int64_t goal = target.at(at);
    wide_t<T> slope = 0;
    if (k == 0 && goal != c.ignored)
        target.checked(at, c.l.count);
    if (goal == k && goal != c.ignored)
        slope = -widen(g[each ? at : 0]) / (wide_t<T>)some;
    dx[i] = narrow<T>(slope);
}

static unsigned blocks_for(int64_t n)
{
    return (unsigned)((n + 255) / 256 < 65535 ? (n + 255) / 256 : 65535);
}

/** Memory of a call: a count, then other scratch. */
struct class_scratch {
    ts_device where;
    int64_t bytes;
    char *data;

    class_scratch(ts_frame *f, int64_t more) : where(ts_kernel_device(f)), bytes(more + 16)
    {
        data = (char *)ts_scratch_take(where, bytes);
    }
    ~class_scratch()
    {
        if (data)
            ts_scratch_give(where, data, bytes);
    }
    /** Counts positions for a mean. */
    unsigned long long *count(const indices &target, int64_t positions, int64_t ignored,
                              cudaStream_t stream) const
    {
        unsigned long long *count = (unsigned long long *)data;
        if (positions <= FEW_POSITIONS) {
            count_few_kernel<<<1, dim3(1, TOTAL), 0, stream>>>(target, positions, ignored, count);
            return count;
        }
        cudaMemsetAsync(data, 0, 8, stream);
        count_kernel<<<(unsigned)((positions + POSITIONS - 1) / POSITIONS), POSITIONS, 0, stream>>>(
            target, positions, ignored, count);
        return count;
    }
    void *parts() const { return data + 16; }
};

static classes classes_of(const ts_frame *f, int ignore_arg, double smoothing)
{
    ts_rows r = ts_kernel_rows(f);
    return {{r.outer, r.count, r.inner}, f->args[ignore_arg].i, smoothing};
}

/** Logits (outer, classes, inner), reduced over classes. */
static reduction over_classes(const classes &c)
{
    reduction r = {
        {2, 1}, {{c.l.inner, c.l.outer}, {c.l.count}}, {{1, c.l.count * c.l.inner}, {c.l.inner}}};
    r.results = c.l.outer * c.l.inner;
    r.count = c.l.count;
    return r;
}

/** Runs run.operator()<T>() for the floating dtype that the call computes in. */
template <class F> static ts_status of_float(ts_frame *f, F &&run)
{
    switch (ts_kernel_dtype(f)) {
    case TS_F64: return run.template operator()<double>();
    case TS_BF16: return run.template operator()<bf16>();
    case TS_F16: return run.template operator()<f16>();
    default: return run.template operator()<float>();
    }
}

/** Calls launch.operator()<THREADS>(grid, block, results), which launches a kernel of losses of at
 *  least one position. If one block computes all losses, it stores the total as well, and `total`
 *  becomes NULL. */
template <class R, class F>
static void launch_losses(int64_t positions, R *each, double *parts, R *&total, bool mean,
                          F &&launch)
{
    dim3 blocks((unsigned)((positions + POSITIONS - 1) / POSITIONS));
    if (each || positions > FEW_LOSSES) {
        launch.template operator()<POSITIONS>(blocks, dim3(1, POSITIONS),
                                              loss_results<R>{each, parts, nullptr, mean});
        return;
    }
    launch.template operator()<TOTAL>(dim3(1), dim3(1, TOTAL),
                                      loss_results<R>{each, parts, total, mean});
    total = nullptr;
}

template <bool NLL> static ts_status forward_classes(ts_frame *f)
{
    classes c = classes_of(f, 3, NLL ? 0 : f->args[4].d);
    int64_t reduction = f->args[2].i, positions = c.l.outer * c.l.inner,
            blocks = (positions + POSITIONS - 1) / POSITIONS;
    class_scratch sums(f, blocks * 8),
        states(f, NLL ? 0 : positions * (int64_t)sizeof(exponentials<double>));
    if (!sums.data || !states.data)
        return ts_error_code();
    auto run = [&]<class T>() {
        using A = wide_t<T>;
        const T *x = data_of<T>(f->args[0]);
        exponentials<A> *known = (exponentials<A> *)states.parts();
        if constexpr (!NLL)
            TS_CUDA_TRY(exponentials_into(f, over_classes(c), x, known));
        return on_device(f, [&](const call &k) {
            indices target(f, f->args[1].t, k.device, "classes");
            bool none = reduction == TS_REDUCTION_NONE, mean = reduction == TS_REDUCTION_MEAN;
            T *out = none ? nullptr : data_of<T>(f->rets[0]);
            double *parts = (double *)sums.parts();
            if (positions)
                launch_losses<T>(
                    positions, none ? data_of<T>(f->rets[0]) : nullptr, parts, out, mean,
                    [&]<int THREADS>(dim3 grid, dim3 block, const loss_results<T> &to) {
                        if constexpr (NLL)
                            nll_kernel<T, THREADS>
                                <<<grid, block, 0, k.stream>>>(c, x, target, to);
                        else
                            cross_entropy_kernel<T, T, THREADS><<<grid, block, 0, k.stream>>>(
                                c, x, target, {known}, data_of<A>(f->rets[1]), to);
                    });
            if (!out)
                return cudaPeekAtLastError();
            if (mean && positions <= FEW_POSITIONS) {
                mean_few_kernel<T><<<1, dim3(1, TOTAL), 0, k.stream>>>(parts, blocks, target,
                                                                       positions, c.ignored, out);
                return cudaPeekAtLastError();
            }
            unsigned long long *count =
                mean ? sums.count(target, positions, c.ignored, k.stream) : nullptr;
            total_kernel<T><<<1, dim3(1, TOTAL), 0, k.stream>>>(parts, blocks, 1, count, out);
            return cudaPeekAtLastError();
        });
    };
    return of_float(f, run);
}

/** Launches the gradient for all positions. g NULL: the upstream gradient is 1. */
template <class T>
static void launch_slopes(const classes &c, const T *g, bool each, const unsigned long long *count,
                          const T *x, const indices &target, const wide_t<T> *lse,
                          wide_t<T> *share, T *dx, cudaStream_t stream)
{
    constexpr int64_t piece = LONG * LONG_UNROLL * vec16<T>;
    int64_t positions = c.l.outer * c.l.inner, n = positions * c.l.count;
    if (!positions)
        return;
    /* a thread per position if the classes are few, or adjacent threads read adjacent positions */
    bool alone = c.l.count <= 8 || (c.l.inner >= 32 && positions >= ALONE);
    int64_t lanes = alone ? 1 : 32;
    auto factors = alone ? share_kernel<T, 1> : share_kernel<T, 32>;
    factors<<<(unsigned)((positions * lanes + POSITIONS - 1) / POSITIONS), POSITIONS, 0, stream>>>(
        c, x, lse, share);
    if (c.l.inner == 1 && c.l.count >= 512 && positions < 65536) {
        bool aligned = aligned16(x) && aligned16(dx);
        /* elements of a row, and those before it in its first vector */
        int64_t most = c.l.count + (c.l.count % vec16<T> ? vec16<T> - 1 : 0);
        dim3 grid((unsigned)((most + piece - 1) / piece), (unsigned)positions);
        cross_entropy_backward_long<T>
            <<<grid, LONG, 0, stream>>>(c, g, each, count, x, target, lse, share, dx, aligned);
    } else {
        cross_entropy_backward_kernel<T>
            <<<blocks_for(n), 256, 0, stream>>>(c, g, each, count, x, target, lse, share, dx, n);
    }
}

/** (grad, self, target, [lse,] reduction, ignore_index[, smoothing]) -> gradient of self */
template <bool NLL> static ts_status backward_classes(ts_frame *f)
{
    TS_SCOPE;
    classes c = classes_of(f, NLL ? 4 : 5, NLL ? 0 : f->args[6].d);
    int64_t reduction = f->args[NLL ? 3 : 4].i, positions = c.l.outer * c.l.inner;
    ts_tensor *known = NLL ? nullptr : statistics(f->args[3]);
    class_scratch scratch(f, NLL ? 0 : positions * 8);
    if (!scratch.data || !(NLL || known))
        return ts_error_code();
    return with_float(f, [&]<class T>(const call &k) {
        using A = wide_t<T>;
        indices target(f, f->args[2].t, k.device, "classes");
        const T *g = data_of<T>(f->args[0]), *x = data_of<T>(f->args[1]);
        T *dx = data_of<T>(f->rets[0]);
        bool each = reduction == TS_REDUCTION_NONE;
        int64_t n = positions * c.l.count;
        if (!n)
            return cudaSuccess;
        bool mean = reduction == TS_REDUCTION_MEAN, counts = NLL && mean && positions <= NLL_FEW;
        unsigned long long *count =
            mean && !counts ? scratch.count(target, positions, c.ignored, k.stream) : nullptr;
        auto blocks = [](int64_t m) { return (unsigned)((m + POSITIONS - 1) / POSITIONS); };
        if constexpr (NLL) {
            if (n <= NLL_SHORT) {
                nll_backward_short<T><<<blocks(n), POSITIONS, 0, k.stream>>>(
                    c, g, each, count, counts, target, dx, split<uint32_t>(c.l.inner),
                    split<uint32_t>(c.l.count));
            } else {
                cudaMemsetAsync(dx, 0, (size_t)n * sizeof(T), k.stream);
                nll_backward_kernel<T><<<blocks(positions), POSITIONS, 0, k.stream>>>(
                    c, g, each, count, counts, target, dx);
            }
        } else {
            launch_slopes<T>(c, g, each, count, x, target, (const A *)ts_kernel_data(known),
                             (A *)scratch.parts(), dx, k.stream);
        }
        return cudaPeekAtLastError();
    });
}

/** Numbers per position that cross_entropy_grad stores during a call. */
template <class T> struct grad_scratch {
    using A = wide_t<T>;
    int64_t positions, blocks, rooms;
    class_scratch memory;

    grad_scratch(ts_frame *f, const classes &c)
        : positions(c.l.outer * c.l.inner), blocks((positions + POSITIONS - 1) / POSITIONS),
          rooms(c.smoothing != 0 ? positions * logit_parts(c.l.count) : 0),
          memory(f, blocks * 8 + positions * (int64_t)(sizeof(exponentials<A>) + 2 * sizeof(A)) +
                        rooms * (int64_t)sizeof(A))
    {
    }
    double *parts() const { return (double *)memory.parts(); }
    exponentials<A> *known() const { return (exponentials<A> *)(parts() + blocks); }
    /* the logits of the targets or, if the gradient needs a second pass, log-sum-exps */
    A *numbers() const { return (A *)(known() + positions); }
    A *shares() const { return numbers() + positions; }
    A *totals() const { return rooms ? shares() + positions : nullptr; }
};

/** cross_entropy_grad(self, target, reduction, ignore_index, label_smoothing) ->
 * (gradient of self for an upstream gradient of 1, loss) */
template <class T> static ts_status grad_classes(ts_frame *f)
{
    using A = wide_t<T>;
    classes c = classes_of(f, 3, f->args[4].d);
    bool none = f->args[2].i == TS_REDUCTION_NONE, once = false;
    grad_scratch<T> s(f, c);
    if (!s.memory.data)
        return ts_error_code();
    const T *x = data_of<T>(f->args[0]);
    T *dx = data_of<T>(f->rets[0]);
    A *loss = data_of<A>(f->rets[1]);
    unsigned long long *count = nullptr;
    position_sums<T> sums = {s.known()};
    TS_CUDA_TRY(on_device(f, [&](const call &k) {
        indices target(f, f->args[1].t, k.device, "classes");
        if (f->args[2].i == TS_REDUCTION_MEAN)
            count = s.memory.count(target, s.positions, c.ignored, k.stream);
        cudaError_t e = cudaErrorNotSupported;
        if constexpr (sizeof(T) < 8)
            if (dx && c.l.inner == 1)
                e = cross_entropy_grad_rows<T>({x, target, dx, count, s.known(), s.numbers(),
                                                s.totals(), s.positions, c.l.count, c.ignored,
                                                (A)(c.smoothing / (double)c.l.count),
                                                (A)(1 - c.smoothing)},
                                               &sums.parts, k.device, k.stream);
        once = e != cudaErrorNotSupported;
        return once ? e : cudaSuccess;
    }));
    if (once)
        sums.own = s.numbers(), sums.totals = s.totals();
    else
        TS_CUDA_TRY(exponentials_into(f, over_classes(c), x, s.known()));
    return on_device(f, [&](const call &k) {
        indices target(f, f->args[1].t, k.device, "classes");
        A *total = none ? nullptr : loss;
        if (s.positions)
            launch_losses<A>(s.positions, none ? loss : nullptr, s.parts(), total, count != nullptr,
                             [&]<int THREADS>(dim3 grid, dim3 block, const loss_results<A> &to) {
                                 cross_entropy_kernel<T, A, THREADS><<<grid, block, 0, k.stream>>>(
                                     c, x, target, sums, once ? nullptr : s.numbers(), to);
                             });
        if (dx && !once)
            launch_slopes<T>(c, nullptr, false, count, x, target, s.numbers(), s.shares(), dx,
                             k.stream);
        if (total)
            total_kernel<A>
                <<<1, dim3(1, TOTAL), 0, k.stream>>>(s.parts(), s.blocks, 1, count, total);
        return cudaPeekAtLastError();
    });
}

static ts_status cross_entropy(ts_frame *f) { return forward_classes<false>(f); }
static ts_status cross_entropy_grad(ts_frame *f)
{
    return of_float(f, [&]<class T>() { return grad_classes<T>(f); });
}
static ts_status nll_loss(ts_frame *f) { return forward_classes<true>(f); }
static ts_status cross_entropy_backward(ts_frame *f) { return backward_classes<false>(f); }
static ts_status nll_loss_backward(ts_frame *f) { return backward_classes<true>(f); }

/* -------------------------------------------------------------------------------- pairs ---- */

/** Blocks of a kernel that calls each_run(). */
template <class T> static unsigned run_blocks(int64_t n)
{
    return blocks_for((n + vec16<T> - 1) / vec16<T>);
}

/** 1 / n for a mean, 1 / batch for batchmean, else 1. */
static double pair_factor(const ts_tensor *x, int64_t reduction)
{
    if (reduction == TS_REDUCTION_MEAN)
        return 1 / (double)ts_numel(x);
    return reduction == TS_REDUCTION_BATCHMEAN && ts_ndim(x) ? 1 / (double)ts_sizes(x)[0] : 1;
}

/** Offsets in tensors of x's sizes and any strides; one that is absent gets x's strides. */
template <int N>
static walk<uint32_t, N> places_of(const ts_tensor *x, const ts_value *const (&values)[N])
{
    const int64_t *strides[N];
    for (int k = 0; k < N; k++)
        strides[k] = ts_strides(values[k] && values[k]->tag == TS_TAG_TENSOR ? values[k]->t : x);
    return walk<uint32_t, N>(ts_sizes(x), ts_ndim(x), strides);
}

template <class P> static ts_status forward_pairs(ts_frame *f, P pair)
{
    bool strided = has_strides(f);
    if (strided && (is_strided(f->rets[0]) || ts_numel(f->args[0].t) > PAIR_WALKED))
        return on_packed(f, [&](ts_frame *packed) { return forward_pairs(packed, pair); });
    int64_t n = ts_numel(f->args[0].t), reduction = f->args[2].i,
            blocks = (n + PAIR_SHARE - 1) / PAIR_SHARE;
    double factor = pair_factor(f->args[0].t, reduction);
    class_scratch scratch(f, blocks * 8);
    if (!scratch.data)
        return ts_error_code();
    return with_float(f, [&]<class T>(const call &k) {
        const T *x = data_of<T>(f->args[0]), *t = data_of<T>(f->args[1]);
        T *out = data_of<T>(f->rets[0]);
        auto run = [&](const auto &operands) {
            if (reduction == TS_REDUCTION_NONE) {
                if (n)
                    pairs_kernel<T><<<run_blocks<T>(n), PAIR_THREADS, 0, k.stream>>>(
                        pair, operands, out, n, aligned16(out));
                return cudaPeekAtLastError();
            }
            if (n <= PAIR_FEW) {
                pair_total_kernel<T><<<1, dim3(1, PAIR_FEW_THREADS), 0, k.stream>>>(
                    pair, operands, out, n, factor);
                return cudaPeekAtLastError();
            }
            double *parts = (double *)scratch.parts();
            pair_sums_kernel<T><<<(unsigned)blocks, dim3(1, PAIR_THREADS), 0, k.stream>>>(
                pair, operands, parts, n);
            total_kernel<T>
                <<<1, dim3(1, TOTAL), 0, k.stream>>>(parts, blocks, factor, nullptr, out);
            return cudaPeekAtLastError();
        };
        if (strided)
            return run(strided_pairs<T>{
                x, t, places_of<2>(f->args[0].t, {&f->args[0], &f->args[1]})});
        return run(contiguous_pairs<T>{x, t, aligned16(x) && aligned16(t)});
    });
}

template <class P> static ts_status backward_pairs(ts_frame *f, P pair)
{
    bool strided = has_strides(f);
    if (strided && ts_numel(f->args[1].t) > PAIR_WALKED)
        return on_packed(f, [&](ts_frame *packed) { return backward_pairs(packed, pair); });
    return with_float(f, [&]<class T>(const call &k) {
        int64_t n = ts_numel(f->args[1].t);
        bool each = f->args[3].i == TS_REDUCTION_NONE;
        const T *g = data_of<T>(f->args[0]), *x = data_of<T>(f->args[1]),
                *t = data_of<T>(f->args[2]);
        T *dx = data_of<T>(f->rets[0]), *dt = data_of<T>(f->rets[1]);
        bool aligned = (!each || aligned16(g)) && aligned16(x) && aligned16(t) && aligned16(dx) &&
                       aligned16(dt);
        double factor = pair_factor(f->args[1].t, f->args[3].i);
        if (n && strided)
            pairs_backward_strided_kernel<T>
                <<<(unsigned)((n + PAIR_THREADS - 1) / PAIR_THREADS), PAIR_THREADS, 0, k.stream>>>(
                    pair, g, each, factor, x, t, dx, dt, (uint32_t)n,
                    places_of<5>(f->args[1].t, {each ? &f->args[0] : nullptr, &f->args[1],
                                                &f->args[2], &f->rets[0], &f->rets[1]}));
        else if (n)
            pairs_backward_kernel<T><<<run_blocks<T>(n), PAIR_THREADS, 0, k.stream>>>(
                pair, g, each, factor, x, t, dx, dt, n, aligned);
        return cudaPeekAtLastError();
    });
}

#define PAIR_OPS(op, kind, forward_number, backward_number)                                        \
    static ts_status op(ts_frame *f)                                                               \
    {                                                                                              \
        return forward_pairs(f, kind{forward_number});                                             \
    }                                                                                              \
    static ts_status op##_backward(ts_frame *f)                                                    \
    {                                                                                              \
        return backward_pairs(f, kind{backward_number});                                           \
    }
PAIR_OPS(mse_loss, mse, 0, 0)
PAIR_OPS(l1_loss, l1, 0, 0)
PAIR_OPS(smooth_l1_loss, smooth_l1, f->args[3].d, f->args[4].d)
PAIR_OPS(huber_loss, huber, f->args[3].d, f->args[4].d)
PAIR_OPS(binary_cross_entropy_with_logits, bce, 0, 0)
static ts_status kl_div(ts_frame *f)
{
    return f->args[3].i ? forward_pairs(f, kl_log{0}) : forward_pairs(f, kl{0});
}
static ts_status kl_div_backward(ts_frame *f)
{
    return f->args[4].i ? backward_pairs(f, kl_log{0}) : backward_pairs(f, kl{0});
}

#define ROWS(name) \
    {#name, name, floats, false}, {#name "_backward", name##_backward, floats, false, false, true}
#define PAIRS(name) {#name, name, floats, true}, {#name "_backward", name##_backward, floats, true}
TS_CUDA_FAMILY(loss, ROWS(cross_entropy),
               {"cross_entropy_grad", on_aligned<cross_entropy_grad>, floats, false},
               ROWS(nll_loss), PAIRS(mse_loss), PAIRS(l1_loss), PAIRS(smooth_l1_loss),
               PAIRS(huber_loss), PAIRS(binary_cross_entropy_with_logits), PAIRS(kl_div))
