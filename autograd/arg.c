/** @file arg.c  Rules of extremes: the chosen element gets the gradient. */
// SPDX-License-Identifier: MIT
#include "autograd/rule.h"

static ts_status extreme_dim(ts_vjp_call *b)
{
    ts_meta m = ts_rule_arg_meta(b, 0);
    ts_tensor *g = GRAD(0), *index = RET(1);
    if (!INT(2) && m.ndim) {
        g = ts_unsqueeze(g, DIM(1));
        index = ts_unsqueeze(index, DIM(1));
    }
    return ts_rule_give(b, 0, ts_scatter_add(ts_rule_zeros(m), DIM(1), index, g));
}
const ts_vjp ts_vjp_extreme_dim = {.rule = extreme_dim, .saves = {[0] = READS_RET(1)}, .want = 2};
