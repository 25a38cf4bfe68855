/** @file pointwise.cu  Arithmetic of two and three operands, and bounds. */
// SPDX-License-Identifier: MIT
#include "backends/cuda/index.cuh"
#include "backends/cuda/loops.cuh"

using namespace ts;

/* ---------------------------------------------------------------------- two operands ---- */

/** Kernel `name`: expr of operands a and b, which are of the wide type A. */
#define BINARY(name, dtypes, expr)                                                                 \
    struct name##_fn {                                                                             \
        template <class A> __device__ __forceinline__ A operator()(A a, A b) const                 \
        {                                                                                          \
            return (A)(expr);                                                                      \
        }                                                                                          \
    };                                                                                             \
    static ts_status name(ts_frame *f)                                                             \
    {                                                                                              \
        return pointwise<dtypes, 2>(f, name##_fn{});                                               \
    }

template <class A> constexpr bool real = std::is_floating_point_v<A>;

template <class A> __device__ __forceinline__ A larger(A a, A b)
{
    if constexpr (real<A>)
        return a > b || a != a ? a : b; /* NaN wins */
    else
        return a > b ? a : b;
}
template <class A> __device__ __forceinline__ A smaller(A a, A b)
{
    if constexpr (real<A>)
        return a < b || a != a ? a : b;
    else
        return a < b ? a : b;
}

/** The remainder has the divisor's sign; an integer divided by 0 gives 0,
 * which by_integer reports. */
template <class A> __device__ __forceinline__ A remainder_of(A a, A b)
{
    if constexpr (real<A>) {
        A r = fmod(a, b);
        return r != 0 && (b < 0) != (r < 0) ? r + b : r;
    } else {
        A r = b == 0 || (std::is_signed_v<A> && b == (A)-1) ? 0 : a % b;
        return r != 0 && (r < 0) != (b < 0) ? r + b : r;
    }
}
template <class A> __device__ __forceinline__ A floor_of(A a, A b)
{
    if constexpr (real<A>) {
        if (b == 0)
            return a / b;
        A r = fmod(a, b), q = (a - r) / b;
        if (r != 0 && (b < 0) != (r < 0)) /* not b + r above: b may be infinite */
            q -= 1;
        return q == 0 ? copysign((A)0, a / b) : rint(q);
    } else {
        if (b == 0)
            return 0;
        if (std::is_signed_v<A> && b == (A)-1)
            return (A)(0 - (uint64_t)a);
        return a / b - (a % b != 0 && (a < 0) != (b < 0));
    }
}
template <class A> __device__ __forceinline__ A power_of(A a, A e)
{
    if constexpr (real<A>) {
        return pow(a, e);
    } else {
        if (e < 0)
            return a == 1 ? 1 : a == (A)-1 ? (e & 1 ? (A)-1 : (A)1) : 0;
        uint64_t result = 1, base = (uint64_t)a;
        for (uint64_t left = (uint64_t)e; left; left >>= 1, base *= base)
            if (left & 1)
                result *= base;
        return (A)result;
    }
}

/* by the larger one, whose square may overflow; ::hypot() of the largest double is infinite */
template <class A> __device__ __forceinline__ A length_of(A a, A b)
{
    A high = larger(fabs(a), fabs(b)), r = smaller(fabs(a), fabs(b)) / high;
    return isinf(a) || isinf(b) ? (A)INFINITY : high > 0 ? high * sqrt(1 + r * r) : high;
}

BINARY(add, everything, a + b)
BINARY(sub, numbers, a - b)
BINARY(mul, everything, a * b)
BINARY(div, floats, a / b)
BINARY(power, numbers, power_of(a, b))
BINARY(square, floats, ((void)b, a * a))
BINARY(cube, floats, ((void)b, a * a * a))
BINARY(root, floats, ((void)b, sqrt(a)))
BINARY(maximum, everything, larger(a, b))
BINARY(minimum, everything, smaller(a, b))
BINARY(atan2, floats, ::atan2(a, b))
BINARY(hypot, floats, length_of(a, b))

/** OP of any numbers; a divisor that is the integer 0 is reported. */
template <class OP> struct by_integer {
    reporter out;
    template <class A> __device__ __forceinline__ A operator()(A a, A b) const
    {
        if constexpr (!real<A>)
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
    template <class A> static __device__ __forceinline__ A of(A a, A b) { return floor_of(a, b); }
};
struct remainder_op {
    template <class A> static __device__ __forceinline__ A of(A a, A b)
    {
        return remainder_of(a, b);
    }
};
static ts_status floor_divide(ts_frame *f) { return divided<floor_divide_op>(f); }
static ts_status remainder(ts_frame *f) { return divided<remainder_op>(f); }

/** Exponents that have cheaper and more exact forms. */
static ts_status pow(ts_frame *f)
{
    const ts_value *e = &f->args[1];
    if (e->tag != TS_TAG_TENSOR && ts_dtype_is_float(ts_kernel_dtype(f))) {
        double x = number_of(e);
        if (x == 2)
            return square(f);
        if (x == 3)
            return cube(f);
        if (x == 0.5)
            return root(f);
    }
    return power(f);
}

/* -------------------------------------------------------------------- three operands ---- */

/* from the nearer end, so that weights 0 and 1 are exact */
template <class A> __device__ __forceinline__ A lerp_of(A a, A b, A w)
{
    return fabs(w) < (A)0.5 ? a + w * (b - a) : b - (b - a) * (1 - w);
}
struct lerp_each {
    template <class A> __device__ __forceinline__ A operator()(A a, A b, A w) const
    {
        return lerp_of(a, b, w);
    }
};
struct lerp_by {
    double weight;
    template <class A> __device__ __forceinline__ A operator()(A a, A b) const
    {
        return lerp_of(a, b, (A)weight);
    }
};
static ts_status lerp(ts_frame *f)
{
    return f->args[2].tag == TS_TAG_TENSOR
               ? pointwise<floats, 3>(f, lerp_each{})
               : pointwise<floats, 2>(f, lerp_by{number_of(&f->args[2])});
}

struct addcmul_of {
    double value;
    template <class A> __device__ __forceinline__ A operator()(A a, A b, A c) const
    {
        return a + (A)value * b * c;
    }
};
struct addcdiv_of {
    double value;
    template <class A> __device__ __forceinline__ A operator()(A a, A b, A c) const
    {
        return a + (A)value * b / c;
    }
};
static ts_status addcmul(ts_frame *f)
{
    return pointwise<floats, 3>(f, addcmul_of{number_of(&f->args[3])});
}
static ts_status addcdiv(ts_frame *f)
{
    return pointwise<floats, 3>(f, addcdiv_of{number_of(&f->args[3])});
}

/* --------------------------------------------------------------------------- bounds ---- */

/** A bound as an element of a floating dtype holds it. */
static double bound_in(ts_dtype dtype, const ts_value *v)
{
    double place;
    if (!ts_dtype_is_float(dtype))
        return number_of(v);
    ts_scalar_store(v, dtype, &place);
    ts_operand element = {};
    element.data = &place;
    element.dtype = dtype;
    return ts_operand_number(&element);
}

/** Bounds for floats and for integers; an absent one is the widest. */
struct bounds {
    double low, high;
    int64_t low_int, high_int;

    /** Those in arguments first and first + 1. */
    bounds(const ts_frame *f, int first)
        : low(-INFINITY), high(INFINITY), low_int(INT64_MIN), high_int(INT64_MAX)
    {
        const ts_value *least = &f->args[first], *most = least + 1;
        if (least->tag != TS_TAG_NONE) {
            low = bound_in(ts_kernel_dtype(f), least);
            ts_scalar_store(least, TS_I64, &low_int);
        }
        if (most->tag != TS_TAG_NONE) {
            high = bound_in(ts_kernel_dtype(f), most);
            ts_scalar_store(most, TS_I64, &high_int);
        }
    }
};

struct clamp_of {
    bounds b;
    template <class A> __device__ __forceinline__ A operator()(A x) const
    {
        if constexpr (real<A>)
            return x != x ? x : smaller(larger(x, (A)b.low), (A)b.high);
        int64_t m = (int64_t)x < b.low_int ? b.low_int : (int64_t)x;
        return (A)(m > b.high_int ? b.high_int : m);
    }
};
static ts_status clamp(ts_frame *f)
{
    return pointwise<numbers, 1>(f, clamp_of{bounds(f, 1)});
}

struct inside_of {
    bounds b;
    template <class A> __device__ __forceinline__ A operator()(A g, A x) const
    {
        return x >= (A)b.low && x <= (A)b.high ? g : (A)0;
    }
};
/** The first number inside of a bound that is outside itself, going to `to`. */
static double inner(const ts_frame *f, double bound, double to)
{
    if (bound == to)
        return NAN; /* nothing is inside */
    return ts_kernel_dtype(f) == TS_F64 ? nextafter(bound, to)
                                        : nextafterf((float)bound, (float)to);
}

static ts_status clamp_backward(ts_frame *f)
{
    inside_of fn = {bounds(f, 2)};
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
