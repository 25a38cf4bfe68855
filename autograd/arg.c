/** @file arg.c  Rules of extremes: the chosen element gets the gradient. */
// SPDX-License-Identifier: MIT
#include "autograd/vjp.h"
#include "include/tessera/ops.h"
#include "ops/rows.h"

static ts_status extreme_dim(ts_vjp_call *b)
{
    ts_meta m = ts_rule_arg_meta(b, 0);
    ts_tensor *g = ts_rule_grad(b, 0), *index = ts_rule_saved_ret(b, 1);
    int dim = (int)ts_rule_arg(b, 1)->i;
    if (!ts_rule_arg(b, 2)->i && m.ndim) {
        g = ts_unsqueeze(g, dim);
        index = ts_unsqueeze(index, dim);
    }
    ts_tensor *into = ts_empty_on(m.sizes, m.ndim, m.dtype, m.device);
    return ts_rule_give(b, 0, into ? ts_scatter_add(ts_zero_(into), dim, index, g) : NULL);
}
const ts_vjp ts_vjp_extreme_dim = {.rule = extreme_dim, .saves = {[0] = TS_SAVE_RET(1)}, .want = 2};
