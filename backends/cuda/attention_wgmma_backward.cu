/** @file attention_wgmma_backward.cu  Launches of attention_wgmma_backward.cuh. */
// SPDX-License-Identifier: MIT
#include "backends/cuda/attention_launch.cuh"
#include "backends/cuda/attention_wgmma_backward.cuh"
#include "backends/cuda/tma.h"

namespace ts {

template <class T, int DEPTH, bool KEYS> static cudaError_t launch(const attention_call &c, cudaStream_t stream)
{
    using S = attention_wgmma_backward_shape<DEPTH, KEYS>;
    CUtensorMap q, g, k, v;
    int few = c.heads / c.share, q_box = KEYS ? S::wide : S::rows, k_box = KEYS ? S::rows : S::wide;
    if (!tma_map<T>(&q, c.q, c.depth, c.rows, c.heads, c.batches, q_box) ||
        !tma_map<T>(&g, c.g, c.value_depth, c.rows, c.heads, c.batches, q_box) ||
        !tma_map<T>(&k, c.k, c.depth, c.keys, few, c.batches, k_box) ||
        !tma_map<T>(&v, c.v, c.value_depth, c.keys, few, c.batches, k_box))
        return cudaErrorNotSupported;
    int64_t heads = (int64_t)c.batches * (KEYS ? few : c.heads);
    int together =
        attention_together(KEYS ? (int64_t)c.rows * DEPTH * 4 * c.share : (int64_t)c.keys * DEPTH * 4 / c.share, heads);
    return attention_launch(attention_wgmma_backward_kernel<T, DEPTH, KEYS>, heads, KEYS ? c.keys : c.rows, S::rows,
                            S::threads, S::bytes, stream, c, KEYS ? k : q, KEYS ? v : g, KEYS ? q : k, KEYS ? g : v,
                            together);
}
template <class T, bool KEYS> static cudaError_t choose(const attention_call &c, cudaStream_t stream)
{
    return (c.depth > c.value_depth ? c.depth : c.value_depth) <= 64 ? launch<T, 64, KEYS>(c, stream)
                                                                     : launch<T, 128, KEYS>(c, stream);
}
template <class T> cudaError_t attention_wgmma_backward(const attention_call &c, bool keys, cudaStream_t stream)
{
#ifndef TS_CUDA_SM90A /* the kernels are empty */
    return cudaErrorNotSupported;
#else
    return keys ? choose<T, true>(c, stream) : choose<T, false>(c, stream);
#endif
}

template cudaError_t attention_wgmma_backward<bf16>(const attention_call &, bool, cudaStream_t);
template cudaError_t attention_wgmma_backward<f16>(const attention_call &, bool, cudaStream_t);

} // namespace ts
