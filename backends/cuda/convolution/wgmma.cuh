/**
 * @file wgmma.cuh
 * Implicit products of convolutions on Hopper. The copy engine (TMA) gathers the windows: in its
 * im2col mode, one copy reads one tap and 64 channels of many consecutive windows, with zeros
 * outside of the image. Two groups of four warps multiply; one thread of another warp or group
 * starts the copies. conv_wgmma_kernel() computes images, conv_wgmma_by_kernel() the gradient of
 * the weight.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_CONVOLUTION_WGMMA_CUH
#define TS_CUDA_CONVOLUTION_WGMMA_CUH

#include "backends/cuda/convolution/gemm.cuh"
#include "backends/cuda/instructions/wgmma.cuh"

namespace ts {

/* Groups of four warps that multiply, and threads of a block, for images and for the weight's
 * gradient. */
enum { CONV_GROUPS = 2, CONV_BLOCK = CONV_GROUPS * 128 + 32, CONV_BLOCK_BY = 3 * 128 };

/** Parameters of TMA copies. In im2col mode, a copy names the image index of a window's lowest tap,
 * and the distance of the copied tap from it, at least 0. */
struct conv_copies {
    int low[3];  /* lowest image index that window 0 reads, in each dim; may be negative */
    int back[3]; /* image index of tap 0 of window 0, minus `low`; above 0 if `shift` is negative */
    bool volume; /* the map has a dim for axis 0 (5 dims); else axis 0 has one position (4 dims) */
};

/** Starts a copy to shared memory at `to`: 64 channels from `channel` on, of the tap at distance
 * (d0, d1, d2) from the lowest tap, for as many windows from p on as the descriptor says. The copy
 * reports its bytes to `barrier`. */
__device__ __forceinline__ void tma_load_windows(uint32_t to, const CUtensorMap *map,
                                                 const conv_call &c, const conv_copies &copies,
                                                 const conv_place &p, int channel, int d0, int d1,
                                                 int d2, uint32_t barrier)
{
    int i0 = p.i[0] * c.axis[0].move + copies.low[0], i1 = p.i[1] * c.axis[1].move + copies.low[1],
        i2 = p.i[2] * c.axis[2].move + copies.low[2];
    uint16_t o0 = (uint16_t)d0, o1 = (uint16_t)d1, o2 = (uint16_t)d2;
    if (copies.volume)
        asm volatile(
            "cp.async.bulk.tensor.5d.shared::cluster.global.im2col.mbarrier"
            "::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5, %6}], [%7], {%8, %9, %10};" ::"r"(to),
            "l"(map), "r"(channel), "r"(i2), "r"(i1), "r"(i0), "r"(p.n), "r"(barrier), "h"(o2),
            "h"(o1), "h"(o0)
            : "memory");
    else
        asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier"
                     "::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6], {%7, %8};" ::"r"(to),
                     "l"(map), "r"(channel), "r"(i2), "r"(i1), "r"(p.n), "r"(barrier), "h"(o2),
                     "h"(o1)
                     : "memory");
}

/* ------------------------------------------------------------------- windows x weight ---- */

/** Sizes of conv_wgmma_kernel(). A tile is 128 SETS windows by WIDE channels of the result; a group
 * of warps has 64 SETS windows. A step is 64 channels of one tap. Blocks are persistent, so copies
 * for the next tile run while a tile is stored. */
template <int SETS, int WIDE, int STAGES, int BLOCKS> struct conv_shape {
    static constexpr int sets = SETS, tall = 128 * SETS, wide = WIDE, stages = STAGES,
                         blocks = BLOCKS; /* resident blocks per multiprocessor */
    static constexpr int image_bytes = tall * 128, stage_bytes = image_bytes + wide * 128,
                         slab_bytes = 64 * 128; /* staging area for the results of a group */
    static constexpr int bytes =
        stages * stage_bytes + CONV_GROUPS * slab_bytes + tile_ring<stages>::bytes;
};

/** A tile's first window, first channel, and group of channels. */
struct conv_tile {
    int window, feature, set;
};
/** Tile number `tile` of all groups. all: tiles of one group. */
template <class S>
__device__ __forceinline__ conv_tile conv_tile_of(const conv_call &c, int tile, int all)
{
    int wide = (c.rows + S::wide - 1) / S::wide, set = tile / all;
    tile -= set * all;
    int tall = tile / wide;
    return {tall * S::tall, (tile - tall * wide) * S::wide, set};
}

/** Windows times weight plus bias, with EPILOGUE also the calls of c.after, into c.to. image,
 * weight: descriptors. all: tiles of one group of channels; block b computes tiles b, b +
 * gridDim.x, ... of all groups. */
template <class T, class S, bool EPILOGUE>
static __global__ void __launch_bounds__(CONV_BLOCK, S::blocks)
    conv_wgmma_kernel(const __grid_constant__ conv_call c,
                      const __grid_constant__ CUtensorMap image,
                      const __grid_constant__ CUtensorMap weight,
                      const __grid_constant__ conv_copies copies, int all)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) char conv_shared[];
    int pieces = (c.each + 63) / 64, steps = c.taps * pieces, step = 0;
    uint32_t base = shared_address(conv_shared), slabs = base + S::stages * S::stage_bytes;
    tile_ring<S::stages> ring{slabs + CONV_GROUPS * S::slab_bytes};
    if (threadIdx.x == 0) {
        ring.init(CONV_GROUPS);
        barriers_ready();
    }
    __syncthreads();

    int group = (int)threadIdx.x / 128;
    if (group == CONV_GROUPS) {
        if (threadIdx.x % 32)
            return;
        for (int t = (int)blockIdx.x; t < all * c.groups; t += (int)gridDim.x) {
            conv_tile at = conv_tile_of<S>(c, t, all);
            conv_place p = place_of(c, at.window);
            int tap = 0;
            for (int j0 = 0; j0 < c.axis[0].taps; j0++)
                for (int j1 = 0; j1 < c.axis[1].taps; j1++)
                    for (int j2 = 0; j2 < c.axis[2].taps; j2++, tap++)
                        for (int piece = 0; piece < pieces; piece++, step++) {
                            uint32_t to = base + step % S::stages * S::stage_bytes,
                                     full = ring.full(step);
                            ring.wait_empty(step);
                            barrier_expect(full, S::stage_bytes);
                            tma_load_windows(to, &image, c, copies, p, at.set * c.each + piece * 64,
                                             copies.back[0] + j0 * c.axis[0].shift,
                                             copies.back[1] + j1 * c.axis[1].shift,
                                             copies.back[2] + j2 * c.axis[2].shift, full);
                            tma_load(to + S::image_bytes, &weight, piece * 64, tap, at.feature,
                                     at.set, full);
                        }
        }
        return;
    }

    constexpr int N = S::wide / 8;
    int warp = (int)threadIdx.x % 128 / 32, lane = (int)threadIdx.x % 32;
    int lead = group * S::sets * 64; /* the group's first window in a tile */
    uint32_t slab = slabs + group * S::slab_bytes;
    float sums[S::sets][N][4];
    for (int t = (int)blockIdx.x; t < all * c.groups; t += (int)gridDim.x) {
#pragma unroll
        for (int s = 0; s < S::sets; s++)
            discard_accumulators(sums[s]);
        for (int i = 0; i < steps; i++, step++) {
            uint32_t stage = base + step % S::stages * S::stage_bytes, a = stage + lead * 128,
                     b = stage + S::image_bytes;
            ring.wait_full(step);
            wgmma_begin();
#pragma unroll
            for (int k = 0; k < 4; k++)
#pragma unroll
                for (int s = 0; s < S::sets; s++)
                    wgmma<T, S::wide>::columns(sums[s], by_columns(a + s * 64 * 128) + k * 2,
                                               by_columns(b) + k * 2, k > 0 || i > 0);
            wgmma_commit();
            wgmma_wait<1>();
            if (i > 0 && threadIdx.x % 128 == 0)
                barrier_arrive(ring.empty(step - 1));
        }
        wgmma_wait<0>();
        if (threadIdx.x % 128 == 0)
            barrier_arrive(ring.empty(step - 1));
        conv_tile at = conv_tile_of<S>(c, t, all);
#pragma unroll
        for (int s = 0; s < S::sets; s++) {
            pin_accumulators(sums[s]);
            conv_add_bias<T>(c, sums[s], at.feature, at.set);
            int64_t offset =
                conv_offset(c, at.window + lead + s * 64 + warp * 16 + lane % 16, at.set);
#pragma unroll
            for (int part = 0; part < S::wide / 64; part++) {
                put_group<T>(slab, reinterpret_cast<const float(&)[8][4]>(sums[s][part * 8]), 1, 1);
                __syncwarp();
                conv_store_rows<T, 16, 64, EPILOGUE, true>(
                    c, slab + warp * (16 * 128), offset, at.feature + part * 64, at.set);
                __syncwarp();
            }
        }
    }
#endif
}

/* --------------------------------------------------------------------- y x windows ---- */

/** Sizes of conv_wgmma_by_kernel(). A tile of the gradient of the weight is 64 TALL rows by `wide`
 * slabs, each 64 channels of one tap; a group of warps computes 64 SETS rows by 2 slabs of it. A
 * step is 64 windows; its operands are tall + wide pieces of 64 x 64 elements, of `slab` bytes
 * each. */
template <int SETS, int TALL> struct conv_by_shape {
    static constexpr int sets = SETS, tall = TALL, wide = 4 * SETS / TALL, stages = 4;
    static constexpr int slab = 64 * 128, stage_bytes = (tall + wide) * slab;
    static constexpr int bytes = stages * stage_bytes + tile_ring<stages>::bytes;
    static constexpr int sums = 64 * 64 * tall * wide; /* number of sums in a tile */
    static_assert(tall == sets || tall == 2 * sets, "the groups divide rows or elements");
};

/**
 * Division of the steps of all tiles among blocks, which depends only on the shape. A block that
 * computes only some steps of a tile writes its sums to c.partial at place(), and conv_merge_kernel
 * adds them.
 *
 * parts > 0: each tile has `parts` parts of `each` steps, one per block. Blocks of the same part
 * run at the same time, so that memory is read once. parts = 0: the steps form a sequence, tile
 * after tile, and block b computes steps b * each to (b + 1) * each - 1 of the sequence.
 */
struct conv_division {
    int tiles; /* tiles of one group of channels */
    int all;   /* tiles of all groups */
    int steps; /* steps of a tile */
    int parts, blocks;
    int64_t each; /* steps of a block; the last block or part may have fewer */

    /** first_block(), last_block(): blocks that compute the first and the last steps of a tile.
     * stride(): distance between consecutive blocks of a tile. place(): index in c.partial of a
     * block's sums of a tile, in units of S::sums floats. */
    __device__ __forceinline__ int first_block(int tile) const
    {
        return parts ? tile : (int)((int64_t)tile * steps / each);
    }
    __device__ __forceinline__ int last_block(int tile) const
    {
        return parts ? tile + (parts - 1) * all : (int)((((int64_t)tile + 1) * steps - 1) / each);
    }
    __device__ __forceinline__ int stride() const { return parts ? all : 1; }
    __device__ __forceinline__ int64_t place(int block, int tile) const
    {
        return parts ? block : (int64_t)block + tile;
    }
};

/** Stores a lane's sums x: rows `row` and row + 8 of group `set`, and N tiles of 8 elements of slab
 * `at`, from element 8 * n of the slab on. */
template <class T, int N>
__device__ __forceinline__ void conv_store_slab(const conv_call &c, const float (&x)[N][4], int set,
                                                int row, int at, int n)
{
    int pieces = (c.each + 63) / 64, tap = at / pieces, first = (at - tap * pieces) * 64 + n * 8;
    if (tap < c.taps)
        conv_store_weight<T>(c, x, set, row, tap * c.each + first, c.each - first);
}

/** A block's next steps, all of one tile. */
struct conv_piece {
    int tile, begin, count; /* index of the tile in all groups; first step; number of steps */
    int set, row, slab;     /* the tile's group of channels, first row and first slab */

    template <class S>
    static __device__ __forceinline__ conv_piece of(const conv_call &c, const conv_division &d,
                                                    int64_t at, int64_t end)
    {
        conv_piece p = {};
        p.tile = (int)(at / d.steps); /* `at` and `end` count the steps of all tiles */
        p.begin = (int)(at - (int64_t)p.tile * d.steps);
        p.count = (int)min((int64_t)(d.steps - p.begin), end - at);
        int slabs = c.taps * ((c.each + 63) / 64), wide = (slabs + S::wide - 1) / S::wide;
        p.set = p.tile / d.tiles;
        int rest = p.tile - p.set * d.tiles;
        p.row = rest / wide * S::tall * 64;
        p.slab = rest % wide * S::wide;
        return p;
    }
};

/** The gradient of the weight, y transposed times the windows: each block computes the steps that
 * `division` gives it. Sums of tiles that one block computes go to c.to, others to c.partial. */
template <class T, class S>
static __global__ void __launch_bounds__(CONV_BLOCK_BY, 1)
    conv_wgmma_by_kernel(const __grid_constant__ conv_call c,
                         const __grid_constant__ CUtensorMap image,
                         const __grid_constant__ CUtensorMap y,
                         const __grid_constant__ conv_copies copies,
                         const __grid_constant__ conv_division division)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) char conv_shared[];
    uint32_t base = shared_address(conv_shared);
    tile_ring<S::stages> ring{base + S::stages * S::stage_bytes};
    if (threadIdx.x == 0) {
        ring.init(CONV_GROUPS);
        barriers_ready();
    }
    __syncthreads();

    int group = (int)threadIdx.x / 128, step = 0;
    int64_t at = blockIdx.x * division.each,
            end = min(at + division.each, (int64_t)division.all * division.steps);
    if (division.parts) {
        int part = (int)blockIdx.x / division.all, tile = (int)blockIdx.x - part * division.all;
        at = (int64_t)tile * division.steps + part * division.each;
        end = min(at + division.each, ((int64_t)tile + 1) * division.steps);
    }
    if (group == CONV_GROUPS) {
        registers_shrink<56>();
        if (threadIdx.x % 128)
            return;
        int pieces = (c.each + 63) / 64, slabs = c.taps * pieces;
        while (at < end) {
            conv_piece piece = conv_piece::of<S>(c, division, at, end);
            at += piece.count;
            int tall = min(S::tall, (c.rows - piece.row + 63) / 64),
                wide = min(S::wide, slabs - piece.slab), channel[S::wide], d[S::wide][3];
#pragma unroll
            for (int w = 0; w < S::wide; w++) {
                int tap = (piece.slab + w) / pieces, plane = tap / c.axis[2].taps,
                    j0 = plane / c.axis[1].taps;
                channel[w] = piece.set * c.each + (piece.slab + w - tap * pieces) * 64;
                d[w][0] = copies.back[0] + j0 * c.axis[0].shift;
                d[w][1] = copies.back[1] + (plane - j0 * c.axis[1].taps) * c.axis[1].shift;
                d[w][2] = copies.back[2] + (tap - plane * c.axis[2].taps) * c.axis[2].shift;
            }
            for (int i = 0; i < piece.count; i++, step++) {
                int window = (piece.begin + i) * 64;
                uint32_t to = base + step % S::stages * S::stage_bytes, full = ring.full(step);
                conv_place p = place_of(c, window);
                ring.wait_empty(step);
                barrier_expect(full, (tall + wide) * S::slab);
                for (int t = 0; t < tall; t++)
                    tma_load(to + t * S::slab, &y, piece.set * c.rows + piece.row + t * 64, window,
                             0, 0, full);
#pragma unroll
                for (int w = 0; w < S::wide; w++)
                    if (w < wide)
                        tma_load_windows(to + (S::tall + w) * S::slab, &image, c, copies, p,
                                         channel[w], d[w][0], d[w][1], d[w][2], full);
            }
        }
    } else {
        registers_grow<224>();
        bool by_rows_of_y = S::tall > S::sets; /* the two groups divide rows; else slabs */
        int first = by_rows_of_y ? group * S::sets : 0, element = by_rows_of_y ? 0 : 2 * group,
            thread = (int)threadIdx.x % 128;
        float sums[S::sets][16][4];
        while (at < end) {
            conv_piece piece = conv_piece::of<S>(c, division, at, end);
            at += piece.count;
#pragma unroll
            for (int s = 0; s < S::sets; s++)
                discard_accumulators(sums[s]);
            for (int i = 0; i < piece.count; i++, step++) {
                uint32_t stage = base + step % S::stages * S::stage_bytes,
                         a = stage + first * S::slab, b = stage + (S::tall + element) * S::slab;
                ring.wait_full(step);
                wgmma_begin();
#pragma unroll
                for (int k = 0; k < 4; k++)
#pragma unroll
                    for (int s = 0; s < S::sets; s++)
                        wgmma<T, 128>::template columns<1, 1>(
                            sums[s], by_rows<64>(a + s * S::slab) + k * 128,
                            by_rows<64>(b) + k * 128, k > 0 || i > 0);
                wgmma_commit();
                wgmma_wait<1>();
                if (i > 0 && thread == 0)
                    barrier_arrive(ring.empty(step - 1));
            }
            wgmma_wait<0>();
            if (thread == 0)
                barrier_arrive(ring.empty(step - 1));
            float4 *place = (float4 *)c.partial +
                            division.place((int)blockIdx.x, piece.tile) * (S::sums / 4) +
                            group * S::sets * 16 * 128 + thread;
#pragma unroll
            for (int s = 0; s < S::sets; s++) {
                pin_accumulators(sums[s]);
                if (piece.count < division.steps) {
#pragma unroll
                    for (int n = 0; n < 16; n++)
                        place[(s * 16 + n) * 128] =
                            make_float4(sums[s][n][0], sums[s][n][1], sums[s][n][2], sums[s][n][3]);
                    continue;
                }
#pragma unroll
                for (int half = 0; half < 2; half++)
                    conv_store_slab<T>(
                        c, reinterpret_cast<const float(&)[8][4]>(sums[s][half * 8]), piece.set,
                        piece.row + (first + s) * 64 + thread / 32 * 16 + thread % 32 / 4,
                        piece.slab + element + half, 0);
            }
        }
    }
#endif
}

enum { CONV_MERGED = 4 }; /* tiles of 8 columns that a block of conv_merge_kernel adds */

/** Adds the partial sums of each tile that several blocks computed, in the order of the blocks, and
 * stores them rounded. Block (tile, part) adds CONV_MERGED tiles of 8 columns of 64 rows. */
template <class T, class S>
static __global__ void __launch_bounds__(128)
    conv_merge_kernel(const __grid_constant__ conv_call c,
                      const __grid_constant__ conv_division division)
{
    int tile = (int)blockIdx.x, part = (int)blockIdx.y, thread = (int)threadIdx.x;
    int b = division.first_block(tile), last = division.last_block(tile);
    if (b == last)
        return;
    int wide_tiles = (c.taps * ((c.each + 63) / 64) + S::wide - 1) / S::wide,
        set = tile / division.tiles, rest = tile - set * division.tiles;
    int n = part * CONV_MERGED % 16, s = part * CONV_MERGED / 16, group = s / S::sets;
    const float4 *from = (const float4 *)c.partial + division.place(b, tile) * (S::sums / 4) +
                         part * CONV_MERGED * 128 + thread;
    float sums[CONV_MERGED][4] = {};
#pragma unroll 4
    for (; b <= last; b += division.stride(), from += division.stride() * (int64_t)(S::sums / 4))
#pragma unroll
        for (int k = 0; k < CONV_MERGED; k++) {
            float4 x = from[k * 128];
            sums[k][0] += x.x, sums[k][1] += x.y, sums[k][2] += x.z, sums[k][3] += x.w;
        }
    int first = S::tall > S::sets ? s : s - group * S::sets,
        element = (S::tall > S::sets ? 0 : 2 * group) + n / 8;
    conv_store_slab<T>(c, sums, set,
                       (rest / wide_tiles * S::tall + first) * 64 + thread / 32 * 16 +
                           thread % 32 / 4,
                       rest % wide_tiles * S::wide + element, n % 8);
}

} // namespace ts

#endif
