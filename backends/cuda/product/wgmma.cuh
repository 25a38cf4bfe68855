/**
 * @file wgmma.cuh  Products of bf16 and f16 with the gradient of gelu (tanh form), on Hopper:
 *
 *     y = a b gelu'(x)
 *
 * and, if wanted, the sums of the columns of y, and gelu(x), the *curve*. The derivative gelu' is
 * called the *slope*; x are the *arguments*.
 *
 * The epilogue of a tile takes about as long as its product. Two groups of four warps therefore
 * take turns: while one group's products occupy the tensor cores, the other multiplies its tile by
 * the slope, adds up its columns and stores it. A group has a tile of 128 x 128 results in
 * registers. A thread of a third group loads operands by TMA, the copy engine. Blocks are
 * persistent: each computes many tiles. The curve costs one more multiplication per element and its
 * stores.
 *
 * The blocks of a cluster compute adjacent tiles: two rows of WIDE tiles, WIDE = 1 or 2. Two blocks
 * that need the same tile of an operand load half of it each and send it to both, because the
 * second-level cache can limit the rate of these products.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_GEMM_WGMMA_CUH
#define TS_CUDA_GEMM_WGMMA_CUH

#include "backends/cuda/activation_fn.cuh"
#include "backends/cuda/runtime/early.cuh"
#include "backends/cuda/instructions/wgmma.cuh"

namespace ts
{

enum {
    SLOPE_SIDE = 128,                 /* rows and columns of a tile */
    SLOPE_STAGES = 5,                 /* steps of 64 along k (the inner dim) in shared memory */
    SLOPE_OPERAND = SLOPE_SIDE * 128, /* bytes of one operand in a stage: 128 x 64 halves */
    SLOPE_STAGE = 2 * SLOPE_OPERAND,  /* bytes of a stage */
    SLOPE_HALF = 64 * SLOPE_SIDE * 2, /* bytes of half a tile of results: 64 rows */
    SLOPE_SUMS = 2 * SLOPE_SIDE * 4,  /* bytes of the column sums of two warps */
    SLOPE_BLOCK = 3 * 128,            /* threads of a block */
    /* bytes of shared memory: stages; two halves of a tile and sums for each group; barriers */
    SLOPE_BYTES = SLOPE_STAGES * SLOPE_STAGE + 2 * (2 * SLOPE_HALF + SLOPE_SUMS) + 256
};

/** A product a b of (rows, inner) and (inner, columns). */
struct slope_product {
    int rows, columns, inner;
    int wide, tall; /* numbers of clusters' tiles: along the columns, WIDE * 128 columns each; along
                       the rows, 256 rows each */
    int band;       /* number of adjacent columns of clusters' tiles that are computed together, row
                       by row, before the next columns */
    float *sums;    /* receives the sums of the columns of each 128 rows: 2 * tall lines of
                       `columns` numbers; NULL: not wanted */
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/** The first row and column of a block's tile. number: index of the cluster's tile; rank: index of
 * the block in the cluster. */
template <int WIDE> struct slope_place {
    int row, column;

    __device__ __forceinline__ slope_place(const slope_product &p, int number, int rank)
    {
        int band = number / (p.tall * p.band), first = band * p.band,
            width = min(p.band, p.wide - first), rest = number - first * p.tall;
        row = (rest / width * 2 + rank / WIDE) * SLOPE_SIDE;
        column = ((first + rest % width) * WIDE + rank % WIDE) * SLOPE_SIDE;
    }
};

/** tma_load() into the blocks of a cluster whose bits are set in `ranks`, at equal addresses; each
 * block's barrier at address `barrier` gets the bytes. */
static __device__ __forceinline__ void tma_load_to(unsigned ranks, uint32_t to,
                                                   const CUtensorMap *map, int column, int row,
                                                   uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%2, %3, %4, %4}], [%5], %6;" ::"r"(to),
                 "l"(map), "r"(column), "r"(row), "r"(0), "r"(barrier), "h"((uint16_t)ranks)
                 : "memory");
}
/** Arrives at a barrier of another block, from peer_address(). The arrival does not order accesses
 * between blocks, because a release at the scope of a cluster would be a fence of the whole GPU. No
 * order is needed: products have read their operands when wgmma_wait() returns. */
static __device__ __forceinline__ void peer_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/** Starts the copy of a warp's 16 rows of half a tile, which has 64 rows and 128 columns, to the
 *  map's tensor. One lane calls. */
static __device__ __forceinline__ void stage_out(const CUtensorMap *map, uint32_t half, int column,
                                                 int row)
{
    int mine = threadIdx.x % 128 / 32 * 16;
#pragma unroll
    for (int slab = 0; slab < 2; slab++)
        asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group "
                     "[%0, {%1, %2, %3, %3}], [%4];" ::"l"(map),
                     "r"(column + slab * 64), "r"(row + mine), "r"(0),
                     "r"(half + slab * 64 * 128 + mine * 128)
                     : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/** Waits until all copies of this thread's stage_out() calls, except the last call, have been read
 *  from shared memory. */
static __device__ __forceinline__ void older_stages_wait()
{
    asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
}

/** Two packed halves as f32. */
template <class T> static __device__ __forceinline__ float2 unpack2(uint32_t x);
template <> __device__ __forceinline__ float2 unpack2<bf16>(uint32_t x)
{
    return {__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u)};
}
template <> __device__ __forceinline__ float2 unpack2<f16>(uint32_t x)
{
    return __half22float2(*(const __half2 *)&x);
}

/** put_float() and get_float(): access a float in shared memory. */
static __device__ __forceinline__ void put_float(uint32_t to, float x)
{
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(x) : "memory");
}
static __device__ __forceinline__ float get_float(uint32_t from)
{
    float x;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(from) : "memory");
    return x;
}

/** Two lanes whose indices differ in the bit `lane` add their first 2 HALF sums: the lower lane
 * gets the totals of the first HALF sums in s[0] to s[HALF - 1], the upper lane those of the
 * others. Returns the number, among the 2 HALF sums, of the lane's first total. */
template <int HALF> static __device__ __forceinline__ int share_sums(float (&s)[32], int lane)
{
    bool upper = threadIdx.x & lane;
#pragma unroll
    for (int i = 0; i < HALF; i++) {
        float sent = upper ? s[i] : s[i + HALF], kept = upper ? s[i + HALF] : s[i];
        s[i] = kept + __shfl_xor_sync(~0u, sent, lane);
    }
    return upper ? HALF : 0;
}
/** Adds up s over the eight lanes with equal lane % 4. Each lane gets four of the 32 totals, in
 *  s[0] to s[3]. Returns the number of the first. */
static __device__ __forceinline__ int add_rows(float (&s)[32])
{
    int first = share_sums<16>(s, 16);
    first += share_sums<8>(s, 8);
    return first + share_sums<4>(s, 4);
}

/** Shared-memory addresses of a block: stages of operands, tiles of results and arguments, column
 * sums, barriers. */
struct slope_memory {
    uint32_t stages, tiles, sums;
    tile_ring<SLOPE_STAGES> ring;
    uint32_t arguments; /* barriers for loads of arguments, one per warp */

    __device__ __forceinline__ explicit slope_memory(uint32_t base)
    {
        stages = base;
        tiles = stages + SLOPE_STAGES * SLOPE_STAGE;
        sums = tiles + 4 * SLOPE_HALF;
        ring.barriers = sums + 2 * SLOPE_SUMS;
        arguments = ring.barriers + tile_ring<SLOPE_STAGES>::bytes;
    }
};

/** Loads the operands of all tiles of the block; one thread calls. cluster: index of the block's
 * cluster among `clusters`; rank: index of the block in the cluster. */
template <int WIDE>
static __device__ __forceinline__ void load_operands(const slope_product &p, const slope_memory &m,
                                                     const CUtensorMap *a, const CUtensorMap *b,
                                                     int cluster, int clusters, int rank)
{
    int steps = (p.inner + 63) / 64, i = 0, down = rank / WIDE, right = rank % WIDE;
    unsigned beside = 3u << down * WIDE, below = (1u | 1u << WIDE) << right;
    for (int tile = cluster; tile < p.wide * p.tall; tile += clusters) {
        const slope_place<WIDE> at(p, tile, rank);
        int row = at.row, column = at.column;
        for (int k = 0; k < steps; k++, i++) {
            /* the blocks that this one sends to have read the stage */
            m.ring.wait_empty(i);
            uint32_t full = m.ring.full(i), to = m.stages + i % SLOPE_STAGES * SLOPE_STAGE;
            barrier_expect(full, SLOPE_STAGE);
            if (WIDE == 1)
                tma_load(to, a, k * 64, row, 0, 0, full);
            else
                tma_load_to(beside, to + right * (SLOPE_OPERAND / 2), a, k * 64, row + right * 64,
                            full);
            to += SLOPE_OPERAND + down * (SLOPE_OPERAND / 2);
            tma_load_to(below, to, b, column + down * 64, k * 64, full);
        }
    }
}

/** d = a b for one tile. i: number of the tile's first step among all steps of the block. next:
 * named barrier that gives the turn to the other group; 0: none. */
template <class T, int WIDE>
static __device__ __forceinline__ void multiply(float (&d)[2][16][4], const slope_memory &m, int i,
                                                int steps, int next, int rank)
{
    bool tells = threadIdx.x % 32 == 0;
    /* releases the stage of step `of` to the blocks that send to this one: all but the block that
     * is diagonally opposite in the cluster */
    auto release = [&](int of) {
        if (tells) {
            peer_arrive(peer_address(m.ring.empty(of), WIDE == 1 ? 0 : rank));
            peer_arrive(peer_address(m.ring.empty(of), WIDE == 1 ? 1 : rank ^ 1));
            if (WIDE == 2)
                peer_arrive(peer_address(m.ring.empty(of), rank ^ 2));
        }
    };
    discard_accumulators(d[0]);
    discard_accumulators(d[1]);
    for (int k = 0; k < steps; k++) {
        m.ring.wait_full(i + k);
        uint32_t left = m.stages + (i + k) % SLOPE_STAGES * SLOPE_STAGE,
                 right = left + SLOPE_OPERAND;
        wgmma_begin();
#pragma unroll
        for (int part = 0; part < 4; part++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                wgmma<T, SLOPE_SIDE>::template columns<1>(
                    d[half], by_columns(left + half * 64 * 128) + part * 2,
                    by_rows<64>(right) + part * 128, k + part > 0);
        wgmma_commit();
        if (k) {
            wgmma_wait<1>();
            release(i + k - 1);
        }
    }
    if (next)
        turn_give(next, 256); /* the other group's products follow at once */
    wgmma_wait<0>();
    pin_accumulators(d[0]);
    pin_accumulators(d[1]);
    release(i + steps - 1);
}

/** Shared-memory address that the calling lane passes to ldmatrix or stmatrix for columns 8 n to
 *  8 n + 15 of its warp's 16 rows of a half tile. n is even, so the lane's 16-byte chunk n + lane /
 *  16 is at a fixed address of the lane xor 16 (n % 8). */
static __device__ __forceinline__ uint32_t place_in(uint32_t half, int n)
{
    int lane = threadIdx.x % 32, r = threadIdx.x % 128 / 32 * 16 + lane % 16;
    return ((half + r * 128 + ((lane / 16 ^ r % 8) << 4)) ^ (uint32_t)(n % 8 << 4)) +
           n / 8 * (64 * 128);
}
/** stmatrix of four 8 x 8 matrices. */
static __device__ __forceinline__ void put4(uint32_t to, uint32_t a, uint32_t b, uint32_t c,
                                            uint32_t d)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}

/** Derivative of gelu, tanh form: s + x s (1 - s) 2 u'(x) with s = sigmoid(2 u(x)) and
 *  u(x) = sqrt(2 / pi) (x + 0.044715 x^3), as fn::gelu_tanh_slope() in fewer instructions. The
 *  constants are the coefficients of -2 log2(e) u(x) and of 2 u'(x). The bounds avoid Inf * 0. Sets
 *  *gelu to x s, as fn::gelu_tanh_at(). */
static __device__ __forceinline__ float slope_at(float x, float *gelu)
{
    float square = fminf(x * x, 1600), above = fmaxf(x, -40), near = fminf(above, 40),
          s = reciprocal_fast(1 + exp2_fast(x * fmaf(-0.10294324f, square, -2.3022082f)));
    *gelu = above * s;
    return fmaf(near * fmaf(0.21406446f, square, 1.5957691f), fmaf(-s, s, s), s);
}

/** Multiplies columns 16 k to 16 k + 15 of half a tile, d, by the slope at the packed arguments x.
 *  Replaces x by the rounded products, adds these to the column sums s, and sets `curve` to
 *  gelu(x). */
template <class T>
static __device__ __forceinline__ void apply_slope(const float (&d)[16][4], int k, uint32_t (&x)[4],
                                                   float (&s)[32], uint32_t (&curve)[4])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int n = 2 * k + i / 2;
        const float *v = &d[n][i % 2 * 2];
        float2 u = unpack2<T>(x[i]), g;
        x[i] = pack2<T>(v[0] * slope_at(u.x, &g.x), v[1] * slope_at(u.y, &g.y));
        curve[i] = pack2<T>(g.x, g.y);
        u = unpack2<T>(x[i]);
        s[n * 2] += u.x;
        s[n * 2 + 1] += u.y;
    }
}

/** Multiplies the tile d by the slope at the arguments in `halves`, starts the store of the
 *  products to y and adds up their columns in s. `halves`: two half tiles in shared memory, which
 *  receive the products. */
template <class T>
static __device__ __forceinline__ void store_slope(const slope_product &p, float (&d)[2][16][4],
                                                   uint32_t halves, float (&s)[32],
                                                   const CUtensorMap *y, int row, int column)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t x[8][4], curve[4];
#pragma unroll
        for (int k = 0; k < 8; k++)
            ldmatrix(x[k], place_in(halves + half * SLOPE_HALF, 2 * k));
#pragma unroll
        for (int k = 0; k < 8; k++)
            apply_slope<T>(d[half], k, x[k], s, curve);
#pragma unroll
        for (int k = 0; k < 8; k++)
            put4(place_in(halves + half * SLOPE_HALF, 2 * k), x[k][0], x[k][1], x[k][2], x[k][3]);
        tma_sees_shared();
        __syncwarp();
        if (lane == 0 && row + half * 64 + warp * 16 < p.rows)
            stage_out(y, halves + half * SLOPE_HALF, column, row + half * 64);
    }
}

/** store_slope() that also stores the curve. The products stay in registers until the curve has
 *  been copied from `halves`, which then receives the products. */
template <class T>
static __device__ __forceinline__ void
store_slope_and_gelu(const slope_product &p, float (&d)[2][16][4], uint32_t halves, float (&s)[32],
                     const CUtensorMap *y, const CUtensorMap *gelu, int row, int column)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
    enum { AHEAD = 2 }; /* loads in flight; more spill registers */
    uint32_t x[2][8][4];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t at = halves + half * SLOPE_HALF;
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            ldmatrix(x[half][k], place_in(at, 2 * k));
#pragma unroll
        for (int k = 0; k < 8; k++) {
            uint32_t curve[4];
            if (k + AHEAD < 8)
                ldmatrix(x[half][k + AHEAD], place_in(at, 2 * (k + AHEAD)));
            apply_slope<T>(d[half], k, x[half][k], s, curve);
            put4(place_in(at, 2 * k), curve[0], curve[1], curve[2], curve[3]);
        }
        tma_sees_shared();
        __syncwarp();
        if (lane == 0 && row + half * 64 + warp * 16 < p.rows)
            stage_out(gelu, at, column, row + half * 64);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t at = halves + half * SLOPE_HALF;
        if (lane == 0 && row + 64 + warp * 16 < p.rows)
            older_stages_wait();
        else if (lane == 0)
            tma_stores_wait(); /* the second half is outside: it started no copy */
        __syncwarp();
#pragma unroll
        for (int k = 0; k < 8; k++)
            put4(place_in(at, 2 * k), x[half][k][0], x[half][k][1], x[half][k][2], x[half][k][3]);
        tma_sees_shared();
        __syncwarp();
        if (lane == 0 && row + half * 64 + warp * 16 < p.rows)
            stage_out(y, at, column, row + half * 64);
    }
}

/** Adds up a group's column sums and stores them in p.sums. s: a thread's sums over its rows; sums:
 *  shared memory of SLOPE_SUMS bytes; barrier: named barrier of the group; row, column: of the
 *  tile. */
static __device__ __forceinline__ void store_sums(const slope_product &p, float (&s)[32],
                                                  uint32_t sums, int barrier, int row, int column)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
    int from = add_rows(s);
    auto place = [&](int w, int at) { return sums + (w * SLOPE_SIDE + at) * 4; };
    auto put = [&](bool adds) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t to = place(warp % 2, (from + i) / 2 * 8 + lane % 4 * 2 + i % 2);
            put_float(to, adds ? s[i] + get_float(to) : s[i]);
        }
    };
    if (warp > 1)
        put(false);
    turn_wait(barrier, 128);
    if (warp < 2)
        put(true);
    turn_wait(barrier, 128);
    int at = threadIdx.x % 128;
    float total = get_float(place(0, at)) + get_float(place(1, at));
    if (column + at < p.columns)
        p.sums[(int64_t)(row / SLOPE_SIDE) * p.columns + column + at] = total;
}

#endif

/** y = a b gelu'(x), with GELU also curve = gelu(x). All matrices have dense rows. WIDE: 1 or 2,
 * for clusters of 2 or 4 blocks. Boxes of the maps: 128 / WIDE rows of a, 64 rows of b, 16 rows of
 * x, y and curve. Named barriers: 1 + group for turns, 3 + group for column sums. */
template <class T, bool GELU, int WIDE>
__global__ void __launch_bounds__(SLOPE_BLOCK, 1)
    slope_kernel(const __grid_constant__ slope_product p, const __grid_constant__ CUtensorMap a,
                 const __grid_constant__ CUtensorMap b, const __grid_constant__ CUtensorMap x,
                 const __grid_constant__ CUtensorMap y, const __grid_constant__ CUtensorMap curve)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) char slope_shared[];
    slope_memory m(shared_address(slope_shared));
    int group = (int)threadIdx.x / 128, rank = (int)cluster_rank(),
        cluster = (int)blockIdx.x / (2 * WIDE), clusters = (int)gridDim.x / (2 * WIDE),
        steps = (p.inner + 63) / 64;
    if (threadIdx.x == 0) {
        m.ring.init(4 * (1 + WIDE)); /* a group's warps, in each block that this one sends to */
        for (int warp = 0; warp < 8; warp++)
            barrier_init(m.arguments + warp * 8, 1);
        barriers_ready();
    }
    cluster_sync();
    wait_for_kernel_in_front();
    begin_next_kernel();
    if (group == 2) {
        registers_shrink<40>();
        if (threadIdx.x == 256)
            load_operands<WIDE>(p, m, &a, &b, cluster, clusters, rank);
        __syncwarp();
    } else {
        registers_grow<232>();
        uint32_t halves = m.tiles + group * 2 * SLOPE_HALF,
                 arguments = m.arguments + threadIdx.x / 32 * 8;
        bool first = threadIdx.x % 32 == 0;
        float d[2][16][4];
        auto load_arguments = [&](int tile) {
            const slope_place<WIDE> at(p, tile, rank);
            tma_stores_wait();
            barrier_expect(arguments, 2 * SLOPE_HALF / 4);
            int mine = threadIdx.x % 128 / 32 * 16;
#pragma unroll
            for (int part = 0; part < 4; part++)
                tma_load(halves + part * 64 * 128 + mine * 128, &x, at.column + part % 2 * 64,
                         at.row + part / 2 * 64 + mine, 0, 0, arguments);
        };
        int tile = cluster + group * clusters, tiles = p.wide * p.tall, i = group * steps;
        if (first && tile < tiles)
            load_arguments(tile);
        if (group == 1)
            turn_give(1, 256);
        for (int turn = 0; tile < tiles; turn++, tile += 2 * clusters, i += 2 * steps) {
            const slope_place<WIDE> at(p, tile, rank);
            turn_wait(1 + group, 256);
            multiply<T, WIDE>(d, m, i, steps, tile + clusters < tiles ? 2 - group : 0, rank);
            barrier_wait(arguments, turn & 1);
            float sums[32] = {};
            if constexpr (GELU)
                store_slope_and_gelu<T>(p, d, halves, sums, &y, &curve, at.row, at.column);
            else
                store_slope<T>(p, d, halves, sums, &y, at.row, at.column);
            if (p.sums)
                store_sums(p, sums, m.sums + group * SLOPE_SUMS, 3 + group, at.row, at.column);
            if (first && tile + 2 * clusters < tiles)
                load_arguments(tile + 2 * clusters);
        }
        if (first)
            tma_stores_wait();
    }
    cluster_sync(); /* other blocks may still send to this one */
#endif
}

} // namespace ts

#endif
