/** @file compare_fn.cuh  Elementwise functors for eager kernels (compare.cu) and fused groups:
 * comparisons, logical and bitwise operations, tests for NaN and Inf, selection by a condition. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_COMPARE_FN_CUH
#define TS_CUDA_COMPARE_FN_CUH

#include "backends/cuda/apply.cuh"

namespace ts::fn {

/** Each macro defines the functor name##_fn of elements of the wide type A. TS_COMPARE: a bool from
 * a and b. TS_TEST_OF: a bool from x, by one expression for floats and another for other types.
 * TS_BITWISE: a op b. */
#define TS_COMPARE(name, expr)                                                                     \
    struct name##_fn {                                                                             \
        template <class A> __device__ __forceinline__ bool operator()(A a, A b) const              \
        {                                                                                          \
            return expr;                                                                           \
        }                                                                                          \
    };
#define TS_TEST_OF(name, float_expr, int_expr)                                                     \
    struct name##_fn {                                                                             \
        template <class A> __device__ __forceinline__ bool operator()(A x) const                   \
        {                                                                                          \
            if constexpr (real<A>)                                                                 \
                return float_expr;                                                                 \
            else                                                                                   \
                return int_expr;                                                                   \
        }                                                                                          \
    };
#define TS_BITWISE(name, op)                                                                       \
    struct name##_fn {                                                                             \
        template <class A> __device__ __forceinline__ A operator()(A a, A b) const                 \
        {                                                                                          \
            return a op b;                                                                         \
        }                                                                                          \
    };

TS_COMPARE(eq, a == b)
TS_COMPARE(ne, a != b)
TS_COMPARE(lt, a < b)
TS_COMPARE(le, a <= b)
TS_COMPARE(gt, a > b)
TS_COMPARE(ge, a >= b)
TS_COMPARE(logical_and, (a != 0) & (b != 0))
TS_COMPARE(logical_or, (a != 0) | (b != 0))
TS_COMPARE(logical_xor, (a != 0) ^ (b != 0))
TS_TEST_OF(logical_not, x == 0, x == 0)
TS_TEST_OF(isnan, x != x, false)
TS_TEST_OF(isinf, x == (A)INFINITY || x == -(A)INFINITY, false)
TS_TEST_OF(isfinite, x > -(A)INFINITY && x < (A)INFINITY, true)
TS_BITWISE(bitwise_and, &)
TS_BITWISE(bitwise_or, |)
TS_BITWISE(bitwise_xor, ^)

#undef TS_COMPARE
#undef TS_TEST_OF
#undef TS_BITWISE

/** ~x; for bool the logical negation. */
struct bitwise_not_fn {
    template <class A> __device__ __forceinline__ A operator()(A x) const
    {
        if constexpr (std::is_same_v<A, bool>)
            return !x;
        else
            return (A)~x;
    }
};

/** Returns a where c is true, else b. Elements are copied as bits, so A is any type of the dtype's
 * size. */
struct choose_fn {
    template <class A> __device__ __forceinline__ A operator()(bool c, A a, A b) const
    {
        return c ? a : b;
    }
};

} // namespace ts::fn

#endif
