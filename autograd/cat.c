/** @file cat.c  Rules of joining: each member gets its part of the gradient, as a view. */
// SPDX-License-Identifier: MIT
#include "autograd/vjp.h"
#include "include/tessera/ops.h"
#include "ops/rows.h"

/** g in the dtype that the member had. */
static ts_tensor *as(ts_tensor *g, ts_dtype dtype)
{
    return g && ts_dtype_of(g) != dtype ? ts_to(g, dtype) : g;
}

static ts_status cat(ts_vjp_call *b)
{
    ts_tensor *g = ts_rule_grad(b, 0);
    int dim = (int)ts_rule_arg(b, 1)->i, n = (int)ts_rule_arg(b, 0)->count, ndim = ts_ndim(g);
    dim += dim < 0 ? ndim : 0;
    int64_t start = 0;
    for (int k = 0; k < n; k++) {
        ts_meta m = ts_rule_member_meta(b, 0, k);
        bool nothing = m.ndim == 1 && m.sizes[0] == 0;
        int64_t length = nothing ? 0 : m.sizes[dim];
        if (ts_rule_needs_member(b, 0, k)) {
            ts_tensor *part = nothing ? ts_empty_on(m.sizes, 1, m.dtype, m.device)
                                      : ts_slice(g, dim, start, start + length, 1);
            TS_TRY(ts_rule_give_member(b, 0, k, as(part, m.dtype)));
        }
        start += length;
    }
    return TS_OK;
}
const ts_vjp ts_vjp_cat = {.rule = cat};

static ts_status stack(ts_vjp_call *b)
{
    ts_tensor *g = ts_rule_grad(b, 0);
    int n = (int)ts_rule_arg(b, 0)->count;
    for (int k = 0; k < n; k++)
        if (ts_rule_needs_member(b, 0, k))
            TS_TRY(ts_rule_give_member(b, 0, k,
                                       as(ts_select(g, (int)ts_rule_arg(b, 1)->i, k),
                                          ts_rule_member_meta(b, 0, k).dtype)));
    return TS_OK;
}
const ts_vjp ts_vjp_stack = {.rule = stack};
