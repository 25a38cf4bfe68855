/**
 * @file batch_norm.cuh
 * Kernels of batch norm and group norm.
 *
 * A unit is a channel: of all samples for batch norm (one set of units), of one sample for group
 * norm (one set per sample). Pass 1 sums parts (splits) of each unit's elements, pass 2 combines
 * the splits into statistics and coefficients, and pass 3 reads the elements again and writes the
 * result. The order of additions does not depend on scheduling.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_BATCH_NORM_CUH
#define TS_CUDA_BATCH_NORM_CUH

#include "backends/cuda/image.cuh"

namespace ts {

enum { THREADS = 256, UNROLL = 4,
       PROCESSORS = 132, /* multiprocessors of an H100; fixed, so that all GPUs get the same bits */
       BLOCKS = 3        /* per multiprocessor: as many as registers allow */ };

/** Sums over a split of a unit: number of elements, and a, b and shift of struct sums. All threads'
 * sums are converted to a common shift. */
struct alignas(16) part {
    double count, a, b, shift;
};

/** A contiguous parameter or statistic of any floating dtype, or none. */
struct parameter {
    const void *data;
    int dtype;

    parameter(const ts_value &v)
        : data(v.tag == TS_TAG_TENSOR ? ts_kernel_data(v.t) : nullptr),
          dtype(data ? ts_dtype_of(v.t) : TS_F32)
    {
    }
    template <class A> __device__ __forceinline__ A load(int64_t i, A absent) const
    {
        if (!data)
            return absent;
        switch (dtype) {
        case TS_F64: return (A)((const double *)data)[i];
        case TS_BF16: return (A)widen(((const bf16 *)data)[i]);
        case TS_F16: return (A)widen(((const f16 *)data)[i]);
        default: return (A)((const float *)data)[i];
        }
    }
    /** load() with less code. */
    template <class A> __device__ __noinline__ A at(int64_t i, A absent) const
    {
        return load<A>(i, absent);
    }
    template <class A> __device__ __noinline__ void put(int64_t i, A x) const
    {
        void *to = const_cast<void *>(data);
        if (!to)
            return;
        switch (dtype) {
        case TS_F64: ((double *)to)[i] = (double)x; break;
        case TS_BF16: ((bf16 *)to)[i] = narrow<bf16>((float)x); break;
        case TS_F16: ((f16 *)to)[i] = narrow<f16>((float)x); break;
        default: ((float *)to)[i] = (float)x;
        }
    }
};

/** Sizes of a call: (samples, sets, channels C, positions S). Element (n, set, c, s) is at
 * ((n sets + set) C + c) S + s if contiguous, at (set S + s) C + c in channels-last, where samples
 * is 1. */
struct shape {
    int64_t samples, sets, channels, positions;
    int64_t groups;  /* groups of channels; statistics are (sets, groups) */
    int64_t splits;  /* splits per unit */
    double eps;

    __device__ __forceinline__ int64_t statistic(int64_t unit) const
    {
        return unit / channels * groups + unit % channels / (channels / groups);
    }
};

/** Modes of the passes: RESULT for the forward op, GRADIENT for the backward op; CONSTANT, in pass
 * 3 only, for gradients with given statistics. RELU is added to GRADIENT or CONSTANT if the forward
 * op applied relu: where its result is 0, g counts as 0. */
enum { RESULT, GRADIENT, CONSTANT, RELU = 4 };

/** The rounding error of sum = x + y. */
__device__ __forceinline__ double error_of(double x, double y, double sum)
{
    double z = sum - x;
    return (x - (sum - z)) + (y - z);
}

/** A thread's sums of N channels. RESULT: of d = x - shift and d^2, where shift is the thread's
 * first element; with the split's first element for all threads, one far from the mean would cost
 * all sums their digits. GRADIENT: of g and g d, where shift is the mean. RELU: the result before
 * relu is d slope + base. */
template <class A, int N, int MODE> struct sums {
    /* f64: `low` has the rounding errors of a, because the mean must be as exact as an element */
    static constexpr bool precise = MODE == RESULT && std::is_same_v<A, double>;
    A a[N] = {}, b[N] = {}, low[precise ? N : 1] = {}, shift[N], slope[N], base[N];

    __device__ __forceinline__ void add(int k, A x, A g)
    {
        A d = x - shift[k];
        if constexpr (MODE & RELU)
            g = d * slope[k] + base[k] <= 0 ? (A)0 : g;
        A sum = a[k] + (MODE == RESULT ? d : g);
        if constexpr (precise)
            low[k] += error_of(x, -shift[k], d) + error_of(a[k], d, sum);
        a[k] = sum;
        b[k] += MODE == RESULT ? d * d : g * d;
    }
    /** Adds the sums of a block's threads (x, y), 0 <= y < rows, a power of two; thread (x, 0)
     * writes that of channel k to to[k * pitch], unless to is null. The sums of threads may cancel,
     * so they are added in double, and RESULT first converts them to a common shift: that of thread
     * (x, 0), or the mean for f64. columns: number of x; count: number of elements; own: of this
     * thread. */
    __device__ __forceinline__ void put(part *to, int64_t pitch, int64_t count, int64_t own,
                                        int columns, int rows, int x, int y) const
    {
        __shared__ double memory[precise ? 3 : 2][N][THREADS]; /* of a, b and low */
        int at = y * columns + x;
        auto add_rows = [&](bool all) {
            for (int half = rows / 2; half; half /= 2) {
                __syncthreads();
#pragma unroll
                for (int k = 0; k < N && y < half; k++) {
                    int other = at + half * columns;
                    double own_a = memory[0][k][at], other_a = memory[0][k][other];
                    memory[0][k][at] = own_a + other_a;
                    if (!all)
                        continue;
                    memory[1][k][at] += memory[1][k][other];
                    if constexpr (precise)
                        memory[2][k][at] +=
                            memory[2][k][other] + error_of(own_a, other_a, own_a + other_a);
                }
            }
        };
        double common[N];
#pragma unroll
        for (int k = 0; k < N; k++)
            common[k] = shift[k];
        if constexpr (MODE == RESULT) {
#pragma unroll
            for (int k = 0; k < N; k++)
                if (precise)
                    memory[0][k][at] = own ? a[k] + own * (double)shift[k] : 0;
                else if (y == 0)
                    memory[0][k][at] = shift[k];
            if (precise)
                add_rows(false);
            __syncthreads();
#pragma unroll
            for (int k = 0; k < N; k++) {
                double shared = memory[0][k][x] / (precise ? (double)count : 1);
                common[k] = count && (!precise || isfinite(shared)) ? shared : 0;
            }
            __syncthreads();
        }
#pragma unroll
        for (int k = 0; k < N; k++) { /* RESULT: sums of d + far and (d + far)^2 */
            /* never fused with an addition: `low` counts the error of this product */
            double far = MODE == RESULT && own ? shift[k] - common[k] : 0,
                   moved = __dmul_rn((double)own, far);
            memory[0][k][at] = a[k] + moved;
            /* 0 * a would be NaN if a is infinite */
            memory[1][k][at] = b[k] + (MODE == RESULT ? far * (2 * (double)a[k] + moved) : 0);
            if constexpr (precise)
                memory[2][k][at] = own ? low[k] + own * error_of(shift[k], -common[k], far) +
                                             fma((double)own, far, -moved) +
                                             error_of(a[k], moved, a[k] + moved)
                                       : 0;
        }
        add_rows(true);
#pragma unroll
        for (int k = 0; k < N && y == 0 && to; k++) {
            double low_sum = precise ? memory[precise ? 2 : 0][k][at] : 0;
            to[k * pitch] = {(double)count,
                             memory[0][k][at] + (isfinite(low_sum) ? low_sum : 0),
                             memory[1][k][at], common[k]};
        }
    }
};

/** Statistics and parameters of the forward op, for passes 1 and 2 of a gradient. */
struct forward_parameters {
    parameter mean, var, weight, bias;

    /** Sets shift, slope and base of channel k to those of a unit. */
    template <class A, int N, int MODE>
    __device__ __forceinline__ void set(sums<A, N, MODE> &s, int k, const shape &of,
                                        int64_t unit) const
    {
        int64_t at = of.statistic(unit), channel = unit % of.channels;
        s.shift[k] = mean.at<A>(at, 0);
        if constexpr (MODE & RELU) {
            s.slope[k] = rsqrt(var.at<A>(at, 0) + (A)of.eps) * weight.at<A>(channel, 1);
            s.base[k] = bias.at<A>(channel, 0);
        }
    }
};

/** Pass 1, contiguous: block (unit, split) writes the sums of its split to `parts` (units,
 * splits). */
template <class T, int V, int MODE, class I>
__global__ void __launch_bounds__(THREADS)
    unit_sums(const T *__restrict__ x, const T *__restrict__ g, shape s, forward_parameters forward,
              split<I> row, part *__restrict__ parts)
{
    using A = wide_t<T>;
    int64_t unit = blockIdx.x, units = s.sets * s.channels;
    I all = (I)(s.samples * (s.positions / V)), each = (I)((all + s.splits - 1) / s.splits),
      from = min(blockIdx.y * each, all), end = min(from + each, all), first = from + threadIdx.x;
    auto place = [&](I i) {
        I n = row.of(i);
        return ((int64_t)n * units + unit) * s.positions + (int64_t)(i - n * row.d) * V;
    };
    sums<A, 1, MODE> sum;
    if (MODE != RESULT)
        forward.set(sum, 0, s, unit);
    else if (first < end)
        sum.shift[0] = widen(x[place(first)]);
#pragma unroll 4
    for (I i = first; i < end; i += THREADS) {
        int64_t at = place(i);
        A xs[V], gs[V];
        load_wide<T, V>(xs, x + at);
        if (MODE != RESULT)
            load_wide<T, V>(gs, g + at);
#pragma unroll
        for (int k = 0; k < V; k++)
            sum.add(0, xs[k], MODE != RESULT ? gs[k] : 0);
    }
    int64_t own = first < end ? (end - first + THREADS - 1) / THREADS : 0;
    sum.put(parts + unit * s.splits + blockIdx.y, 0, (int64_t)(end - from) * V, own * V, 1, THREADS,
            0, (int)threadIdx.x);
}

/** Pass 1, channels-last: block (vectors of channels of a set, split) of threads (columns, rows),
 * where a column is a vector of channels. */
template <class T, int V, int MODE>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    pixel_sums(const T *__restrict__ x, const T *__restrict__ g, shape s,
               forward_parameters forward, part *__restrict__ parts)
{
    using A = wide_t<T>;
    int64_t blocks = (s.channels / V + blockDim.x - 1) / blockDim.x, set = blockIdx.x / blocks,
            c = ((int64_t)blockIdx.x % blocks * blockDim.x + threadIdx.x) * V,
            each = (s.positions + s.splits - 1) / s.splits,
            from = min(blockIdx.y * each, s.positions), end = min(from + each, s.positions),
            row = from + threadIdx.y;
    sums<A, V, MODE> sum;
    if (c < s.channels) {
        const int64_t first = set * s.positions * s.channels + c, stop = first + end * s.channels,
                      step = blockDim.y * s.channels;
        if (MODE != RESULT)
#pragma unroll
            for (int k = 0; k < V; k++)
                forward.set(sum, k, s, set * s.channels + c + k);
        else if (row < end)
            load_wide<T, V>(sum.shift, x + first + row * s.channels);
#pragma unroll(MODE & RELU ? 2 : 4)
        for (int64_t at = first + row * s.channels; at < stop; at += step) {
            A xs[V], gs[V];
            load_wide<T, V>(xs, x + at);
            if (MODE != RESULT)
                load_wide<T, V>(gs, g + at);
#pragma unroll
            for (int k = 0; k < V; k++)
                sum.add(k, xs[k], MODE != RESULT ? gs[k] : 0);
        }
    }
    part *to = parts + (set * s.channels + c) * s.splits + blockIdx.y;
    int64_t own = c < s.channels && row < end ? (end - row + blockDim.y - 1) / blockDim.y : 0;
    sum.put(c < s.channels ? to : nullptr, s.splits, end - from, own, (int)blockDim.x,
            (int)blockDim.y, (int)threadIdx.x, (int)threadIdx.y);
}

/** Sum over the lanes of a warp, in every lane. */
template <class A> __device__ __forceinline__ A warp_sum(A x)
{
#pragma unroll
    for (int by = 16; by; by /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, by);
    return x;
}

/** Arrays of the coefficients of struct formula, one element per unit. RESULT does not use slope
 * and base. */
template <class A> struct coefficients {
    A *mean, *scale, *add, *slope, *base;

    coefficients(void *memory, int64_t units)
        : mean((A *)memory), scale(mean + units), add(scale + units), slope(add + units),
          base(slope + units)
    {
    }
    /** The coefficients of the units starting at `unit`. */
    coefficients from(int64_t unit) const
    {
        coefficients c = *this;
        for (A **p : {&c.mean, &c.scale, &c.add, &c.slope, &c.base})
            *p += unit;
        return c;
    }
};
enum { COEFFICIENTS = 5 };

/** Pass 2 of the forward op, one warp per statistic: writes mean and variance, combined from the
 * splits of its units or copied from the given ones, and the coefficients of its units. */
template <class A>
__global__ void __launch_bounds__(THREADS)
    combine_moments(const part *parts, shape s, parameter mean, parameter var, parameter given_mean,
                    parameter given_var, parameter weight, parameter bias, coefficients<A> to)
{
    int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / 32;
    int lane = threadIdx.x % 32;
    if (at >= s.sets * s.groups)
        return;
    int64_t width = s.channels / s.groups, n = width * s.splits, first = at % s.groups * width,
            unit = at / s.groups * s.channels + first;
    A m, v;
    if (given_mean.data) {
        m = given_mean.at<A>(at, 0);
        v = given_var.at<A>(at, 0);
    } else {
        const part *from = parts + unit * s.splits;
        /* A split has the mean shift + a / count and squared deviations from it of
         * b - a^2 / count */
        double count = 0, sum = 0, squares = 0, correction = 0;
#pragma unroll 4
        for (int64_t i = lane; i < n; i += 32) {
            part p = from[i];
            count += p.count;
            sum += p.count * p.shift + p.a;
        }
        count = warp_sum(count);
        double whole = warp_sum(sum) / count;
#pragma unroll 4
        for (int64_t i = lane; i < n; i += 32) {
            part p = from[i];
            double by = p.count > 0 ? p.a / p.count : 0, d = p.shift - whole + by,
                   own = p.b - p.a * by;
            squares += (own < 0 ? 0 : own) + p.count * d * d;
            correction += p.count * d;
        }
        /* makes the mean of equal f64 elements exact: the products with counts were rounded */
        correction = warp_sum(correction) / count;
        m = (A)(isfinite(correction) ? whole + correction : whole);
        double variance = warp_sum(squares) / count - correction * correction;
        v = (A)(variance < 0 ? 0 : variance);
    }
    if (lane == 0) {
        mean.put(at, m);
        var.put(at, v);
    }
    A rstd = rsqrt(v + (A)s.eps);
    for (int64_t k = lane; k < width; k += 32) {
        to.mean[unit + k] = m;
        to.scale[unit + k] = rstd * weight.at<A>(first + k, 1);
        to.add[unit + k] = bias.at<A>(first + k, 0);
    }
}

/** Pass 2 of the backward op, from the sums of g and g (x - mean) per unit and split. The first
 * sets * groups warps write the coefficients of the units of one statistic each; the next
 * `channels` warps compute dw and db of one channel each. constant: the statistics were given. */
template <class A>
__global__ void __launch_bounds__(THREADS)
    combine_sums(const part *parts, shape s, forward_parameters forward, bool constant,
                 coefficients<A> to, parameter dw, parameter db)
{
    int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / 32, all = s.sets * s.groups,
            width = s.channels / s.groups;
    int lane = threadIdx.x % 32;
    const parameter &mean = forward.mean, &var = forward.var, &weight = forward.weight;
    A shift = 0, dot = 0;
    if (at < all) {
        int64_t first = at % s.groups * width, unit = at / s.groups * s.channels + first;
        A rstd = rsqrt(var.at<A>(at, 0) + (A)s.eps), m = mean.at<A>(at, 0),
          n = (A)(s.samples * s.positions * width);
        if (!constant) {
            const part *from = parts + unit * s.splits;
            int splits = (int)s.splits;
            A w = weight.at<A>(first, 1);
#pragma unroll 4
            for (int i = lane; i < (int)width * splits; i += 32) {
                if (width > 1)
                    w = weight.at<A>(first + i / splits, 1);
                shift += w * (A)from[i].a;
                dot += w * (A)from[i].b;
            }
            shift = warp_sum(shift);
            dot = warp_sum(dot);
        }
        for (int64_t k = lane; k < width; k += 32) {
            to.mean[unit + k] = m;
            to.scale[unit + k] = -rstd * rstd * rstd * dot / n;
            to.add[unit + k] = -rstd * shift / n;
            to.slope[unit + k] = rstd * weight.at<A>(first + k, 1);
            to.base[unit + k] = forward.bias.at<A>(first + k, 0);
        }
        return;
    }
    int64_t c = at - all;
    if (c >= s.channels || !(dw.data || db.data))
        return;
    int64_t statistic = c / width;
    int splits = (int)s.splits;
    A rstd = rsqrt(var.at<A>(statistic, 0) + (A)s.eps);
#pragma unroll 4
    for (int64_t i = lane; i < s.sets * splits; i += 32) {
        int64_t set = s.sets > 1 ? i / splits : 0;
        if (s.sets > 1)
            rstd = rsqrt(var.at<A>(set * s.groups + statistic, 0) + (A)s.eps);
        part p = parts[(set * s.channels + c) * splits + (i - set * splits)];
        shift += (A)p.a;
        dot += (A)p.b * rstd;
    }
    shift = warp_sum(shift);
    dot = warp_sum(dot);
    if (lane == 0) {
        dw.put(c, dot);
        db.put(c, shift);
    }
}

/** Pass 3, for N channels. With d = x - mean, the result for an element x is d scale + add, and the
 * gradient of x is g slope + d scale + add (CONSTANT: g slope). */
template <class A, int N, int MODE> struct formula {
    A mean[N], scale[N], add[N], slope[N], base[N], least;

    /** least: lower bound of results, 0 for relu, else -infinity. */
    __device__ __forceinline__ formula(const coefficients<A> &k, int64_t unit, A least)
        : least(least)
    {
#pragma unroll
        for (int i = 0; i < N; i++) {
            mean[i] = MODE != CONSTANT ? k.mean[unit + i] : (A)0;
            scale[i] = MODE & CONSTANT ? (A)0 : k.scale[unit + i];
            add[i] = MODE & CONSTANT ? (A)0 : k.add[unit + i];
            slope[i] = MODE != RESULT ? k.slope[unit + i] : (A)0;
            base[i] = MODE & RELU ? k.base[unit + i] : (A)0;
        }
    }
    __device__ __forceinline__ A of(int i, A x, A g) const
    {
        A d = x - mean[i];
        if constexpr (MODE == RESULT) {
            A y = d * scale[i] + add[i];
            return y < least ? least : y;
        }
        if constexpr (MODE & RELU)
            g = d * slope[i] + base[i] <= 0 ? (A)0 : g;
        return MODE & CONSTANT ? g * slope[i] : g * slope[i] + (d * scale[i] + add[i]);
    }
};

/** Loads V elements starting at `at`, for apply(). */
template <class T, int V, int MODE> struct operands {
    wide_t<T> x[V] = {}, g[V] = {};

    __device__ __forceinline__ operands(const T *xs, const T *gs, int64_t at)
    {
        if (MODE != CONSTANT)
            load_wide<T, V>(x, xs + at);
        if (MODE != RESULT)
            load_wide<T, V>(g, gs + at);
    }
    template <int N>
    __device__ __forceinline__ void apply(const formula<wide_t<T>, N, MODE> &f, T *y) const
    {
        wide_t<T> ys[V];
#pragma unroll
        for (int i = 0; i < V; i++)
            ys[i] = f.of(N > 1 ? i : 0, x[i], g[i]);
        *reinterpret_cast<word_of<vec<T, V>> *>(y) = to_word(pack<T, V>(ys));
    }
};

/** Pass 3, contiguous: a thread computes UNROLL of the `count` < 2^31 vectors of V elements. row:
 * vectors per channel of a sample; units: number of units. */
template <class T, int V, int MODE>
__global__ void __launch_bounds__(THREADS)
    unit_results(const T *__restrict__ x, const T *__restrict__ g, T *__restrict__ y,
                 coefficients<wide_t<T>> k, split<uint32_t> row, split<uint32_t> units,
                 uint32_t count, wide_t<T> least)
{
    uint32_t first = blockIdx.x * (THREADS * UNROLL) + threadIdx.x;
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        uint32_t i = first + u * THREADS;
        if (i >= count)
            return;
        uint32_t r = row.of(i), unit = r - units.of(r) * units.d;
        operands<T, V, MODE> o(x, g, (int64_t)i * V);
        o.apply(formula<wide_t<T>, 1, MODE>(k, unit, least), y + (int64_t)i * V);
    }
}

/** Pass 3, channels-last: a thread loads the coefficients of V channels once for several
 * positions. */
template <class T, int V, int MODE>
__global__ void __launch_bounds__(THREADS, MODE & RELU ? BLOCKS : BLOCKS + 1)
    pixel_results(const T *__restrict__ x, const T *__restrict__ g, T *__restrict__ y, shape s,
                  coefficients<wide_t<T>> k, int64_t each, wide_t<T> least)
{
    int64_t blocks = (s.channels / V + blockDim.x - 1) / blockDim.x, set = blockIdx.x / blocks,
            c = ((int64_t)blockIdx.x % blocks * blockDim.x + threadIdx.x) * V,
            from = blockIdx.y * each, end = min(from + each, s.positions),
            first = set * s.positions * s.channels + c, stop = first + end * s.channels,
            step = blockDim.y * s.channels;
    if (c >= s.channels)
        return;
    formula<wide_t<T>, V, MODE> f(k, set * s.channels + c, least);
#pragma unroll(MODE & RELU ? 2 : 4)
    for (int64_t at = first + (from + threadIdx.y) * s.channels; at < stop; at += step)
        operands<T, V, MODE>(x, g, at).apply(f, y + at);
}

} // namespace ts

#endif
