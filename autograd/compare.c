/** @file compare.c  Rules of choices; comparisons have no gradient. */
// SPDX-License-Identifier: MIT
#include "autograd/rule.h"

static ts_status where_rule(ts_vjp_call *b)
{
    ts_tensor *g = ts_rule_grad(b, 0), *condition = ts_rule_saved_arg(b, 0);
    GIVE(1, ts_where_scalar(condition, g, 0));
    GIVE(2, ts_masked_fill_scalar(g, condition, 0));
    return TS_OK;
}
const ts_vjp ts_vjp_where = {.rule = where_rule, .always = TS_SAVE_ARG(0)};

static ts_status masked_fill_rule(ts_vjp_call *b)
{
    ts_tensor *g = ts_rule_grad(b, 0), *mask = ts_rule_saved_arg(b, 1);
    GIVE(0, ts_masked_fill_scalar(g, mask, 0));
    GIVE(2, ts_where_scalar(mask, g, 0));
    return TS_OK;
}
const ts_vjp ts_vjp_masked_fill = {.rule = masked_fill_rule, .always = TS_SAVE_ARG(1)};
