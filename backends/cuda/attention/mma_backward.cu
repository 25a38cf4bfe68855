/** @file mma_backward.cu  Launches of mma_backward.cuh and of its preparation
 * kernels. */
// SPDX-License-Identifier: MIT
#include "backends/cuda/attention/launch.cuh"
#include "backends/cuda/attention/mma_backward.cuh"
#include "backends/cuda/attention/pairs.cuh"

namespace ts {

/** Calls f.operator()<DEPTH>() with the columns of the tiles for a call with elements of T. */
template <class T, class F> static auto with_depth(const attention_call &c, F &&f)
{
    int depth = c.depth > c.value_depth ? c.depth : c.value_depth;
    if constexpr (sizeof(T) == 4)
        if (depth <= 32)
            return f.template operator()<32>();
    return depth > 128  ? f.template operator()<256>()
           : depth > 64 ? f.template operator()<128>()
                        : f.template operator()<64>();
}
/** Calls f.operator()<T>() with an element type of the call's element size. */
template <class F> static auto with_size(const attention_call &c, F &&f)
{
    return c.type == ATTENTION_F32 ? f.template operator()<float>() : f.template operator()<bf16>();
}

bool attention_mma_holds(const attention_call &c, bool backward)
{
    if (!backward)
        return with_size(c, [&]<class T>() {
            bool deep = c.depth > 128 || c.value_depth > 128;
            return (deep ? attention_mma_shape<T, 256, true>::bytes
                         : attention_mma_shape<T, 128, true>::bytes) <= c.shared;
        });
    return with_size(c, [&]<class T>() {
        return with_depth<T>(c, [&]<int DEPTH>() {
            return attention_mma_backward_shape<T, DEPTH, true>::bytes(1) <= c.shared &&
                   attention_mma_backward_shape<T, DEPTH, false>::bytes(1) <= c.shared;
        });
    });
}

/* Minimises an estimate of the time. A block costs its number of tiles, plus about two to start and
 * to store its sums. */
int attention_mma_runs(const attention_call &c, bool keys)
{
    int64_t length = keys ? c.keys : c.rows, rows = 0, tiles = 0, slots = 132, /* of an H200 */
            heads = (int64_t)c.batches * (keys ? c.heads / c.share : c.heads);
    with_size(c, [&]<class T>() {
        return with_depth<T>(c, [&]<int DEPTH>() {
            using K = attention_mma_backward_shape<T, DEPTH, true>;
            using Q = attention_mma_backward_shape<T, DEPTH, false>;
            rows = keys ? K::rows : Q::rows;
            slots *= keys ? K::blocks : Q::blocks;
            tiles = attention_mma_passing(c, keys, keys ? K::wide : Q::wide);
            return true;
        });
    });
    int64_t blocks = heads * ((length + rows - 1) / rows), best = 1, least = INT64_MAX;
    if (c.uneven || !blocks)
        return 1;
    for (int64_t runs = 1; runs <= tiles && runs <= 64 && (runs == 1 || blocks * runs <= 2 * slots);
         runs++) {
        int64_t waves = (blocks * runs + slots - 1) / slots,
                cost = 8 * waves * ((tiles + runs - 1) / runs + 2) + (runs > 1 ? 8 + runs : 0);
        if (cost < least) {
            least = cost;
            best = runs;
        }
    }
    return (int)best;
}
int64_t attention_mma_part_bytes(const attention_call &c, bool keys)
{
    int64_t runs = attention_mma_runs(c, keys), heads = keys ? c.heads / c.share : c.heads;
    return runs < 2 ? 0
                    : runs * c.batches * heads * (keys ? c.keys : c.rows) *
                          (keys ? c.depth + c.value_depth : c.depth) * (int64_t)sizeof(float);
}

template <class T, bool KEYS> static cudaError_t backward(attention_call c, cudaStream_t stream)
{
    c.splits = c.parts ? attention_mma_runs(c, KEYS) : 1;
    int64_t heads = (int64_t)c.batches * (KEYS ? c.heads / c.share : c.heads),
            length = KEYS ? c.keys : c.rows;
    cudaError_t e = with_depth<T>(c, [&]<int DEPTH>() {
        using S = attention_mma_backward_shape<T, DEPTH, KEYS>;
        auto kernel = attention_mma_backward_kernel<T, DEPTH, KEYS, true>;
        if constexpr (DEPTH <= 128 && sizeof(T) == 2)
            if (!c.rules)
                kernel = attention_mma_backward_kernel<T, DEPTH, KEYS, false>;
        int stages = S::bytes(2) <= c.shared ? 2 : 1;
        return attention_launch_as(c.early, kernel, heads * c.splits, length, S::rows, S::threads,
                                   S::bytes(stages), stream, c, stages);
    });
    if (e != cudaSuccess || c.splits < 2)
        return e;
    int64_t columns = KEYS ? c.depth + c.value_depth : c.depth;
    return attention_launch_as(c.early, attention_mma_merge_kernel<T, KEYS>, 1,
                               heads * length * columns / 4, 128, 128, 0, stream, c);
}
template <class T>
cudaError_t attention_mma_backward(const attention_call &c, bool keys, cudaStream_t stream)
{
    return keys ? backward<T, true>(c, stream) : backward<T, false>(c, stream);
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
template cudaError_t attention_mma_backward<float>(const attention_call &, bool, cudaStream_t);
template cudaError_t attention_pairs<bf16>(const attention_call &, cudaStream_t);
template cudaError_t attention_pairs<f16>(const attention_call &, cudaStream_t);
template cudaError_t attention_pairs<float>(const attention_call &, cudaStream_t);

} // namespace ts
