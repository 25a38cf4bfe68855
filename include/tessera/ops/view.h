/**
 * @file view.h  Handwritten views. generated.h has the family's common contract.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPS_VIEW_H
#define TESSERA_OPS_VIEW_H

#include "../core.h"

TS_BEGIN_DECLS

/** Dims start to end (both included) become one; a copy when the strides need it. */
TS_API ts_tensor *ts_flatten(ts_tensor *t, int start_dim, int end_dim);
/** Dim `dim` becomes several of these sizes; one may be -1. */
TS_API ts_tensor *ts_unflatten(ts_tensor *t, int dim, const int64_t *sizes, int ndim);

/** (N, M) becomes (M, N); fewer than two dims stay as they are, more are an error. */
TS_API ts_tensor *ts_t(ts_tensor *t);
/** Dim `source` moves to place `destination`; the others keep their order. */
TS_API ts_tensor *ts_movedim(ts_tensor *t, int source, int destination);

/** ts_expand() to the sizes of `other`. */
TS_API ts_tensor *ts_expand_as(ts_tensor *t, ts_tensor *other);

/**
 * A view with any strides (>= 0) from `offset`, all in elements of t's storage. Differentiable.
 * TS_ERR_VALUE if an element would lie outside the storage.
 */
TS_API ts_tensor *ts_as_strided(ts_tensor *t, const int64_t *sizes, const int64_t *strides,
                                int ndim, int64_t offset);

TS_END_DECLS
#endif
