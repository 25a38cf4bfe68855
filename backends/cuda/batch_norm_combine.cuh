/**
 * @file batch_norm_combine.cuh
 * Pass 2 of batch norm and group norm: computes statistics (means and variances), and the
 * coefficients of pass 3, from the sums of pass 1. batch_norm.cuh describes the passes and defines
 * statistics, units and splits.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_BATCH_NORM_COMBINE_CUH
#define TS_CUDA_BATCH_NORM_COMBINE_CUH

#include "backends/cuda/batch_norm.cuh"

namespace ts {

/** Returns the sum of x over a team to each of its threads. A team is a warp (WARPS = 1) or a block
 *  of WARPS warps, whose threads must all make the same calls. */
template <int WARPS, class A> __device__ __forceinline__ A team_sum(A x)
{
    x = warp_sum(x);
    if constexpr (WARPS > 1) {
        __shared__ A of_warps[WARPS];
        __syncthreads(); /* the last call's sums have been read */
        if (threadIdx.x % 32 == 0)
            of_warps[threadIdx.x / 32] = x;
        __syncthreads();
        x = of_warps[0];
#pragma unroll
        for (int w = 1; w < WARPS; w++)
            x += of_warps[w];
    }
    return x;
}

/** Pass 2 of the forward op, a team (team_sum()) per statistic: writes mean and variance, combined
 * from the splits of its units or copied from given_mean and given_var, and the coefficients of its
 * units. If mean and var have no tensor, only the coefficients are written. */
template <class A, int WARPS>
__global__ void __launch_bounds__(THREADS)
    combine_moments(const part *parts, shape s, parameter mean, parameter var, parameter given_mean,
                    parameter given_var, parameter weight, parameter bias, coefficients<A> to)
{
    constexpr int TEAM = WARPS * 32;
    take_turn();
    int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / TEAM;
    int lane = threadIdx.x % TEAM;
    if (at >= s.sets * s.groups)
        return;
    int64_t width = s.channels / s.groups, n = width * s.splits, first = at % s.groups * width,
            unit = at / s.groups * s.channels + first;
    A m, v, w = 1, b = 0; /* w, b: of channel first + lane, loaded before they are needed */
    if (lane < width) {
        w = weight.load<A>(first + lane, 1);
        b = bias.load<A>(first + lane, 0);
    }
    if (given_mean.data) {
        m = given_mean.at<A>(at, 0);
        v = given_var.at<A>(at, 0);
    } else {
        const part *from = parts + unit * s.splits;
        /* The mean of a split is shift + a / count. Its sum of squared deviations from this mean is
         * b - a^2 / count. */
        double count = 0, sum = 0, squares = 0, correction = 0;
#pragma unroll 4
        for (int64_t i = lane; i < n; i += TEAM) {
            part p = from[i];
            count += p.count;
            sum += p.count * p.shift + p.a;
        }
        count = team_sum<WARPS>(count);
        double whole = team_sum<WARPS>(sum) / count;
#pragma unroll 4
        for (int64_t i = lane; i < n; i += TEAM) {
            part p = from[i];
            double by = p.count > 0 ? p.a / p.count : 0, d = p.shift - whole + by,
                   own = p.b - p.a * by;
            squares += (own < 0 ? 0 : own) + p.count * d * d;
            correction += p.count * d;
        }
        /* The products with counts in `sum` were rounded. The mean deviation from `whole` corrects
         * this, so that the mean of equal f64 elements is exact. */
        correction = team_sum<WARPS>(correction) / count;
        m = (A)(isfinite(correction) ? whole + correction : whole);
        double variance = team_sum<WARPS>(squares) / count - correction * correction;
        v = (A)(variance < 0 ? 0 : variance);
    }
    if (lane == 0) {
        mean.put(at, m);
        var.put(at, v);
    }
    A rstd = rsqrt(v + (A)s.eps);
    for (int64_t k = lane; k < width; k += TEAM) {
        to.mean[unit + k] = m;
        to.scale[unit + k] = rstd * (k == lane ? w : weight.at<A>(first + k, 1));
        to.add[unit + k] = k == lane ? b : bias.at<A>(first + k, 0);
    }
}

/** Pass 2 of the backward op, from the sums of g and g (x - mean) per unit and split. The first
 * sets * groups teams (team_sum()) write the coefficients of the units of one statistic each; the
 * next `channels` teams compute dw and db, the gradients of weight and bias, of one channel each.
 * constant: the statistics were given, so the gradient of x does not use the sums. */
template <class A, int WARPS>
__global__ void __launch_bounds__(THREADS)
    combine_sums(const part *parts, shape s, forward_parameters forward, bool constant,
                 coefficients<A> to, parameter dw, parameter db)
{
    constexpr int TEAM = WARPS * 32;
    take_turn();
    int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / TEAM, all = s.sets * s.groups,
            width = s.channels / s.groups;
    int lane = threadIdx.x % TEAM;
    const parameter &mean = forward.mean, &var = forward.var, &weight = forward.weight;
    A shift = 0, dot = 0;
    if (at < all) {
        int64_t first = at % s.groups * width, unit = at / s.groups * s.channels + first;
        /* inlined: all loads are issued before the first use */
        A v = var.load<A>(at, 0), m = mean.load<A>(at, 0), b = 0, own = 1,
          n = (A)(s.samples * s.positions * width);
        if (lane < width) {
            own = weight.load<A>(first + lane, 1);
            b = forward.bias.load<A>(first + lane, 0);
        }
        if (!constant) {
            const part *from = parts + unit * s.splits;
            int splits = (int)s.splits;
            A w = weight.load<A>(first, 1);
#pragma unroll 4
            for (int i = lane; i < (int)width * splits; i += TEAM) {
                if (width > 1)
                    w = weight.at<A>(first + i / splits, 1);
                shift += w * (A)from[i].a;
                dot += w * (A)from[i].b;
            }
            shift = team_sum<WARPS>(shift);
            dot = team_sum<WARPS>(dot);
        }
        A rstd = rsqrt(v + (A)s.eps);
        for (int64_t k = lane; k < width; k += TEAM) {
            to.mean[unit + k] = m;
            to.scale[unit + k] = -rstd * rstd * rstd * dot / n;
            to.add[unit + k] = -rstd * shift / n;
            to.slope[unit + k] = rstd * (k == lane ? own : weight.at<A>(first + k, 1));
            to.base[unit + k] = k == lane ? b : forward.bias.at<A>(first + k, 0);
        }
        return;
    }
    int64_t c = at - all;
    if (c >= s.channels || !(dw.data || db.data))
        return;
    int64_t statistic = c / width;
    int splits = (int)s.splits;
    A rstd = rsqrt(var.load<A>(statistic, 0) + (A)s.eps);
#pragma unroll 4
    for (int64_t i = lane; i < s.sets * splits; i += TEAM) {
        int64_t set = s.sets > 1 ? i / splits : 0;
        if (s.sets > 1)
            rstd = rsqrt(var.at<A>(set * s.groups + statistic, 0) + (A)s.eps);
        part p = parts[(set * s.channels + c) * splits + (i - set * splits)];
        shift += (A)p.a;
        dot += (A)p.b * rstd;
    }
    shift = team_sum<WARPS>(shift);
    dot = team_sum<WARPS>(dot);
    if (lane == 0) {
        dw.put(c, dot);
        db.put(c, shift);
    }
}

} // namespace ts

#endif
