/** @file arg.c  Gradient rule of max and min along a dim: the element at the returned index gets
 *  the gradient. */
// SPDX-License-Identifier: MIT
#include "autograd/rule.h"

static ts_tensor *scattered(ts_vjp_call *b, ts_tensor *g)
{
    ts_meta m = ts_rule_arg_meta(b, 0);
    ts_tensor *index = RET(1);
    if (!INT(2) && m.ndim) {
        g = ts_unsqueeze(g, DIM(1));
        index = ts_unsqueeze(index, DIM(1));
    }
    return ts_scatter_add_(ts_rule_zeros(m), DIM(1), index, g);
}
RULE(extreme_dim, READS_RET(1), scattered(b, g))
