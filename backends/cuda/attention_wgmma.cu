/** @file attention_wgmma.cu  Launches of attention_wgmma.cuh. */
// SPDX-License-Identifier: MIT
#include "backends/cuda/attention_launch.cuh"
#include "backends/cuda/attention_wgmma.cuh"
#include "backends/cuda/tma.h"

namespace ts {

template <class T, int DEPTH> static cudaError_t launch(const attention_call &c, cudaStream_t stream)
{
    using S = attention_wgmma_shape<DEPTH>;
    CUtensorMap q, k, v;
    int few = c.heads / c.share;
    if (!tma_map<T>(&q, c.q, c.depth, c.rows, c.heads, c.batches, S::rows) ||
        !tma_map<T>(&k, c.k, c.depth, c.keys, few, c.batches, S::wide) ||
        !tma_map<T>(&v, c.v, c.value_depth, c.keys, few, c.batches, S::wide))
        return cudaErrorNotSupported;
    int64_t heads = (int64_t)c.batches * c.heads, blocks = heads * ((c.rows + S::rows - 1) / S::rows);
    int together = attention_together((int64_t)c.keys * DEPTH * 4 / c.share, heads);
    /* Blocks that stay start faster; but long rows that see unequal numbers of keys are shared out better by
     * the machine, a block at a time. */
    bool equal = c.left >= c.rows + c.keys && c.right >= c.rows + c.keys, stay = equal || c.keys <= 2048 * 128 / DEPTH;
    return attention_launch(attention_wgmma_kernel<T, DEPTH>, 1, stay && blocks > c.processors ? c.processors : blocks,
                            1, S::threads, S::bytes, stream, c, q, k, v, together);
}

template <class T> cudaError_t attention_wgmma_forward(const attention_call &c, cudaStream_t stream)
{
#ifndef TS_CUDA_SM90A /* the kernels are empty */
    return cudaErrorNotSupported;
#else
    return (c.depth > c.value_depth ? c.depth : c.value_depth) <= 64 ? launch<T, 64>(c, stream)
                                                                     : launch<T, 128>(c, stream);
#endif
}

template cudaError_t attention_wgmma_forward<bf16>(const attention_call &, cudaStream_t);
template cudaError_t attention_wgmma_forward<f16>(const attention_call &, cudaStream_t);

} // namespace ts
