/**
 * @file windows.cu
 * The windows of convolutions: gathered into matrices for products, or summed where a group has so
 * few channels that a product would leave its unit empty. Images have their channels innermost, so
 * neighbouring threads read neighbouring channels.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/frame.cuh"
#include "backends/cuda/launch.h"
#include "backends/cuda/windows.h"

namespace ts {

enum { WINDOW_THREADS = 256 };

/** Image and batch position of a window. */
struct window_at {
    int64_t n, i[3];
};

static __device__ __forceinline__ window_at window_of(const ts_cuda_windows &w, int64_t at)
{
    window_at p;
#pragma unroll
    for (int d = 2; d >= 0; d--) {
        p.i[d] = at % w.axis[d].count;
        at /= w.axis[d].count;
    }
    p.n = at;
    return p;
}

/** The pixel that tap (j0, j1, j2) of a window reads, or -1 outside of the image. */
static __device__ __forceinline__ int64_t pixel_of(const ts_cuda_windows &w, const window_at &p,
                                                   int64_t j0, int64_t j1, int64_t j2)
{
    const int64_t j[3] = {j0, j1, j2};
    int64_t pixel = p.n;
    bool inside = true;
#pragma unroll
    for (int d = 0; d < 3; d++) {
        const ts_window_axis &a = w.axis[d];
        int64_t i = p.i[d] * a.move + a.base + j[d] * a.shift;
        inside = inside && i >= 0 && i < w.size[d];
        pixel = pixel * w.size[d] + i;
    }
    return inside ? pixel : -1;
}

/** A thread copies a piece of type V of one tap and group. `pieces` of them are a group's
 *  channels. */
template <class V>
static __global__ void __launch_bounds__(WINDOW_THREADS)
    gather_kernel(const __grid_constant__ ts_cuda_windows w, V *to, int64_t pieces, int64_t all)
{
    uint32_t taps = (uint32_t)(w.axis[0].taps * w.axis[1].taps * w.axis[2].taps);
    uint32_t row = taps * (uint32_t)(w.groups * pieces);
    for (int64_t e = (int64_t)blockIdx.x * WINDOW_THREADS + threadIdx.x; e < all;
         e += (int64_t)gridDim.x * WINDOW_THREADS) {
        window_at p = window_of(w, w.first + e / row);
        uint32_t left = (uint32_t)(e % row), piece = left % (uint32_t)pieces;
        left /= (uint32_t)pieces;
        uint32_t tap = left % taps, group = left / taps;
        uint32_t t1 = (uint32_t)w.axis[1].taps, t2 = (uint32_t)w.axis[2].taps;
        int64_t pixel = pixel_of(w, p, tap / t2 / t1, tap / t2 % t1, tap % t2);
        V x{};
        if (pixel >= 0)
            x = ((const V *)w.image)[(pixel * w.groups + group) * pieces + piece];
        to[e] = x;
    }
}

/** A thread sums one element: neighbouring threads have neighbouring rows and groups. */
template <class T>
static __global__ void __launch_bounds__(WINDOW_THREADS)
    sum_kernel(const __grid_constant__ ts_cuda_windows w, const T *weight, const T *bias,
               int64_t rows, T *to, int64_t all)
{
    int64_t channels = w.channels / w.groups, line = w.groups * rows;
    for (int64_t e = (int64_t)blockIdx.x * WINDOW_THREADS + threadIdx.x; e < all;
         e += (int64_t)gridDim.x * WINDOW_THREADS) {
        int64_t q = e / line, row = e % line, group = row / rows;
        window_at p = window_of(w, w.first + q);
        const T *image = (const T *)w.image + group * channels;
        const T *k = weight + row * w.axis[0].taps * w.axis[1].taps * w.axis[2].taps * channels;
        wide_t<T> sum = bias ? widen(bias[row]) : 0;
        for (int64_t j0 = 0; j0 < w.axis[0].taps; j0++)
            for (int64_t j1 = 0; j1 < w.axis[1].taps; j1++)
                for (int64_t j2 = 0; j2 < w.axis[2].taps; j2++, k += channels) {
                    int64_t pixel = pixel_of(w, p, j0, j1, j2);
                    for (int64_t c = 0; pixel >= 0 && c < channels; c++)
                        sum += widen(image[pixel * w.channels + c]) * widen(k[c]);
                }
        to[e] = narrow<T>(sum);
    }
}

/**
 * A warp sums the products of one tap for 32 rows of weight, over a part of the windows; the warps
 * of a block share the part, and their sums are added in order.
 */
template <class T>
static __global__ void __launch_bounds__(WINDOW_THREADS)
    weigh_kernel(const __grid_constant__ ts_cuda_windows w, const T *y, int64_t rows, wide_t<T> *to)
{
    using A = wide_t<T>;
    enum { WARPS = WINDOW_THREADS / 32 };
    __shared__ A sums[WARPS][32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t channels = w.channels / w.groups, line = w.groups * rows * channels;
    int64_t taps = w.axis[0].taps * w.axis[1].taps * w.axis[2].taps;
    int64_t tap = blockIdx.y, part = blockIdx.z, parts = gridDim.z;
    int64_t begin = w.count * part / parts, end = w.count * (part + 1) / parts;
    int64_t j[3] = {tap / w.axis[2].taps / w.axis[1].taps, tap / w.axis[2].taps % w.axis[1].taps,
                    tap % w.axis[2].taps};
    for (int64_t block = blockIdx.x; block * 32 < line; block += gridDim.x) {
        /* row and channel of the weight */
        int64_t e = block * 32 + lane, row = e / channels, c = e % channels, group = row / rows;
        A sum = 0;
        for (int64_t q = begin + warp; q < end && e < line; q += WARPS) {
            int64_t pixel = pixel_of(w, window_of(w, q), j[0], j[1], j[2]);
            if (pixel >= 0)
                sum += widen(((const T *)w.image)[pixel * w.channels + group * channels + c]) *
                       widen(y[q * w.groups * rows + row]);
        }
        sums[warp][lane] = sum;
        __syncthreads();
        if (!warp && e < line) {
            for (int k = 1; k < WARPS; k++)
                sum += sums[k][lane];
            to[((part * w.groups * rows + row) * taps + tap) * channels + c] = sum;
        }
        __syncthreads();
    }
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
    return launch(gather_kernel<V>, grid_of(all), stream, w, (V *)to, pieces, all);
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
        return launch(sum_kernel<T>, grid_of(all), at.stream, *w, (const T *)weight,
                      (const T *)bias, rows, (T *)to, all);
    });
}

ts_status ts_cuda_weigh_windows(ts_frame *f, const ts_cuda_windows *w, const void *y, int64_t rows,
                                int64_t parts, void *to)
{
    return with_float(f, [&]<class T>(const call &at) {
        const ts_window_axis *a = w->axis;
        int64_t taps = a[0].taps * a[1].taps * a[2].taps,
                blocks = (w->channels * rows + 31) / 32;
        ts_cuda_grid grid = {dim3((unsigned)(blocks < 65536 ? blocks : 65536), (unsigned)taps,
                                  (unsigned)parts),
                             dim3(WINDOW_THREADS), 0, 1};
        return launch(weigh_kernel<T>, grid, at.stream, *w, (const T *)y, rows, (wide_t<T> *)to);
    });
}
