/** @file mask.h  Triangles, and elements chosen by a mask of bools.
 * Errors: TS_ERR_SHAPE, TS_ERR_DTYPE, TS_ERR_MEMORY. */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPS_MASK_H
#define TESSERA_OPS_MASK_H

#include "../core.h"

TS_BEGIN_DECLS

/** Matrices (the last two dims) with zeros where column > row + diagonal. */
TS_API ts_tensor *ts_tril(ts_tensor *self, int64_t diagonal);
TS_API ts_tensor *ts_tril_(ts_tensor *self, int64_t diagonal);
/** Matrices with zeros where column < row + diagonal. */
TS_API ts_tensor *ts_triu(ts_tensor *self, int64_t diagonal);
TS_API ts_tensor *ts_triu_(ts_tensor *self, int64_t diagonal);

/** Coordinates of the elements that are not zero, row-major: (n, ndim) i64.
 * Its sizes depend on the data. */
TS_API ts_tensor *ts_nonzero(ts_tensor *self);
/** The elements where mask is true, row-major, in one dim; self and mask broadcast. */
TS_API ts_tensor *ts_masked_select(ts_tensor *self, ts_tensor *mask);
/** Copy of self (broadcast with mask) with the next element of source wherever mask is true.
 *  source has at least as many elements as mask has trues, else TS_ERR_SHAPE. */
TS_API ts_tensor *ts_masked_scatter(ts_tensor *self, ts_tensor *mask, ts_tensor *source);
TS_API ts_tensor *ts_masked_scatter_(ts_tensor *self, ts_tensor *mask, ts_tensor *source);

TS_END_DECLS
#endif
