/**
 * @file factory.h  Functions that make tensors of given values, besides those of generated.h. The
 * section factory of generated.h states their errors.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPS_FACTORY_H
#define TESSERA_OPS_FACTORY_H

#include "../core.h"

TS_BEGIN_DECLS

/**
 * The numbers start, start + step, ... up to, but not including, end: one dim, on the default
 * device. The step may be negative.
 * @param dtype  any but bool; TS_DTYPE_NONE: f32 if one of the three numbers is a float, else i64
 * Errors: also TS_ERR_VALUE if step is 0 or leads away from end, or if a number is NaN.
 */
TS_API ts_tensor *ts_arange(ts_scalar start, ts_scalar end, ts_scalar step, ts_dtype dtype);
/** A 0-dim tensor of `value` on the default device. dtype TS_DTYPE_NONE: bool, i64 or f32, by the
 *  kind of value. */
TS_API ts_tensor *ts_scalar_tensor(ts_scalar value, ts_dtype dtype);

#ifndef __cplusplus
#define ts_arange(start, end, step, dtype)                                                         \
    ts_arange(TS_SCALAR(start), TS_SCALAR(end), TS_SCALAR(step), dtype)
#define ts_scalar_tensor(value, dtype) ts_scalar_tensor(TS_SCALAR(value), dtype)
/** A list of sizes and its length, for calls like ts_zeros(TS_SIZES(2, 3), TS_F32). */
#define TS_SIZES(...)                                                                \
    ((const int64_t[]){__VA_ARGS__}),                                                              \
        (int)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))
#endif

TS_END_DECLS
#endif
