/**
 * @file batch_norm.cuh
 * Kernels of batch norm and group norm, which batch_norm.cu launches.
 *
 * A unit is the elements of a channel: in all samples for batch norm (one set of units), in one
 * sample for group norm (one set of units per sample). A statistic, that is a mean and a variance,
 * belongs to one unit in batch norm and to the units of a group in group norm. Pass 1 divides the
 * elements of each unit into splits; one block adds a split.
 *
 *     pass 1   unit_sums(), pixel_sums()          sums over each split of a unit's elements
 *     pass 2   batch_norm_combine.cuh             statistics and coefficients of units
 *     pass 3   unit_results(), pixel_results()    reads the elements again, writes the results
 *
 * Kernels named unit_* are for contiguous tensors, kernels named pixel_* for channels-last ones.
 * The order of additions does not depend on scheduling.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_BATCH_NORM_CUH
#define TS_CUDA_BATCH_NORM_CUH

#include "backends/cuda/runtime/early.cuh"
#include "backends/cuda/image.cuh"

namespace ts {

enum { THREADS = 256,    /* of a block */
       UNROLL = 4,       /* vectors per thread of unit_results() */
       PROCESSORS = 132, /* multiprocessors of an H100; fixed, so that all GPUs get the same bits */
       BLOCKS = 3        /* of pixel_sums() per multiprocessor: as many as registers allow */ };

/** First call of a kernel that may be launched before the previous kernel on the stream has ended
 * (runtime/early.cuh): allows the next kernel to do the same, and waits for the previous kernel's
 * results. */
__device__ __forceinline__ void take_turn()
{
    begin_next_kernel();
    wait_for_kernel_in_front();
}

/** Sums over a split of a unit: number of elements, and a, b and shift of struct sums, after the
 * sums of all threads were converted to a common shift. */
struct alignas(16) part {
    double count, a, b, shift;
};

/** A contiguous parameter or statistic of any floating dtype; data is NULL if there is none. */
struct parameter {
    const void *data;
    int dtype;

    parameter(const ts_value &v)
        : data(v.tag == TS_TAG_TENSOR ? ts_kernel_data(v.t) : nullptr),
          dtype(data ? ts_dtype_of(v.t) : TS_F32)
    {
    }
    /** Element i, or `absent` if there is no tensor. */
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
    /** load(), not inlined, for smaller code. */
    template <class A> __device__ __noinline__ A at(int64_t i, A absent) const
    {
        return load<A>(i, absent);
    }
    /** Stores x as element i, rounded to the dtype; does nothing if there is no tensor. */
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

/** Sizes of a call: (samples, sets, channels C, positions S). samples is 1 except in contiguous
 * batch norm; channels-last batch norm counts the positions of all samples. Element (n, set, c, s)
 * is at ((n sets + set) C + c) S + s if contiguous, at (set S + s) C + c in channels-last. */
struct shape {
    int64_t samples, sets, channels, positions;
    int64_t groups;  /* groups of channels; statistics are (sets, groups) */
    int64_t splits;  /* splits per unit */
    double eps;

    /** Index of a unit's statistic. */
    __device__ __forceinline__ int64_t statistic(int64_t unit) const
    {
        return unit / channels * groups + unit % channels / (channels / groups);
    }
};

/** Modes of the passes: RESULT for the forward op, GRADIENT for the backward op; CONSTANT, in pass
 * 3 only, for gradients with given statistics. RELU is added to GRADIENT or CONSTANT if the forward
 * op applied relu: where its result is 0, g counts as 0. x is the forward op's input and g the
 * upstream gradient, which RESULT does not read. */
enum { RESULT, GRADIENT, CONSTANT, RELU = 4 };

/** The rounding error of sum = x + y. */
__device__ __forceinline__ double error_of(double x, double y, double sum)
{
    double z = sum - x;
    return (x - (sum - z)) + (y - z);
}

/** A thread's sums of N channels, with d = x - shift.
 *
 *     mode       a          b           shift
 *     RESULT     sum of d   sum of d^2  the thread's first element
 *     GRADIENT   sum of g   sum of g d  the mean
 *
 * If all threads used the split's first element as shift, a first element far from the mean would
 * cost all sums their accuracy. RELU: the result before relu is d slope + base. */
template <class A, int N, int MODE> struct sums {
    /* f64: `low` sums the rounding errors of a, because the mean must be as exact as an element */
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
    /** Adds the sums of a block's threads (x, y) over y; thread (x, 0) writes the total of channel
     * k to to[k * pitch]. The sums of threads may cancel, so they are added in double. RESULT first
     * converts them to a common shift: that of thread (x, 0), or for f64 the mean of the elements
     * (0 if the mean is not finite). Every thread of the block must call.
     * @param to       destination of channel 0; NULL: this thread writes nothing
     * @param count    number of elements of a channel that all threads (x, y) of this x have summed
     * @param own      number of elements of a channel that this thread has summed
     * @param columns  number of values of x
     * @param rows     number of values of y, a power of two; columns * rows is THREADS */
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
            /* GRADIENT: no product with far, which is 0: 0 * a is NaN if a is infinite */
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

    /** Sets shift and, with RELU, slope and base of channel k to those of a unit. */
    template <class A, int N, int MODE>
    __device__ __forceinline__ void set(sums<A, N, MODE> &s, int k, const shape &of,
                                        int64_t unit) const
    {
        int64_t at = of.statistic(unit), channel = unit % of.channels;
        s.shift[k] = mean.load<A>(at, 0); /* inlined: all loads are issued before the first use */
        if constexpr (MODE & RELU) {
            A v = var.load<A>(at, 0), w = weight.load<A>(channel, 1);
            s.base[k] = bias.load<A>(channel, 0);
            s.slope[k] = rsqrt(v + (A)of.eps) * w;
        }
    }
};

/** Pass 1, contiguous: block (unit, split) writes the sums of its split to `parts` (units,
 * splits). V: elements of a vector; row: vectors per channel of a sample. */
template <class T, int V, int MODE, class I>
__global__ void __launch_bounds__(THREADS)
    unit_sums(const T *__restrict__ x, const T *__restrict__ g, shape s, forward_parameters forward,
              split<I> row, part *__restrict__ parts)
{
    using A = wide_t<T>;
    take_turn();
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

/** Vectors of x, and of g for a gradient, that a thread of pixel_sums() loads before it adds the
 *  first. With more, vectors of 8 channels with slope and base of RELU do not fit in registers. */
template <int V, int MODE>
constexpr int pixels_ahead = MODE == RESULT ? 4 : V == 8 && MODE & RELU ? 2 : 3;

/** Pass 1, channels-last: block (vectors of channels of a set, split) of threads (columns, rows),
 * where a column is a vector of channels. The blocks of all splits move through the positions side
 * by side, from the last to the first: the last positions of x were written most recently and may
 * be in L2, and the first positions may still be in L2 when pass 3 begins with them. */
template <class T, int V, int MODE>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    pixel_sums(const T *__restrict__ x, const T *__restrict__ g, shape s,
               forward_parameters forward, part *__restrict__ parts)
{
    using A = wide_t<T>;
    take_turn();
    constexpr int AHEAD = pixels_ahead<V, MODE>, GIVEN = MODE & RELU ? 3 : MODE != RESULT ? 1 : 0;
    int rows = (int)blockDim.y, columns = (int)blockDim.x, y = (int)threadIdx.y;
    int64_t blocks = (s.channels / V + columns - 1) / columns, set = blockIdx.x / blocks,
            first = (int64_t)blockIdx.x % blocks * columns * V, c = first + threadIdx.x * V,
            turn = (int64_t)rows * AHEAD, /* positions that a block loads at once */
            all = s.positions, count = 0;
    int own = 0; /* positions of this thread */
    sums<A, V, MODE> sum;
    if constexpr (GIVEN > 0) { /* a thread computes shift, slope and base of a channel */
        __shared__ alignas(16) A given[GIVEN][32 * V];
        int k = y * columns + (int)threadIdx.x;
        if (k < columns * V && first + k < s.channels) {
            sums<A, 1, MODE> one;
            forward.set(one, 0, s, set * s.channels + first + k);
            given[0][k] = one.shift[0];
            if constexpr (GIVEN == 3) {
                given[1][k] = one.slope[0];
                given[2][k] = one.base[0];
            }
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < V; k++) {
            sum.shift[k] = given[0][threadIdx.x * V + k];
            if constexpr (GIVEN == 3) {
                sum.slope[k] = given[1][threadIdx.x * V + k];
                sum.base[k] = given[2][threadIdx.x * V + k];
            }
        }
    }
    if (c < s.channels) {
        using word = word_of<vec<T, V>>;
        const int64_t last = (set * all + all - 1) * s.channels + c, step = rows * s.channels;
        auto load = [](const T *p) { return __ldg(reinterpret_cast<const word *>(p)); };
        auto add = [&](int64_t at, int n) { /* n positions, downwards starting at element `at` */
            word xs[AHEAD], gs[AHEAD];
            A wide_x[V], wide_g[V];
#pragma unroll
            for (int u = 0; u < AHEAD; u++)
                if (u < n) {
                    xs[u] = load(x + at - u * step);
                    if (MODE != RESULT)
                        gs[u] = load(g + at - u * step);
                }
            if (MODE == RESULT && own == 0)
                unpack<T, V>(from_word<vec<T, V>>(xs[0]), sum.shift);
#pragma unroll
            for (int u = 0; u < AHEAD; u++)
                if (u < n) {
                    unpack<T, V>(from_word<vec<T, V>>(xs[u]), wide_x);
                    if (MODE != RESULT)
                        unpack<T, V>(from_word<vec<T, V>>(gs[u]), wide_g);
#pragma unroll
                    for (int k = 0; k < V; k++)
                        sum.add(k, wide_x[k], MODE != RESULT ? wide_g[k] : 0);
                }
            own += n;
        };
        for (int64_t from = blockIdx.y * turn + y; from < all; from += s.splits * turn) {
            int64_t left = all - from, at = last - from * s.channels;
            if (left > (AHEAD - 1) * rows)
                add(at, AHEAD);
            else
                add(at, 1 + (int)((uint32_t)(left - 1) / (uint32_t)rows));
        }
    }
    /* turns, of all blocks, that come after this block's first turn */
    int64_t later = (all + turn - 1) / turn - 1 - blockIdx.y;
    if (later >= 0)
        count = (later / s.splits + 1) * turn - (later % s.splits ? 0 : (turn - all % turn) % turn);
    part *to = parts + (set * s.channels + c) * s.splits + blockIdx.y;
    sum.put(c < s.channels ? to : nullptr, s.splits, count, own, columns, rows, (int)threadIdx.x,
            y);
}

/** Sum over the lanes of a warp, in every lane. */
template <class A> __device__ __forceinline__ A warp_sum(A x)
{
#pragma unroll
    for (int by = 16; by; by /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, by);
    return x;
}

/** Arrays of the coefficients of struct formula, one element per unit, one after the other in
 * `memory`. RESULT does not use slope and base. */
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
enum { COEFFICIENTS = 5 }; /* number of arrays */

/** Pass 3, for N channels. With d = x - mean:
 *
 *     RESULT      d scale + add
 *     GRADIENT    g slope + d scale + add
 *     CONSTANT    g slope
 *
 * RELU: g counts as 0 where d slope + base <= 0. */
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

/** V elements of x and g starting at `at`. apply() writes their results to y; its formula has N = V
 * channels, or one for all elements. */
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
 * vectors per channel of a sample; units: number of units; least: as in struct formula. */
template <class T, int V, int MODE>
__global__ void __launch_bounds__(THREADS)
    unit_results(const T *__restrict__ x, const T *__restrict__ g, T *__restrict__ y,
                 coefficients<wide_t<T>> k, split<uint32_t> row, split<uint32_t> units,
                 uint32_t count, wide_t<T> least)
{
    take_turn();
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

/** Pass 3, channels-last: a thread loads the coefficients of V channels once for several positions.
 * Block (vectors of channels of a set, part), where a part is `each` positions. */
template <class T, int V, int MODE>
__global__ void __launch_bounds__(THREADS, MODE & RELU ? BLOCKS : BLOCKS + 1)
    pixel_results(const T *__restrict__ x, const T *__restrict__ g, T *__restrict__ y, shape s,
                  coefficients<wide_t<T>> k, int64_t each, wide_t<T> least)
{
    take_turn();
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
