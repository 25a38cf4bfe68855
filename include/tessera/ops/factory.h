/** @file factory.h  New tensors. Sizes are checked; errors: TS_ERR_SHAPE, TS_ERR_DTYPE, TS_ERR_MEMORY. */
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

#ifndef __cplusplus
#define ts_full_like(t, value) ts_full_like(t, TS_SCALAR(value))
#define ts_fill_(t, value) ts_fill_(t, TS_SCALAR(value))
/** A list of sizes and its length, for calls like ts_zeros(TS_SIZES(2, 3), TS_F32). */
#define TS_SIZES(...)                                                                \
    ((const int64_t[]){__VA_ARGS__}), (int)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))
#endif

TS_END_DECLS
#endif
