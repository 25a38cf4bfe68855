/** @file wgmma.cu  Launches of wgmma.cuh. */
// SPDX-License-Identifier: MIT
#include "backends/cuda/attention/launch.cuh"
#include "backends/cuda/attention/wgmma.cuh"
#include "backends/cuda/instructions/tma.h"

namespace ts {

#ifdef TS_CUDA_SM90A /* else the kernels are empty */

/** True if all rows see all keys. */
static bool sees_everything(const attention_call &c)
{
    return c.left >= c.rows + c.keys && c.right >= c.rows + c.keys;
}

/** Writes the descriptor of the mask, for tiles of `rows` rows. Returns false if the mask is not of
 * dtype T, its keys are not dense, its rows share elements, or TMA does not accept it. */
template <class T> static bool map_mask(CUtensorMap *map, const attention_call &c, int rows)
{
    const int64_t *steps = c.mask_steps;
    attention_operand mask = {(void *)c.mask, steps[0], steps[1], steps[2]};
    bool aligned = ((uintptr_t)c.mask / 2 | steps[0] | steps[1] | steps[2]) % 8 == 0;
    return c.mask_type == MASK_OWN && steps[3] == 1 && steps[2] && aligned &&
           tma_map<T>(map, mask, c.keys, c.rows, steps[1] ? c.heads : 1, steps[0] ? c.batches : 1,
                      rows);
}

template <class T, int DEPTH, int GROUPS, int RULES>
static cudaError_t launch(const attention_call &c, cudaStream_t stream)
{
    using S = attention_wgmma_shape<DEPTH, GROUPS, RULES>;
    CUtensorMap q, k, v, out, mask = {};
    int few = c.heads / c.share, batches = c.q_starts ? 1 : c.batches, rows = (int)c.q_tokens,
        keys = (int)c.k_tokens;
    if (!tma_map<T>(&q, c.q, c.depth, rows, c.heads, batches, S::rows) ||
        !tma_map<T>(&k, c.k, c.depth, keys, few, batches, S::wide) ||
        !tma_map<T>(&v, c.v, c.value_depth, keys, few, batches, S::wide) ||
        !tma_map<T>(&out, c.out, c.value_depth, rows, c.heads, batches, 64))
        return cudaErrorNotSupported;
    int64_t heads = (int64_t)c.batches * c.heads, all = heads * ((c.rows + S::rows - 1) / S::rows);
    if (RULES == LENGTHS || RULES == ANY)
        all = c.heads * attention_unit_room(c, false, S::rows);
    if (all > INT32_MAX)
        return cudaErrorNotSupported;
    int together = attention_together((int64_t)c.keys * DEPTH * 4 / c.share, heads);
    /* two groups with much work alternate at the tensor cores without barriers */
    bool turns = GROUPS > 1 && (DEPTH <= 64 || c.keys < 2048);
    auto kernel = attention_wgmma_kernel<T, DEPTH, GROUPS, RULES>;
    if constexpr (RULES == LENGTHS || RULES == ANY) {
        attention_call listed = c;
        attention_division by = {{q, k, v, out}, 1 << 1 | 1 << 2, false, S::rows, S::wide};
        cudaError_t e = attention_list(listed, by, false, stream);
        if (e != cudaSuccess)
            return e;
        return attention_launch_as(c.early, kernel, 1, all < c.processors ? all : c.processors, 1,
                                   S::threads, S::bytes, stream, listed, q, k, v, out, mask, 1,
                                   listed.taken, turns, false);
    }
    /* if all rows see about the same number of keys, a static schedule suffices; else a counter,
       whose memset takes as long as a short call */
    unsigned *taken =
        all > c.processors && c.rows > 256 && !sees_everything(c) ? c.taken : nullptr;
    bool staged = S::mask_stages > 0 && map_mask<T>(&mask, c, S::rows);
    cudaError_t e = taken ? cudaMemsetAsync(taken, 0, sizeof *taken, stream) : cudaSuccess;
    if (e != cudaSuccess)
        return e;
    return attention_launch(kernel, 1, all < c.processors ? all : c.processors, 1, S::threads,
                            S::bytes, stream, c, q, k, v, out, mask, together, taken, turns,
                            staged);
}

template <class T, int RULES>
static cudaError_t choose(const attention_call &c, cudaStream_t stream)
{
    int depth = c.depth > c.value_depth ? c.depth : c.value_depth;
    if constexpr (RULES == LENGTHS) {
        return depth > 128  ? choose<T, ANY>(c, stream)
               : depth > 64 ? launch<T, 128, 2, RULES>(c, stream)
                            : launch<T, 64, 2, RULES>(c, stream);
    } else if constexpr (RULES != NO_RULES) {
        if (depth > 128) /* beyond 192, shared memory holds the rows of one group */
            return depth > 192 ? launch<T, 256, 1, RULES>(c, stream)
                               : launch<T, 192, 2, RULES>(c, stream);
        /* with bits, a third group would not have enough registers */
        return depth > 64 ? launch<T, 128, 2, RULES>(c, stream)
                          : launch<T, 64, 2, RULES>(c, stream);
    } else {
        if (depth > 128)
            return choose<T, BITS>(c, stream);
        if (depth > 64)
            return launch<T, 128, 2, RULES>(c, stream);
        /* fewer rows per block waste less work at the diagonal; more groups hide more latency */
        return c.keys <= 1024 && !sees_everything(c) ? launch<T, 64, 2, RULES>(c, stream)
                                                     : launch<T, 64, 3, RULES>(c, stream);
    }
}

template <class T> cudaError_t attention_wgmma_forward(const attention_call &c, cudaStream_t stream)
{
    switch (attention_rules_of(c)) {
    case NO_RULES:
        return choose<T, NO_RULES>(c, stream);
    case BITS:
        return choose<T, BITS>(c, stream);
    case ADDED:
        return choose<T, ADDED>(c, stream);
    case LENGTHS:
        return choose<T, LENGTHS>(c, stream);
    default:
        return choose<T, ANY>(c, stream);
    }
}

#else

template <class T> cudaError_t attention_wgmma_forward(const attention_call &, cudaStream_t)
{
    return cudaErrorNotSupported;
}

#endif

template cudaError_t attention_wgmma_forward<bf16>(const attention_call &, cudaStream_t);
template cudaError_t attention_wgmma_forward<f16>(const attention_call &, cudaStream_t);

} // namespace ts
