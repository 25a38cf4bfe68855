/**
 * @file lists.cuh
 * Sequences of different lengths on Hopper: packed sequences, and key lengths per batch. A unit of
 * work is a tile of rows or of keys of one sequence. Before the attention kernel,
 * attention_list_kernel() lists the units of all sequences, those with the highest cost first; rows
 * and keys beyond the end of a sequence have no unit. The kernel also writes descriptors for TMA,
 * the copy engine, for each sequence. They end at the sequence's last row or key, so TMA replaces
 * elements of later sequences by zeros and does not write there.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_ATTENTION_LISTS_CUH
#define TS_CUDA_ATTENTION_LISTS_CUH

#include "backends/cuda/attention/launch.cuh"
#include "backends/cuda/runtime/early.cuh"

namespace ts {

/** How a list divides a call: into units of `tile` rows or, if `keys`, of `tile` keys. For a unit
 * of rows, a block streams tiles of `other` keys; for a unit of keys, tiles of `other` rows. The
 * number of these tiles is the unit's cost. */
struct attention_division {
    CUtensorMap maps[4]; /* descriptors of whole tensors, copied to c.maps for each sequence */
    int of_keys;         /* bit i: maps[i] is of keys or values; else of queries or results */
    bool keys;
    int tile, other;
};

/** Block 0 lists the units of all sequences in c.units and zeroes *c.taken; each other block
 * writes c.maps of four sequences. The order of units of equal cost, and of those that cost 511
 * tiles or more, is not fixed. */
static __global__ void __launch_bounds__(512)
    attention_list_kernel(const __grid_constant__ attention_call c,
                          const __grid_constant__ attention_division d)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    constexpr int LEVELS = 512, /* levels of cost; level 0 has the units with the highest cost */
        FEW = 4096;             /* maximum units of calls with `few`, see below */
    __shared__ unsigned starts[LEVELS], sums[LEVELS / 32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    begin_next_kernel();
    if (blockIdx.x > 0) {
        int batch = (int)(blockIdx.x - 1) * 4 + warp / 4, which = warp % 4;
        if (batch < c.batches) {
            attention_span s = span_of(c, batch);
            int64_t end = d.of_keys >> which & 1 ? s.first_key + s.keys : s.first_row + s.rows;
            CUtensorMap *to = c.maps + batch * 4 + which;
            ((uint32_t *)to)[lane] = ((const uint32_t *)&d.maps[which])[lane];
            __syncwarp();
            if (lane == 0) /* nothing is loaded from an empty sequence, but no size may be 0 */
                asm volatile("tensormap.replace.tile.global_dim.global.b1024.b32 [%0], 1, %1;\n\t"
                             "fence.proxy.tensormap::generic.release.gpu;" ::"l"(to),
                             "r"(max(1, (int)end))
                             : "memory");
        }
        wait_for_kernel_in_front();
        return;
    }
    auto add_block = [&](const attention_span &s, int batch, int block, auto &&f) {
        int first = block * d.tile;
        attention_range seen = d.keys ? rows_of_keys(s, first, min(first + d.tile, s.keys))
                                      : keys_of_rows(s, first, min(first + d.tile, s.rows));
        int tiles = (max(seen.end - seen.first, 0) + d.other - 1) / d.other;
        f(batch, block, LEVELS - 1 - min(tiles, LEVELS - 1));
    };
    /* largest number of units of a batch */
    int most = ((d.keys ? c.keys : c.rows) + d.tile - 1) / d.tile;
    bool few = (int64_t)most * c.batches <= FEW;
    /* Calls f(batch, block, level) for all units. With `few`, each thread tests one of the `most`
       possible units of a batch at a time. Otherwise many of these may not exist, so a warp takes
       the real units of 32 batches. */
    auto each_block = [&](auto &&f) {
        for (int i = threadIdx.x; few && i < most * c.batches; i += (int)blockDim.x) {
            int batch = i / most, block = i - batch * most;
            attention_span s = span_of(c, batch);
            if (block * d.tile < (d.keys ? s.keys : s.rows))
                add_block(s, batch, block, f);
        }
        for (int from = warp * 32; !few && from < c.batches; from += (int)blockDim.x) {
            attention_span mine = {};
            if (from + lane < c.batches)
                mine = span_of(c, from + lane);
            for (int i = 0; i < min(32, c.batches - from); i++) {
                attention_span s = {};
                s.rows = __shfl_sync(0xffffffffu, mine.rows, i);
                s.keys = __shfl_sync(0xffffffffu, mine.keys, i);
                s.low = __shfl_sync(0xffffffffu, mine.low, i);
                s.high = __shfl_sync(0xffffffffu, mine.high, i);
                int blocks = ((d.keys ? s.keys : s.rows) + d.tile - 1) / d.tile;
                for (int block = lane; block < blocks; block += 32)
                    add_block(s, from + i, block, f);
            }
        }
    };
    starts[threadIdx.x] = 0;
    __syncthreads();
    each_block([&](int, int, int level) { atomicAdd(&starts[level], 1); });
    __syncthreads();
    unsigned mine = starts[threadIdx.x], sum = mine;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        unsigned below = __shfl_up_sync(0xffffffffu, sum, step);
        sum += lane >= step ? below : 0;
    }
    if (lane == 31)
        sums[warp] = sum;
    __syncthreads();
    for (int i = 0; i < warp; i++)
        sum += sums[i];
    starts[threadIdx.x] = sum - mine;
    if (threadIdx.x == LEVELS - 1) {
        *c.unit_count = min(sum, c.unit_room); /* more only if the lengths are wrong */
        *c.taken = 0;
    }
    __syncthreads();
    each_block([&](int batch, int block, int level) {
        unsigned at = atomicAdd(&starts[level], 1);
        if (at < c.unit_room)
            c.units[at] = make_int2(batch, block);
    });
    wait_for_kernel_in_front();
#endif
}

/** Returns a descriptor of c.maps, after a fence that lets the calling thread pass it to TMA. */
__device__ __forceinline__ const CUtensorMap *attention_map(const CUtensorMap *map)
{
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory");
    return map;
}
/** Coordinate of a batch in a descriptor's tensor: packed sequences are one batch. */
__device__ __forceinline__ int attention_batch(const attention_call &c, int batch)
{
    return c.q_starts ? 0 : batch;
}

/** Launches attention_list_kernel() and sets c.unit_room. early: see attention_launch_as(). */
inline cudaError_t attention_list(attention_call &c, const attention_division &d, bool early,
                                  cudaStream_t stream)
{
    c.unit_room = (unsigned)attention_unit_room(c, d.keys, d.tile);
    return attention_launch_as(early, attention_list_kernel, 1, 1 + (c.batches + 3) / 4, 1, 512, 0,
                               stream, c, d);
}

} // namespace ts

#endif
