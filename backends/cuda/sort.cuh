/**
 * @file sort.cuh  A stable radix sort of keys with positions: least significant digit first, eight
 * bits per pass, and only as many passes as the largest key needs. A pass counts digits per tile,
 * computes prefix sums, and moves each pair after earlier pairs with the same digit, so equal keys
 * keep their order and the result does not depend on scheduling. A pass reads keys twice and places
 * once, and writes both once: 20 N bytes for N pairs of 32-bit numbers.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_SORT_CUH
#define TS_CUDA_SORT_CUH

#include "backends/cuda/block.cuh"
#include "backends/cuda/frame.cuh"

namespace ts {

enum {
    SORT_DIGITS = 256,
    SORT_THREADS = 256,
    SORT_ROUNDS = 8,
    SORT_TILE = SORT_THREADS * SORT_ROUNDS
};

/** Counts the digits of each tile: counts[digit][tile]. */
template <class I>
static __global__ void __launch_bounds__(SORT_THREADS)
    sort_count_kernel(const I *keys, I n, int shift, I *counts)
{
    __shared__ unsigned count[SORT_DIGITS];
    count[threadIdx.x] = 0;
    __syncthreads();
    I begin = (I)blockIdx.x * SORT_TILE;
#pragma unroll
    for (int r = 0; r < SORT_ROUNDS; r++) {
        I i = begin + r * SORT_THREADS + threadIdx.x;
        if (i < n)
            /* integer additions: the order does not matter */
            atomicAdd(&count[keys[i] >> shift & (SORT_DIGITS - 1)], 1u);
    }
    __syncthreads();
    counts[(I)threadIdx.x * gridDim.x + blockIdx.x] = count[threadIdx.x];
}

/** Block d replaces digit d's counts by prefix sums over tiles; totals[d] is the digit's total. */
template <class I>
static __global__ void __launch_bounds__(SORT_THREADS)
    sort_sum_kernel(I *counts, I tiles, I *totals)
{
    I *mine = counts + (I)blockIdx.x * tiles, before = 0;
    for (I begin = 0; begin < tiles; begin += SORT_THREADS) {
        I i = begin + threadIdx.x, x = i < tiles ? mine[i] : 0, all;
        I upto = block_exclusive<SORT_THREADS>(x, &all);
        if (i < tiles)
            mine[i] = before + upto;
        before += all;
    }
    if (threadIdx.x == 0)
        totals[blockIdx.x] = before;
}

/** Moves the pairs of a tile to their positions. Each warp processes a run of the tile and ranks
 * lanes with equal digits by __match_any_sync(). */
template <class I>
static __global__ void __launch_bounds__(SORT_THREADS)
    sort_move_kernel(const I *keys, const I *places, I n, int shift, const I *counts,
                     const I *totals, I *to_keys, I *to_places)
{
    constexpr int warps = SORT_THREADS / 32;
    __shared__ unsigned count[warps][SORT_DIGITS];
    __shared__ I base[SORT_DIGITS];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int d = lane; d < SORT_DIGITS; d += 32)
        count[warp][d] = 0;
    __syncwarp();
    I begin = (I)blockIdx.x * SORT_TILE + warp * (32 * SORT_ROUNDS) + lane, key[SORT_ROUNDS];
    unsigned rank[SORT_ROUNDS];
#pragma unroll
    for (int r = 0; r < SORT_ROUNDS; r++)
        key[r] = begin + r * 32 < n ? keys[begin + r * 32] : 0;
#pragma unroll
    for (int r = 0; r < SORT_ROUNDS; r++) {
        bool some = begin + r * 32 < n;
        int digit = (int)(key[r] >> shift & (SORT_DIGITS - 1));
        unsigned peers = __match_any_sync(0xffffffffu, some ? digit : SORT_DIGITS);
        unsigned below = peers & ((1u << lane) - 1);
        rank[r] = some ? count[warp][digit] + __popc(below) : 0;
        __syncwarp();
        if (some && !below)
            count[warp][digit] += __popc(peers);
        __syncwarp();
    }
    I all, start = block_exclusive<SORT_THREADS>(totals[threadIdx.x], &all);
    base[threadIdx.x] = start + counts[(I)threadIdx.x * gridDim.x + blockIdx.x];
    unsigned before = 0; /* counts of the warps; thread d handles digit d */
#pragma unroll
    for (int w = 0; w < warps; w++) {
        unsigned own = count[w][threadIdx.x];
        count[w][threadIdx.x] = before;
        before += own;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < SORT_ROUNDS; r++) {
        I i = begin + r * 32;
        if (i >= n)
            continue;
        int digit = (int)(key[r] >> shift & (SORT_DIGITS - 1));
        I to = base[digit] + count[warp][digit] + rank[r];
        to_keys[to] = key[r];
        to_places[to] = places[i];
    }
}

/** A sort of n pairs in caller-owned scratch memory of numbers(n) elements of I: two buffers of
 * pairs, and counts. */
template <class I> struct sorter {
    I *keys[2], *places[2], *counts, *totals;
    I n;
    int now; /* index of the buffer that holds the pairs */

    static int64_t tiles(int64_t n) { return (n + SORT_TILE - 1) / SORT_TILE; }
    static int64_t numbers(int64_t n) { return 4 * n + SORT_DIGITS * (tiles(n) + 1); }

    sorter(void *scratch, int64_t count) : n((I)count), now(0)
    {
        I *at = (I *)scratch;
        for (int k = 0; k < 2; k++, at += 2 * count) {
            keys[k] = at;
            places[k] = at + count;
        }
        counts = at;
        totals = at + SORT_DIGITS * tiles(count);
    }
    /** Sorts the pairs in keys[0] and places[0], whose keys are at most `largest`. The result is in
     * keys[now] and places[now]. */
    void run(uint64_t largest, cudaStream_t stream)
    {
        unsigned blocks = (unsigned)tiles((int64_t)n);
        for (int shift = 0; shift < 64 && largest >> shift; shift += 8, now ^= 1) {
            sort_count_kernel<I><<<blocks, SORT_THREADS, 0, stream>>>(keys[now], n, shift, counts);
            sort_sum_kernel<I><<<SORT_DIGITS, SORT_THREADS, 0, stream>>>(counts, blocks, totals);
            sort_move_kernel<I><<<blocks, SORT_THREADS, 0, stream>>>(
                keys[now], places[now], n, shift, counts, totals, keys[now ^ 1], places[now ^ 1]);
        }
    }
};

} // namespace ts

#endif
