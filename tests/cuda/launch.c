/** @file launch.c  Counts the CUDA calls of launches per device, with fake functions of the same
 * names. Needs CUDA's headers, but neither its libraries nor a GPU. */
// SPDX-License-Identifier: MIT
#include "backends/cuda/runtime/launch.h"

#include <cuda.h>
#include <stdatomic.h>
#include <string.h>

#include "backends/cuda/runtime/current.h"
#include "tests/harness.h"
#include "tests/threads.h"

/* -------------------------------------------------- fake CUDA functions that count calls ---- */

enum { DEVICES = 2, KERNELS = 64, PLAIN = 40000 /* bytes of shared memory without attribute */ };

static ts_cuda_device devices[DEVICES] = {{.index = 0, .sms = 10}, {.index = 1, .sms = 20}};
static const unsigned shared_of[DEVICES] = {227 << 10, 99 << 10};
_Thread_local ts_cuda_device *ts_cuda_current;

static char kernels[KERNELS];
/** Attributes of a kernel in a device's context. */
static struct {
    _Atomic unsigned shared;
    atomic_bool large_clusters;
} allowed[DEVICES][KERNELS];
static _Atomic int asked, launched, refused; /* CUDA calls; launches; launches that CUDA refuses */

static int device(void) { return ts_cuda_current->index; }
static ptrdiff_t number(const void *kernel) { return (const char *)kernel - kernels; }

cudaError_t cudaGetFuncBySymbol(cudaFunction_t *function, const void *kernel)
{
    asked++;
    *function = (cudaFunction_t)&allowed[device()][number(kernel)];
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *kernel)
{
    (void)kernel;
    asked++;
    attributes->maxDynamicSharedSizeBytes = PLAIN;
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value)
{
    asked++;
    if (attribute == cudaFuncAttributeNonPortableClusterSizeAllowed)
        allowed[device()][number(kernel)].large_clusters = value;
    else if ((unsigned)value > shared_of[device()])
        return cudaErrorInvalidValue;
    else
        allowed[device()][number(kernel)].shared = (unsigned)value;
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *kernel,
                                                          int threads, size_t shared)
{
    (void)kernel, (void)threads, (void)shared;
    asked++;
    *blocks = 3;
    return cudaSuccess;
}

/** Numbers of clusters of 16 and of smaller clusters. CUDA refuses the former without the
 * attribute. */
static const int fit[DEVICES][2] = {{5, 6}, {7, 9}};

cudaError_t cudaOccupancyMaxActiveClusters(int *clusters, const void *kernel,
                                           const cudaLaunchConfig_t *config)
{
    unsigned size = config->attrs[0].val.clusterDim.x;
    asked++;
    if (size > 8 && !allowed[device()][number(kernel)].large_clusters)
        return cudaErrorInvalidClusterSize;
    *clusters = fit[device()][size < 16];
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void) { return cudaSuccess; }

static CUresult take(CUfunction function, unsigned shared, unsigned cluster)
{
    ptrdiff_t k = (__typeof__(&allowed[0][0]))function - allowed[device()];
    bool here = k >= 0 && k < KERNELS;
    bool good = here && (shared <= PLAIN || shared <= allowed[device()][k].shared) &&
                (cluster <= 8 || allowed[device()][k].large_clusters);
    launched++;
    refused += !good;
    return CUDA_SUCCESS;
}

static CUresult launch_plain(CUfunction function, unsigned bx, unsigned by, unsigned bz,
                             unsigned tx, unsigned ty, unsigned tz, unsigned shared,
                             CUstream stream, void **arguments, void **extra)
{
    (void)bx, (void)by, (void)bz, (void)tx, (void)ty, (void)tz;
    (void)stream, (void)arguments, (void)extra;
    return take(function, shared, 1);
}

static CUresult launch_config(const CUlaunchConfig *config, CUfunction function, void **arguments,
                              void **extra)
{
    (void)arguments, (void)extra;
    return take(function, config->sharedMemBytes, config->attrs[0].value.clusterDim.x);
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *result)
{
    (void)version, (void)flags, (void)result;
    *function = strcmp(name, "cuLaunchKernel") == 0 ? (void *)launch_plain : (void *)launch_config;
    return cudaSuccess;
}

/* --------------------------------------------------------------------------- the cases ---- */

static cudaError_t launch(int on, int kernel, unsigned shared, unsigned cluster)
{
    ts_cuda_current = &devices[on];
    return ts_cuda_launch(&kernels[kernel],
                          &(ts_cuda_grid){{1, 1, 1}, {64, 1, 1}, shared, cluster}, NULL, NULL);
}
static int clusters(int on, int kernel, unsigned shared, unsigned cluster)
{
    ts_cuda_current = &devices[on];
    return ts_cuda_clusters(&kernels[kernel],
                            &(ts_cuda_grid){{1, 1, 1}, {64, 1, 1}, shared, cluster});
}

TS_TEST(shared_memory_limits_are_set_once_per_device_at_the_first_launch)
{
    for (int turn = 0; turn < 3; turn++) {
        int before = asked;
        for (int d = 0; d < DEVICES; d++) {
            ck_assert_int_eq(launch(d, 0, 0, 1), cudaSuccess);
            ck_assert_int_eq(launch(d, 1, 90000, 1), cudaSuccess);
            ck_assert_int_eq(launch(d, 2, 100, 16), cudaSuccess);
        }
        ck_assert_msg((turn == 0) == (asked > before), "turn %d asked %d times", turn,
                      asked - before);
    }
    ck_assert_int_eq(launched, 3 * DEVICES * 3);
    ck_assert_int_eq(refused, 0);
}

TS_TEST(the_shared_memory_limit_of_a_kernel_only_grows)
{
    ck_assert_int_eq(launch(0, 0, 1000, 1), cudaSuccess);
    ck_assert_int_eq(launch(0, 0, 60000, 1), cudaSuccess);
    ck_assert_int_eq(launch(0, 0, 200000, 1), cudaSuccess);
    int before = asked;
    ck_assert_int_eq(launch(0, 0, 60000, 1), cudaSuccess);
    ck_assert_int_eq(launch(0, 0, 200000, 1), cudaSuccess);
    ck_assert_int_eq(asked, before);
    ck_assert_int_eq(refused, 0);
}

TS_TEST(the_number_of_clusters_that_fit_is_queried_once_per_device)
{
    for (int turn = 0; turn < 2; turn++) {
        int before = asked;
        for (int d = 0; d < DEVICES; d++) {
            ck_assert_int_eq(clusters(d, 0, 90000, 16), fit[d][0]);
            ck_assert_int_eq(clusters(d, 1, 90000, 1), 3 * devices[d].sms);
            ck_assert_int_eq(launch(d, 0, 90000, 16), cudaSuccess);
        }
        ck_assert_int_eq(turn == 0, asked > before);
    }
    ck_assert_int_eq(refused, 0);
}

TS_TEST(clusters_that_do_not_fit_are_not_launched_and_the_limit_is_queried_once)
{
    ck_assert_int_eq(clusters(1, 0, 200000, 4), 0);
    int before = asked;
    ck_assert_int_eq(clusters(1, 0, 200000, 4), 0);
    ck_assert_int_eq(asked, before);
    ck_assert_int_eq(launch(1, 0, 200000, 4), cudaErrorInvalidValue);
    ck_assert_int_eq(launched, 0);
    ck_assert_int_eq(clusters(0, 0, 200000, 4), fit[0][1]);
    ck_assert_int_eq(launch(0, 0, 200000, 4), cudaSuccess);
    ck_assert_int_eq(refused, 0);
}

TS_TEST(one_kernel_may_be_launched_with_clusters_of_several_sizes)
{
    static const unsigned sizes[] = {1, 4, 16, 4, 1, 16};
    for (size_t i = 0; i < 2 * sizeof sizes / sizeof *sizes; i++) {
        unsigned size = sizes[i % 6];
        int before = asked;
        ck_assert_int_eq(clusters(1, 3, 1000, size),
                         size == 1 ? 3 * devices[1].sms : fit[1][size < 16]);
        ck_assert_int_eq(launch(1, 3, 1000, size), cudaSuccess);
        ck_assert_int_eq(i < 3, asked > before);
    }
    ck_assert_int_eq(refused, 0);
}

/** Launches all kernels on both devices, with shared memory that differs between threads. */
static bool launch_all(int thread, void *ctx)
{
    bool good = true;
    (void)ctx;
    for (int turn = 0; turn < 200; turn++)
        for (int k = 0; k < KERNELS; k++) {
            int on = (thread + turn) % DEVICES;
            unsigned shared = (unsigned)(turn * 97 + thread * 24001) % 99000;
            unsigned cluster = k % 3 ? 1 : 16;
            good = good && clusters(on, k, shared, cluster) > 0 &&
                   launch(on, k, shared, cluster) == cudaSuccess;
        }
    return good;
}

TS_TEST(threads_may_launch_a_kernel_for_the_first_time_at_once, .threads = true)
{
    enum { THREADS = 4 };
    ck_assert_int_eq(ts_together(THREADS, launch_all, NULL), THREADS);
    ck_assert_int_eq(launched, THREADS * 200 * KERNELS);
    ck_assert_int_eq(refused, 0);
}
