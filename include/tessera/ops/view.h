/**
 * @file view.h
 * Views: other shapes of the same memory. Nothing is copied, except by ts_reshape()
 * and ts_flatten() when the strides leave no other way. A write through a view changes all tensors
 * that share the memory; with gradients, write by ts_slice_scatter() instead.
 *
 * Dims count from the end when negative. Lists of sizes and dims may be written with TS_SIZES():
 * ts_view(x, TS_SIZES(2, -1)). Errors: TS_ERR_SHAPE for sizes that do not fit, TS_ERR_INDEX
 * for dims and positions out of range, TS_ERR_VALUE for other arguments, TS_ERR_MEMORY.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPS_VIEW_H
#define TESSERA_OPS_VIEW_H

#include "../core.h"

TS_BEGIN_DECLS

/** t's elements, in row-major order, under other sizes; one of them may be -1 and is computed. An
 *  error when the strides do not allow it: ts_reshape() copies then. */
TS_API ts_tensor *ts_view(ts_tensor *t, const int64_t *sizes, int ndim);
/** As ts_view() when the strides allow it, else a copy. */
TS_API ts_tensor *ts_reshape(ts_tensor *t, const int64_t *sizes, int ndim);
/** Dims start to end (both included) become one; a copy when the strides need it. */
TS_API ts_tensor *ts_flatten(ts_tensor *t, int start_dim, int end_dim);
/** Dim `dim` becomes several of these sizes; one may be -1. */
TS_API ts_tensor *ts_unflatten(ts_tensor *t, int dim, const int64_t *sizes, int ndim);

/** Dim i of the result is dim dims[i] of t; `n` is t's number of dims. */
TS_API ts_tensor *ts_permute(ts_tensor *t, const int64_t *dims, int n);
/** Dims dim0 and dim1 change places. */
TS_API ts_tensor *ts_transpose(ts_tensor *t, int dim0, int dim1);
/** (N, M) becomes (M, N); fewer than two dims stay as they are, more are an error. */
TS_API ts_tensor *ts_t(ts_tensor *t);
/** Dim `source` moves to place `destination`; the others keep their order. */
TS_API ts_tensor *ts_movedim(ts_tensor *t, int source, int destination);

/** Dims of size 1 stretched to `sizes` with stride 0; -1 keeps a size; new dims come in front. */
TS_API ts_tensor *ts_expand(ts_tensor *t, const int64_t *sizes, int ndim);
/** The same; reads better where another tensor's sizes are given. */
TS_API ts_tensor *ts_broadcast_to(ts_tensor *t, const int64_t *sizes, int ndim);
/** ts_expand() to the sizes of `other`. */
TS_API ts_tensor *ts_expand_as(ts_tensor *t, ts_tensor *other);

/** Without all dims of size 1. */
TS_API ts_tensor *ts_squeeze(ts_tensor *t);
/** Without dim `dim` if its size is 1; else t's alias. */
TS_API ts_tensor *ts_squeeze_dim(ts_tensor *t, int dim);
/** A new dim of size 1 at place `dim`, from -ndim - 1 to ndim. */
TS_API ts_tensor *ts_unsqueeze(ts_tensor *t, int dim);
/**
 * Any strides (>= 0) from `offset`, all in elements of t's storage.
 * TS_ERR_VALUE when an element would lie outside the storage. No gradient.
 */
TS_API ts_tensor *ts_as_strided(ts_tensor *t, const int64_t *sizes, const int64_t *strides,
                                int ndim, int64_t offset);

TS_END_DECLS
#endif
