/** @file launch.cuh  Launches of attention kernels whose blocks process tiles of rows or keys. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_ATTENTION_LAUNCH_CUH
#define TS_CUDA_ATTENTION_LAUNCH_CUH

#include "backends/cuda/attention/attention.cuh"
#include "backends/cuda/runtime/launch.h"

namespace ts {

/** Launches kernel(x...) over the `length` rows (or keys) of each of `heads` heads. A block has
 * `rows` rows (or keys) of one head, `threads` threads and `bytes` bytes of dynamic shared memory;
 * blocks are numbered head by head. Launches nothing if there are no rows. Returns
 * cudaErrorInvalidConfiguration for more than INT32_MAX blocks. early: launches by launch_early();
 * the kernel must then wait for the previous kernel itself (runtime/early.cuh). */
template <class... P, class... X>
cudaError_t attention_launch_as(bool early, void (*kernel)(P...), int64_t heads, int64_t length,
                                int rows, int threads, int bytes, cudaStream_t stream,
                                const X &...x)
{
    int64_t blocks = heads * ((length + rows - 1) / rows);
    if (!blocks)
        return cudaSuccess;
    if (blocks > INT32_MAX)
        return cudaErrorInvalidConfiguration;
    ts_cuda_grid grid = {dim3((unsigned)blocks), dim3(threads), (unsigned)bytes, 1};
    return early ? launch_early(kernel, grid, stream, x...) : launch(kernel, grid, stream, x...);
}
/** attention_launch_as() with early = false. */
template <class... P, class... X>
cudaError_t attention_launch(void (*kernel)(P...), int64_t heads, int64_t length, int rows,
                             int threads, int bytes, cudaStream_t stream, const X &...x)
{
    return attention_launch_as(false, kernel, heads, length, rows, threads, bytes, stream, x...);
}

} // namespace ts

#endif
