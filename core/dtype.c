/** @file dtype.c  Dtypes: sizes, names, promotion. The library's version. */
// SPDX-License-Identifier: MIT
#include "core/tensor.h"

const uint8_t ts_dtype_sizes[TS_DTYPE_COUNT] = {
    [TS_F64] = 8, [TS_F32] = 4, [TS_BF16] = 2, [TS_F16] = 2,
    [TS_I64] = 8, [TS_I32] = 4, [TS_U8] = 1,   [TS_BOOL] = 1,
};
static const char *const names[TS_DTYPE_COUNT] = {
    [TS_F64] = "f64", [TS_F32] = "f32", [TS_BF16] = "bf16", [TS_F16] = "f16",
    [TS_I64] = "i64", [TS_I32] = "i32", [TS_U8] = "u8",     [TS_BOOL] = "bool",
};
static bool valid(ts_dtype d) { return (unsigned)d < TS_DTYPE_COUNT; }

size_t ts_dtype_size(ts_dtype dtype) { return valid(dtype) ? ts_dtype_sizes[dtype] : 0; }
const char *ts_dtype_name(ts_dtype dtype) { return valid(dtype) ? names[dtype] : "?"; }
bool ts_dtype_is_float(ts_dtype dtype) { return dtype <= TS_F16; }

ts_dtype ts_dtype_promote(ts_dtype a, ts_dtype b)
{
    if (a == b || !valid(a) || !valid(b))
        return a;
    if ((a == TS_BF16 && b == TS_F16) || (a == TS_F16 && b == TS_BF16))
        return TS_F32;
    /* the enum is ordered from strongest to weakest, except for bf16 and f16 above */
    return a < b ? a : b;
}

const char *ts_version_string(void) { return TS_VERSION; }
