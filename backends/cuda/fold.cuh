/**
 * @file fold.cuh  Folds whose state is one number, and the order in which threads merge states.
 *
 * Eager reductions (reduce.cuh) and fused groups (fuse/group_folds.cuh) share them, so that both
 * have the same bits. A fold is a functor that reduces elements:
 *
 *     state           type of a partial result
 *     none()          state of no elements
 *     take(s, x)      adds the elements of the array x to state s
 *     merge(a, b)     state of the elements of a and b
 *     finish(s)       result of a state, not yet rounded to the dtype
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_FOLD_CUH
#define TS_CUDA_FOLD_CUH

#include "backends/cuda/types.cuh"

namespace ts {

/** Elements of a piece, which a thread loads at once: 16 bytes, but at most 8 elements. */
template <class T> constexpr int piece_of = vec16<T> < 8 ? vec16<T> : 8;

/* Operations of plain_fold: of() combines two numbers; none() is the neutral element of of(). */
struct op_add {
    template <class A> static __device__ __forceinline__ A none() { return 0; }
    template <class A> static __device__ __forceinline__ A of(A a, A b) { return a + b; }
};
struct op_multiply {
    template <class A> static __device__ __forceinline__ A none() { return 1; }
    template <class A> static __device__ __forceinline__ A of(A a, A b) { return a * b; }
};
struct op_largest {
    template <class A> static __device__ __forceinline__ A none() { return -(A)INFINITY; }
    /* NaN if a or b is NaN */
    template <class A> static __device__ __forceinline__ A of(A a, A b)
    {
        return a > b || a != a ? a : b;
    }
};

/* Functions of an element before the operation. */
struct keep {
    template <class A> __device__ __forceinline__ A operator()(A x) const { return x; }
};
struct absolute {
    template <class A> __device__ __forceinline__ A operator()(A x) const { return fabs(x); }
};
struct squared {
    template <class A> __device__ __forceinline__ A operator()(A x) const { return x * x; }
};

/** Reduces elements of X, mapped by PRE, with OP in states of type S. A float result is multiplied
 *  by `factor`; then, if `root`, its square root is taken. */
template <class X, class OP, class PRE, class S = X> struct plain_fold {
    using state = S;
    double factor;
    bool root;

    __device__ __forceinline__ state none() const { return OP::template none<state>(); }
    __device__ __forceinline__ state merge(state a, state b) const { return OP::of(a, b); }
    template <int N> __device__ __forceinline__ void take(state &s, const X (&x)[N]) const
    {
#pragma unroll
        for (int e = 0; e < N; e++)
            if constexpr (std::is_same_v<PRE, squared>) /* fma() also in groups (--fmad=false) */
                s = fma(x[e], x[e], s);
            else
                s = OP::of(s, (state)PRE()(x[e]));
    }
    __device__ __forceinline__ state finish(state s) const
    {
        if constexpr (std::is_floating_point_v<X>) {
            s *= (X)factor;
            return root ? sqrt(s) : s;
        }
        return s;
    }
};

/** The type in which elements of T are compared. */
template <class T>
using ranked_t = std::conditional_t<std::is_integral_v<T> && sizeof(T) < 4, int32_t, wide_t<T>>;

/** -infinity, or the most negative integer. */
template <class A> constexpr A lowest_of()
{
    if constexpr (std::is_floating_point_v<A>)
        return -(A)INFINITY;
    else
        return (A)((A)1 << (sizeof(A) * 8 - 1));
}

/** Reverses the order of numbers if the smallest is wanted: negates floats, inverts the bits of
 * integers. Applying it twice restores the number. */
template <class A> struct turning {
    using word = std::conditional_t<sizeof(A) == 8, int64_t, int32_t>;
    word bits;

    explicit turning(bool smallest)
        : bits(!smallest ? 0 : std::is_floating_point_v<A> ? lowest_of<word>() : (word)-1)
    {
    }
    __device__ __forceinline__ A operator()(A x) const
    {
        word w;
        memcpy(&w, &x, sizeof w);
        w ^= bits;
        memcpy(&x, &w, sizeof w);
        return x;
    }
};

/** The largest element of T or, by `turn`, the smallest; NaN if an element is NaN. */
template <class T> struct extreme_fold {
    using state = ranked_t<T>;
    turning<state> turn;

    __device__ __forceinline__ state none() const { return lowest_of<state>(); }
    __device__ __forceinline__ state merge(state a, state b) const
    {
        return a > b || a != a ? a : b;
    }
    template <int N> __device__ __forceinline__ void take(state &s, const wide_t<T> (&x)[N]) const
    {
#pragma unroll
        for (int e = 0; e < N; e++)
            s = merge(s, turn((state)x[e]));
    }
    __device__ __forceinline__ state finish(state s) const { return turn(s); }
};

/* ----------------------------------------------------------------------- states of threads ---- */

/** __shfl_xor_sync() of a state: that of the lane whose number is this thread's XOR `lane`. */
template <class A> __device__ __forceinline__ A state_xor(const A &a, int lane)
{
    static_assert(sizeof(A) % 4 == 0, "states of whole words");
    uint32_t words[sizeof(A) / 4];
    memcpy(words, &a, sizeof a);
#pragma unroll
    for (int w = 0; w < (int)(sizeof(A) / 4); w++)
        words[w] = __shfl_xor_sync(0xffffffffu, words[w], lane);
    A b;
    memcpy(&b, words, sizeof b);
    return b;
}

enum { REDUCE_THREADS = 256, /* of a block */
       IN_FLIGHT = 4         /* pieces that a thread loads before it takes the first; 2 if
                                reduction.chunked */ };

/** Merges the states of `group` adjacent threads into that of the first of them. group: a power of
 *  2 up to 32, or REDUCE_THREADS. Every thread of the block must call; with REDUCE_THREADS, a
 *  __syncthreads() must separate two calls. */
template <class FOLD, class A>
__device__ __forceinline__ void merge_lanes(const FOLD &fold, A &state, int group)
{
#pragma unroll 1
    for (int by = (group < 32 ? group : 32) / 2; by; by /= 2)
        state = fold.merge(state, state_xor(state, by));
    if (group > 32) {
        __shared__ A warps[REDUCE_THREADS / 32];
        if (threadIdx.x % 32 == 0)
            warps[threadIdx.x / 32] = state;
        __syncthreads();
        state = warps[0];
#pragma unroll 1
        for (int w = 1; w < REDUCE_THREADS / 32; w++)
            state = fold.merge(state, warps[w]);
    }
}

/** Thread t of a block has states of the N results of lane t % across. Merges the states of each
 * result, and calls done(lane, n, state) for result n of each lane, in one thread. across: a power
 * of 2 up to REDUCE_THREADS. Every thread of the block must call, with a __syncthreads() between
 * two calls. */
template <int N, class FOLD, class A, class F>
__device__ __forceinline__ void merge_lines(const FOLD &fold, A (&state)[N], int across, F &&done)
{
    static_assert(N * REDUCE_THREADS * sizeof(A) <= 32768, "several blocks share a multiprocessor");
    __shared__ A states[N][REDUCE_THREADS];
#pragma unroll 1
    for (int by = 16; by >= across; by /= 2)
#pragma unroll
        for (int n = 0; n < N; n++)
            state[n] = fold.merge(state[n], state_xor(state[n], by));
    int wide = across < 32 ? 32 : across;
    if (wide == REDUCE_THREADS) {
#pragma unroll
        for (int n = 0; n < N; n++)
            done((int)threadIdx.x, n, state[n]);
        return;
    }
    if (((int)threadIdx.x & (wide - 1)) < across)
#pragma unroll
        for (int n = 0; n < N; n++)
            states[n][threadIdx.x] = state[n];
    __syncthreads();
    for (int i = threadIdx.x; i < across * N; i += REDUCE_THREADS) {
        int n = i / (unsigned)across, lane = i & (across - 1);
        A sum = states[n][lane];
#pragma unroll 1
        for (int from = lane + wide; from < REDUCE_THREADS; from += wide)
            sum = fold.merge(sum, states[n][from]);
        done(lane, n, sum);
    }
}

} // namespace ts

#endif
