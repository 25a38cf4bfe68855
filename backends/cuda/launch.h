/**
 * @file launch.h  Launches of kernels by the driver's own function.
 *
 * <<<>>> stacks and unstacks its configuration and looks the kernel up among thousands,
 * each time; the driver takes a handle, which is found at a kernel's first launch.
 * bench_cuda_launch shows what that saves.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_LAUNCH_H
#define TS_CUDA_LAUNCH_H

#include "backends/cuda/runtime.h"

TS_BEGIN_DECLS

typedef struct ts_cuda_grid {
    dim3 blocks, threads;
    unsigned shared;  /* bytes of dynamic shared memory */
    unsigned cluster; /* blocks of a cluster, along x; 1 without */
} ts_cuda_grid;

/** Launches on the calling thread's device, where a kernel is allowed at its first launch what its
 * grid needs. arguments: an address for each of the kernel's parameters. */
cudaError_t ts_cuda_launch(const void *kernel, const ts_cuda_grid *grid, void **arguments,
                           cudaStream_t stream);

/** The same for a kernel whose blocks may begin before the kernel in front has ended, and wait for
 * its results by griddepcontrol.wait: on sm_90 and later, without clusters. */
cudaError_t ts_cuda_launch_early(const void *kernel, const ts_cuda_grid *grid, void **arguments,
                                 cudaStream_t stream);

/** How many clusters of a grid (blocks where `cluster` is 1) the calling thread's device runs at
 * once: asked once for a kernel, whose grids differ in `blocks` alone. 0: it cannot run one. */
int ts_cuda_clusters(const void *kernel, const ts_cuda_grid *grid);

TS_END_DECLS

#ifdef __cplusplus
#include <type_traits>

namespace ts {

/** The same with the arguments themselves, which must be of the parameters' types:
 * nothing is copied here. */
template <class... P, class... A>
cudaError_t launch(void (*kernel)(P...), const ts_cuda_grid &grid, cudaStream_t stream,
                   const A &...args)
{
    static_assert((std::is_same_v<std::remove_cv_t<P>, A> && ...),
                  "arguments are handed over as they are");
    void *addresses[] = {(void *)&args...};
    return ts_cuda_launch((const void *)kernel, &grid, addresses, stream);
}
template <class... P, class... A>
cudaError_t launch_early(void (*kernel)(P...), const ts_cuda_grid &grid, cudaStream_t stream,
                         const A &...args)
{
    static_assert((std::is_same_v<std::remove_cv_t<P>, A> && ...),
                  "arguments are handed over as they are");
    void *addresses[] = {(void *)&args...};
    return ts_cuda_launch_early((const void *)kernel, &grid, addresses, stream);
}

} // namespace ts
#endif
#endif
