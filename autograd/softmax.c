/** @file softmax.c  Rules of softmax and log_softmax. */
// SPDX-License-Identifier: MIT
#include "autograd/rule.h"

static ts_status softmax(ts_vjp_call *b)
{
    ts_tensor *dx =
        ts_softmax_backward(ts_rule_grad(b, 0), ts_rule_saved_ret(b, 0), (int)ts_rule_arg(b, 1)->i);
    return ts_rule_give(b, 0, dx);
}
const ts_vjp ts_vjp_softmax = {.rule = softmax, .saves = {[0] = TS_SAVE_RET(0)}};

static ts_status log_softmax(ts_vjp_call *b)
{
    ts_tensor *dx = ts_log_softmax_backward(ts_rule_grad(b, 0), ts_rule_saved_ret(b, 0),
                                            (int)ts_rule_arg(b, 1)->i);
    return ts_rule_give(b, 0, dx);
}
const ts_vjp ts_vjp_log_softmax = {.rule = log_softmax, .saves = {[0] = TS_SAVE_RET(0)}};

/*
 * dx = y (g - s), s = sum(g y). Against an upstream u with q = sum(u y):
 *   dg = y (u - q), which is the rule of softmax itself;  dy = u (g - s) - g q.
 */
static ts_status softmax_backward(ts_vjp_call *b)
{
    ts_tensor *u = ts_rule_grad(b, 0), *y = ts_rule_saved_arg(b, 1);
    int dim = (int)ts_rule_arg(b, 2)->i;
    GIVE(0, ts_softmax_backward(u, y, dim));
    if (ts_rule_needs(b, 1)) {
        ts_tensor *g = ts_rule_saved_arg(b, 0);
        ts_tensor *s = ts_sum_dim(ts_mul(g, y), dim, true),
                  *q = ts_sum_dim(ts_mul(u, y), dim, true);
        TS_TRY(ts_rule_give(b, 1, ts_sub(ts_mul(u, ts_sub(g, s)), ts_mul(g, q))));
    }
    return TS_OK;
}
const ts_vjp ts_vjp_softmax_backward = {
    .rule = softmax_backward,
    .saves = {[0] = TS_SAVE_ARG(1), [1] = TS_SAVE_ARG(0) | TS_SAVE_ARG(1)}};

/**
 * dx = g - p s, p = exp(y), s = sum(g). Against an upstream u with q = sum(u p):
 *   dg = u - q,  dy = -u p s.
 */
static ts_status log_softmax_backward(ts_vjp_call *b)
{
    ts_tensor *u = ts_rule_grad(b, 0), *p = ts_exp(ts_rule_saved_arg(b, 1));
    int dim = (int)ts_rule_arg(b, 2)->i;
    if (ts_rule_needs(b, 0))
        TS_TRY(ts_rule_give(
            b, 0, ts_rule_reduce_to(b, 0, ts_sub(u, ts_sum_dim(ts_mul(u, p), dim, true)))));
    if (ts_rule_needs(b, 1)) {
        ts_tensor *s = ts_sum_dim(ts_rule_saved_arg(b, 0), dim, true);
        TS_TRY(ts_rule_give(b, 1, ts_neg(ts_mul(ts_mul(u, p), s))));
    }
    return TS_OK;
}
const ts_vjp ts_vjp_log_softmax_backward = {
    .rule = log_softmax_backward,
    .saves = {[0] = TS_SAVE_ARG(1), [1] = TS_SAVE_ARG(0) | TS_SAVE_ARG(1)}};
