/** @file activation.c  Rules of the activation functions: one fused call each. */
// SPDX-License-Identifier: MIT
#include "autograd/rule.h"

RULE(relu, READS_Y, ts_threshold_backward(g, Y, 0))
RULE(leaky_relu, READS_X, ts_leaky_relu_backward(g, X, ts_rule_arg(b, 1)->d))
RULE(elu, READS_X, ts_elu_backward(g, X, ts_rule_arg(b, 1)->d))
RULE(sigmoid, READS_Y, ts_sigmoid_backward(g, Y))
RULE(tanh, READS_Y, ts_tanh_backward(g, Y))
RULE(log_sigmoid, READS_X, ts_mul(g, ts_sigmoid(ts_neg(X))))
RULE(gelu, READS_X, ts_gelu_backward(g, X, ts_rule_arg(b, 1)->i))
RULE(silu, READS_X, ts_silu_backward(g, X))
RULE(softplus, READS_X, ts_softplus_backward(g, X, ts_rule_arg(b, 1)->d, ts_rule_arg(b, 2)->d))

/* ---------------------------------------------------------------- gradients of gradients ---- */

/* Argument 0 is the gradient that came, argument 1 what the derivative is computed from. */
#define READS_GRAD TS_SAVE_ARG(0)
#define READS_POINT TS_SAVE_ARG(1)
#define POINT ts_rule_saved_arg(b, 1)

/** A derivative that is constant by pieces: its own gradient is zero. */
#define RULE_OF_STEPS(name, expr)                                          \
    static ts_status name##_rule(ts_vjp_call *b)                           \
    {                                                                      \
        ts_tensor *g = ts_rule_grad(b, 0);                                  \
        if (ts_rule_needs(b, 0))                                                \
            TS_TRY(ts_rule_give(b, 0, expr));                                   \
        if (ts_rule_needs(b, 1))                                                \
            TS_TRY(ts_rule_give(b, 1, ts_zeros_like(g)));                       \
        return TS_OK;                                                      \
    }                                                                      \
    const ts_vjp ts_vjp_##name = {.rule = name##_rule, .saves = {[0] = READS_POINT}};

RULE_OF_STEPS(threshold_backward, ts_threshold_backward(g, POINT, ts_rule_arg(b, 2)->d))
RULE_OF_STEPS(leaky_relu_backward, ts_leaky_relu_backward(g, POINT, ts_rule_arg(b, 2)->d))

static ts_status tanh_backward_rule(ts_vjp_call *b)
{
    ts_tensor *g = ts_rule_grad(b, 0);
    GIVE(0, ts_tanh_backward(g, POINT));
    if (ts_rule_needs(b, 1)) /* d(1 - y^2) = -2 y */
        TS_TRY(ts_rule_give(b, 1,
                            ts_mul(ts_mul_scalar(ts_mul(g, ts_rule_saved_arg(b, 0)), -2), POINT)));
    return TS_OK;
}
const ts_vjp ts_vjp_tanh_backward = {.rule = tanh_backward_rule,
                                     .saves = {[0] = READS_POINT, [1] = READS_GRAD | READS_POINT}};

static ts_status sigmoid_backward_rule(ts_vjp_call *b)
{
    ts_tensor *g = ts_rule_grad(b, 0);
    GIVE(0, ts_sigmoid_backward(g, POINT));
    if (ts_rule_needs(b, 1)) /* d(y (1 - y)) = 1 - 2 y */
        TS_TRY(ts_rule_give(b, 1, ts_mul(ts_mul(g, ts_rule_saved_arg(b, 0)),
                                    ts_rsub_scalar(ts_mul_scalar(POINT, 2), 1))));
    return TS_OK;
}
const ts_vjp ts_vjp_sigmoid_backward = {
    .rule = sigmoid_backward_rule, .saves = {[0] = READS_POINT, [1] = READS_GRAD | READS_POINT}};
