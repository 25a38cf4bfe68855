/**
 * @file wgmma.cuh  Hopper's instructions (sm_90a): tile copies by the copy engine (TMA), and
 * products by a group of four warps that read operands from shared memory (PTX ISA:
 * cp.async.bulk.tensor, wgmma, setmaxnreg).
 *
 * A tile of R rows consists of slabs of 64 columns of 2 bytes, R rows of 128 bytes each, in the
 * copy engine's 128-byte swizzle: the 16-byte chunk c of row r is at position c xor (r mod 8) of
 * the row. Slabs start at multiples of 1,024 bytes. Either the columns or the rows of a tile can be
 * the depth of a product, the dim that is summed.
 *
 * The order of products of a group: wgmma_begin(), products, wgmma_commit(), wgmma_wait(),
 * pin_accumulators().
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_WGMMA_CUH
#define TS_CUDA_WGMMA_CUH

#include <cuda.h>

#include "backends/cuda/instructions/barrier.cuh"
#include "backends/cuda/instructions/mma.cuh"

namespace ts {

/* ----------------------------------------------------------------- turns and copies ---- */

/** Named barrier `number` of a block, 0 to 15, at which `threads` threads arrive: turn_wait()
 * arrives and waits for all of them (bar.sync), turn_give() arrives without waiting (bar.arrive).
 * Two groups of warps take turns with them: each waits at its barrier, and the other one gives it
 * the turn. */
__device__ __forceinline__ void turn_wait(int number, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
__device__ __forceinline__ void turn_give(int number, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

/** Starts the copy of a box from the map's tensor to shared memory. The box begins at element
 * (column, row, head, batch) of the tensor; its elements outside the tensor are zero. Reports the
 * bytes of the box to `barrier`. map: of four dims, for example from tma_map() (tma.h). */
__device__ __forceinline__ void tma_load(uint32_t to, const CUtensorMap *map, int column, int row,
                                         int head, int batch, uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
                 "l"(map), "r"(column), "r"(row), "r"(head), "r"(batch), "r"(barrier)
                 : "memory");
}
/** Starts the copies of a tile of ROWS x COLUMNS, slab by slab. The map's boxes have ROWS rows. */
template <int ROWS, int COLUMNS>
__device__ __forceinline__ void tma_load_tile(uint32_t to, const CUtensorMap *map, int row,
                                              int head, int batch, uint32_t barrier)
{
#pragma unroll
    for (int slab = 0; slab < COLUMNS / 64; slab++)
        tma_load(to + slab * ROWS * 128, map, slab * 64, row, head, batch, barrier);
}

/** Makes the calling thread's stores to shared memory visible to TMA. Call it before the barrier
 * after which a thread starts a TMA store of them. */
__device__ __forceinline__ void tma_sees_shared()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/** Starts the copy of a tile of ROWS x COLUMNS in shared memory, slab by slab, to the map's tensor.
 * Elements outside the tensor are not written. */
template <int ROWS, int COLUMNS>
__device__ __forceinline__ void tma_store_tile(uint32_t from, const CUtensorMap *map, int row,
                                               int head, int batch)
{
#pragma unroll
    for (int slab = 0; slab < COLUMNS / 64; slab++)
        asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group "
                     "[%0, {%1, %2, %3, %4}], [%5];" ::"l"(map),
                     "r"(slab * 64), "r"(row), "r"(head), "r"(batch), "r"(from + slab * ROWS * 128)
                     : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/** Waits until this thread's bulk stores have read their source in shared memory. */
__device__ __forceinline__ void tma_stores_wait()
{
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

/** registers_grow() and registers_shrink() change the number of registers per thread to COUNT. All
 * four warps of a group must call. */
template <int COUNT> __device__ __forceinline__ void registers_grow()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> __device__ __forceinline__ void registers_shrink()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

/* ---------------------------------------------------------------------------- products ---- */

/** Call before the first product that uses registers written since the last products. */
__device__ __forceinline__ void wgmma_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
/** Makes a group of the products since the last call, for wgmma_wait(). */
__device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/** Waits until all but the last LEFT groups of products are done. Call pin_accumulators() on their
 *  accumulators afterwards. */
template <int LEFT> __device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
/** Keeps the compiler from reading accumulators before this point. */
template <int N> __device__ __forceinline__ void pin_accumulators(float (&d)[N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            asm volatile("" : "+f"(d[n][e])::"memory");
}

/** Tells the compiler that the accumulators' old values are unused, before products that overwrite
 * them. */
template <int N> __device__ __forceinline__ void discard_accumulators(float (&d)[N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            asm volatile("" : "=f"(d[n][e])::"memory");
}

/* Descriptors of tiles (PTX ISA: matrix descriptor). Addresses and distances count 16 bytes: bits 0
 * to 13 are the address, bits 16 to 29 the distance of slabs (by_rows() only), bits 32 to 45 the
 * distance of groups of 8 rows (64: 1,024 bytes); bit 62 selects the 128-byte swizzle. */

/** Descriptor of a tile at shared-memory address `at` whose columns are the depth. Add 2 for the
 * next 16 columns of the slab. */
__device__ __forceinline__ uint64_t by_columns(uint32_t at)
{
    return (uint64_t)((at & 0x3ffff) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}
/** Descriptor of a tile whose rows are the depth, with slabs of ROWS rows. Add 128 for the next 16
 * rows. */
template <int ROWS> __device__ __forceinline__ uint64_t by_rows(uint32_t at)
{
    return (uint64_t)((at & 0x3ffff) >> 4) | (uint64_t)(ROWS * 128 >> 4) << 16 | 64ull << 32 |
           1ull << 62;
}

/*
 * wgmma<T, W>: d = a b or d += a b with depth 16. d is 64 x W in f32: warp w of the group has rows
 * 16 w to 16 w + 15, and d[n] its columns 8 n to 8 n + 7 in the layout of mma(). An asm statement
 * does not accept arrays: WGMMA_TILES lists the elements of d, WGMMA_REGISTERS their operand
 * numbers, and i to m are the numbers of the operands after them.
 */
template <class T, int W> struct wgmma;

#define WGMMA_TILE(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define WGMMA_TILES_64                                                                             \
    WGMMA_TILE(0), WGMMA_TILE(1), WGMMA_TILE(2), WGMMA_TILE(3), WGMMA_TILE(4), WGMMA_TILE(5),      \
        WGMMA_TILE(6), WGMMA_TILE(7)
#define WGMMA_TILES_128                                                                            \
    WGMMA_TILES_64, WGMMA_TILE(8), WGMMA_TILE(9), WGMMA_TILE(10), WGMMA_TILE(11), WGMMA_TILE(12),  \
        WGMMA_TILE(13), WGMMA_TILE(14), WGMMA_TILE(15)
#define WGMMA_TILES_192                                                                            \
    WGMMA_TILES_128, WGMMA_TILE(16), WGMMA_TILE(17), WGMMA_TILE(18), WGMMA_TILE(19),               \
        WGMMA_TILE(20), WGMMA_TILE(21), WGMMA_TILE(22), WGMMA_TILE(23)
#define WGMMA_TILES_256                                                                            \
    WGMMA_TILES_192, WGMMA_TILE(24), WGMMA_TILE(25), WGMMA_TILE(26), WGMMA_TILE(27),               \
        WGMMA_TILE(28), WGMMA_TILE(29), WGMMA_TILE(30), WGMMA_TILE(31)
#define WGMMA_REGISTERS_64                                                                         \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "   \
    "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_REGISTERS_128                                                                        \
    WGMMA_REGISTERS_64 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, "  \
                       "%46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "    \
                       "%60, %61, %62, %63"

#define WGMMA_REGISTERS_192                                                                        \
    WGMMA_REGISTERS_128                                                                            \
        ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "       \
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define WGMMA_REGISTERS_256                                                                        \
    WGMMA_REGISTERS_192                                                                            \
        ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, "       \
        "%110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, "           \
        "%123, %124, %125, %126, %127"

#define WGMMA(T, W, i, j, k, l, m)                                                                 \
    template <> struct wgmma<T, W> {                                                               \
        /* d = a b if some is 0, else d += a b. a and b are descriptors by_columns(). With */      \
        /* A_ROWS = 1, a is a descriptor by_rows(); with ROWS = 1, b is. */                        \
        template <int ROWS = 0, int A_ROWS = 0>                                                    \
        static __device__ __forceinline__ void columns(float (&d)[W / 8][4], uint64_t a,           \
                                                       uint64_t b, int some)                       \
        {                                                                                          \
            asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %" #k ", 0;\n\t"                    \
                         "wgmma.mma_async.sync.aligned.m64n" #W "k16.f32." #T "." #T               \
                         " {" WGMMA_REGISTERS_##W "}, %" #i ", %" #j ", p, 1, 1, %" #m ", %" #l    \
                                                  ";\n\t}"                                         \
                         : WGMMA_TILES_##W                                                         \
                         : "l"(a), "l"(b), "r"(some), "n"(ROWS), "n"(A_ROWS));                     \
        }                                                                                          \
        /* d += a b. a is in registers (pack_left()), b is a descriptor by_rows(). */              \
        static __device__ __forceinline__ void rows(float (&d)[W / 8][4], const uint32_t (&a)[4],  \
                                                    uint64_t b)                                    \
        {                                                                                          \
            asm volatile("wgmma.mma_async.sync.aligned.m64n" #W "k16.f32." #T "." #T               \
                         " {" WGMMA_REGISTERS_##W "}, {%" #i ", %" #j ", %" #k ", %" #l "}, %" #m  \
                                                  ", 1, 1, 1, 1;"                                  \
                         : WGMMA_TILES_##W                                                         \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                    \
        }                                                                                          \
    }

WGMMA(bf16, 64, 32, 33, 34, 35, 36);
WGMMA(f16, 64, 32, 33, 34, 35, 36);
WGMMA(bf16, 128, 64, 65, 66, 67, 68);
WGMMA(f16, 128, 64, 65, 66, 67, 68);
WGMMA(bf16, 192, 96, 97, 98, 99, 100);
WGMMA(f16, 192, 96, 97, 98, 99, 100);
WGMMA(bf16, 256, 128, 129, 130, 131, 132);
WGMMA(f16, 256, 128, 129, 130, 131, 132);

#undef WGMMA
#undef WGMMA_TILE
#undef WGMMA_TILES_64
#undef WGMMA_TILES_128
#undef WGMMA_TILES_192
#undef WGMMA_TILES_256
#undef WGMMA_REGISTERS_64
#undef WGMMA_REGISTERS_128
#undef WGMMA_REGISTERS_192
#undef WGMMA_REGISTERS_256

/** Starts d = a bT over DEPTH columns. a and b are shared-memory addresses of tiles with slabs of
 * A_ROWS and B_ROWS rows. d is 64 x 8 N, like in the next two functions. */
template <class T, int DEPTH, int A_ROWS, int B_ROWS, int N>
__device__ __forceinline__ void wgmma_products(float (&d)[N][4], uint32_t a, uint32_t b)
{
#pragma unroll
    for (int k = 0; k < DEPTH / 16; k++)
        wgmma<T, N * 8>::columns(d, by_columns(a + k / 4 * A_ROWS * 128) + k % 4 * 2,
                                 by_columns(b + k / 4 * B_ROWS * 128) + k % 4 * 2, k > 0);
}
/** Starts d = a b. The depth is the columns of a, whose slabs are A_STEP bytes apart, and the
 * B_ROWS rows of b. */
template <class T, int B_ROWS, int A_STEP, int N>
__device__ __forceinline__ void wgmma_crossed(float (&d)[N][4], uint32_t a, uint32_t b)
{
#pragma unroll
    for (int k = 0; k < B_ROWS / 16; k++)
        wgmma<T, N * 8>::template columns<1>(d, by_columns(a + k / 4 * A_STEP) + k % 4 * 2,
                                             by_rows<B_ROWS>(b) + k * 128, k > 0);
}
/** Starts d += p b. The left operand p is in registers (pack_left()); the depth is the B_ROWS rows
 * of b. */
template <class T, int B_ROWS, int N>
__device__ __forceinline__ void wgmma_accumulate(float (&d)[N][4],
                                                 const uint32_t (&p)[B_ROWS / 16][4], uint32_t b)
{
    constexpr int FIRST = N > 16 ? 16 : N; /* 8-column tiles of d that the first product computes */
#pragma unroll
    for (int k = 0; k < B_ROWS / 16; k++) {
        wgmma<T, FIRST * 8>::rows(reinterpret_cast<float(&)[FIRST][4]>(d), p[k],
                                  by_rows<B_ROWS>(b) + k * 128);
        if constexpr (N > 16)
            wgmma<T, (N - 16) * 8>::rows(reinterpret_cast<float(&)[N - 16][4]>(d[16]), p[k],
                                         by_rows<B_ROWS>(b + 2 * B_ROWS * 128) + k * 128);
    }
}
/** Rounds accumulators, 64 x 8 N, to T and packs them as a left operand p, whose N / 2 fragments
 * have 16 columns each. */
template <class T, int N>
__device__ __forceinline__ void pack_left(uint32_t (&p)[N / 2][4], const float (&s)[N][4])
{
#pragma unroll
    for (int k = 0; k < N / 2; k++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            p[k][i] = pack2<T>(s[2 * k + i / 2][i % 2 * 2], s[2 * k + i / 2][i % 2 * 2 + 1]);
}

/** Atomically adds to four adjacent floats at a 16-byte aligned address, in no fixed order (PTX
 * ISA: red, for sm_90). */
__device__ __forceinline__ void add_to_memory(float *to, const float (&x)[4])
{
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x[0]),
                 "f"(x[1]), "f"(x[2]), "f"(x[3])
                 : "memory");
}

/* ------------------------------------------------------------------------------- rings ---- */

/** Barriers of a ring of STAGES tiles in shared memory: STAGES `full` barriers, then STAGES `empty`
 * barriers, at address `barriers`. Tile i uses stage i % STAGES. A stage is full after the
 * producer's barrier_expect() and the copies of the announced bytes, and empty after an arrival of
 * each of `readers` readers. For tile i, the producer calls wait_empty(i) and starts copies to
 * full(i); a reader calls wait_full(i) and arrives at empty(i). Tiles are used in the order 0, 1,
 * 2, ... */
template <int STAGES> struct tile_ring {
    static constexpr int bytes = 16 * STAGES; /* of the barriers */
    uint32_t barriers;

    __device__ __forceinline__ uint32_t full(int i) const { return barriers + i % STAGES * 8; }
    __device__ __forceinline__ uint32_t empty(int i) const
    {
        return barriers + (STAGES + i % STAGES) * 8;
    }
    __device__ __forceinline__ void init(int readers) const
    {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(full(i), 1);
            barrier_init(empty(i), readers);
        }
    }
    __device__ __forceinline__ void wait_full(int i) const
    {
        barrier_wait(full(i), i / STAGES & 1);
    }
    __device__ __forceinline__ void wait_empty(int i) const
    {
        barrier_wait(empty(i), ~(i / STAGES) & 1);
    }
};

/** Multiplies a group's accumulators x, 64 x 8 N, by a factor per row, rounds the products to T,
 * and stores them in a tile of 64 rows at shared-memory address `tile`. low and high: factors of
 * rows lane / 4 and lane / 4 + 8 of the warp's 16 rows. */
template <class T, int N>
__device__ __forceinline__ void put_group(uint32_t tile, const float (&x)[N][4], float low,
                                          float high)
{
    int lane = threadIdx.x % 32, r = threadIdx.x % 128 / 32 * 16 + lane % 16;
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        int chunk = n + lane / 16;
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                         tile + chunk / 8 * (64 * 128) + r * 128 + ((chunk % 8 ^ r % 8) << 4)),
                     "r"(pack2<T>(x[n][0] * low, x[n][1] * low)),
                     "r"(pack2<T>(x[n][2] * high, x[n][3] * high)),
                     "r"(pack2<T>(x[n + 1][0] * low, x[n + 1][1] * low)),
                     "r"(pack2<T>(x[n + 1][2] * high, x[n + 1][3] * high))
                     : "memory");
    }
}

/** Stores a group's packed left operand, 64 rows x 16 N columns, transposed: as 16 N rows and 64
 * columns of the slab at a shared-memory address. */
template <int N>
__device__ __forceinline__ void put_transposed(uint32_t slab, const uint32_t (&p)[N][4])
{
    int lane = threadIdx.x % 32, r = lane / 16 * 8 + lane % 8,
        chunk = threadIdx.x % 128 / 32 * 2 + lane / 8 % 2;
#pragma unroll
    for (int n = 0; n < N; n++)
        store_transposed(slab + n * 16 * 128 + r * 128 + ((chunk ^ r % 8) << 4), p[n]);
}

/**
 * Multiplies and rounds accumulators as put_group() does, and stores them in rows `row` to row + 63
 * of a tile of ROWS rows, whose contents the group no longer needs. Then copies the first `rows` of
 * these rows and the first `columns` columns to global memory at `to`, with row stride `step` in
 * elements. The copy stores 16 bytes at a time: `to` must be 16-byte aligned, and `columns` and
 * `step` multiples of 8. Uses the named barrier 8 + index of the group.
 */
template <class T, int ROWS, int N>
__device__ __forceinline__ void write_group(uint32_t tile, int row, const float (&x)[N][4],
                                            float low, float high, T *to, int64_t step, int rows,
                                            int columns)
{
    int lane = threadIdx.x % 32, mine = row + threadIdx.x % 128 / 32 * 16;
    turn_wait(8 + threadIdx.x / 128, 128); /* until no warp's products read the tile */
    auto at = [&](int r, int chunk) {
        return tile + chunk / 8 * (ROWS * 128) + r * 128 + ((chunk % 8 ^ r % 8) << 4);
    };
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float factor = half ? high : low;
            asm volatile(
                "st.shared.b32 [%0], %1;" ::"r"(at(mine + lane / 4 + 8 * half, n) + lane % 4 * 4),
                "r"(pack2<T>(x[n][2 * half] * factor, x[n][2 * half + 1] * factor))
                : "memory");
        }
    __syncwarp();
#pragma unroll 4
    for (int index = lane; index < 16 * N; index += 32) {
        int r = mine + index / N, chunk = index % N;
        if (r - row < rows && chunk * 8 < columns) {
            uint4 v;
            asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                         : "r"(at(r, chunk))
                         : "memory");
            *(uint4 *)(to + (r - row) * step + chunk * 8) = v;
        }
    }
}

} // namespace ts

#endif
