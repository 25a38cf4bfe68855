/** @file split_backward.cu  Launches of split_backward.cuh. */
// SPDX-License-Identifier: MIT
#include "backends/cuda/attention/split_backward.cuh"
#include "backends/cuda/attention/launch.cuh"
#include <stdlib.h>

namespace ts {

/** Columns of the deeper of keys and values. */
static int deepest(const attention_call &c)
{
    return c.depth > c.value_depth ? c.depth : c.value_depth;
}

/** Calls f.operator()<T, CHUNKS, MANY>() for the rows and columns of a call with elements of T. */
template <class T, class F> static auto with_chunks(const attention_call &c, F &&f)
{
    bool many = (int64_t)c.share * c.rows > 1 || getenv("TS_X");
    if constexpr (sizeof(T) == 4)
        if (deepest(c) > 128)
            return many ? f.template operator()<T, 2, true>() : f.template operator()<T, 2, false>();
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
    /* a few keys are too little work for a block: Hopper's kernels start fewer blocks */
    if (c.type != ATTENTION_F32 && c.keys < 128)
        return false;
    if (getenv("TS_Y"))
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
                                      : (int64_t)c.batches * c.heads * c.rows * c.splits *
                                            c.depth * (int64_t)sizeof(float);
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
