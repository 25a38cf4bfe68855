/**
 * @file depthwise.cu
 * Convolutions with one channel and one feature per group. Channels are innermost, so a thread
 * computes 16 bytes of adjacent channels. These kernels are limited by loads from the first-level
 * cache and by arithmetic, not by memory: a pixel is read once per tap.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/depthwise.h"
#include "backends/cuda/image.cuh"
#include "backends/cuda/launch.h"
#include "backends/cuda/windows.cuh"

namespace ts {

enum { CHANNEL_THREADS = 256,
       STRIP = 4 /* adjacent windows of a thread, which share the loads of weights */ };

/** Where windows along a dim write: position start + i * step of `size`. */
struct channel_axis {
    int64_t start, step, size;
};
struct channel_target {
    channel_axis axis[3];
};

/** A thread computes V channels of STRIP windows along the last dim. strips: strips of a line. */
template <class T, class I, int V>
static __global__ void __launch_bounds__(CHANNEL_THREADS)
    channels_kernel(const __grid_constant__ window_set<I> w, const T *__restrict__ weight,
                    const T *__restrict__ bias, T *__restrict__ to,
                    const __grid_constant__ channel_target target, I strips, int64_t all)
{
    using A = wide_t<T>;
    using U = std::make_unsigned_t<I>;
    int64_t e = (int64_t)blockIdx.x * CHANNEL_THREADS + threadIdx.x;
    if (e >= all)
        return;
    U vectors = (U)w.channels / V, line = (U)e / vectors, c = ((U)e - line * vectors) * V,
      row = line / (U)strips;
    I first = (I)(line - row * (U)strips) * STRIP;
    U plane = row / (U)w.axis[1].count;
    I h = (I)(row - plane * (U)w.axis[1].count), n = (I)(plane / (U)w.axis[0].count),
      d = (I)plane - n * w.axis[0].count;
    A sum[STRIP][V] = {};
    if (bias) {
        A b[V];
        load_wide<T, V>(b, bias + c);
#pragma unroll
        for (int p = 0; p < STRIP; p++)
#pragma unroll
            for (int v = 0; v < V; v++)
                sum[p][v] = b[v];
    }
    const window_axis<I> &a0 = w.axis[0], &a1 = w.axis[1], &a2 = w.axis[2];
    const T *image = (const T *)w.image + c, *k = weight + c;
    I i0 = d * a0.move + a0.base;
    for (I j0 = 0; j0 < a0.taps; j0++, i0 += a0.shift) {
        I i1 = h * a1.move + a1.base;
        for (I j1 = 0; j1 < a1.taps; j1++, i1 += a1.shift, k += a2.taps * w.channels) {
            if (i0 < 0 || i0 >= a0.size || i1 < 0 || i1 >= a1.size)
                continue;
            const T *from = image + (int64_t)((n * a0.size + i0) * a1.size + i1) * a2.size *
                                        w.channels,
                    *kernel = k;
            I left = first * a2.move + a2.base;
#pragma unroll 2
            for (I j2 = 0; j2 < a2.taps; j2++, left += a2.shift, kernel += w.channels) {
                A xs[STRIP][V] = {}, ks[V];
                load_wide<T, V>(ks, kernel);
#pragma unroll
                for (int p = 0; p < STRIP; p++) {
                    I i2 = left + p * a2.move;
                    if (i2 >= 0 && i2 < a2.size)
                        load_wide<T, V>(xs[p], from + (int64_t)i2 * w.channels);
                }
#pragma unroll
                for (int p = 0; p < STRIP; p++)
#pragma unroll
                    for (int v = 0; v < V; v++)
                        sum[p][v] += xs[p][v] * ks[v];
            }
        }
    }
    const channel_axis *t = target.axis;
    to += (((n * t[0].size + t[0].start + d * t[0].step) * t[1].size + t[1].start + h * t[1].step) *
               t[2].size + t[2].start + first * t[2].step) * w.channels + c;
#pragma unroll
    for (int p = 0; p < STRIP; p++)
        if (first + p < a2.count)
            *reinterpret_cast<word_of<vec<T, V>> *>(to + p * t[2].step * w.channels) =
                to_word(pack<T, V>(sum[p]));
}

/** Elements of 16 bytes if the channels are a multiple of it, else 1. */
static int64_t width_of(const ts_cuda_windows &w)
{
    return w.channels * w.item % 16 ? 1 : 16 / w.item;
}

/** Calls f.operator()<V>() with width_of(w), or with 1 if an address is not a multiple of 16. */
template <class T, class F> static cudaError_t with_width(const ts_cuda_window_product &q, F &&f)
{
    uintptr_t all = (uintptr_t)q.windows.image | (uintptr_t)q.other | (uintptr_t)q.bias |
                    (uintptr_t)q.to;
    return width_of(q.windows) > 1 && all % 16 == 0 ? f.template operator()<vec16<T>>()
                                                    : f.template operator()<1>();
}

} // namespace ts

using namespace ts;

ts_status ts_cuda_multiply_channels(ts_frame *f, const ts_cuda_window_product *q)
{
    const ts_cuda_windows &w = q->windows;
    channel_target target = {};
    for (int d = 0; d < 3; d++)
        target.axis[d] = {w.axis[d].start, w.axis[d].step, q->size[d]};
    return with_float(f, [&]<class T>(const call &at) {
        return with_width<T>(*q, [&]<int V>() {
            int64_t count = w.axis[2].count, strips = (count + STRIP - 1) / STRIP,
                    all = q->all / count * strips * (w.channels / V);
            ts_cuda_grid grid = {dim3((unsigned)((all + CHANNEL_THREADS - 1) / CHANNEL_THREADS)),
                                 dim3(CHANNEL_THREADS), 0, 1};
            return with_indices(w, q->all * w.channels, [&]<class I>() {
                return launch(channels_kernel<T, I, V>, grid, at.stream, set_of<I>(w),
                              (const T *)q->other, (const T *)q->bias, (T *)q->to, target,
                              (I)strips, all);
            });
        });
    });
}
