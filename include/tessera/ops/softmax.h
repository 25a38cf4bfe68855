/**
 * @file softmax.h
 * softmax and log_softmax over one dim. Floating dtypes; the largest element is subtracted first,
 * so large values are safe. A slice that is -Inf throughout gives NaN, as the limit has no value.
 * Errors: TS_ERR_DTYPE, TS_ERR_INDEX (dim), TS_ERR_SHAPE, TS_ERR_MEMORY.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPS_SOFTMAX_H
#define TESSERA_OPS_SOFTMAX_H

#include "../core.h"

TS_BEGIN_DECLS

/** exp(x_i) / sum_j exp(x_j) along dim (negative counts from the end). */
TS_API ts_tensor *ts_softmax(ts_tensor *self, int dim);
/** The same of self converted to a floating dtype first. */
TS_API ts_tensor *ts_softmax_as(ts_tensor *self, int dim, ts_dtype dtype);
/** The same into `out`, which has self's sizes and dtype. */
TS_API ts_tensor *ts_softmax_out(ts_tensor *out, ts_tensor *self, int dim);
/** result * (grad - sum(grad * result)) along dim; the sum keeps the dim. */
TS_API ts_tensor *ts_softmax_backward(ts_tensor *grad, ts_tensor *result, int dim);

/** x_i - log(sum_j exp(x_j)) along dim. */
TS_API ts_tensor *ts_log_softmax(ts_tensor *self, int dim);
/** The same of self converted to a floating dtype first. */
TS_API ts_tensor *ts_log_softmax_as(ts_tensor *self, int dim, ts_dtype dtype);
/** The same into `out`, which has self's sizes and dtype. */
TS_API ts_tensor *ts_log_softmax_out(ts_tensor *out, ts_tensor *self, int dim);
/** grad - exp(result) * sum(grad) along dim. */
TS_API ts_tensor *ts_log_softmax_backward(ts_tensor *grad, ts_tensor *result, int dim);

TS_END_DECLS
#endif
