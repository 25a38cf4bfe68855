/** @file cat.h  Joining tensors. Errors: TS_ERR_SHAPE, TS_ERR_INDEX,
 * TS_ERR_DEVICE, TS_ERR_MEMORY. */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPS_CAT_H
#define TESSERA_OPS_CAT_H

#include "../core.h"

TS_BEGIN_DECLS

/**
 * Tensors one after the other along dim; all other sizes are equal, dtypes promote.
 * @param tensors  n >= 1 tensors; empty ones of one dim count as nothing
 */
TS_API ts_tensor *ts_cat(ts_tensor *const *tensors, int n, int dim);
TS_API ts_tensor *ts_cat_out(ts_tensor *out, ts_tensor *const *tensors, int n, int dim);
/** Tensors of the same sizes along a new dim at place `dim`. */
TS_API ts_tensor *ts_stack(ts_tensor *const *tensors, int n, int dim);
TS_API ts_tensor *ts_stack_out(ts_tensor *out, ts_tensor *const *tensors, int n, int dim);

TS_END_DECLS
#endif
