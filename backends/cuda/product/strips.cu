/**
 * @file strips.cu
 * Copies matrices of halves between rows of any alignment, for padding.c.
 *
 * A row of the destination is divided at multiples of 16 bytes into chunks of eight elements. A
 * thread loads the two aligned vectors that contain a chunk's source and combines them by a shift.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/frame.cuh"
#include "backends/cuda/runtime/launch.h"
#include "backends/cuda/product/strips.h"

namespace ts {

enum { STRIP_THREADS = 256, STRIP_DEPTH = 4 /* chunks in flight per thread */ };

struct strip_set {
    ts_cuda_strip strip[TS_CUDA_STRIPS];
    int lanes[TS_CUDA_STRIPS];        /* threads per row segment, a power of two up to 32 */
    int64_t segments[TS_CUDA_STRIPS]; /* segments per row */
    int64_t end[TS_CUDA_STRIPS];      /* first warp after the warps of the strip */
};

/** Bytes [shift, shift + 16) of two adjacent vectors; `shift` is even and below 16. */
static __device__ __forceinline__ uint4 shifted(uint4 low, uint4 high, unsigned shift)
{
    uint32_t w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    if (shift & 8)
#pragma unroll
        for (int i = 0; i < 6; i++)
            w[i] = w[i + 2];
    if (shift & 4)
#pragma unroll
        for (int i = 0; i < 5; i++)
            w[i] = w[i + 1];
    unsigned bits = shift % 4 * 8;
    return {__funnelshift_r(w[0], w[1], bits), __funnelshift_r(w[1], w[2], bits),
            __funnelshift_r(w[2], w[3], bits), __funnelshift_r(w[3], w[4], bits)};
}

/** Loads elements [at, at + 8) of a row; elements outside [0, columns) are 0. */
static __device__ __forceinline__ uint4 read_chunk(const uint16_t *row, int64_t columns, int64_t at)
{
    const uint16_t *from = row + at;
    unsigned shift = (unsigned)((uintptr_t)from % 16);
    const uint4 *aligned = (const uint4 *)((uintptr_t)from - shift);
    int64_t first = at - shift / 2, end = first + (shift ? 16 : 8);
    if (first >= 0 && end <= columns) {
        uint4 low = aligned[0];
        return shift ? shifted(low, aligned[1], shift) : low;
    }
    uint32_t w[4] = {};
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (at + i >= 0 && at + i < columns)
            w[i / 2] |= (uint32_t)from[i] << (i % 2 * 16);
    return {w[0], w[1], w[2], w[3]};
}

/** Stores x to elements [at, at + 8) of a row; skips elements outside [0, columns). */
static __device__ __forceinline__ void write_chunk(uint16_t *row, int64_t columns, int64_t at,
                                                   uint4 x)
{
    if (at >= 0 && at + 8 <= columns) {
        *(uint4 *)(row + at) = x;
        return;
    }
    uint32_t w[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (at + i >= 0 && at + i < columns)
            row[at + i] = (uint16_t)(w[i / 2] >> (i % 2 * 16));
}

static __global__ void __launch_bounds__(STRIP_THREADS)
    strips_kernel(const __grid_constant__ strip_set set)
{
    int64_t warp = (int64_t)blockIdx.x * (STRIP_THREADS / 32) + threadIdx.x / 32;
    int which = 0;
    while (which < TS_CUDA_STRIPS && warp >= set.end[which])
        which++;
    if (which == TS_CUDA_STRIPS)
        return;
    if (which)
        warp -= set.end[which - 1];
    const ts_cuda_strip &s = set.strip[which];
    int lanes = set.lanes[which], lane = threadIdx.x % 32 % lanes;
    int64_t piece = warp * (32 / lanes) + threadIdx.x % 32 / lanes,
            line = piece / set.segments[which], segment = piece % set.segments[which];
    int64_t batch = line / s.to_rows, row = line % s.to_rows;
    if (batch >= s.batches)
        return;
    uint16_t *to = (uint16_t *)s.to + batch * s.to_batch + row * s.to_row;
    const uint16_t *from = (const uint16_t *)s.from + batch * s.from_batch + row * s.from_row;
    int64_t columns = row < s.rows ? s.columns : 0;
    /* chunks begin at multiples of 16 bytes of the destination */
    int64_t at = (segment * STRIP_DEPTH * lanes + lane) * 8 - (int64_t)((uintptr_t)to % 16 / 2);
    uint4 x[STRIP_DEPTH];
#pragma unroll
    for (int i = 0; i < STRIP_DEPTH; i++)
        x[i] = read_chunk(from, columns, at + i * 8 * lanes);
#pragma unroll
    for (int i = 0; i < STRIP_DEPTH; i++)
        if (at + i * 8 * lanes < s.to_columns)
            write_chunk(to, s.to_columns, at + i * 8 * lanes, x[i]);
}

} // namespace ts

ts_status ts_cuda_copy_strips(ts_frame *f, const ts_cuda_strip *strips, int count)
{
    using namespace ts;
    strip_set set = {};
    int64_t warps = 0;
    for (int i = 0; i < TS_CUDA_STRIPS; i++) {
        if (i < count) {
            const ts_cuda_strip &s = set.strip[i] = strips[i];
            bool even = ((uintptr_t)s.to % 16 | s.to_row % 8 | s.to_batch % 8) == 0;
            /* rows that begin between multiples of 16 bytes may touch one chunk more */
            int64_t chunks = (s.to_columns + 7) / 8 + !even, lanes = 1;
            while (lanes < 32 && lanes * STRIP_DEPTH < chunks)
                lanes *= 2;
            set.lanes[i] = (int)lanes;
            set.segments[i] = (chunks + lanes * STRIP_DEPTH - 1) / (lanes * STRIP_DEPTH);
            int64_t pieces = s.batches * s.to_rows * set.segments[i];
            warps += (pieces + 32 / lanes - 1) / (32 / lanes);
        }
        set.end[i] = warps;
    }
    int64_t blocks = (warps + STRIP_THREADS / 32 - 1) / (STRIP_THREADS / 32);
    if (!blocks)
        return TS_OK;
    if (blocks > INT32_MAX)
        return ts_error_set(TS_ERR_UNSUPPORTED,
                            "%s: expected a copy of at most %d blocks, got %lld",
                            ts_op_name(f->op), INT32_MAX, (long long)blocks);
    return on_device(f, [&](const call &c) {
        return launch(strips_kernel, {dim3((unsigned)blocks), dim3(STRIP_THREADS), 0, 1}, c.stream,
                      set);
    });
}
