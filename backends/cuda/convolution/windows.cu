/**
 * @file windows.cu
 * Windows of convolutions: gathered into matrices for products, or multiplied and summed directly
 * for groups with so few channels that a matrix product would be inefficient. Channels are
 * innermost in the images, so adjacent threads read adjacent channels.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/runtime/launch.h"
#include "backends/cuda/convolution/windows.cuh"

namespace ts {

enum { WINDOW_THREADS = 256 };

/** A thread copies a piece of type V of one tap and group. `pieces` of them are a group's
 *  channels. */
template <class V, class I>
static __global__ void __launch_bounds__(WINDOW_THREADS)
    gather_kernel(const __grid_constant__ window_set<I> w, V *to, I first, I pieces, int64_t all)
{
    using U = std::make_unsigned_t<I>;
    U row = (U)(w.taps * w.groups * pieces), t1 = (U)w.axis[1].taps, t2 = (U)w.axis[2].taps;
    for (int64_t e = (int64_t)blockIdx.x * WINDOW_THREADS + threadIdx.x; e < all;
         e += (int64_t)gridDim.x * WINDOW_THREADS) {
        U q = (U)e / row, left = (U)e - q * row, rest = left / (U)pieces;
        I piece = (I)(left - rest * (U)pieces);
        U group = rest / (U)w.taps, tap = rest - group * (U)w.taps, plane = tap / t2;
        window_at<I> p = window_of(w, (I)(first + (I)q));
        I pixel = pixel_of(w, p, (I)(plane / t1), (I)(plane % t1), (I)(tap - plane * t2));
        V x{};
        if (pixel >= 0)
            x = ((const V *)w.image)[(pixel * w.groups + (I)group) * pieces + piece];
        to[e] = x;
    }
}

/** A thread computes one element of the result; adjacent threads have adjacent rows and groups. */
template <class T, class I>
static __global__ void __launch_bounds__(WINDOW_THREADS)
    sum_kernel(const __grid_constant__ window_set<I> w, const T *weight, const T *bias, I first,
               I rows, T *to, int64_t all)
{
    using U = std::make_unsigned_t<I>;
    U line = (U)(w.groups * rows);
    for (int64_t e = (int64_t)blockIdx.x * WINDOW_THREADS + threadIdx.x; e < all;
         e += (int64_t)gridDim.x * WINDOW_THREADS) {
        U q = (U)e / line, row = (U)e - q * line;
        window_at<I> p = window_of(w, (I)(first + (I)q));
        const T *image = (const T *)w.image + (I)(row / (U)rows) * w.each;
        const T *k = weight + (I)row * w.taps * w.each;
        wide_t<T> sum = bias ? widen(bias[row]) : 0;
        for (I j0 = 0; j0 < w.axis[0].taps; j0++)
            for (I j1 = 0; j1 < w.axis[1].taps; j1++)
                for (I j2 = 0; j2 < w.axis[2].taps; j2++, k += w.each) {
                    I pixel = pixel_of(w, p, j0, j1, j2);
                    for (I c = 0; pixel >= 0 && c < w.each; c++)
                        sum += widen(image[pixel * w.channels + c]) * widen(k[c]);
                }
        to[e] = narrow<T>(sum);
    }
}

/**
 * A warp sums the products of one tap for 32 elements of the weight, over a part of the windows;
 * the warps of a block share the part, and their sums are added in order.
 */
template <class T, class I>
static __global__ void __launch_bounds__(WINDOW_THREADS)
    weigh_kernel(const __grid_constant__ window_set<I> w, const T *y, I rows, int64_t count,
                 wide_t<T> *to)
{
    using A = wide_t<T>;
    enum { WARPS = WINDOW_THREADS / 32 };
    __shared__ A sums[WARPS][32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    I line = w.groups * rows * w.each, t1 = w.axis[1].taps, t2 = w.axis[2].taps;
    I tap = (I)blockIdx.y, part = (I)blockIdx.z;
    I begin = (I)(count * part / gridDim.z), end = (I)(count * (part + 1) / gridDim.z);
    I j0 = tap / t2 / t1, j1 = tap / t2 % t1, j2 = tap % t2;
    for (I block = (I)blockIdx.x; block * 32 < line; block += (I)gridDim.x) {
        I e = block * 32 + lane, row = e / w.each, c = e % w.each, group = row / rows;
        A sum = 0;
        for (I q = begin + warp; q < end && e < line; q += WARPS) {
            I pixel = pixel_of(w, window_of(w, q), j0, j1, j2);
            if (pixel >= 0)
                sum += widen(((const T *)w.image)[pixel * w.channels + group * w.each + c]) *
                       widen(y[q * w.groups * rows + row]);
        }
        sums[warp][lane] = sum;
        __syncthreads();
        if (!warp && e < line) {
            for (int k = 1; k < WARPS; k++)
                sum += sums[k][lane];
            to[((part * w.groups * rows + row) * w.taps + tap) * w.each + c] = sum;
        }
        __syncthreads();
    }
}

/** A thread writes 8 channels of a pixel: those of `from`, then zeros. */
static __global__ void __launch_bounds__(WINDOW_THREADS)
    extend_kernel(const uint16_t *from, int64_t channels, uint4 *to, int64_t vectors, int64_t all)
{
    int64_t e = (int64_t)blockIdx.x * WINDOW_THREADS + threadIdx.x;
    if (e >= all)
        return;
    int64_t pixel = all >> 31 ? e / vectors : (uint32_t)e / (uint32_t)vectors,
            c = (e - pixel * vectors) * 8;
    uint32_t word[4] = {};
#pragma unroll
    for (int k = 0; k < 8; k++)
        if (c + k < channels)
            word[k / 2] |= (uint32_t)from[pixel * channels + c + k] << (k % 2 * 16);
    to[e] = {word[0], word[1], word[2], word[3]};
}

static ts_cuda_grid grid_of(int64_t all)
{
    int64_t blocks = (all + WINDOW_THREADS - 1) / WINDOW_THREADS;
    return {dim3((unsigned)(blocks < 65536 ? blocks : 65536)), dim3(WINDOW_THREADS), 0, 1};
}

template <class V>
static cudaError_t gather(const ts_cuda_windows &w, void *to, int64_t bytes, cudaStream_t stream)
{
    const ts_window_axis *a = w.axis;
    int64_t pieces = bytes / (int64_t)sizeof(V);
    int64_t all = w.count * a[0].taps * a[1].taps * a[2].taps * w.groups * pieces;
    return with_indices(w, all, [&]<class I>() {
        return launch(gather_kernel<V, I>, grid_of(all), stream, set_of<I>(w), (V *)to,
                      (I)w.first, (I)pieces, all);
    });
}

} // namespace ts

using namespace ts;

ts_status ts_cuda_gather_windows(ts_frame *f, const ts_cuda_windows *w, void *to)
{
    return on_device(f, [&](const call &at) {
        int64_t bytes = w->channels / w->groups * w->item;
        uintptr_t all = (uintptr_t)w->image | (uintptr_t)to | (uintptr_t)bytes;
        return all % 16 == 0  ? gather<uint4>(*w, to, bytes, at.stream)
               : all % 8 == 0 ? gather<uint2>(*w, to, bytes, at.stream)
               : all % 4 == 0 ? gather<uint32_t>(*w, to, bytes, at.stream)
                              : gather<uint16_t>(*w, to, bytes, at.stream);
    });
}

ts_status ts_cuda_extend_channels(ts_frame *f, const void *from, int64_t channels, int64_t pixels,
                                  void *to, int64_t extended)
{
    return on_device(f, [&](const call &at) {
        int64_t vectors = extended / 8, all = pixels * vectors;
        ts_cuda_grid grid = {dim3((unsigned)((all + WINDOW_THREADS - 1) / WINDOW_THREADS)),
                             dim3(WINDOW_THREADS), 0, 1};
        return all ? launch(extend_kernel, grid, at.stream, (const uint16_t *)from, channels,
                            (uint4 *)to, vectors, all)
                   : cudaSuccess;
    });
}

ts_status ts_cuda_sum_windows(ts_frame *f, const ts_cuda_windows *w, const void *weight,
                              const void *bias, int64_t rows, void *to)
{
    return with_float(f, [&]<class T>(const call &at) {
        int64_t all = w->count * w->groups * rows;
        return with_indices(*w, all, [&]<class I>() {
            return launch(sum_kernel<T, I>, grid_of(all), at.stream, set_of<I>(*w),
                          (const T *)weight, (const T *)bias, (I)w->first, (I)rows, (T *)to, all);
        });
    });
}

ts_status ts_cuda_weigh_windows(ts_frame *f, const ts_cuda_windows *w, const void *y, int64_t rows,
                                int64_t parts, void *to)
{
    return with_float(f, [&]<class T>(const call &at) {
        const ts_window_axis *a = w->axis;
        int64_t taps = a[0].taps * a[1].taps * a[2].taps, line = w->channels * rows,
                blocks = (line + 31) / 32, all = w->count * w->groups * rows;
        all = all > line * taps * parts ? all : line * taps * parts;
        ts_cuda_grid grid = {dim3((unsigned)(blocks < 65536 ? blocks : 65536), (unsigned)taps,
                                  (unsigned)parts),
                             dim3(WINDOW_THREADS), 0, 1};
        return with_indices(*w, all, [&]<class I>() {
            return launch(weigh_kernel<T, I>, grid, at.stream, set_of<I>(*w), (const T *)y,
                          (I)rows, w->count, (wide_t<T> *)to);
        });
    });
}
