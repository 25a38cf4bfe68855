/** @file attention_mma_backward.cu  Launches of attention_mma_backward.cuh
 * and of what comes before it. */
// SPDX-License-Identifier: MIT
#include "backends/cuda/attention_launch.cuh"
#include "backends/cuda/attention_mma_backward.cuh"
#include "backends/cuda/attention_pairs.cuh"

namespace ts {

template <class T, int DEPTH, bool KEYS, bool RULES>
static cudaError_t launch(const attention_call &c, cudaStream_t stream)
{
    using S = attention_mma_backward_shape<DEPTH, KEYS>;
    int64_t heads = (int64_t)c.batches * (KEYS ? c.heads / c.share : c.heads);
    return attention_launch(attention_mma_backward_kernel<T, DEPTH, KEYS, RULES>, heads,
                            KEYS ? c.keys : c.rows, S::rows, S::threads, S::bytes, stream, c);
}
template <class T, bool KEYS>
static cudaError_t choose(const attention_call &c, cudaStream_t stream)
{
    int depth = c.depth > c.value_depth ? c.depth : c.value_depth;
    /* tiles of 256 columns come one at a time: they fit where two
     * of 128 do not (sm_86, sm_89, sm_120) */
    if (depth > 128 ||
        ((depth > 64 || c.rules) && attention_mma_backward_shape<128, KEYS>::bytes > c.shared))
        return launch<T, 256, KEYS, true>(c, stream);
    if (c.rules)
        return launch<T, 128, KEYS, true>(c, stream);
    return depth > 64 ? launch<T, 128, KEYS, false>(c, stream)
                      : launch<T, 64, KEYS, false>(c, stream);
}
template <class T>
cudaError_t attention_mma_backward(const attention_call &c, bool keys, cudaStream_t stream)
{
    return keys ? choose<T, true>(c, stream) : choose<T, false>(c, stream);
}

template <class T, int LANES>
static cudaError_t launch_pairs(const attention_call &c, cudaStream_t stream)
{
    return attention_launch(attention_pairs_kernel<T, LANES>,
                            (int64_t)(c.q_starts ? 1 : c.batches) * c.heads, c.pair_rows,
                            256 / LANES, 256, 0, stream, c);
}
template <class T> cudaError_t attention_pairs(const attention_call &c, cudaStream_t stream)
{
    return c.value_depth <= 64    ? launch_pairs<T, 8>(c, stream)
           : c.value_depth <= 128 ? launch_pairs<T, 16>(c, stream)
                                  : launch_pairs<T, 32>(c, stream);
}

template cudaError_t attention_mma_backward<bf16>(const attention_call &, bool, cudaStream_t);
template cudaError_t attention_mma_backward<f16>(const attention_call &, bool, cudaStream_t);
template cudaError_t attention_pairs<bf16>(const attention_call &, cudaStream_t);
template cudaError_t attention_pairs<f16>(const attention_call &, cudaStream_t);

} // namespace ts
