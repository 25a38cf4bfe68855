/** @file scan.c  Rule of running sums: the same from the other end. */
// SPDX-License-Identifier: MIT
#include "autograd/vjp.h"
#include "include/tessera/ops.h"
#include "ops/rows.h"

static ts_status cumsum(ts_vjp_call *b)
{
    ts_tensor *g = ts_rule_grad(b, 0);
    int dim = (int)ts_rule_arg(b, 1)->i;
    bool reversed = ts_rule_arg(b, 2)->i;
    return ts_rule_give(b, 0, reversed ? ts_cumsum(g, dim) : ts_cumsum_reversed(g, dim));
}
const ts_vjp ts_vjp_cumsum = {.rule = cumsum};
