/** @file attention_launch.cuh  What launches of attention's kernels have in common. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_ATTENTION_LAUNCH_CUH
#define TS_CUDA_ATTENTION_LAUNCH_CUH

#include "backends/cuda/attention.cuh"

namespace ts {

/** Launches a kernel of `rows` rows a block on all rows of `heads` heads,
 * with as much shared memory as it wants. */
template <class... P, class... X>
cudaError_t attention_launch(void (*kernel)(P...), int64_t heads, int64_t length, int rows,
                             int threads, int bytes, cudaStream_t stream, const X &...x)
{
    int64_t blocks = heads * ((length + rows - 1) / rows);
    if (!blocks)
        return cudaSuccess;
    if (blocks > INT32_MAX)
        return cudaErrorInvalidConfiguration;
    cudaError_t e =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (e != cudaSuccess)
        return e;
    kernel<<<(unsigned)blocks, threads, bytes, stream>>>(x...);
    return cudaPeekAtLastError();
}

} // namespace ts

#endif
