/** @file windows.cuh  Windows of convolutions in kernels: the position of a window, and the pixels
 * that its taps read. windows.h explains windows. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_WINDOWS_CUH
#define TS_CUDA_WINDOWS_CUH

#include "backends/cuda/frame.cuh"
#include "backends/cuda/convolution/windows.h"

namespace ts {

/** Fields of ts_window_axis, and the size of the image, in a kernel's index type I: 32 bits if all
 * indices fit, else 64. */
template <class I> struct window_axis {
    I count, taps, move, base, shift, size;
};
/** The fields of ts_cuda_windows, in type I. */
template <class I> struct window_set {
    window_axis<I> axis[3];
    I channels, groups, each, taps; /* each: channels of a group; taps: of a window */
    const void *image;
};

template <class I> window_set<I> set_of(const ts_cuda_windows &w)
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

/** True if all indices of windows, of image elements, and of a matrix of `all` elements fit 31
 * bits. */
inline bool is_small(const ts_cuda_windows &w, int64_t all)
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

/** A window's index in the batch (n), and its position along each dim (i). */
template <class I> struct window_at {
    I n, i[3];
};

/** The place of window number `at`. */
template <class I>
__device__ __forceinline__ window_at<I> window_of(const window_set<I> &w, I at)
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

/** Index of the pixel that tap (j0, j1, j2) of a window reads, or -1 outside of the image. */
template <class I>
__device__ __forceinline__ I pixel_of(const window_set<I> &w, const window_at<I> &p, I j0,
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

/** Calls launch.operator()<I>() with the index type that fits: int32_t if is_small(), else
 * int64_t. */
template <class F>
cudaError_t with_indices(const ts_cuda_windows &w, int64_t all, F &&launch)
{
    return is_small(w, all) ? launch.template operator()<int32_t>()
                            : launch.template operator()<int64_t>();
}

} // namespace ts

#endif
