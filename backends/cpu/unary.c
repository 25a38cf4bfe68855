/** @file unary.c  Elementary functions of one tensor. */
// SPDX-License-Identifier: MIT
#include "backends/cpu/loops.h"
#include "backends/cpu/vmath.h"
#include "ops/kernel.h"

/* The loops of f64 are plain C, those of f32 vectors; x is the element
 * or the vector of elements. */
#define FLOATS(name, f32_expr, f64_expr)     \
    TS_LOOP1(vf, name##_f32, f32_expr)       \
    TS_SCALAR_LOOP1(double, double, name##_f64, f64_expr)
/* Rare functions: the C library's, element by element. */
#define LIBM(name)                                          \
    TS_SCALAR_LOOP1(float, float, name##_f32, name##f(x))   \
    TS_SCALAR_LOOP1(double, double, name##_f64, name(x))
#define INTS(name, i64_expr, i32_expr, u8_expr)             \
    TS_SCALAR_LOOP1(int64_t, int64_t, name##_i64, i64_expr) \
    TS_SCALAR_LOOP1(int32_t, int32_t, name##_i32, i32_expr) \
    TS_SCALAR_LOOP1(uint8_t, uint8_t, name##_u8, u8_expr)

#define KERNEL(name, cost, ...)                                         \
    static ts_status name##_kernel(ts_frame *f)                         \
    {                                                                   \
        static const ts_loop loops[TS_DTYPE_COUNT] = {__VA_ARGS__};     \
        return ts_cpu_pointwise(f, loops, NULL, cost);                  \
    }
#define FLOAT_LOOPS(name) [TS_F32] = name##_f32, [TS_F64] = name##_f64
#define INT_LOOPS(name) [TS_I64] = name##_i64, [TS_I32] = name##_i32, [TS_U8] = name##_u8

/* ------------------------------------------------------------- dtype stays what it is ---- */

FLOATS(neg, vf_neg(x), -x)
INTS(neg, (int64_t)-(uint64_t)x, (int32_t)-(uint32_t)x, (uint8_t)-x)
KERNEL(neg, 1, FLOAT_LOOPS(neg), INT_LOOPS(neg))

FLOATS(abs, vf_abs(x), fabs(x))
INTS(abs, x < 0 ? (int64_t)-(uint64_t)x : x, x < 0 ? (int32_t)-(uint32_t)x : x, x)
KERNEL(abs, 1, FLOAT_LOOPS(abs), INT_LOOPS(abs))

VEC_FN vf sign_of(vf x)
{
    vf one = vf_set1(1.0f), zero = vf_zero();
    return vf_select(vf_gt(x, zero), one, vf_select(vf_lt(x, zero), vf_neg(one), zero));
}
FLOATS(sign, sign_of(x), (x > 0) - (x < 0))
INTS(sign, (x > 0) - (x < 0), (x > 0) - (x < 0), x > 0)
KERNEL(sign, 1, FLOAT_LOOPS(sign), INT_LOOPS(sign), [TS_BOOL] = sign_u8)

FLOATS(square, x * x, x * x)
INTS(square, (int64_t)((uint64_t)x *(uint64_t)x), (int32_t)((uint32_t)x *(uint32_t)x),
     (uint8_t)(x * x))
KERNEL(square, 1, FLOAT_LOOPS(square), INT_LOOPS(square))

INTS(same, x, x, x)
FLOATS(floor, vf_floor(x), floor(x))
KERNEL(floor, 1, FLOAT_LOOPS(floor), INT_LOOPS(same))
FLOATS(ceil, vf_ceil(x), ceil(x))
KERNEL(ceil, 1, FLOAT_LOOPS(ceil), INT_LOOPS(same))
FLOATS(round, vf_rint(x), rint(x))
KERNEL(round, 1, FLOAT_LOOPS(round), INT_LOOPS(same))
FLOATS(trunc, vf_trunc(x), trunc(x))
KERNEL(trunc, 1, FLOAT_LOOPS(trunc), INT_LOOPS(same))
FLOATS(frac, x - vf_trunc(x), x - trunc(x))
KERNEL(frac, 1, FLOAT_LOOPS(frac))

/* --------------------------------------------------------- computed in a floating dtype ---- */

#define FUNCTION(name, cost, f32_expr, f64_expr) \
    FLOATS(name, f32_expr, f64_expr)             \
    KERNEL(name, cost, FLOAT_LOOPS(name))

FUNCTION(exp, 2, vf_exp(x), exp(x))
FUNCTION(exp2, 2, vf_exp2(x), exp2(x))
FUNCTION(expm1, 3, vf_expm1(x), expm1(x))
FUNCTION(log, 3, vf_log(x), log(x))
FUNCTION(log2, 3, vf_log2(x), log2(x))
FUNCTION(log10, 3, vf_log10(x), log10(x))
FUNCTION(log1p, 4, vf_log1p(x), log1p(x))
FUNCTION(sqrt, 2, vf_sqrt(x), sqrt(x))
FUNCTION(rsqrt, 3, vf_rsqrt(x), vec_rsqrt_d(x))
FUNCTION(reciprocal, 2, 1.0f / x, 1.0 / x)
FUNCTION(sin, 6, vf_sin(x), sin(x))
FUNCTION(cos, 6, vf_cos(x), cos(x))
FUNCTION(erf, 4, vf_erf(x), erf(x))

#define LIBM_FUNCTION(name) \
    LIBM(name)              \
    KERNEL(name, 30, FLOAT_LOOPS(name))

LIBM_FUNCTION(tan)
LIBM_FUNCTION(asin)
LIBM_FUNCTION(acos)
LIBM_FUNCTION(atan)
LIBM_FUNCTION(sinh)
LIBM_FUNCTION(cosh)
LIBM_FUNCTION(erfc)

#define ROW(name) {TS_OP_##name, name##_kernel, {0, 1}}

TS_CPU_FAMILY(unary,
    ROW(neg), ROW(abs), ROW(sign), ROW(square), ROW(floor), ROW(ceil), ROW(round), ROW(trunc),
    ROW(frac),
    ROW(exp), ROW(exp2), ROW(expm1), ROW(log), ROW(log2), ROW(log10), ROW(log1p),
    ROW(sqrt), ROW(rsqrt), ROW(reciprocal), ROW(sin), ROW(cos), ROW(tan),
    ROW(asin), ROW(acos), ROW(atan), ROW(sinh), ROW(cosh), ROW(erf), ROW(erfc))
