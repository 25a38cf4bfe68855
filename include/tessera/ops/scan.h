/**
 * @file scan.h
 * Running sums along a dim. Errors: TS_ERR_INDEX (dim out of range), TS_ERR_DTYPE, TS_ERR_SHAPE
 * (`out` does not fit), TS_ERR_MEMORY.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPS_SCAN_H
#define TESSERA_OPS_SCAN_H

#include "../core.h"

TS_BEGIN_DECLS

/**
 * y[k] = x[0] + … + x[k] along dim (negative counts from the end). Integers and bool give i64; sums
 * of f32 are kept in f64 and rounded one by one.
 */
TS_API ts_tensor *ts_cumsum(ts_tensor *self, int dim);
/** In place; self must be f32, f64 or i64. */
TS_API ts_tensor *ts_cumsum_(ts_tensor *self, int dim);
/** Into `out`, which may be self. */
TS_API ts_tensor *ts_cumsum_out(ts_tensor *out, ts_tensor *self, int dim);
/** From the other end: y[k] = x[k] + … + x[n-1]. The gradient of ts_cumsum(). */
TS_API ts_tensor *ts_cumsum_reversed(ts_tensor *self, int dim);

TS_END_DECLS
#endif
