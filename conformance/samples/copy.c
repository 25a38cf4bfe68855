/** @file copy.c  Samples of copies and conversions. */
// SPDX-License-Identifier: MIT
#include "conformance/sample.h"

#include <math.h>
#include <string.h>

static void ref_copy(ts_ref *r)
{
    double *y = ref_ret_like(r, 0, &r->a[0]);
    memcpy(y, r->a[0].x, (size_t)r->a[0].numel * sizeof *y);
}

/** Truncation toward zero; the driver rounds to the result's dtype. */
static void ref_to_integer(ts_ref *r)
{
    double *y = ref_ret_like(r, 0, &r->a[0]);
    for (int64_t i = 0; i < r->a[0].numel; i++)
        y[i] = trunc(r->a[0].x[i]);
}

/** Numbers that i64 cannot hold become the most negative i64. */
static void ref_to_i64(ts_ref *r)
{
    double *y = ref_ret_like(r, 0, &r->a[0]);
    for (int64_t i = 0; i < r->a[0].numel; i++) {
        double x = trunc(r->a[0].x[i]);
        y[i] = x >= -0x1p63 && x < 0x1p63 ? x : -0x1p63;
    }
}
/** Numbers that i32 cannot hold become the most negative i32. */
static void ref_to_i32(ts_ref *r)
{
    double *y = ref_ret_like(r, 0, &r->a[0]);
    for (int64_t i = 0; i < r->a[0].numel; i++) {
        double x = trunc(r->a[0].x[i]);
        y[i] = x >= -0x1p31 && x < 0x1p31 ? x : -0x1p31;
    }
}

#define EVERY (DT_ALL | TS_DT(TS_BF16) | TS_DT(TS_F16))
/* Values within the range of every destination; floating values have fractions. */
#define CONVERSION(name, type, ref) \
    {"to", name, {T_UNIFORM(0, 120, SWEEP, 3), DTYPE(type)}, ref, .dtypes = EVERY,                 \
     .out = {OUT(type)}, .most = 65}

static const ts_sample samples[] = {
    {"copy", "values", {T(SWEEP, 3)}, ref_copy, .dtypes = EVERY, .grad = true},
    {"copy", "0-dim", {T()}, ref_copy, .dtypes = EVERY, .grad = true},
    {"copy", "8 dims", {T(2, 1, 2, 1, 3, 1, 2, SWEEP)}, ref_copy, .most = 17, .many = 1009},
    {"contiguous", "values", {T(2, SWEEP, 3)}, ref_copy, .dtypes = EVERY, .grad = true},
    {"copy", "special", {T_SPECIAL(3, 19)}, ref_copy},
    {"to_device", "values", {T(SWEEP, 3), DEVICE}, ref_copy, .dtypes = EVERY, .grad = true},
    {"to_device", "0-dim", {T(), DEVICE}, ref_copy, .grad = true},
    {"to", "f64", {T(SWEEP, 3), DTYPE(TS_F64)}, ref_copy, .dtypes = EVERY, .out = {OUT(TS_F64)},
     .grad = true},
    {"to", "f32", {T(SWEEP, 3), DTYPE(TS_F32)}, ref_copy, .dtypes = EVERY, .out = {OUT(TS_F32)},
     .most = 65},
    {"to", "special", {T_SPECIAL(3, 19), DTYPE(TS_F32)}, ref_copy, .out = {OUT(TS_F32)}},
    {"to", "special in half", {T_SPECIAL(3, 19), DTYPE(TS_F16)}, ref_copy, .dtypes = TS_DT(TS_F32),
     .out = {OUT(TS_F16)}},
    {"to", "special in bf16", {T_SPECIAL(3, 19), DTYPE(TS_BF16)}, ref_copy, .dtypes = TS_DT(TS_F32),
     .out = {OUT(TS_BF16)}},
    {"to", "bool of special", {T_SPECIAL(3, 19), DTYPE(TS_BOOL)}, ref_copy, .dtypes = DT_ALL,
     .out = {OUT(TS_BOOL)}},
    {"to", "special to i64", {T_SPECIAL(3, 19), DTYPE(TS_I64)}, ref_to_i64, .dtypes = DT_FLOATS_,
     .out = {OUT(TS_I64)}},
    {"to", "special to i32", {T_SPECIAL(3, 19), DTYPE(TS_I32)}, ref_to_i32, .dtypes = DT_FLOATS_,
     .out = {OUT(TS_I32)}},
    {"to", "beyond i64", {T_UNIFORM(-1e19, 1e19, SWEEP), DTYPE(TS_I64)}, ref_to_i64,
     .dtypes = DT_WIDE, .out = {OUT(TS_I64)}, .most = 65},
    {"to", "beyond i32", {T_UNIFORM(-3e9, 3e9, SWEEP), DTYPE(TS_I32)}, ref_to_i32,
     .dtypes = DT_WIDE, .out = {OUT(TS_I32)}, .most = 65},
    CONVERSION("bf16", TS_BF16, ref_copy),
    CONVERSION("f16", TS_F16, ref_copy),
    CONVERSION("i64", TS_I64, ref_to_integer),
    CONVERSION("i32", TS_I32, ref_to_integer),
    CONVERSION("u8", TS_U8, ref_to_integer),
    CONVERSION("bool", TS_BOOL, ref_copy),
    {"to", "negative to i32", {T_UNIFORM(-100, 100, SWEEP), DTYPE(TS_I32)}, ref_to_integer,
     .out = {OUT(TS_I32)}},
};
TS_SAMPLES(copy, samples)
