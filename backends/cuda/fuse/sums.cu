/** @file sums.cu  Adds up the partial sums that a fused group writes for sums over rows: one line
 * per block of the group's kernel. */
// SPDX-License-Identifier: MIT
#include "backends/cuda/fuse/fuse.h"
#include "backends/cuda/types.cuh"

using namespace ts;

/** Stores x as element i of dtype f32, bf16 or f16. */
static __device__ void store_as(void *to, int64_t i, int dtype, float x)
{
    switch (dtype) {
    case TS_BF16: ((bf16 *)to)[i] = narrow<bf16>(x); break;
    case TS_F16: ((f16 *)to)[i] = narrow<f16>(x); break;
    default: ((float *)to)[i] = x;
    }
}

/** A block adds COLUMNS columns; SHARES threads share the lines of a column. */
template <int COLUMNS, int SHARES>
static __global__ void __launch_bounds__(COLUMNS *SHARES)
    add_lines_kernel(const __grid_constant__ ts_cuda_sums a)
{
    __shared__ float share[SHARES][COLUMNS];
    int64_t column = (int64_t)blockIdx.x * COLUMNS + threadIdx.x;
    const float *parts = a.parts[blockIdx.y];
    float sum = 0;
    if (column < a.columns)
#pragma unroll 4
        for (int64_t line = threadIdx.y; line < a.lines; line += SHARES)
            sum += parts[line * a.columns + column];
    share[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    for (int half = SHARES / 2; half; half /= 2) {
        if (threadIdx.y < half)
            share[threadIdx.y][threadIdx.x] += share[threadIdx.y + half][threadIdx.x];
        __syncthreads();
    }
    if (column < a.columns && threadIdx.y == 0)
        store_as(a.sums[blockIdx.y], column, a.dtypes[blockIdx.y], share[0][threadIdx.x]);
}

cudaError_t ts_cuda_add_lines(const ts_cuda_sums *sums, cudaStream_t stream)
{
    auto launch = [&]<int COLUMNS, int SHARES>() {
        dim3 grid((unsigned)((sums->columns + COLUMNS - 1) / COLUMNS), (unsigned)sums->count);
        add_lines_kernel<COLUMNS, SHARES><<<grid, dim3(COLUMNS, SHARES), 0, stream>>>(*sums);
    };
    if (sums->lines <= 128)
        launch.template operator()<32, 8>();
    else
        launch.template operator()<8, 64>();
    return cudaPeekAtLastError();
}
