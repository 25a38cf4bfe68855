/**
 * @file batch_norm_once.cuh
 * Batch norm and group norm in one launch. A statistic, that is a mean and a variance, belongs to a
 * channel in batch norm and to a group of channels of one sample in group norm. A block holds the
 * elements of a statistic in registers: it computes mean and variance, or the sums of the gradient,
 * and then the results. In the gradient of group norm, further blocks of the same launch sum the
 * gradients of weight and bias per channel; they read the elements again, from L2.
 *
 * batch_norm.cu launches this kernel for small tensors whose statistics have at most ONCE_THREADS *
 * ONCE_EACH elements of up to 4 bytes (fits_once() has all conditions).
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_BATCH_NORM_ONCE_CUH
#define TS_CUDA_BATCH_NORM_ONCE_CUH

#include "backends/cuda/batch_norm.cuh"

namespace ts {

enum { ONCE_THREADS = 1024, /* maximum threads of a block */
       ONCE_EACH = 8,       /* elements of a thread */
       ONCE_WIDTH = 1024,   /* maximum channels of a statistic */
       ONCE_COLUMNS = 8,    /* channels-last: channels whose sums a block adds */
       ONCE_CHANNEL = 32768 /* maximum elements of a channel whose sum a block adds */ };

/** Operands of a call. A statistic has `count` elements, in runs of `run.d` adjacent elements that
 * begin `pitch` elements apart. */
template <class T> struct once_call {
    const T *x, *g; /* input; upstream gradient, for gradients */
    T *y;           /* result or gradient of x; NULL: not requested */
    shape s;
    bool last;                      /* channels-last */
    split<uint32_t> run, positions; /* adjacent elements of a statistic, and of a channel */
    split<uint32_t> samples;        /* positions of a sample */
    uint32_t count, pitch;
    bool constant; /* the statistics are given */
    unsigned statistics; /* blocks before those that sum channels */
    /* Forward: mean and var of `given` are absent unless constant. */
    forward_parameters given;
    parameter first, second; /* results: mean and var, or gradients of weight and bias */
    wide_t<T> least;         /* lower bound of the forward result */
};

/** Returns the sums of a and b over the block to each of its threads, which must all call. The
 *  order of additions depends on blockDim only. */
__device__ __forceinline__ double2 block_sums(double a, double b)
{
    __shared__ double2 of_warps[ONCE_THREADS / 32];
    int lane = threadIdx.x % 32;
    a = warp_sum(a);
    b = warp_sum(b);
    __syncthreads(); /* the last call's sums have been read */
    if (lane == 0)
        of_warps[threadIdx.x / 32] = {a, b};
    __syncthreads();
    double2 own = lane < (int)blockDim.x / 32 ? of_warps[lane] : double2{};
    return {warp_sum(own.x), warp_sum(own.y)};
}

/** Sums the gradients of weight and bias of group norm over samples and positions: of channel i, or
 * in channels-last of ONCE_COLUMNS channels starting at i * ONCE_COLUMNS. means and rstds: shared
 * memory of ONCE_WIDTH numbers each. */
template <class T>
__device__ __forceinline__ void once_channels(const once_call<T> &c, uint32_t i, wide_t<T> *means,
                                              wide_t<T> *rstds)
{
    using A = wide_t<T>;
    const shape &s = c.s;
    uint32_t columns = c.last ? ONCE_COLUMNS : 1, rows = blockDim.x / columns,
             x = threadIdx.x % columns, y = threadIdx.x / columns, channel = i * columns + x,
             sets = (uint32_t)s.sets, channels = (uint32_t)s.channels,
             positions = (uint32_t)s.positions, all = channel < channels ? sets * positions : 0,
             statistic = channel / (channels / (uint32_t)s.groups);
    for (uint32_t set = y; set < sets && all; set += rows) {
        int64_t of = (int64_t)set * s.groups + statistic;
        means[set * columns + x] = c.given.mean.template load<A>(of, 0);
        rstds[set * columns + x] = rsqrt(c.given.var.template load<A>(of, 0) + (A)s.eps);
    }
    __syncthreads();
    A sum = 0, dot = 0;
#pragma unroll 8
    for (uint32_t k = y; k < all; k += rows) {
        uint32_t set = c.samples.of(k), own = set * columns + x,
                 at = c.last ? k * channels + channel
                             : (set * channels + channel) * positions + (k - set * positions);
        A g = widen(c.g[at]);
        sum += g;
        dot += g * ((widen(c.x[at]) - means[own]) * rstds[own]);
    }
    double2 whole = {(double)dot, (double)sum};
    if (!c.last) {
        whole = block_sums(whole.x, whole.y);
    } else {
        __shared__ double2 of_warps[ONCE_THREADS / 32][ONCE_COLUMNS];
#pragma unroll
        for (int by = 16; by >= ONCE_COLUMNS; by /= 2) {
            whole.x += __shfl_xor_sync(0xffffffffu, whole.x, by);
            whole.y += __shfl_xor_sync(0xffffffffu, whole.y, by);
        }
        if (threadIdx.x % 32 < ONCE_COLUMNS)
            of_warps[threadIdx.x / 32][x] = whole;
        __syncthreads();
        for (uint32_t w = 1; w < blockDim.x / 32 && y == 0; w++) {
            whole.x += of_warps[w][x].x;
            whole.y += of_warps[w][x].y;
        }
    }
    if (y > 0 || !all)
        return;
    c.first.put(channel, (A)whole.x);
    c.second.put(channel, (A)whole.y);
}

/** Block i computes statistic i. MODE: RESULT for both norms; GRADIENT, with or without RELU, for
 * batch norm. GROUPS: GRADIENT for group norm; the blocks starting at c.statistics sum channels. */
template <class T, int MODE, bool GROUPS = false>
__global__ void __launch_bounds__(ONCE_THREADS)
    norm_once(const __grid_constant__ once_call<T> c)
{
    using A = wide_t<T>;
    take_turn();
    __shared__ A weights[ONCE_WIDTH], biases[ONCE_WIDTH];
    if constexpr (GROUPS)
        if (blockIdx.x >= c.statistics)
            return once_channels(c, blockIdx.x - c.statistics, weights, biases);
    const shape &s = c.s;
    uint32_t width = (uint32_t)(s.channels / s.groups), set = blockIdx.x / (uint32_t)s.groups,
             first = blockIdx.x % (uint32_t)s.groups * width,
             base = c.last ? set * (uint32_t)(s.positions * s.channels) + first
                           : (set * (uint32_t)s.channels + first) * (uint32_t)s.positions;
    auto each = [&](auto &&f) {
#pragma unroll
        for (int e = 0; e < ONCE_EACH; e++) {
            uint32_t i = threadIdx.x + e * blockDim.x, r = c.run.of(i), within = i - r * c.run.d;
            if (i < c.count)
                f(e, base + r * c.pitch + within, within);
        }
    };
    A xs[ONCE_EACH] = {}, gs[ONCE_EACH] = {};
    each([&](int e, uint32_t at, uint32_t) {
        xs[e] = widen(c.x[at]);
        if (MODE != RESULT)
            gs[e] = widen(c.g[at]);
    });
    for (uint32_t k = threadIdx.x; k < width; k += blockDim.x) {
        weights[k] = c.given.weight.template load<A>(first + k, 1);
        biases[k] = c.given.bias.template load<A>(first + k, 0);
    }
    A mean = c.given.mean.template load<A>(blockIdx.x, 0),
      var = c.given.var.template load<A>(blockIdx.x, 0);
    __syncthreads();
    if constexpr (MODE == RESULT) {
        if (!c.constant) {
            double sum = 0;
            each([&](int e, uint32_t, uint32_t) { sum += (double)xs[e]; });
            double whole = block_sums(sum, 0).x / c.count;
            A shift = (A)whole, d_sum = 0, squares = 0;
            each([&](int e, uint32_t, uint32_t) {
                A d = xs[e] - shift;
                d_sum += d;
                squares += d * d;
            });
            double2 sums = block_sums((double)d_sum, (double)squares);
            double correction = sums.x / c.count,
                   variance = sums.y / c.count - correction * correction;
            mean = (A)(isfinite(correction) ? shift + correction : whole);
            var = (A)(variance < 0 ? 0 : variance);
        }
        if (threadIdx.x == 0) {
            c.first.put(blockIdx.x, mean);
            c.second.put(blockIdx.x, var);
        }
        A rstd = rsqrt(var + (A)s.eps);
        each([&](int e, uint32_t at, uint32_t within) {
            uint32_t k = c.positions.of(within);
            A d = xs[e] - mean, y = d * (rstd * weights[k]) + biases[k];
            c.y[at] = narrow<T>(y < c.least ? c.least : y);
        });
    } else {
        /* GROUPS: gs becomes g times its channel's weight */
        A weight = GROUPS ? (A)1 : weights[0], rstd = rsqrt(var + (A)s.eps), slope = rstd * weight,
          base_of = biases[0], sum = 0, dot = 0, scale = 0, add = 0;
        each([&](int e, uint32_t, uint32_t within) {
            A d = xs[e] - mean;
            if (GROUPS)
                gs[e] *= weights[c.positions.of(within)];
            if (MODE & RELU)
                gs[e] = d * slope + base_of <= 0 ? (A)0 : gs[e];
            sum += gs[e];
            dot += gs[e] * d;
        });
        if (!c.constant || c.first.data || c.second.data) {
            double2 sums = block_sums((double)sum, (double)dot);
            if (!GROUPS && threadIdx.x == 0) {
                c.first.put(blockIdx.x, (A)sums.y * rstd);
                c.second.put(blockIdx.x, (A)sums.x);
            }
            scale = -rstd * rstd * rstd * (weight * (A)sums.y) / (A)c.count;
            add = -rstd * (weight * (A)sums.x) / (A)c.count;
        }
        if (!c.y)
            return;
        each([&](int e, uint32_t at, uint32_t) {
            A y = gs[e] * slope;
            if (!c.constant)
                y += (xs[e] - mean) * scale + add;
            c.y[at] = narrow<T>(y);
        });
    }
}

} // namespace ts

#endif
