/**
 * @file reduce.cuh  Reductions over any dims.
 *
 * A fold defines an initial state, adding elements to a state, merging two states, and the result
 * of a state. If the innermost dim is reduced, a group of threads shares the elements of a result;
 * otherwise neighbouring threads own neighbouring results, so that loads are coalesced. A thread
 * loads 16 bytes at a time and has four loads in flight. Long sums for few results are split, and
 * a second launch merges the parts' states. Which thread reads which element depends on the sizes
 * only, not on addresses.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_REDUCE_CUH
#define TS_CUDA_REDUCE_CUH

#include <string.h>

#include "backends/cuda/frame.cuh"
#include "backends/cuda/loops.cuh"

namespace ts {

/** n / d, fast where both fit 31 bits. */
struct quotient {
    int64_t d;
    divisor fast;
    bool is_short;
    quotient() = default;
    quotient(int64_t by, int64_t most)
        : d(by), fast(by < INT32_MAX ? (uint32_t)by : 1), is_short(most < INT32_MAX)
    {
    }
    __device__ __forceinline__ int64_t of(int64_t n) const
    {
        return is_short ? (int64_t)fast.of((uint32_t)n) : n / d;
    }
};

/** Sizes and steps, in elements, of the dims that stay (0) and go (1), innermost first. */
struct reduction {
    int ndim[2];
    int64_t sizes[2][TS_MAX_DIMS], steps[2][TS_MAX_DIMS];
    int64_t results, count; /* products of the sizes */
    bool aligned, even;     /* the dim that is read along can be read 16 bytes
                               at a time; to its end */
    int64_t pieces;         /* of V elements in the dim that is read along */
    quotient by_pieces;
    int64_t share;          /* pieces, or elements, that one block of a result takes */

    /** Offset of element i of the dims from `first` on. */
    __device__ __forceinline__ int64_t offset(int which, int first, int64_t i) const
    {
        int64_t at = 0;
        for (int d = first; d < ndim[which]; d++) {
            int64_t q = i / sizes[which][d];
            at += (i - q * sizes[which][d]) * steps[which][d];
            i = q;
        }
        return at;
    }
};

inline reduction reduction_of(const ts_tensor *t, int64_t mask)
{
    reduction r = {};
    r.results = r.count = 1;
    for (int d = ts_ndim(t) - 1; d >= 0; d--) {
        int which = mask >> d & 1, n = r.ndim[which];
        int64_t size = ts_sizes(t)[d], step = ts_strides(t)[d];
        (which ? r.count : r.results) *= size;
        if (size == 1)
            continue;
        if (n && step == r.steps[which][n - 1] * r.sizes[which][n - 1]) {
            r.sizes[which][n - 1] *= size;
            continue;
        }
        r.sizes[which][n] = size;
        r.steps[which][n] = step;
        r.ndim[which]++;
    }
    for (int which = 0; which < 2; which++)
        if (!r.ndim[which]) {
            r.sizes[which][0] = 1;
            r.ndim[which] = 1;
        }
    return r;
}

/* ------------------------------------------------------------------------------ elements ---- */

/** n of V neighbours, `step` apart, as the words in which they move: each access would wait
 *  for the one before it, were halves taken apart here. */
template <class T, int V>
__device__ __forceinline__ word_of<vec<T, V>> load_piece(const T *from, int64_t step, bool aligned,
                                                         int n)
{
    if (aligned && n == V)
        return *reinterpret_cast<const word_of<vec<T, V>> *>(from);
    vec<T, V> x = {};
#pragma unroll
    for (int e = 0; e < V; e++)
        if (e < n)
            x.at[e] = from[e * step];
    return to_word(x);
}

/** n of V elements go into a state: together where all are there. */
template <class T, int V, class FOLD>
__device__ __forceinline__ void take_piece(const FOLD &fold, typename FOLD::state &state,
                                           const vec<T, V> &piece, int n)
{
    wide_t<T> x[V];
#pragma unroll
    for (int e = 0; e < V; e++)
        x[e] = widen(piece.at[e]);
    if (n == V) {
        fold.take(state, x);
        return;
    }
#pragma unroll
    for (int e = 0; e < V; e++)
        if (e < n) {
            wide_t<T> one[1] = {x[e]};
            fold.take(state, one);
        }
}

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

/** Merges the states of 32 lanes, or of all REDUCE_THREADS;
 * the first thread of a group has the result. */
enum { REDUCE_THREADS = 256, IN_FLIGHT = 4 };

template <int GROUP, class FOLD, class A>
__device__ __forceinline__ A merge_group(const FOLD &fold, A state)
{
#pragma unroll
    for (int lane = 16; lane; lane >>= 1)
        state = fold.merge(state, state_xor(state, lane));
    if constexpr (GROUP > 32) {
        __shared__ A warps[GROUP / 32];
        if (threadIdx.x % 32 == 0)
            warps[threadIdx.x / 32] = state;
        __syncthreads();
        state = warps[0];
#pragma unroll
        for (int w = 1; w < GROUP / 32; w++)
            state = fold.merge(state, warps[w]);
    }
    return state;
}

/** A state, or what the fold makes of it. */
template <class R, class FOLD, class A>
__device__ __forceinline__ void give(const FOLD &fold, const A &state, A *parts, R *y, int64_t at)
{
    if (parts)
        parts[at] = state;
    else
        y[at] = narrow<R>(fold.finish(state));
}

/* ------------------------------------------------------------------------------- kernels ---- */

/** GROUP threads a result; pieces lie along the innermost dim that goes.
 * Elements are T, results R. */
template <class T, class R, class FOLD, int GROUP>
static __global__ void __launch_bounds__(REDUCE_THREADS)
    reduce_along_kernel(const __grid_constant__ reduction r, FOLD fold, const T *x,
                        typename FOLD::state *parts, R *y)
{
    constexpr int V = vec16<T>, U = IN_FLIGHT;
    int64_t result = (int64_t)blockIdx.x * (REDUCE_THREADS / GROUP) + threadIdx.x / GROUP;
    if (result >= r.results)
        return; /* whole warps; blocks of one group have a result each */
    const T *from = x + r.offset(0, 0, result);
    int64_t length = r.sizes[1][0], step = r.steps[1][0], begin = (int64_t)blockIdx.y * r.share,
            end = begin + r.share;
    int64_t all = r.count / (length ? length : 1) * r.pieces;
    end = end < all ? end : all;
    /* where a piece begins along its run, and in memory */
    auto first_of = [&](int64_t piece) {
        return r.ndim[1] > 1 ? (piece - r.by_pieces.of(piece) * r.pieces) * V : piece * V;
    };
    auto place_of = [&](int64_t piece) {
        return r.ndim[1] > 1 ? first_of(piece) * step + r.offset(1, 1, r.by_pieces.of(piece))
                             : piece * V * step;
    };
    typename FOLD::state state = fold.none();
    int64_t p = begin + threadIdx.x % GROUP;
    for (; r.even && p + (U - 1) * GROUP < end; p += GROUP * U) {
        vec<T, V> in[U];
#pragma unroll
        for (int u = 0; u < U; u++)
            in[u] = *reinterpret_cast<const vec<T, V> *>(from + place_of(p + u * GROUP));
#pragma unroll
        for (int u = 0; u < U; u++)
            take_piece<T, V>(fold, state, in[u], V);
    }
    for (; p < end; p += GROUP) {
        int64_t left = length - first_of(p);
        int n = left < V ? (int)left : V;
        word_of<vec<T, V>> in = load_piece<T, V>(from + place_of(p), step, r.aligned, n);
        take_piece<T, V>(fold, state, from_word<vec<T, V>>(in), n);
    }
    state = merge_group<GROUP>(fold, state);
    if (threadIdx.x % GROUP == 0)
        give(fold, state, parts, y, (int64_t)blockIdx.y * r.results + result);
}

/** Threads own V neighbouring results each; `across` of them lie side by side,
 * the others share the elements. */
template <class T, class R, class FOLD>
static __global__ void __launch_bounds__(REDUCE_THREADS)
    reduce_beside_kernel(const __grid_constant__ reduction r, FOLD fold, const T *x,
                         typename FOLD::state *parts, R *y, int across)
{
    using X = wide_t<T>;
    using A = typename FOLD::state;
    constexpr int V = vec16<T>, U = IN_FLIGHT;
    int lane = threadIdx.x % across, line = threadIdx.x / across, lines = REDUCE_THREADS / across;
    int64_t width = r.sizes[0][0], step = r.steps[0][0],
            piece = (int64_t)blockIdx.x * across + lane;
    int64_t row = piece / r.pieces, first = (piece - row * r.pieces) * V,
            begin = (int64_t)blockIdx.y * r.share;
    int64_t end = begin + r.share < r.count ? begin + r.share : r.count;
    int n = row * width >= r.results ? 0 : width - first < V ? (int)(width - first) : V;
    A state[V];
#pragma unroll
    for (int e = 0; e < V; e++)
        state[e] = fold.none();
    if (n) {
        const T *from = x + first * step + r.offset(0, 1, row);
        for (int64_t i = begin + line; i < end; i += (int64_t)lines * U) {
            word_of<vec<T, V>> in[U];
            bool whole = i + (int64_t)lines * (U - 1) < end;
#pragma unroll
            for (int u = 0; u < U; u++) {
                int64_t at = i + (int64_t)lines * u;
                if (at < end)
                    in[u] = load_piece<T, V>(
                        from + (r.ndim[1] > 1 ? r.offset(1, 0, at) : at * r.steps[1][0]), step,
                        r.aligned, n);
            }
#pragma unroll
            for (int e = 0; e < V; e++) {
                if (e >= n)
                    continue;
                X column[U];
#pragma unroll
                for (int u = 0; u < U; u++)
                    column[u] = widen(from_word<vec<T, V>>(in[u]).at[e]);
                if (whole) {
                    fold.take(state[e], column);
                } else {
#pragma unroll
                    for (int u = 0; u < U; u++)
                        if (i + (int64_t)lines * u < end) {
                            X one[1] = {column[u]};
                            fold.take(state[e], one);
                        }
                }
            }
        }
    }
    __shared__ A place[REDUCE_THREADS];
#pragma unroll
    for (int e = 0; e < V; e++) {
        __syncthreads();
        place[threadIdx.x] = state[e];
        for (int half = lines / 2; half; half /= 2) {
            __syncthreads();
            if (line < half)
                place[threadIdx.x] =
                    fold.merge(place[threadIdx.x], place[threadIdx.x + half * across]);
        }
        if (line == 0 && e < n)
            give(fold, place[threadIdx.x], parts, y,
                 (int64_t)blockIdx.y * r.results + row * width + first + e);
    }
}

/** Merges the shares of a result: a block of threads each,
 * or where there are many results a thread each. */
template <class R, class FOLD, int GROUP>
static __global__ void __launch_bounds__(REDUCE_THREADS)
    merge_shares_kernel(FOLD fold, const typename FOLD::state *parts, typename FOLD::state *states,
                        R *y, int64_t results, int shares)
{
    int64_t result =
        GROUP > 1 ? (int64_t)blockIdx.x : (int64_t)blockIdx.x * REDUCE_THREADS + threadIdx.x;
    if (result >= results)
        return;
    typename FOLD::state state = fold.none();
    for (int s = GROUP > 1 ? threadIdx.x : 0; s < shares; s += GROUP)
        state = fold.merge(state, parts[s * results + result]);
    if constexpr (GROUP > 1)
        state = merge_group<GROUP>(fold, state);
    if (GROUP == 1 || threadIdx.x == 0)
        give(fold, state, states, y, result);
}

/* -------------------------------------------------------------------------------- launch ---- */

/** Blocks that keep a device busy: constants, so that the order of sums is the same on all. */
enum { BUSY = 1024, MANY = 2048 /* results that keep it busy with a warp each */ };

/** Reduces x: into y, or where they are wanted into states. */
template <class T, class FOLD, class R>
ts_status reduce_into(ts_frame *f, reduction r, const FOLD &fold, const T *x,
                      typename FOLD::state *states, R *y)
{
    using A = typename FOLD::state;
    constexpr int64_t V = vec16<T>;
    if (!r.results)
        return TS_OK;
    bool beside = r.results > 1 && r.steps[0][0] && r.sizes[0][0] > 1 &&
                  (r.sizes[1][0] == 1 || r.steps[0][0] < r.steps[1][0] || !r.steps[1][0]);
    int read = beside ? 0 : 1; /* the dim that is read along */
    r.pieces = (r.sizes[read][0] + V - 1) / V;
    r.aligned = r.steps[read][0] == 1 && ((uintptr_t)x & 15) == 0;
    for (int which = 0; which < 2; which++)
        for (int d = which == read; d < r.ndim[which]; d++)
            r.aligned = r.aligned && (r.sizes[which][d] == 1 || r.steps[which][d] % V == 0);
    r.even = r.aligned && r.sizes[read][0] % V == 0;
    int64_t length = r.sizes[1][0] ? r.sizes[1][0] : 1,
            all = beside ? r.count : r.count / length * r.pieces, blocks, group = 256;
    r.by_pieces = quotient(r.pieces ? r.pieces : 1, all + 2 * IN_FLIGHT * REDUCE_THREADS);
    int across = 1;
    if (beside) {
        int64_t pieces = r.results / r.sizes[0][0] * r.pieces;
        while (across < 32 && across < pieces)
            across *= 2;
        blocks = (pieces + across - 1) / across;
    } else {
        group = all <= 32 * IN_FLIGHT || r.results >= MANY ? 32 : REDUCE_THREADS;
        blocks = (r.results + REDUCE_THREADS / group - 1) / (REDUCE_THREADS / group);
    }
    /* shares that give every thread a few turns, until there is work for the whole device */
    int64_t least = IN_FLIGHT * (beside ? REDUCE_THREADS / across : group),
            shares = blocks < BUSY ? BUSY / blocks : 1;
    if (shares > all / least)
        shares = all / least > 0 ? all / least : 1;
    r.share = (all + shares - 1) / shares;
    ts_device where = ts_kernel_device(f);
    int64_t bytes = shares > 1 ? shares * r.results * (int64_t)sizeof(A) : 0;
    A *parts = nullptr;
    if (bytes && !(parts = (A *)ts_scratch_take(where, bytes)))
        return ts_error_code();
    ts_status status = on_device(f, [&](const call &c) {
        dim3 grid((unsigned)blocks, (unsigned)shares);
        A *to = parts ? parts : states;
        if (beside)
            reduce_beside_kernel<T, R, FOLD>
                <<<grid, REDUCE_THREADS, 0, c.stream>>>(r, fold, x, to, y, across);
        else if (group == 32)
            reduce_along_kernel<T, R, FOLD, 32>
                <<<grid, REDUCE_THREADS, 0, c.stream>>>(r, fold, x, to, y);
        else
            reduce_along_kernel<T, R, FOLD, REDUCE_THREADS>
                <<<grid, REDUCE_THREADS, 0, c.stream>>>(r, fold, x, to, y);
        if (parts && r.results < BUSY)
            merge_shares_kernel<R, FOLD, REDUCE_THREADS>
                <<<(unsigned)r.results, REDUCE_THREADS, 0, c.stream>>>(fold, parts, states, y,
                                                                       r.results, (int)shares);
        else if (parts)
            merge_shares_kernel<R, FOLD, 1>
                <<<(unsigned)((r.results + REDUCE_THREADS - 1) / REDUCE_THREADS), REDUCE_THREADS, 0,
                   c.stream>>>(fold, parts, states, y, r.results, (int)shares);
        return cudaPeekAtLastError();
    });
    if (parts)
        ts_scratch_give(where, parts, bytes);
    return status;
}

/** Reduces the first argument, of T, over the plan's dims into the first result, of R. */
template <class T, class R = T, class FOLD> ts_status reduce(ts_frame *f, const FOLD &fold)
{
    reduction r = reduction_of(f->args[0].t, ts_kernel_reduced(f));
    return reduce_into<T>(f, r, fold, data_of<T>(f->args[0]), nullptr, data_of<R>(f->rets[0]));
}

} // namespace ts

#endif
