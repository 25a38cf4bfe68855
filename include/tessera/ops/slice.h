/**
 * @file slice.h
 * Parts of a tensor. Slices, splits and diagonals are views: nothing is copied,
 * and a write through one changes the whole. With gradients, replace a part by ts_slice_scatter()
 * instead of writing to it.
 *
 * Dims count from the end when negative. Errors: TS_ERR_INDEX for dims and positions out of range,
 * TS_ERR_SHAPE for sizes that do not fit, TS_ERR_VALUE for other arguments, TS_ERR_MEMORY.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPS_SLICE_H
#define TESSERA_OPS_SLICE_H

#include "../core.h"

TS_BEGIN_DECLS

/** The end of a dim, for ts_slice(). */
#define TS_END INT64_MAX

/** Elements start, start + step, ... before end along dim. Negative start and end count from the
 *  end; both are clamped to the dim, so a slice may be empty. step >= 1. */
TS_API ts_tensor *ts_slice(ts_tensor *t, int dim, int64_t start, int64_t end, int64_t step);
/** `length` elements from `start` along dim; nothing is clamped. */
TS_API ts_tensor *ts_narrow(ts_tensor *t, int dim, int64_t start, int64_t length);
/** Element `index` along dim, without the dim. */
TS_API ts_tensor *ts_select(ts_tensor *t, int dim, int64_t index);
/** Elements (i, i + offset) of dims dim1 and dim2 as a new last dim; the two are gone. */
TS_API ts_tensor *ts_diagonal(ts_tensor *t, int64_t offset, int dim1, int dim2);
/* The functions that make several parts return a status and write views to `parts`, in order;
 * after an error all of these are NULL. */

/**
 * Parts of `size` elements along dim, the last one smaller when it does not divide.
 * Up to four parts are one op, whose gradient is one ts_cat() of the parts' gradients.
 * @param nparts  must be the number of parts: ceil(ts_size(t, dim) / size), 1 for an empty dim
 */
TS_API ts_status ts_split(ts_tensor *t, int64_t size, int dim, ts_tensor **parts, int nparts);
/**
 * ts_split() into `chunks` equal parts (the last one may be smaller). As in PyTorch there may be
 * fewer of them.
 * @param parts   has room for `chunks`; the rest become NULL
 * @param nparts  receives their number, 0 after an error; may be NULL
 */
TS_API ts_status ts_chunk(ts_tensor *t, int chunks, int dim, ts_tensor **parts, int *nparts);
/** ts_select() of each element along dim; n must be ts_size(t, dim). */
TS_API ts_status ts_unbind(ts_tensor *t, int dim, ts_tensor **parts, int n);

/** Copy of self with `src` in the place of ts_slice(self, dim, start, end, step). */
TS_API ts_tensor *ts_slice_scatter(ts_tensor *self, ts_tensor *src, int dim, int64_t start,
                                   int64_t end, int64_t step);
/** Copy of self with `src` in the place of ts_select(self, dim, index). */
TS_API ts_tensor *ts_select_scatter(ts_tensor *self, ts_tensor *src, int dim, int64_t index);
/** Zeros of `sizes` with g in the place of the slice: the gradient of ts_slice(). */
TS_API ts_tensor *ts_slice_backward(ts_tensor *g, const int64_t *sizes, int ndim, int dim,
                                    int64_t start, int64_t end, int64_t step);
/** Zeros of `sizes` with g on the diagonal: the gradient of ts_diagonal(). */
TS_API ts_tensor *ts_diagonal_backward(ts_tensor *g, const int64_t *sizes, int ndim, int64_t offset,
                                       int dim1, int dim2);

TS_END_DECLS
#endif
