/** @file pointwise.c  Samples of arithmetic and bounds. */
// SPDX-License-Identifier: MIT
#include <math.h>

#include "conformance/sample.h"

REF_POINTWISE(ref_add, 2, a + b)
REF_POINTWISE(ref_sub, 2, a - b)
REF_POINTWISE(ref_mul, 2, a * b)

static double floored(double a, double b) { return floor(a / b); }
static double modulo(double a, double b)
{
    double r = fmod(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
static double whole_power(double a, double b)
{
    double x = pow(a, b);
    return trunc(x);
}
static double largest(double a, double b) { return isnan(a) || isnan(b) ? NAN : a > b ? a : b; }
static double smallest(double a, double b) { return isnan(a) || isnan(b) ? NAN : a < b ? a : b; }
static double clamped(double x, double low, double high)
{
    return isnan(x) ? x : fmin(fmax(x, low), high);
}

REF_POINTWISE(ref_div, 2, a / b)
REF_POINTWISE(ref_floor_divide, 2, floored(a, b))
REF_POINTWISE(ref_remainder, 2, modulo(a, b))
REF_POINTWISE(ref_pow, 2, pow(a, b))
REF_POINTWISE(ref_pow_whole, 2, whole_power(a, b))
REF_POINTWISE(ref_maximum, 2, largest(a, b))
REF_POINTWISE(ref_minimum, 2, smallest(a, b))
REF_POINTWISE(ref_atan2, 2, atan2(a, b))
REF_POINTWISE(ref_hypot, 2, hypot(a, b))
REF_POINTWISE(ref_lerp, 3, a + c * (b - a))
REF_POINTWISE(ref_clamp, 3, clamped(a, b, c))
REF_POINTWISE(ref_clamp_min, 2, clamped(a, b, INFINITY))
static void ref_clamp_max(ts_ref *r)
{
    double max = r->a[2].d;
    double *y = ref_ret_like(r, 0, &r->a[0]);
    for (int64_t i = 0; i < r->a[0].numel; i++)
        y[i] = clamped(r->a[0].x[i], -INFINITY, max);
}
static double addcmul_element(const double *v) { return v[0] + v[3] * v[1] * v[2]; }
static double addcdiv_element(const double *v) { return v[0] + v[3] * v[1] / v[2]; }
static double inside_element(const double *v) { return v[1] >= v[2] && v[1] <= v[3] ? v[0] : 0; }
static double inside_open_element(const double *v) { return v[1] > v[2] && v[1] < v[3] ? v[0] : 0; }
static void ref_addcmul(ts_ref *r) { ref_pointwise(r, 4, addcmul_element); }
static void ref_addcdiv(ts_ref *r) { ref_pointwise(r, 4, addcdiv_element); }
static void ref_inside(ts_ref *r) { ref_pointwise(r, 4, inside_element); }
static void ref_inside_open(ts_ref *r) { ref_pointwise(r, 4, inside_open_element); }

static void ref_add_bool(ts_ref *r)
{
    ref_add(r);
    for (int64_t i = 0; i < r->ret[0].numel; i++)
        r->ret[0].x[i] = r->ret[0].x[i] != 0;
}

/* Exact in f32, and nearly halfway between two numbers of bf16 and of f16, so a result shows
 * whether the number was rounded first. */
#define NO_HALF 0x1.0121p0

#define BROADCASTS(op, ref, types)                                                                 \
    {op, "same sizes", {T(SWEEP, 3), T(SWEEP, 3)}, ref, .c = 1, .dtypes = types, .grad = true,     \
     .inplace = true},                                                                             \
    {op, "row", {T(2, SWEEP, 5), T(5)}, ref, .c = 1, .dtypes = types, .grad = true,                \
     .inplace = true},                                                                             \
    {op, "column", {T(3, SWEEP), T(3, 1)}, ref, .c = 1, .dtypes = types, .grad = true,             \
     .inplace = true},                                                                             \
    {op, "outer", {T(SWEEP, 1), T(1, 4)}, ref, .c = 1, .dtypes = types, .grad = true},             \
    {op, "0-dim", {T(3, SWEEP), T()}, ref, .c = 1, .dtypes = types, .grad = true,                  \
     .inplace = true},                                                                             \
    {op, "0-dim both", {T(), T()}, ref, .c = 1, .dtypes = types, .grad = true, .inplace = true},   \
    {op, "8 dims", {T(1, 2, 1, 2, 1, 2, 1, SWEEP), T(2, 1, 2, 1, 2, 1, 2, 1)}, ref, .c = 1,        \
     .dtypes = types,                                                                              \
     .most = 33, .many = 1009},                                                                    \
    {op, "whole scalar", {T(SWEEP, 2), INT(3)}, ref, .c = 1, .dtypes = (types) & DT_NUMBERS,       \
     .grad = true,                                                                                 \
     .inplace = true, .bad = {{1, T_OF(TS_F32, 5, 4), TS_ERR_SHAPE, "broadcast"}}},                \
    {op, "real scalar", {T(SWEEP, 2), FLOAT(0.75)}, ref, .c = 1, .grad = true, .inplace = true},   \
    {op, "real scalar with integers", {T(SWEEP, 2), FLOAT(0.75)}, ref, .c = 1, .dtypes = DT_INTS,  \
     .out = {OUT_FLOAT}},                                                                          \
    {op, "scalar first", {FLOAT(0.75), T(SWEEP, 2)}, ref, .c = 1, .grad = true},                   \
    {op, "scalar that is no half", {T(SWEEP, 2), FLOAT(NO_HALF)}, ref, .c = 1, .inplace = true},   \
    {op, "scalar first that is no half", {FLOAT(NO_HALF), T(SWEEP, 2)}, ref, .c = 1},              \
    {op, "special", {T_SPECIAL(20, 19), T_SPECIAL(20, 1)}, ref, .c = 0},                           \
    {op, "integer and real tensors", {T(SWEEP, 3), T_OF(TS_F32, 3)}, ref, .c = 1,                  \
     .dtypes = DT_INTS | TS_DT(TS_F32),                                                            \
     .out = {OUT_FLOAT}},                                                                          \
    {op, "wider 0-dim", {T(SWEEP, 3), T_OF(TS_F64)}, ref, .c = 1, .scale = 4,                      \
     .dtypes = TS_DT(TS_F32),                                                                      \
     .inplace = true} /* the number is rounded first, so the error is relative to the number */

static const ts_sample samples[] = {
    BROADCASTS("add", ref_add, DT_NUMBERS),
    {"add", "bool", {T(SWEEP, 3), T(3)}, ref_add_bool, .dtypes = TS_DT(TS_BOOL), .inplace = true},
    BROADCASTS("sub", ref_sub, DT_NUMBERS),
    BROADCASTS("mul", ref_mul, DT_NUMBERS),
    {"mul", "bool", {T(SWEEP, 3), T(3)}, ref_mul, .dtypes = TS_DT(TS_BOOL), .inplace = true},

    {"div", "same sizes", {T(SWEEP, 3), T_UNIFORM(0.5, 4, SWEEP, 3)}, ref_div, .c = 1, .grad = true,
     .inplace = true},
    {"div", "row", {T(2, SWEEP, 5), T_UNIFORM(-4, -0.5, 5)}, ref_div, .c = 1, .grad = true,
     .inplace = true},
    {"div", "column", {T(3, SWEEP), T_UNIFORM(0.5, 4, 3, 1)}, ref_div, .c = 1, .grad = true,
     .inplace = true},
    {"div", "integers", {T(SWEEP, 3), T_WHOLE(1, 9, SWEEP, 3)}, ref_div, .c = 1, .dtypes = DT_INTS,
     .out = {OUT_FLOAT}},
    {"div", "by a number", {T(SWEEP, 3), FLOAT(0.75)}, ref_div, .c = 1, .grad = true,
     .inplace = true},
    {"div", "of a number", {INT(2), T_UNIFORM(0.5, 4, SWEEP, 3)}, ref_div, .c = 1, .grad = true},
    {"div", "by a number that is no half", {T(SWEEP, 3), FLOAT(NO_HALF)}, ref_div, .c = 1,
     .inplace = true},
    {"div", "of a number that is no half", {FLOAT(NO_HALF), T_UNIFORM(0.5, 4, SWEEP, 3)}, ref_div,
     .c = 1},
    {"div", "special", {T_SPECIAL(20, 19), T_SPECIAL(20, 1)}, ref_div, .c = 0},

    {"floor_divide", "values", {T_UNIFORM(-20, 20, SWEEP, 3), T_WHOLE(1, 5, SWEEP, 3)},
     ref_floor_divide,
     .dtypes = DT_NUMBERS, .inplace = true, .no_expand = true},
    {"floor_divide", "negative divisor", {T_UNIFORM(-20, 20, SWEEP, 3), INT(-3)}, ref_floor_divide,
     .dtypes = DT_FLOATS_ | TS_DT(TS_I64) | TS_DT(TS_I32), .inplace = true},
    {"floor_divide", "by a number that is no half", {T_UNIFORM(100, 250, SWEEP, 3), FLOAT(NO_HALF)},
     ref_floor_divide,
     .rounds = true, .dtypes = DT_HALVES, .inplace = true},
    {"remainder", "values", {T_UNIFORM(-20, 20, SWEEP, 3), T_WHOLE(1, 5, SWEEP, 3)}, ref_remainder,
     .dtypes = DT_NUMBERS, .inplace = true, .c = 1, .scale = 5, .grad = true},
    {"remainder", "negative divisor", {T_UNIFORM(-20, 20, SWEEP, 3), INT(-3)}, ref_remainder,
     .dtypes = DT_FLOATS_ | TS_DT(TS_I64) | TS_DT(TS_I32), .inplace = true, .c = 1, .scale = 3,
     .grad = true},
    {"remainder", "by a number that is no half", {T_UNIFORM(-20, 20, SWEEP, 3), FLOAT(NO_HALF)},
     ref_remainder,
     .rounds = true, .dtypes = DT_HALVES, .inplace = true, .c = 1},

    {"pow", "same sizes", {T_POSITIVE(SWEEP, 3), T(SWEEP, 3)}, ref_pow, .c = 2, .grad = true,
     .inplace = true},
    {"pow", "row", {T_POSITIVE(2, SWEEP, 3), T(3)}, ref_pow, .c = 2, .grad = true, .inplace = true},
    {"pow", "special", {T_SPECIAL(20, 19), T_SPECIAL(20, 1)}, ref_pow, .c = 2, .scale = 0x1p-126},
    {"pow", "integers", {T_WHOLE(0, 4, SWEEP, 3), T_WHOLE(0, 4, SWEEP, 3)}, ref_pow_whole,
     .dtypes = DT_INTS, .inplace = true},
    {"pow", "negative exponents", {T_WHOLE(1, 4, SWEEP, 3), T_WHOLE(-3, 4, SWEEP, 3)},
     ref_pow_whole,
     .dtypes = TS_DT(TS_I64) | TS_DT(TS_I32)},
    {"pow", "0", {T(SWEEP, 3), INT(0)}, ref_pow, .c = 1, .grad = true},
    {"pow", "1", {T(SWEEP, 3), INT(1)}, ref_pow, .c = 1, .grad = true},
    {"pow", "2", {T(SWEEP, 3), INT(2)}, ref_pow, .c = 2, .dtypes = DT_NUMBERS, .grad = true,
     .inplace = true},
    {"pow", "3", {T(SWEEP, 3), INT(3)}, ref_pow, .c = 2, .grad = true},
    {"pow", "-1", {T_POSITIVE(SWEEP, 3), INT(-1)}, ref_pow, .c = 2, .grad = true,
     .bad = {{0, T_OF(TS_I64, 3), TS_ERR_VALUE, "exponent >= 0"}}},
    {"pow", "1/2", {T_POSITIVE(SWEEP, 3), FLOAT(0.5)}, ref_pow, .c = 2, .grad = true},
    {"pow", "-1/2", {T_POSITIVE(SWEEP, 3), FLOAT(-0.5)}, ref_pow, .c = 3, .grad = true},
    {"pow", "2.5", {T_POSITIVE(SWEEP, 3), FLOAT(2.5)}, ref_pow, .c = 2, .grad = true},
    {"pow", "of a number", {FLOAT(1.5), T(SWEEP, 3)}, ref_pow, .c = 2, .grad = true},
    {"pow", "by a number that is no half", {T_POSITIVE(SWEEP, 3), FLOAT(4 * NO_HALF)}, ref_pow,
     .c = 2},
    {"pow", "of a number that is no half", {FLOAT(NO_HALF), T_UNIFORM(0, 8, SWEEP, 3)}, ref_pow,
     .c = 2},

    {"maximum", "same sizes", {T(SWEEP, 3), T(SWEEP, 3)}, ref_maximum, .dtypes = DT_ALL,
     .grad = true, .inplace = true},
    {"maximum", "row", {T(SWEEP, 3), T(3)}, ref_maximum, .dtypes = DT_ALL, .grad = true,
     .inplace = true},
    {"maximum", "number", {T(SWEEP, 3), INT(1)}, ref_maximum, .dtypes = DT_NUMBERS, .grad = true,
     .inplace = true},
    {"maximum", "special", {T_SPECIAL(20, 19), T_SPECIAL(20, 1)}, ref_maximum, .c = 1},
    {"minimum", "same sizes", {T(SWEEP, 3), T(SWEEP, 3)}, ref_minimum, .dtypes = DT_ALL,
     .grad = true, .inplace = true},
    {"minimum", "row", {T(SWEEP, 3), T(3)}, ref_minimum, .dtypes = DT_ALL, .grad = true,
     .inplace = true},
    {"minimum", "number", {T(SWEEP, 3), INT(1)}, ref_minimum, .dtypes = DT_NUMBERS, .grad = true,
     .inplace = true},
    {"minimum", "special", {T_SPECIAL(20, 19), T_SPECIAL(20, 1)}, ref_minimum, .c = 1},
    {"atan2", "values", {T(SWEEP, 3), T(SWEEP, 3)}, ref_atan2, .c = 2, .grad = true,
     .inplace = true},
    {"atan2", "number", {T(SWEEP, 3), FLOAT(0.5)}, ref_atan2, .c = 2, .grad = true},
    {"atan2", "integers", {T(SWEEP, 3), T(3)}, ref_atan2, .c = 2, .dtypes = DT_INTS,
     .out = {OUT_FLOAT}},
    {"atan2", "special", {T_SPECIAL(20, 19), T_SPECIAL(20, 1)}, ref_atan2, .c = 2,
     .scale = 0x1p-126},
    {"hypot", "values", {T(SWEEP, 3), T(SWEEP, 3)}, ref_hypot, .c = 2, .grad = true,
     .inplace = true},
    {"hypot", "number", {T(SWEEP, 3), FLOAT(0.5)}, ref_hypot, .c = 2, .grad = true},
    {"hypot", "integers", {T(SWEEP, 3), T(3)}, ref_hypot, .c = 2, .dtypes = DT_INTS,
     .out = {OUT_FLOAT}},
    {"hypot", "special", {T_SPECIAL(20, 19), T_SPECIAL(20, 1)}, ref_hypot, .c = 2},

    {"lerp", "number", {T(SWEEP, 3), T(SWEEP, 3), FLOAT(0.25)}, ref_lerp, .c = 3, .scale = 4,
     .grad = true, .inplace = true},
    {"lerp", "beyond", {T(SWEEP, 3), T(3), FLOAT(1.5)}, ref_lerp, .c = 3, .scale = 4, .grad = true,
     .inplace = true},
    {"lerp", "tensor", {T(SWEEP, 3), T(SWEEP, 3), T_UNIFORM(0, 1, SWEEP, 3)}, ref_lerp, .c = 3,
     .scale = 4, .grad = true,
     .inplace = true, .bad = {{0, T_OF(TS_I64, 3), TS_ERR_DTYPE, "floating"}}},
    {"lerp", "row", {T(SWEEP, 3), T(SWEEP, 1), T_UNIFORM(0, 1, 3)}, ref_lerp, .c = 3, .scale = 4,
     .grad = true},
    {"addcmul", "values", {T(SWEEP, 3), T(SWEEP, 3), T(SWEEP, 3), FLOAT(0.5)}, ref_addcmul, .c = 3,
     .scale = 4, .grad = true,
     .inplace = true},
    {"addcmul", "broadcast", {T(SWEEP, 3), T(3), T(SWEEP, 1), INT(2)}, ref_addcmul, .c = 3,
     .scale = 8, .grad = true},
    {"addcdiv", "values", {T(SWEEP, 3), T(SWEEP, 3), T_UNIFORM(0.5, 2, SWEEP, 3), FLOAT(0.5)},
     ref_addcdiv, .c = 3,
     .scale = 4, .grad = true, .inplace = true},
    {"addcdiv", "broadcast", {T(SWEEP, 3), T(3), T_UNIFORM(0.5, 2, SWEEP, 1), INT(2)}, ref_addcdiv,
     .c = 3, .scale = 8,
     .grad = true},

    {"clamp", "both", {T(SWEEP, 3), INT(-1), INT(1)}, ref_clamp,
     .dtypes = DT_FLOATS_ | TS_DT(TS_I64) | TS_DT(TS_I32),
     .grad = true, .inplace = true},
    {"clamp", "min", {T(SWEEP, 3), FLOAT(0.25), ABSENT}, ref_clamp_min, .grad = true,
     .inplace = true},
    {"clamp", "max", {T(SWEEP, 3), ABSENT, FLOAT(0.25)}, ref_clamp_max, .grad = true,
     .inplace = true,
     .bad = {{2, ABSENT, TS_ERR_VALUE, "bound"}}},
    {"clamp", "crossed", {T(SWEEP, 3), INT(1), INT(-1)}, ref_clamp},
    {"clamp", "promotes", {T(SWEEP, 3), FLOAT(0.5), INT(2)}, ref_clamp, .dtypes = DT_INTS,
     .out = {OUT_FLOAT}},
    {"clamp", "special", {T_SPECIAL(20, 19), INT(-1), FLOAT(0.5)}, ref_clamp, .c = 1},
    {"hardtanh", "values", {T(SWEEP, 3), INT(-1), FLOAT(0.75)}, ref_clamp, .grad = true,
     .inplace = true},
    {"clamp_backward", "closed",
     {T(SWEEP, 3), T_WHOLE(-2, 3, SWEEP, 3), INT(-1), INT(1), BOOL(false)}, ref_inside},
    {"clamp_backward", "open", {T(SWEEP, 3), T_WHOLE(-2, 3, SWEEP, 3), INT(-1), INT(1), BOOL(true)},
     ref_inside_open},
    {"clamp_backward", "gradient", {T(SWEEP, 3), T(SWEEP, 3), INT(-1), INT(1), BOOL(false)},
     ref_inside, .grad = true},
};
TS_SAMPLES(pointwise, samples)
