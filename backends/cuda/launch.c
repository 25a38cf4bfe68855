/** @file launch.c  Handles of kernels, found once, and the driver's launch. */
// SPDX-License-Identifier: MIT
#include "backends/cuda/launch.h"

#include <cuda.h>
#include <pthread.h>
#include <stdatomic.h>

typedef CUresult (*launch_fn)(const CUlaunchConfig *config, CUfunction kernel, void **arguments, void **extra);

/* The runtime finds the driver's function, so that nothing here links to libcuda. */
static launch_fn driver(void)
{
    static _Atomic(launch_fn) known;
    launch_fn found = atomic_load_explicit(&known, memory_order_relaxed);
    if (__builtin_expect(!found, 0)) {
        enum cudaDriverEntryPointQueryResult result;
        void *symbol = NULL;
        if (cudaGetDriverEntryPointByVersion("cuLaunchKernelEx", &symbol, 12000, cudaEnableDefault, &result) != cudaSuccess)
            return NULL;
        found = (launch_fn)symbol;
        atomic_store(&known, found);
    }
    return found;
}

/* Each kernel has one place; where two have the same, the second one is looked up each time. */
enum { PLACES = 1 << 13 };
static struct {
    _Atomic(const void *) kernel; /* set last, and once */
    CUfunction handle;
} places[PLACES];

static cudaError_t look_up(const void *kernel, size_t place, CUfunction *handle)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    cudaKernel_t found;
    cudaError_t error = cudaGetKernel(&found, kernel);
    if (error != cudaSuccess)
        return error;
    *handle = (CUfunction)found;
    pthread_mutex_lock(&lock);
    if (!atomic_load(&places[place].kernel)) {
        places[place].handle = *handle;
        atomic_store_explicit(&places[place].kernel, kernel, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t ts_cuda_launch(const void *kernel, const ts_cuda_grid *grid, void **arguments, cudaStream_t stream)
{
    size_t place = (size_t)((uintptr_t)kernel / 16 * 0x9e3779b97f4a7c15u >> 51);
    _Static_assert(PLACES == 1 << (64 - 51), "the hash's upper bits are the place");
    CUfunction handle;
    if (__builtin_expect(atomic_load_explicit(&places[place].kernel, memory_order_acquire) == kernel, 1)) {
        handle = places[place].handle;
    } else {
        cudaError_t error = look_up(kernel, place, &handle);
        if (error != cudaSuccess)
            return error;
    }
    launch_fn launch = driver();
    if (__builtin_expect(!launch, 0))
        return cudaErrorNotSupported;
    CUlaunchAttribute cluster = {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, .value.clusterDim = {grid->cluster, 1, 1}};
    CUlaunchConfig config = {
        .gridDimX = grid->blocks.x, .gridDimY = grid->blocks.y, .gridDimZ = grid->blocks.z,
        .blockDimX = grid->threads.x, .blockDimY = grid->threads.y, .blockDimZ = grid->threads.z,
        .sharedMemBytes = grid->shared, .hStream = stream, .attrs = &cluster, .numAttrs = grid->cluster > 1,
    };
    return (cudaError_t)launch(&config, handle, arguments, NULL); /* the two enums have the same numbers */
}
