/**
 * @file integers.cu
 * Products of matrices of integers, which cuBLASLt lacks: the tiled product over shared memory.
 *
 * A block computes a tile of SIDE x SIDE results and iterates along k in steps of DEPTH. In each
 * step its threads load DEPTH elements of SIDE rows of a and SIDE columns of b into shared memory,
 * synchronize, and multiply from there. So an element is loaded from global memory once per SIDE
 * results. A thread keeps OWN x OWN results in registers, and reads 2 OWN elements from shared
 * memory for OWN * OWN products.
 *
 * Sums wrap around, so their value does not depend on the order of additions.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/frame.cuh"
#include "backends/cuda/product/gemm.h"

using namespace ts;

enum { SIDE = 64, DEPTH = 16, OWN = 4, ACROSS = SIDE / OWN, THREADS = ACROSS * ACROSS };

/** The type in which products of T are added: unsigned, whose overflow C++ defines to wrap. */
template <class T> struct sums_of {
    using type = uint32_t;
};
template <> struct sums_of<int64_t> {
    using type = uint64_t;
};

/** DEPTH elements along k of SIDE rows or columns. The padding of 1 avoids bank conflicts. */
template <class U> using piece = U[DEPTH][SIDE + 1];

/**
 * Loads a piece of a's rows or b's columns into shared memory and pads it with zeros.
 * Neighbouring threads read neighbouring elements in either layout.
 * @param lines  number of remaining rows or columns, `line` elements apart
 * @param depth  number of remaining elements of each, `step` elements apart
 */
template <class T, class U>
static __device__ __forceinline__ void load_piece(piece<U> &to, const T *from, int64_t lines,
                                                  int64_t line, int64_t depth, int64_t step)
{
#pragma unroll
    for (int e = threadIdx.x; e < SIDE * DEPTH; e += THREADS) {
        int s = step == 1 ? e / DEPTH : e % SIDE, p = step == 1 ? e % DEPTH : e / SIDE;
        to[p][s] = s < lines && p < depth ? (U)from[s * line + p * step] : 0;
    }
}

/** c = a b + bias, tile by tile. bias has one element per column of c, or is NULL. Any strides. */
template <class T>
static __global__ void __launch_bounds__(THREADS)
    product_kernel(const __grid_constant__ ts_cuda_matrix a,
                   const __grid_constant__ ts_cuda_matrix b,
                   const __grid_constant__ ts_cuda_matrix c, int64_t tiles, const T *bias)
{
    using U = typename sums_of<T>::type;
    __shared__ piece<U> rows, columns;
    int64_t across = (c.columns + SIDE - 1) / SIDE, down = (c.rows + SIDE - 1) / SIDE;
    /* position of the thread's first result in the tile; the others are ACROSS apart */
    int y = threadIdx.x / ACROSS, x = threadIdx.x % ACROSS;
    for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
        int64_t i = t / across % down * SIDE, j = t % across * SIDE, batch = t / across / down;
        const T *a_at = (const T *)a.data + batch * a.batch + i * a.row;
        const T *b_at = (const T *)b.data + batch * b.batch + j * b.column;
        T *c_at = (T *)c.data + batch * c.batch + i * c.row + j;
        U sum[OWN][OWN] = {};
        for (int64_t p = 0; p < a.columns; p += DEPTH) {
            load_piece<T, U>(rows, a_at + p * a.column, c.rows - i, a.row, a.columns - p, a.column);
            load_piece<T, U>(columns, b_at + p * b.row, c.columns - j, b.column, a.columns - p,
                             b.row);
            __syncthreads();
#pragma unroll
            for (int q = 0; q < DEPTH; q++) {
                U u[OWN], v[OWN];
#pragma unroll
                for (int r = 0; r < OWN; r++) {
                    u[r] = rows[q][y + r * ACROSS];
                    v[r] = columns[q][x + r * ACROSS];
                }
#pragma unroll
                for (int r = 0; r < OWN; r++)
#pragma unroll
                    for (int s = 0; s < OWN; s++)
                        sum[r][s] += u[r] * v[s];
            }
            __syncthreads(); /* before the pieces are written again */
        }
#pragma unroll
        for (int r = 0; r < OWN; r++)
#pragma unroll
            for (int s = 0; s < OWN; s++) {
                int64_t row = y + r * ACROSS, column = x + s * ACROSS;
                if (i + row < c.rows && j + column < c.columns)
                    c_at[row * c.row + column] = (T)(sum[r][s] + (bias ? (U)bias[j + column] : 0));
            }
    }
}

template <class T>
static cudaError_t run(const ts_cuda_matrix *a, const ts_cuda_matrix *b, const ts_cuda_matrix *c,
                       int64_t batches, const void *bias, cudaStream_t stream)
{
    int64_t tiles = batches * ((c->rows + SIDE - 1) / SIDE) * ((c->columns + SIDE - 1) / SIDE);
    unsigned blocks = (unsigned)(tiles < INT32_MAX ? tiles : INT32_MAX);
    product_kernel<T><<<blocks, THREADS, 0, stream>>>(*a, *b, *c, tiles, (const T *)bias);
    return cudaPeekAtLastError();
}

ts_status ts_cuda_gemm_integers(ts_frame *f, ts_dtype dtype, const ts_cuda_matrix *a,
                                const ts_cuda_matrix *b, const ts_cuda_matrix *c, int64_t batches,
                                const void *bias)
{
    return on_device(f, [&](const call &at) {
        switch (dtype) {
        case TS_I64:
            return run<int64_t>(a, b, c, batches, bias, at.stream);
        case TS_I32:
            return run<int32_t>(a, b, c, batches, bias, at.stream);
        default:
            return run<uint8_t>(a, b, c, batches, bias, at.stream);
        }
    });
}
