/**
 * @file batch_norm_once.cuh
 * Batch norm and group norm in one launch. A statistic, that is a mean and a variance, belongs to a
 * channel in batch norm and to a group of channels of one sample in group norm. A block holds the
 * elements of a statistic in registers: it computes mean and variance, or the sums of the gradient,
 * and then the results.
 *
 * batch_norm.cu launches this kernel for statistics of at most ONCE_THREADS * ONCE_EACH elements of
 * up to 4 bytes (fits_once()), except for gradients of group norm, which always use the passes of
 * batch_norm.cuh.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_BATCH_NORM_ONCE_CUH
#define TS_CUDA_BATCH_NORM_ONCE_CUH

#include "backends/cuda/batch_norm.cuh"

namespace ts {

enum { ONCE_THREADS = 1024, /* maximum threads of a block */
       ONCE_EACH = 8,       /* elements of a thread */
       ONCE_WIDTH = 1024    /* maximum channels of a statistic */ };

/** Operands of a call. A statistic has `count` elements, in runs of `run.d` adjacent elements that
 * begin `pitch` elements apart. */
template <class T> struct once_call {
    const T *x, *g; /* input; upstream gradient, for gradients */
    T *y;           /* result or gradient of x; NULL: not requested */
    shape s;
    bool last;                      /* channels-last */
    split<uint32_t> run, positions; /* adjacent elements of a statistic, and of a channel */
    uint32_t count, pitch;
    bool constant; /* the statistics are given */
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

/** Block i computes statistic i. MODE: RESULT, or for batch norm GRADIENT with or without RELU. */
template <class T, int MODE>
__global__ void __launch_bounds__(ONCE_THREADS)
    norm_once(const __grid_constant__ once_call<T> c)
{
    using A = wide_t<T>;
    take_turn();
    __shared__ A weights[ONCE_WIDTH], biases[ONCE_WIDTH];
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
        A rstd = rsqrt(var + (A)s.eps), slope = rstd * weights[0], base_of = biases[0], sum = 0,
          dot = 0, scale = 0, add = 0;
        each([&](int e, uint32_t, uint32_t) {
            A d = xs[e] - mean;
            if (MODE & RELU)
                gs[e] = d * slope + base_of <= 0 ? (A)0 : gs[e];
            sum += gs[e];
            dot += gs[e] * d;
        });
        if (!c.constant || c.first.data || c.second.data) {
            double2 sums = block_sums((double)sum, (double)dot);
            if (threadIdx.x == 0) {
                c.first.put(blockIdx.x, (A)sums.y * rstd);
                c.second.put(blockIdx.x, (A)sums.x);
            }
            scale = -rstd * rstd * rstd * (weights[0] * (A)sums.y) / (A)c.count;
            add = -rstd * (weights[0] * (A)sums.x) / (A)c.count;
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
