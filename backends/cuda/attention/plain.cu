/** @file plain.cu  Launches the kernels of plain.cuh, forward and backward. */
// SPDX-License-Identifier: MIT
#include "backends/cuda/attention/plain.cuh"
#include "backends/cuda/attention/launch.cuh"

namespace ts {

/** Number of blocks, SLICE columns each, that divide the columns of a result. */
static int slices_of(int columns) { return columns > SLICE ? (columns + SLICE - 1) / SLICE : 1; }

template <class A> cudaError_t attention_plain_forward(const attention_call &c, cudaStream_t stream)
{
    int slices = slices_of(c.value_depth);
    return attention_launch(attention_plain_kernel<A>, (int64_t)c.batches * c.heads * slices,
                            c.rows, SIDE, PLAIN_THREADS, 0, stream, c, slices);
}

/** Launches the gradients of key and value (KEYS), or of query. */
template <class A, bool KEYS>
static cudaError_t launch_backward(const attention_call &c, cudaStream_t stream)
{
    int slices = slices_of(KEYS && c.value_depth > c.depth ? c.value_depth : c.depth);
    int64_t heads = (int64_t)c.batches * (KEYS ? c.heads / c.share : c.heads);
    return attention_launch(attention_plain_backward_kernel<A, KEYS>, heads * slices,
                            KEYS ? c.keys : c.rows, SIDE, PLAIN_THREADS, 0, stream, c, slices);
}

template <class A>
cudaError_t attention_plain_backward(const attention_call &c, cudaStream_t stream)
{
    cudaError_t e = attention_launch(attention_plain_pairs_kernel<A>, 1,
                                     (c.q_starts ? 1 : c.batches) * c.heads * c.pair_rows, 8,
                                     PLAIN_THREADS, 0, stream, c);
    if (e == cudaSuccess && (c.dk.data || c.dv.data))
        e = launch_backward<A, true>(c, stream);
    if (e == cudaSuccess && c.dq.data)
        e = launch_backward<A, false>(c, stream);
    return e;
}

template cudaError_t attention_plain_forward<float>(const attention_call &, cudaStream_t);
template cudaError_t attention_plain_forward<double>(const attention_call &, cudaStream_t);
template cudaError_t attention_plain_backward<float>(const attention_call &, cudaStream_t);
template cudaError_t attention_plain_backward<double>(const attention_call &, cudaStream_t);

} // namespace ts
