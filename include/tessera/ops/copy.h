/** @file copy.h  Conversions of layout, copies of values to host memory, printing. */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPS_COPY_H
#define TESSERA_OPS_COPY_H

#include "../core.h"

TS_BEGIN_DECLS

/** An alias of t if t is contiguous, else a contiguous copy. Any dtype. */
TS_API ts_tensor *ts_contiguous(ts_tensor *t);
/**
 * The same elements in channels-last layout, (N, spatial dims, C) in memory, with gradients and of
 * any dtype: an alias of t if t has this layout, else a copy. Operators over images keep the
 * layout.
 * @param t  (N, C, L), (N, C, H, W) or (N, C, D, H, W)
 * @return a tensor of t's sizes and dtype; ts_contiguous() converts it back to the default layout.
 *         Errors: TS_ERR_SHAPE (number of dims), TS_ERR_NULL, TS_ERR_MEMORY, and those of the
 *         device
 */
TS_API ts_tensor *ts_to_channels_last(ts_tensor *t);

/** Copies all elements, row-major and in the tensor's dtype, to host memory at `data`. Waits for
 *  the device. Errors: TS_ERR_VALUE if `bytes` is not the exact size, TS_ERR_DEVICE for a META
 *  tensor, TS_ERR_NULL, and those of the device. */
TS_API ts_status ts_copy_to(ts_tensor *t, void *data, size_t bytes);
/** Writes the element of a one-element tensor of any dtype to *value; i64 values beyond 2^53 are
 *  rounded. Waits for the device. TS_ERR_SHAPE if t does not have one element; else errors as
 *  ts_copy_to(). */
TS_API ts_status ts_item(ts_tensor *t, double *value);
/** Like ts_item(), for an integer or bool tensor, without rounding; TS_ERR_DTYPE for a floating
 *  one. */
TS_API ts_status ts_item_int(ts_tensor *t, int64_t *value);
/** Prints values, sizes, dtype and device to stdout; of a META tensor no values. Above 1,000
 *  elements, prints only the first three and the last three of each dim. Waits for the device.
 *  Errors: TS_ERR_NULL, TS_ERR_MEMORY, and those of the device. */
TS_API ts_status ts_print(ts_tensor *t);

TS_END_DECLS
#endif
