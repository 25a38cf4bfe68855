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
       STRIP = 4,      /* adjacent windows of a thread, which share the loads of weights */
       TAPS = 5,       /* taps of a thread in the gradient of the weight */
       MOST_PARTS = 1024, PART_BLOCKS = 132 * 8, PART_ROWS = 16 };

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

/** Block (vectors of channels, chunk of taps, part) of threads (columns, rows): a thread adds the
 * products of its channels and TAPS taps over windows of the part, `rows` apart; row 0 adds up the
 * rows. */
template <class T, class I, int V>
static __global__ void __launch_bounds__(CHANNEL_THREADS)
    weigh_channels_kernel(const __grid_constant__ window_set<I> w, const T *__restrict__ y,
                          int64_t count, wide_t<T> *__restrict__ to)
{
    using A = wide_t<T>;
    __shared__ A memory[V][CHANNEL_THREADS];
    int columns = (int)blockDim.x, rows = (int)blockDim.y, x = (int)threadIdx.x,
        r = (int)threadIdx.y;
    I c = ((I)blockIdx.x * columns + x) * V, first = (I)blockIdx.y * TAPS;
    bool inside = c < w.channels;
    const window_axis<I> &a0 = w.axis[0], &a1 = w.axis[1], &a2 = w.axis[2];
    I off[TAPS][3];
#pragma unroll
    for (int t = 0; t < TAPS; t++) {
        I tap = min(first + t, w.taps - 1), plane = tap / a2.taps;
        off[t][0] = plane / a1.taps * a0.shift + a0.base;
        off[t][1] = plane % a1.taps * a1.shift + a1.base;
        off[t][2] = tap % a2.taps * a2.shift + a2.base;
    }
    A sum[TAPS][V] = {};
    I at = (I)(count * blockIdx.z / gridDim.z), end = (I)(count * (blockIdx.z + 1) / gridDim.z);
    at += r;
    window_at<I> p = window_of(w, at);
    const T *image = (const T *)w.image + c;
    for (; at < end && inside; at += rows) {
        A g[V];
        load_wide<T, V>(g, y + (int64_t)at * w.channels + c);
#pragma unroll
        for (int t = 0; t < TAPS; t++) {
            I i0 = p.i[0] * a0.move + off[t][0], i1 = p.i[1] * a1.move + off[t][1],
              i2 = p.i[2] * a2.move + off[t][2];
            A xs[V] = {};
            if (i0 >= 0 && i0 < a0.size && i1 >= 0 && i1 < a1.size && i2 >= 0 && i2 < a2.size)
                load_wide<T, V>(xs, image + (int64_t)(((p.n * a0.size + i0) * a1.size + i1) *
                                                          a2.size + i2) * w.channels);
#pragma unroll
            for (int v = 0; v < V; v++)
                sum[t][v] += xs[v] * g[v];
        }
        p.i[2] += rows;
        while (p.i[2] >= a2.count) {
            p.i[2] -= a2.count;
            if (++p.i[1] == a1.count) {
                p.i[1] = 0;
                if (++p.i[0] == a0.count) {
                    p.i[0] = 0;
                    p.n++;
                }
            }
        }
    }
#pragma unroll
    for (int t = 0; t < TAPS; t++) {
        __syncthreads();
#pragma unroll
        for (int v = 0; v < V; v++)
            memory[v][r * columns + x] = sum[t][v];
        __syncthreads();
        for (int v = r; v < V && inside && first + t < w.taps; v += rows) {
            A whole = memory[v][x];
            for (int i = 1; i < rows; i++)
                whole += memory[v][i * columns + x];
            to[((int64_t)blockIdx.z * w.taps + first + t) * w.channels + c + v] = whole;
        }
    }
}

/** Parts of the windows; *threads: a block's columns and rows. */
static int64_t parts_of(const ts_cuda_window_product &q, int64_t vectors, int64_t taps,
                        dim3 *threads)
{
    int columns = 1;
    while (columns < vectors && columns < 32)
        columns *= 2;
    *threads = dim3((unsigned)columns, (unsigned)(CHANNEL_THREADS / columns));
    int64_t blocks = (vectors + columns - 1) / columns * ((taps + TAPS - 1) / TAPS),
            parts = (PART_BLOCKS + blocks - 1) / blocks,
            room = q.all / (PART_ROWS * (int64_t)threads->y);
    parts = parts < room ? parts : room;
    return parts < 1 ? 1 : parts > MOST_PARTS ? MOST_PARTS : parts;
}

static int64_t taps_of(const ts_cuda_windows &w)
{
    return w.axis[0].taps * w.axis[1].taps * w.axis[2].taps;
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

int64_t ts_cuda_weigh_channels_parts(const ts_cuda_window_product *q)
{
    dim3 threads;
    return parts_of(*q, q->windows.channels / width_of(q->windows), taps_of(q->windows), &threads);
}

ts_status ts_cuda_weigh_channels(ts_frame *f, const ts_cuda_window_product *q)
{
    const ts_cuda_windows &w = q->windows;
    int64_t taps = taps_of(w), parts = ts_cuda_weigh_channels_parts(q);
    return with_float(f, [&]<class T>(const call &at) {
        return with_width<T>(*q, [&]<int V>() {
            dim3 threads;
            parts_of(*q, w.channels / V, taps, &threads);
            int64_t vectors = w.channels / V;
            ts_cuda_grid grid = {dim3((unsigned)((vectors + threads.x - 1) / threads.x),
                                      (unsigned)((taps + TAPS - 1) / TAPS), (unsigned)parts),
                                 threads, 0, 1};
            return with_indices(w, q->all * w.channels, [&]<class I>() {
                return launch(weigh_channels_kernel<T, I, V>, grid, at.stream, set_of<I>(w),
                              (const T *)q->other, q->all, (wide_t<T> *)q->to);
            });
        });
    });
}
