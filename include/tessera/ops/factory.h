/** @file factory.h  New tensors. Sizes are checked; errors: TS_ERR_SHAPE,
 * TS_ERR_DTYPE, TS_ERR_MEMORY. */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPS_FACTORY_H
#define TESSERA_OPS_FACTORY_H

#include "../core.h"

TS_BEGIN_DECLS

/** Uninitialised tensor of `ndim` sizes on the default device. */
TS_API ts_tensor *ts_empty(const int64_t *sizes, int ndim, ts_dtype dtype);
/** Uninitialised tensor on a device. */
TS_API ts_tensor *ts_empty_on(const int64_t *sizes, int ndim, ts_dtype dtype, ts_device device);
/** Uninitialised tensor with t's sizes, dtype and device. */
TS_API ts_tensor *ts_empty_like(ts_tensor *t);
/** Tensor filled with `value`, converted to dtype. */
TS_API ts_tensor *ts_full(const int64_t *sizes, int ndim, ts_scalar value, ts_dtype dtype);
TS_API ts_tensor *ts_full_like(ts_tensor *t, ts_scalar value);
TS_API ts_tensor *ts_zeros(const int64_t *sizes, int ndim, ts_dtype dtype);
TS_API ts_tensor *ts_zeros_like(ts_tensor *t);
TS_API ts_tensor *ts_ones(const int64_t *sizes, int ndim, ts_dtype dtype);
TS_API ts_tensor *ts_ones_like(ts_tensor *t);
/** Writes `value` to every element of t; returns t. */
TS_API ts_tensor *ts_fill_(ts_tensor *t, ts_scalar value);
TS_API ts_tensor *ts_zero_(ts_tensor *t);

/**
 * start, start + step, ... before end (after, when step is negative), on the default device.
 * @param dtype  TS_DTYPE_NONE: i64 when the three numbers are integers, else f32
 */
TS_API ts_tensor *ts_arange(ts_scalar start, ts_scalar end, ts_scalar step, ts_dtype dtype);
/** `steps` evenly spaced numbers from start to end, both included;
 * f32 when dtype is TS_DTYPE_NONE. */
TS_API ts_tensor *ts_linspace(double start, double end, int64_t steps, ts_dtype dtype);
/** (rows, columns) with ones on the diagonal; f32 when dtype is TS_DTYPE_NONE. */
TS_API ts_tensor *ts_eye(int64_t rows, int64_t columns, ts_dtype dtype);
/** A 0-dim tensor; TS_DTYPE_NONE: bool, i64 or f32 by the kind of value. */
TS_API ts_tensor *ts_scalar_tensor(ts_scalar value, ts_dtype dtype);

#ifndef __cplusplus
#define ts_arange(start, end, step, dtype)                                                         \
    ts_arange(TS_SCALAR(start), TS_SCALAR(end), TS_SCALAR(step), dtype)
#define ts_scalar_tensor(value, dtype) ts_scalar_tensor(TS_SCALAR(value), dtype)
#define ts_full_like(t, value) ts_full_like(t, TS_SCALAR(value))
#define ts_fill_(t, value) ts_fill_(t, TS_SCALAR(value))
/** A list of sizes and its length, for calls like ts_zeros(TS_SIZES(2, 3), TS_F32). */
#define TS_SIZES(...)                                                                \
    ((const int64_t[]){__VA_ARGS__}),                                                              \
        (int)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))
#endif

TS_END_DECLS
#endif
