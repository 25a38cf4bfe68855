/** @file pointwise.c  Gradient rules of arithmetic and bounds. */
// SPDX-License-Identifier: MIT
#include "autograd/rule.h"

#include <math.h>

#define BOTH (READS(0) | READS(1))

/* In this file ARG(i) is argument i in the dtype of the call's result, in which the call
 * computed. */
#undef ARG
#define ARG(i) ts_rule_operand(b, i)

/** g op argument i, which may be a plain number. */
#define WITH(op, g, i)                                                                             \
    (ts_rule_arg(b, i)->tag == TS_TAG_TENSOR                                                       \
         ? ts_##op(g, ARG(i))                                                                      \
         : (ts_##op##_scalar)(g, ts_value_unbox(ts_rule_arg(b, i))))

RULES(add, (0, 0, g), (1, 0, g))
RULES(sub, (0, 0, g), (1, 0, ts_neg(ts_rule_reduce_to(b, 1, g))))
RULES(mul, (0, READS(1), WITH(mul, g, 1)), (1, READS(0), WITH(mul, g, 0)))

/* db = -(g / b) a / b. The sum over broadcast dims comes before the last division, because b is
 * constant along them. */
RULES_OF(div, WITH(div, GRAD(0), 1), (0, READS(1), g),
         (1, BOTH, ts_neg(ts_div(ts_rule_reduce_to(b, 1, WITH(mul, g, 0)), ARG(1)))))

RULES(remainder, (0, 0, g), (1, BOTH, ts_neg(ts_mul(g, ts_floor_divide(ARG(0), ARG(1))))))

/** g e x^(e-1) for a number e. */
static ts_tensor *pow_number(ts_tensor *g, ts_tensor *x, double e)
{
    if (e == 0)
        return ts_zeros_like(g);
    if (e == 1)
        return g;
    return ts_mul(g, ts_mul_scalar(e == 2 ? x : ts_pow_scalar(x, e - 1), e));
}

static ts_status pow_rule(ts_vjp_call *b)
{
    ts_tensor *g = GRAD(0);
    const ts_value *exponent = ts_rule_arg(b, 1);
    if (NEEDS(0)) {
        ts_tensor *x = X, *dx;
        if (exponent->tag == TS_TAG_TENSOR) { /* exponent 0: dx is 0, though x^-1 may be Inf */
            ts_tensor *e = ARG(1);
            dx = ts_mul(g, ts_mul(e, ts_pow(x, ts_sub_scalar(e, 1))));
            dx = ts_masked_fill_scalar(dx, ts_eq_scalar(e, 0), 0);
        } else {
            dx = pow_number(g, x, ts_value_number(exponent));
        }
        TS_TRY(ts_rule_give(b, 0, dx));
    }
    if (NEEDS(1)) { /* g y log(x), and 0 where x is 0 and the exponent is not negative */
        ts_tensor *e = ARG(1), *flat = ts_ge_scalar(e, 0), *slope;
        const ts_value *base = ts_rule_arg(b, 0);
        if (base->tag == TS_TAG_TENSOR) {
            ts_tensor *x = ARG(0);
            flat = ts_logical_and(ts_eq_scalar(x, 0), flat);
            slope = ts_masked_fill_scalar(ts_mul(Y, ts_log(x)), flat, 0);
        } else { /* log in double: bf16 or f16 would round a base near 1 to 1, and log(1) is 0 */
            double number = ts_value_number(base);
            slope = ts_mul_scalar(Y, log(number));
            slope = number == 0 ? ts_masked_fill_scalar(slope, flat, 0) : slope;
        }
        TS_TRY(ts_rule_give(b, 1, ts_mul(g, slope)));
    }
    return TS_OK;
}
const ts_vjp ts_vjp_pow = {.rule = pow_rule, .saves = {[0] = BOTH, [1] = BOTH | READS_Y}};

/** The gradient of argument i of maximum (larger) or minimum: g where it is the result, g / 2 where
 *  both arguments are equal, else 0. */
static ts_tensor *grad_of_extreme(ts_vjp_call *b, ts_tensor *g, int i, bool larger)
{
    ts_tensor *mine = ARG(i), *other = ARG(1 - i);
    ts_tensor *half = ts_where(ts_eq(mine, other), ts_mul_scalar(g, 0.5), g);
    return ts_masked_fill_scalar(half, larger ? ts_lt(mine, other) : ts_gt(mine, other), 0);
}
RULES(maximum, (0, BOTH, grad_of_extreme(b, g, 0, true)),
      (1, BOTH, grad_of_extreme(b, g, 1, true)))
RULES(minimum, (0, BOTH, grad_of_extreme(b, g, 0, false)),
      (1, BOTH, grad_of_extreme(b, g, 1, false)))

RULES_OF(atan2, ts_div(GRAD(0), ts_add(ts_square(ARG(0)), ts_square(ARG(1)))),
         (0, BOTH, ts_mul(g, ARG(1))), (1, BOTH, ts_neg(ts_mul(g, ARG(0)))))
RULES(hypot, (0, READS(0) | READS_Y, ts_mul(g, ts_div(ARG(0), Y))),
      (1, READS(1) | READS_Y, ts_mul(g, ts_div(ARG(1), Y))))

/** The gradient of lerp's start: g (1 - weight). g - g weight would cancel near weight 1. */
static ts_tensor *of_start(ts_vjp_call *b, ts_tensor *g)
{
    const ts_value *weight = ts_rule_arg(b, 2);
    return weight->tag == TS_TAG_TENSOR ? ts_mul(g, ts_rsub_scalar(ARG(2), 1))
                                        : ts_mul_scalar(g, 1 - ts_value_number(weight));
}
RULES(lerp, (0, READS(2), of_start(b, g)), (1, READS(2), WITH(mul, g, 2)),
      (2, BOTH, ts_mul(g, ts_sub(ARG(1), X))))

#define SCALED ts_mul_scalar(g, ts_value_unbox(ts_rule_arg(b, 3)))
RULES(addcmul, (0, 0, g), (1, READS(2), ts_mul(SCALED, ARG(2))),
      (2, READS(1), ts_mul(SCALED, ARG(1))))

static ts_status addcdiv_rule(ts_vjp_call *b)
{
    ts_tensor *g = GRAD(0);
    GIVE(0, g);
    if (!NEEDS(1) && !NEEDS(2))
        return TS_OK;
    ts_tensor *q = ts_div(SCALED, ARG(2));
    GIVE(1, q);
    GIVE(2, ts_neg(ts_div(ts_rule_reduce_to(b, 2, ts_mul(q, ARG(1))), ARG(2))));
    return TS_OK;
}
const ts_vjp ts_vjp_addcdiv = {.rule = addcdiv_rule,
                               .saves = {[1] = READS(2), [2] = READS(1) | READS(2)}};

/* ------------------------------------------------------------------------------ bounds ---- */

/** g where argument `self` is inside the bounds, arguments i and i + 1 (may be absent), else 0.
 *  open: the bounds themselves are outside. */
static ts_tensor *where_inside(ts_vjp_call *b, ts_tensor *g, int self, int i, bool open)
{
    const ts_value *low = ts_rule_arg(b, i), *high = ts_rule_arg(b, i + 1);
    ts_scalar min = ts_value_unbox(low), max = ts_value_unbox(high);
    return ts_clamp_backward(g, ARG(self), low->tag ? &min : NULL, high->tag ? &max : NULL, open);
}
RULE(clamp, READS_X, where_inside(b, g, 0, 1, false))
RULE(hardtanh, READS_X, where_inside(b, g, 0, 1, true))
RULES(clamp_backward, (0, READS(1), where_inside(b, g, 1, 2, INT(4))), (1, 0, ts_zeros_like(g)))
