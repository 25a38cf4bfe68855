/** @file attention_schedule.cuh  In which order blocks on Hopper take rows of heads. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_ATTENTION_SCHEDULE_CUH
#define TS_CUDA_ATTENTION_SCHEDULE_CUH

#include "backends/cuda/attention.cuh"

namespace ts {

/** Which rows of which head a block works on. */
struct attention_place {
    int block, head, batch;
};
/**
 * Blocks with the most keys first (the last rows of a head under a causal mask),
 * among as many heads as have their keys and values in the cache together.
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

/** How many heads' keys and values, or whatever `bytes` a head are,
 * fit into the second-level cache. */
inline int attention_together(int64_t bytes, int64_t heads)
{
    int64_t fit = bytes > 0 ? (32 << 20) / bytes : heads;
    return (int)(fit < 1 ? 1 : fit > heads ? heads : fit);
}

} // namespace ts

#endif
