/** @file turns.cuh  Kernels whose blocks are placed while the kernel in front ends, which saves the
 * time of a launch, about a microsecond. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_TURNS_CUH
#define TS_CUDA_TURNS_CUH

#include "backends/cuda/early.cuh"
#include "backends/cuda/launch.h"

namespace ts {

/** First call of a kernel that launch_soon() launches: lets the next kernel be placed, and waits
 * for the results of the kernel in front. A long kernel calls only wait_for_kernel_in_front(),
 * because a kernel that is placed early counts its wait as its time. */
__device__ __forceinline__ void take_turn()
{
    begin_next_kernel();
    wait_for_kernel_in_front();
}

/** launch_early() on devices that can, else launch(). */
template <class... P, class... A>
cudaError_t launch_soon(const ts_cuda_device *device, void (*kernel)(P...),
                        const ts_cuda_grid &grid, cudaStream_t stream, const A &...args)
{
    return device->clusters ? launch_early(kernel, grid, stream, args...)
                            : launch(kernel, grid, stream, args...);
}

} // namespace ts

#endif
