/**
 * @file mma.cuh
 * The tensor cores of sm_80 and later: asynchronous 16-byte copies, fragments from shared memory,
 * products of a 16 x 16 and a 16 x 8 matrix (PTX ISA: cp.async, ldmatrix, mma). A fragment is the
 * part of a small matrix that each lane of a warp has in registers; the PTX ISA defines its layout.
 *
 * A tile in shared memory consists of rows of COLUMNS 2-byte elements, a multiple of 64. The
 * 16-byte chunk c of row r is at position c xor (r mod 8) of its row, so that the same chunk of
 * eight rows is in different banks.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_MMA_CUH
#define TS_CUDA_MMA_CUH

#include "backends/cuda/types.cuh"

namespace ts {

/** Starts an asynchronous copy of 16 bytes from global to shared memory; with `some` false it
 * writes zeros and does not read `from`. */
__device__ __forceinline__ void copy16(uint32_t to, const void *from, bool some)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(some ? 16 : 0)
                 : "memory");
}
/** Makes a group of this thread's copies since the last call, for copies_wait(). */
__device__ __forceinline__ void copies_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/** Waits until all but the last LEFT committed groups of this thread's copies are complete. */
template <int LEFT> __device__ __forceinline__ void copies_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

/** Loads four 8 x 8 matrices of 2-byte elements. Lane i passes the shared-memory address of row
 * i mod 8 of matrix i / 8. */
__device__ __forceinline__ void ldmatrix(uint32_t (&x)[4], uint32_t from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(from)
                 : "memory");
}
/** ldmatrix() of the transposed matrices. */
__device__ __forceinline__ void ldmatrix_transposed(uint32_t (&x)[4], uint32_t from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(from)
                 : "memory");
}

/** A tile in shared memory. COLUMNS: elements of a row, in units of 2 bytes. */
template <int COLUMNS> struct mma_tile {
    static_assert(COLUMNS % 64 == 0, "the swizzle spans eight chunks");
    uint32_t base; /* shared-memory address */

    /** Shared-memory address of a 16-byte chunk of a row. */
    __device__ __forceinline__ uint32_t at(int row, int chunk) const
    {
        return base + (uint32_t)row * (COLUMNS * 2) + (uint32_t)((chunk ^ (row & 7)) << 4);
    }
    /** Starts the copy of ROWS rows; all THREADS threads of the block call. Rows at `rows` and
     * above and columns at `columns` and above become zero. `row_step`: elements from row to row of
     * `from`. `from`, row_step and `columns` must be multiples of 16 bytes. */
    template <int ROWS, int THREADS, class T>
    __device__ __forceinline__ void load(const T *from, int64_t row_step, int rows,
                                         int columns) const
    {
        constexpr int chunks = COLUMNS / 8, step = THREADS / chunks, wide = 16 / sizeof(T);
        static_assert(THREADS % chunks == 0 && ROWS % step == 0, "a thread keeps to its column");
        int first = (int)threadIdx.x / chunks, chunk = (int)threadIdx.x % chunks;
        const T *mine = from + first * row_step + chunk * wide;
#pragma unroll
        for (int i = 0; i < ROWS / step; i++, mine += step * row_step) {
            bool some = first + i * step < rows && chunk * wide < columns;
            copy16(at(first + i * step, chunk), some ? mine : from, some);
        }
    }
    /* In the functions below `row` must be a multiple of 8. Then the address of a fragment is a
     * lane's address of the tile plus an offset, with two bits flipped, so that few addresses
     * occupy registers. */
    /** Loads rows row to row + 15, columns 16 k to 16 k + 15, as the left operand of mma(). */
    __device__ __forceinline__ void left(uint32_t (&a)[4], int row, int k) const
    {
        int lane = threadIdx.x % 32;
        ldmatrix(a, moved(at(lane % 16, lane / 16), row, k));
    }
    /** Loads rows row to row + 15, columns 16 k to 16 k + 15, as two right operands of mma(). A row
     * of the tile is a column of an operand. b[0..1]: the first eight rows; b[2..3]: the others. */
    __device__ __forceinline__ void right(uint32_t (&b)[4], int row, int k) const
    {
        int lane = threadIdx.x % 32;
        ldmatrix(b, moved(at(lane % 8 + lane / 16 * 8, lane / 8 % 2), row, k));
    }
    /** Loads rows row to row + 15, columns 16 n to 16 n + 15, as two right operands of mma(). A row
     * of the tile is a row of an operand. b[0..1]: the first eight columns; b[2..3]: the others. */
    __device__ __forceinline__ void right_transposed(uint32_t (&b)[4], int row, int n) const
    {
        int lane = threadIdx.x % 32;
        ldmatrix_transposed(b, moved(at(lane % 16, lane / 16), row, n));
    }
    /** Loads rows row to row + 15, columns 16 m to 16 m + 15, as the left operand of mma(). A row
     * of the tile is a column of the operand. */
    __device__ __forceinline__ void left_transposed(uint32_t (&a)[4], int row, int m) const
    {
        int lane = threadIdx.x % 32;
        ldmatrix_transposed(a, moved(at(lane % 8 + lane / 16 * 8, lane / 8 % 2), row, m));
    }
    /** The tile starting at row `row`. */
    __device__ __forceinline__ mma_tile from(int row) const
    {
        return {base + (uint32_t)row * (COLUMNS * 2)};
    }

  private:
    /** The address `row` rows below `at` and `pair` pairs of chunks to the right. */
    static __device__ __forceinline__ uint32_t moved(uint32_t at, int row, int pair)
    {
        return (at ^ (uint32_t)(pair % 4 * 32)) + (uint32_t)(pair / 4 * 128 + row * (COLUMNS * 2));
    }
};

/** d += a b: d is 16 x 8 in f32; a is 16 x 16 and b is 16 x 8, in T. A lane has the elements of
 * rows lane / 4 (d[0], d[1]) and lane / 4 + 8 (d[2], d[3]), in columns lane % 4 * 2 and the next
 * one. */
template <class T>
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1);
template <>
__device__ __forceinline__ void mma<bf16>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                          uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void mma<f16>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Products of f32 (3xTF32): each factor is split into two TF32 numbers (f32 with 10 bits of
 * mantissa), high and low, and three of the four products are added. The fourth, low times low, is
 * at most 2^-22 of the product. The tensor cores ignore the bits of `low` beyond TF32. A tile of
 * f32 is an mma_tile with twice as many columns; left() then loads an operand of 16 x 8, right()
 * two of 8 x 8. */
struct split_f32 {
    uint32_t high, low;

    __device__ __forceinline__ explicit split_f32(uint32_t x)
        : high((x + 0x1000) & 0xffffe000u),
          low(__builtin_bit_cast(uint32_t,
                                 __builtin_bit_cast(float, x) - __builtin_bit_cast(float, high)))
    {
    }
};

/** d += a b for TF32: d is 16 x 8 in f32, a 16 x 8, b 8 x 8. */
__device__ __forceinline__ void mma_tf32(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                         uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
/** d += a b for f32, with the sizes of mma_tf32(). */
__device__ __forceinline__ void mma_f32(float (&d)[4], const split_f32 (&a)[4], split_f32 b0,
                                        split_f32 b1)
{
    mma_tf32(d, a[0].low, a[1].low, a[2].low, a[3].low, b0.high, b1.high);
    mma_tf32(d, a[0].high, a[1].high, a[2].high, a[3].high, b0.low, b1.low);
    mma_tf32(d, a[0].high, a[1].high, a[2].high, a[3].high, b0.high, b1.high);
}

/** Stores four 8 x 8 matrices of 2-byte elements, each transposed, in shared memory. Lanes 8 i to
 * 8 i + 7 pass in `to` the addresses of the eight stored rows of matrix i. For sm_90 and later. */
__device__ __forceinline__ void store_transposed(uint32_t to, const uint32_t (&x)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
}

/** Rounds two adjacent elements of a row to T and packs them, `first` in the low 16 bits. */
template <class T> __device__ __forceinline__ uint32_t pack2(float first, float second);
template <> __device__ __forceinline__ uint32_t pack2<bf16>(float first, float second)
{
    uint32_t x;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(second), "f"(first));
    return x;
}
template <> __device__ __forceinline__ uint32_t pack2<f16>(float first, float second)
{
    uint32_t x;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(second), "f"(first));
    return x;
}

} // namespace ts

#endif
