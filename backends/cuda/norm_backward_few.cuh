/**
 * @file norm_backward_few.cuh  Gradients of layer and RMS normalisation of few elements in one
 * launch. Some blocks compute the gradient of x, the others the gradients of weight and bias.
 * Neither group of blocks needs results of the other. Both read the operands, which fit L2.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_NORM_BACKWARD_FEW_CUH
#define TS_CUDA_NORM_BACKWARD_FEW_CUH

#include "backends/cuda/lines.cuh"
#include "backends/cuda/units.cuh"

namespace ts {

enum { FEW_X = 32, FEW_Y = 16, /* threads of a block; FEW_X columns for dweight, dbias */
       FEW_ROWS = 256,         /* most rows */
       FEW_LONGEST = 4096,     /* most elements of a row */
       FEW_ELEMENTS = 1 << 17, /* most elements */
       FEW_SHORT = 512         /* most elements of a row that a warp computes; longer: a block */ };

/** Operands of a call. g, x and weight may have any strides; the others are contiguous. */
template <class T> struct few_gradients {
    const T *g, *x, *weight;       /* weight NULL: 1 */
    const wide_t<T> *mean, *rstd;  /* mean is not read with RMS */
    T *dx, *dweight, *dbias;       /* NULL: not requested */
    uint32_t rows, n, row_blocks;  /* row_blocks: blocks that compute dx, the first ones */
    walk<uint32_t, 2> elements;    /* offsets in g and x */
    walk<uint32_t, 1> weights;

    /** Loads element i of a row: g and x. */
    __device__ __forceinline__ void load(uint32_t row, uint32_t i, wide_t<T> &up,
                                         wide_t<T> &in) const
    {
        int64_t at[2];
        elements.at(row * n + i, at);
        up = widen(g[at[0]]);
        in = widen(x[at[1]]);
    }
    __device__ __forceinline__ wide_t<T> weight_of(uint32_t i) const
    {
        int64_t at[1];
        weights.at(i, at);
        return weight ? widen(weight[at[0]]) : (wide_t<T>)1;
    }
};

/** Returns to each thread the sum of x over its warp or, if `wide`, over its block. */
template <class A> static __device__ __forceinline__ A few_sum(A x, bool wide)
{
    if (wide)
        x = line_reduce<FEW_X, FEW_Y, op_sum>(x);
#pragma unroll
    for (int by = 16; by; by /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, by);
    return x;
}

template <class T, bool RMS>
static __global__ void __launch_bounds__(FEW_X *FEW_Y)
    few_gradients_kernel(const __grid_constant__ few_gradients<T> c)
{
    using A = wide_t<T>;
    if (blockIdx.x < c.row_blocks) {
        bool wide = c.n > FEW_SHORT;
        uint32_t row = wide ? blockIdx.x : blockIdx.x * FEW_Y + threadIdx.y,
                 first = threadIdx.x + (wide ? threadIdx.y * FEW_X : 0),
                 step = wide ? FEW_X * FEW_Y : FEW_X, n = row < c.rows ? c.n : 0;
        A centre = RMS || !n ? (A)0 : c.mean[row], factor = n ? c.rstd[row] : (A)0, dot = 0,
          shift = 0, up, in;
#pragma unroll 4
        for (uint32_t i = first; i < n; i += step) {
            c.load(row, i, up, in);
            A q = up * c.weight_of(i);
            dot += q * ((in - centre) * factor);
            shift += q;
        }
        dot = few_sum(dot, wide) / (A)c.n;
        shift = RMS ? (A)0 : few_sum(shift, wide) / (A)c.n;
#pragma unroll 4
        for (uint32_t i = first; i < n; i += step) {
            c.load(row, i, up, in);
            c.dx[row * n + i] = narrow<T>(
                factor * (up * c.weight_of(i) - shift - (in - centre) * factor * dot));
        }
        return;
    }
    uint32_t i = (blockIdx.x - c.row_blocks) * FEW_X + threadIdx.x;
    A dw = 0, db = 0, up, in;
#pragma unroll 8
    for (uint32_t row = threadIdx.y; row < c.rows && i < c.n; row += FEW_Y) {
        c.load(row, i, up, in);
        dw += up * ((in - (RMS ? (A)0 : c.mean[row])) * c.rstd[row]);
        db += up;
    }
    dw = line_reduce<FEW_X, FEW_Y, op_sum>(dw);
    if (!RMS)
        db = line_reduce<FEW_X, FEW_Y, op_sum>(db);
    if (i >= c.n || threadIdx.y > 0)
        return;
    if (c.dweight)
        c.dweight[i] = narrow<T>(dw);
    if (!RMS && c.dbias)
        c.dbias[i] = narrow<T>(db);
}

/* ------------------------------------------------------------------------- host side ---- */

/** True if few_gradients_kernel() computes the gradients of rows of n elements. */
inline bool are_few(int64_t rows, int64_t n)
{
    return rows > 0 && n > 0 && rows <= FEW_ROWS && n <= FEW_LONGEST && rows * n <= FEW_ELEMENTS;
}

/** Launches few_gradients_kernel(), unless no gradient is requested. Sets c.row_blocks; the caller
 * sets all other members. */
template <class T, bool RMS> cudaError_t launch_few(few_gradients<T> c, cudaStream_t stream)
{
    uint32_t each = c.n > FEW_SHORT ? 1 : FEW_Y,
             columns = c.dweight || c.dbias ? (c.n + FEW_X - 1) / FEW_X : 0;
    c.row_blocks = c.dx ? (c.rows + each - 1) / each : 0;
    if (c.row_blocks + columns > 0)
        few_gradients_kernel<T, RMS>
            <<<c.row_blocks + columns, dim3(FEW_X, FEW_Y), 0, stream>>>(c);
    return cudaPeekAtLastError();
}

} // namespace ts

#endif
