/** @file pointwise.c  Rules of arithmetic and bounds. */
// SPDX-License-Identifier: MIT
#include "autograd/rule.h"

static ts_status add(ts_vjp_call *b)
{
    ts_tensor *g = ts_rule_grad(b, 0);
    GIVE(0, g);
    GIVE(1, g);
    return TS_OK;
}
const ts_vjp ts_vjp_add = {.rule = add};

static ts_status sub(ts_vjp_call *b)
{
    ts_tensor *g = ts_rule_grad(b, 0);
    GIVE(0, g);
    GIVE(1, ts_neg(ts_rule_reduce_to(b, 1, g)));
    return TS_OK;
}
const ts_vjp ts_vjp_sub = {.rule = sub};

/** g op argument i, which may be a plain number. */
#define WITH(op, g, i)                                                              \
    (ts_rule_arg(b, i)->tag == TS_TAG_TENSOR ? ts_##op(g, ts_rule_saved_arg(b, i))            \
                                        : (ts_##op##_scalar)(g, ts_value_unbox(ts_rule_arg(b, i))))

static ts_status mul(ts_vjp_call *b)
{
    ts_tensor *g = ts_rule_grad(b, 0);
    for (int i = 0; i < 2; i++)
        GIVE(i, WITH(mul, g, 1 - i));
    return TS_OK;
}
const ts_vjp ts_vjp_mul = {.rule = mul, .saves = {[0] = TS_SAVE_ARG(1), [1] = TS_SAVE_ARG(0)}};

static ts_status div_rule(ts_vjp_call *b)
{
    ts_tensor *g = WITH(div, ts_rule_grad(b, 0), 1);
    GIVE(0, g);
    if (ts_rule_needs(b, 1)) { /* -g a / b^2; the second b is constant along what is summed */
        ts_tensor *sum = ts_rule_reduce_to(b, 1, WITH(mul, g, 0));
        TS_TRY(ts_rule_give(b, 1, ts_neg(ts_div(sum, ts_rule_saved_arg(b, 1)))));
    }
    return TS_OK;
}
const ts_vjp ts_vjp_div = {.rule = div_rule,
                           .saves = {[0] = TS_SAVE_ARG(1), [1] = TS_SAVE_ARG(0) | TS_SAVE_ARG(1)}};

static ts_status remainder_rule(ts_vjp_call *b)
{
    ts_tensor *g = ts_rule_grad(b, 0);
    GIVE(0, g);
    if (ts_rule_needs(b, 1)) {
        ts_tensor *other = ts_rule_saved_arg(b, 1);
        ts_tensor *self = ts_rule_arg(b, 0)->tag == TS_TAG_TENSOR
                              ? ts_rule_saved_arg(b, 0)
                              : (ts_full_like)(other, ts_value_unbox(ts_rule_arg(b, 0)));
        TS_TRY(ts_rule_give(
            b, 1, ts_rule_reduce_to(b, 1, ts_neg(ts_mul(g, ts_floor_divide(self, other))))));
    }
    return TS_OK;
}
const ts_vjp ts_vjp_remainder = {.rule = remainder_rule,
                                 .saves = {[1] = TS_SAVE_ARG(0) | TS_SAVE_ARG(1)}};

/** g e x^(e-1) for a number e. */
static ts_tensor *pow_number(ts_tensor *g, ts_tensor *x, double e)
{
    if (e == 0)
        return ts_zeros_like(g);
    if (e == 1)
        return g;
    return ts_mul(ts_mul_scalar(g, e), e == 2 ? x : ts_pow_scalar(x, e - 1));
}

static ts_status pow_rule(ts_vjp_call *b)
{
    ts_tensor *g = ts_rule_grad(b, 0);
    const ts_value *self = ts_rule_arg(b, 0), *exponent = ts_rule_arg(b, 1);
    if (ts_rule_needs(b, 0)) {
        ts_tensor *x = ts_rule_saved_arg(b, 0), *dx;
        if (exponent->tag == TS_TAG_TENSOR) { /* where the exponent is 0, x^-1 may be infinite */
            ts_tensor *e = ts_rule_saved_arg(b, 1);
            dx = ts_mul(g, ts_mul(e, ts_pow(x, ts_sub_scalar(e, 1))));
            dx = ts_masked_fill_scalar(dx, ts_eq_scalar(e, 0), 0);
        } else {
            dx = pow_number(g, x, ts_value_number(exponent));
        }
        TS_TRY(ts_rule_give(b, 0, dx));
    }
    if (ts_rule_needs(b, 1)) { /* g y log(x), and 0 where x is 0 and so is the limit */
        ts_tensor *e = ts_rule_saved_arg(b, 1), *y = ts_rule_saved_ret(b, 0);
        ts_tensor *x = self->tag == TS_TAG_TENSOR ? ts_rule_saved_arg(b, 0)
                                                  : (ts_full_like)(e, ts_value_unbox(self));
        ts_tensor *flat = ts_logical_and(ts_eq_scalar(x, 0), ts_ge_scalar(e, 0));
        ts_tensor *slope = ts_masked_fill_scalar(ts_mul(y, ts_log(x)), flat, 0);
        TS_TRY(ts_rule_give(b, 1, ts_mul(g, slope)));
    }
    return TS_OK;
}
const ts_vjp ts_vjp_pow = {.rule = pow_rule,
                           .saves = {[0] = TS_SAVE_ARG(0) | TS_SAVE_ARG(1),
                                     [1] = TS_SAVE_ARG(0) | TS_SAVE_ARG(1) | TS_SAVE_RET(0)}};

/** Argument i as a tensor, or a tensor without dims that holds the number. */
static ts_tensor *operand(ts_vjp_call *b, int i)
{
    const ts_value *v = ts_rule_arg(b, i);
    if (v->tag == TS_TAG_TENSOR)
        return ts_rule_saved_arg(b, i);
    return (ts_full)(NULL, 0, ts_value_unbox(v), ts_rule_grad(b, 0)->dtype);
}

/** g where argument i wins, g / 2 where both are equal. */
static ts_tensor *winner(ts_vjp_call *b, int i, bool larger)
{
    ts_tensor *g = ts_rule_grad(b, 0), *mine = operand(b, i), *other = operand(b, 1 - i);
    ts_tensor *half = ts_where(ts_eq(mine, other), ts_mul_scalar(g, 0.5), g);
    return ts_masked_fill_scalar(half, larger ? ts_lt(mine, other) : ts_gt(mine, other), 0);
}
static ts_status maximum_rule(ts_vjp_call *b)
{
    for (int i = 0; i < 2; i++)
        GIVE(i, winner(b, i, true));
    return TS_OK;
}
static ts_status minimum_rule(ts_vjp_call *b)
{
    for (int i = 0; i < 2; i++)
        GIVE(i, winner(b, i, false));
    return TS_OK;
}
#define BOTH (TS_SAVE_ARG(0) | TS_SAVE_ARG(1))
const ts_vjp ts_vjp_maximum = {.rule = maximum_rule, .always = BOTH};
const ts_vjp ts_vjp_minimum = {.rule = minimum_rule, .always = BOTH};

static ts_status atan2_rule(ts_vjp_call *b)
{
    ts_tensor *y = operand(b, 0), *x = operand(b, 1);
    ts_tensor *g = ts_div(ts_rule_grad(b, 0), ts_add(ts_square(y), ts_square(x)));
    GIVE(0, ts_mul(g, x));
    GIVE(1, ts_neg(ts_mul(g, y)));
    return TS_OK;
}
const ts_vjp ts_vjp_atan2 = {.rule = atan2_rule, .always = BOTH};

static ts_status hypot_rule(ts_vjp_call *b)
{
    ts_tensor *g = ts_div(ts_rule_grad(b, 0), ts_rule_saved_ret(b, 0));
    for (int i = 0; i < 2; i++)
        GIVE(i, ts_mul(g, operand(b, i)));
    return TS_OK;
}
const ts_vjp ts_vjp_hypot = {.rule = hypot_rule, .always = BOTH | TS_SAVE_RET(0)};

static ts_status lerp_rule(ts_vjp_call *b)
{
    ts_tensor *g = ts_rule_grad(b, 0);
    if (ts_rule_needs(b, 0)) {
        ts_tensor *weighted = ts_sub(g, WITH(mul, g, 2));
        TS_TRY(ts_rule_give(b, 0, weighted));
    }
    GIVE(1, WITH(mul, g, 2));
    if (ts_rule_needs(b, 2)) {
        ts_tensor *way = ts_sub(ts_rule_saved_arg(b, 1), ts_rule_saved_arg(b, 0));
        TS_TRY(ts_rule_give(b, 2, ts_mul(g, way)));
    }
    return TS_OK;
}
const ts_vjp ts_vjp_lerp = {.rule = lerp_rule,
                            .saves = {[0] = TS_SAVE_ARG(2), [1] = TS_SAVE_ARG(2), [2] = BOTH}};

static ts_status addcmul_rule(ts_vjp_call *b)
{
    ts_tensor *g = ts_rule_grad(b, 0);
    ts_scalar value = ts_value_unbox(ts_rule_arg(b, 3));
    GIVE(0, g);
    for (int i = 1; i < 3; i++)
        if (ts_rule_needs(b, i)) {
            ts_tensor *product = ts_mul(ts_mul_scalar(g, value), ts_rule_saved_arg(b, 3 - i));
            TS_TRY(ts_rule_give(b, i, product));
        }
    return TS_OK;
}
const ts_vjp ts_vjp_addcmul = {.rule = addcmul_rule,
                               .saves = {[1] = TS_SAVE_ARG(2), [2] = TS_SAVE_ARG(1)}};

static ts_status addcdiv_rule(ts_vjp_call *b)
{
    ts_tensor *g = ts_rule_grad(b, 0);
    GIVE(0, g);
    if (!ts_rule_needs(b, 1) && !ts_rule_needs(b, 2))
        return TS_OK;
    ts_tensor *q =
        ts_div(ts_mul_scalar(g, ts_value_unbox(ts_rule_arg(b, 3))), ts_rule_saved_arg(b, 2));
    GIVE(1, q);
    if (ts_rule_needs(b, 2)) {
        ts_tensor *sum = ts_rule_reduce_to(b, 2, ts_mul(q, ts_rule_saved_arg(b, 1)));
        TS_TRY(ts_rule_give(b, 2, ts_neg(ts_div(sum, ts_rule_saved_arg(b, 2)))));
    }
    return TS_OK;
}
const ts_vjp ts_vjp_addcdiv = {
    .rule = addcdiv_rule, .saves = {[1] = TS_SAVE_ARG(2), [2] = TS_SAVE_ARG(1) | TS_SAVE_ARG(2)}};

/* ------------------------------------------------------------------------------ bounds ---- */

/** The gradient g inside the bounds that are arguments i and i + 1. */
static ts_tensor *inside(ts_vjp_call *b, ts_tensor *g, int self, int i, bool open)
{
    const ts_value *low = ts_rule_arg(b, i), *high = ts_rule_arg(b, i + 1);
    ts_scalar min = ts_value_unbox(low), max = ts_value_unbox(high);
    return ts_clamp_backward(g, ts_rule_saved_arg(b, self), low->tag ? &min : NULL,
                             high->tag ? &max : NULL, open);
}
static ts_status clamp_rule(ts_vjp_call *b)
{
    return ts_rule_give(b, 0, inside(b, ts_rule_grad(b, 0), 0, 1, false));
}
static ts_status hardtanh_rule(ts_vjp_call *b)
{
    return ts_rule_give(b, 0, inside(b, ts_rule_grad(b, 0), 0, 1, true));
}
static ts_status clamp_backward_rule(ts_vjp_call *b)
{
    ts_tensor *g = ts_rule_grad(b, 0);
    GIVE(0, inside(b, g, 1, 2, ts_rule_arg(b, 4)->i));
    GIVE(1, ts_zeros_like(g));
    return TS_OK;
}
const ts_vjp ts_vjp_clamp = {.rule = clamp_rule, .saves = {[0] = TS_SAVE_ARG(0)}};
const ts_vjp ts_vjp_hardtanh = {.rule = hardtanh_rule, .saves = {[0] = TS_SAVE_ARG(0)}};
const ts_vjp ts_vjp_clamp_backward = {.rule = clamp_backward_rule, .saves = {[0] = TS_SAVE_ARG(1)}};
