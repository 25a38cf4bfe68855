/** @file launch.c  Functions of kernels, found once, and the driver's launch. */
// SPDX-License-Identifier: MIT
#include "backends/cuda/current.h"
#include "backends/cuda/launch.h"

#include <cuda.h>
#include <pthread.h>
#include <stdatomic.h>

typedef CUresult (*plain_fn)(CUfunction function, unsigned bx, unsigned by, unsigned bz,
                             unsigned tx, unsigned ty, unsigned tz, unsigned shared,
                             CUstream stream, void **arguments, void **extra);
typedef CUresult (*config_fn)(const CUlaunchConfig *config, CUfunction function, void **arguments,
                              void **extra);

/* The driver's functions, which the runtime finds, so that nothing here links to libcuda.
 * The second one is set last. */
static _Atomic(plain_fn) plain_launch;
static _Atomic(config_fn) config_launch;

static cudaError_t find_driver(void)
{
    enum cudaDriverEntryPointQueryResult result;
    void *plain = NULL, *config = NULL;
    cudaError_t error = cudaGetDriverEntryPointByVersion("cuLaunchKernel", &plain, 12000,
                                                         cudaEnableDefault, &result);
    if (error == cudaSuccess)
        error = cudaGetDriverEntryPointByVersion("cuLaunchKernelEx", &config, 12000,
                                                 cudaEnableDefault, &result);
    if (error != cudaSuccess || !plain || !config)
        return error != cudaSuccess ? error : cudaErrorNotSupported;
    atomic_store(&plain_launch, (plain_fn)plain);
    atomic_store_explicit(&config_launch, (config_fn)config, memory_order_release);
    return cudaSuccess;
}

/* Each kernel of each device has one place; where two have the same, the second one is looked up
 * each time. A function of the device's context is launched sooner than the kernel that stands
 * for those of all contexts. */
enum { PLACES = 1 << 13 };
static struct {
    _Atomic uint64_t key; /* set last, and once */
    CUfunction function;
} places[PLACES];

static cudaError_t look_up(const void *kernel, uint64_t key, size_t place, CUfunction *function)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    cudaFunction_t found;
    cudaError_t error = cudaGetFuncBySymbol(&found, kernel);
    if (error != cudaSuccess)
        return error;
    *function = (CUfunction)found;
    pthread_mutex_lock(&lock);
    if (!atomic_load(&places[place].key)) {
        places[place].function = *function;
        atomic_store_explicit(&places[place].key, key, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t ts_cuda_launch(const void *kernel, const ts_cuda_grid *grid, void **arguments,
                           cudaStream_t stream)
{
    uint64_t key = (uint64_t)(uintptr_t)kernel << 4 | (uint64_t)ts_cuda_current->index;
    size_t place = (size_t)(key / 16 * 0x9e3779b97f4a7c15u >> 51) ^ (key % 16);
    _Static_assert(PLACES == 1 << (64 - 51), "the hash's upper bits are the place");
    _Static_assert(TS_CUDA_DEVICES <= 16, "a device is four bits of the key");
    CUfunction function;
    if (__builtin_expect(atomic_load_explicit(&places[place].key, memory_order_acquire) == key,
                         1)) {
        function = places[place].function;
    } else {
        cudaError_t error = look_up(kernel, key, place, &function);
        if (error != cudaSuccess)
            return error;
    }
    config_fn launch = atomic_load_explicit(&config_launch, memory_order_acquire);
    if (__builtin_expect(!launch, 0)) {
        cudaError_t error = find_driver();
        if (error != cudaSuccess)
            return error;
        launch = atomic_load(&config_launch);
    }
    /* the two enums have the same numbers */
    if (grid->cluster <= 1)
        return (cudaError_t)atomic_load_explicit(&plain_launch, memory_order_relaxed)(
            function, grid->blocks.x, grid->blocks.y, grid->blocks.z, grid->threads.x,
            grid->threads.y, grid->threads.z, grid->shared, stream, arguments, NULL);
    CUlaunchAttribute cluster = {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                                 .value.clusterDim = {grid->cluster, 1, 1}};
    CUlaunchConfig config = {
        .gridDimX = grid->blocks.x, .gridDimY = grid->blocks.y, .gridDimZ = grid->blocks.z,
        .blockDimX = grid->threads.x, .blockDimY = grid->threads.y, .blockDimZ = grid->threads.z,
        .sharedMemBytes = grid->shared, .hStream = stream, .attrs = &cluster, .numAttrs = 1,
    };
    return (cudaError_t)launch(&config, function, arguments, NULL);
}
