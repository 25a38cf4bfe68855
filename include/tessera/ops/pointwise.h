/**
 * @file pointwise.h
 * Arithmetic. Shapes broadcast (numpy's rules); dtypes promote as in PyTorch: tensors with
 * dims decide, 0-dim tensors and scalars only raise the category (bool < integer < float).
 * In-place and _out forms need the exact result shape, dtype and device.
 * Errors: TS_ERR_SHAPE, TS_ERR_DTYPE, TS_ERR_DEVICE, TS_ERR_MEMORY.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPS_POINTWISE_H
#define TESSERA_OPS_POINTWISE_H

#include "../core.h"

TS_BEGIN_DECLS

/** The five forms of a binary op. */
#define TS_DECLARE_BINARY(name)                                                                 \
    TS_API ts_tensor *ts_##name(ts_tensor *self, ts_tensor *other);                             \
    TS_API ts_tensor *ts_##name##_scalar(ts_tensor *self, ts_scalar other);                     \
    TS_API ts_tensor *ts_##name##_(ts_tensor *self, ts_tensor *other);                          \
    TS_API ts_tensor *ts_##name##_scalar_(ts_tensor *self, ts_scalar other);                    \
    TS_API ts_tensor *ts_##name##_out(ts_tensor *out, ts_tensor *self, ts_tensor *other);

/** self + other. */
TS_DECLARE_BINARY(add)
/** self - other. */
TS_DECLARE_BINARY(sub)
/** self * other. */
TS_DECLARE_BINARY(mul)
/** self / other; integers are divided in f32. */
TS_DECLARE_BINARY(div)
/** floor(self / other), in the promoted dtype. TS_ERR_VALUE when an integer is divided by 0. */
TS_DECLARE_BINARY(floor_divide)
/** self - other * floor(self / other): the divisor's sign, as in Python.
 *  TS_ERR_VALUE for an integer divisor of 0. */
TS_DECLARE_BINARY(remainder)
/** self to the power of other. Integers wrap; a negative integer as exponent of integers gives
 *  what is left after truncation (0, 1 or -1), as a plain number TS_ERR_VALUE. */
TS_DECLARE_BINARY(pow)
/** The larger of both; NaN where either is NaN. */
TS_DECLARE_BINARY(maximum)
/** The smaller of both; NaN where either is NaN. */
TS_DECLARE_BINARY(minimum)
/** Angle in radians of the point (x = other, y = self), from -pi to pi. */
TS_DECLARE_BINARY(atan2)
/** self & other, of integers or bool. */
TS_DECLARE_BINARY(bitwise_and)
/** self | other, of integers or bool. */
TS_DECLARE_BINARY(bitwise_or)
/** self ^ other, of integers or bool. */
TS_DECLARE_BINARY(bitwise_xor)

/** other - self. */
TS_API ts_tensor *ts_rsub_scalar(ts_tensor *self, ts_scalar other);
/** other / self. */
TS_API ts_tensor *ts_rdiv_scalar(ts_tensor *self, ts_scalar other);
/** other to the power of self. */
TS_API ts_tensor *ts_rpow_scalar(ts_tensor *self, ts_scalar other);

/** self + weight * (end - self), of floating dtypes; exact at weights 0 and 1. */
TS_API ts_tensor *ts_lerp(ts_tensor *self, ts_tensor *end, ts_tensor *weight);
TS_API ts_tensor *ts_lerp_scalar(ts_tensor *self, ts_tensor *end, ts_scalar weight);
TS_API ts_tensor *ts_lerp_(ts_tensor *self, ts_tensor *end, ts_tensor *weight);
TS_API ts_tensor *ts_lerp_scalar_(ts_tensor *self, ts_tensor *end, ts_scalar weight);
/** self + value * a * b, of floating dtypes. */
TS_API ts_tensor *ts_addcmul(ts_tensor *self, ts_tensor *a, ts_tensor *b, ts_scalar value);
TS_API ts_tensor *ts_addcmul_(ts_tensor *self, ts_tensor *a, ts_tensor *b, ts_scalar value);
/** self + value * a / b, of floating dtypes. */
TS_API ts_tensor *ts_addcdiv(ts_tensor *self, ts_tensor *a, ts_tensor *b, ts_scalar value);
TS_API ts_tensor *ts_addcdiv_(ts_tensor *self, ts_tensor *a, ts_tensor *b, ts_scalar value);

/** min(max(self, min), max): max wherever min > max.
 * NaN stays; a bound of NaN makes everything NaN. */
TS_API ts_tensor *ts_clamp(ts_tensor *self, ts_scalar min, ts_scalar max);
TS_API ts_tensor *ts_clamp_(ts_tensor *self, ts_scalar min, ts_scalar max);
TS_API ts_tensor *ts_clamp_out(ts_tensor *out, ts_tensor *self, ts_scalar min, ts_scalar max);
/** max(self, min). */
TS_API ts_tensor *ts_clamp_min(ts_tensor *self, ts_scalar min);
TS_API ts_tensor *ts_clamp_min_(ts_tensor *self, ts_scalar min);
TS_API ts_tensor *ts_clamp_min_out(ts_tensor *out, ts_tensor *self, ts_scalar min);
/** min(self, max). */
TS_API ts_tensor *ts_clamp_max(ts_tensor *self, ts_scalar max);
TS_API ts_tensor *ts_clamp_max_(ts_tensor *self, ts_scalar max);
TS_API ts_tensor *ts_clamp_max_out(ts_tensor *out, ts_tensor *self, ts_scalar max);
/** As ts_clamp(), with the gradient 0 at the bounds themselves. */
TS_API ts_tensor *ts_hardtanh(ts_tensor *self, ts_scalar min, ts_scalar max);
TS_API ts_tensor *ts_hardtanh_(ts_tensor *self, ts_scalar min, ts_scalar max);
TS_API ts_tensor *ts_hardtanh_out(ts_tensor *out, ts_tensor *self, ts_scalar min, ts_scalar max);
/** ts_hardtanh() between 0 and 6. */
TS_API ts_tensor *ts_relu6(ts_tensor *self);
/**
 * grad where self is within the bounds, else 0.
 * @param min,max  NULL where there is no bound
 * @param open     the bounds themselves are outside
 */
TS_API ts_tensor *ts_clamp_backward(ts_tensor *grad, ts_tensor *self, const ts_scalar *min,
                                    const ts_scalar *max, bool open);

#ifndef __cplusplus
/* plain C numbers where a ts_scalar is expected */
#define ts_add_scalar(self, other) ts_add_scalar(self, TS_SCALAR(other))
#define ts_add_scalar_(self, other) ts_add_scalar_(self, TS_SCALAR(other))
#define ts_sub_scalar(self, other) ts_sub_scalar(self, TS_SCALAR(other))
#define ts_sub_scalar_(self, other) ts_sub_scalar_(self, TS_SCALAR(other))
#define ts_mul_scalar(self, other) ts_mul_scalar(self, TS_SCALAR(other))
#define ts_mul_scalar_(self, other) ts_mul_scalar_(self, TS_SCALAR(other))
#define ts_div_scalar(self, other) ts_div_scalar(self, TS_SCALAR(other))
#define ts_div_scalar_(self, other) ts_div_scalar_(self, TS_SCALAR(other))
#define ts_floor_divide_scalar(self, other) ts_floor_divide_scalar(self, TS_SCALAR(other))
#define ts_floor_divide_scalar_(self, other) ts_floor_divide_scalar_(self, TS_SCALAR(other))
#define ts_remainder_scalar(self, other) ts_remainder_scalar(self, TS_SCALAR(other))
#define ts_remainder_scalar_(self, other) ts_remainder_scalar_(self, TS_SCALAR(other))
#define ts_pow_scalar(self, other) ts_pow_scalar(self, TS_SCALAR(other))
#define ts_pow_scalar_(self, other) ts_pow_scalar_(self, TS_SCALAR(other))
#define ts_maximum_scalar(self, other) ts_maximum_scalar(self, TS_SCALAR(other))
#define ts_maximum_scalar_(self, other) ts_maximum_scalar_(self, TS_SCALAR(other))
#define ts_minimum_scalar(self, other) ts_minimum_scalar(self, TS_SCALAR(other))
#define ts_minimum_scalar_(self, other) ts_minimum_scalar_(self, TS_SCALAR(other))
#define ts_atan2_scalar(self, other) ts_atan2_scalar(self, TS_SCALAR(other))
#define ts_atan2_scalar_(self, other) ts_atan2_scalar_(self, TS_SCALAR(other))
#define ts_bitwise_and_scalar(self, other) ts_bitwise_and_scalar(self, TS_SCALAR(other))
#define ts_bitwise_and_scalar_(self, other) ts_bitwise_and_scalar_(self, TS_SCALAR(other))
#define ts_bitwise_or_scalar(self, other) ts_bitwise_or_scalar(self, TS_SCALAR(other))
#define ts_bitwise_or_scalar_(self, other) ts_bitwise_or_scalar_(self, TS_SCALAR(other))
#define ts_bitwise_xor_scalar(self, other) ts_bitwise_xor_scalar(self, TS_SCALAR(other))
#define ts_bitwise_xor_scalar_(self, other) ts_bitwise_xor_scalar_(self, TS_SCALAR(other))
#define ts_rsub_scalar(self, other) ts_rsub_scalar(self, TS_SCALAR(other))
#define ts_rdiv_scalar(self, other) ts_rdiv_scalar(self, TS_SCALAR(other))
#define ts_rpow_scalar(self, other) ts_rpow_scalar(self, TS_SCALAR(other))
#define ts_lerp_scalar(self, end, weight) ts_lerp_scalar(self, end, TS_SCALAR(weight))
#define ts_addcmul(self, a, b, value) ts_addcmul(self, a, b, TS_SCALAR(value))
#define ts_addcdiv(self, a, b, value) ts_addcdiv(self, a, b, TS_SCALAR(value))
#define ts_lerp_scalar_(self, end, weight) ts_lerp_scalar_(self, end, TS_SCALAR(weight))
#define ts_addcmul_(self, a, b, value) ts_addcmul_(self, a, b, TS_SCALAR(value))
#define ts_addcdiv_(self, a, b, value) ts_addcdiv_(self, a, b, TS_SCALAR(value))
#define ts_clamp(self, min, max) ts_clamp(self, TS_SCALAR(min), TS_SCALAR(max))
#define ts_clamp_(self, min, max) ts_clamp_(self, TS_SCALAR(min), TS_SCALAR(max))
#define ts_clamp_out(out, self, min, max) ts_clamp_out(out, self, TS_SCALAR(min), TS_SCALAR(max))
#define ts_hardtanh(self, min, max) ts_hardtanh(self, TS_SCALAR(min), TS_SCALAR(max))
#define ts_hardtanh_(self, min, max) ts_hardtanh_(self, TS_SCALAR(min), TS_SCALAR(max))
#define ts_hardtanh_out(out, self, min, max)                                                       \
    ts_hardtanh_out(out, self, TS_SCALAR(min), TS_SCALAR(max))
#define ts_clamp_min(self, min) ts_clamp_min(self, TS_SCALAR(min))
#define ts_clamp_min_(self, min) ts_clamp_min_(self, TS_SCALAR(min))
#define ts_clamp_min_out(out, self, min) ts_clamp_min_out(out, self, TS_SCALAR(min))
#define ts_clamp_max(self, max) ts_clamp_max(self, TS_SCALAR(max))
#define ts_clamp_max_(self, max) ts_clamp_max_(self, TS_SCALAR(max))
#define ts_clamp_max_out(out, self, max) ts_clamp_max_out(out, self, TS_SCALAR(max))
#endif

TS_END_DECLS
#endif
