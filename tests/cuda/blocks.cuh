/** @file blocks.cuh  Common code of the tests of tensor-core building blocks: arrays of whole
 * numbers, launches, descriptors of the TMA (Tensor Memory Accelerator), accumulators. */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_TESTS_CUDA_BLOCKS_CUH
#define TESSERA_TESTS_CUDA_BLOCKS_CUH

#include "tests/cuda/blocks.h"

#include "backends/cuda/attention/mma.cuh"
#include "backends/cuda/instructions/tma.h"
#include "backends/cuda/instructions/wgmma.cuh"

#include <stdlib.h>

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define HOPPER 1
#else
#define HOPPER 0 /* the kernels are empty for other architectures */
#endif

/* two rows of a block_table: the function for bf16 and for f16 */
#define HALVES(text, function, ...) {"bf16 " text, function<bf16, __VA_ARGS__>},                   \
    {"f16 " text, function<f16, __VA_ARGS__>}

using namespace ts;

/* --------------------------------------------------------------------------------- host ---- */

/** An array in host memory and its copy on the device. up() and down() copy it; whole() fills it
 * with whole numbers from -3 to 3. */
template <class T> struct both {
    int n;
    T *host, *device = nullptr;
    explicit both(int n) : n(n), host((T *)malloc(n * sizeof(T)))
    {
        cudaMalloc((void **)&device, n * sizeof(T));
    }
    ~both()
    {
        free(host);
        cudaFree(device);
    }
    both(const both &) = delete;
    both &up()
    {
        cudaMemcpy(device, host, n * sizeof(T), cudaMemcpyHostToDevice);
        return *this;
    }
    both &down()
    {
        cudaMemcpy(host, device, n * sizeof(T), cudaMemcpyDeviceToHost);
        return *this;
    }
    both &whole(uint32_t seed)
    {
        for (int i = 0; i < n; i++) {
            uint32_t x = (uint32_t)i * 2654435761u ^ seed * 40503u;
            x = (x ^ x >> 15) * 2246822519u;
            host[i] = (T)(float)((int)((x ^ x >> 13) % 7) - 3);
        }
        return up();
    }
    both &all(float x)
    {
        for (int i = 0; i < n; i++)
            host[i] = (T)x;
        return up();
    }
    float operator[](int i) const { return (float)host[i]; }
};

inline cudaError_t block_failure;

/** Runs a kernel and waits for it. False if CUDA reports an error, which block_failure keeps. */
template <class... P, class... X>
static bool run(void (*kernel)(P...), int blocks, int threads, int bytes, const X &...x)
{
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    kernel<<<blocks, threads, bytes>>>(x...);
    block_failure = cudaGetLastError();
    if (block_failure == cudaSuccess)
        block_failure = cudaDeviceSynchronize();
    return block_failure == cudaSuccess;
}

/** TMA descriptor of a dense matrix x (rows, columns). */
template <class T> static CUtensorMap map_of(const both<T> &x, int rows, int columns, int box_rows)
{
    CUtensorMap map = {};
    tma_map<T>(&map, {x.device, 0, 0, columns}, columns, rows, 1, 1, box_rows);
    return map;
}

/* ------------------------------------------------------------------------------- device ---- */

/** The first address in shared memory from `shared` on that is a multiple of 1024, as the swizzled
 *  layouts of the TMA need it. */
__device__ __forceinline__ uint32_t tiles_of(char *shared)
{
    return (shared_address(shared) + 1023) & ~1023u;
}
/** Index of element e of this thread's accumulator n in a row-major matrix of 64 x `columns`. */
__device__ __forceinline__ int place(int n, int e, int columns)
{
    int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane / 4 + e / 2 * 8;
    return row * columns + n * 8 + lane % 4 * 2 + e % 2;
}
/** Load and store this thread's accumulators of a matrix of 64 x 8 N in row-major order. */
template <int N> __device__ __forceinline__ void get(float (&d)[N][4], const float *from)
{
    for (int n = 0; n < N; n++)
        for (int e = 0; e < 4; e++)
            d[n][e] = from[place(n, e, N * 8)];
}
template <int N> __device__ __forceinline__ void give(float *to, const float (&d)[N][4])
{
    for (int n = 0; n < N; n++)
        for (int e = 0; e < 4; e++)
            to[place(n, e, N * 8)] = d[n][e];
}

#endif
