/** @file copy.h  Copies, conversions, values out of tensors. */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPS_COPY_H
#define TESSERA_OPS_COPY_H

#include "../core.h"

TS_BEGIN_DECLS

/** Contiguous copy with its own storage. */
TS_API ts_tensor *ts_clone(ts_tensor *t);
/** Values of source into destination (broadcast and converted); returns destination. */
TS_API ts_tensor *ts_copy_(ts_tensor *destination, ts_tensor *source);
/** Values as another dtype (float to integer truncates; to bool: not zero). Always a new tensor. */
TS_API ts_tensor *ts_to(ts_tensor *t, ts_dtype dtype);
/**
 * Values on another device; always a new, contiguous tensor. To META go sizes and dtype alone.
 * Errors: TS_ERR_UNSUPPORTED (from META, whose tensors have no values, or to a device without a
 * kernel for it), TS_ERR_DEVICE (no device).
 */
TS_API ts_tensor *ts_to_device(ts_tensor *t, ts_device device);
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
