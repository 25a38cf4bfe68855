/**
 * @file attention.cuh  The parameters of attention kernels, the functions that the kernels share,
 * and the launchers that attention.cu chooses from. docs/attention.md has the formulas. There are
 * four families of kernels: wgmma (Hopper), mma (sm_80 and later), split (few rows) and plain (f64,
 * and sizes that the others do not support).
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_ATTENTION_CUH
#define TS_CUDA_ATTENTION_CUH

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "backends/cuda/philox.cuh"
#include "backends/cuda/types.cuh"

namespace ts {

/** An operand of shape (batch, head, row, depth). The depth is dense; the other strides are in
 * elements. The batch stride of packed sequences is 0. */
struct attention_operand {
    void *data; /* NULL: a result that is not requested */
    int64_t batch, head, row;

    template <class T> __device__ __forceinline__ T *of(int b, int h, int64_t r) const
    {
        return (T *)data + b * batch + h * head + r * row;
    }
};

enum attention_type { ATTENTION_F32, ATTENTION_F64, ATTENTION_BF16, ATTENTION_F16 };
/** The dtype of a mask: bool, or an additive mask of the query's dtype (OWN) or f32. */
enum attention_mask_type { NO_MASK, MASK_BOOL, MASK_OWN, MASK_F32 };

/** Arguments of all attention kernels. If sequences are packed, each sequence counts as a batch. g
 * is the gradient of out; forward does not use g, dq, dk and dv. A raw score is the dot product q k
 * of a row and a key, not yet scaled. */
struct attention_call {
    attention_type type;
    attention_operand q, k, v, out, g, dq, dk, dv;
    void *lse;         /* log-sum-exp: (batches, heads, rows) or, packed, (heads, tokens), dense;
                          f64 if type is ATTENTION_F64, else f32. NULL if forward does not store
                          it */
    const void *g_lse; /* gradient of lse, in the same layout and dtype, or NULL */
    void *pairs;       /* backward: two numbers per row, (lse, delta), as attention_pairs_kernel()
                          or attention_plain_pairs_kernel() defines them */
    int64_t pair_rows; /* rows per head in pairs */
    float *sums;       /* backward: dq before it is scaled and rounded; on Hopper with
                          attention_sum_columns() columns; NULL: dq is not summed there */
    float *parts; /* partial results of runs. A run is the range of keys (split kernels) or of
                     streamed tiles (backward by mma) that one block processes */
    int splits;   /* number of runs */
    bool owned;        /* backward on Hopper: one block has all keys of a head, so that one kernel
                          computes all gradients, and no pairs are stored */
    bool early;        /* sm_90 and later: a kernel may begin before the previous kernel ends */
    unsigned *taken;   /* Hopper: counter from which blocks take their next rows or keys */
    /* Hopper, lists of units of work (lists.cuh); NULL: the call needs none. units: *unit_count
     * pairs (batch, index of a tile of rows or keys in the batch), at most unit_room; maps: four
     * TMA descriptors per batch, which end at the batch's last row or key. */
    int2 *units;
    unsigned *unit_count;
    unsigned unit_room;
    CUtensorMap *maps;
    double scale;      /* factor of raw scores */
    float to_log2;     /* factor that makes an exponent of 2 of a raw score or, if `adjusted`, of
                          the result of attention_score() */
    float raw_to_log2; /* factor that makes an exponent of 2 of a raw score */
    float by_scale;    /* 1 / scale */
    int batches, heads, share; /* heads: query heads of a batch; share: query heads per key head */
    int rows, keys, depth, value_depth; /* value_depth: columns of v and out */
    int processors;  /* multiprocessors of the device */
    int shared;      /* maximum bytes of shared memory of a block */
    int left, right; /* the window, relative to the diagonal that ends at the last row and key: row
                        i sees keys i + keys - rows - left to i + keys - rows + right. rows + keys,
                        the maximum of both, means no limit */
    /* Packed sequences: batches + 1 offsets of rows and of keys, at strides of *_step elements.
     * Sequence i has the rows q_starts[i] to q_starts[i + 1] - 1. rows and keys are then upper
     * bounds of the sequences' lengths. NULL: not packed. */
    const int *q_starts, *k_starts;
    int64_t q_starts_step, k_starts_step;
    const int *k_lengths; /* numbers of keys of each batch, at a stride, or NULL: all have `keys` */
    int64_t k_lengths_step;
    int64_t q_tokens, k_tokens; /* rows of the tensors: rows and keys unless packed */
    bool uneven;   /* batches have lengths of their own: packed sequences, or k_lengths */
    bool rules;    /* a mask or dropout, or `adjusted` */
    bool adjusted; /* an additive mask, a softcap, or a scale that is not positive and finite:
                      kernels compute scores by attention_score() */
    float softcap; /* 0: none */
    float by_softcap; /* scale / softcap, or 0 */
    int mask_type;    /* an attention_mask_type */
    const void *mask;
    int64_t mask_steps[4]; /* strides in elements: batch, head, row, key */
    bool dropout;
    uint32_t dropped; /* drop probability times 2^24, rounded up */
    double dropout_scale; /* 1 / (1 - p) for drop probability p, or 0 if p is 1 */
    float dropout_scale_half; /* the same factor, for kernels of halves */
    uint64_t seed, offset; /* of the Philox generator */
};

/** Columns of a row of c.sums. */
__host__ __device__ inline int attention_sum_columns(const attention_call &c)
{
    return c.depth <= 64 && c.value_depth <= 64 ? 64 : 128;
}

constexpr float log2_e = 1.4426950408889634f, ln_2 = 0.6931471805599453f;

/** One sequence: where its rows and keys begin in the tensors, their numbers, and the visible
 * (row, key) pairs. */
struct attention_span {
    int64_t first_row, first_key;
    int64_t first_statistic; /* index in lse of the first row of head 0 */
    int rows, keys;
    int low, high; /* row i sees the keys j with  low <= j - i <= high */
};

__device__ __forceinline__ int attention_clamped(int64_t x, int64_t low, int64_t high)
{
    return (int)(x < low ? low : x > high ? high : x);
}

/** The span of a batch. Offsets and lengths are read from device memory, where they may be
 * invalid. */
__device__ __forceinline__ attention_span span_of(const attention_call &c, int batch)
{
    attention_span s = {0, 0, (int64_t)batch * c.heads * c.rows, c.rows, c.keys};
    if (c.q_starts) { /* unchecked device data: clamped to the tensors' rows */
        s.first_row = attention_clamped(c.q_starts[batch * c.q_starts_step], 0, c.q_tokens);
        s.first_key = attention_clamped(c.k_starts[batch * c.k_starts_step], 0, c.k_tokens);
        s.rows = min(c.rows, attention_clamped(c.q_starts[(batch + 1) * c.q_starts_step],
                                               s.first_row, c.q_tokens) -
                                 (int)s.first_row);
        s.keys = min(c.keys, attention_clamped(c.k_starts[(batch + 1) * c.k_starts_step],
                                               s.first_key, c.k_tokens) -
                                 (int)s.first_key);
        s.first_statistic = s.first_row;
    }
    if (c.k_lengths) /* unchecked, too */
        s.keys = attention_clamped(c.k_lengths[batch * c.k_lengths_step], 0, c.keys);
    s.low = s.keys - s.rows - c.left;
    s.high = s.keys - s.rows + c.right;
    return s;
}
/** span_of() if all batches have the same lengths. */
__device__ __forceinline__ attention_span whole_span_of(const attention_call &c, int batch)
{
    return {0, 0, (int64_t)batch * c.heads * c.rows, c.rows, c.keys, c.keys - c.rows - c.left,
            c.keys - c.rows + c.right};
}
/** Index of a row in lse. */
__device__ __forceinline__ int64_t statistic_of(const attention_call &c, const attention_span &s,
                                                int head, int row)
{
    return s.first_statistic + head * c.q_tokens + row;
}

/** First row of a packed sequence in c.pairs. Hopper's kernels copy whole tiles of up to 128 rows,
 * so in their layout sequences begin at multiples of 128 and have padding after their rows. */
__device__ __forceinline__ int64_t first_pair_of(const attention_call &c, int batch,
                                                 int64_t first_row)
{
    return c.units ? (first_row + (int64_t)batch * 128) / 128 * 128 : first_row;
}
/** Index of a row in c.pairs. UNEVEN: sequences may be packed. */
template <bool UNEVEN = true>
__device__ __forceinline__ int64_t pair_of(const attention_call &c, const attention_span &s,
                                           int batch, int head, int row)
{
    if (UNEVEN && c.q_starts)
        return head * c.pair_rows + first_pair_of(c, batch, s.first_row) + row;
    return ((int64_t)batch * c.heads + head) * c.pair_rows + row;
}

/** A range of rows or keys: first to end - 1. */
struct attention_range {
    int first, end;
};

/** Keys that at least one of the rows first to end - 1 sees. */
__device__ __forceinline__ attention_range keys_of_rows(const attention_span &s, int first, int end)
{
    return {max(0, first + s.low), min(s.keys, end + s.high)};
}
/** Rows that see at least one of the keys first to end - 1. */
__device__ __forceinline__ attention_range rows_of_keys(const attention_span &s, int first, int end)
{
    return {max(0, first - s.high), min(s.rows, end - s.low)};
}
/** True if each of the rows first_row to end_row - 1 sees all keys first_key to end_key - 1,
 * and all of these rows and keys exist. */
__device__ __forceinline__ bool sees_all(const attention_span &s, int first_row, int end_row,
                                         int first_key, int end_key)
{
    return end_key <= s.keys && end_row <= s.rows && first_key - (end_row - 1) >= s.low &&
           end_key - 1 - first_row <= s.high;
}
/** True if the row and the key exist and the window shows the pair. */
__device__ __forceinline__ bool sees(const attention_span &s, int row, int key)
{
    return key < s.keys && row < s.rows && key - row >= s.low && key - row <= s.high;
}

/* ------------------------------------------------------------------------------- rules ---- */

__device__ __forceinline__ float tanh_of(float x)
{
    return tanhf(x);
}
__device__ __forceinline__ double tanh_of(double x)
{
    return tanh(x);
}

/** Applies scale, softcap and `added`, the addend of a mask, to a raw score. Sets `slope` to the
 * derivative of the result with respect to the scaled score. A: float or double. */
template <class A>
__device__ __forceinline__ A attention_score(const attention_call &c, A raw, A added, A &slope)
{
    A x = raw * (A)c.scale;
    slope = 1;
    if (c.softcap > 0) {
        A t = tanh_of(x / (A)c.softcap);
        x = (A)c.softcap * t;
        slope = 1 - t * t;
    }
    if (added == (A)-INFINITY)
        return added;
    /* The lowest finite numbers would overflow to -Inf as exponents of 2, but a row with only such
       scores must still have weights. */
    x += added;
    return x < (A)-2e38 ? (A)-2e38 : x;
}

/** The mask's addend to the score of a pair: 0, -Inf or the element of an additive mask. own(i):
 * returns element i of a mask with the query's dtype. */
template <class A, class F>
__device__ __forceinline__ A attention_added(const attention_call &c, int batch, int head, int row,
                                             int key, F &&own)
{
    int64_t at = batch * c.mask_steps[0] + head * c.mask_steps[1] + row * c.mask_steps[2] +
                 key * c.mask_steps[3];
    return c.mask_type == NO_MASK     ? 0
           : c.mask_type == MASK_BOOL ? ((const uint8_t *)c.mask)[at] ? 0 : (A)-INFINITY
           : c.mask_type == MASK_OWN  ? own(at)
                                      : (A)((const float *)c.mask)[at];
}

/** The factor by which dropout multiplies a pair's weight: 0 or c.dropout_scale. */
template <class A>
__device__ __forceinline__ A attention_kept(const attention_call &c, int batch, int head, int row,
                                            int key)
{
    uint64_t n = (((uint64_t)batch * c.heads + head) * c.rows + row) * c.keys + key;
    philox_block b(c.seed, c.offset + n / 4);
    uint32_t w = n % 4 < 2 ? (n % 2 ? b.w[1] : b.w[0]) : (n % 2 ? b.w[3] : b.w[2]);
    return (w >> 8) < c.dropped ? 0 : (A)c.dropout_scale;
}

/* ---------------------------------------------------------------------------- launches ---- */

/** Options for which a Hopper kernel has code, in addition to the window: none; dropout, a boolean
 * mask, or both (BITS); an additive mask without dropout (ADDED); lengths of each batch (LENGTHS);
 * all options, selected at run time (ANY). Kernels with LENGTHS and ANY take their units of work
 * from c.units. */
enum attention_hopper_rules { NO_RULES, BITS, ADDED, LENGTHS, ANY };

/** The rules that a call needs. ADDED divides the mask by the scale, so the scale must be between
 * 2^-20 and 8. */
inline attention_hopper_rules attention_rules_of(const attention_call &c)
{
    bool added = c.mask_type > MASK_BOOL, odd = !(c.scale > 0 && c.scale < INFINITY);
    if (c.uneven)
        return c.rules ? ANY : LENGTHS;
    if (c.softcap > 0 || odd || (added && (c.dropout || c.scale < 0x1p-20 || c.scale > 8)))
        return ANY;
    return added ? ADDED : c.rules ? BITS : NO_RULES;
}

/** An upper bound of the number of units of a call, each with `tile` rows or, if `keys`, `tile`
 * keys. */
inline int64_t attention_unit_room(const attention_call &c, bool keys, int tile)
{
    if (c.q_starts)
        return (keys ? c.k_tokens : c.q_tokens) / tile + c.batches;
    return (int64_t)c.batches * (((keys ? c.keys : c.rows) + tile - 1) / tile);
}
/** Bytes of the memory of attention_place_list() for lists of up to `room` units. */
inline int64_t attention_list_bytes(const attention_call &c, int64_t room)
{
    return (int64_t)c.batches * 4 * (int64_t)sizeof(CUtensorMap) + 128 +
           room * (int64_t)sizeof(int2);
}
/** Sets c.maps, c.taken, c.unit_count and c.units to parts of `memory`, which is aligned to 128
 * bytes. */
inline void attention_place_list(attention_call &c, void *memory)
{
    c.maps = (CUtensorMap *)memory;
    c.taken = (unsigned *)(c.maps + (int64_t)c.batches * 4);
    c.unit_count = c.taken + 1;
    c.units = (int2 *)((char *)c.taken + 128);
}

/* Functions with a `stream` launch kernels on it. T is bf16 or f16; all but attention_wgmma_*()
 * also accept float. `keys` selects the pass over keys (dk, dv) instead of the pass over queries
 * (dq). cudaErrorNotSupported: the device or the operands are not supported. */
template <class T> cudaError_t attention_pairs(const attention_call &c, cudaStream_t stream);
template <class T> cudaError_t attention_mma_forward(const attention_call &c, cudaStream_t stream);
template <class T>
cudaError_t attention_mma_backward(const attention_call &c, bool keys, cudaStream_t stream);
/** True if the shared memory of a block suffices for the forward or backward mma kernels. */
bool attention_mma_holds(const attention_call &c, bool backward);
/** Number of runs of tiles in a pass of the backward mma kernels. It does not depend on the
 * device. */
int attention_mma_runs(const attention_call &c, bool keys);
/** Bytes of c.parts that these runs need; 0 for one run. */
int64_t attention_mma_part_bytes(const attention_call &c, bool keys);
template <class T>
cudaError_t attention_wgmma_forward(const attention_call &c, cudaStream_t stream);
template <class T>
cudaError_t attention_wgmma_backward(const attention_call &c, bool keys, cudaStream_t stream);
/** True if the split kernels serve a call: it has few rows, or few heads and many keys. */
bool attention_splits(const attention_call &c);
/** Number of runs of keys for the split kernels. It does not depend on the device. */
int attention_split_count(const attention_call &c);
/** Bytes of c.parts for c.splits runs; 0 for one run. */
int64_t attention_split_bytes(const attention_call &c);
template <class T>
cudaError_t attention_split_forward(const attention_call &c, cudaStream_t stream);
/** The same for the backward. */
bool attention_splits_backward(const attention_call &c);
int attention_split_backward_count(const attention_call &c);
int64_t attention_split_backward_bytes(const attention_call &c);
template <class T>
cudaError_t attention_split_backward(const attention_call &c, cudaStream_t stream);
/** The number of runs that minimises an estimate of the time. `units`: units of keys, which the
 * runs share. A block costs the units of its run, and one more to start; the second kernel costs
 * 1.5. `tiles`: blocks of one run; `slots`: blocks that run at once; `uneven`: sequences have
 * different lengths, so the result may be larger, to balance the multiprocessors. */
int attention_best_splits(int64_t tiles, int64_t units, int64_t slots, bool uneven);
/* A: the type of the arithmetic, float or double */
template <class A>
cudaError_t attention_plain_forward(const attention_call &c, cudaStream_t stream);
template <class A>
cudaError_t attention_plain_backward(const attention_call &c, cudaStream_t stream);

} // namespace ts

#endif
