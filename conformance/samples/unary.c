/** @file unary.c  Samples of the elementary functions. */
// SPDX-License-Identifier: MIT
#include <math.h>

#include "conformance/sample.h"

REF_POINTWISE(ref_neg, 1, -a)
REF_POINTWISE(ref_abs, 1, fabs(a))
REF_POINTWISE(ref_sign, 1, (a > 0) - (a < 0))
REF_POINTWISE(ref_square, 1, a * a)
REF_POINTWISE(ref_floor, 1, floor(a))
REF_POINTWISE(ref_ceil, 1, ceil(a))
REF_POINTWISE(ref_round, 1, nearbyint(a))
REF_POINTWISE(ref_trunc, 1, trunc(a))
REF_POINTWISE(ref_frac, 1, a - trunc(a))
REF_POINTWISE(ref_exp, 1, exp(a))
REF_POINTWISE(ref_exp2, 1, exp2(a))
REF_POINTWISE(ref_expm1, 1, expm1(a))
REF_POINTWISE(ref_log, 1, log(a))
REF_POINTWISE(ref_log2, 1, log2(a))
REF_POINTWISE(ref_log10, 1, log10(a))
REF_POINTWISE(ref_log1p, 1, log1p(a))
REF_POINTWISE(ref_sqrt, 1, sqrt(a))
REF_POINTWISE(ref_rsqrt, 1, 1 / sqrt(a))
REF_POINTWISE(ref_reciprocal, 1, 1 / a)
REF_POINTWISE(ref_sin, 1, sin(a))
REF_POINTWISE(ref_cos, 1, cos(a))
REF_POINTWISE(ref_tan, 1, tan(a))
REF_POINTWISE(ref_asin, 1, asin(a))
REF_POINTWISE(ref_acos, 1, acos(a))
REF_POINTWISE(ref_atan, 1, atan(a))
REF_POINTWISE(ref_sinh, 1, sinh(a))
REF_POINTWISE(ref_cosh, 1, cosh(a))
REF_POINTWISE(ref_erf, 1, erf(a))
REF_POINTWISE(ref_erfc, 1, erfc(a))

/* Smallest normal number of f32: the error of smaller results does not shrink with them. */
#define TINY 0x1p-126

/** Rows of an op that keeps the dtype and is exact. ints: its integer dtypes. */
#define EXACT(op, ints)                                                                            \
    {#op, "values", {T_UNIFORM(-9, 9, SWEEP, 3)}, ref_##op, .c = 0, .dtypes = DT_FLOATS_ | (ints), \
     .grad = true, .inplace = true},                                                               \
    {#op, "special", {T_SPECIAL(20, 19)}, ref_##op, .c = 0, .dtypes = DT_FLOATS_ | (ints)},        \
    {#op, "0-dim", {T()}, ref_##op, .c = 0, .dtypes = DT_FLOATS_ | (ints), .inplace = true}

/** Rows of an op with a floating result within `ulps` units: from..to (where it has a gradient),
 * integers, special values. */
#define FUNCTION(op, from, to, ulps)                                                               \
    {#op, "values", {T_UNIFORM(from, to, SWEEP, 3)}, ref_##op, .c = ulps, .grad = true,            \
     .inplace = true},                                                                             \
    {#op, "integers", {T_WHOLE(0, 2, SWEEP, 3)}, ref_##op, .c = ulps, .scale = TINY,               \
     .dtypes = DT_INTS | TS_DT(TS_BOOL), .out = {OUT_FLOAT}},                                      \
    {#op, "special", {T_SPECIAL(20, 19)}, ref_##op, .c = ulps, .scale = TINY},                     \
    {#op, "0-dim", {T_UNIFORM(from, to)}, ref_##op, .c = ulps, .inplace = true}

static const ts_sample samples[] = {
    EXACT(neg, DT_INTS),
    EXACT(abs, DT_INTS),
    EXACT(sign, DT_INTS | TS_DT(TS_BOOL)),
    EXACT(floor, DT_INTS),
    EXACT(ceil, DT_INTS),
    EXACT(round, DT_INTS),
    EXACT(trunc, DT_INTS),
    {"square", "values", {T(SWEEP, 3)}, ref_square, .c = 1, .dtypes = DT_NUMBERS, .grad = true,
     .inplace = true},
    {"square", "special", {T_SPECIAL(20, 19)}, ref_square, .c = 1, .scale = TINY},
    {"frac", "values", {T_UNIFORM(-9, 9, SWEEP, 3)}, ref_frac, .c = 0, .grad = true,
     .inplace = true},
    FUNCTION(exp, -5, 5, 2),
    FUNCTION(exp2, -5, 5, 2),
    FUNCTION(expm1, -5, 5, 3),
    FUNCTION(log, 0.1, 9, 2),
    FUNCTION(log2, 0.1, 9, 3),
    FUNCTION(log10, 0.1, 9, 3),
    FUNCTION(log1p, -0.9, 9, 3),
    FUNCTION(sqrt, 0.1, 9, 1),
    FUNCTION(rsqrt, 0.1, 9, 3),
    FUNCTION(reciprocal, 0.5, 9, 1),
    FUNCTION(sin, -9, 9, 3),
    FUNCTION(cos, -9, 9, 3),
    FUNCTION(tan, -1.4, 1.4, 3),
    FUNCTION(asin, -0.9, 0.9, 3),
    FUNCTION(acos, -0.9, 0.9, 3),
    FUNCTION(atan, -5, 5, 3),
    FUNCTION(sinh, -5, 5, 3),
    FUNCTION(cosh, -5, 5, 3),
    FUNCTION(erf, -3, 3, 3),
    FUNCTION(erfc, -3, 3, 3),
};
TS_SAMPLES(unary, samples)
