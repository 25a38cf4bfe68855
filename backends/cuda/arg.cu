/** @file arg.cu  argmax, argmin, max_dim and min_dim: reductions whose state is a value and its
 *  position. */
// SPDX-License-Identifier: MIT
#include <limits>

#include "backends/cuda/extremes.cuh"
#include "tessera/dispatch.h"
#include "tessera/ops.h"

using namespace ts;

/** The largest transformed element and its position: the first among equal elements; the first NaN
 * precedes all numbers. A state without a position means that all elements are the lowest number,
 * and the first is chosen. P: type of positions; 32-bit positions halve the registers of the eight
 * states that a thread has for bf16 and f16. */
template <class T, class P> struct position_fold {
    using A = ranked_t<T>;
    struct state {
        A value;
        P position;
    };
    static constexpr P nowhere = std::numeric_limits<P>::max();
    turning<A> turn;
    T *values;        /* NULL: not requested */
    int64_t *positions; /* NULL: not requested */
    bool with_values; /* the positions are the call's second result */

    __device__ __forceinline__ state none() const { return {lowest_of<A>(), nowhere}; }
    __device__ __forceinline__ state merge(const state &a, const state &b) const
    {
        bool a_nan = a.value != a.value, b_nan = b.value != b.value;
        bool alike = a_nan || b_nan ? a_nan && b_nan : a.value == b.value;
        bool first = alike ? a.position <= b.position : a_nan || (!b_nan && a.value > b.value);
        return first ? a : b;
    }
    /** Adds elements whose positions are greater than that of the state. */
    template <int N>
    __device__ __forceinline__ void take(state &s, const wide_t<T> (&x)[N], int64_t first,
                                         int64_t step) const
    {
        A best = s.value;
        int at = -1;
        bool nan = false;
#pragma unroll
        for (int e = 0; e < N; e++) {
            A z = turn((A)x[e]);
            bool larger = z > best;
            best = larger ? z : best;
            at = larger ? e : at;
            nan = nan || z != z;
        }
        if (nan && s.value == s.value) {
#pragma unroll
            for (int e = N - 1; e >= 0; e--) {
                A z = turn((A)x[e]);
                best = z != z ? z : best;
                at = z != z ? e : at;
            }
        }
        if (at >= 0)
            s = {best, (P)first + (P)at * (P)step};
    }
    /** Stores a result, at offset `first` of the call's first result and `second` of its second. */
    __device__ __forceinline__ void give(const state &s, int64_t first, int64_t second) const
    {
        if (values)
            values[first] = narrow<T>(turn(s.value));
        if (positions)
            positions[with_values ? second : first] =
                s.position == nowhere ? 0 : (int64_t)s.position;
    }
};

static ts_status run(ts_frame *f, bool smallest, const ts_value *values, const ts_value *positions)
{
    int ndim = ts_ndim(f->args[0].t);
    int64_t dim = f->args[1].i, all = ((int64_t)1 << ndim) - 1;
    bool whole = f->args[1].tag == TS_TAG_NONE;
    reduction r = reduction_of(f, whole ? all : (int64_t)1 << (dim < 0 ? dim + ndim : dim), true);
    if (r.ndim[1] > 1) { /* positions count in logical order: make it the order in memory */
        TS_SCOPE;
        ts_value args[TS_MAX_ARGS];
        memcpy(args, f->args, f->nargs * sizeof *args);
        if (!(args[0].t = ts_contiguous(args[0].t)))
            return ts_error_code();
        ts_frame moved = *f;
        moved.args = args;
        return run(&moved, smallest, values, positions);
    }
    return with_ordered(f, [&]<class T>() {
        auto reduce = [&]<class P>() {
            position_fold<T, P> fold = {turning<ranked_t<T>>(smallest),
                                     values ? data_of<T>(*values) : nullptr,
                                     data_of<int64_t>(*positions), values != nullptr};
            return reduce_into<T>(f, r, fold, data_of<T>(f->args[0]), nullptr, (T *)nullptr);
        };
        if constexpr (is_half<T>)
            if (r.count < UINT32_MAX)
                return reduce.template operator()<uint32_t>();
        return reduce.template operator()<int64_t>();
    });
}

static ts_status argmax(ts_frame *f) { return run(f, false, nullptr, &f->rets[0]); }
static ts_status argmin(ts_frame *f) { return run(f, true, nullptr, &f->rets[0]); }
static ts_status max_dim(ts_frame *f) { return run(f, false, &f->rets[0], &f->rets[1]); }
static ts_status min_dim(ts_frame *f) { return run(f, true, &f->rets[0], &f->rets[1]); }

TS_CUDA_FAMILY(arg,
    {"argmax", argmax, everything, true},
    {"argmin", argmin, everything, true},
    {"max_dim", max_dim, everything, true},
    {"min_dim", min_dim, everything, true},
)
