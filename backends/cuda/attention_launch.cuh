/** @file attention_launch.cuh  Common code of attention's launches. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_ATTENTION_LAUNCH_CUH
#define TS_CUDA_ATTENTION_LAUNCH_CUH

#include "backends/cuda/attention.cuh"
#include "backends/cuda/launch.h"

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
    ts_cuda_grid grid = {dim3((unsigned)blocks), dim3(threads), (unsigned)bytes, 1};
    return launch(kernel, grid, stream, x...);
}

} // namespace ts

#endif
