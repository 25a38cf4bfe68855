/** @file axes.cuh  Pooling, padding and resizing along one dim, by the formulas of ts_axis_map
 * (tessera/kernel.h): the elements of the input that an element of the result reads and their
 * weights (taps), and the elements of the result that read an element of the input (readers), which
 * gradients need. pool.cu and resample.cu use them. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_AXES_CUH
#define TS_CUDA_AXES_CUH

#include "backends/cuda/image.cuh"
#include "tessera/kernel.h"

namespace ts {

/** ts_axis with 32-bit integers. */
struct axis {
    int map, in, out, kernel, stride, padding, dilation;
    bool padded, sum, corners;
    double scale, by_scale; /* by_scale: 1 / scale; 0 if scale is 0 */

    axis() = default;
    explicit axis(const ts_axis &a)
        : map(a.map), in((int)a.in), out((int)a.out), kernel((int)a.kernel), stride((int)a.stride),
          padding((int)a.padding), dilation((int)a.dilation), padded(a.padded), sum(a.sum),
          corners(a.corners), scale(a.scale), by_scale(a.scale != 0 ? 1 / a.scale : 0)
    {
    }

    /** Position in the input that element o of the result reads (linear and cubic maps). Without
     *  corners, rounds as the CPU does, without a fused multiply-add, because weights are
     *  differences from this position. */
    __device__ __forceinline__ double position(int o) const
    {
        return corners ? o * scale : __dadd_rn(__dmul_rn(o + 0.5, scale), -0.5);
    }
};

/** Elements of the input that element o of the forward op's result reads: `count` elements starting
 * at `first`. Dilation is ignored: only max pools have it, and pool.cu computes their windows. With
 * linear and cubic maps the elements may be outside the dim; index() clamps them. */
struct taps {
    int first, count;
    double t; /* linear: position between the two elements, 0 to 1; cubic: between the second and
                 the third of four; other maps: the weight of each element */

    __device__ __forceinline__ taps(const axis &a, int o) : first(o - a.padding), count(1), t(1)
    {
        switch (a.map) {
        case TS_AXIS_WINDOW: {
            int begin = o * a.stride - a.padding, end = min(begin + a.kernel, a.in + a.padding);
            first = max(begin, 0);
            count = max(min(end, a.in) - first, 0);
            t = a.sum ? 1.0 : 1.0 / (a.padded ? end - begin : count);
            break;
        }
        case TS_AXIS_ADAPTIVE:
            first = (int)((int64_t)o * a.in / a.out);
            count = (int)(((int64_t)(o + 1) * a.in + a.out - 1) / a.out) - first;
            t = 1.0 / count;
            break;
        case TS_AXIS_NEAREST:
            first = min((int)floorf((float)o * (float)a.scale), a.in - 1);
            break;
        case TS_AXIS_LINEAR: {
            double p = a.position(o);
            p = p < 0 ? 0 : p;
            first = min((int)p, a.in - 1);
            count = 2;
            t = min(p - first, 1.0);
            break;
        }
        case TS_AXIS_CUBIC: {
            double p = a.position(o), whole = floor(p);
            first = (int)whole - 1;
            count = 4;
            t = p - whole;
            break;
        }
        case TS_AXIS_CONSTANT: count = first >= 0 && first < a.in; break;
        case TS_AXIS_REFLECT:
            first = first < 0 ? -first : first;
            first = first < a.in ? first : 2 * (a.in - 1) - first;
            break;
        case TS_AXIS_REPLICATE: first = max(min(first, a.in - 1), 0); break;
        case TS_AXIS_CIRCULAR:
            first = first < 0 ? first + a.in : first >= a.in ? first - a.in : first;
            break;
        }
    }
    /** Index in the input of tap k (0 to count - 1), clamped to the dim. */
    __device__ __forceinline__ int index(const axis &a, int k) const
    {
        return max(min(first + k, a.in - 1), 0);
    }
    /** Weight of tap k. */
    __device__ __forceinline__ double weight(const axis &a, int k) const
    {
        if (a.map == TS_AXIS_LINEAR)
            return k ? t : 1 - t;
        if (a.map != TS_AXIS_CUBIC)
            return t;
        const double c = -0.75;
        double u = 1 - t; /* factored: no cancellation near the zeros */
        switch (k) {
        case 0: return c * t * u * u;
        case 1: return u * (1 + t - (c + 2) * t * t);
        case 2: return t * (1 + u - (c + 2) * u * u);
        default: return c * u * t * t;
        }
    }
};

/** Elements of the result that read element i of the input: `count` candidates, of which some may
 * have weight 0. Element i of the input's gradient is the sum, over the candidates, of a
 * candidate's upstream gradient times its weight(). at() gives the index of candidate k: first + k,
 * except for reflecting and circular padding. */
struct readers {
    int first, count;

    __device__ __forceinline__ readers(const axis &a, int i) : first(i + a.padding), count(1)
    {
        int last = first;
        double reach = a.map == TS_AXIS_CUBIC ? 2 : 1, edge = a.corners ? 0 : 0.5;
        switch (a.map) {
        case TS_AXIS_WINDOW: {
            int extent = a.dilation * (a.kernel - 1), from = i + a.padding - extent;
            first = from > 0 ? (from + a.stride - 1) / a.stride : 0;
            last = (i + a.padding) / a.stride;
            break;
        }
        case TS_AXIS_ADAPTIVE:
            first = (int)((int64_t)i * a.out / a.in);
            last = (int)(((int64_t)(i + 1) * a.out - 1) / a.in);
            break;
        case TS_AXIS_NEAREST:
            /* a low estimate: the forward's formula in f32 is off by less than 2^-22 of the index.
             * The loop moves up to the first reader. */
            first = (int)min(max(i * a.by_scale * (1 - 0x1p-21) - 2, 0.0), (double)a.out);
            while (first < a.out && taps(a, first).first < i)
                first++;
            last = first - 1;
            if (i == a.in - 1)
                last = a.out - 1;
            while (last + 1 < a.out && taps(a, last + 1).first == i)
                last++;
            break;
        case TS_AXIS_LINEAR:
        case TS_AXIS_CUBIC:
            first = i == 0 || a.scale == 0
                        ? 0
                        : (int)max((i - reach + edge) / a.scale - edge - 1, 0.0);
            last = i == a.in - 1 || a.scale == 0
                       ? a.out - 1
                       : (int)min((i + reach + edge) / a.scale - edge + 1, (double)a.out);
            if (a.map == TS_AXIS_CUBIC && i == 0)
                first = 0;
            break;
        case TS_AXIS_REPLICATE:
            first = i == 0 ? 0 : first;
            last = i == a.in - 1 ? a.out - 1 : last;
            break;
        case TS_AXIS_REFLECT:
        case TS_AXIS_CIRCULAR: count = 3; return; /* see at() */
        }
        last = min(last, a.out - 1);
        first = max(first, 0);
        count = max(last - first + 1, 0);
    }
    /** Index of candidate k in the result; -1 if it does not exist. */
    __device__ __forceinline__ int at(const axis &a, int i, int k) const
    {
        int o = first + k;
        if (a.map == TS_AXIS_CIRCULAR)
            o = first + (k - 1) * a.in;
        if (a.map == TS_AXIS_REFLECT) {
            o = k == 0 ? first : k == 1 ? a.padding - i : 2 * (a.in - 1) - i + a.padding;
            if ((k == 1 && i == 0) || (k == 2 && i == a.in - 1)) /* equals candidate 0 */
                return -1;
        }
        return o >= 0 && o < a.out ? o : -1;
    }
    /** Weight with which element o of the forward op's result reads element i of the input; 0 if it
     *  does not read i. With the nearest map, o must be a candidate. */
    static __device__ __forceinline__ double weight(const axis &a, int i, int o)
    {
        if (a.map == TS_AXIS_NEAREST)
            return 1; /* every candidate reads element i */
        taps t(a, o);
        double w = 0;
        if (a.map != TS_AXIS_LINEAR && a.map != TS_AXIS_CUBIC)
            return i >= t.first && i < t.first + t.count ? t.t : 0;
        for (int k = 0; k < t.count; k++)
            w += t.index(a, k) == i ? t.weight(a, k) : 0;
        return w;
    }
};

} // namespace ts

#endif
