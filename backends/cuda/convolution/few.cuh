/**
 * @file few.cuh
 * Convolutions of images with fewer than 8 channels, on the tensor cores of sm_80 and later, for
 * few.cu. Elements are bf16 or f16.
 *
 * A tile is a box of positions, each with one window. Its block copies the pixels that the tile's
 * windows read, the patch, to shared memory, with zeros outside of the image. Operands of windows
 * are gathered from the patch in pairs of elements, so a window has taps * channels elements,
 * without padding of channels.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_FEW_CUH
#define TS_CUDA_FEW_CUH

#include "backends/cuda/convolution/gemm.cuh"

namespace ts {

enum {
    FEW_THREADS = 256,
    FEW_TILE = 256,    /* positions of a tile for images: 32 per warp */
    FEW_BY_TILE = 128, /* the same for the gradient of the weight */
    FEW_ROWS = 64,     /* rows of the weight per block */
    FEW_DEPTH = 256,   /* maximum elements of a window */
    FEW_SUMS = 2048    /* sums of a warp for the gradient of the weight: 64 rows by 32 elements */
};

/** A spatial dim. low: index of the lowest pixel that window 0 reads; back: distance of tap 0 from
 * it; tiles: number of tiles; wide: positions of a tile; patch: pixels of a patch; size: of the
 * image; the other fields are those of ts_window_axis. */
struct few_axis {
    int count, taps, move, shift, size, low, back, tiles, wide, patch;
};
/** A call of ts_cuda_few_multiply() or ts_cuda_few_weigh(), with the fields of ts_cuda_few. */
struct few_call {
    few_axis axis[2];
    const void *image, *bias, *other;
    void *to, *weight;
    int64_t step[4];
    conv_after after;
    float *partial; /* sums of blocks: (blocks, groups of FEW_ROWS rows, `groups`, FEW_SUMS) */
    int batch, rows, channels, depth; /* depth: taps * channels */
    int tiles;  /* of all images */
    int log2;   /* base-2 logarithm of axis[1].wide */
    int pitch;  /* elements of a line of a patch */
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
    /** Index of position p of the tile among all positions (batch, axis[0].count, axis[1].count),
     * or -1 if there is no such position. */
    __device__ __forceinline__ int64_t of(const few_call &c, int p) const
    {
        int y = i[0] + (p >> c.log2), x = i[1] + (p & (c.axis[1].wide - 1));
        return y < c.axis[0].count && x < c.axis[1].count
                   ? ((int64_t)n * c.axis[0].count + y) * c.axis[1].count + x
                   : -1;
    }
};

/** Copies a tile's pixels to `patch`, a warp per line. */
__device__ __forceinline__ void few_load(const few_call &c, const few_place &at, uint16_t *patch)
{
    const few_axis &a = c.axis[0], &b = c.axis[1];
    int first = at.i[1] * b.move + b.low, lane = (int)threadIdx.x % 32,
        from = max(0, -first) * c.channels, end = min(b.patch, b.size - first) * c.channels;
    for (int line = (int)threadIdx.x / 32; line < a.patch; line += (int)blockDim.x / 32) {
        int y = at.i[0] * a.move + a.low + line;
        bool inside = y >= 0 && y < a.size;
        const uint16_t *pixels = (const uint16_t *)c.image +
                                 (((int64_t)at.n * a.size + y) * b.size + first) * c.channels;
#pragma unroll 4
        for (int e = lane; e < c.pitch; e += 32)
            patch[line * c.pitch + e] =
                inside && e >= from && e < end ? __ldg(pixels + e) : (uint16_t)0;
    }
}

/** Offset in the patch of element k of a window, relative to the window's first pixel. */
__device__ __forceinline__ int few_offset(const few_call &c, int k)
{
    int tap = k / c.channels, line = tap / c.axis[1].taps;
    return (line * c.axis[0].shift + c.axis[0].back) * c.pitch +
           ((tap - line * c.axis[1].taps) * c.axis[1].shift + c.axis[1].back) * c.channels +
           k - tap * c.channels;
}
/** Offset in the patch of the window of position p of a tile. */
__device__ __forceinline__ int few_window(const few_call &c, int p)
{
    return (p >> c.log2) * c.axis[0].move * c.pitch +
           (p & (c.axis[1].wide - 1)) * c.axis[1].move * c.channels;
}
/** Offset of element (row, k) of the weight. */
__device__ __forceinline__ int64_t few_weight(const few_call &c, int row, int k)
{
    int tap = k / c.channels, line = tap / c.axis[1].taps;
    return row * c.step[0] + (k - tap * c.channels) * c.step[1] + line * c.step[2] +
           (tap - line * c.axis[1].taps) * c.step[3];
}
/** Packs two elements. */
__device__ __forceinline__ uint32_t few_pair(uint16_t low, uint16_t high)
{
    return (uint32_t)low | (uint32_t)high << 16;
}

/**
 * Windows times weight, plus bias, into c.to (positions, rows); with EPILOGUE, the calls of
 * c.after. A warp computes 32 windows of a tile by FEW_ROWS rows of the weight. The columns of its
 * products are numbered so that a lane has the results of 8 adjacent rows of the weight for a
 * window. EVEN: an even number of channels, so that pairs of elements are words.
 */
template <class T, bool EVEN, bool EPILOGUE>
static __global__ void __launch_bounds__(FEW_THREADS, 2)
    few_multiply_kernel(const __grid_constant__ few_call c)
{
    extern __shared__ uint4 few_shared[];
    int steps = (c.depth + 15) / 16, lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32,
        g = lane / 4, t = lane % 4, first = (int)blockIdx.y * FEW_ROWS;
    bool whole = c.rows - first > FEW_ROWS / 2;
    uint4 *weights = few_shared; /* (steps, 4, 32): operands of two tiles of 8 columns */
    ushort4 *offsets = (ushort4 *)(weights + steps * 128); /* (steps, 4) */
    uint16_t *patch = (uint16_t *)(offsets + steps * 4);
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
                           ? ((const uint16_t *)c.weight)[few_weight(c, row, at)]
                           : (uint16_t)0;
            }
            words[w] = few_pair(x[0], x[1]);
        }
        weights[e] = make_uint4(words[0], words[1], words[2], words[3]);
    }
    for (int e = (int)threadIdx.x; e < steps * 4; e += FEW_THREADS) {
        int k = e / 4 * 16 + e % 4 * 2;
        auto offset = [&](int at) { return (uint16_t)(at < c.depth ? few_offset(c, at) : 0); };
        offsets[e] = make_ushort4(offset(k), offset(k + 1), offset(k + 8), offset(k + 9));
    }
    /* elements beyond the window, in the last step: the weight is 0, but a pixel may be infinite */
    uint32_t masks[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int k = (steps - 1) * 16 + t * 2 + h * 8;
        masks[h] = (k < c.depth ? 0xffffu : 0) | (k + 1 < c.depth ? 0xffff0000u : 0);
    }
    const uint16_t *window[4];
#pragma unroll
    for (int r = 0; r < 4; r++)
        window[r] = patch + few_window(c, warp * 32 + r * 8 + g);

    for (int tile = (int)blockIdx.x; tile < c.tiles; tile += (int)gridDim.x) {
        few_place at(c, tile);
        __syncthreads(); /* the last tile's patch has been read */
        few_load(c, at, patch);
        __syncthreads();
        float sums[2][8][4] = {};
        for (int s = 0; s < steps; s++) {
            ushort4 o = offsets[s * 4 + t];
            uint32_t a[2][4];
#pragma unroll
            for (int r = 0; r < 4; r++) {
                uint32_t low, high;
                if constexpr (EVEN) {
                    low = *(const uint32_t *)(window[r] + o.x);
                    high = *(const uint32_t *)(window[r] + o.z);
                } else {
                    low = few_pair(window[r][o.x], window[r][o.y]);
                    high = few_pair(window[r][o.z], window[r][o.w]);
                }
                a[r / 2][r % 2] = s + 1 < steps ? low : low & masks[0];
                a[r / 2][r % 2 + 2] = s + 1 < steps ? high : high & masks[1];
            }
#pragma unroll
            for (int pair = 0; pair < 4; pair++)
                if (pair < 2 || whole) {
                    uint4 b = weights[(s * 4 + pair) * 32 + lane];
#pragma unroll
                    for (int m = 0; m < 2; m++) {
                        mma<T>(sums[m][2 * pair], a[m], b.x, b.y);
                        mma<T>(sums[m][2 * pair + 1], a[m], b.z, b.w);
                    }
                }
        }
#pragma unroll
        for (int r = 0; r < 4; r++) {
            int64_t position = at.of(c, warp * 32 + r * 8 + g);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int row = first + half * 32 + t * 8;
                if (position < 0 || row >= c.rows)
                    continue;
                float x[8];
#pragma unroll
                for (int j = 0; j < 4; j++)
#pragma unroll
                    for (int i = 0; i < 2; i++)
                        x[2 * j + i] = sums[r / 2][half * 4 + j][r % 2 * 2 + i];
                if (c.bias)
#pragma unroll
                    for (int j = 0; j < 8; j++)
                        x[j] += widen(((const T *)c.bias)[row + j]);
                vec<T, 8> y = pack<T, 8>(x);
                int64_t to = position * c.rows + row;
                if constexpr (EPILOGUE) {
                    float added[8] = {};
                    unpack<T, 8>(y, x);
                    if (c.after.added)
                        unpack<T, 8>(from_word<vec<T, 8>>(
                                         __ldg((const uint4 *)((const T *)c.after.added + to))),
                                     added);
                    c.after.apply<T>(x, row, 8, added);
                    y = pack<T, 8>(x);
                }
                *(uint4 *)((T *)c.to + to) = to_word(y);
            }
        }
    }
}

/**
 * The gradient of the weight: `other` (positions, rows) transposed times the windows. A block has
 * c.groups groups of warps; a group has 32 elements of windows, and its warps have different
 * positions of a tile. The sums of a block's tiles go to c.partial.
 */
template <class T>
static __global__ void __launch_bounds__(FEW_THREADS, 2)
    few_weigh_kernel(const __grid_constant__ few_call c)
{
    extern __shared__ uint4 few_shared[];
    constexpr int STAGE = FEW_BY_TILE * FEW_ROWS * 2;
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, g = lane / 4, t = lane % 4,
        splits = (int)blockDim.x / 32 / c.groups, group = warp / splits,
        split = warp - group * splits, first = (int)blockIdx.y * FEW_ROWS;
    uint32_t base = (shared_address(few_shared) + 127) & ~127u;
    uint16_t *patch = (uint16_t *)((char *)few_shared + 2 * STAGE + 128);
    auto load = [&](int stage, int tile) {
        mma_tile<FEW_ROWS> rows{base + (uint32_t)(stage * STAGE)};
        few_place at(c, tile);
        for (int e = (int)threadIdx.x; e < FEW_BY_TILE * 8; e += (int)blockDim.x) {
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
    if ((int)blockIdx.x < c.tiles)
        load(0, (int)blockIdx.x);
    copies_commit();
    for (int tile = (int)blockIdx.x; tile < c.tiles; tile += (int)gridDim.x, stage ^= 1) {
        __syncthreads(); /* the last tile has been used */
        if (tile + (int)gridDim.x < c.tiles)
            load(stage ^ 1, tile + (int)gridDim.x);
        copies_commit();
        few_load(c, few_place(c, tile), patch);
        copies_wait<1>();
        __syncthreads();
        mma_tile<FEW_ROWS> rows{base + (uint32_t)(stage * STAGE)};
        for (int s = split; s < FEW_BY_TILE / 16; s += splits) {
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

/** Adds the sums of `blocks` blocks of few_weigh_kernel() and stores the weight's gradient. Block
 * (i, y) computes the sums 32 i to 32 i + 31 of FEW_SUMS, for group y % c.groups of elements and
 * group y / c.groups of FEW_ROWS rows. */
template <class T>
static __global__ void __launch_bounds__(FEW_THREADS)
    few_merge_kernel(const __grid_constant__ few_call c, int blocks)
{
    __shared__ float shared[8][32];
    int lane = (int)threadIdx.x % 32, part = (int)threadIdx.x / 32, i = (int)blockIdx.x,
        group = (int)blockIdx.y % c.groups, first = (int)blockIdx.y / c.groups * FEW_ROWS;
    const float *from = c.partial + ((int64_t)blockIdx.y * FEW_SUMS + i * 32 + lane);
    float sum = 0;
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
        ((T *)c.weight)[few_weight(c, row, k)] = narrow<T>(sum);
}

} // namespace ts

#endif
