/** @file mask.c  Rules of triangles and masks. */
// SPDX-License-Identifier: MIT
#include "autograd/rule.h"

static ts_status tril(ts_vjp_call *b)
{
    return ts_rule_give(b, 0, ts_tril(ts_rule_grad(b, 0), ts_rule_arg(b, 1)->i));
}
const ts_vjp ts_vjp_tril = {.rule = tril};

static ts_status triu(ts_vjp_call *b)
{
    return ts_rule_give(b, 0, ts_triu(ts_rule_grad(b, 0), ts_rule_arg(b, 1)->i));
}
const ts_vjp ts_vjp_triu = {.rule = triu};

static ts_tensor *zeros(const int64_t *sizes, int ndim, ts_meta like)
{
    ts_tensor *t = ts_empty_on(sizes, ndim, like.dtype, like.device);
    return t ? ts_zero_(t) : NULL;
}

static ts_status masked_select(ts_vjp_call *b)
{
    ts_meta m = ts_rule_arg_meta(b, 0);
    ts_tensor *into = zeros(m.sizes, m.ndim, m);
    ts_tensor *g =
        into ? ts_masked_scatter(into, ts_rule_saved_arg(b, 1), ts_rule_grad(b, 0)) : NULL;
    return ts_rule_give(b, 0, g);
}
const ts_vjp ts_vjp_masked_select = {.rule = masked_select, .saves = {[0] = TS_SAVE_ARG(1)}};

static ts_status masked_scatter(ts_vjp_call *b)
{
    ts_tensor *g = ts_rule_grad(b, 0), *mask = ts_rule_saved_arg(b, 1);
    if (ts_rule_needs(b, 0)) {
        int64_t n = ts_numel(g);
        ts_tensor *none = zeros(&n, 1, ts_rule_arg_meta(b, 0));
        TS_TRY(none);
        TS_TRY(ts_rule_give(b, 0, ts_masked_scatter(g, mask, none)));
    }
    if (!ts_rule_needs(b, 2))
        return TS_OK;
    /* elements of source beyond the mask's trues were not read */
    ts_meta m = ts_rule_arg_meta(b, 2);
    int64_t n = 1;
    for (int d = 0; d < m.ndim; d++)
        n *= m.sizes[d];
    ts_tensor *used = ts_masked_select(g, mask);
    TS_TRY(used);
    return ts_rule_give(
        b, 2, ts_reshape(ts_slice_backward(used, &n, 1, 0, 0, ts_numel(used), 1), m.sizes, m.ndim));
}
const ts_vjp ts_vjp_masked_scatter = {.rule = masked_scatter,
                                      .saves = {[0] = TS_SAVE_ARG(1), [2] = TS_SAVE_ARG(1)}};
