/**
 * @file index.h  A function that reads by an index tensor, besides those of generated.h. The
 * section index of generated.h states the dtypes and errors.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPS_INDEX_H
#define TESSERA_OPS_INDEX_H

#include "../core.h"

TS_BEGIN_DECLS

/** ts_gather() after self and index are broadcast to each other in all dims except dim. self and
 *  index have the same number of dims. */
TS_API ts_tensor *ts_take_along_dim(ts_tensor *self, ts_tensor *index, int dim);

TS_END_DECLS
#endif
