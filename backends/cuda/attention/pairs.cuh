/** @file pairs.cuh  Computes the pairs (lse, delta) of all rows, before the backward passes on
 * tensor cores. lse is the row's log-sum-exp, delta the row sum of g * out, where g is the gradient
 * of the output. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_ATTENTION_PAIRS_CUH
#define TS_CUDA_ATTENTION_PAIRS_CUH

#include "backends/cuda/attention/attention.cuh"
#include "backends/cuda/runtime/early.cuh"

namespace ts {

/** The packed sequence to which row `at` of c.pairs belongs. The padding after a sequence's rows
 * belongs to it, too. */
__device__ __forceinline__ int attention_sequence_of(const attention_call &c, int64_t at)
{
    int low = 0, high = c.batches - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (first_pair_of(c, middle, span_of(c, middle).first_row) <= at)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/**
 * Writes (lse log2(e), delta - g_lse) of each row to c.pairs; a c.g_lse that is NULL counts as 0.
 * LANES lanes share a row of the tensors, 8 columns each. For rows without visible keys,
 * whose lse is -Inf, the first number is 0; their scores of -Inf then give probabilities of 0. Rows
 * c.q_tokens to c.pair_rows - 1, and rows between packed sequences, are padding: the first number
 * is +Inf, so that their probabilities are 0. The kernel also zeroes c.sums and *c.taken, unless
 * they are NULL.
 */
template <class T, int LANES>
static __global__ void __launch_bounds__(256)
    attention_pairs_kernel(const __grid_constant__ attention_call c)
{
    constexpr int ROWS = 256 / LANES;
    begin_next_kernel();
    uint32_t blocks = (uint32_t)((c.pair_rows + ROWS - 1) / ROWS), heads = blockIdx.x / blocks;
    int64_t row = (int64_t)(blockIdx.x % blocks) * ROWS + threadIdx.x / LANES,
            index = heads * c.pair_rows + row;
    int head = (int)(heads % c.heads), batch = (int)(heads / c.heads), lane = threadIdx.x % LANES;
    bool there = row < c.pair_rows, filled = row < c.q_tokens;
    int64_t token = row;
    if (c.q_starts && c.units) {
        int sequence = attention_sequence_of(c, row);
        attention_span span = span_of(c, sequence);
        int64_t place = row - first_pair_of(c, sequence, span.first_row);
        filled = place < span.rows;
        token = span.first_row + place;
    }
    float sum = 0;
    if (c.taken && blockIdx.x == 0 && threadIdx.x == 0)
        *c.taken = 0;
    if (filled && lane * 8 < c.value_depth) {
        unpacked<T, 8> out(*(const vec<T, 8> *)(c.out.of<const T>(batch, head, token) + lane * 8)),
            g(*(const vec<T, 8> *)(c.g.of<const T>(batch, head, token) + lane * 8));
#pragma unroll
        for (int i = 0; i < 8; i++)
            sum += out.at[i] * g.at[i];
    }
    if (there && c.sums)
        for (int i = lane * 4; i < attention_sum_columns(c); i += LANES * 4)
            *(float4 *)(c.sums + index * attention_sum_columns(c) + i) = float4{};
#pragma unroll
    for (int step = LANES / 2; step; step >>= 1)
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (!there || lane)
        return;
    float2 pair = {INFINITY, 0};
    if (filled) {
        int64_t at = heads * c.q_tokens + token;
        float lse = ((const float *)c.lse)[at];
        pair = {lse == -INFINITY ? 0 : lse * log2_e,
                c.g_lse ? sum - ((const float *)c.g_lse)[at] : sum};
    }
    ((float2 *)c.pairs)[index] = pair;
}

} // namespace ts

#endif
