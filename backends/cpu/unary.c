/** @file unary.c  Pointwise functions of one tensor: neg, abs, exp, sin, floor and others. */
// SPDX-License-Identifier: MIT
#include "backends/cpu/loops.h"
#include "backends/cpu/recipes.h"
#include "backends/cpu/vmath.h"
#include "ops/kernel.h"

/* x is a vector in loops of floats and an element in those of integers. */
#define FLOATS(name, f32_expr, f64_expr) \
    TS_LOOP1(vf, name##_f32, f32_expr)   \
    TS_LOOP1(vd, name##_f64, f64_expr)
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
#define REAL_LOOPS(name) FLOAT_LOOPS(name), [TS_BF16] = name##_bf16, [TS_F16] = name##_f16
#define HALF_LOOPS(name) [TS_BF16] = name##_half, [TS_F16] = name##_half
#define INT_LOOPS(name) [TS_I64] = name##_i64, [TS_I32] = name##_i32, [TS_U8] = name##_u8

/* ---------------------------------------------------------------------- dtype is kept ---- */

FLOATS(neg, vf_neg(x), vd_neg(x))
INTS(neg, (int64_t)-(uint64_t)x, (int32_t)-(uint32_t)x, (uint8_t)-x)
TS_SCALAR_LOOP1(uint16_t, uint16_t, neg_half, x ^ 0x8000)
KERNEL(neg, 1, FLOAT_LOOPS(neg), INT_LOOPS(neg), HALF_LOOPS(neg))

FLOATS(abs, vf_abs(x), vd_abs(x))
INTS(abs, x < 0 ? (int64_t)-(uint64_t)x : x, x < 0 ? (int32_t)-(uint32_t)x : x, x)
TS_SCALAR_LOOP1(uint16_t, uint16_t, abs_half, x & 0x7fff)
KERNEL(abs, 1, FLOAT_LOOPS(abs), INT_LOOPS(abs), HALF_LOOPS(abs))

#define SIGN_OF(p)                                                                       \
    p##_select(p##_gt(x, p##_zero()), p##_set1(1),                                      \
               p##_select(p##_lt(x, p##_zero()), p##_set1(-1), p##_zero()))
FLOATS(sign, SIGN_OF(vf), SIGN_OF(vd))
TS_HALF_LOOPS(1, sign)
INTS(sign, (x > 0) - (x < 0), (x > 0) - (x < 0), x > 0)
KERNEL(sign, 1, REAL_LOOPS(sign), INT_LOOPS(sign), [TS_BOOL] = sign_u8)

FLOATS(square, x * x, x * x)
TS_HALF_LOOPS(1, square)
INTS(square, (int64_t)((uint64_t)x *(uint64_t)x), (int32_t)((uint32_t)x *(uint32_t)x),
     (uint8_t)(x * x))
KERNEL(square, 1, REAL_LOOPS(square), INT_LOOPS(square))

INTS(same, x, x, x)
FLOATS(floor, vf_floor(x), vd_floor(x))
TS_HALF_LOOPS(1, floor)
KERNEL(floor, 1, REAL_LOOPS(floor), INT_LOOPS(same))
FLOATS(ceil, vf_ceil(x), vd_ceil(x))
TS_HALF_LOOPS(1, ceil)
KERNEL(ceil, 1, REAL_LOOPS(ceil), INT_LOOPS(same))
FLOATS(round, vf_rint(x), vd_rint(x))
TS_HALF_LOOPS(1, round)
KERNEL(round, 1, REAL_LOOPS(round), INT_LOOPS(same))
FLOATS(trunc, vf_trunc(x), vd_trunc(x))
TS_HALF_LOOPS(1, trunc)
KERNEL(trunc, 1, REAL_LOOPS(trunc), INT_LOOPS(same))
FLOATS(frac, x - vf_trunc(x), x - vd_trunc(x))
TS_HALF_LOOPS(1, frac)
KERNEL(frac, 1, REAL_LOOPS(frac))

/* --------------------------------------------------------- computed in a floating dtype ---- */

#define FUNCTION(name, cost)             \
    FLOATS(name, vf_##name(x), vd_##name(x)) \
    KERNEL(name, cost, FLOAT_LOOPS(name))

FUNCTION(exp, 2)
FUNCTION(exp2, 2)
FUNCTION(expm1, 3)
FUNCTION(log, 3)
FUNCTION(log2, 3)
FUNCTION(log10, 3)
FUNCTION(log1p, 4)
FLOATS(sqrt, vf_sqrt(x), vd_sqrt(x))
TS_HALF_LOOPS(1, sqrt)
KERNEL(sqrt, 2, REAL_LOOPS(sqrt))
FLOATS(rsqrt, vf_rsqrt(x), vd_rsqrt(x))
TS_HALF_LOOPS(1, rsqrt)
KERNEL(rsqrt, 3, REAL_LOOPS(rsqrt))
FUNCTION(sin, 6)
FUNCTION(cos, 6)
FUNCTION(tan, 8)
FUNCTION(asin, 5)
FUNCTION(acos, 5)
FUNCTION(atan, 5)
FUNCTION(sinh, 6)
FUNCTION(cosh, 4)
FUNCTION(erf, 4)
FUNCTION(erfc, 6)
FLOATS(reciprocal, 1.0f / x, 1.0 / x)
TS_HALF_LOOPS(1, reciprocal)
KERNEL(reciprocal, 2, REAL_LOOPS(reciprocal))

/* --------------------------------------------------------------------------- recipes ---- */

#define REAL_RECIPE(name, text) TS_RECIPE(name, TS_TEXTS(text))
TS_CPU_RECIPES(unary,
    TS_RECIPE(exp, RECIPE_BOTH(EXP)), TS_RECIPE(exp2, RECIPE_BOTH(EXP2)),
    TS_RECIPE(expm1, RECIPE_BOTH(EXPM1)), TS_RECIPE(log, .f32 = RECIPE_LOG),
    TS_RECIPE(log2, .f32 = RECIPE_LOG2), TS_RECIPE(log1p, .f32 = RECIPE_LOG1P),
    TS_RECIPE(neg, TS_TEXTS("a neg"), TS_WHOLES("#0 a isub")),
    TS_RECIPE(abs, TS_TEXTS("a abs"), TS_WHOLES("a iabs")),
    REAL_RECIPE(sign, "a 0 gt 1 a 0 lt -1 0 sel sel"),
    TS_RECIPE(square, TS_TEXTS("a a mul"), TS_WHOLES("a a imul")),
    REAL_RECIPE(floor, "a floor"), REAL_RECIPE(ceil, "a ceil"), REAL_RECIPE(round, "a rint"),
    REAL_RECIPE(trunc, "a trunc"), REAL_RECIPE(frac, "a a trunc sub"),
    REAL_RECIPE(sqrt, "a sqrt"), REAL_RECIPE(rsqrt, "1 a sqrt div"),
    REAL_RECIPE(reciprocal, "1 a div"))

#define ROW(name) {TS_OP_##name, name##_kernel, TS_CPU_POINTWISE}

TS_CPU_FAMILY(unary,
    ROW(neg), ROW(abs), ROW(sign), ROW(square), ROW(floor), ROW(ceil), ROW(round), ROW(trunc),
    ROW(frac),
    ROW(exp), ROW(exp2), ROW(expm1), ROW(log), ROW(log2), ROW(log10), ROW(log1p),
    ROW(sqrt), ROW(rsqrt), ROW(reciprocal), ROW(sin), ROW(cos), ROW(tan),
    ROW(asin), ROW(acos), ROW(atan), ROW(sinh), ROW(cosh), ROW(erf), ROW(erfc))
