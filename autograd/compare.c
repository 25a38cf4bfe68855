/** @file compare.c  Rules of choices; comparisons have no gradient. */
// SPDX-License-Identifier: MIT
#include "autograd/vjp.h"
#include "include/tessera/ops.h"
#include "ops/rows.h"

static ts_status where_rule(ts_vjp_call *b)
{
    ts_tensor *g = ts_rule_grad(b, 0), *condition = ts_rule_saved_arg(b, 0);
    if (ts_rule_needs(b, 1))
        TS_TRY(ts_rule_give(b, 1, ts_rule_reduce_to(b, 1, ts_where_scalar(condition, g, 0))));
    if (ts_rule_needs(b, 2))
        TS_TRY(ts_rule_give(b, 2, ts_rule_reduce_to(b, 2, ts_masked_fill_scalar(g, condition, 0))));
    return TS_OK;
}
const ts_vjp ts_vjp_where = {.rule = where_rule, .always = TS_SAVE_ARG(0)};

static ts_status masked_fill_rule(ts_vjp_call *b)
{
    ts_tensor *g = ts_rule_grad(b, 0), *mask = ts_rule_saved_arg(b, 1);
    if (ts_rule_needs(b, 0))
        TS_TRY(ts_rule_give(b, 0, ts_rule_reduce_to(b, 0, ts_masked_fill_scalar(g, mask, 0))));
    if (ts_rule_needs(b, 2))
        TS_TRY(ts_rule_give(b, 2, ts_rule_reduce_to(b, 2, ts_where_scalar(mask, g, 0))));
    return TS_OK;
}
const ts_vjp ts_vjp_masked_fill = {.rule = masked_fill_rule, .always = TS_SAVE_ARG(1)};
