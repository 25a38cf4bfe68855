/** @file attention_plain.cu  Launches of attention_plain.cuh. */
// SPDX-License-Identifier: MIT
#include "backends/cuda/attention_plain.cuh"

namespace ts
{

static int slices_of(int columns)
{
    return columns > SLICE ? (columns + SLICE - 1) / SLICE : 1;
}
static unsigned blocks_of(int64_t heads, int rows, int slices)
{
    return (unsigned)(heads * ((rows + SIDE - 1) / SIDE) * slices);
}

template <class A> cudaError_t attention_plain_forward(const attention_call &c, cudaStream_t stream)
{
    int slices = slices_of(c.value_depth);
    attention_plain_kernel<A>
        <<<blocks_of((int64_t)c.batches * c.heads, c.rows, slices), PLAIN_THREADS, 0, stream>>>(c, slices);
    return cudaPeekAtLastError();
}

template <class A> cudaError_t attention_plain_backward(const attention_call &c, cudaStream_t stream)
{
    int64_t rows = (c.q_starts ? 1 : c.batches) * c.heads * c.pair_rows;
    if (rows)
        attention_plain_pairs_kernel<A><<<(unsigned)((rows + 7) / 8), PLAIN_THREADS, 0, stream>>>(c);
    if ((c.dk.data || c.dv.data) && c.keys) {
        int slices = slices_of(c.depth > c.value_depth ? c.depth : c.value_depth);
        attention_plain_backward_kernel<A, true>
            <<<blocks_of((int64_t)c.batches * (c.heads / c.share), c.keys, slices), PLAIN_THREADS, 0, stream>>>(c,
                                                                                                                slices);
    }
    if (c.dq.data && c.rows) {
        int slices = slices_of(c.depth);
        attention_plain_backward_kernel<A, false>
            <<<blocks_of((int64_t)c.batches * c.heads, c.rows, slices), PLAIN_THREADS, 0, stream>>>(c, slices);
    }
    return cudaPeekAtLastError();
}

template cudaError_t attention_plain_forward<float>(const attention_call &, cudaStream_t);
template cudaError_t attention_plain_forward<double>(const attention_call &, cudaStream_t);
template cudaError_t attention_plain_backward<float>(const attention_call &, cudaStream_t);
template cudaError_t attention_plain_backward<double>(const attention_call &, cudaStream_t);

} // namespace ts
