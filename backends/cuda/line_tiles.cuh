/**
 * @file line_tiles.cuh  Short lines, many to a block, in shared memory.
 *
 * Element i of line (o, j) is at (o * count + i) * inner + j. A tile is some whole `outer`, which
 * lie in memory without gaps, or where `inner` is large `width` neighbouring lines of one. Threads
 * load a tile together, in 16 bytes where it begins there, and then `lanes` of them work on a line.
 * Everything follows from the shape alone.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_LINE_TILES_CUH
#define TS_CUDA_LINE_TILES_CUH

#include "backends/cuda/lines.cuh"
#include "backends/cuda/loops.cuh"

namespace ts {

enum { TILE_THREADS = 256, TILE_BYTES = 16384, LONGEST_IN_TILE = 512 };

struct line_tiles {
    lines l;
    int outers;       /* of a tile; 0: a tile has `width` lines of one */
    int width, lanes; /* adjacent lines; threads per line */
    bool vector;      /* tiles are whole vectors */
    divisor by_width;

    int64_t tiles() const
    {
        return outers ? (l.outer + outers - 1) / outers
                      : l.outer * ((l.inner + width - 1) / width);
    }
};

/** Tiles of lines of elements of T, which most_lanes threads share at most; false where a line is
 * too long for them. */
template <class T> bool line_tiles_of(const lines &l, line_tiles &t, int most_lanes = 32)
{
    constexpr int64_t most = TILE_BYTES / sizeof(T), V = vec16<T>;
    int64_t block = l.count * l.inner, lines;
    t.l = l;
    t.outers = 0;
    if (l.count > LONGEST_IN_TILE)
        return false;
    if (block <= most) {
        int64_t outers = most / block;
        outers = outers < l.outer ? outers : l.outer;
        t.outers = (int)(outers > V ? outers / V * V : outers);
        t.width = (int)l.inner;
        lines = t.outers * l.inner;
    } else {
        if (l.inner < 32 || l.count > most / 32)
            return false;
        t.width = TILE_THREADS;
        while (t.width * l.count > most)
            t.width /= 2;
        lines = t.width;
    }
    t.vector = t.outers && t.outers * block % V == 0;
    t.by_width = divisor((uint32_t)t.width);
    t.lanes = 1;
    while (t.lanes < most_lanes && t.lanes < l.count &&
           (lines * t.lanes < TILE_THREADS || l.count / t.lanes > 32))
        t.lanes *= 2;
    return true;
}

/** A line in shared memory, on which some threads work. */
template <class T, int INPUTS> struct tile_line {
    T *at[INPUTS];
    int step, first, count, lanes;

    template <class F> __device__ __forceinline__ void each(F &&f) const
    {
        for (int i = first; i < count; i += lanes)
            f(i * step);
    }
    __device__ __forceinline__ wide_t<T> get(int input, int i) const { return widen(at[input][i]); }
    __device__ __forceinline__ void put(int i, wide_t<T> x) const { at[0][i] = narrow<T>(x); }
    template <class OP, class A> __device__ __forceinline__ A reduce(A x) const
    {
        for (int by = lanes / 2; by; by /= 2)
            x = OP::of(x, __shfl_xor_sync(0xffffffffu, x, by));
        return x;
    }
};

/** Calls f(line) for each line of the inputs; the line that f leaves is written to y. */
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
    int64_t start, leap = t.l.inner; /* between elements of a line */
    if (t.outers) {
        int64_t o = (int64_t)blockIdx.x * t.outers;
        int outers = (int)(t.l.outer - o < t.outers ? t.l.outer - o : t.outers);
        start = o * count * leap;
        n = outers * width;
        size = t.outers * width * count;
    } else {
        int64_t parts = (leap + width - 1) / width, o = blockIdx.x / parts,
                j = (blockIdx.x - o * parts) * width;
        start = o * count * leap + j;
        n = (int)(leap - j < width ? leap - j : width);
        size = width * count;
    }
    auto each_element = [&](auto &&move) { /* of tile and tensor */
        if (t.outers)
            for (int i = threadIdx.x; i < n * count; i += TILE_THREADS)
                move(i, start + i);
        else if (int c = threadIdx.x & (width - 1); c < n)
#pragma unroll 4
            for (int i = threadIdx.x / (unsigned)width; i < count; i += TILE_THREADS / width)
                move(i * width + c, start + i * leap + c);
    };
    bool whole = t.vector && n * count == size;
    auto vector = [](const void *p) { return ((uintptr_t)p & 15) == 0; };
#pragma unroll
    for (int k = 0; k < INPUTS; k++) {
        const T *x = a.x[k];
        T *to = tile + k * size;
        if (whole && vector(x))
#pragma unroll 4
            for (int i = threadIdx.x; i < size / V; i += TILE_THREADS)
                reinterpret_cast<uint4 *>(to)[i] = reinterpret_cast<const uint4 *>(x + start)[i];
        else
            each_element([&](int i, int64_t from) { to[i] = x[from]; });
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
        a.f(l);
    }
    __syncthreads();
    T *y = a.y;
    if (whole && vector(y))
#pragma unroll 4
        for (int i = threadIdx.x; i < size / V; i += TILE_THREADS)
            reinterpret_cast<uint4 *>(y + start)[i] = reinterpret_cast<const uint4 *>(tile)[i];
    else
        each_element([&](int i, int64_t to) { y[to] = tile[i]; });
}

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
