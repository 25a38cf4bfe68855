/** @file copy.h  Copies, conversions, values out of tensors. */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPS_COPY_H
#define TESSERA_OPS_COPY_H

#include "../core.h"

TS_BEGIN_DECLS

/** t itself through a new handle when contiguous, else a contiguous copy. */
TS_API ts_tensor *ts_contiguous(ts_tensor *t);

/** Copies all elements, row-major and in the tensor's dtype, to `data`;
 * `bytes` must fit exactly. */
TS_API ts_status ts_copy_to(ts_tensor *t, void *data, size_t bytes);
/** The one element of a tensor as a double. Waits for the device. */
TS_API ts_status ts_item(ts_tensor *t, double *value);
/** The one element of an integer or bool tensor. */
TS_API ts_status ts_item_int(ts_tensor *t, int64_t *value);
/** Prints values (summarised above 1,000 elements), sizes, dtype and device to stdout. */
TS_API ts_status ts_print(ts_tensor *t);

TS_END_DECLS
#endif
