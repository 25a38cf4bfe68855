/** @file cat.c  Gradient rules of cat and stack: each member gets its part of the gradient, as a
 *  view. */
// SPDX-License-Identifier: MIT
#include "autograd/rule.h"

static ts_status cat(ts_vjp_call *b)
{
    ts_tensor *g = GRAD(0);
    int dim = DIM(1) + (DIM(1) < 0 ? g->ndim : 0), n = (int)ts_rule_arg(b, 0)->count;
    int64_t start = 0;
    for (int k = 0; k < n; k++) {
        ts_meta m = ts_rule_member_meta(b, 0, k);
        bool nothing = m.ndim == 1 && m.sizes[0] == 0; /* cat() skips a member of sizes (0) */
        int64_t end = start + (nothing ? 0 : m.sizes[dim]);
        if (ts_rule_needs_member(b, 0, k))
            TS_TRY(ts_rule_give_member(
                b, 0, k, nothing ? ts_rule_zeros(m) : ts_slice(g, dim, start, end, 1)));
        start = end;
    }
    return TS_OK;
}
const ts_vjp ts_vjp_cat = {.rule = cat};

static ts_status stack(ts_vjp_call *b)
{
    int n = (int)ts_rule_arg(b, 0)->count;
    for (int k = 0; k < n; k++)
        if (ts_rule_needs_member(b, 0, k))
            TS_TRY(ts_rule_give_member(b, 0, k, ts_select(GRAD(0), DIM(1), k)));
    return TS_OK;
}
const ts_vjp ts_vjp_stack = {.rule = stack};
