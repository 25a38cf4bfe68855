/**
 * @file launch.h  Launches kernels through the driver API.
 *
 * The <<<>>> syntax pushes and pops a configuration and looks up the kernel in a large table at
 * each launch. The driver's functions take a handle instead. The first launch of a kernel looks the
 * handle up and caches it. bench_cuda_launch measures the difference.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_LAUNCH_H
#define TS_CUDA_LAUNCH_H

#include "backends/cuda/runtime/runtime.h"

TS_BEGIN_DECLS

/** The grid of a launch. */
typedef struct ts_cuda_grid {
    dim3 blocks, threads;
    unsigned shared;  /* bytes of dynamic shared memory */
    unsigned cluster; /* blocks per cluster, along x; 1: no clusters */
} ts_cuda_grid;

/** Queues a kernel on the calling thread's current device; ts_cuda_use() must have succeeded. The
 * first launch of a kernel on a device with a cluster size, and each launch with more shared memory
 * than before, sets the kernel's attributes for the grid. Returns CUDA's error, which the caller
 * passes to ts_cuda_launched().
 * @param kernel     host address of the __global__ function
 * @param arguments  the address of each argument; the arguments are read before the call returns */
cudaError_t ts_cuda_launch(const void *kernel, const ts_cuda_grid *grid, void **arguments,
                           cudaStream_t stream);

/** Like ts_cuda_launch(), but blocks may start before the previous kernel on the stream has ended;
 * the launched kernel must wait for the previous kernel's results by wait_for_kernel_in_front()
 * (early.cuh). Requires sm_90 or later. */
cudaError_t ts_cuda_launch_early(const void *kernel, const ts_cuda_grid *grid, void **arguments,
                                 cudaStream_t stream);

/** Like ts_cuda_launch(), but all blocks run at the same time, so that they may wait for each other
 * (a cooperative launch). The grid must have no clusters. Returns
 * cudaErrorCooperativeLaunchTooLarge for more blocks than ts_cuda_clusters(). */
cudaError_t ts_cuda_launch_together(const void *kernel, const ts_cuda_grid *grid, void **arguments,
                                    cudaStream_t stream);

/** Number of clusters of a grid (blocks if `cluster` is 1) that can be resident on the calling
 * thread's current device at once; 0 if the device cannot run one. The result is cached per device,
 * kernel and cluster size, so grids with the same cluster size may differ only in `blocks`. */
int ts_cuda_clusters(const void *kernel, const ts_cuda_grid *grid);

TS_END_DECLS

#ifdef __cplusplus
#include <type_traits>

namespace ts {

/** ts_cuda_launch() for a kernel and its arguments, whose types must be exactly those of the
 * parameters: the addresses of the arguments are passed without a conversion. */
template <class... P, class... A>
cudaError_t launch(void (*kernel)(P...), const ts_cuda_grid &grid, cudaStream_t stream,
                   const A &...args)
{
    static_assert((std::is_same_v<std::remove_cv_t<P>, A> && ...),
                  "arguments must have the types of the kernel's parameters");
    void *addresses[] = {(void *)&args...};
    return ts_cuda_launch((const void *)kernel, &grid, addresses, stream);
}
/** Like launch(), but by ts_cuda_launch_early(). */
template <class... P, class... A>
cudaError_t launch_early(void (*kernel)(P...), const ts_cuda_grid &grid, cudaStream_t stream,
                         const A &...args)
{
    static_assert((std::is_same_v<std::remove_cv_t<P>, A> && ...),
                  "arguments must have the types of the kernel's parameters");
    void *addresses[] = {(void *)&args...};
    return ts_cuda_launch_early((const void *)kernel, &grid, addresses, stream);
}

} // namespace ts
#endif
#endif
