/** @file unary.c  Gradient rules of the elementary functions. */
// SPDX-License-Identifier: MIT
#include "autograd/rule.h"

#define LN2 0.69314718055994530942
#define LN10 2.30258509299404568402
#define TWO_OVER_SQRT_PI 1.12837916709551257390

RULE(neg, 0, ts_neg(g))
RULE(abs, READS_X, ts_mul(g, ts_sign(X)))
RULE(step, 0, ts_zeros_like(g)) /* piecewise constant */
RULE(square, READS_X, ts_mul(ts_mul_scalar(g, 2), X))
RULE(exp, READS_Y, ts_mul(g, Y))
RULE(exp2, READS_Y, ts_mul(ts_mul_scalar(g, LN2), Y))
RULE(expm1, READS_Y, ts_mul(g, ts_add_scalar(Y, 1)))
RULE(log, READS_X, ts_div(g, X))
RULE(log2, READS_X, ts_div(g, ts_mul_scalar(X, LN2)))
RULE(log10, READS_X, ts_div(g, ts_mul_scalar(X, LN10)))
RULE(log1p, READS_X, ts_div(g, ts_add_scalar(X, 1)))
RULE(sqrt, READS_Y, ts_div(ts_mul_scalar(g, 0.5), Y))
RULE(rsqrt, READS_Y, ts_mul(ts_mul(ts_mul_scalar(g, -0.5), Y), ts_square(Y)))
RULE(reciprocal, READS_Y, ts_neg(ts_mul(g, ts_square(Y))))
RULE(sin, READS_X, ts_mul(g, ts_cos(X)))
RULE(cos, READS_X, ts_neg(ts_mul(g, ts_sin(X))))
RULE(tan, READS_Y, ts_mul(g, ts_add_scalar(ts_square(Y), 1)))
RULE(asin, READS_X, ts_mul(g, ts_rsqrt(ts_rsub_scalar(ts_square(X), 1))))
RULE(acos, READS_X, ts_neg(ts_mul(g, ts_rsqrt(ts_rsub_scalar(ts_square(X), 1)))))
RULE(atan, READS_X, ts_div(g, ts_add_scalar(ts_square(X), 1)))
RULE(sinh, READS_X, ts_mul(g, ts_cosh(X)))
RULE(cosh, READS_X, ts_mul(g, ts_sinh(X)))
/* The slope of erf, factor * exp(-x^2), is computed before g multiplies it: g times the factor,
 * which is above 1, may overflow. */
#define BELL(factor) ts_mul_scalar(ts_exp(ts_neg(ts_square(X))), factor)
RULE(erf, READS_X, ts_mul(g, BELL(TWO_OVER_SQRT_PI)))
RULE(erfc, READS_X, ts_mul(g, BELL(-TWO_OVER_SQRT_PI)))
