/**
 * @file group_folds.cuh
 * Reductions (folds) in the generated kernels of fused groups (folds_source.c), in the order of the
 * eager kernels (reduce.cuh). NVRTC compiles this file at run time.
 *
 * The reduced space is (results / inner, count, inner), contiguous, reduced over `count`. With
 * inner = 1 `group` threads share a result (fold_along). With inner > 1 the threads of a block are
 * divided into lines: the threads of a line have different results, and each line takes other
 * indices of `count` (fold_beside). The elements of a result are divided into units: 16-byte pieces
 * in fold_along if rows are whole pieces, else single elements. If there are too few results,
 * several blocks share the units of a result; they store states, which a second kernel merges.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_GROUP_FOLDS_CUH
#define TS_CUDA_GROUP_FOLDS_CUH

#include "backends/cuda/fold.cuh"
#include "backends/cuda/fuse/group.cuh"

namespace ts {

/** The division of a reduction. Must have the layout of the host type ts_cuda_group_folds. */
struct group_folds {
    uint64_t results, inner, count; /* (results / inner, count, inner): the reduced space */
    uint64_t share, all; /* share: units of a result that one block reduces; all: units of a
                            result */
    uint32_t blocks, shares; /* blocks for the results; blocks that share the units of a result */
    uint32_t group;  /* fold_along: threads per result; fold_beside: threads of a line */
    uint32_t merges; /* results per block of the kernel that merges the shares */
    /* Not used in kernels. beside: fold_beside, not fold_along. vector: threads read whole pieces,
     * along `count` (fold_along) or along the results (fold_beside). */
    bool beside, vector;
};

/** Position of a thread among the units of a result, for inner = 1. */
template <class I> struct fold_along {
    /* result: index of the thread's result. The thread reduces the result's units begin,
     * begin + group, ... before end. first: index of the result's unit 0 among all units. */
    I result, begin, end, first;
    /* lane: index of the thread among those of the result. part: index of the block among the
     * blocks that share the result's units. */
    uint32_t lane, part;
    bool some; /* the result exists */
    __device__ __forceinline__ fold_along(const group_folds &d)
        : lane(threadIdx.x & (d.group - 1)), part(blockIdx.x / d.blocks)
    {
        result = ((I)(blockIdx.x % d.blocks) * REDUCE_THREADS + threadIdx.x) / d.group;
        some = result < d.results;
        begin = (I)part * (I)d.share;
        end = !some ? begin : begin + d.share < d.all ? begin + (I)d.share : (I)d.all;
        first = result * (I)d.all;
        begin += lane;
    }
};

/** Position of a thread among the results and the indices of `count`, for inner > 1. V: results per
 * thread, adjacent if NEAR, else d.group apart. */
template <int V, bool NEAR, class I> struct fold_beside {
    I from, first;        /* first result of the block, and of the thread */
    I begin, end;         /* indices of `count`: begin, begin + lines, ... before end */
    I at[NEAR ? 1 : V];   /* positions of the results' elements with index 0 of `count` */
    uint32_t lines, part; /* lines of threads in the block; index of the block among the shares */
    __device__ __forceinline__ fold_beside(const group_folds &d)
        : lines(REDUCE_THREADS / d.group), part(blockIdx.x / d.blocks)
    {
        const uint32_t lane = threadIdx.x & (d.group - 1);
        from = (I)(blockIdx.x % d.blocks) * d.group * V;
        first = from + lane * (NEAR ? V : 1);
        begin = (I)part * (I)d.share;
        end = first >= d.results ? begin
              : begin + d.share < d.count ? begin + (I)d.share : (I)d.count;
        begin += threadIdx.x / d.group;
#pragma unroll
        for (int k = 0; k < (NEAR ? 1 : V); k++) {
            const I r = first + k * (I)d.group, q = r / (I)d.inner;
            at[k] = q * (I)d.count * (I)d.inner + (r - q * (I)d.inner);
        }
    }
    /** Number of the thread's result k. */
    __device__ __forceinline__ I result(const group_folds &d, int k) const
    {
        return first + k * (NEAR ? 1 : (I)d.group);
    }
};

/** Merges the states of one fold in a block, and stores the states of the block's results in
 * `parts` (shares, results). state: the thread's states. own: the thread's position. */
template <int V, bool NEAR, class FOLD, class I>
__device__ __forceinline__ void store_lines(const FOLD &fold, typename FOLD::state (&state)[V],
                                            const group_folds &d,
                                            const fold_beside<V, NEAR, I> &own, void *parts)
{
    using A = typename FOLD::state;
    __syncthreads(); /* another fold may use the same shared memory */
    merge_lines(fold, state, (int)d.group, [&](int lane, int k, const A &sum) {
        const uint64_t result = own.from + (NEAR ? (I)lane * V + k : (I)lane + k * (I)d.group);
        if (result < d.results)
            ((A *)parts)[own.part * d.results + result] = sum;
    });
}

/** Merges the shares of results, in the kernel `merge`. Thread t below d.merges returns the state
 * of result blockIdx.x * d.merges + t. parts: from store_lines(), (shares, results). */
template <class FOLD>
__device__ __forceinline__ typename FOLD::state merged(const FOLD &fold, const group_folds &d,
                                                       const void *parts)
{
    using A = typename FOLD::state;
    const uint32_t across = d.merges, line = threadIdx.x / across, lines = REDUCE_THREADS / across;
    const uint64_t result = (uint64_t)blockIdx.x * across + (threadIdx.x & (across - 1));
    A state[1] = {fold.none()}, made = state[0];
    const A *const from = (const A *)parts + result;
    __syncthreads();
    if (d.shares == 1) /* merging with none() would make 0 of -0 */
        return result < d.results ? *from : made;
    if (result < d.results)
#pragma unroll 4
        for (uint32_t s = line; s < d.shares; s += lines)
            state[0] = fold.merge(state[0], from[s * d.results]);
    merge_lines(fold, state, (int)across, [&](int, int, const A &sum) { made = sum; });
    return made;
}

} // namespace ts

#endif
