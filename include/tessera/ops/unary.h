/**
 * @file unary.h
 * Elementary functions of one tensor. The result has self's sizes.
 *
 * neg to frac keep the dtype (rounding an integer gives it back); from exp on, integers and bool
 * are computed in f32 and give f32. f32 results are within 2 ulp of the exact value, rounded
 * functions, neg, abs, square and sqrt exact. In-place and _out forms need the result's dtype,
 * shape and device. Errors: TS_ERR_DTYPE, TS_ERR_SHAPE, TS_ERR_MEMORY.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPS_UNARY_H
#define TESSERA_OPS_UNARY_H

#include "../core.h"

TS_BEGIN_DECLS

/** The three forms of a unary op. */
#define TS_DECLARE_UNARY(name)                         \
    TS_API ts_tensor *ts_##name(ts_tensor *self);      \
    TS_API ts_tensor *ts_##name##_(ts_tensor *self);   \
    TS_API ts_tensor *ts_##name##_out(ts_tensor *out, ts_tensor *self);

/** -self. Not defined for bool. */
TS_DECLARE_UNARY(neg)
/** |self|. */
TS_DECLARE_UNARY(abs)
/** -1, 0 or 1; 0 for NaN. */
TS_DECLARE_UNARY(sign)
/** self * self. */
TS_DECLARE_UNARY(square)
/** Largest integer not above self. */
TS_DECLARE_UNARY(floor)
/** Smallest integer not below self. */
TS_DECLARE_UNARY(ceil)
/** Nearest integer, halves to the even one. */
TS_DECLARE_UNARY(round)
/** Integer part, towards zero. */
TS_DECLARE_UNARY(trunc)
/** self - trunc(self); floating dtypes only. */
TS_DECLARE_UNARY(frac)
/** e^self. */
TS_DECLARE_UNARY(exp)
/** 2^self. */
TS_DECLARE_UNARY(exp2)
/** e^self - 1, accurate near 0. */
TS_DECLARE_UNARY(expm1)
/** Natural logarithm; NaN below 0. */
TS_DECLARE_UNARY(log)
/** Logarithm to base 2. */
TS_DECLARE_UNARY(log2)
/** Logarithm to base 10. */
TS_DECLARE_UNARY(log10)
/** log(1 + self), accurate near 0. */
TS_DECLARE_UNARY(log1p)
/** Square root; NaN below 0. */
TS_DECLARE_UNARY(sqrt)
/** 1 / sqrt(self). */
TS_DECLARE_UNARY(rsqrt)
/** 1 / self. */
TS_DECLARE_UNARY(reciprocal)
/** Sine of radians. */
TS_DECLARE_UNARY(sin)
/** Cosine of radians. */
TS_DECLARE_UNARY(cos)
/** Tangent of radians. */
TS_DECLARE_UNARY(tan)
/** Inverse sine, in radians. */
TS_DECLARE_UNARY(asin)
/** Inverse cosine, in radians. */
TS_DECLARE_UNARY(acos)
/** Inverse tangent, in radians. */
TS_DECLARE_UNARY(atan)
/** Hyperbolic sine. */
TS_DECLARE_UNARY(sinh)
/** Hyperbolic cosine. */
TS_DECLARE_UNARY(cosh)
/** Error function 2/sqrt(pi) times the integral of e^(-t^2) from 0 to self. */
TS_DECLARE_UNARY(erf)
/** 1 - erf(self), accurate where erf is near 1. */
TS_DECLARE_UNARY(erfc)

TS_END_DECLS
#endif
