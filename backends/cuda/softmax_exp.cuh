/** @file softmax_exp.cuh  Exponentials relative to a row's largest value m, for softmax,
 * log-sum-exp, losses and fused groups (fuse/group_rows.cuh). */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_SOFTMAX_EXP_CUH
#define TS_CUDA_SOFTMAX_EXP_CUH

#include "backends/cuda/types.cuh"

namespace ts {

template <class A> __device__ __forceinline__ A minus_infinity() { return -(A)INFINITY; }

/** Computes exp(x - m): a multiply-add and exp2_fast() if T is bf16 or f16, else exp(). */
template <class T> struct exp_from {
    using A = wide_t<T>;
    A base;
    __device__ __forceinline__ explicit exp_from(A m)
        : base(sizeof(T) == 2 ? -m * (A)1.4426950408889634 : m)
    {
    }
    __device__ __forceinline__ A operator()(A x) const
    {
        if constexpr (sizeof(T) == 2)
            return exp2_fast(fmaf(x, 1.4426950408889634f, base));
        else
            return exp(x - base);
    }
};

} // namespace ts

#endif
