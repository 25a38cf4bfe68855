/**
 * @file compare.h
 * Comparisons and tests, which give bool, and choices made by them. Shapes broadcast;
 * dtypes promote for the comparison as in pointwise.h. _out forms need a destination of bool.
 * Errors: TS_ERR_SHAPE, TS_ERR_DTYPE, TS_ERR_DEVICE, TS_ERR_MEMORY.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPS_COMPARE_H
#define TESSERA_OPS_COMPARE_H

#include "../core.h"

TS_BEGIN_DECLS

/** The three forms of a comparison. */
#define TS_DECLARE_COMPARE(name)                                              \
    TS_API ts_tensor *ts_##name(ts_tensor *self, ts_tensor *other);           \
    TS_API ts_tensor *ts_##name##_scalar(ts_tensor *self, ts_scalar other);   \
    TS_API ts_tensor *ts_##name##_out(ts_tensor *out, ts_tensor *self, ts_tensor *other);

/** self == other. */
TS_DECLARE_COMPARE(eq)
/** self != other. */
TS_DECLARE_COMPARE(ne)
/** self < other. */
TS_DECLARE_COMPARE(lt)
/** self <= other. */
TS_DECLARE_COMPARE(le)
/** self > other. */
TS_DECLARE_COMPARE(gt)
/** self >= other. */
TS_DECLARE_COMPARE(ge)
/** Both are not 0. */
TS_DECLARE_COMPARE(logical_and)
/** One of both is not 0. */
TS_DECLARE_COMPARE(logical_or)
/** Exactly one of both is not 0. */
TS_DECLARE_COMPARE(logical_xor)

/** self is 0. */
TS_API ts_tensor *ts_logical_not(ts_tensor *self);
TS_API ts_tensor *ts_logical_not_out(ts_tensor *out, ts_tensor *self);
/** ~self of integers, not self of bool; keeps the dtype. */
TS_API ts_tensor *ts_bitwise_not(ts_tensor *self);
TS_API ts_tensor *ts_bitwise_not_(ts_tensor *self);
TS_API ts_tensor *ts_bitwise_not_out(ts_tensor *out, ts_tensor *self);
/** Is not a number; false for integers. */
TS_API ts_tensor *ts_isnan(ts_tensor *self);
TS_API ts_tensor *ts_isnan_out(ts_tensor *out, ts_tensor *self);
/** Is infinite; false for integers. */
TS_API ts_tensor *ts_isinf(ts_tensor *self);
TS_API ts_tensor *ts_isinf_out(ts_tensor *out, ts_tensor *self);
/** Is neither infinite nor NaN; true for integers. */
TS_API ts_tensor *ts_isfinite(ts_tensor *self);
TS_API ts_tensor *ts_isfinite_out(ts_tensor *out, ts_tensor *self);

/** self where condition (bool) holds, else other. self and other promote; all three broadcast. */
TS_API ts_tensor *ts_where(ts_tensor *condition, ts_tensor *self, ts_tensor *other);
TS_API ts_tensor *ts_where_out(ts_tensor *out, ts_tensor *condition, ts_tensor *self,
                               ts_tensor *other);
TS_API ts_tensor *ts_where_scalar(ts_tensor *condition, ts_tensor *self, ts_scalar other);
TS_API ts_tensor *ts_where_scalars(ts_tensor *condition, ts_scalar self, ts_scalar other);
/**
 * value where mask (bool) holds, else self; keeps self's dtype. self and mask broadcast.
 * @param value  a number, or a tensor without dims; not floating when self is not
 */
TS_API ts_tensor *ts_masked_fill(ts_tensor *self, ts_tensor *mask, ts_tensor *value);
TS_API ts_tensor *ts_masked_fill_(ts_tensor *self, ts_tensor *mask, ts_tensor *value);
TS_API ts_tensor *ts_masked_fill_scalar(ts_tensor *self, ts_tensor *mask, ts_scalar value);
TS_API ts_tensor *ts_masked_fill_scalar_(ts_tensor *self, ts_tensor *mask, ts_scalar value);

#ifndef __cplusplus
/* plain C numbers where a ts_scalar is expected */
#define ts_eq_scalar(self, other) ts_eq_scalar(self, TS_SCALAR(other))
#define ts_ne_scalar(self, other) ts_ne_scalar(self, TS_SCALAR(other))
#define ts_lt_scalar(self, other) ts_lt_scalar(self, TS_SCALAR(other))
#define ts_le_scalar(self, other) ts_le_scalar(self, TS_SCALAR(other))
#define ts_gt_scalar(self, other) ts_gt_scalar(self, TS_SCALAR(other))
#define ts_ge_scalar(self, other) ts_ge_scalar(self, TS_SCALAR(other))
#define ts_logical_and_scalar(self, other) ts_logical_and_scalar(self, TS_SCALAR(other))
#define ts_logical_or_scalar(self, other) ts_logical_or_scalar(self, TS_SCALAR(other))
#define ts_logical_xor_scalar(self, other) ts_logical_xor_scalar(self, TS_SCALAR(other))
#define ts_where_scalar(condition, self, other) ts_where_scalar(condition, self, TS_SCALAR(other))
#define ts_where_scalars(condition, self, other)                                                   \
    ts_where_scalars(condition, TS_SCALAR(self), TS_SCALAR(other))
#define ts_masked_fill_scalar(self, mask, value) ts_masked_fill_scalar(self, mask, TS_SCALAR(value))
#define ts_masked_fill_scalar_(self, mask, value)                                                  \
    ts_masked_fill_scalar_(self, mask, TS_SCALAR(value))
#endif

TS_END_DECLS
#endif
