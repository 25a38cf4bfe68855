/** @file schedule.cuh  The order in which blocks process tiles and heads on Hopper, and the results
 * of rows without keys. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_ATTENTION_SCHEDULE_CUH
#define TS_CUDA_ATTENTION_SCHEDULE_CUH

#include "backends/cuda/attention/attention.cuh"

namespace ts {

/** A unit of work: the index of a tile of rows or keys (`block`), the head and the batch. */
struct attention_place {
    int block, head, batch;
};
/**
 * Maps the index of a unit of work to its place. Heads are processed in sections of `together`
 * heads, whose streamed tensors (keys and values, or queries and gradients) fit in the L2 cache at
 * the same time. Within a section, block 0 of each head comes first, then block 1, and so on;
 * kernels number blocks so that under a causal mask block 0 has the most work.
 * @param blocks    blocks of a head
 * @param heads     heads of a batch
 * @param all       heads of all batches
 * @param together  heads of a section, from attention_together()
 */
__device__ __forceinline__ attention_place attention_longest_first(unsigned index, unsigned blocks,
                                                                   unsigned heads, unsigned all,
                                                                   unsigned together)
{
    unsigned section = index / (together * blocks), first = section * together,
             rest = index - first * blocks;
    unsigned here = min(all - first, together), block = rest / here,
             which = first + rest - block * here;
    unsigned batch = which / heads;
    return {(int)block, (int)(which - batch * heads), (int)batch};
}

/** Number of heads whose streamed tensors, `bytes` bytes per head, fit in 32 MiB of the L2 cache,
 * which has 50 MiB on an H200; 1 to `heads`. */
inline int attention_together(int64_t bytes, int64_t heads)
{
    int64_t fit = bytes > 0 ? (32 << 20) / bytes : heads;
    return (int)(fit < 1 ? 1 : fit > heads ? heads : fit);
}

/** A warp writes results of rows that see no keys, `first` to first + ROWS - 1: out = 0, lse =
 * -Inf. */
template <class T, int ROWS, int DEPTH>
__device__ __forceinline__ void attention_clear_rows(const attention_call &c,
                                                     const attention_span &span, int batch,
                                                     int head, int first)
{
#pragma unroll 1
    for (int i = threadIdx.x % 32; i < ROWS * (DEPTH / 8); i += 32) {
        int row = first + i / (DEPTH / 8), column = i % (DEPTH / 8) * 8;
        if (row < span.rows && column < c.value_depth)
            *(uint4 *)(c.out.of<T>(batch, head, span.first_row + row) + column) = uint4{};
        if (row < span.rows && column == 0 && c.lse)
            ((float *)c.lse)[statistic_of(c, span, head, row)] = -INFINITY;
    }
}

} // namespace ts

#endif
