/** @file split.cu  Launches of split.cuh and split_backward.cuh. */
// SPDX-License-Identifier: MIT
#include "backends/cuda/attention/launch.cuh"
#include "backends/cuda/attention/split_backward.cuh"

namespace ts {

/** Calls f.operator()<T, DEPTH, TALL>() for the tile shape of a call: head size up to DEPTH, 16
 * TALL rows. T is float, or bf16 for both bf16 and f16. */
template <class F> static auto with_split_shape(const attention_call &c, F &&f)
{
    int depth = c.depth > c.value_depth ? c.depth : c.value_depth;
    if (c.type == ATTENTION_F32)
        return depth > 64 ? f.template operator()<float, 128, 1>()
                          : f.template operator()<float, 64, 1>();
    /* with rules, a second tile of rows would not fit in registers */
    bool tall = (int64_t)c.share * c.rows > 16 && !c.rules;
    if (depth > 128)
        return f.template operator()<bf16, 256, 1>();
    if (depth > 64)
        return tall ? f.template operator()<bf16, 128, 2>() : f.template operator()<bf16, 128, 1>();
    return tall ? f.template operator()<bf16, 64, 2>() : f.template operator()<bf16, 64, 1>();
}

/** Number of blocks without splits: one per tile of rows of each key head. */
template <class S> static int64_t tiles_of(const attention_call &c)
{
    int64_t packed = (int64_t)c.share * c.rows;
    return (int64_t)c.batches * (c.heads / c.share) * ((packed + S::rows - 1) / S::rows);
}

bool attention_splits(const attention_call &c)
{
    int64_t packed = (int64_t)c.share * c.rows;
    bool wide = c.type == ATTENTION_F32;
    int depth = c.depth > c.value_depth ? c.depth : c.value_depth,
        tall = wide || depth > 128 ? 16 : 32;
    if (wide && depth > 128) /* registers do not hold queries and results */
        return false;
    /* With one tile of keys, Hopper's kernels are faster, because they merge no warps. */
    if (c.keys <= 64 && c.share == 1 && depth <= 128 && !c.q_starts && !c.adjusted)
        return false;
    /* other kernels would leave most multiprocessors idle */
    int64_t blocks = (int64_t)c.batches * c.heads * ((c.rows + 127) / 128);
    if (blocks <= 32 && c.keys >= 2048)
        return true;
    /* With two tiles of rows, these kernels read keys and values twice; other kernels read them
     * once per query head, but leave multiprocessors idle if there are few heads. */
    return c.keys && (packed <= tall || (packed <= 2 * tall && c.keys >= 1024 &&
                                         (c.share > 1 || (int64_t)c.batches * c.heads < 128)));
}

int attention_best_splits(int64_t tiles, int64_t units, int64_t slots, bool uneven)
{
    int64_t best = 1, least = INT64_MAX;
    for (int64_t splits = 1; splits <= units && splits <= 2 * slots; splits++) {
        int64_t waves = (tiles * splits + slots - 1) / slots, each = (units + splits - 1) / splits,
                cost = 2 * waves * (each + 1) + (splits > 1 ? 3 : 0);
        if (cost < least) {
            least = cost;
            best = splits;
        }
    }
    /* runs of unequal lengths: several waves of short runs balance the multiprocessors */
    int64_t even = uneven && tiles ? (4 * slots + tiles - 1) / tiles : 1;
    even = even < units / 4 ? even : units / 4;
    return (int)(best > even ? best : even);
}
int attention_split_count(const attention_call &c)
{
    return with_split_shape(c, [&]<class T, int DEPTH, int TALL>() {
        using S = attention_split_shape<T, DEPTH, TALL>;
        int64_t window = (int64_t)c.left + c.right + c.rows,
                seen = window < c.keys ? window : c.keys;
        return attention_best_splits(tiles_of<S>(c), (seen + S::unit - 1) / S::unit,
                                     132 * S::blocks, c.uneven); /* of an H200 */
    });
}

int64_t attention_split_bytes(const attention_call &c)
{
    return with_split_shape(c, [&]<class, int DEPTH, int>() {
        return c.splits < 2 ? (int64_t)0
                            : (int64_t)c.batches * c.heads * c.rows * c.splits *
                                  attention_part_floats(DEPTH) * (int64_t)sizeof(float);
    });
}

template <class T, int DEPTH, int TALL>
static cudaError_t launch_split(const attention_call &c, cudaStream_t stream)
{
    using S = attention_split_shape<T, DEPTH, TALL>;
    int64_t blocks = tiles_of<S>(c) * c.splits;
    if (S::bytes > c.shared || blocks > INT32_MAX)
        return cudaErrorNotSupported;
    ts_cuda_grid grid = {dim3((unsigned)blocks), dim3(S::threads), S::bytes, 1};
    auto kernel = attention_split_kernel<T, DEPTH, TALL, TALL == 1>;
    if constexpr (sizeof(T) == 2)
        if (!c.rules)
            kernel = attention_split_kernel<T, DEPTH, TALL, false>;
    cudaError_t e = launch(kernel, grid, stream, c);
    if (e != cudaSuccess || c.splits < 2)
        return e;
    int64_t rows = (int64_t)c.batches * c.heads * c.rows;
    bool many = c.splits >= merge_many;
    auto merge =
        many ? attention_merge_kernel<T, DEPTH, 1024> : attention_merge_kernel<T, DEPTH, 256>;
    grid = {dim3((unsigned)rows), dim3(many ? 1024 : 256), 0, 1};
    return c.early ? launch_early(merge, grid, stream, c) : launch(merge, grid, stream, c);
}

template <class T> cudaError_t attention_split_forward(const attention_call &c, cudaStream_t stream)
{
    return with_split_shape(c, [&]<class SIZED, int DEPTH, int TALL>() {
        if constexpr (sizeof(SIZED) == sizeof(T))
            return launch_split<T, DEPTH, TALL>(c, stream);
        else
            return cudaErrorNotSupported;
    });
}

template cudaError_t attention_split_forward<bf16>(const attention_call &, cudaStream_t);
template cudaError_t attention_split_forward<f16>(const attention_call &, cudaStream_t);
template cudaError_t attention_split_forward<float>(const attention_call &, cudaStream_t);

/* ------------------------------------------------------------------------- backward ---- */

/** Columns of the deeper of keys and values. */
static int deepest(const attention_call &c)
{
    return c.depth > c.value_depth ? c.depth : c.value_depth;
}

/** Calls f.operator()<T, CHUNKS, MANY>() for the rows and columns of a call with elements of T. */
template <class T, class F> static auto with_chunks(const attention_call &c, F &&f)
{
    bool many = (int64_t)c.share * c.rows > 1;
    if constexpr (sizeof(T) == 4)
        if (deepest(c) > 128)
            return many ? f.template operator()<T, 2, true>()
                        : f.template operator()<T, 2, false>();
    return many ? f.template operator()<T, 1, true>() : f.template operator()<T, 1, false>();
}
/** with_chunks() for an element type of the call's element size. */
template <class F> static auto with_shape(const attention_call &c, F &&f)
{
    return c.type == ATTENTION_F32 ? with_chunks<float>(c, f) : with_chunks<bf16>(c, f);
}

/** Lanes of a team for keys of `depth` columns, `wide` columns a lane. */
static int lanes_of(int depth, int wide)
{
    int lanes = 4;
    while (lanes * wide < depth)
        lanes *= 2;
    return lanes;
}

bool attention_splits_backward(const attention_call &c)
{
    int64_t packed = (int64_t)c.share * c.rows;
    /* Hopper's kernels start fewer blocks; rows of few heads are faster on tensor cores */
    bool slow = packed > 2 && c.share < 3 && deepest(c) > 64 && deepest(c) <= 128;
    if (c.type != ATTENTION_F32 && (c.keys < 128 || slow))
        return false;
    return packed > 0 && with_shape(c, [&]<class T, int CHUNKS, bool MANY>() {
               return packed <= attention_split_backward_shape<T, CHUNKS, MANY>::rows;
           });
}

int attention_split_backward_count(const attention_call &c)
{
    return with_shape(c, [&]<class T, int CHUNKS, bool MANY>() {
        using S = attention_split_backward_shape<T, CHUNKS, MANY>;
        int unit = S::keys * S::threads / lanes_of(deepest(c), S::wide);
        return attention_best_splits((int64_t)c.batches * (c.heads / c.share),
                                     (c.keys + unit - 1) / unit, 132 * S::blocks, c.uneven);
    });
}
int64_t attention_split_backward_bytes(const attention_call &c)
{
    return c.splits < 2 || !c.dq.data ? 0
                                      : (int64_t)c.batches * c.heads * c.rows * c.splits * c.depth *
                                            (int64_t)sizeof(float);
}

template <class T>
cudaError_t attention_split_backward(const attention_call &c, cudaStream_t stream)
{
    cudaError_t e = with_chunks<T>(c, [&]<class, int CHUNKS, bool MANY>() {
        using S = attention_split_backward_shape<T, CHUNKS, MANY>;
        return attention_launch(attention_split_backward_kernel<T, CHUNKS, MANY>,
                                (int64_t)c.batches * (c.heads / c.share), c.splits, 1, S::threads,
                                0, stream, c, lanes_of(deepest(c), S::wide));
    });
    if (e != cudaSuccess || c.splits < 2 || !c.dq.data)
        return e;
    return attention_launch_as(c.early, attention_split_backward_merge_kernel<T>,
                               (int64_t)c.batches * c.heads, c.rows, 1, 256, 0, stream, c);
}

template cudaError_t attention_split_backward<bf16>(const attention_call &, cudaStream_t);
template cudaError_t attention_split_backward<f16>(const attention_call &, cudaStream_t);
template cudaError_t attention_split_backward<float>(const attention_call &, cudaStream_t);

} // namespace ts
