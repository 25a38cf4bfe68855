/**
 * @file line_tiles.cuh  Kernels over short lines, for softmax.cu, norm.cu and scan.cu: a block
 * loads many lines into shared memory.
 *
 * A line is the `count` elements along one dim of a contiguous tensor (outer, count, inner):
 * element i of line (o, j) is at (o * count + i) * inner + j. A tile consists of all lines of
 * several consecutive indices o, which are contiguous in memory. If the count * inner elements of
 * one o are too many for a tile, a tile consists of `width` adjacent lines of one o instead. The
 * block's threads load a tile together, in 16-byte accesses if sizes and addresses allow; then
 * `lanes` threads process each line. The division depends only on shape and dtype. line_tiles_of()
 * divides, tiles_launch() launches.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_LINE_TILES_CUH
#define TS_CUDA_LINE_TILES_CUH

#include "backends/cuda/lines.cuh"
#include "backends/cuda/loops.cuh"

namespace ts {

enum {
    TILE_THREADS = 256,
    TILE_BYTES = 16384,    /* maximum bytes of a tile of one input */
    LONGEST_IN_TILE = 512, /* maximum elements of a line */
    TILES = 512 /* tiles that occupy a device; if there would be fewer, a tile gets fewer lines */
};

/** Division of lines into tiles; made by line_tiles_of(). */
struct line_tiles {
    lines l;
    int outers;       /* indices o per tile; 0: a tile has `width` lines of one o */
    int width, lanes; /* lines per index o in a tile; threads per line */
    int shift;        /* if outers is 0: log2 of width */
    bool vector;      /* the contiguous ranges of a tile consist of whole 16-byte vectors */
    divisor by_width;

    int64_t tiles() const
    {
        return outers ? (l.outer + outers - 1) / outers
                      : l.outer * ((l.inner + width - 1) / width);
    }
};

/** Divides lines of elements of T, of which there is at least one and none is empty, into tiles,
 * with at most `most_lanes` threads per line. Returns false if the lines are too long for tiles or
 * too few of them are adjacent. */
template <class T> bool line_tiles_of(const lines &l, line_tiles &t, int most_lanes = 32)
{
    constexpr int64_t most = TILE_BYTES / sizeof(T), V = vec16<T>;
    int64_t block = l.count * l.inner, lines;
    t.l = l;
    t.outers = 0;
    if (l.count > LONGEST_IN_TILE)
        return false;
    if (block <= most) {
        int64_t outers = most / block, few = (l.outer + TILES - 1) / TILES;
        outers = outers < few ? outers : few;
        t.outers = (int)(outers >= V ? outers / V * V : outers);
        if (few < V && V * block <= most && (few * block) % V)
            t.outers = (int)V; /* so that tiles begin at vectors */
        t.width = (int)l.inner;
        lines = t.outers * l.inner;
    } else {
        if (l.inner < 32 || l.count > most / 32)
            return false;
        t.shift = 5;
        while ((l.count << (t.shift + 1)) <= most && (int64_t)1 << t.shift < l.inner &&
               (l.outer * l.inner >> t.shift) > TILES)
            t.shift++;
        lines = t.width = 1 << t.shift;
    }
    t.vector = (t.outers ? t.outers * block : l.inner) % V == 0;
    t.by_width = divisor((uint32_t)t.width);
    t.lanes = 1;
    while (t.lanes < most_lanes && t.lanes < l.count &&
           (lines * t.lanes < TILE_THREADS || l.count / t.lanes > 32))
        t.lanes *= 2;
    return true;
}

/** One thread's view of a line of each input in shared memory. `lanes` threads share the line: this
 * one processes elements first, first + lanes, ... `step` is the distance between elements. count
 * is 0 if there is no line for these threads. */
template <class T, int INPUTS> struct tile_line {
    T *at[INPUTS];
    int step, first, count, lanes;
    int64_t number; /* index of the line in the tensor: o * inner + j */

    /** Calls f(i) with the offset i of each of this thread's elements, for get() and put(). */
    template <class F> __device__ __forceinline__ void each(F &&f) const
    {
        for (int i = first; i < count; i += lanes)
            f(i * step);
    }
    __device__ __forceinline__ wide_t<T> get(int input, int i) const { return widen(at[input][i]); }
    __device__ __forceinline__ void put(int i, wide_t<T> x) const { at[0][i] = narrow<T>(x); }
    /** Reduces x over the threads of the line. Every lane of the warp must call. */
    template <class OP, class A> __device__ __forceinline__ A reduce(A x) const
    {
        for (int by = lanes / 2; by; by /= 2)
            x = OP::of(x, __shfl_xor_sync(0xffffffffu, x, by));
        return x;
    }
};

/** Parameters of tiles_kernel(), which calls f(line), with a tile_line, in each of a line's
 * threads. f overwrites the line of input 0, which is then written to y. */
template <class T, int INPUTS, class F> struct tiles_task {
    line_tiles t;
    F f;
    const T *x[INPUTS];
    T *y;
};

template <class T, int INPUTS, class F>
static __global__ void __launch_bounds__(TILE_THREADS)
    tiles_kernel(const __grid_constant__ tiles_task<T, INPUTS, F> a)
{
    constexpr int V = vec16<T>;
    extern __shared__ uint4 tiles_shared[];
    T *tile = reinterpret_cast<T *>(tiles_shared);
    const line_tiles &t = a.t;
    int count = (int)t.l.count, size, n, width = t.width;
    int64_t start, leap = t.l.inner; /* leap: stride of a line's elements in the tensor */
    int64_t first_number;
    if (t.outers) {
        int64_t o = (int64_t)blockIdx.x * t.outers;
        int outers = (int)(t.l.outer - o < t.outers ? t.l.outer - o : t.outers);
        start = o * count * leap;
        first_number = o * leap;
        n = outers * width;
        size = t.outers * width * count;
    } else {
        int64_t parts = (leap + width - 1) / width, o = blockIdx.x / parts,
                j = (blockIdx.x - o * parts) * width;
        start = o * count * leap + j;
        first_number = o * leap + j;
        n = (int)(leap - j < width ? leap - j : width);
        size = width * count;
    }
    /* calls move(offset in the tile, offset in the tensor) for this thread's pieces of `unit`
     * elements */
    auto each_piece = [&](int unit, auto &&move) {
        int step = TILE_THREADS * unit, last = t.outers ? n * count : size;
#pragma unroll 4
        for (int i = threadIdx.x * unit; i < last; i += step) {
            int row = t.outers ? 0 : i >> t.shift, c = t.outers ? i : i & (width - 1);
            if (t.outers || c < n)
                move(i, start + row * leap + c);
        }
    };
    auto vector = [&](const void *p) {
        return t.vector && (!t.outers || n * count % V == 0) && ((uintptr_t)p & 15) == 0;
    };
#pragma unroll
    for (int k = 0; k < INPUTS; k++) {
        const T *x = a.x[k];
        T *to = tile + k * size;
        if (vector(x))
            each_piece(V, [&](int i, int64_t from) {
                *reinterpret_cast<uint4 *>(to + i) = *reinterpret_cast<const uint4 *>(x + from);
            });
        else
            each_piece(1, [&](int i, int64_t from) { to[i] = x[from]; });
    }
    __syncthreads();
    int lanes = t.lanes, each = TILE_THREADS / (unsigned)lanes;
    for (int first = 0; first < n; first += each) {
        int line = first + (int)(threadIdx.x / (unsigned)lanes);
        int o = (int)t.by_width.of((uint32_t)line), at = o * count * width + line - o * width;
        tile_line<T, INPUTS> l;
#pragma unroll
        for (int k = 0; k < INPUTS; k++)
            l.at[k] = tile + k * size + at;
        l.step = width;
        l.first = threadIdx.x & (lanes - 1);
        l.count = line < n ? count : 0;
        l.lanes = lanes;
        l.number = first_number + line;
        a.f(l);
    }
    __syncthreads();
    T *y = a.y;
    if (vector(y))
        each_piece(V, [&](int i, int64_t to) {
            *reinterpret_cast<uint4 *>(y + to) = *reinterpret_cast<const uint4 *>(tile + i);
        });
    else
        each_piece(1, [&](int i, int64_t to) { y[to] = tile[i]; });
}

/** Launches tiles_kernel(): calls f for each line of the inputs x and writes the results to y. */
template <class T, int INPUTS, class F>
cudaError_t tiles_launch(const line_tiles &t, const F &f, const T *const (&x)[INPUTS], T *y,
                         cudaStream_t stream)
{
    tiles_task<T, INPUTS, F> a = {t, f, {}, y};
    for (int k = 0; k < INPUTS; k++)
        a.x[k] = x[k];
    int64_t size = t.l.count * t.width * (t.outers ? t.outers : 1);
    ts_cuda_grid grid = {dim3(grid_blocks(t.tiles())), dim3(TILE_THREADS),
                         (unsigned)((INPUTS * size * sizeof(T) + 15) / 16 * 16), 1};
    return launch(tiles_kernel<T, INPUTS, F>, grid, stream, a);
}

} // namespace ts

#endif
