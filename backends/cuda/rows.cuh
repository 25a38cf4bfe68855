/**
 * @file rows.cuh
 * Kernels over rows that are read once: a group of threads holds a whole row in its registers,
 * reduces it as often as the formula wants, and writes it once.
 *
 * A row of n elements belongs to WARPS warps of each of CLUSTER blocks. Thread t of the group owns
 * the 16-byte vectors t, t + group, t + 2 group, ...: VECS of them at most. Short rows share a block.
 * Sums run over lanes, warps and blocks in a fixed order, so results do not depend on scheduling.
 * Clusters are of sm_90 and later; on what came before the host never asks for them.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_ROWS_CUH
#define TS_CUDA_ROWS_CUH

#include <cooperative_groups.h>

#include "backends/cuda/types.cuh"

namespace ts {

/** How a row is spread; chosen by rows_dispatch(). */
template <int WARPS_, int VECS_, int CLUSTER_> struct row_shape {
    static constexpr int warps = WARPS_, vecs = VECS_, cluster = CLUSTER_;
    /** Threads of a block that work on one row, and rows of a block. */
    static constexpr int threads = 32 * warps;
    static constexpr int rows = warps >= 3 ? 1 : 4 / warps;
    static constexpr int group = threads * cluster;
};

struct op_sum {
    template <class A> static __device__ __forceinline__ A of(A a, A b) { return a + b; }
};
struct op_max {
    static __device__ __forceinline__ float of(float a, float b) { return fmaxf(a, b); }
    static __device__ __forceinline__ double of(double a, double b) { return fmax(a, b); }
};

/**
 * Reduces COUNT values over the threads of a row; every thread gets the results. `place` is shared
 * memory for the row: 2 * COUNT * 32 numbers, used in turns, so that calls need no barrier between.
 */
template <class S, class OP, int COUNT, class A>
__device__ __forceinline__ void row_reduce(A (&x)[COUNT], A *place, int turn)
{
#pragma unroll
    for (int c = 0; c < COUNT; c++)
#pragma unroll
        for (int lane = 16; lane; lane >>= 1)
            x[c] = OP::of(x[c], __shfl_xor_sync(0xffffffffu, x[c], lane));
    if constexpr (S::warps * S::cluster > 1) {
        A *mine = place + (turn & 1) * COUNT * 32;
        int warp = threadIdx.x % S::threads / 32;
        if constexpr (S::cluster == 1) {
            if (threadIdx.x % 32 == 0)
#pragma unroll
                for (int c = 0; c < COUNT; c++)
                    mine[c * 32 + warp] = x[c];
            __syncthreads();
#pragma unroll
            for (int c = 0; c < COUNT; c++) {
                x[c] = mine[c * 32];
#pragma unroll
                for (int w = 1; w < S::warps; w++)
                    x[c] = OP::of(x[c], mine[c * 32 + w]);
            }
        } else { /* within the block first; then one number of each block crosses the cluster */
#if __CUDA_ARCH__ >= 900
            auto cluster = cooperative_groups::this_cluster();
            __shared__ A across[2][COUNT][S::cluster];
            if (threadIdx.x % 32 == 0)
#pragma unroll
                for (int c = 0; c < COUNT; c++)
                    mine[c * 32 + warp] = x[c];
            __syncthreads();
            if (threadIdx.x < S::cluster) {
#pragma unroll
                for (int c = 0; c < COUNT; c++) {
                    A sum = mine[c * 32];
                    for (int w = 1; w < S::warps; w++)
                        sum = OP::of(sum, mine[c * 32 + w]);
                    *cluster.map_shared_rank(&across[turn & 1][c][cluster.block_rank()], threadIdx.x) = sum;
                }
            }
            cluster.sync();
#pragma unroll
            for (int c = 0; c < COUNT; c++) {
                x[c] = across[turn & 1][c][0];
#pragma unroll
                for (int b = 1; b < S::cluster; b++)
                    x[c] = OP::of(x[c], across[turn & 1][c][b]);
            }
#endif
        }
    }
}

/** A thread's part of a row. V elements an access: vec16<T> where rows are aligned, else 1. */
template <class T, class S, int V> struct row_part {
    vec<T, V> at[S::vecs];

    static __device__ __forceinline__ int first()
    {
        int t = S::rows > 1 ? threadIdx.x % S::threads : threadIdx.x;
#if __CUDA_ARCH__ >= 900
        if constexpr (S::cluster > 1)
            t += S::threads * (int)cooperative_groups::this_cluster().block_rank();
#endif
        return t;
    }
    /** Vectors outside of the row keep `fill`. n counts elements. */
    __device__ __forceinline__ void load(const T *row, int64_t n, T fill)
    {
#pragma unroll
        for (int j = 0; j < S::vecs; j++) {
            int64_t i = (int64_t)(first() + j * S::group) * V;
            if (i < n) {
                if constexpr (sizeof(at[j]) == 16)
                    at[j] = load_stream(reinterpret_cast<const vec<T, V> *>(row + i));
                else
                    at[j] = *reinterpret_cast<const vec<T, V> *>(row + i);
            } else {
#pragma unroll
                for (int e = 0; e < V; e++)
                    at[j].at[e] = fill;
            }
        }
    }
    __device__ __forceinline__ void store(T *row, int64_t n) const
    {
#pragma unroll
        for (int j = 0; j < S::vecs; j++) {
            int64_t i = (int64_t)(first() + j * S::group) * V;
            if (i < n) {
                if constexpr (sizeof(at[j]) == 16)
                    store_stream(reinterpret_cast<vec<T, V> *>(row + i), at[j]);
                else
                    *reinterpret_cast<vec<T, V> *>(row + i) = at[j];
            }
        }
    }
    static __device__ __forceinline__ bool inside(int j, int64_t n)
    {
        return (int64_t)(first() + j * S::group) * V < n;
    }
};

/**
 * Rows that are on their way while others are worked on: a ring in shared memory in which every thread
 * has slots of its own, so that a thread waits for nothing but its own copies. ARRAYS rows a stage.
 */
template <class T, class S, int V, int ARRAYS, int STAGES> struct row_ring {
    static_assert(sizeof(vec<T, V>) == 16, "16-byte copies");
    static constexpr int bytes = STAGES * ARRAYS * S::vecs * S::threads * S::rows * 16;
    vec<T, V> *slots;

    __device__ __forceinline__ vec<T, V> *slot(int stage, int array, int j) const
    {
        return slots + ((stage * ARRAYS + array) * S::vecs + j) * (S::threads * S::rows) + threadIdx.x;
    }
    /** Begins to copy a row; rows come in the same order for every stage. */
    __device__ __forceinline__ void begin(int stage, int array, const T *row, int64_t n) const
    {
#pragma unroll
        for (int j = 0; j < S::vecs; j++) {
            int64_t i = (int64_t)(row_part<T, S, V>::first() + j * S::group) * V;
            if (i < n) {
                unsigned to = (unsigned)__cvta_generic_to_shared(slot(stage, array, j));
                asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(row + i) : "memory");
            }
        }
    }
    static __device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
    template <int N> static __device__ __forceinline__ void wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
};

/** Row that this thread works on, and whether there is one. */
template <class S> __device__ __forceinline__ int64_t row_index()
{
    if constexpr (S::rows > 1)
        return (int64_t)blockIdx.x * S::rows + threadIdx.x / S::threads;
    else
        return (int64_t)blockIdx.x / S::cluster;
}

/** Shared memory of a block for row_reduce(). */
template <class S, int COUNT, class A> __device__ __forceinline__ A *row_place()
{
    __shared__ A place[S::rows * 2 * COUNT * 32];
    return place + (S::rows > 1 ? threadIdx.x / S::threads : 0) * 2 * COUNT * 32;
}

} // namespace ts

#endif
