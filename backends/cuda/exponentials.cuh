/** @file exponentials.cuh  Log-sum-exp of elements, as a fold of reduce.cuh, for the op logsumexp
 * (reduce_moments.cu) and for losses over classes (loss.cu). */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_EXPONENTIALS_CUH
#define TS_CUDA_EXPONENTIALS_CUH

#include "backends/cuda/reduce.cuh"
#include "backends/cuda/rows.cuh"
#include "backends/cuda/softmax_exp.cuh"

namespace ts {

/** State of elements x: the largest (top), the sum of exp(x - base(top)) (sum), and the sum of x
 * (total), which losses with label smoothing use. */
template <class X> struct exponentials {
    X top, sum, total;
};
/** The fold (fold.cuh) that computes the log-sum-exp of elements of T. */
template <class T> struct exponentials_fold {
    using X = wide_t<T>;
    using state = exponentials<X>;

    /** Number to subtract from exponents: `top`, or 0 if `top` is infinite or NaN, since Inf - Inf
     * is NaN. */
    static __device__ __forceinline__ X base(X top) { return top - top == 0 ? top : (X)0; }
    /** Rescales s.sum, a sum of exp(x - base(s.top)), to the sum of exp(x - to). */
    static __device__ __forceinline__ X moved(const state &s, X to)
    {
        return s.sum == 0 ? (X)0 : s.sum * exp_from<T>(to)(base(s.top));
    }
    __device__ __forceinline__ state none() const { return {-(X)INFINITY, 0, 0}; }
    __device__ __forceinline__ state merge(const state &a, const state &b) const
    {
        X top = op_max::of(a.top, b.top), to = base(top);
        return {top, moved(a, to) + moved(b, to), a.total + b.total};
    }
    template <int N> __device__ __forceinline__ void take(state &s, const X (&x)[N]) const
    {
        X top = s.top;
#pragma unroll
        for (int e = 0; e < N; e++)
            top = op_max::of(top, x[e]);
        X to = base(top);
        exp_from<T> above(to);
        if (top > s.top) {
            s.sum = moved(s, to);
            s.top = top;
        }
#pragma unroll
        for (int e = 0; e < N; e++) {
            s.sum += above(x[e]);
            s.total += x[e];
        }
    }
    __device__ __forceinline__ X finish(const state &s) const { return log(s.sum) + base(s.top); }
};

/** Reduces x as r describes and stores the state of result i, counted in the order of r's kept
 * dims, in states[i]. Errors: those of reduce_into(). Defined in reduce_moments.cu for T double,
 * float, bf16 and f16. */
template <class T>
ts_status exponentials_into(ts_frame *f, const reduction &r, const T *x,
                            exponentials<wide_t<T>> *states);

} // namespace ts

#endif
