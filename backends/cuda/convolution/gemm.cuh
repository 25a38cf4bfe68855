/**
 * @file gemm.cuh
 * Code that both engines for implicit products of convolutions share: the description of a call,
 * and stores of results. mma.cuh serves sm_80 and later and all windows; wgmma.cuh and taps.cuh
 * serve Hopper, 32 channels per group or more, and windows that the copy engine (TMA) can
 * describe.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_CONVOLUTION_GEMM_CUH
#define TS_CUDA_CONVOLUTION_GEMM_CUH

#include "backends/cuda/apply.cuh"
#include "backends/cuda/convolution/gemm.h"
#include "backends/cuda/instructions/mma.cuh"

namespace ts {

/** A spatial dim. size and full are the sizes of the image that is read and of the image that is
 * written; by_count and by_taps divide by count and taps; the other fields are those of
 * ts_window_axis. */
struct conv_axis {
    int count, taps, move, base, shift, size, start, step, full;
    divisor by_count, by_taps;
};
/** The calls after a convolution, with the fields of ts_cuda_conv_after. */
struct conv_after {
    const float *mean, *scale, *add; /* per channel; null: none */
    const void *added;
    float least[2]; /* 0 for relu, else -infinity: before and after the addition */
    bool some;      /* there is an epilogue */

    __host__ static conv_after of(const ts_cuda_conv_after *a, int64_t channels)
    {
        const float *f = a ? a->factors : nullptr;
        return {f,
                f ? f + channels : nullptr,
                f ? f + 2 * channels : nullptr,
                a ? a->added : nullptr,
                {a && a->relu_first ? 0 : -INFINITY, a && a->relu_last ? 0 : -INFINITY},
                a != nullptr};
    }
    /** Replaces elements x of channels first to first + V - 1 by the result; the first `count` of
     * these channels exist. from: their elements of `added`. NaN stays NaN. */
    template <class T, int V>
    __device__ __forceinline__ void apply(float (&x)[V], int64_t first, int count,
                                          const float (&from)[V]) const
    {
#pragma unroll
        for (int v = 0; v < V; v++) {
            if (mean && v < count)
                x[v] = fmaf(x[v] - mean[first + v], scale[first + v], add[first + v]);
            x[v] = x[v] < least[0] ? least[0] : x[v];
            if (added)
                x[v] = widen(narrow<T>(x[v])) + from[v];
            x[v] = x[v] < least[1] ? least[1] : x[v];
        }
    }
};
/** A call of ts_cuda_multiply_windows() or ts_cuda_multiply_by_windows(). */
struct conv_call {
    conv_axis axis[3];
    const void *image, *other, *bias;
    void *to;
    conv_after after;
    int windows, taps, groups, rows; /* numbers of windows, of taps per window, of groups of
                                        channels, and of output channels per group */
    int channels, each, chunks; /* channels of a pixel; channels per group; each / 8, the number of
                                   16-byte chunks */
    divisor by_chunks;
    int processors; /* multiprocessors of the device */
    bool vectors;   /* `to` and after.added allow accesses of 16 bytes */
    float *partial; /* scratch for partial gradients of the weight; NULL if not needed */
};

/** Index in the batch (n) of a window, and its position along each spatial dim (i). */
struct conv_place {
    int n, i[3];
};
/** The place of window number `window`. */
__device__ __forceinline__ conv_place place_of(const conv_call &c, int window)
{
    conv_place p;
#pragma unroll
    for (int d = 2; d >= 0; d--) {
        int next = (int)c.axis[d].by_count.of((uint32_t)window);
        p.i[d] = window - next * c.axis[d].count;
        window = next;
    }
    p.n = window;
    return p;
}

/** Chunk q of a window: 8 channels of one group, from `channel` on, of the pixel at distance d from
 * the window's base. */
struct conv_tap {
    int d[3], channel;
    bool some; /* the window has this chunk */

    __device__ __forceinline__ conv_tap(const conv_call &c, int q)
    {
        int tap = (int)c.by_chunks.of((uint32_t)q);
        channel = (q - tap * c.chunks) * 8;
        some = tap < c.taps;
        int plane = (int)c.axis[2].by_taps.of((uint32_t)tap),
            first = (int)c.axis[1].by_taps.of((uint32_t)plane);
        d[0] = first * c.axis[0].shift;
        d[1] = (plane - first * c.axis[1].taps) * c.axis[1].shift;
        d[2] = (tap - plane * c.axis[2].taps) * c.axis[2].shift;
    }
};

/** Offset in elements of a pixel's first channel. The pixel may be outside the image. */
__device__ __forceinline__ int64_t pixel_offset(const conv_call &c, int n, int i0, int i1, int i2)
{
    return ((((int64_t)n * c.axis[0].size + i0) * c.axis[1].size + i1) * c.axis[2].size + i2) *
           c.channels;
}
__device__ __forceinline__ bool is_inside(const conv_call &c, int i0, int i1, int i2)
{
    return (unsigned)i0 < (unsigned)c.axis[0].size && (unsigned)i1 < (unsigned)c.axis[1].size &&
           (unsigned)i2 < (unsigned)c.axis[2].size;
}

/** Adds the bias to N tiles of 8 columns in the layout of mma(), from channel `feature` of a group
 * on. */
template <class T, int N>
__device__ __forceinline__ void conv_add_bias(const conv_call &c, float (&x)[N][4], int feature,
                                              int group)
{
    if (!c.bias)
        return;
    const T *bias = (const T *)c.bias + (int64_t)group * c.rows;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int f = feature + n * 8 + (int)threadIdx.x % 4 * 2 + e;
            float b = f < c.rows ? widen(bias[f]) : 0;
            x[n][e] += b;
            x[n][2 + e] += b;
        }
}

/** Offset in `to` of a window's position and a group's first channel; -1 beyond the last window. */
__device__ __forceinline__ int64_t conv_offset(const conv_call &c, int window, int group)
{
    if (window >= c.windows)
        return -1;
    conv_place p = place_of(c, window);
    int64_t offset = p.n;
#pragma unroll
    for (int d = 0; d < 3; d++) {
        const conv_axis &a = c.axis[d];
        offset = offset * a.full + a.start + p.i[d] * a.step;
    }
    return offset * c.groups * c.rows + (int64_t)group * c.rows;
}
/** Applies the epilogue to the 8 packed elements v, at offset `at` of c.to, from channel `feature`
 * of a group on. WHOLE: c.vectors is true. */
template <class T, bool WHOLE>
__device__ __forceinline__ uint4 conv_finish(const conv_call &c, uint4 v, int64_t at, int feature,
                                             int group)
{
    uint32_t words[4] = {v.x, v.y, v.z, v.w}, more[4] = {};
    const T *added = (const T *)c.after.added + at;
    if (c.after.added && (WHOLE || c.vectors)) {
        uint4 word = __ldg((const uint4 *)added);
        more[0] = word.x, more[1] = word.y, more[2] = word.z, more[3] = word.w;
    } else if (c.after.added) {
#pragma unroll
        for (int e = 0; e < 8; e++)
            if (feature + e < c.rows)
                more[e / 2] |= (uint32_t)((const uint16_t *)added)[e] << e % 2 * 16;
    }
#pragma unroll
    for (int p = 0; p < 4; p++) {
        float x[2], from[2];
        unpack<T, 2>(from_word<vec<T, 2>>(words[p]), x);
        unpack<T, 2>(from_word<vec<T, 2>>(more[p]), from);
        c.after.apply<T>(x, (int64_t)group * c.rows + feature + 2 * p,
                         WHOLE ? 2 : c.rows - feature - 2 * p, from);
        words[p] = to_word(pack<T, 2>(x));
        asm volatile("" ::: "memory"); /* loads the factors of two channels at a time */
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

/** A warp writes ROWS rows of a slab (128 bytes per row, with the swizzle of mma_tile) to c.to: the
 * results of ROWS windows for COLUMNS channels of a group from `feature` on. With EPILOGUE, applies
 * c.after; WHOLE: c.vectors is then true. offset: conv_offset() of the window in row lane %
 * ROWS. */
template <class T, int ROWS, int COLUMNS, bool EPILOGUE, bool WHOLE>
__device__ __forceinline__ void conv_store_rows(const conv_call &c, uint32_t slab, int64_t offset,
                                                int feature, int group)
{
    constexpr int CHUNKS = COLUMNS / 8;
    int lane = threadIdx.x % 32;
    /* with an epilogue, indices are computed here and row by row, not before the products, which
     * need the registers */
    if constexpr (EPILOGUE)
        asm volatile("" : "+r"(lane), "+r"(feature), "+r"(group), "+r"(slab), "+l"(offset));
#pragma unroll(EPILOGUE ? 1 : ROWS * CHUNKS / 32)
    for (int k = 0; k < ROWS * CHUNKS / 32; k++) {
        int index = k * 32 + lane, r = index / CHUNKS, chunk = index % CHUNKS,
            f = feature + chunk * 8;
        int64_t at = __shfl_sync(0xffffffffu, offset, r);
        if (at < 0 || f >= c.rows)
            continue;
        uint4 v;
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "r"(slab + r * 128 + ((chunk ^ r % 8) << 4))
                     : "memory");
        T *to = (T *)c.to + at + f;
        if constexpr (EPILOGUE)
            v = conv_finish<T, WHOLE>(c, v, at + f, f, group);
        if ((EPILOGUE && WHOLE) || c.vectors) {
            *(uint4 *)to = v;
        } else {
            const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int e = 0; e < 8; e++)
                if (f + e < c.rows)
                    ((uint16_t *)to)[e] = (uint16_t)(words[e / 2] >> e % 2 * 16);
        }
    }
}

/** Rounds a lane's sums x in N tiles of 8 columns, in the layout of mma(), and writes them to the
 * gradient of the weight: rows `row` and row + 8 of a group, from column `column` on. At most
 * `columns` columns are written. */
template <class T, int N>
__device__ __forceinline__ void conv_store_weight(const conv_call &c, const float (&x)[N][4],
                                                  int group, int row, int column, int columns)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int r = row + 8 * half;
        T *to = (T *)c.to + ((int64_t)group * c.rows + r) * (c.taps * c.each) + column;
#pragma unroll
        for (int n = 0; n < N; n++) {
            int e = n * 8 + (int)threadIdx.x % 4 * 2;
            if (r < c.rows && e < columns)
                *(uint32_t *)(to + e) = pack2<T>(x[n][2 * half], x[n][2 * half + 1]);
        }
    }
}

/* Launches of the two engines: conv_mma() and conv_wgmma() for ts_cuda_multiply_windows(),
 * conv_*_by() for ts_cuda_multiply_by_windows(). They return cudaErrorNotSupported, without a
 * launch, for calls that the engine does not support. conv_*_bytes() returns the bytes of c.partial
 * that conv_*_by() requires. */
template <class T> cudaError_t conv_mma(const conv_call &c, cudaStream_t stream);
template <class T> cudaError_t conv_mma_by(const conv_call &c, cudaStream_t stream);
template <class T> cudaError_t conv_wgmma(const conv_call &c, cudaStream_t stream);
template <class T> cudaError_t conv_wgmma_by(const conv_call &c, cudaStream_t stream);
int64_t conv_mma_bytes(const conv_call &c);
int64_t conv_wgmma_bytes(const conv_call &c);

} // namespace ts

#endif
