/**
 * @file few.cuh
 * Convolutions of images with fewer than 8 channels, on the tensor cores of sm_80 and later.
 *
 * A tile is a box of positions. Its block copies the pixels that the tile's windows read, the
 * patch, to shared memory, with zeros outside of the image. Operands of windows are gathered from
 * the patch in pairs of elements, so a window has taps * channels elements, without padding of
 * channels.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_FEW_CUH
#define TS_CUDA_FEW_CUH

#include "backends/cuda/convolution_gemm.cuh"
#include "backends/cuda/early.cuh"

namespace ts {

enum {
    FEW_THREADS = 256,
    FEW_TILE = 256,    /* positions of a tile */
    FEW_AHEAD = 3,     /* words of the next patch that a thread loads before the products */
    FEW_ROWS = 64,     /* rows of the weight per block */
    FEW_DEPTH = 256,   /* maximum elements of a window */
    FEW_SUMS = 2048    /* sums of a warp for the gradient of the weight: 64 rows by 32 elements */
};

/** A spatial dim; low: position, relative to window 0, of the first pixel that a window reads;
 * back: distance of tap 0 from it; tiles: number of tiles; wide: positions of a tile; patch: pixels
 * of a patch. */
struct few_axis {
    int count, taps, move, shift, size, low, back, tiles, wide, patch;
};
struct few_call {
    few_axis axis[2];
    const void *image, *bias, *other;
    void *to, *weight;
    int64_t step[4];
    conv_after after;
    float *partial; /* sums of blocks (blocks, row groups, warps' groups of elements, FEW_SUMS) */
    int batch, rows, channels, depth; /* depth: taps * channels */
    int tiles;  /* of all images */
    int log2;   /* of axis[1].wide */
    int pitch;  /* elements of a line of a patch */
    int skip;   /* 1: a line begins one element before the first pixel, at a multiple of 4 bytes */
    bool words; /* lines of the image and of patches are copied by words of two elements */
    divisor by_line; /* divides by the copies of a line */
    int groups; /* groups of 32 elements of windows; for the gradient of the weight */
};

/** The image and the first position of a tile. */
struct few_place {
    int n, i[2];
    __device__ __forceinline__ few_place(const few_call &c, int tile)
    {
        int rest = tile / c.axis[1].tiles;
        i[1] = (tile - rest * c.axis[1].tiles) * c.axis[1].wide;
        n = rest / c.axis[0].tiles;
        i[0] = (rest - n * c.axis[0].tiles) * c.axis[0].wide;
    }
    /** Index of position p of the tile in (batch, count, count), or -1 if there is none. */
    __device__ __forceinline__ int64_t of(const few_call &c, int p) const
    {
        int y = i[0] + (p >> c.log2), x = i[1] + (p & (c.axis[1].wide - 1));
        return y < c.axis[0].count && x < c.axis[1].count
                   ? ((int64_t)n * c.axis[0].count + y) * c.axis[1].count + x
                   : -1;
    }
};

/** The lines of the image that a tile's patch contains, in units of W: a word or an element. */
template <class W> struct few_lines {
    const W *from;  /* unit 0 of the patch, which may lie outside of the image */
    int first, end; /* units of a line that are inside of the image */
    int y, step;    /* position of line 0; units from line to line of the image */

    __device__ __forceinline__ few_lines(const few_call &c, int tile)
    {
        constexpr int EACH = (int)sizeof(W) / 2;
        few_place at(c, tile);
        int begin = (at.i[1] * c.axis[1].move + c.axis[1].low) * c.channels - c.skip,
            size = c.axis[1].size * c.channels;
        y = at.i[0] * c.axis[0].move + c.axis[0].low;
        step = size / EACH;
        from = (const W *)c.image + ((int64_t)at.n * c.axis[0].size + y) * step + begin / EACH;
        first = max(0, -begin) / EACH;
        end = (size - begin) / EACH;
    }
    /** Unit i of the patch, or 0 outside of the image. */
    __device__ __forceinline__ W load(const few_call &c, int i) const
    {
        int line = (int)c.by_line.of((uint32_t)i), e = i - line * (int)c.by_line.d;
        bool inside = line < c.axis[0].patch &&
                      (unsigned)(y + line) < (unsigned)c.axis[0].size && e >= first && e < end;
        return inside ? __ldg(from + (int64_t)line * step + e) : (W)0;
    }
};
/** Copies a tile's pixels to a patch. fetch() loads this thread's first FEW_AHEAD units to
 * registers; put() stores them, then copies the others. */
template <class W> struct few_copy {
    W ahead[FEW_AHEAD];

    __device__ __forceinline__ void fetch(const few_call &c, int tile)
    {
        few_lines<W> lines(c, tile);
#pragma unroll
        for (int k = 0; k < FEW_AHEAD; k++)
            ahead[k] = lines.load(c, (int)threadIdx.x + k * (int)blockDim.x);
    }
    __device__ __forceinline__ void put(const few_call &c, int tile, uint16_t *patch) const
    {
        int all = c.axis[0].patch * (int)c.by_line.d, i = (int)threadIdx.x;
#pragma unroll
        for (int k = 0; k < FEW_AHEAD; k++, i += (int)blockDim.x)
            if (i < all)
                ((W *)patch)[i] = ahead[k];
        if (all <= FEW_AHEAD * (int)blockDim.x)
            return;
        few_lines<W> lines(c, tile);
#pragma unroll 4
        for (; i < all; i += (int)blockDim.x)
            ((W *)patch)[i] = lines.load(c, i);
    }
};

/** Offset in the patch of element k of a window, relative to the window's first pixel. */
__device__ __forceinline__ int few_offset(const few_call &c, int k)
{
    int tap = k / c.channels, line = tap / c.axis[1].taps;
    return (line * c.axis[0].shift + c.axis[0].back) * c.pitch +
           ((tap - line * c.axis[1].taps) * c.axis[1].shift + c.axis[1].back) * c.channels +
           k - tap * c.channels + c.skip;
}
/** Offset in the patch of the window of position p of a tile. */
__device__ __forceinline__ int few_window(const few_call &c, int p)
{
    return (p >> c.log2) * c.axis[0].move * c.pitch +
           (p & (c.axis[1].wide - 1)) * c.axis[1].move * c.channels;
}
/** Offset of element (0, k) of the weight. */
__device__ __forceinline__ int64_t few_weight(const few_call &c, int k)
{
    int tap = k / c.channels, line = tap / c.axis[1].taps;
    return (k - tap * c.channels) * c.step[1] + line * c.step[2] +
           (tap - line * c.axis[1].taps) * c.step[3];
}
__device__ __forceinline__ uint32_t few_pair(uint16_t low, uint16_t high)
{
    return (uint32_t)low | (uint32_t)high << 16;
}

/** Stores 8 rows of a window from `row` on at element `to` of c.to, with bias and epilogue. */
template <class T, bool EPILOGUE>
__device__ __forceinline__ void few_store(const few_call &c, float (&x)[8], int64_t to, int row)
{
    if (c.bias)
#pragma unroll
        for (int j = 0; j < 8; j++)
            x[j] += widen(((const T *)c.bias)[row + j]);
    vec<T, 8> y = pack<T, 8>(x);
    if constexpr (EPILOGUE) {
        float added[8] = {};
        unpack<T, 8>(y, x);
        if (c.after.added)
            unpack<T, 8>(
                from_word<vec<T, 8>>(__ldg((const uint4 *)((const T *)c.after.added + to))), added);
        c.after.apply<T>(x, row, 8, added);
        y = pack<T, 8>(x);
    }
    *(uint4 *)((T *)c.to + to) = to_word(y);
}

/**
 * Windows times weight: a warp computes twice 16 windows of a tile by FEW_ROWS rows. Columns of the
 * products are numbered so that a lane has 8 adjacent rows of a window. EVEN: an even number of
 * channels, so that pairs of elements are words. W: the unit of copies, a word or an element.
 */
template <class T, class W, bool EVEN, bool EPILOGUE>
static __global__ void __launch_bounds__(FEW_THREADS, 3)
    few_multiply_kernel(const __grid_constant__ few_call c)
{
    extern __shared__ uint4 few_shared[];
    int steps = (c.depth + 15) / 16, lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32,
        g = lane / 4, t = lane % 4, first = (int)blockIdx.y * FEW_ROWS;
    bool whole = c.rows - first > FEW_ROWS / 2;
    uint4 *weights = few_shared; /* (steps, 4, 32): operands of two tiles of 8 columns */
    ushort4 *offsets = (ushort4 *)(weights + steps * 128); /* (steps, 4) */
    int64_t *places = (int64_t *)(offsets + steps * 4);    /* (steps, 16), only until the patch */
    uint16_t *patch = (uint16_t *)places;
    for (int k = (int)threadIdx.x; k < steps * 16; k += FEW_THREADS) {
        places[k] = k < c.depth ? few_weight(c, k) : 0;
        ((uint16_t *)offsets)[k / 16 * 16 + k % 8 / 2 * 4 + k % 16 / 8 * 2 + k % 2] =
            (uint16_t)(k < c.depth ? few_offset(c, k) : 0);
    }
    __syncthreads();
    for (int e = (int)threadIdx.x; e < steps * 128; e += FEW_THREADS) {
        int k = e / 128 * 16 + e % 4 * 2, column = e % 32 / 4, pair = e / 32 % 4;
        uint32_t words[4];
#pragma unroll
        for (int w = 0; w < 4; w++) {
            int j = pair * 2 + w / 2, row = first + j / 4 * 32 + column / 2 * 8 + j % 4 * 2 +
                                            column % 2;
            uint16_t x[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int at = k + w % 2 * 8 + i;
                x[i] = at < c.depth && row < c.rows
                           ? __ldg((const uint16_t *)c.weight + row * c.step[0] + places[at])
                           : (uint16_t)0;
            }
            words[w] = few_pair(x[0], x[1]);
        }
        weights[e] = make_uint4(words[0], words[1], words[2], words[3]);
    }
    /* elements beyond the window, in the last step: the weight is 0, but a pixel may be infinite */
    uint32_t masks[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int k = (steps - 1) * 16 + t * 2 + h * 8;
        masks[h] = (k < c.depth ? 0xffffu : 0) | (k + 1 < c.depth ? 0xffff0000u : 0);
    }
    few_copy<W> copy;
    copy.fetch(c, (int)blockIdx.x);
    for (int tile = (int)blockIdx.x; tile < c.tiles; tile += (int)gridDim.x) {
        __syncthreads(); /* the last patch, or `places`, has been read */
        copy.put(c, tile, patch);
        __syncthreads();
        if (tile + (int)gridDim.x < c.tiles)
            copy.fetch(c, tile + (int)gridDim.x);
        few_place at(c, tile);
#pragma unroll 1
        for (int p = warp * 32 + g; p < warp * 32 + 32; p += 16) {
            const uint16_t *window[2] = {patch + few_window(c, p), patch + few_window(c, p + 8)};
            float sums[8][4] = {};
#pragma unroll 1
            for (int s = 0; s < steps; s++) {
                ushort4 o = offsets[s * 4 + t];
                uint32_t a[4];
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    if constexpr (EVEN) {
                        a[r] = *(const uint32_t *)(window[r] + o.x);
                        a[r + 2] = *(const uint32_t *)(window[r] + o.z);
                    } else {
                        a[r] = few_pair(window[r][o.x], window[r][o.y]);
                        a[r + 2] = few_pair(window[r][o.z], window[r][o.w]);
                    }
                    if (s + 1 == steps)
                        a[r] &= masks[0], a[r + 2] &= masks[1];
                }
#pragma unroll
                for (int pair = 0; pair < 4; pair++)
                    if (pair < 2 || whole) {
                        uint4 b = weights[(s * 4 + pair) * 32 + lane];
                        mma<T>(sums[2 * pair], a, b.x, b.y);
                        mma<T>(sums[2 * pair + 1], a, b.z, b.w);
                    }
            }
#pragma unroll
            for (int r = 0; r < 2; r++) {
                int64_t position = at.of(c, p + r * 8);
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    int row = first + half * 32 + t * 8;
                    if (position < 0 || row >= c.rows)
                        continue;
                    float x[8];
#pragma unroll
                    for (int j = 0; j < 8; j++)
                        x[j] = sums[half * 4 + j / 2][r * 2 + j % 2];
                    few_store<T, EPILOGUE>(c, x, position * c.rows + row, row);
                }
            }
        }
    }
}

/**
 * The gradient of the weight: `other` (positions, rows) transposed times the windows. A block has
 * c.groups groups of warps; a group has 32 elements of windows, and its warps have different
 * positions of a tile. The sums of a block's tiles go to c.partial.
 */
template <class T, class W>
static __global__ void __launch_bounds__(FEW_THREADS, 2)
    few_weigh_kernel(const __grid_constant__ few_call c)
{
    extern __shared__ uint4 few_shared[];
    constexpr int STAGE = FEW_TILE * FEW_ROWS * 2;
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, g = lane / 4, t = lane % 4,
        splits = (int)blockDim.x / 32 / c.groups, group = warp / splits,
        split = warp - group * splits, first = (int)blockIdx.y * FEW_ROWS;
    uint32_t base = (shared_address(few_shared) + 127) & ~127u;
    uint16_t *patch = (uint16_t *)((char *)few_shared + 2 * STAGE + 128);
    auto load = [&](int stage, int tile) {
        mma_tile<FEW_ROWS> rows{base + (uint32_t)(stage * STAGE)};
        few_place at(c, tile);
        for (int e = (int)threadIdx.x; e < FEW_TILE * 8; e += (int)blockDim.x) {
            int64_t position = at.of(c, e / 8);
            int row = first + e % 8 * 8;
            bool some = position >= 0 && row < c.rows;
            copy16(rows.at(e / 8, e % 8),
                   (const T *)c.other + (some ? position * c.rows + row : 0), some);
        }
    };
    const uint16_t *element[4];
#pragma unroll
    for (int n = 0; n < 4; n++) {
        int k = group * 32 + n * 8 + g;
        element[n] = patch + (k < c.depth ? few_offset(c, k) : 0);
    }
    float sums[4][4][4] = {};
    int stage = 0;
    few_copy<W> copy;
    if ((int)blockIdx.x < c.tiles) {
        load(0, (int)blockIdx.x);
        copy.fetch(c, (int)blockIdx.x);
    }
    copies_commit();
    for (int tile = (int)blockIdx.x; tile < c.tiles; tile += (int)gridDim.x, stage ^= 1) {
        __syncthreads(); /* the last tile has been used */
        if (tile + (int)gridDim.x < c.tiles)
            load(stage ^ 1, tile + (int)gridDim.x);
        copies_commit();
        copy.put(c, tile, patch);
        copies_wait<1>();
        __syncthreads();
        if (tile + (int)gridDim.x < c.tiles)
            copy.fetch(c, tile + (int)gridDim.x);
        mma_tile<FEW_ROWS> rows{base + (uint32_t)(stage * STAGE)};
        for (int s = split; s < FEW_TILE / 16; s += splits) {
            int at[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                at[i] = few_window(c, s * 16 + t * 2 + i / 2 * 8 + i % 2);
            uint32_t b[4][2];
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    b[n][h] = few_pair(element[n][at[2 * h]], element[n][at[2 * h + 1]]);
#pragma unroll
            for (int m = 0; m < 4; m++) {
                uint32_t a[4];
                rows.left_transposed(a, s * 16, m);
#pragma unroll
                for (int n = 0; n < 4; n++)
                    mma<T>(sums[m][n], a, b[n][0], b[n][1]);
            }
        }
    }
    copies_wait<0>();
    begin_next_kernel();
    /* sums of a group's warps, in a fixed order */
    float *mine = (float *)((char *)few_shared) + (int64_t)group * (splits / 2) * FEW_SUMS + lane;
    for (int half = splits / 2; half; half /= 2) {
        __syncthreads();
        if (split >= half && split < 2 * half)
#pragma unroll
            for (int i = 0; i < 64; i++)
                mine[(split - half) * FEW_SUMS + i * 32] = sums[i / 16][i / 4 % 4][i % 4];
        __syncthreads();
        if (split < half)
#pragma unroll
            for (int i = 0; i < 64; i++)
                sums[i / 16][i / 4 % 4][i % 4] += mine[split * FEW_SUMS + i * 32];
    }
    float *to = c.partial + (((int64_t)blockIdx.x * gridDim.y + blockIdx.y) * c.groups + group) *
                                FEW_SUMS + lane;
    if (split == 0)
#pragma unroll
        for (int i = 0; i < 64; i++)
            to[i * 32] = sums[i / 16][i / 4 % 4][i % 4];
}

/** Adds the sums of `blocks` blocks and stores the weight. A block computes 32 sums: index = sum /
 * 32 of a group of rows and elements. */
template <class T>
static __global__ void __launch_bounds__(FEW_THREADS)
    few_merge_kernel(const __grid_constant__ few_call c, int blocks)
{
    __shared__ float shared[8][32];
    int lane = (int)threadIdx.x % 32, part = (int)threadIdx.x / 32, i = (int)blockIdx.x,
        group = (int)blockIdx.y % c.groups, first = (int)blockIdx.y / c.groups * FEW_ROWS;
    const float *from = c.partial + ((int64_t)blockIdx.y * FEW_SUMS + i * 32 + lane);
    float sum = 0;
    wait_for_kernel_in_front();
#pragma unroll 8
    for (int b = part; b < blocks; b += 8)
        sum += from[(int64_t)b * gridDim.y * FEW_SUMS];
    shared[part][lane] = sum;
    __syncthreads();
    if (part)
        return;
#pragma unroll
    for (int p = 1; p < 8; p++)
        sum += shared[p][lane];
    int row = first + i / 16 * 16 + lane / 4 + i % 4 / 2 * 8,
        k = group * 32 + i / 4 % 4 * 8 + lane % 4 * 2 + i % 2;
    if (row < c.rows && k < c.depth)
        ((T *)c.weight)[row * c.step[0] + few_weight(c, k)] = narrow<T>(sum);
}

} // namespace ts

#endif
