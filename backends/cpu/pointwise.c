/** @file pointwise.c  Pointwise arithmetic of two and three operands, minimum, maximum and
 * clamp. */
// SPDX-License-Identifier: MIT
#include "backends/cpu/copy.h"
#include "backends/cpu/loops.h"
#include "backends/cpu/vmath.h"
#include "ops/kernel.h"

/* Loops over vectors of floats and over single integers; a and b are the operands. Sums,
 * differences and products of integers are computed as unsigned, so that they wrap. */
#define FLOATS(name, expr)       \
    TS_LOOP2(vf, name##_f32, expr) \
    TS_LOOP2(vd, name##_f64, expr)
#define SCALAR_FLOATS(name, f32_expr, f64_expr)            \
    TS_SCALAR_LOOP2(float, float, name##_f32, f32_expr)    \
    TS_SCALAR_LOOP2(double, double, name##_f64, f64_expr)
#define INTS(name, i64_expr, i32_expr, u8_expr)             \
    TS_SCALAR_LOOP2(int64_t, int64_t, name##_i64, i64_expr) \
    TS_SCALAR_LOOP2(int32_t, int32_t, name##_i32, i32_expr) \
    TS_SCALAR_LOOP2(uint8_t, uint8_t, name##_u8, u8_expr)
#define WRAPPING(name, op) \
    INTS(name, (int64_t)((uint64_t)a op (uint64_t)b), (int32_t)((uint32_t)a op (uint32_t)b),       \
         (uint8_t)(a op b))
#define BOOLS(name, expr) TS_SCALAR_LOOP2(uint8_t, uint8_t, name##_bool, expr)

#define FLOAT_LOOPS(name) [TS_F32] = name##_f32, [TS_F64] = name##_f64
#define REAL_LOOPS(name) FLOAT_LOOPS(name), [TS_BF16] = name##_bf16, [TS_F16] = name##_f16
#define INT_LOOPS(name) [TS_I64] = name##_i64, [TS_I32] = name##_i32, [TS_U8] = name##_u8
#define KERNEL(name, cost, ...)                                          \
    static ts_status name##_kernel(ts_frame *f)                          \
    {                                                                    \
        static const ts_loop loops[TS_DTYPE_COUNT] = {__VA_ARGS__};      \
        return ts_cpu_pointwise(f, loops, NULL, cost);                   \
    }

/* -------------------------------------------------------------------------- + - * / ------ */

FLOATS(add, a + b)
TS_HALF_LOOPS(2, add)
WRAPPING(add, +)
BOOLS(add, (a | b) != 0)
KERNEL(add, 2, REAL_LOOPS(add), INT_LOOPS(add), [TS_BOOL] = add_bool)

FLOATS(sub, a - b)
TS_HALF_LOOPS(2, sub)
WRAPPING(sub, -)
KERNEL(sub, 2, REAL_LOOPS(sub), INT_LOOPS(sub))

FLOATS(mul, a * b)
TS_HALF_LOOPS(2, mul)
WRAPPING(mul, *)
BOOLS(mul, (a & b) != 0)
KERNEL(mul, 2, REAL_LOOPS(mul), INT_LOOPS(mul), [TS_BOOL] = mul_bool)

FLOATS(div, a / b)
TS_HALF_LOOPS(2, div)
KERNEL(div, 2, REAL_LOOPS(div))

/* ----------------------------------------------------- division with the divisor's sign ---- */

/*
 * a - trunc(a / b) b is exact in one fused multiply-add if the quotient is below EXACT: the rounded
 * quotient is then the right integer or the next larger one, which the sign of the remainder shows.
 * Lanes with larger quotients, and all lanes without FMA, call the C library.
 */
#if VEC_ISA == VEC_IS_baseline && !defined __FP_FAST_FMA
#define FUSES 0
#else
#define FUSES 1
#endif
#define DEFINE_FLOORED(T, p, m, LANES, FN, EXACT)                                                \
    /* true where exactly one of a and b is below 0 */                                           \
    VEC_FN m p##_opposite(p a, p b)                                                              \
    {                                                                                            \
        return m##_xor(p##_lt(a, p##_set1(0)), p##_lt(b, p##_set1(0)));                          \
    }                                                                                            \
    VEC_FN p p##_fmod(p a, p b)                                                                  \
    {                                                                                            \
        p zero = p##_set1(0), q = p##_trunc(a / b), r = p##_fma(p##_neg(q), b, a);               \
        r = p##_select(p##_eq(q, zero), a, r);                                                   \
        m above = m##_and(p##_ne(r, zero), p##_opposite(r, a)),                                  \
          far = m##_and(m##_and(p##_ge(p##_abs(q), p##_set1(EXACT)), p##_ne(b, zero)),           \
                        p##_lt(p##_abs(a), p##_set1((T)INFINITY)));                              \
        r = p##_copysign(p##_select(above, r + p##_copysign(b, a), r), a);                       \
        if (!FUSES || m##_any(far))                                                              \
            for (int i = 0; i < LANES; i++)                                                      \
                if (!FUSES || m##_bits(far) >> i & 1)                                            \
                    r[i] = fmod##FN(a[i], b[i]);                                                 \
        return r;                                                                                \
    }                                                                                            \
    VEC_FN p p##_remainder(p a, p b)                                                             \
    {                                                                                            \
        p r = p##_fmod(a, b);                                                                    \
        m adjust = m##_and(p##_ne(r, p##_set1(0)), p##_opposite(r, b));                          \
        return p##_select(adjust, r + b, r);                                                     \
    }                                                                                            \
    VEC_FN p p##_floor_divide(p a, p b)                                                          \
    {                                                                                            \
        p zero = p##_set1(0), r = p##_fmod(a, b), plain = a / b,                                 \
          q = (a - r) / b; /* an integer up to rounding */                                       \
        m adjust = m##_and(p##_ne(r, zero), p##_opposite(r, b));                                 \
        /* not by r + b as in remainder(): b may be infinite */                                  \
        q = p##_select(adjust, q - p##_set1(1), q);                                              \
        q = p##_select(p##_eq(q, zero), p##_copysign(zero, plain), p##_rint(q));                 \
        return p##_select(p##_eq(b, zero), plain, q);                                            \
    }
DEFINE_FLOORED(float, vf, vm, VF_LANES, f, 0x1p23f)
DEFINE_FLOORED(double, vd, vdm, VD_LANES, , 0x1p52)

/* b is not 0 here. b == -1 is handled separately because INT64_MIN / -1 overflows. */
static inline int64_t floor_of_int(int64_t a, int64_t b)
{
    if (b == -1)
        return (int64_t)-(uint64_t)a;
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}
static inline int64_t remainder_of_int(int64_t a, int64_t b)
{
    int64_t r = b == -1 ? 0 : a % b;
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

TS_LOOP2(vf, floor_divide_f32, vf_floor_divide(a, b))
TS_LOOP2(vd, floor_divide_f64, vd_floor_divide(a, b))
INTS(floor_divide, floor_of_int(a, b), (int32_t)floor_of_int(a, b), a / b)
TS_LOOP2(vf, remainder_f32, vf_remainder(a, b))
TS_LOOP2(vd, remainder_f64, vd_remainder(a, b))
INTS(remainder, remainder_of_int(a, b), (int32_t)remainder_of_int(a, b), a % b)

/** Sets **params, where *params is a pointer to bool, if any divisor is 0. */
#define FIND_ZERO(T, name)                                                                  \
    static void name(char *const *d, const int64_t *s, int64_t n, const void *params)       \
    {                                                                                       \
        bool *found = *(bool *const *)params;                                               \
        for (int64_t i = 0; i < n; i++)                                                     \
            *found |= *(const T *)(d[2] + i * s[2]) == 0;                                   \
    }
FIND_ZERO(int64_t, zero_i64)
FIND_ZERO(int32_t, zero_i32)
FIND_ZERO(uint8_t, zero_u8)

/** Runs a division; TS_ERR_VALUE if an integer divisor is 0. */
static ts_status divide(ts_frame *f, const ts_loop *loops)
{
    static const ts_loop find[TS_DTYPE_COUNT] = {
        [TS_I64] = zero_i64, [TS_I32] = zero_i32, [TS_U8] = zero_u8};
    ts_loop check = find[f->plan->compute];
    bool zero = false, *found = &zero;
    if (check)
        ts_cpu_run_serial(&f->plan->iter, check, &found);
    if (zero) {
        ts_wrote_nothing(f);
        return ts_fail_arg(f, 1, TS_ERR_VALUE, "expected integers other than 0, got a 0");
    }
    return ts_cpu_pointwise(f, loops, NULL, 30);
}
static ts_status floor_divide_kernel(ts_frame *f)
{
    static const ts_loop loops[TS_DTYPE_COUNT] = {FLOAT_LOOPS(floor_divide),
                                                  INT_LOOPS(floor_divide)};
    return divide(f, loops);
}
static ts_status remainder_kernel(ts_frame *f)
{
    static const ts_loop loops[TS_DTYPE_COUNT] = {FLOAT_LOOPS(remainder), INT_LOOPS(remainder)};
    return divide(f, loops);
}

/* ------------------------------------------------------------------------------ powers ---- */

/** a^e by squaring, wrapping; for e < 0 the truncated inverse. */
static int64_t power_of_int(int64_t a, int64_t e)
{
    if (e < 0)
        return a == 1 ? 1 : a == -1 ? (e & 1 ? -1 : 1) : 0;
    uint64_t result = 1, base = (uint64_t)a;
    for (; e; e >>= 1, base *= base)
        if (e & 1)
            result *= base;
    return (int64_t)result;
}
/** The same for u8, in a fixed number of steps, so that compilers use vectors. */
static inline uint8_t power_of_u8(uint8_t a, uint8_t e)
{
    uint8_t result = 1;
    for (int k = 0; k < 8; k++) {
        result = (uint8_t)(e >> k & 1 ? result * a : result);
        a = (uint8_t)(a * a);
    }
    return result;
}
/* not inlined, because the code is large */
static __attribute__((noinline)) vf power_of_f32(vf a, vf b) { return vf_pow(a, b); }
static __attribute__((noinline)) vd power_of_f64(vd a, vd b) { return vd_pow(a, b); }

TS_LOOP2(vf, pow_f32, power_of_f32(a, b))
TS_LOOP2(vd, pow_f64, power_of_f64(a, b))
INTS(pow, power_of_int(a, b), (int32_t)power_of_int(a, b), power_of_u8(a, b))

/* exponents that have cheaper and more exact forms */
TS_LOOP2(vf, one_f32, ((void)a, (void)b, vf_set1(1)))
TS_LOOP2(vd, one_f64, ((void)a, (void)b, vd_set1(1)))
FLOATS(same, ((void)b, a))
FLOATS(pow2, ((void)b, a * a))
FLOATS(pow3, ((void)b, a * a * a))
TS_LOOP2(vf, root_f32, ((void)b, vf_sqrt(a)))
TS_LOOP2(vd, root_f64, ((void)b, vd_sqrt(a)))
TS_LOOP2(vf, inverse_root_f32, ((void)b, 1.0f / vf_sqrt(a)))
TS_LOOP2(vd, inverse_root_f64, ((void)b, 1.0 / vd_sqrt(a)))
TS_LOOP2(vf, inverse_f32, ((void)b, 1.0f / a))
TS_LOOP2(vd, inverse_f64, ((void)b, 1.0 / a))

static ts_status pow_kernel(ts_frame *f)
{
    static const ts_loop loops[TS_DTYPE_COUNT] = {FLOAT_LOOPS(pow), INT_LOOPS(pow)};
    static const struct {
        double exponent;
        ts_loop loops[TS_DTYPE_COUNT];
    } special[] = {
        {0, {FLOAT_LOOPS(one)}},      {1, {FLOAT_LOOPS(same)}},
        {2, {FLOAT_LOOPS(pow2)}},     {3, {FLOAT_LOOPS(pow3)}},
        {0.5, {FLOAT_LOOPS(root)}},   {-1, {FLOAT_LOOPS(inverse)}},
        {-0.5, {FLOAT_LOOPS(inverse_root)}},
    };
    if (f->args[1].tag == TS_TAG_TENSOR || !ts_dtype_is_float(f->plan->compute))
        return ts_cpu_pointwise(f, loops, NULL, 15);
    double exponent = ts_value_number(&f->args[1]);
    const ts_tensor *self = f->args[0].t, *out = f->rets[0].t;
    if (exponent == 1 && self->dtype == out->dtype) {
        if (out->data != self->data)
            ts_cpu_copy_to(out, self);
        return TS_OK;
    }
    for (int i = 0; i < TS_COUNTOF(special); i++)
        if (exponent == special[i].exponent)
            return ts_cpu_pointwise(f, special[i].loops, NULL, 2);
    return ts_cpu_pointwise(f, loops, NULL, 15);
}

/* ------------------------------------------------------------------- choice and angle ---- */

TS_LOOP2(vf, maximum_f32, vf_max(a, b))
TS_HALF_LOOPS(2, maximum)
TS_LOOP2(vd, maximum_f64, vd_max(a, b))
INTS(maximum, a > b ? a : b, a > b ? a : b, a > b ? a : b)
KERNEL(maximum, 2, REAL_LOOPS(maximum), INT_LOOPS(maximum), [TS_BOOL] = maximum_u8)

TS_LOOP2(vf, minimum_f32, vf_min(a, b))
TS_HALF_LOOPS(2, minimum)
TS_LOOP2(vd, minimum_f64, vd_min(a, b))
INTS(minimum, a < b ? a : b, a < b ? a : b, a < b ? a : b)
KERNEL(minimum, 2, REAL_LOOPS(minimum), INT_LOOPS(minimum), [TS_BOOL] = minimum_u8)

TS_LOOP2(vf, atan2_f32, vf_atan2(a, b))
TS_LOOP2(vd, atan2_f64, vd_atan2(a, b))
KERNEL(atan2, 8, FLOAT_LOOPS(atan2))

/** sqrt(a^2 + b^2): corrects the root of the sum of squares by its residue, after a scaling by a
 * power of 2 that keeps the squares in range (C. F. Borges, An Improved Algorithm for hypot(a,b),
 * 2019). */
VEC_FN vd vd_hypot(vd a, vd b)
{
    vd zero = vd_zero(), one = vd_set1(1), far = vd_set1(INFINITY);
    a = vd_abs(a);
    b = vd_abs(b);
    vd x = vd_max_fast(a, b), y = vd_min_fast(b, a);
    vdm large = vd_gt(x, vd_set1(0x1p500)), small = vd_lt(x, vd_set1(0x1p-450));
    vd scale = vd_select(large, vd_set1(0x1p-600), vd_select(small, vd_set1(0x1p600), one));
    vd back = vd_select(large, vd_set1(0x1p600), vd_select(small, vd_set1(0x1p-600), one));
    x = x * scale;
    y = y * scale;
    vd h = vd_sqrt(vd_fma(x, x, y * y)), hh = h * h, xx = x * x;
    vd off = vd_fma(vd_neg(y), y, hh - xx) + vd_fma(h, h, vd_neg(hh)) - vd_fma(x, x, vd_neg(xx));
    h = vd_select(vd_gt(h, zero), h - off / (h + h), h) * back;
    h = vd_select(vdm_or(vd_isnan(a), vd_isnan(b)), a + b, h);
    return vd_select(vdm_or(vd_eq(a, far), vd_eq(b, far)), far, h);
}

/* squares of f32 neither overflow nor vanish in f64 */
TS_SCALAR_LOOP2(float, float, hypot_f32,
                isinf(a) || isinf(b) ? INFINITY : (float)sqrt((double)a * a + (double)b * b))
#if VEC_ISA == VEC_IS_baseline /* may round the products of vd_fma() */
TS_SCALAR_LOOP2(double, double, hypot_f64, hypot(a, b))
#else
TS_LOOP2(vd, hypot_f64, vd_hypot(a, b))
#endif
KERNEL(hypot, 10, FLOAT_LOOPS(hypot))

/* --------------------------------------------------------------- interpolation, addc ---- */

/* params of these loops: the op's numeric argument, as a double. */
#define NUMBER_F vf_set1((float)*(const double *)params)
#define NUMBER_D vd_set1(*(const double *)params)

/* computed from the end whose weight is larger, so that weights 0 and 1 are exact */
VEC_FN vf lerp_vf(vf a, vf b, vf w)
{
    return vf_select(vf_lt(vf_abs(w), vf_set1(0.5f)), a + w * (b - a), b - (b - a) * (1.0f - w));
}
VEC_FN vd lerp_vd(vd a, vd b, vd w)
{
    return vd_select(vd_lt(vd_abs(w), vd_set1(0.5)), a + w * (b - a), b - (b - a) * (1.0 - w));
}
TS_LOOP3(vf, lerp_f32, lerp_vf(a, b, c))
TS_HALF_LOOPS(3, lerp)
TS_LOOP3(vd, lerp_f64, lerp_vd(a, b, c))
TS_LOOP2(vf, lerp_by_f32, lerp_vf(a, b, NUMBER_F))
TS_HALF_LOOPS(2, lerp_by)
TS_LOOP2(vd, lerp_by_f64, lerp_vd(a, b, NUMBER_D))

static ts_status lerp_kernel(ts_frame *f)
{
    static const ts_loop tensor[TS_DTYPE_COUNT] = {REAL_LOOPS(lerp)};
    static const ts_loop number[TS_DTYPE_COUNT] = {REAL_LOOPS(lerp_by)};
    if (f->args[2].tag == TS_TAG_TENSOR)
        return ts_cpu_pointwise(f, tensor, NULL, 3);
    double weight = ts_value_number(&f->args[2]);
    return ts_cpu_pointwise(f, number, &weight, 2);
}

TS_LOOP3(vf, addcmul_f32, a + NUMBER_F * b * c)
TS_HALF_LOOPS(3, addcmul)
TS_LOOP3(vd, addcmul_f64, a + NUMBER_D * b * c)
TS_LOOP3(vf, addcdiv_f32, a + NUMBER_F * b / c)
TS_HALF_LOOPS(3, addcdiv)
TS_LOOP3(vd, addcdiv_f64, a + NUMBER_D * b / c)

static ts_status addcmul_kernel(ts_frame *f)
{
    static const ts_loop loops[TS_DTYPE_COUNT] = {REAL_LOOPS(addcmul)};
    double value = ts_value_number(&f->args[3]);
    return ts_cpu_pointwise(f, loops, &value, 3);
}
static ts_status addcdiv_kernel(ts_frame *f)
{
    static const ts_loop loops[TS_DTYPE_COUNT] = {REAL_LOOPS(addcdiv)};
    double value = ts_value_number(&f->args[3]);
    return ts_cpu_pointwise(f, loops, &value, 3);
}

/* ------------------------------------------------------------------------------ bounds ---- */

/** Bounds for floats and for integers; an absent bound is the dtype's limit. */
typedef struct bounds {
    double low, high;
    int64_t low_int, high_int;
} bounds;

/** A bound rounded to a floating dtype; for other dtypes the number itself. */
static double bound_in(ts_dtype dtype, const ts_value *v)
{
    double stored;
    if (!ts_dtype_is_float(dtype))
        return ts_value_number(v);
    ts_scalar_store(v, dtype, &stored);
    ts_value rounded = ts_scalar_load(&stored, dtype);
    return rounded.d;
}

static bounds bounds_of(const ts_frame *f, int first)
{
    bounds b = {-INFINITY, INFINITY, INT64_MIN, INT64_MAX};
    const ts_value *low = &f->args[first], *high = low + 1;
    if (low->tag != TS_TAG_NONE) {
        b.low = bound_in(f->plan->compute, low);
        ts_scalar_store(low, TS_I64, &b.low_int);
    }
    if (high->tag != TS_TAG_NONE) {
        b.high = bound_in(f->plan->compute, high);
        ts_scalar_store(high, TS_I64, &b.high_int);
    }
    return b;
}
#define B ((const bounds *)params)
#define LOW_F vf_set1((float)B->low)
#define HIGH_F vf_set1((float)B->high)
#define LOW_D vd_set1(B->low)
#define HIGH_D vd_set1(B->high)

static inline int64_t clamp_int(int64_t x, const bounds *b)
{
    int64_t m = x < b->low_int ? b->low_int : x;
    return m > b->high_int ? b->high_int : m;
}
TS_LOOP1(vf, clamp_f32, vf_min(vf_max(x, LOW_F), HIGH_F))
TS_HALF_LOOPS(1, clamp)
TS_LOOP1(vd, clamp_f64, vd_min(vd_max(x, LOW_D), HIGH_D))
TS_SCALAR_LOOP1(int64_t, int64_t, clamp_i64, clamp_int(x, params))
TS_SCALAR_LOOP1(int32_t, int32_t, clamp_i32, (int32_t)clamp_int(x, params))
TS_SCALAR_LOOP1(uint8_t, uint8_t, clamp_u8, (uint8_t)clamp_int(x, params))

static ts_status clamp_kernel(ts_frame *f)
{
    static const ts_loop loops[TS_DTYPE_COUNT] = {REAL_LOOPS(clamp), INT_LOOPS(clamp)};
    bounds b = bounds_of(f, 1);
    return ts_cpu_pointwise(f, loops, &b, 1);
}

TS_LOOP2(vf, inside_f32, vf_select(vm_and(vf_ge(b, LOW_F), vf_le(b, HIGH_F)), a, vf_zero()))
TS_HALF_LOOPS(2, inside)
TS_LOOP2(vd, inside_f64, vd_select(vdm_and(vd_ge(b, LOW_D), vd_le(b, HIGH_D)), a, vd_zero()))

/** The nearest representable number inside an exclusive bound, in the direction of `to`. */
static double inner(const ts_frame *f, double bound, double to)
{
    if (bound == to)
        return NAN; /* no number is inside */
    return f->plan->compute == TS_F64 ? nextafter(bound, to) : nextafterf((float)bound, (float)to);
}

/** The bounds of clamp_backward, converted to inclusive ones if args[4] says that they are
 * exclusive. */
static bounds inner_bounds(const ts_frame *f)
{
    bounds b = bounds_of(f, 2);
    if (f->args[4].i && f->args[2].tag != TS_TAG_NONE)
        b.low = inner(f, b.low, INFINITY);
    if (f->args[4].i && f->args[3].tag != TS_TAG_NONE)
        b.high = inner(f, b.high, -INFINITY);
    return b;
}

static ts_status clamp_backward_kernel(ts_frame *f)
{
    static const ts_loop loops[TS_DTYPE_COUNT] = {REAL_LOOPS(inside)};
    bounds b = inner_bounds(f);
    return ts_cpu_pointwise(f, loops, &b, 2);
}

/* --------------------------------------------------------------------------- recipes ---- */

static const char *pow_recipe(const ts_frame *f, double *numbers)
{
    static const struct {
        double exponent;
        const char *text;
    } special[] = {{1, "a"},          {2, "a a mul"},     {3, "a a mul a mul"},
                   {0.5, "a sqrt"}, {-1, "1 a div"},    {-0.5, "1 a sqrt div"}};
    for (int i = 0; i < TS_COUNTOF(special); i++)
        if (f->args[1].tag != TS_TAG_TENSOR && ts_dtype_is_float(f->plan->compute) &&
            numbers[1] == special[i].exponent)
            return special[i].text;
    return NULL;
}

#define LERP(w) \
    "b a sub =e " w " abs 0.5 lt a " w " e mul add b e 1 " w " sub mul sub sel"
static const char *lerp_recipe(const ts_frame *f, double *numbers)
{
    (void)numbers;
    if (!ts_dtype_is_float(f->plan->compute))
        return NULL;
    return f->args[2].tag == TS_TAG_TENSOR ? LERP("c") : LERP("n2");
}

/** numbers[1], numbers[2]: the bounds. */
static const char *clamp_recipe(const ts_frame *f, double *numbers)
{
    bounds b = bounds_of(f, 1);
    numbers[1] = b.low;
    numbers[2] = b.high;
    return ts_dtype_is_float(f->plan->compute)
               ? "a n1 max =e a a ne a e sel =e e n2 min =g e e ne e g sel"
               : NULL;
}

static const char *clamp_backward_recipe(const ts_frame *f, double *numbers)
{
    bounds b = inner_bounds(f);
    numbers[2] = b.low;
    numbers[3] = b.high;
    return "b n2 ge b n3 le and a 0 sel";
}

#define SAME_ORDER(name, word) \
    TS_RECIPE(name, TS_TEXTS("a b " word " =e a a ne a e sel"), TS_WHOLES("a b i" word))

TS_CPU_RECIPES(pointwise,
    TS_RECIPE(add, TS_TEXTS("a b add"), TS_WHOLES("a b iadd"), .boolean = "a b or"),
    TS_RECIPE(sub, TS_TEXTS("a b sub"), TS_WHOLES("a b isub")),
    TS_RECIPE(mul, TS_TEXTS("a b mul"), TS_WHOLES("a b imul"), .boolean = "a b and"),
    TS_RECIPE(div, TS_TEXTS("a b div")),
    TS_RECIPE(pow, .choose = pow_recipe),
    SAME_ORDER(maximum, "max"), SAME_ORDER(minimum, "min"),
    TS_RECIPE(lerp, .choose = lerp_recipe),
    TS_RECIPE(addcmul, TS_TEXTS("a n3 b mul c mul add")),
    TS_RECIPE(addcdiv, TS_TEXTS("a n3 b mul c div add")),
    TS_RECIPE(clamp, .choose = clamp_recipe),
    {.op = TS_OP_hardtanh, .kernel = clamp_kernel, .variant = VEC_ISA, .choose = clamp_recipe},
    TS_RECIPE(clamp_backward, .choose = clamp_backward_recipe))

#define ROW(name) {TS_OP_##name, name##_kernel, TS_CPU_POINTWISE}
/* no TS_TAKES_DTYPES: divide() reads integer divisors in the compute dtype, before the loop */
#define DIVISION(name) {TS_OP_##name, name##_kernel, {0, TS_TAKES_STRIDES}}

TS_CPU_FAMILY(pointwise,
    ROW(add), ROW(sub), ROW(mul), ROW(div), DIVISION(floor_divide), DIVISION(remainder), ROW(pow),
    ROW(maximum), ROW(minimum), ROW(atan2), ROW(hypot), ROW(lerp), ROW(addcmul), ROW(addcdiv),
    ROW(clamp), {TS_OP_hardtanh, clamp_kernel, TS_CPU_POINTWISE}, ROW(clamp_backward))
