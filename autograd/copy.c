/** @file copy.c  Rules of copies and conversions. */
// SPDX-License-Identifier: MIT
#include "autograd/rule.h"

static ts_status copy(ts_vjp_call *b)
{
    return ts_rule_give(b, 0, ts_rule_grad(b, 0));
}
const ts_vjp ts_vjp_copy = {.rule = copy};
const ts_vjp ts_vjp_to = {.rule = copy};

static ts_status to_device(ts_vjp_call *b)
{
    return ts_rule_give(b, 0, ts_to_device(ts_rule_grad(b, 0), ts_rule_arg_meta(b, 0).device));
}
const ts_vjp ts_vjp_to_device = {.rule = to_device};
