/** @file compare.cu  Comparisons, logical and bitwise ops, tests for NaN and Inf, and where. */
// SPDX-License-Identifier: MIT
#include "backends/cuda/compare_fn.cuh"
#include "backends/cuda/loops.cuh"

using namespace ts;

/** Defines the kernel of a comparison: operands of any dtype, a bool result. */
#define COMPARE(name)                                                                              \
    static ts_status name##_kernel(ts_frame *f)                                                    \
    {                                                                                              \
        return pointwise<everything, 2, bool>(f, fn::name##_fn{});                                 \
    }
/** A test of floating-point numbers. `whole`: its result for every integer, which is stored without
 * a read of the integers. */
template <class F> static ts_status test(ts_frame *f, bool whole)
{
    const ts_tensor *out = f->rets[0].t;
    bool real = floats & TS_DTYPE_BIT(ts_kernel_dtype(f));
    if (real || ts_cuda_describing() || !ts_is_contiguous(out) || !ts_numel(out))
        return pointwise<everything, 1, bool>(f, F{});
    return on_device(f, [&](const call &c) {
        return cudaMemsetAsync(ts_kernel_data(out), whole, (size_t)ts_numel(out), c.stream);
    });
}
#define TEST(name, whole)                                                                          \
    static ts_status name##_kernel(ts_frame *f) { return test<fn::name##_fn>(f, whole); }
#define BITWISE(name)                                                                              \
    static ts_status name##_kernel(ts_frame *f)                                                    \
    {                                                                                              \
        return pointwise<integers | booleans, 2>(f, fn::name##_fn{});                              \
    }

COMPARE(eq)
COMPARE(ne)
COMPARE(lt)
COMPARE(le)
COMPARE(gt)
COMPARE(ge)
COMPARE(logical_and)
COMPARE(logical_or)
COMPARE(logical_xor)
TEST(isnan, false)
TEST(isinf, false)
TEST(isfinite, true)
BITWISE(bitwise_and)
BITWISE(bitwise_or)
BITWISE(bitwise_xor)

static ts_status logical_not_kernel(ts_frame *f)
{
    return pointwise<everything, 1, bool>(f, fn::logical_not_fn{});
}
static ts_status bitwise_not_kernel(ts_frame *f)
{
    return pointwise<integers | booleans, 1>(f, fn::bitwise_not_fn{});
}

/** Selects a or b by the condition. Arguments: indices of the three operands in the space. */
static ts_status choose_from(ts_frame *f, int condition, int a, int b)
{
    ts_space space, order;
    TS_CUDA_TRY(ts_kernel_space(f, &space));
    order = space;
    order.operand[1] = space.operand[condition];
    order.operand[2] = space.operand[a];
    order.operand[3] = space.operand[b];
    using fn::choose_fn;
    switch (ts_dtype_size(ts_kernel_dtype(f))) {
    case 8: return loop_run<choose_fn, int64_t, bool, int64_t, int64_t>(f, order, choose_fn{});
    case 4: return loop_run<choose_fn, int32_t, bool, int32_t, int32_t>(f, order, choose_fn{});
    case 2: return loop_run<choose_fn, int16_t, bool, int16_t, int16_t>(f, order, choose_fn{});
    default: return loop_run<choose_fn, int8_t, bool, int8_t, int8_t>(f, order, choose_fn{});
    }
}
static ts_status where_kernel(ts_frame *f) { return choose_from(f, 1, 2, 3); }
static ts_status masked_fill_kernel(ts_frame *f) { return choose_from(f, 2, 3, 1); }

#define ROW(name, dtypes) {#name, name##_kernel, dtypes, true, true}
TS_CUDA_FAMILY(compare,
    ROW(eq, everything), ROW(ne, everything), ROW(lt, everything), ROW(le, everything),
    ROW(gt, everything),
    ROW(ge, everything), ROW(logical_and, everything), ROW(logical_or, everything),
    ROW(logical_xor, everything),
    ROW(logical_not, everything), ROW(bitwise_and, integers | booleans),
    ROW(bitwise_or, integers | booleans),
    ROW(bitwise_xor, integers | booleans), ROW(bitwise_not, integers | booleans),
    ROW(isnan, everything),
    ROW(isinf, everything), ROW(isfinite, everything), {"where", where_kernel, everything, true},
    {"masked_fill", masked_fill_kernel, everything, true})
