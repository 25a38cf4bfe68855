/** @file compare.cu  Comparisons, truth values, and choices made by them. */
// SPDX-License-Identifier: MIT
#include "backends/cuda/loops.cuh"

using namespace ts;

/** Every dtype compares into bool. */
#define COMPARE(name, expr)                                                                        \
    struct name##_fn {                                                                             \
        template <class A> __device__ __forceinline__ bool operator()(A a, A b) const              \
        {                                                                                          \
            return expr;                                                                           \
        }                                                                                          \
    };                                                                                             \
    static ts_status name##_kernel(ts_frame *f)                                                    \
    {                                                                                              \
        return pointwise<everything, 2, bool>(f, name##_fn{});                                     \
    }
#define TEST(name, float_expr, int_expr)                                                           \
    struct name##_fn {                                                                             \
        template <class A> __device__ __forceinline__ bool operator()(A x) const                   \
        {                                                                                          \
            if constexpr (std::is_floating_point_v<A>)                                             \
                return float_expr;                                                                 \
            else                                                                                   \
                return int_expr;                                                                   \
        }                                                                                          \
    };                                                                                             \
    static ts_status name##_kernel(ts_frame *f)                                                    \
    {                                                                                              \
        return pointwise<everything, 1, bool>(f, name##_fn{});                                     \
    }
#define BITWISE(name, op)                                                                          \
    struct name##_fn {                                                                             \
        template <class A> __device__ __forceinline__ A operator()(A a, A b) const                 \
        {                                                                                          \
            return a op b;                                                                         \
        }                                                                                          \
    };                                                                                             \
    static ts_status name##_kernel(ts_frame *f)                                                    \
    {                                                                                              \
        return pointwise<integers | booleans, 2>(f, name##_fn{});                                  \
    }

COMPARE(eq, a == b)
COMPARE(ne, a != b)
COMPARE(lt, a < b)
COMPARE(le, a <= b)
COMPARE(gt, a > b)
COMPARE(ge, a >= b)
COMPARE(logical_and, (a != 0) & (b != 0))
COMPARE(logical_or, (a != 0) | (b != 0))
COMPARE(logical_xor, (a != 0) ^ (b != 0))
TEST(logical_not, x == 0, x == 0)
TEST(isnan, x != x, false)
TEST(isinf, x == (A)INFINITY || x == -(A)INFINITY, false)
TEST(isfinite, x > -(A)INFINITY && x < (A)INFINITY, true)
BITWISE(bitwise_and, &)
BITWISE(bitwise_or, |)
BITWISE(bitwise_xor, ^)

struct bitwise_not_of {
    template <class A> __device__ __forceinline__ A operator()(A x) const
    {
        if constexpr (std::is_same_v<A, bool>)
            return !x;
        else
            return (A)~x;
    }
};
static ts_status bitwise_not_kernel(ts_frame *f)
{
    return pointwise<integers | booleans, 1>(f, bitwise_not_of{});
}

/* Elements move unread, so a size is all there is to a dtype. */
struct choose {
    template <class A> __device__ __forceinline__ A operator()(bool c, A a, A b) const
    {
        return c ? a : b;
    }
};

/** Operands condition, a, b stand at these places of the space. */
static ts_status choose_from(ts_frame *f, int condition, int a, int b)
{
    ts_space space, order;
    TS_CUDA_TRY(ts_kernel_space(f, &space));
    order = space;
    order.operand[1] = space.operand[condition];
    order.operand[2] = space.operand[a];
    order.operand[3] = space.operand[b];
    switch (ts_dtype_size(ts_kernel_dtype(f))) {
    case 8: return loop_run<choose, int64_t, bool, int64_t, int64_t>(f, order, choose{});
    case 4: return loop_run<choose, int32_t, bool, int32_t, int32_t>(f, order, choose{});
    case 2: return loop_run<choose, int16_t, bool, int16_t, int16_t>(f, order, choose{});
    default: return loop_run<choose, int8_t, bool, int8_t, int8_t>(f, order, choose{});
    }
}
static ts_status where_kernel(ts_frame *f) { return choose_from(f, 1, 2, 3); }
static ts_status masked_fill_kernel(ts_frame *f) { return choose_from(f, 2, 3, 1); }

#define ROW(name, dtypes) {#name, name##_kernel, dtypes, true}
TS_CUDA_FAMILY(compare,
    ROW(eq, everything), ROW(ne, everything), ROW(lt, everything), ROW(le, everything),
    ROW(gt, everything),
    ROW(ge, everything), ROW(logical_and, everything), ROW(logical_or, everything),
    ROW(logical_xor, everything),
    ROW(logical_not, everything), ROW(bitwise_and, integers | booleans),
    ROW(bitwise_or, integers | booleans),
    ROW(bitwise_xor, integers | booleans), ROW(bitwise_not, integers | booleans),
    ROW(isnan, everything),
    ROW(isinf, everything), ROW(isfinite, everything), ROW(where, everything),
    ROW(masked_fill, everything))
