/** @file mma.cu  Launches of mma.cuh. */
// SPDX-License-Identifier: MIT
#include "backends/cuda/attention/launch.cuh"
#include "backends/cuda/attention/mma.cuh"

namespace ts {

template <class T, int DEPTH, bool RULES>
static cudaError_t launch(const attention_call &c, cudaStream_t stream)
{
    using S = attention_mma_shape<T, DEPTH, RULES>;
    return attention_launch(attention_mma_kernel<T, DEPTH, RULES>, (int64_t)c.batches * c.heads,
                            c.rows, S::rows, S::threads, S::bytes, stream, c);
}

template <class T> cudaError_t attention_mma_forward(const attention_call &c, cudaStream_t stream)
{
    int depth = c.depth > c.value_depth ? c.depth : c.value_depth;
    if (depth > 128)
        return launch<T, 256, true>(c, stream);
    if constexpr (sizeof(T) == 2)
        if (!c.rules)
            return depth > 64 ? launch<T, 128, false>(c, stream) : launch<T, 64, false>(c, stream);
    return depth > 64 ? launch<T, 128, true>(c, stream) : launch<T, 64, true>(c, stream);
}

template cudaError_t attention_mma_forward<bf16>(const attention_call &, cudaStream_t);
template cudaError_t attention_mma_forward<f16>(const attention_call &, cudaStream_t);
template cudaError_t attention_mma_forward<float>(const attention_call &, cudaStream_t);

} // namespace ts
