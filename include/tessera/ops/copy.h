/** @file copy.h  Copies, conversions, values out of tensors. */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPS_COPY_H
#define TESSERA_OPS_COPY_H

#include "../core.h"

TS_BEGIN_DECLS

/** An alias of t if t is contiguous, else a contiguous copy. Any dtype. */
TS_API ts_tensor *ts_contiguous(ts_tensor *t);

/** Copies all elements, row-major and in the tensor's dtype, to `data`; `bytes` must be the exact
 *  size. Waits for the device. */
TS_API ts_status ts_copy_to(ts_tensor *t, void *data, size_t bytes);
/** The only element of a tensor of any dtype as a double. Waits for the device. */
TS_API ts_status ts_item(ts_tensor *t, double *value);
/** The only element of an integer or bool tensor. Waits for the device. */
TS_API ts_status ts_item_int(ts_tensor *t, int64_t *value);
/** Prints values (summarised above 1,000 elements), sizes, dtype and device to stdout. */
TS_API ts_status ts_print(ts_tensor *t);

TS_END_DECLS
#endif
