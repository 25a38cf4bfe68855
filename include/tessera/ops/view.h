/**
 * @file view.h  Views, besides those of generated.h. The section view of generated.h explains
 * negative dims and states the errors.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPS_VIEW_H
#define TESSERA_OPS_VIEW_H

#include "../core.h"

TS_BEGIN_DECLS

/** Merges the dims start_dim to end_dim (included) into one: a view, or a copy if the strides do
 *  not allow a view. A 0-dim tensor becomes (1). TS_ERR_INDEX if end_dim is before start_dim. */
TS_API ts_tensor *ts_flatten(ts_tensor *t, int start_dim, int end_dim);
/** View in which dim `dim` is replaced by ndim dims of these sizes, whose product is dim's size
 *  (else TS_ERR_SHAPE). One size may be -1 and is then computed. */
TS_API ts_tensor *ts_unflatten(ts_tensor *t, int dim, const int64_t *sizes, int ndim);

/** Transposes (N, M) to (M, N). A tensor with fewer than two dims is unchanged; with more than two,
 *  TS_ERR_SHAPE. */
TS_API ts_tensor *ts_t(ts_tensor *t);
/** Moves dim `source` to position `destination`; the other dims keep their order. */
TS_API ts_tensor *ts_movedim(ts_tensor *t, int source, int destination);

/** ts_expand() to the sizes of `other`. */
TS_API ts_tensor *ts_expand_as(ts_tensor *t, ts_tensor *other);

/**
 * A view of t's storage with these sizes and strides (>= 0), whose first element is element
 * `offset` of the storage. Strides and offset count elements. Differentiable. TS_ERR_VALUE if an
 * element would lie outside the storage.
 */
TS_API ts_tensor *ts_as_strided(ts_tensor *t, const int64_t *sizes, const int64_t *strides,
                                int ndim, int64_t offset);

TS_END_DECLS
#endif
