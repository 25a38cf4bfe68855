/**
 * @file lines.cuh  Kernels over lines of any length and stride that do not fit rows.cuh; they read
 * a line several times. A line is the `count` elements along one dim of a tensor (outer, count,
 * inner): element i of line (o, j) is at (o * count + i) * inner + j. A block processes X adjacent
 * lines with Y threads each, so that accesses are coalesced.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_LINES_CUH
#define TS_CUDA_LINES_CUH

#include "backends/cuda/launch_rows.cuh"

namespace ts {

struct lines {
    int64_t outer, count, inner;
};

/** The line of a thread in a block of X x Y threads. */
template <int X, int Y> struct line_place {
    int64_t first;  /* offset of element 0 */
    int64_t number; /* index of the line: o * inner + j */
    int64_t step;   /* stride between elements; 1 if X is 1, which requires inner = 1 */
    bool some;      /* the line exists */

    __device__ __forceinline__ line_place(const lines &l) : step(X == 1 ? 1 : l.inner)
    {
        int64_t tiles = (l.inner + X - 1) / X;
        int64_t o = blockIdx.x / tiles, j = blockIdx.x % tiles * X + threadIdx.x;
        some = j < l.inner;
        first = o * l.count * l.inner + j;
        number = o * l.inner + j;
    }
};

/** Reduces over the Y threads of each line and returns the result to all of them. Every thread of
 * the block must call. */
template <int X, int Y, class OP, class A> __device__ __forceinline__ A line_reduce(A x)
{
    __shared__ A part[Y][X];
    __syncthreads();
    part[threadIdx.y][threadIdx.x] = x;
    __syncthreads();
#pragma unroll
    for (int half = Y / 2; half; half /= 2) {
        if (threadIdx.y < half)
            part[threadIdx.y][threadIdx.x] =
                OP::of(part[threadIdx.y][threadIdx.x], part[threadIdx.y + half][threadIdx.x]);
        __syncthreads();
    }
    return part[0][threadIdx.x];
}

/** Calls f.operator()<X, Y>(grid, block), which launches the kernel: X is 32 if lines are adjacent,
 * else 1. */
template <class F> void lines_dispatch(const lines &l, F &&f)
{
    if (l.inner == 1)
        f.template operator()<1, 256>(dim3(grid_blocks(l.outer)), dim3(1, 256));
    else
        f.template operator()<32, 16>(dim3(grid_blocks(l.outer * ((l.inner + 31) / 32))),
                                      dim3(32, 16));
}

} // namespace ts

#endif
