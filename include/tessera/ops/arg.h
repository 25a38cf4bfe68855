/**
 * @file arg.h
 * Places of extremes, as i64. The first among equal elements is chosen, and NaN before every
 * number. Errors: TS_ERR_INDEX (dim out of range), TS_ERR_SHAPE (nothing to choose from,
 * or `out` does not fit), TS_ERR_DTYPE, TS_ERR_MEMORY.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPS_ARG_H
#define TESSERA_OPS_ARG_H

#include "../core.h"

TS_BEGIN_DECLS

/** Row-major place of the largest of all elements: a 0-dim i64 tensor. */
TS_API ts_tensor *ts_argmax(ts_tensor *self);
/** Places of the largest elements along dim (negative counts from the end);
 * keepdim leaves it with size 1. */
TS_API ts_tensor *ts_argmax_dim(ts_tensor *self, int dim, bool keepdim);
/** The same into `out`. */
TS_API ts_tensor *ts_argmax_out(ts_tensor *out, ts_tensor *self, int dim, bool keepdim);
/** As ts_argmax(), of the smallest. */
TS_API ts_tensor *ts_argmin(ts_tensor *self);
TS_API ts_tensor *ts_argmin_dim(ts_tensor *self, int dim, bool keepdim);
TS_API ts_tensor *ts_argmin_out(ts_tensor *out, ts_tensor *self, int dim, bool keepdim);

/**
 * Largest elements along dim and where they are. The gradient goes to the chosen element alone;
 * ts_amax_dim() shares it among equal ones.
 * @param indices  receives i64 places in the sizes of the result; NULL when not wanted
 */
TS_API ts_tensor *ts_max_dim(ts_tensor *self, int dim, bool keepdim, ts_tensor **indices);
/** The same of the smallest. */
TS_API ts_tensor *ts_min_dim(ts_tensor *self, int dim, bool keepdim, ts_tensor **indices);

TS_END_DECLS
#endif
