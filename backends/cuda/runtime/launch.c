/** @file launch.c  Handles and attributes of kernels, looked up once, and launches by the
 * driver. */
// SPDX-License-Identifier: MIT
#include "backends/cuda/runtime/current.h"
#include "backends/cuda/fuse/fuse.h"
#include "backends/cuda/runtime/launch.h"

#include <cuda.h>
#include <pthread.h>
#include <stdatomic.h>

typedef CUresult (*plain_fn)(CUfunction function, unsigned bx, unsigned by, unsigned bz,
                             unsigned tx, unsigned ty, unsigned tz, unsigned shared,
                             CUstream stream, void **arguments, void **extra);
typedef CUresult (*config_fn)(const CUlaunchConfig *config, CUfunction function, void **arguments,
                              void **extra);

/* The driver's functions, queried through the runtime, so that the library does not link to
 * libcuda. config_launch is set last. */
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

/* Handle and attributes of a kernel on a device, for one cluster size. Launching the function of
 * the device's context is faster than launching the context-independent kernel, and attributes
 * apply to one context only. */
typedef struct entry {
    _Atomic uint64_t key; /* set last, and once */
    CUfunction function;
    _Atomic unsigned shared; /* allowed bytes of dynamic shared memory */
    _Atomic int clusters;    /* clusters that fit on the device at once, + 1; 0: unknown */
} entry;

/* Hash table with PROBES entries per key. If other kernels occupy them, each launch
 * looks the function up. */
enum { ENTRIES = 1 << 13, PROBES = 8 };
static entry entries[ENTRIES];

static uint64_t key_of(const void *kernel, unsigned cluster)
{
    _Static_assert(TS_CUDA_DEVICES <= 16, "a device is four bits of the key");
    /* an address of the host has at most 52 bits */
    return (uint64_t)cluster << 56 | (uint64_t)(uintptr_t)kernel << 4 |
           (uint64_t)ts_cuda_current->index;
}

/** The entry with this key (0: an empty entry) among the PROBES entries of `wanted`, or NULL. */
static inline entry *find(uint64_t wanted, uint64_t key)
{
    _Static_assert(ENTRIES == 1 << (64 - 51), "the hash's upper bits are the entry");
    size_t first = (size_t)(wanted / 16 * 0x9e3779b97f4a7c15u >> 51) ^ (wanted % 16);
    for (size_t i = 0; i < PROBES; i++) {
        entry *p = &entries[(first + i) % ENTRIES];
        if (__builtin_expect(atomic_load_explicit(&p->key, memory_order_acquire) == key, 1))
            return p;
    }
    return NULL;
}

/** Raises a kernel's limit of dynamic shared memory to `shared`. The lock must be held, so that the
 * larger of two concurrent limits remains. */
static cudaError_t allow_shared(const void *kernel, entry *p, unsigned shared)
{
    struct cudaFuncAttributes attributes;
    if (shared <= atomic_load(&p->shared))
        return cudaSuccess;
    cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
    if (error != cudaSuccess)
        return error;
    unsigned allowed = (unsigned)attributes.maxDynamicSharedSizeBytes;
    if (shared > allowed) {
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     (int)shared);
        allowed = shared;
    }
    if (error == cudaSuccess)
        atomic_store(&p->shared, allowed);
    return error;
}

/**
 * Looks up a kernel's function on the thread's device and sets the attributes that a grid needs.
 * Sets *found to the kernel's entry, to `spare` if the table is full, or to NULL if there is no
 * function.
 */
static __attribute__((noinline)) cudaError_t prepare(const void *kernel, const ts_cuda_grid *grid,
                                                     uint64_t key, entry *spare, entry **found)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    cudaError_t error = cudaSuccess;
    pthread_mutex_lock(&lock);
    entry *p = find(key, key);
    if (!p) {
        cudaFunction_t function;
        error = cudaGetFuncBySymbol(&function, kernel);
        if (error == cudaSuccess && grid->cluster > 8)
            error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
        if (error == cudaSuccess) {
            entry *empty = find(key, 0);
            p = empty ? empty : spare;
            p->function = (CUfunction)function;
            atomic_init(&p->shared, 0);
            atomic_init(&p->clusters, 0);
            atomic_store_explicit(&p->key, key, memory_order_release);
        }
    }
    if (p)
        error = allow_shared(kernel, p, grid->shared);
    *found = p;
    pthread_mutex_unlock(&lock);
    return error;
}

static int count_clusters(const void *kernel, const ts_cuda_grid *grid)
{
    int fit = 0;
    if (grid->cluster <= 1) {
        unsigned threads = grid->threads.x * grid->threads.y * grid->threads.z;
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, kernel, (int)threads, grid->shared);
        return fit * ts_cuda_current->sms;
    }
    cudaLaunchAttribute cluster = {.id = cudaLaunchAttributeClusterDimension,
                                   .val.clusterDim = {grid->cluster, 1, 1}};
    cudaLaunchConfig_t config = {.gridDim = {grid->cluster, 1, 1}, .blockDim = grid->threads,
                                 .dynamicSmemBytes = grid->shared, .attrs = &cluster,
                                 .numAttrs = 1};
    cudaOccupancyMaxActiveClusters(&fit, kernel, &config);
    return fit;
}

int ts_cuda_clusters(const void *kernel, const ts_cuda_grid *grid)
{
    uint64_t key = key_of(kernel, grid->cluster);
    entry spare, *p = find(key, key);
    int known = p ? atomic_load_explicit(&p->clusters, memory_order_relaxed) : 0;
    if (__builtin_expect(known, 1))
        return known - 1;
    cudaError_t error = prepare(kernel, grid, key, &spare, &p);
    int fit = error == cudaSuccess ? count_clusters(kernel, grid) : 0;
    cudaGetLastError(); /* clears an error, for example too little shared memory on the GPU */
    if (p && (error == cudaSuccess || error == cudaErrorInvalidValue)) /* others may be temporary */
        atomic_store_explicit(&p->clusters, fit + 1, memory_order_relaxed);
    return fit;
}

static inline __attribute__((always_inline)) cudaError_t launch_with(const void *kernel,
                                                                     const ts_cuda_grid *grid,
                                                                     void **arguments,
                                                                     cudaStream_t stream,
                                                                     CUlaunchAttributeID wanted)
{
    uint64_t key = key_of(kernel, grid->cluster);
    entry spare, *p = find(key, key);
    if (__builtin_expect(
            !p || grid->shared > atomic_load_explicit(&p->shared, memory_order_acquire), 0)) {
        cudaError_t error = prepare(kernel, grid, key, &spare, &p);
        if (error != cudaSuccess)
            return error;
    }
    CUfunction function = p->function;
    config_fn launch = atomic_load_explicit(&config_launch, memory_order_acquire);
    if (__builtin_expect(!launch, 0)) {
        cudaError_t error = find_driver();
        if (error != cudaSuccess)
            return error;
        launch = atomic_load(&config_launch);
    }
    /* the two enums have the same numbers */
    if (grid->cluster <= 1 && wanted == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
        return (cudaError_t)atomic_load_explicit(&plain_launch, memory_order_relaxed)(
            function, grid->blocks.x, grid->blocks.y, grid->blocks.z, grid->threads.x,
            grid->threads.y, grid->threads.z, grid->shared, stream, arguments, NULL);
    CUlaunchAttribute attributes[2] = {{.id = wanted}};
    unsigned count = 1;
    if (wanted == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION) {
        attributes[0].value.programmaticStreamSerializationAllowed = 1;
        count += grid->cluster > 1;
    } else if (wanted == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
        attributes[0].value.cooperative = 1;
    if (grid->cluster > 1)
        attributes[count - 1] = (CUlaunchAttribute){
            .id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, .value.clusterDim = {grid->cluster, 1, 1}};
    CUlaunchConfig config = {
        .gridDimX = grid->blocks.x, .gridDimY = grid->blocks.y, .gridDimZ = grid->blocks.z,
        .blockDimX = grid->threads.x, .blockDimY = grid->threads.y, .blockDimZ = grid->threads.z,
        .sharedMemBytes = grid->shared, .hStream = stream, .attrs = attributes, .numAttrs = count,
    };
    return (cudaError_t)launch(&config, function, arguments, NULL);
}

cudaError_t ts_cuda_launch(const void *kernel, const ts_cuda_grid *grid, void **arguments,
                           cudaStream_t stream)
{
    return launch_with(kernel, grid, arguments, stream, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
}

cudaError_t ts_cuda_launch_early(const void *kernel, const ts_cuda_grid *grid, void **arguments,
                                 cudaStream_t stream)
{
    return launch_with(kernel, grid, arguments, stream,
                       CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
}

cudaError_t ts_cuda_launch_together(const void *kernel, const ts_cuda_grid *grid, void **arguments,
                                    cudaStream_t stream)
{
    return launch_with(kernel, grid, arguments, stream, CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
}

cudaError_t ts_cuda_launch_function(void *function, unsigned blocks, unsigned threads,
                                    void **arguments, cudaStream_t stream)
{
    if (!atomic_load_explicit(&config_launch, memory_order_acquire)) {
        cudaError_t error = find_driver();
        if (error != cudaSuccess)
            return error;
    }
    return (cudaError_t)atomic_load_explicit(&plain_launch, memory_order_relaxed)(
        function, blocks, 1, 1, threads, 1, 1, 0, stream, arguments, NULL);
}
