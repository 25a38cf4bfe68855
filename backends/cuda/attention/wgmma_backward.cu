/** @file wgmma_backward.cu  Launches of wgmma_keys.cuh and of
 * wgmma_queries.cuh. */
// SPDX-License-Identifier: MIT
#include "backends/cuda/attention/launch.cuh"
#include "backends/cuda/attention/wgmma_keys.cuh"
#include "backends/cuda/attention/wgmma_queries.cuh"
#include "backends/cuda/instructions/tma.h"

namespace ts {

#ifdef TS_CUDA_SM90A /* else the kernels are empty */

struct backward_maps {
    CUtensorMap q, g, k, v;

    /** Sets the descriptors, with boxes of `rows` rows and `keys` keys. False if the driver rejects
     * an operand. */
    template <class T> bool make(const attention_call &c, int rows, int keys)
    {
        int few = c.heads / c.share, batches = c.q_starts ? 1 : c.batches,
            q_rows = (int)c.q_tokens, k_rows = (int)c.k_tokens;
        return tma_map<T>(&q, c.q, c.depth, q_rows, c.heads, batches, rows) &&
               tma_map<T>(&g, c.g, c.value_depth, q_rows, c.heads, batches, rows) &&
               tma_map<T>(&k, c.k, c.depth, k_rows, few, batches, keys) &&
               tma_map<T>(&v, c.v, c.value_depth, k_rows, few, batches, keys);
    }
};

template <class T, int DEPTH, int DQ, int RULES>
static cudaError_t launch_keys(const attention_call &c, cudaStream_t stream)
{
    using S = attention_wgmma_keys_shape<DEPTH, RULES>;
    constexpr bool UNEVEN = RULES == LENGTHS || RULES == ANY;
    backward_maps maps;
    int64_t heads = (int64_t)c.batches * (c.heads / c.share),
            blocks = UNEVEN ? c.heads / c.share * attention_unit_room(c, true, S::keys)
                            : heads * ((c.keys + S::keys - 1) / S::keys);
    if (blocks > INT32_MAX || !maps.make<T>(c, S::rows, S::keys))
        return cudaErrorNotSupported;
    int together =
        attention_together((int64_t)c.rows * DEPTH * (DQ == SUMMED ? 8 : 4) * c.share, heads);
    /* attention_pairs_kernel() or attention_list_kernel() sets the counter to 0 */
    unsigned *counter =
        UNEVEN || (DQ != OWNED && blocks > c.processors) ? c.taken : nullptr;
    attention_call listed = c;
    cudaError_t e = cudaSuccess;
    if constexpr (UNEVEN) /* beside attention_pairs_kernel() */
        e = attention_list(
            listed,
            {{maps.q, maps.g, maps.k, maps.v}, 1 << 2 | 1 << 3, true, S::keys, S::rows}, c.early,
            stream);
    if (e == cudaSuccess)
        e = attention_launch_as(c.early && DQ != OWNED,
                                attention_wgmma_keys_kernel<T, DEPTH, DQ, RULES>, 1,
                                blocks < c.processors ? blocks : c.processors, 1, S::threads,
                                S::bytes, stream, listed, maps.k, maps.v, maps.q, maps.g, together,
                                counter);
    if constexpr (DQ == SUMMED)
        if (e == cudaSuccess)
            e = attention_launch_as(c.early, attention_wgmma_sums_kernel<T, DEPTH>,
                                    (int64_t)(c.q_starts ? 1 : c.batches) * c.heads,
                                    c.pair_rows * DEPTH / 4096, 2, 256, 0, stream, c);
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
    if constexpr (RULES == LENGTHS || RULES == ANY) {
        attention_call listed = c;
        int64_t blocks = c.heads * attention_unit_room(c, false, S::rows);
        /* not early: the pass over keys may still read its list */
        cudaError_t e = attention_list(
            listed,
            {{maps.q, maps.g, maps.k, maps.v}, 1 << 2 | 1 << 3, false, S::rows, S::wide}, false,
            stream);
        if (e != cudaSuccess)
            return e;
        return attention_launch_as(c.early, attention_wgmma_queries_kernel<T, DEPTH, RULES>, 1,
                                   blocks, 1, S::threads, S::bytes, stream, listed, maps.q, maps.g,
                                   maps.k, maps.v, 1);
    }
    return attention_launch_as(c.early, attention_wgmma_queries_kernel<T, DEPTH, RULES>, heads,
                               c.rows, S::rows, S::threads, S::bytes, stream, c, maps.q, maps.g,
                               maps.k, maps.v,
                               attention_together((int64_t)c.keys * DEPTH * 4 / c.share, heads));
}
template <class T, int DEPTH, int RULES>
static cudaError_t choose(const attention_call &c, bool keys, cudaStream_t stream)
{
    /* 128: fewer rows per tile, for registers */
    constexpr int DEEP = RULES == ADDED || RULES == ANY ? 128 : DEPTH;
    if (keys && c.sums)
        return launch_keys<T, DEPTH, SUMMED, RULES>(c, stream);
    if constexpr (RULES == LENGTHS) /* two passes have no instance of their own */
        return choose<T, DEPTH, ANY>(c, keys, stream);
    else
        return keys ? launch_keys<T, DEEP, NO_DQ, RULES>(c, stream)
                    : launch_queries<T, DEPTH, RULES>(c, stream);
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
    if (c.owned)
        return launch_keys<T, 64, OWNED, NO_RULES>(c, stream);
    switch (attention_rules_of(c)) {
    case NO_RULES:
        return choose_depth<T, NO_RULES>(c, keys, stream);
    case BITS:
        return choose_depth<T, BITS>(c, keys, stream);
    case ADDED:
        return choose_depth<T, ADDED>(c, keys, stream);
    case LENGTHS:
        return choose_depth<T, LENGTHS>(c, keys, stream);
    default:
        return choose_depth<T, ANY>(c, keys, stream);
    }
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
