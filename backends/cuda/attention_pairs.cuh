/** @file attention_pairs.cuh  What both backward passes on tensor cores read of a row: its lse and its delta. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_ATTENTION_PAIRS_CUH
#define TS_CUDA_ATTENTION_PAIRS_CUH

#include "backends/cuda/attention.cuh"

namespace ts {

/**
 * lse as a power of two, and delta = the sum of g out, less g_lse; a warp a row of the tensors. Rows that see
 * nothing get a power of 0, for their scores are -Inf; rows that only fill up a head get +Inf, so that all
 * their probabilities are 0.
 */
template <class T>
static __global__ void __launch_bounds__(256) attention_pairs_kernel(const __grid_constant__ attention_call c)
{
    int64_t index = (int64_t)blockIdx.x * 8 + threadIdx.x / 32, heads = index / c.pair_rows, row = index % c.pair_rows;
    int head = (int)(heads % c.heads), batch = (int)(heads / c.heads), lane = threadIdx.x % 32;
    if (batch >= (c.q_starts ? 1 : c.batches))
        return;
    if (row >= c.q_tokens) {
        if (lane == 0)
            ((float2 *)c.pairs)[index] = {INFINITY, 0};
        return;
    }
    const T *out = c.out.of<const T>(batch, head, row), *g = c.g.of<const T>(batch, head, row);
    float sum = 0;
    for (int i = lane * 2; i < c.value_depth; i += 64) {
        vec<T, 2> a = *(const vec<T, 2> *)(out + i), b = *(const vec<T, 2> *)(g + i);
        sum += widen(a.at[0]) * widen(b.at[0]) + widen(a.at[1]) * widen(b.at[1]);
    }
#pragma unroll
    for (int step = 16; step; step >>= 1)
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (lane == 0) {
        int64_t at = heads * c.q_tokens + row;
        float lse = ((const float *)c.lse)[at];
        ((float2 *)c.pairs)[index] = {lse == -INFINITY ? 0 : lse * log2_e,
                                      c.g_lse ? sum - ((const float *)c.g_lse)[at] : sum};
    }
}

} // namespace ts

#endif
