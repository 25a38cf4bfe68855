/**
 * @file lines.cuh  Building blocks of kernels over lines of any length and stride, for the lines
 * that rows.cuh does not support, such as softmax over a dim that is not the last. The kernels read
 * a line several times.
 *
 * A line is the `count` elements along one dim of a contiguous tensor (outer, count, inner):
 * element i of line (o, j) is at (o * count + i) * inner + j. A block processes X adjacent lines (a
 * tile) with Y threads each, so that accesses are coalesced. If there are few tiles and the lines
 * are long, several blocks share a tile: a cooperative launch runs all blocks at the same time, and
 * they exchange partial results through device memory.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_LINES_CUH
#define TS_CUDA_LINES_CUH

#include "backends/cuda/frame.cuh"
#include "backends/cuda/launch_rows.cuh"

namespace ts {

/** The lines of a contiguous tensor (outer, count, inner). */
struct lines {
    int64_t outer, count, inner;

    /* for tiles that several blocks share; lines_launch() sets them */
    int shares = 1;              /* blocks per tile */
    double *numbers = nullptr;   /* partial results (reductions, tiles, shares, X) */
    unsigned *arrived = nullptr; /* (tiles), initially 0: number of partial results stored */

    /** Lines of a tile (X): 1 if elements of a line are adjacent. */
    int width() const { return inner == 1 ? 1 : inner < 16 ? 8 : 32; }
    /** Number of tiles. If no tile is shared, it is also the number of blocks. */
    int64_t tiles() const { return outer * ((inner + width() - 1) / width()); }
};

enum {
    LINES_SHARED = 2048, /* maximum blocks of a grid whose blocks share tiles */
    LINES_REDUCTIONS = 3 /* maximum calls of lines_reduce() in a kernel */
};

/** Scratch memory for shared tiles, which the destructor gives back. `data` is NULL unless the
 * lines are few and long: at most LINES_SHARED / 2 tiles of lines with more than 4,096 elements.
 * Call failed() before use. */
struct lines_scratch {
    static constexpr int64_t numbers = (int64_t)LINES_REDUCTIONS * LINES_SHARED * 32 * 8,
                             bytes = numbers + LINES_SHARED * 4; /* numbers, then counters */
    ts_device where;
    bool few;
    char *data;

    lines_scratch(const ts_frame *f, const lines &l)
        : where(ts_kernel_device(f)),
          few(l.count > 4096 && l.tiles() > 0 && l.tiles() <= LINES_SHARED / 2),
          data(few ? (char *)ts_scratch_take(where, bytes) : nullptr)
    {
    }
    lines_scratch(const lines_scratch &) = delete;
    ~lines_scratch()
    {
        if (data)
            ts_scratch_give(where, data, bytes);
    }
    /** True if the allocation failed; the error is recorded. */
    bool failed() const { return few && !data; }
};

/** The line of a thread in a block of X x Y threads. */
template <int X, int Y> struct line_position {
    int64_t first;  /* offset of element 0 */
    int64_t number; /* index of the line: o * inner + j */
    int64_t step;   /* stride between elements; 1 if X is 1, which requires inner = 1 */
    bool some;      /* the line exists */

    __device__ __forceinline__ line_position(const lines &l) : step(X == 1 ? 1 : l.inner)
    {
        int64_t tiles = (l.inner + X - 1) / X;
        int64_t o = blockIdx.x / tiles, j = blockIdx.x % tiles * X + threadIdx.x;
        some = j < l.inner;
        first = o * l.count * l.inner + j;
        number = o * l.inner + j;
    }
};

/** Reduces x by OP::of() over the Y threads of each line and returns the result to all of them.
 * Every thread of the block must call. */
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

/** Like line_reduce(), over all threads of a line in all blocks that share it. All threads of these
 * blocks must call. turn: index of the reduction in the kernel, 0, 1, ... below LINES_REDUCTIONS.
 * The order of the sum depends only on the shape and the number of shares. */
template <int X, int Y, class OP, class A>
__device__ __forceinline__ A lines_reduce(const lines &l, int turn, A x)
{
    x = line_reduce<X, Y, OP>(x);
    if (l.shares == 1)
        return x;
    double *numbers = l.numbers + ((int64_t)turn * gridDim.x + blockIdx.x) * l.shares * X;
    if (threadIdx.y == 0)
        __stcg(numbers + blockIdx.y * X + threadIdx.x, (double)x);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0 && threadIdx.y == 0) {
        unsigned *arrived = l.arrived + blockIdx.x, now;
        atomicAdd(arrived, 1);
        do
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(arrived));
        while (now < (unsigned)((turn + 1) * l.shares));
    }
    __syncthreads();
    x = OP::template none<A>();
    for (int s = threadIdx.y; s < l.shares; s += Y)
        x = OP::of(x, (A)__ldcg(numbers + s * X + threadIdx.x));
    return line_reduce<X, Y, OP>(x);
}

/** Launches kernel(l, args...). With scratch memory, as many blocks share a tile as can be resident
 * at once and have enough elements; else a tile has one block. block: l.width() x Y threads, as of
 * lines_dispatch(). */
template <class... P, class... A>
cudaError_t lines_launch(void (*kernel)(lines, P...), lines l, dim3 block,
                         const lines_scratch &scratch, cudaStream_t stream, const A &...args)
{
    int64_t tiles = l.tiles(), shares = 1;
    ts_cuda_grid grid = {dim3(grid_blocks(tiles)), block, 0, 1};
    if (scratch.data) {
        int64_t resident = ts_cuda_clusters((const void *)kernel, &grid),
                most = l.count / (4 * block.y);
        shares = (resident < LINES_SHARED ? resident : LINES_SHARED) / tiles;
        shares = shares < most ? shares : most;
    }
    if (shares <= 1)
        return launch(kernel, grid, stream, l, args...);
    l.shares = (int)shares;
    l.numbers = (double *)scratch.data;
    l.arrived = (unsigned *)(scratch.data + lines_scratch::numbers);
    cudaError_t e = cudaMemsetAsync(l.arrived, 0, tiles * sizeof(unsigned), stream);
    grid.blocks.y = l.shares;
    void *addresses[] = {&l, (void *)&args...};
    return e == cudaSuccess
               ? ts_cuda_launch_together((const void *)kernel, &grid, addresses, stream)
               : e;
}

/** Calls f.operator()<X, Y>(block), which launches the kernel: X is l.width(). */
template <class F> cudaError_t lines_dispatch(const lines &l, F &&f)
{
    switch (l.width()) {
    case 1: return f.template operator()<1, 256>(dim3(1, 256));
    case 8: return f.template operator()<8, 64>(dim3(8, 64));
    default: return f.template operator()<32, 16>(dim3(32, 16));
    }
}

} // namespace ts

#endif
