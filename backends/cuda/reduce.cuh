/**
 * @file reduce.cuh  Reductions over any dims: kernels, and the host code that divides and launches
 * them (reduce(), reduce_into()).
 *
 * A fold (fold.cuh) is a functor with a type `state` and functions that return the initial state
 * (none()), add elements to a state (take()), merge two states (merge()), and return the result of
 * a state (finish()) or store it (give()).
 *
 * If the innermost dim in memory is reduced, a group of threads shares the elements of a result
 * (reduce_along_kernel()); otherwise adjacent threads own adjacent results, so that loads are
 * coalesced (reduce_beside_kernel()). If sizes, strides and addresses allow, a thread loads a piece
 * of up to 16 bytes at once. Long reductions to few results are split into shares, one per block,
 * and a second launch merges the states of the shares (merge_shares_kernel()). The order in which
 * elements are added depends on sizes and strides, not on addresses.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_REDUCE_CUH
#define TS_CUDA_REDUCE_CUH

#include <string.h>

#include "backends/cuda/runtime/early.cuh"
#include "backends/cuda/fold.cuh"
#include "backends/cuda/frame.cuh"
#include "backends/cuda/loops.cuh"

namespace ts {

/** Division n / by of numbers 0 <= n <= most, where by > 0 and most are known on the host. */
struct quotient {
    uint64_t magic;
    int shift;
    divisor fast;
    bool is_short;
    quotient() = default;
    quotient(int64_t by, int64_t most)
        : shift(0), fast(by < INT32_MAX ? (uint32_t)by : 1),
          is_short(most < INT32_MAX && by < INT32_MAX)
    {
        while ((int64_t)1 << shift < by)
            shift++;
        magic = (uint64_t)((((unsigned __int128)1 << 64) * (((uint64_t)1 << shift) - by)) / by + 1);
    }
    __device__ __forceinline__ int64_t of(int64_t n) const
    {
        return is_short ? (int64_t)fast.of((uint32_t)n)
                        : (int64_t)((__umul64hi((uint64_t)n, magic) + (uint64_t)n) >> shift);
    }
};

/** Sizes and strides, in elements, of the kept dims (index 0) and the reduced dims (index 1),
 * innermost first. */
struct reduction {
    int ndim[2];
    int64_t sizes[2][TS_MAX_DIMS], steps[2][TS_MAX_DIMS];
    int64_t results, count;       /* products of the sizes */
    bool scattered;               /* result i is not stored at element i, but by `outs` */
    int64_t outs[2][TS_MAX_DIMS]; /* strides of the kept dims in the call's up to two results */

    /* Set by reduce_into(). A thread loads pieces of piece_of<T> elements. In
     * reduce_beside_kernel() a unit is an element. In reduce_along_kernel() it is a piece if
     * `vector`, the pieces of a team's threads if `chunked`, else an element. */
    quotient by[2][TS_MAX_DIMS];
    bool vector, aligned; /* vector: pieces are contiguous, and runs consist of whole pieces;
                             aligned: a piece can be loaded at once */
    bool chunked;         /* `team` threads of a group load a unit at once, all of it from one run
                             of the innermost reduced dim */
    int team;             /* threads that load a unit together, if `chunked` */
    int group;            /* reduce_along_kernel: threads per result; reduce_beside_kernel and
                             merge_shares_kernel: threads of a block that have different results */
    int64_t share;        /* units of a result that a block reduces */
    int64_t run;          /* units in the innermost dim along which threads load */
    quotient by_run;

    /** Offset of element i of the kept (which = 0) or reduced (1) dims, without the dims before
     * `first`; along: strides of the dims. */
    __device__ __forceinline__ int64_t offset(int which, int first, int64_t i,
                                              const int64_t *along) const
    {
        int64_t at = 0;
#pragma unroll 1
        for (int d = first; d < ndim[which] - 1; d++) {
            int64_t q = by[which][d].of(i);
            at += (i - q * sizes[which][d]) * along[d];
            i = q;
        }
        return at + i * along[ndim[which] - 1];
    }
    /** Offset of result i in the call's result k. */
    __device__ __forceinline__ int64_t result_offset(int k, int64_t i) const
    {
        return scattered ? offset(0, 0, i, outs[k]) : i;
    }
};

/** The reduction of argument 0 over the dims in `mask` (bit d: dim d). ordered: reduced elements
 * keep their order; otherwise reduced dims are sorted by stride, with a stride of 0 outermost. Kept
 * dims are sorted by stride too, but a kept dim with stride 0 is not moved, and no dim moves past
 * it. Adjacent dims are merged where strides allow. */
inline reduction reduction_of(const ts_frame *f, int64_t mask, bool ordered = false)
{
    const ts_tensor *t = f->args[0].t;
    int ndim = ts_ndim(t), order[TS_MAX_DIMS], n = 0;
    auto rank = [&](int d) {
        int64_t step = ts_strides(t)[d];
        return step || !(mask >> d & 1) ? (uint64_t)(step < 0 ? -step : step) : UINT64_MAX;
    };
    for (int d = ndim - 1; d >= 0; d--) {
        if (ts_sizes(t)[d] == 1)
            continue;
        int at = n++;
        bool fixed = mask >> d & 1 ? ordered : !ts_strides(t)[d];
        for (; !fixed && at > 0 && rank(order[at - 1]) > rank(d); at--)
            order[at] = order[at - 1];
        order[at] = d;
    }
    reduction r = {};
    r.results = r.count = 1;
    for (int d = 0; d < ndim; d++)
        (mask >> d & 1 ? r.count : r.results) *= ts_sizes(t)[d];
    int64_t next = 1; /* stride of the next kept dim in a dense result */
    for (int i = 0; i < n; i++) {
        int d = order[i], which = mask >> d & 1, &k = r.ndim[which], behind = 0;
        int64_t size = ts_sizes(t)[d], step = ts_strides(t)[d], outs[2] = {};
        bool joins = k && step == r.steps[which][k - 1] * r.sizes[which][k - 1];
        for (int e = 0; e < d; e++)
            behind += mask >> e & 1;
        for (int o = 0; o < f->nrets && !which; o++) {
            if (f->rets[o].tag != TS_TAG_TENSOR)
                continue; /* not requested */
            const ts_tensor *y = f->rets[o].t;
            bool dropped = ts_ndim(y) == ndim - __builtin_popcountll(mask);
            outs[o] = ts_strides(y)[dropped ? d - behind : d - (ndim - ts_ndim(y))];
            joins = joins && outs[o] == r.outs[o][k - 1] * r.sizes[0][k - 1];
            r.scattered = r.scattered || outs[o] != next;
        }
        if (!which)
            next *= size;
        if (joins) {
            r.sizes[which][k - 1] *= size;
            continue;
        }
        r.sizes[which][k] = size;
        r.steps[which][k] = step;
        if (!which)
            for (int o = 0; o < 2; o++)
                r.outs[o][k] = outs[o];
        k++;
    }
    for (int which = 0; which < 2; which++)
        if (!r.ndim[which]) {
            r.sizes[which][0] = 1;
            r.ndim[which] = 1;
        }
    return r;
}

/* ------------------------------------------------------------------------------ elements ---- */

/** Loads the first n of V elements, `step` apart, into a word. Unpacking bf16 and f16 here would
 *  make each load wait for the previous one. `aligned`: loads V contiguous elements at once. */
template <class T, int V>
__device__ __forceinline__ word_of<vec<T, V>> load_piece(const T *from, int64_t step, bool aligned,
                                                         int n)
{
    if (aligned)
        return *reinterpret_cast<const word_of<vec<T, V>> *>(from);
    vec<T, V> x = {};
#pragma unroll
    for (int e = 0; e < V; e++)
        if (e < n)
            x.at[e] = from[e * step];
    return to_word(x);
}

/** Adds the elements of x to a state. A fold that needs positions gets `first` and `step`: element
 *  e is at position first + e * step of the reduced elements. */
template <class FOLD, class X, int N>
__device__ __forceinline__ void take(const FOLD &fold, typename FOLD::state &state, const X (&x)[N],
                                     int64_t first, int64_t step)
{
    if constexpr (requires { fold.take(state, x, first, step); })
        fold.take(state, x, first, step);
    else
        fold.take(state, x);
}

/** Stores the state of a result. If `parts` is not NULL, stores it there, for the block's share.
 *  Otherwise, if the fold has give(), calls it with the result's offsets in both results of the
 *  call; else stores finish(state), rounded to R, in y. */
template <class R, class FOLD, class A>
__device__ __forceinline__ void give(const reduction &r, const FOLD &fold, const A &state, A *parts,
                                     R *y, int64_t result)
{
    if (parts)
        parts[(int64_t)blockIdx.y * r.results + result] = state;
    else if constexpr (requires { fold.give(state, result, result); })
        fold.give(state, r.result_offset(0, result), r.result_offset(1, result));
    else
        y[r.result_offset(0, result)] = narrow<R>(fold.finish(state));
}

/* ------------------------------------------------------------------------------- kernels ---- */

/** r.group threads compute a result: 1 to 32, or the whole block. Elements are T, results R. */
template <class T, class R, class FOLD>
static __global__ void __launch_bounds__(REDUCE_THREADS)
    reduce_along_kernel(const __grid_constant__ reduction r, FOLD fold, const T *x,
                        typename FOLD::state *parts, R *y)
{
    using A = typename FOLD::state;
    constexpr int V = piece_of<T>, U = IN_FLIGHT;
    begin_next_kernel();
    int group = r.group, lane = threadIdx.x & (group - 1);
    int64_t result = ((int64_t)blockIdx.x * REDUCE_THREADS + threadIdx.x) / (unsigned)group;
    bool some = result < r.results;
    const T *from = x + (some ? r.offset(0, 0, result, r.steps[0]) : 0);
    int64_t unit = r.vector ? V : 1, length = r.sizes[1][0], step = r.steps[1][0],
            begin = (int64_t)blockIdx.y * r.share, end = begin + r.share,
            all = r.chunked ? r.count / length * r.run : r.count / unit;
    end = !some ? begin : end < all ? end : all;
    auto offset_of = [&](int64_t u) {
        if (r.ndim[1] == 1)
            return u * unit * step;
        int64_t q = r.by_run.of(u);
        return (u - q * r.run) * unit * step + r.offset(1, 1, q, r.steps[1]);
    };
    /* apart: elements from one element of a thread's piece to the next; 0 if the piece is one unit.
     * whole: units (`chunked`: elements) that the group or team loads at once. */
    int apart = r.vector ? 0 : r.chunked ? r.team : group, whole = r.vector ? group : apart * V;
    int64_t between = r.vector ? 1 : apart * step;
    A state = fold.none();
    int64_t p = begin + lane, last = (int64_t)apart * (V - 1);
    bool apiece = r.vector || r.ndim[1] == 1; /* one offset per piece, not per element */
    /* the first n elements of a piece */
    auto take_some = [&](const vec<T, V> &piece, int n, int64_t first) {
        unpacked<T, V> in(piece);
        if (n == V) {
            take(fold, state, in.at, first, r.vector ? 1 : apart);
            return;
        }
#pragma unroll
        for (int e = 0; e < V; e++)
            if (e < n) {
                wide_t<T> one[1] = {in.at[e]};
                take(fold, state, one, first + e * apart, 1);
            }
    };
    if (r.chunked) {
        int teams = group / (unsigned)apart, at_team = lane & (apart - 1);
        auto piece_at = [&](int64_t u, int64_t &first, int &n) {
            int64_t q = r.by_run.of(u), i = (u - q * r.run) * whole + at_team, left = length - i;
            n = last < left ? V : left > 0 ? (int)((left + apart - 1) / apart) : 0;
            first = q * length + i;
            return load_piece<T, V>(from + i * step + r.offset(1, 1, q, r.steps[1]), between, false,
                                    n);
        };
        for (p = begin + lane / (unsigned)apart; p < end; p += 2 * teams) {
            word_of<vec<T, V>> in[2];
            int64_t first[2];
            int n[2] = {0, 0};
            in[0] = piece_at(p, first[0], n[0]);
            if (p + teams < end)
                in[1] = piece_at(p + teams, first[1], n[1]);
#pragma unroll
            for (int u = 0; u < 2; u++)
                take_some(from_word<vec<T, V>>(in[u]), n[u], first[u]);
        }
    } else {
        for (; apiece && p + (U - 1) * whole + last < end; p += whole * U) {
            word_of<vec<T, V>> in[U];
#pragma unroll
            for (int u = 0; u < U; u++)
                in[u] = load_piece<T, V>(from + offset_of(p + u * whole), between, r.aligned, V);
#pragma unroll
            for (int u = 0; u < U; u++)
                take(fold, state, unpacked<T, V>(from_word<vec<T, V>>(in[u])).at,
                     (p + u * whole) * unit, r.vector ? 1 : apart);
        }
        for (; p < end; p += whole) {
            int n = p + last < end ? V : (int)((end - p + apart - 1) / apart);
            vec<T, V> piece;
            if (apiece)
                piece = from_word<vec<T, V>>(
                    load_piece<T, V>(from + offset_of(p), between, r.aligned, n));
            else
#pragma unroll
                for (int e = 0; e < V; e++)
                    piece.at[e] = e < n ? from[offset_of(p + e * apart)] : T();
            take_some(piece, n, p * unit);
        }
    }
    merge_lanes(fold, state, group);
    if (some && lane == 0)
        give(r, fold, state, parts, y, result);
}

/** A thread computes V results. r.group threads of a block have different results; the block's
 *  REDUCE_THREADS / r.group lines of threads share the elements of these results. */
template <class T, class R, class FOLD>
static __global__ void __launch_bounds__(REDUCE_THREADS)
    reduce_beside_kernel(const __grid_constant__ reduction r, FOLD fold, const T *x,
                         typename FOLD::state *parts, R *y)
{
    using A = typename FOLD::state;
    constexpr int V = piece_of<T>, U = IN_FLIGHT;
    begin_next_kernel();
    int across = r.group, lane = threadIdx.x & (across - 1),
        line = threadIdx.x / (unsigned)across, lines = REDUCE_THREADS / (unsigned)across;
    /* distance of a thread's results: adjacent if loads are vectors, else `across` apart */
    int apart = r.vector ? 1 : across;
    int64_t first_of_all = (int64_t)blockIdx.x * across * V,
            first = first_of_all + lane * (r.vector ? V : 1),
            begin = (int64_t)blockIdx.y * r.share,
            end = begin + r.share < r.count ? begin + r.share : r.count;
    A state[V];
    int64_t column[V];
#pragma unroll
    for (int e = 0; e < V; e++) {
        int64_t result = first + e * apart;
        state[e] = fold.none();
        column[e] = 0;
        if ((e == 0 || !r.vector) && result < r.results)
            column[e] = r.offset(0, 0, result, r.steps[0]);
    }
    if (first >= r.results)
        end = begin;
    auto load = [&](int64_t i) {
        const T *from = x + (r.ndim[1] > 1 ? r.offset(1, 0, i, r.steps[1]) : i * r.steps[1][0]);
        if (r.vector)
            return *reinterpret_cast<const word_of<vec<T, V>> *>(from + column[0]);
        vec<T, V> in;
#pragma unroll
        for (int e = 0; e < V; e++)
            in.at[e] = from[column[e]];
        return to_word(in);
    };
    int64_t i = begin + line;
    for (; i + (int64_t)lines * (U - 1) < end; i += (int64_t)lines * U) {
        word_of<vec<T, V>> in[U];
#pragma unroll
        for (int u = 0; u < U; u++)
            in[u] = load(i + (int64_t)lines * u);
#pragma unroll
        for (int e = 0; e < V; e++) {
            wide_t<T> of[U];
#pragma unroll
            for (int u = 0; u < U; u++)
                of[u] = widen(from_word<vec<T, V>>(in[u]).at[e]);
            take(fold, state[e], of, i, lines);
        }
    }
    for (; i < end; i += lines) {
        vec<T, V> in = from_word<vec<T, V>>(load(i));
#pragma unroll
        for (int e = 0; e < V; e++) {
            wide_t<T> one[1] = {widen(in.at[e])};
            take(fold, state[e], one, i, 1);
        }
    }
    merge_lines(fold, state, across, [&](int beside, int e, const A &sum) {
        int64_t result = first_of_all + beside * (r.vector ? V : 1) + e * apart;
        if (result < r.results)
            give(r, fold, sum, parts, y, result);
    });
}

/** Merges the states of the shares of each result; a block merges r.group adjacent results. */
template <class R, class FOLD>
static __global__ void __launch_bounds__(REDUCE_THREADS)
    merge_shares_kernel(const __grid_constant__ reduction r, FOLD fold,
                        const typename FOLD::state *parts, typename FOLD::state *states, R *y,
                        int shares)
{
    int across = r.group, line = threadIdx.x / (unsigned)across,
        lines = REDUCE_THREADS / (unsigned)across;
    int64_t result = (int64_t)blockIdx.x * across + (threadIdx.x & (across - 1));
    using A = typename FOLD::state;
    A state[1] = {fold.none()};
    wait_for_kernel_in_front();
    if (result < r.results)
#pragma unroll 4
        for (int s = line; s < shares; s += lines)
            state[0] = fold.merge(state[0], parts[s * r.results + result]);
    merge_lines(fold, state, across, [&](int beside, int, const A &sum) {
        int64_t to = (int64_t)blockIdx.x * across + beside;
        if (to < r.results)
            give(r, fold, sum, states, y, to);
    });
}

/* -------------------------------------------------------------------------------- launch ---- */

/** Thresholds of reduce_into(), for the 132 multiprocessors of an H100 or H200. They are constants,
 * so that the order of sums is the same on all devices. */
enum {
    BUSY = 1024,     /* blocks that keep a device busy: about 8 per multiprocessor */
    MANY = 2048,     /* results that keep a device busy with a warp for each */
    CROWD = 1 << 20, /* threads; with so many, half of them still keep a device busy */
    TURNS = 5,       /* iterations of a block that take as long as a second launch */
    LITTLE = 8 << 20 /* bytes that take about as long to read as a launch */
};

/** The least power of 2 that is not below n, but at most `most`, a power of 2. */
inline int power_for(int64_t n, int most)
{
    int p = 1;
    while (p < n && p < most)
        p *= 2;
    return p;
}

/** How reduce_into() divides a reduction among threads. */
struct reduction_plan {
    bool beside;            /* reduce_beside_kernel; false: reduce_along_kernel */
    int64_t blocks, shares; /* blocks for the results; blocks that share the elements of a result */
    int merges;             /* reduction.group for merge_shares_kernel */
};

/** Sets the fields of r that depend on the division, for pieces of V elements of `item` bytes.
 *  aligned: the address is a multiple of a piece; the order of sums does not depend on it. */
inline reduction_plan divide(reduction &r, int64_t V, int64_t item, bool aligned)
{
    reduction_plan plan = {};
    for (int which = 0; which < 2; which++)
        for (int d = 0; d < r.ndim[which]; d++)
            r.by[which][d] =
                quotient(r.sizes[which][d] ? r.sizes[which][d] : 1, which ? r.count : r.results);
    plan.beside = r.results > 1 && r.steps[0][0] && r.sizes[0][0] > 1 &&
                  (r.sizes[1][0] == 1 || r.steps[0][0] < r.steps[1][0] || !r.steps[1][0]);
    /* threads load along the innermost kept (0) or reduced (1) dim */
    int read = plan.beside ? 0 : 1;
    r.vector = r.steps[read][0] == 1 && r.sizes[read][0] % V == 0;
    for (int which = 0; which < 2; which++)
        for (int d = which == read; d < r.ndim[which]; d++)
            r.vector = r.vector && (r.sizes[which][d] == 1 || r.steps[which][d] % V == 0);
    r.aligned = r.vector && aligned;
    int64_t unit = r.vector ? V : 1, all = plan.beside ? r.count : r.count / unit, least;
    r.run = r.sizes[read][0] / unit;
    r.by_run = quotient(r.run ? r.run : 1, r.count);
    if (plan.beside) {
        /* If runs are short or results few, more threads share the elements of a result. But
         * neighbouring threads should load a whole cache line, or half of one if x is small. */
        int turns = power_for((r.count + IN_FLIGHT - 1) / IN_FLIGHT, REDUCE_THREADS),
            lines = r.run < 32 ? REDUCE_THREADS / power_for(r.run, 32) : 1,
            few = r.results * r.count * item < LITTLE ? 2 : 1,
            most = (r.vector ? 32 : 8) * few;
        while (lines < turns && lines < most &&
               r.results * lines < (int64_t)BUSY * REDUCE_THREADS * V)
            lines *= 2;
        r.vector = r.aligned; /* how columns are read does not change the order of sums */
        lines = lines < turns ? lines : turns;
        r.group = REDUCE_THREADS / lines;
        plan.blocks = (r.results + r.group * V - 1) / (r.group * V);
        least = IN_FLIGHT * lines;
    } else {
        int64_t pieces = r.vector ? all : (all + V - 1) / V;
        r.group = pieces <= 32 * IN_FLIGHT || r.results >= MANY ? power_for(pieces, 32)
                                                                : (int)REDUCE_THREADS;
        while (r.vector && r.group > 2 && r.group * IN_FLIGHT > pieces &&
               r.results * r.group >= CROWD) /* a thread loads several pieces at once */
            r.group /= 2;
        plan.blocks = (r.results * r.group + REDUCE_THREADS - 1) / REDUCE_THREADS;
        least = IN_FLIGHT * r.group * (V / unit);
        r.team = power_for((r.run + V - 1) / V, r.group);
        int64_t chunk = r.team * V;
        r.chunked = !r.vector && r.ndim[1] > 1 && r.run >= chunk / 2 && r.run >= 2 * V;
        if (r.chunked) {
            r.run = (r.run + chunk - 1) / chunk;
            r.by_run = quotient(r.run, r.count);
            all = r.count / r.sizes[1][0] * r.run;
            least = IN_FLIGHT * (r.group / r.team);
        }
    }
    /* shares that leave each thread a few iterations, up to enough blocks for the device */
    int64_t shares = plan.blocks < BUSY ? BUSY / plan.blocks : 1;
    if (shares > all / least)
        shares = all / least;
    if (all / least <= TURNS)
        shares = 1;
    r.share = (all + shares - 1) / shares;
    if (shares > 1) { /* shares are whole iterations of a block, except the last share */
        r.share = (r.share + least - 1) / least * least;
        shares = (all + r.share - 1) / r.share;
    }
    plan.shares = shares;
    int lines = REDUCE_THREADS / power_for(r.results, 8), /* 8 adjacent states fill a sector */
        turns = power_for((shares + 1) / 2, REDUCE_THREADS);
    plan.merges = REDUCE_THREADS / (lines < turns ? lines : turns);
    return plan;
}

/** Reduces x into y or, if `states` is not NULL, stores one state per result there, in the order of
 *  r's kept dims. Allocates scratch memory if the reduction is split. Errors: those of the
 *  allocation and of the launches. */
template <class T, class FOLD, class R>
ts_status reduce_into(ts_frame *f, reduction r, const FOLD &fold, const T *x,
                      typename FOLD::state *states, R *y)
{
    using A = typename FOLD::state;
    if (!r.results)
        return TS_OK;
    reduction_plan plan =
        divide(r, piece_of<T>, sizeof(T), (uintptr_t)x % (piece_of<T> * sizeof(T)) == 0);
    int64_t blocks = plan.blocks, shares = plan.shares;
    ts_device where = ts_kernel_device(f);
    int64_t bytes = shares > 1 ? shares * r.results * (int64_t)sizeof(A) : 0;
    A *parts = nullptr;
    if (bytes && !(parts = (A *)ts_scratch_take(where, bytes)))
        return ts_error_code();
    ts_status status = on_device(f, [&](const call &c) {
        ts_cuda_grid grid = {dim3((unsigned)blocks, (unsigned)shares), dim3(REDUCE_THREADS), 0, 1};
        A *to = parts ? parts : states;
        cudaError_t e =
            launch(plan.beside ? reduce_beside_kernel<T, R, FOLD> : reduce_along_kernel<T, R, FOLD>,
                   grid, c.stream, r, fold, x, to, y);
        if (!parts || e != cudaSuccess)
            return e;
        r.group = plan.merges;
        grid.blocks = dim3((unsigned)((r.results + r.group - 1) / r.group));
        auto merge = merge_shares_kernel<R, FOLD>;
        return c.device->clusters ? launch_early(merge, grid, c.stream, r, fold, (const A *)parts,
                                                 states, y, (int)shares)
                                  : launch(merge, grid, c.stream, r, fold, (const A *)parts, states,
                                           y, (int)shares);
    });
    if (parts)
        ts_scratch_give(where, parts, bytes);
    return status;
}

/** Reduces argument 0, of T, over the dims of the call (ts_kernel_reduced()) into result 0, of
 * R. */
template <class T, class R = T, class FOLD> ts_status reduce(ts_frame *f, const FOLD &fold)
{
    reduction r = reduction_of(f, ts_kernel_reduced(f));
    return reduce_into<T>(f, r, fold, data_of<T>(f->args[0]), nullptr, data_of<R>(f->rets[0]));
}

} // namespace ts

#endif
