/** @file sort.cuh  A stable sort of pairs of a key and a position, by key, for sums by key
 * (grouped.cuh) and permutations (sampling.cuh). Pairs with equal keys keep their order, so the
 * result does not depend on scheduling. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_SORT_CUH
#define TS_CUDA_SORT_CUH

#include "backends/cuda/frame.cuh"

namespace ts {

/** A sort of n pairs of uint32_t or uint64_t in caller-owned scratch memory of bytes(n) bytes: two
 * buffers of pairs, and memory of the radix sort of CUB, a library of NVIDIA (sort.cu). */
template <class I> struct sorter {
    I *keys[2], *positions[2];
    int64_t n;
    int now; /* index of the buffer that holds the pairs */

    static int64_t bytes(int64_t n);
    sorter(void *scratch, int64_t count) : n(count), now(0)
    {
        for (int k = 0; k < 2; k++) {
            keys[k] = (I *)scratch + 2 * k * count;
            positions[k] = keys[k] + count;
        }
    }
    /** Sorts the pairs in keys[0] and positions[0], whose keys are at most `largest`, with CUB.
     * Sets `now`: the result is in keys[now] and positions[now]. */
    cudaError_t run(uint64_t largest, cudaStream_t stream);
};

enum {
    RANK_MOST = 2048,   /* pairs up to which ranks are faster than a radix sort */
    RANK_THREADS = 256,
    RANK_ROWS = 4,      /* pairs that a warp ranks at a time */
    RANK_BLOCKS = 264   /* maximum blocks of a launch, twice the 132 multiprocessors of an H100:
                           each block reads all keys */
};

/** Stores the pairs (pair(k, position), position), k < n, in keys[k] and positions[k]. */
template <class I, class F>
static __global__ void pairs_of_kernel(const __grid_constant__ F pair, I n, I *keys, I *positions)
{
    for (I k = (I)blockIdx.x * blockDim.x + threadIdx.x; k < n; k += (I)gridDim.x * blockDim.x)
        keys[k] = pair(k, positions[k]);
}

/**
 * Sorts n <= RANK_MOST pairs in one launch. Each block holds all keys in shared memory. For each
 * pair, a warp counts the pairs that sort before it: this count is the pair's place in the order.
 * The items that warps process are the n pairs and then `bound` possible keys: for key r, first[r]
 * is set to the number of keys below r.
 */
template <class F>
static __global__ void __launch_bounds__(RANK_THREADS)
    rank_kernel(const __grid_constant__ F pair, uint32_t n, uint32_t bound, uint32_t *keys,
                uint32_t *positions, uint32_t *first)
{
    __shared__ uint32_t all[RANK_MOST];
    uint32_t lane = threadIdx.x % 32, items = n + bound,
             step = gridDim.x * (RANK_THREADS / 32) * RANK_ROWS;
    for (uint32_t k = threadIdx.x; k < n; k += RANK_THREADS) {
        uint32_t position;
        all[k] = pair(k, position);
    }
    __syncthreads();
    for (uint32_t base = (blockIdx.x * (RANK_THREADS / 32) + threadIdx.x / 32) * RANK_ROWS;
         base < items; base += step) {
        uint32_t mine[RANK_ROWS], before[RANK_ROWS] = {};
#pragma unroll
        for (int r = 0; r < RANK_ROWS; r++)
            mine[r] = base + r < n ? all[base + r] : base + r - n;
#pragma unroll 4
        for (uint32_t k = lane; k < n; k += 32) {
            uint32_t key = all[k];
#pragma unroll
            for (int r = 0; r < RANK_ROWS; r++) /* equal keys keep their order */
                before[r] += key < mine[r] || (key == mine[r] && base + r < n && k < base + r);
        }
#pragma unroll
        for (int r = 0; r < RANK_ROWS; r++) {
            uint32_t rank = __reduce_add_sync(0xffffffffu, before[r]), item = base + r;
            if (lane != (uint32_t)r)
                continue;
            if (item < n) {
                keys[rank] = mine[r];
                pair(item, positions[rank]);
            } else if (item < items) {
                first[item - n] = rank;
            }
        }
    }
}

/**
 * Sorts the pairs (pair(k, position), position), k < s.n, whose keys are at most `largest`. The
 * functor `pair` returns the key and sets the position. The result is in s.keys[s.now] and
 * s.positions[s.now]. If I is uint32_t, first is not NULL, s.n <= RANK_MOST and largest <=
 * 2 * RANK_MOST, also sets first[r] to the number of keys below r, for r < largest, and sets
 * *counted to true; else to false.
 */
template <class I, class F>
cudaError_t sort_by(sorter<I> &s, const F &pair, uint64_t largest, I *first, bool *counted,
                    cudaStream_t stream)
{
    *counted = false;
    if constexpr (sizeof(I) == 4)
        if (s.n <= RANK_MOST) {
            *counted = first && largest <= 2 * RANK_MOST;
            uint32_t bound = *counted ? (uint32_t)largest : 0;
            int64_t each = RANK_THREADS / 32 * RANK_ROWS, blocks = (s.n + bound + each - 1) / each;
            rank_kernel<<<(unsigned)(blocks < RANK_BLOCKS ? blocks : RANK_BLOCKS), RANK_THREADS, 0,
                          stream>>>(pair, (uint32_t)s.n, bound, s.keys[0], s.positions[0], first);
            return cudaPeekAtLastError();
        }
    int64_t blocks = (s.n + 255) / 256;
    pairs_of_kernel<I><<<(unsigned)(blocks < 65535 ? blocks : 65535), 256, 0, stream>>>(
        pair, (I)s.n, s.keys[0], s.positions[0]);
    return s.run(largest, stream);
}

} // namespace ts

#endif
