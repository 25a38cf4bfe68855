/**
 * @file depthwise.cu
 * Convolutions with one channel and one feature per group, and gradients of their images. Channels
 * are innermost. For images of bf16, f16 and f32 with 3 x 3, 5 x 5 or 7 x 7 taps, rows_kernel
 * (depthwise_rows.cuh) computes the result with stride 1 or 2 and the gradient with stride 1;
 * depthwise_spread.cu has the gradient with stride 2. In all other calls a thread of
 * channels_kernel computes 16 bytes of adjacent channels. It reads a pixel once per tap, so loads
 * from the L1 cache and arithmetic limit it, not memory.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/convolution/depthwise.h"
#include "backends/cuda/convolution/depthwise_rows.cuh"
#include "backends/cuda/image.cuh"
#include "backends/cuda/runtime/launch.h"
#include "backends/cuda/convolution/windows.cuh"

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

/** Number of elements in 16 bytes if it divides the number of channels, else 1. */
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

/* --------------------------------------------------------------------------------- rows ---- */

/** A call of rows_kernel, or taps 0 if it cannot compute the product. */
struct rows_plan {
    rows_call call;
    int taps, stride, warps, lanes, copy; /* copy: COPY of the kernel */
    bool flipped;                         /* the last tap of the weight is added first */
    int64_t blocks;
};

enum { PROCESSORS = 132 /* of an H100; the number affects only the time */ };

/** Estimate of the cycles of a plan whose pieces have `rows` rows: blocks are resident in waves,
 * and a warp takes some cycles per row of pixels, or more if too few warps are resident. */
static double rows_cycles(const rows_plan &p, int64_t blocks, int rows)
{
    int taps = p.taps, stride = p.stride,
        resident = (taps == 3 ? 24 : taps == 5 ? 16 : 8) / p.warps;
    double row = taps * taps * 8.0 / stride + (p.lanes == ROWS_LANES ? 100 : 160),
           pixels = rows * stride + taps - stride,
           each = (double)blocks / (double)PROCESSORS;
    auto wave = [&](double count) { /* of blocks on a multiprocessor */
        double full = count * p.warps / 4 * row, alone = 1.3 * row + 150;
        return 2500 + pixels * (full > alone ? full : alone);
    };
    int64_t waves = (int64_t)(each / resident);
    int left = (int)(each - (double)(waves * resident) + 0.999);
    return (double)waves * wave(resident) + (left ? wave(left) : 0);
}

/** The next number of lanes that a plan may have; 0: none. */
static int next_lanes(const rows_plan &p, int item)
{
    return p.lanes == ROWS_LANES && item == 2 && p.copy == 16 && p.call.channels <= 32 ? 8 : 0;
}

/** The plan of a product. Sums do not depend on the division into pieces. */
static rows_plan rows_plan_of(const ts_cuda_window_product &q)
{
    constexpr int P = ROWS_COLUMNS;
    const ts_cuda_windows &w = q.windows;
    const ts_window_axis *a = w.axis;
    rows_plan p = {};
    int64_t taps = a[2].taps, stride = a[2].move, channels = w.channels;
    if (!rows_are_flat(q) || a[0].start != 0 || a[0].step != 1 || q.size[0] != w.size[0] ||
        w.item > 4 || a[1].taps != taps || (taps != 3 && taps != 5 && taps != 7) ||
        (a[1].shift < 0) != (a[2].shift < 0) || !rows_axis_of(q, 1, stride, &p.call.h) ||
        !rows_axis_of(q, 2, stride, &p.call.w))
        return p;
    int64_t lines = q.all / (a[1].count * a[2].count), to = lines * q.size[1] * q.size[2];
    uintptr_t all = (uintptr_t)q.other | (uintptr_t)q.bias | (uintptr_t)q.to;
    int64_t pair = 2 * w.item; /* bytes of two channels */
    bool even = channels % 2 == 0 && all % (uintptr_t)pair == 0;
    p.copy = even && channels * w.item % 16 == 0 && (uintptr_t)w.image % 16 == 0 ? 16
             : w.item == 4 || even                                              ? 4
                                                                                : SHIFTED;
    if (!is_small(w, q.all * channels) || to > INT32_MAX / channels ||
        (uintptr_t)w.image % 4 || (p.copy == SHIFTED && channels % 2 == 0))
        return p;
    int vector = p.copy == SHIFTED || (p.copy == 4 && w.item == 4) ? 1 : 2,
        rows = rows_pieces(p.call.h, 1);
    p.call.channels = (int)channels;
    p.flipped = a[2].shift < 0;
    p.call.kernel_step = p.flipped ? -channels : channels;
    p.taps = (int)taps;
    p.stride = (int)stride;
    rows_plan best = {};
    double least = 0;
    rows_axis &h = p.call.h, &v = p.call.w;
    for (p.lanes = ROWS_LANES; p.lanes; p.lanes = next_lanes(p, w.item)) {
        p.call.sets = (int)((channels + p.lanes * vector - 1) / (p.lanes * vector));
        for (p.warps = 2; p.warps <= ROWS_STRIPS; p.warps *= 2) {
            v.length = P * p.warps * 32 / p.lanes;
            v.pieces = rows_pieces(v, v.length);
            if (2 * ((v.length - 1) * stride + taps) * p.lanes * vector * w.item * ROWS_STAGES >
                ROWS_MEMORY)
                break;
            for (int pieces = 1;; pieces *= 2) {
                h.length = (rows + pieces - 1) / pieces;
                h.pieces = rows_pieces(h, h.length);
                p.blocks = lines * p.call.sets * h.every * v.every * h.pieces * v.pieces;
                double cycles = rows_cycles(p, p.blocks, h.length);
                if (!best.taps || cycles < least)
                    least = cycles, best = p;
                if (h.length <= 4)
                    break;
            }
        }
    }
    if (best.blocks > INT32_MAX)
        best.taps = 0;
    return best;
}

template <class T, int V, int COPY, int K, int S, int LANES>
static cudaError_t run_rows(const rows_plan &p, const ts_cuda_window_product &q,
                            cudaStream_t stream)
{
    const T *weight = (const T *)q.other;
    if (p.flipped)
        weight += (K * K - 1) * p.call.channels;
    int pixels = (p.call.w.length - 1) * S + K, pixel = rows_pixel<T, V, COPY, LANES>::BYTES;
    ts_cuda_grid grid = {dim3((unsigned)p.blocks), dim3((unsigned)(p.warps * 32)),
                         (unsigned)(ROWS_STAGES * 2 * pixels * pixel), 1};
    return launch(rows_kernel<T, V, K, S, COPY, LANES>, grid, stream, p.call,
                  (const T *)q.windows.image, weight, (const T *)q.bias, (T *)q.to);
}

template <class T, int V, int COPY, int LANES = ROWS_LANES>
static cudaError_t run_rows_of(const rows_plan &p, const ts_cuda_window_product &q,
                               cudaStream_t stream)
{
    auto run = [&]<int K>() {
        return p.stride == 1 ? run_rows<T, V, COPY, K, 1, LANES>(p, q, stream)
                             : run_rows<T, V, COPY, K, 2, LANES>(p, q, stream);
    };
    return p.taps == 3   ? run.template operator()<3>()
           : p.taps == 5 ? run.template operator()<5>()
                         : run.template operator()<7>();
}

template <class T>
static cudaError_t rows(const rows_plan &p, const ts_cuda_window_product &q, cudaStream_t stream)
{
    if constexpr (is_half<T>)
        if (p.lanes == 8)
            return run_rows_of<T, 2, 16, 8>(p, q, stream);
    if (p.copy == 16)
        return run_rows_of<T, 2, 16>(p, q, stream);
    if constexpr (is_half<T>)
        return p.copy == 4 ? run_rows_of<T, 2, 4>(p, q, stream)
                           : run_rows_of<T, 1, SHIFTED>(p, q, stream);
    else
        return run_rows_of<T, 1, 4>(p, q, stream);
}

} // namespace ts

using namespace ts;

ts_status ts_cuda_multiply_channels(ts_frame *f, const ts_cuda_window_product *q)
{
    const ts_cuda_windows &w = q->windows;
    rows_plan plan = rows_plan_of(*q);
    channel_target target = {};
    for (int d = 0; d < 3; d++)
        target.axis[d] = {w.axis[d].start, w.axis[d].step, q->size[d]};
    return with_float(f, [&]<class T>(const call &at) {
        if constexpr (sizeof(T) < 8)
            if (plan.taps)
                return rows<T>(plan, *q, at.stream);
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
