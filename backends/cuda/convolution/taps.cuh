/**
 * @file taps.cuh
 * The gradient of the weight on Hopper for images of up to two spatial dims, stride 1 and dilation
 * 1. Windows of adjacent positions overlap, so the copy engine (TMA) loads a box of pixels once for
 * nine taps: the pixels of tap (j1, j2) begin j1 lines and j2 pixels further on in the box.
 * wgmma.cu chooses between this kernel and conv_wgmma_by_kernel() (wgmma.cuh).
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_CONVOLUTION_TAPS_CUH
#define TS_CUDA_CONVOLUTION_TAPS_CUH

#include "backends/cuda/convolution/gemm.cuh"
#include "backends/cuda/runtime/early.cuh"
#include "backends/cuda/instructions/wgmma.cuh"

namespace ts {

/**
 * Tiles of 64 rows by 3 x 3 taps of 64 channels. A step is TAPS_SIDE x TAPS_SIDE positions: a box
 * of y and, with two more lines and two more pixels per line, a box of x. Elements outside of y or
 * x are zeros. Group g of four warps computes column g of the taps: three taps, one below the
 * other. The pixels of these taps overlap: those of the next tap begin one line of the box further
 * on, and so do those of the next 8 positions, because a line of positions has 8. Therefore one
 * descriptor, with a line as the distance of slabs and of groups of 8 rows, describes the operand
 * of all three taps (by_rows() in instructions/wgmma.cuh).
 */
enum {
    TAPS = 3,
    TAPS_SIDE = 8,
    TAPS_LINE = TAPS_SIDE + TAPS - 1, /* lines of a box of x, and pixels of a line */
    TAPS_PIXEL = 128,                 /* bytes of 64 channels */
    TAPS_Y = TAPS_SIDE * TAPS_SIDE * TAPS_PIXEL, /* bytes of a box of y */
    TAPS_X = TAPS_LINE * TAPS_LINE * TAPS_PIXEL, /* bytes of a box of x */
    TAPS_STAGES = 10,                            /* as many as fit in shared memory */
    TAPS_STAGE = TAPS_Y + (TAPS_X + 1023) / 1024 * 1024,
    TAPS_BYTES = TAPS_STAGES * TAPS_STAGE + tile_ring<TAPS_STAGES>::bytes,
    TAPS_COLUMNS = TAPS * 8, /* 8-column tiles of a group of warps */
    TAPS_THREADS = TAPS * 128,             /* threads that multiply */
    TAPS_BLOCK = TAPS_THREADS + 32,        /* and a warp that starts the copies */
    TAPS_SUMS = TAPS * TAPS_COLUMNS * 128, /* sums of a tile, in units of four */
    TAPS_AT_ONCE = 3,                      /* units of four that a thread adds at once */
    TAPS_WARPS = 8                         /* warps of a block of conv_taps_merge_kernel */
};
static_assert(TAPS_SUMS * 16 <= TAPS_STAGES * TAPS_STAGE, "a tile's sums replace the stages");

/** Numbers of boxes along a line (wide) and along a column (tall) of y, of chunks of TAPS taps
 * along both, and of 64-channel pieces of a group of channels. */
struct conv_boxes {
    int wide, tall, chunks_wide, chunks_tall, pieces;

    static __host__ __device__ __forceinline__ conv_boxes of(const conv_call &c)
    {
        const conv_axis &h = c.axis[1], &w = c.axis[2];
        return {(w.count + TAPS_SIDE - 1) / TAPS_SIDE, (h.count + TAPS_SIDE - 1) / TAPS_SIDE,
                (w.taps + TAPS - 1) / TAPS, (h.taps + TAPS - 1) / TAPS, (c.each + 63) / 64};
    }
};

/** How blocks share the steps, which depends on the shape alone. A tile's steps are divided into
 * parts, one per cluster, and a part's steps among the blocks of the cluster. Each block adds up
 * the cluster's sums for its share of the tile. With several parts, a cluster writes its sums to
 * c.partial (parts, tiles), for conv_taps_merge_kernel(). */
struct conv_taps_plan {
    int tiles; /* tiles of one group of channels */
    int all;   /* tiles of all groups */
    int steps; /* of a tile */
    int cluster, parts; /* blocks of a cluster; parts of a tile */
    int each; /* steps of a block; the last blocks of a tile may have fewer */
};

/** A tile's group of channels (set), first row, first channel in the group, and first tap along the
 * two dims. */
struct conv_taps_tile {
    int set, row, channel, j1, j2;

    __device__ __forceinline__ conv_taps_tile(const conv_call &c, const conv_boxes &b, int tiles,
                                              int tile)
    {
        set = tile / tiles;
        tile -= set * tiles;
        j2 = tile % b.chunks_wide * TAPS;
        tile /= b.chunks_wide;
        j1 = tile % b.chunks_tall * TAPS;
        tile /= b.chunks_tall;
        channel = tile % b.pieces * 64;
        row = tile / b.pieces * 64;
    }
    /** Rounds and stores sums x of N 8-column tiles of a group of warps, from 8-column tile
     * `column` on, in the layout of the group's thread `thread`. The N tiles have one tap. */
    template <class T, int N>
    __device__ __forceinline__ void store(const conv_call &c, const float (&x)[N][4], int group,
                                          int column, int thread) const
    {
        int tap1 = j1 + column / 8, tap2 = j2 + group, at = channel + column % 8 * 8;
        if (tap1 < c.axis[1].taps && tap2 < c.axis[2].taps)
            conv_store_weight<T>(c, x, set, row + thread / 32 * 16 + thread % 32 / 4,
                                 (tap1 * c.axis[2].taps + tap2) * c.each + at, c.each - at);
    }
};

/** Loads four floats from the shared memory of a block of the cluster, at an address from
 * peer_address(). */
__device__ __forceinline__ float4 load_peer(uint32_t at)
{
    float4 x;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "r"(at)
                 : "memory");
    return x;
}
__device__ __forceinline__ void add_to(float (&sum)[4], const float4 &x)
{
    sum[0] += x.x, sum[1] += x.y, sum[2] += x.z, sum[3] += x.w;
}

/** y transposed times the windows, into c.to or, with several parts, c.partial. Maps: `image` (x)
 * in boxes of TAPS_X bytes, y in boxes of TAPS_Y bytes, both (batch, lines, pixels, channels). */
template <class T>
static __global__ void __launch_bounds__(TAPS_BLOCK, 1)
    conv_taps_kernel(const __grid_constant__ conv_call c, const __grid_constant__ CUtensorMap image,
                     const __grid_constant__ CUtensorMap y,
                     const __grid_constant__ conv_taps_plan plan)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) char conv_shared[];
    uint32_t base = shared_address(conv_shared);
    tile_ring<TAPS_STAGES> ring{base + TAPS_STAGES * TAPS_STAGE};
    if (threadIdx.x == 0) {
        ring.init(TAPS);
        barriers_ready();
    }
    __syncthreads();

    conv_boxes boxes = conv_boxes::of(c);
    int group = (int)threadIdx.x / 128, rank = (int)blockIdx.x % plan.cluster,
        cluster = (int)blockIdx.x / plan.cluster, part = cluster / plan.all;
    conv_taps_tile tile(c, boxes, plan.tiles, cluster - part * plan.all);
    int begin = min((part * plan.cluster + rank) * plan.each, plan.steps),
        count = min(plan.each, plan.steps - begin);
    if (group == TAPS) {
        if (threadIdx.x % 32 == 0) {
            int line = begin / boxes.wide, box2 = begin - line * boxes.wide,
                n = line / boxes.tall, box1 = line - n * boxes.tall;
            for (int step = 0; step < count; step++) {
                uint32_t to = base + step % TAPS_STAGES * TAPS_STAGE, full = ring.full(step);
                int at1 = box1 * TAPS_SIDE, at2 = box2 * TAPS_SIDE;
                ring.wait_empty(step);
                barrier_expect(full, TAPS_Y + TAPS_X);
                tma_load(to, &y, tile.set * c.rows + tile.row, at2, at1, n, full);
                tma_load(to + TAPS_Y, &image, tile.set * c.each + tile.channel,
                         at2 + c.axis[2].base + tile.j2, at1 + c.axis[1].base + tile.j1, n, full);
                if (++box2 == boxes.wide) {
                    box2 = 0;
                    if (++box1 == boxes.tall)
                        box1 = 0, n++;
                }
            }
        }
        __syncwarp();
        if (plan.cluster > 1) {
            cluster_sync();
            cluster_sync();
        }
        return;
    }

    constexpr uint64_t LINE = TAPS_LINE * TAPS_PIXEL / 16;
    int thread = (int)threadIdx.x % 128;
    float sums[TAPS_COLUMNS][4] = {};
    for (int step = 0; step < count; step++) {
        uint32_t a = base + step % TAPS_STAGES * TAPS_STAGE, b = a + TAPS_Y + group * TAPS_PIXEL;
        uint64_t taps = (uint64_t)((b & 0x3ffff) >> 4) | LINE << 16 | LINE << 32 | 1ull << 62;
        ring.wait_full(step);
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < TAPS_SIDE / 2; k++)
            wgmma<T, TAPS * 64>::template columns<1, 1>(sums, by_rows<64>(a) + k * 128,
                                                        taps + k * 2 * LINE, 1);
        wgmma_commit();
        wgmma_wait<1>();
        if (step > 0 && thread == 0)
            barrier_arrive(ring.empty(step - 1));
    }
    wgmma_wait<0>();
    pin_accumulators(sums);
    begin_next_kernel();
    float4 *partial = (float4 *)c.partial + (int64_t)cluster * TAPS_SUMS;
    if (plan.cluster == 1) {
        if (plan.parts > 1) {
#pragma unroll
            for (int n = 0; n < TAPS_COLUMNS; n++)
                partial[(group * TAPS_COLUMNS + n) * 128 + thread] =
                    make_float4(sums[n][0], sums[n][1], sums[n][2], sums[n][3]);
            return;
        }
#pragma unroll
        for (int j = 0; j < TAPS; j++)
            tile.store<T>(c, reinterpret_cast<const float(&)[8][4]>(sums[j * 8]), group, j * 8,
                          thread);
        return;
    }
    turn_wait(1, TAPS_THREADS); /* until no warp's products read the stages */
#pragma unroll
    for (int n = 0; n < TAPS_COLUMNS; n++)
        asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(
                         base + ((group * TAPS_COLUMNS + n) * 128 + thread) * 16),
                     "f"(sums[n][0]), "f"(sums[n][1]), "f"(sums[n][2]), "f"(sums[n][3])
                     : "memory");
    cluster_sync();
    int share = TAPS_SUMS / plan.cluster; /* a multiple of TAPS_AT_ONCE * TAPS_THREADS */
    for (int i = rank * share + (int)threadIdx.x; i < (rank + 1) * share;
         i += TAPS_AT_ONCE * TAPS_THREADS) {
        float sum[TAPS_AT_ONCE][1][4] = {};
#pragma unroll 2
        for (int r = 0; r < plan.cluster; r++) {
            uint32_t peer = peer_address(base + i * 16, r);
#pragma unroll
            for (int u = 0; u < TAPS_AT_ONCE; u++)
                add_to(sum[u][0], load_peer(peer + u * TAPS_THREADS * 16));
        }
#pragma unroll
        for (int u = 0; u < TAPS_AT_ONCE; u++) {
            int at = i + u * TAPS_THREADS;
            if (plan.parts > 1)
                partial[at] =
                    make_float4(sum[u][0][0], sum[u][0][1], sum[u][0][2], sum[u][0][3]);
            else
                tile.store<T>(c, sum[u], at / 128 / TAPS_COLUMNS, at / 128 % TAPS_COLUMNS, thread);
        }
    }
    cluster_sync(); /* other blocks have read this block's sums */
#endif
}

/** Adds the parts of the tiles in c.partial, rounds and stores. Block (tile, i) computes 32 of the
 * tile's TAPS_SUMS units: warp w adds parts w, w + TAPS_WARPS, ..., and warp 0 adds the warps' sums
 * in their order. */
template <class T>
static __global__ void __launch_bounds__(TAPS_WARPS * 32)
    conv_taps_merge_kernel(const __grid_constant__ conv_call c,
                           const __grid_constant__ conv_taps_plan plan)
{
    __shared__ float4 rows[TAPS_WARPS][32];
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, i = (int)blockIdx.y * 32 + lane;
    const float4 *from = (const float4 *)c.partial + (int64_t)blockIdx.x * TAPS_SUMS + i;
    float sum[1][4] = {};
    wait_for_kernel_in_front();
#pragma unroll 4
    for (int part = warp; part < plan.parts; part += TAPS_WARPS)
        add_to(sum[0], from[(int64_t)part * plan.all * TAPS_SUMS]);
    rows[warp][lane] = make_float4(sum[0][0], sum[0][1], sum[0][2], sum[0][3]);
    __syncthreads();
    if (warp)
        return;
#pragma unroll
    for (int w = 1; w < TAPS_WARPS; w++)
        add_to(sum[0], rows[w][lane]);
    conv_taps_tile tile(c, conv_boxes::of(c), plan.tiles, (int)blockIdx.x);
    tile.store<T>(c, sum, i / 128 / TAPS_COLUMNS, i / 128 % TAPS_COLUMNS, i % 128);
}

} // namespace ts

#endif
