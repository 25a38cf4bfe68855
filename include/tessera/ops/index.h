/**
 * @file index.h  Handwritten indexing functions. generated.h has the family's common contract.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPS_INDEX_H
#define TESSERA_OPS_INDEX_H

#include "../core.h"

TS_BEGIN_DECLS

/** ts_gather() after broadcasting self and index to each other in all dims except dim. They have
 *  the same number of dims. */
TS_API ts_tensor *ts_take_along_dim(ts_tensor *self, ts_tensor *index, int dim);

TS_END_DECLS
#endif
