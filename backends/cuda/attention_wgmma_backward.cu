/** @file attention_wgmma_backward.cu  Launches of attention_wgmma_keys.cuh and of
 * attention_wgmma_queries.cuh. */
// SPDX-License-Identifier: MIT
#include "backends/cuda/attention_launch.cuh"
#include "backends/cuda/attention_wgmma_keys.cuh"
#include "backends/cuda/attention_wgmma_queries.cuh"
#include "backends/cuda/tma.h"

namespace ts {

#ifdef TS_CUDA_SM90A /* else the kernels are empty */

struct backward_maps {
    CUtensorMap q, g, k, v;

    /** Sets the descriptors, with boxes of `rows` rows and `keys` keys. False if the driver rejects
     * an operand. */
    template <class T> bool make(const attention_call &c, int rows, int keys)
    {
        int few = c.heads / c.share;
        return tma_map<T>(&q, c.q, c.depth, c.rows, c.heads, c.batches, rows) &&
               tma_map<T>(&g, c.g, c.value_depth, c.rows, c.heads, c.batches, rows) &&
               tma_map<T>(&k, c.k, c.depth, c.keys, few, c.batches, keys) &&
               tma_map<T>(&v, c.v, c.value_depth, c.keys, few, c.batches, keys);
    }
};

template <class T, int DEPTH, bool SUMS, int RULES>
static cudaError_t launch_keys(const attention_call &c, cudaStream_t stream)
{
    using S = attention_wgmma_keys_shape<DEPTH>;
    backward_maps maps;
    int64_t heads = (int64_t)c.batches * (c.heads / c.share),
            blocks = heads * ((c.keys + S::keys - 1) / S::keys);
    if (blocks > INT32_MAX || !maps.make<T>(c, S::rows, S::keys))
        return cudaErrorNotSupported;
    int together = attention_together((int64_t)c.rows * DEPTH * (SUMS ? 8 : 4) * c.share, heads);
    /* attention_pairs_kernel() has set the counter to 0 */
    unsigned *counter = blocks > c.processors ? c.taken : nullptr;
    cudaError_t e =
        attention_launch_as(c.early, attention_wgmma_keys_kernel<T, DEPTH, SUMS, RULES>, 1,
                            blocks < c.processors ? blocks : c.processors, 1, S::threads, S::bytes,
                            stream, c, maps.k, maps.v, maps.q, maps.g, together, counter);
    if constexpr (SUMS)
        if (e == cudaSuccess)
            e = attention_launch_as(c.early, attention_wgmma_sums_kernel<T, DEPTH>,
                                    (int64_t)c.batches * c.heads, c.pair_rows * DEPTH / 4096, 2,
                                    256, 0, stream, c);
    return e;
}
template <class T, int DEPTH, int RULES>
static cudaError_t launch_queries(const attention_call &c, cudaStream_t stream)
{
    using S = attention_wgmma_queries_shape<DEPTH, RULES>;
    backward_maps maps;
    if (!maps.make<T>(c, S::rows, S::wide))
        return cudaErrorNotSupported;
    int64_t heads = (int64_t)c.batches * c.heads;
    return attention_launch_as(c.early, attention_wgmma_queries_kernel<T, DEPTH, RULES>, heads,
                               c.rows, S::rows, S::threads, S::bytes, stream, c, maps.q, maps.g,
                               maps.k, maps.v,
                               attention_together((int64_t)c.keys * DEPTH * 4 / c.share, heads));
}
template <class T, int DEPTH, int RULES>
static cudaError_t choose(const attention_call &c, bool keys, cudaStream_t stream)
{
    constexpr int DEEP = RULES == ADDED ? 128 : DEPTH; /* 128: fewer rows per tile, for registers */
    return !keys    ? launch_queries<T, DEPTH, RULES>(c, stream)
           : c.sums ? launch_keys<T, DEPTH, true, RULES>(c, stream)
                    : launch_keys<T, DEEP, false, RULES>(c, stream);
}
template <class T, int RULES>
static cudaError_t choose_depth(const attention_call &c, bool keys, cudaStream_t stream)
{
    return attention_sum_columns(c) == 64 ? choose<T, 64, RULES>(c, keys, stream)
                                          : choose<T, 128, RULES>(c, keys, stream);
}
template <class T>
cudaError_t attention_wgmma_backward(const attention_call &c, bool keys, cudaStream_t stream)
{
    return c.mask_type > MASK_BOOL ? choose_depth<T, ADDED>(c, keys, stream)
           : c.rules               ? choose_depth<T, BITS>(c, keys, stream)
                                   : choose_depth<T, NO_RULES>(c, keys, stream);
}

#else

template <class T> cudaError_t attention_wgmma_backward(const attention_call &, bool, cudaStream_t)
{
    return cudaErrorNotSupported;
}

#endif

template cudaError_t attention_wgmma_backward<bf16>(const attention_call &, bool, cudaStream_t);
template cudaError_t attention_wgmma_backward<f16>(const attention_call &, bool, cudaStream_t);

} // namespace ts
