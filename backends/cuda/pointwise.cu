/** @file pointwise.cu  Arithmetic of two and three operands, and bounds. */
// SPDX-License-Identifier: MIT
#include "backends/cuda/index.cuh"
#include "backends/cuda/loops.cuh"
#include "backends/cuda/pointwise_fn.cuh"

using namespace ts;

/* ---------------------------------------------------------------------- two operands ---- */

#define BINARY(name, dtypes)                                                                       \
    static ts_status name(ts_frame *f)                                                             \
    {                                                                                              \
        return pointwise<dtypes, 2>(f, fn::name##_fn{});                                           \
    }
BINARY(add, everything)
BINARY(sub, numbers)
BINARY(mul, everything)
BINARY(div, floats)
BINARY(power, numbers)
BINARY(power_square, floats)
BINARY(power_cube, floats)
BINARY(power_root, floats)
BINARY(maximum, everything)
BINARY(minimum, everything)
BINARY(atan2, floats)
BINARY(hypot, floats)

/** Applies OP and reports an integer divisor of 0 (runtime/runtime.h). */
template <class OP> struct by_integer {
    reporter out;
    template <class A> __device__ __forceinline__ A operator()(A a, A b) const
    {
        if constexpr (!fn::real<A>)
            if (b == 0)
                out.wrong_number(0, -1);
        return OP::of(a, b);
    }
};
template <class OP> static ts_status divided(ts_frame *f)
{
    ts_cuda_device *device = ts_cuda_use(ts_kernel_device(f).index);
    return device ? pointwise<numbers, 2>(
                        f, by_integer<OP>{reporter(f, 1, "integers other than 0", device)})
                  : ts_error_code();
}
struct floor_divide_op {
    template <class A> static __device__ __forceinline__ A of(A a, A b)
    {
        return fn::floor_of(a, b);
    }
};
struct remainder_op {
    template <class A> static __device__ __forceinline__ A of(A a, A b)
    {
        return fn::remainder_of(a, b);
    }
};
static ts_status floor_divide(ts_frame *f) { return divided<floor_divide_op>(f); }
static ts_status remainder(ts_frame *f) { return divided<remainder_op>(f); }

/** Uses cheaper and more accurate functors for exponents 2, 3 and 0.5. */
static ts_status pow(ts_frame *f)
{
    const ts_value *e = &f->args[1];
    if (e->tag != TS_TAG_TENSOR && ts_dtype_is_float(ts_kernel_dtype(f))) {
        double x = number_of(e);
        if (x == 2)
            return power_square(f);
        if (x == 3)
            return power_cube(f);
        if (x == 0.5)
            return power_root(f);
    }
    return power(f);
}

/* -------------------------------------------------------------------- three operands ---- */

static ts_status lerp(ts_frame *f)
{
    return f->args[2].tag == TS_TAG_TENSOR
               ? pointwise<floats, 3>(f, fn::lerp_each_fn{})
               : pointwise<floats, 2>(f, fn::lerp_by_fn{number_of(&f->args[2])});
}

static ts_status addcmul(ts_frame *f)
{
    return pointwise<floats, 3>(f, fn::addcmul_fn{number_of(&f->args[3])});
}
static ts_status addcdiv(ts_frame *f)
{
    return pointwise<floats, 3>(f, fn::addcdiv_fn{number_of(&f->args[3])});
}

/* --------------------------------------------------------------------------- bounds ---- */

/** A bound rounded to a floating dtype. */
static double bound_in(ts_dtype dtype, const ts_value *v)
{
    double bits;
    if (!ts_dtype_is_float(dtype))
        return number_of(v);
    ts_scalar_store(v, dtype, &bits);
    ts_operand element = {};
    element.data = &bits;
    element.dtype = dtype;
    element.host = true;
    return ts_operand_number(&element);
}

/** The bounds in arguments first and first + 1. */
static fn::bounds bounds_of(const ts_frame *f, int first)
{
    fn::bounds b = {-INFINITY, INFINITY, INT64_MIN, INT64_MAX};
    const ts_value *least = &f->args[first], *most = least + 1;
    if (least->tag != TS_TAG_NONE) {
        b.low = bound_in(ts_kernel_dtype(f), least);
        ts_scalar_store(least, TS_I64, &b.low_int);
    }
    if (most->tag != TS_TAG_NONE) {
        b.high = bound_in(ts_kernel_dtype(f), most);
        ts_scalar_store(most, TS_I64, &b.high_int);
    }
    return b;
}

static ts_status clamp(ts_frame *f)
{
    return pointwise<numbers, 1>(f, fn::clamp_fn{bounds_of(f, 1)});
}

/** The number next to an excluded bound in the direction of `to`; NaN if there is none. */
static double inner(const ts_frame *f, double bound, double to)
{
    if (bound == to)
        return NAN; /* no number is inside */
    return ts_kernel_dtype(f) == TS_F64 ? nextafter(bound, to)
                                        : nextafterf((float)bound, (float)to);
}

static ts_status clamp_backward(ts_frame *f)
{
    fn::inside_fn fn = {bounds_of(f, 2)};
    if (f->args[4].i && f->args[2].tag != TS_TAG_NONE)
        fn.b.low = inner(f, fn.b.low, INFINITY);
    if (f->args[4].i && f->args[3].tag != TS_TAG_NONE)
        fn.b.high = inner(f, fn.b.high, -INFINITY);
    return pointwise<floats, 2>(f, fn);
}

TS_CUDA_FAMILY(pointwise,
    {"add", add, everything, true, true},
    {"sub", sub, numbers, true, true},
    {"mul", mul, everything, true, true},
    {"div", div, floats, true, true},
    {"floor_divide", floor_divide, numbers, true, true},
    {"remainder", remainder, numbers, true, true},
    {"pow", pow, numbers, true, true},
    {"maximum", maximum, everything, true, true},
    {"minimum", minimum, everything, true, true},
    {"atan2", atan2, floats, true, true},
    {"hypot", hypot, floats, true, true},
    {"lerp", lerp, floats, true, true},
    {"addcmul", addcmul, floats, true, true},
    {"addcdiv", addcdiv, floats, true, true},
    {"clamp", clamp, numbers, true, true},
    {"hardtanh", clamp, numbers, true, true},
    {"clamp_backward", clamp_backward, floats, true, true},
)
