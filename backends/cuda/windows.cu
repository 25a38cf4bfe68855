/**
 * @file windows.cu
 * Windows of convolutions: gathered into matrices for products, or multiplied and summed directly
 * for groups with so few channels that a matrix product would be inefficient. Channels are
 * innermost in the images, so adjacent threads read adjacent channels.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/frame.cuh"
#include "backends/cuda/launch.h"
#include "backends/cuda/windows.h"

namespace ts {

enum { WINDOW_THREADS = 256 };

/** ts_window_axis, and the size of the image, in a kernel's index type I: 32 bits if all indices
 * fit, else 64. */
template <class I> struct window_axis {
    I count, taps, move, base, shift, size;
};
template <class I> struct window_set {
    window_axis<I> axis[3];
    I channels, groups, each, taps; /* each: channels of a group */
    const void *image;
};

template <class I> static window_set<I> set_of(const ts_cuda_windows &w)
{
    window_set<I> s = {};
    s.taps = 1;
    for (int d = 0; d < 3; d++) {
        const ts_window_axis &a = w.axis[d];
        s.axis[d] = {(I)a.count, (I)a.taps, (I)a.move, (I)a.base, (I)a.shift, (I)w.size[d]};
        s.taps *= (I)a.taps;
    }
    s.channels = (I)w.channels;
    s.groups = (I)w.groups;
    s.each = (I)(w.channels / w.groups);
    s.image = w.image;
    return s;
}

/** Whether all indices of windows, of image elements, and of a matrix of `all` elements fit 31
 * bits. */
static bool is_small(const ts_cuda_windows &w, int64_t all)
{
    int64_t windows = 1, pixels = w.channels;
    for (int d = 0; d < 3; d++) {
        const ts_window_axis &a = w.axis[d];
        windows *= a.count;
        pixels *= w.size[d];
        if (a.count * a.move + a.taps * (a.shift < 0 ? -a.shift : a.shift) +
                (a.base < 0 ? -a.base : a.base) > INT32_MAX)
            return false;
    }
    int64_t batch = (w.first + w.count + windows - 1) / windows;
    return all <= INT32_MAX && w.first + w.count <= INT32_MAX && batch * pixels <= INT32_MAX;
}

/** Batch position and position of a window. */
template <class I> struct window_at {
    I n, i[3];
};

template <class I>
static __device__ __forceinline__ window_at<I> window_of(const window_set<I> &w, I at)
{
    using U = std::make_unsigned_t<I>;
    window_at<I> p;
#pragma unroll
    for (int d = 2; d >= 0; d--) {
        U next = (U)at / (U)w.axis[d].count;
        p.i[d] = at - (I)next * w.axis[d].count;
        at = (I)next;
    }
    p.n = at;
    return p;
}

/** The pixel that tap (j0, j1, j2) of a window reads, or -1 outside of the image. */
template <class I>
static __device__ __forceinline__ I pixel_of(const window_set<I> &w, const window_at<I> &p, I j0,
                                             I j1, I j2)
{
    const I j[3] = {j0, j1, j2};
    I pixel = p.n;
    bool inside = true;
#pragma unroll
    for (int d = 0; d < 3; d++) {
        const window_axis<I> &a = w.axis[d];
        I i = p.i[d] * a.move + a.base + j[d] * a.shift;
        inside = inside && i >= 0 && i < a.size;
        pixel = pixel * a.size + i;
    }
    return inside ? pixel : -1;
}

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

static ts_cuda_grid grid_of(int64_t all)
{
    int64_t blocks = (all + WINDOW_THREADS - 1) / WINDOW_THREADS;
    return {dim3((unsigned)(blocks < 65536 ? blocks : 65536)), dim3(WINDOW_THREADS), 0, 1};
}

/** Runs launch.operator()<I>() for the index type that fits a matrix of `all` elements. */
template <class F>
static cudaError_t with_numbers(const ts_cuda_windows &w, int64_t all, F &&launch)
{
    return is_small(w, all) ? launch.template operator()<int32_t>()
                            : launch.template operator()<int64_t>();
}

template <class V>
static cudaError_t gather(const ts_cuda_windows &w, void *to, int64_t bytes, cudaStream_t stream)
{
    const ts_window_axis *a = w.axis;
    int64_t pieces = bytes / (int64_t)sizeof(V);
    int64_t all = w.count * a[0].taps * a[1].taps * a[2].taps * w.groups * pieces;
    return with_numbers(w, all, [&]<class I>() {
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

ts_status ts_cuda_sum_windows(ts_frame *f, const ts_cuda_windows *w, const void *weight,
                              const void *bias, int64_t rows, void *to)
{
    return with_float(f, [&]<class T>(const call &at) {
        int64_t all = w->count * w->groups * rows;
        return with_numbers(*w, all, [&]<class I>() {
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
        return with_numbers(*w, all, [&]<class I>() {
            return launch(weigh_kernel<T, I>, grid, at.stream, set_of<I>(*w), (const T *)y,
                          (I)rows, w->count, (wide_t<T> *)to);
        });
    });
}
