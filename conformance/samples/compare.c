/** @file compare.c  Samples of comparisons, logical ops, and selection by a bool tensor. */
// SPDX-License-Identifier: MIT
#include <math.h>

#include "conformance/sample.h"

REF_POINTWISE(ref_eq, 2, a == b)
REF_POINTWISE(ref_ne, 2, a != b)
REF_POINTWISE(ref_lt, 2, a < b)
REF_POINTWISE(ref_le, 2, a <= b)
REF_POINTWISE(ref_gt, 2, a > b)
REF_POINTWISE(ref_ge, 2, a >= b)
REF_POINTWISE(ref_logical_and, 2, a != 0 && b != 0)
REF_POINTWISE(ref_logical_or, 2, a != 0 || b != 0)
REF_POINTWISE(ref_logical_xor, 2, (a != 0) != (b != 0))
REF_POINTWISE(ref_logical_not, 1, a == 0)
REF_POINTWISE(ref_bitwise_and, 2, (double)((int64_t)a & (int64_t)b))
REF_POINTWISE(ref_bitwise_or, 2, (double)((int64_t)a | (int64_t)b))
REF_POINTWISE(ref_bitwise_xor, 2, (double)((int64_t)a ^ (int64_t)b))
REF_POINTWISE(ref_bitwise_not, 1, (double)~(int64_t)a)
REF_POINTWISE(ref_isnan, 1, isnan(a))
REF_POINTWISE(ref_isinf, 1, isinf(a) != 0)
REF_POINTWISE(ref_isfinite, 1, isfinite(a) != 0)
REF_POINTWISE(ref_where, 3, a != 0 ? b : c)
REF_POINTWISE(ref_masked_fill, 3, b != 0 ? c : a)

/** ~x of u8, reduced to 8 bits. */
static void ref_bitwise_not_u8(ts_ref *r)
{
    ref_bitwise_not(r);
    for (int64_t i = 0; i < r->ret[0].numel; i++)
        r->ret[0].x[i] = (uint8_t)(int64_t)r->ret[0].x[i];
}

/* small whole numbers, so that equal ones occur */
#define FEW(...) T_WHOLE(0, 3, __VA_ARGS__)
/* numbers close to 1 round to 1 in bf16 and f16 */
#define COMPARISON(op)                                                                             \
    {#op, "same sizes", {FEW(SWEEP, 3), FEW(SWEEP, 3)}, ref_##op, .dtypes = DT_ALL,                \
     .out = {OUT(TS_BOOL)}},                                                                       \
    {#op, "row", {FEW(2, SWEEP, 3), FEW(3)}, ref_##op, .dtypes = DT_ALL, .out = {OUT(TS_BOOL)}},   \
    {#op, "column", {FEW(SWEEP, 3), FEW(SWEEP, 1)}, ref_##op, .dtypes = DT_ALL,                    \
     .out = {OUT(TS_BOOL)}},                                                                       \
    {#op, "scalar", {FEW(SWEEP, 3), INT(1)}, ref_##op, .dtypes = DT_NUMBERS,                       \
     .out = {OUT(TS_BOOL)},                                                                        \
     .bad = {{1, T_OF(TS_F32, 5, 4), TS_ERR_SHAPE, "broadcast"}}},                                 \
    {#op, "real scalar", {FEW(SWEEP, 3), FLOAT(0.5)}, ref_##op, .dtypes = DT_NUMBERS,              \
     .out = {OUT(TS_BOOL)}},                                                                       \
    {#op, "scalar above 1", {FEW(SWEEP, 3), FLOAT(1 + 0x1p-13)}, ref_##op, .rounds = true,         \
     .out = {OUT(TS_BOOL)}},                                                                       \
    {#op, "scalar below 1", {FEW(SWEEP, 3), FLOAT(1 - 0x1p-13)}, ref_##op, .rounds = true,         \
     .out = {OUT(TS_BOOL)}},                                                                       \
    {#op, "scalar first", {INT(1), FEW(SWEEP, 3)}, ref_##op, .dtypes = DT_NUMBERS,                 \
     .out = {OUT(TS_BOOL)}},                                                                       \
    {#op, "mixed dtypes", {FEW(SWEEP, 3), T_OF(TS_F32, SWEEP, 3)}, ref_##op, .dtypes = DT_INTS,    \
     .out = {OUT(TS_BOOL)}},                                                                       \
    {#op, "special", {T_SPECIAL(20, 19), T_SPECIAL(20, 1)}, ref_##op, .out = {OUT(TS_BOOL)}}
#define BITS(op)                                                                                   \
    {#op, "same sizes", {T(SWEEP, 3), T(SWEEP, 3)}, ref_##op, .dtypes = DT_INTS | TS_DT(TS_BOOL),  \
     .inplace = true},                                                                             \
    {#op, "row", {T(SWEEP, 3), T(3)}, ref_##op, .dtypes = DT_INTS | TS_DT(TS_BOOL),                \
     .inplace = true},                                                                             \
    {#op, "scalar", {T(SWEEP, 3), INT(6)}, ref_##op, .dtypes = DT_INTS, .inplace = true,           \
     .bad = {{0, T_OF(TS_F32, 3), TS_ERR_DTYPE, "f32"}}}
#define TESTS(op)                                                                                  \
    {#op, "values", {FEW(SWEEP, 3)}, ref_##op, .dtypes = DT_ALL, .out = {OUT(TS_BOOL)}},           \
    {#op, "special", {T_SPECIAL(20, 19)}, ref_##op, .dtypes = DT_NUMBERS, .out = {OUT(TS_BOOL)}}

#define MASK(...) T_OF(TS_BOOL, __VA_ARGS__)

static const ts_sample samples[] = {
    COMPARISON(eq),
    COMPARISON(ne),
    COMPARISON(lt),
    COMPARISON(le),
    COMPARISON(gt),
    COMPARISON(ge),
    COMPARISON(logical_and),
    COMPARISON(logical_or),
    COMPARISON(logical_xor),
    TESTS(logical_not),
    TESTS(isnan),
    TESTS(isinf),
    TESTS(isfinite),
    BITS(bitwise_and),
    BITS(bitwise_or),
    BITS(bitwise_xor),
    {"bitwise_not", "signed", {T(SWEEP, 3)}, ref_bitwise_not,
     .dtypes = TS_DT(TS_I64) | TS_DT(TS_I32), .inplace = true},
    {"bitwise_not", "u8", {T(SWEEP, 3)}, ref_bitwise_not_u8, .dtypes = TS_DT(TS_U8),
     .inplace = true},
    {"bitwise_not", "bool", {T(SWEEP, 3)}, ref_logical_not, .dtypes = TS_DT(TS_BOOL),
     .inplace = true},

    {"where", "same sizes", {MASK(SWEEP, 3), T(SWEEP, 3), T(SWEEP, 3)}, ref_where, .dtypes = DT_ALL,
     .grad = true,
     .bad = {{0, T_OF(TS_F32, 3), TS_ERR_DTYPE, "expected bool"},
             {1, T(5, 4), TS_ERR_SHAPE, "broadcast"}}},
    {"where", "broadcast", {MASK(SWEEP, 1), T(3), T(2, SWEEP, 3)}, ref_where, .dtypes = DT_ALL,
     .grad = true},
    {"where", "number right", {MASK(SWEEP, 3), T(SWEEP, 3), INT(2)}, ref_where,
     .dtypes = DT_NUMBERS, .grad = true},
    {"where", "number left", {MASK(SWEEP, 3), FLOAT(0.5), T(SWEEP, 3)}, ref_where, .grad = true},
    {"where", "numbers", {MASK(SWEEP, 3), INT(1), INT(0)}, ref_where, .dtypes = TS_DT(TS_I64),
     .out = {OUT(TS_I64)}},
    {"where", "promotes", {MASK(SWEEP, 3), T(SWEEP, 3), T_OF(TS_F32, 3)}, ref_where,
     .dtypes = DT_INTS, .out = {OUT_FLOAT}},
    {"where", "special", {MASK(20, 19), T_SPECIAL(20, 19), T_SPECIAL(20, 1)}, ref_where},
    {"where", "0-dim", {MASK(), T(), T()}, ref_where, .dtypes = DT_ALL},

    {"masked_fill", "number", {T(SWEEP, 3), MASK(SWEEP, 3), INT(7)}, ref_masked_fill,
     .dtypes = DT_NUMBERS, .grad = true,
     .inplace = true, .bad = {{1, T_OF(TS_U8, 3), TS_ERR_DTYPE, "expected bool"},
                              {1, MASK(5, 4), TS_ERR_SHAPE, "broadcast"}}},
    {"masked_fill", "minus infinity", {T(2, SWEEP, 3), MASK(SWEEP, 3), FLOAT(-INFINITY)},
     ref_masked_fill, .inplace = true,
     .bad = {{0, T_OF(TS_I64, 3, 3), TS_ERR_DTYPE, "floating value"}}},
    {"masked_fill", "0-dim value", {T(SWEEP, 3), MASK(SWEEP, 1), T()}, ref_masked_fill,
     .dtypes = DT_ALL, .grad = true,
     .inplace = true, .bad = {{2, T(3), TS_ERR_SHAPE, "without dims"}}},
    {"masked_fill", "mask decides the sizes", {T(3), MASK(SWEEP, 3), INT(0)}, ref_masked_fill,
     .dtypes = DT_NUMBERS,
     .grad = true},
};
TS_SAMPLES(compare, samples)
