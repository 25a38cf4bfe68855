/**
 * @file slice.h  Functions for parts of a tensor, besides those of generated.h. The section
 * view of generated.h explains views and negative dims and states the errors.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPS_SLICE_H
#define TESSERA_OPS_SLICE_H

#include "../core.h"

TS_BEGIN_DECLS

/** End argument of ts_slice() that means the end of the dim. */
#define TS_END INT64_MAX

/** View of `length` elements from `start` along dim; a negative start counts from the end. A range
 *  that is not within the dim is TS_ERR_INDEX; ts_slice() clamps. */
TS_API ts_tensor *ts_narrow(ts_tensor *t, int dim, int64_t start, int64_t length);
/* ts_split(), ts_chunk() and ts_unbind() write views to `parts`, in order; after an error all
 * entries of `parts` are NULL. A wrong number of parts is TS_ERR_VALUE. */

/**
 * Splits t into parts of `size` elements along dim; the last part may be smaller. A split into at
 * most four parts is one op, whose gradient is one ts_cat() of the parts' gradients.
 * @param nparts  must be the number of parts: ceil(ts_size(t, dim) / size), 1 for an empty dim
 */
TS_API ts_status ts_split(ts_tensor *t, int64_t size, int dim, ts_tensor **parts, int nparts);
/**
 * Splits t along dim into parts of ceil(ts_size(t, dim) / chunks) elements; the last part may be
 * smaller. As in PyTorch, there may be fewer than `chunks` parts; an empty dim gives one.
 * @param parts   receives the parts; has `chunks` entries, of which unused ones become NULL
 * @param nparts  receives the number of parts, 0 after an error; may be NULL
 */
TS_API ts_status ts_chunk(ts_tensor *t, int chunks, int dim, ts_tensor **parts, int *nparts);
/** ts_select() of each element along dim; n must be ts_size(t, dim). */
TS_API ts_status ts_unbind(ts_tensor *t, int dim, ts_tensor **parts, int n);

/** Copy of self in which `src` replaces ts_select(self, dim, index). */
TS_API ts_tensor *ts_select_scatter(ts_tensor *self, ts_tensor *src, int dim, int64_t index);

TS_END_DECLS
#endif
