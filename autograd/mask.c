/** @file mask.c  Gradient rules of triangles and masks. */
// SPDX-License-Identifier: MIT
#include "autograd/rule.h"

RULE(tril, 0, ts_tril(g, INT(1)))
RULE(triu, 0, ts_triu(g, INT(1)))
RULE(masked_select, READS(1), ts_masked_scatter(ts_rule_zeros(ts_rule_arg_meta(b, 0)), ARG(1), g))

/** The gradient of self of masked_scatter: g, and 0 where the mask is true. */
static ts_tensor *unmasked(ts_vjp_call *b, ts_tensor *g)
{
    ts_meta m = ts_rule_arg_meta(b, 0);
    m.sizes = &g->numel;
    m.ndim = 1;
    return ts_masked_scatter(g, ARG(1), ts_rule_zeros(m));
}

/** The gradient of source of masked_scatter: the elements of g where the mask is true, in source's
 *  sizes. Elements of source beyond the number of true values were not read and get 0. */
static ts_tensor *masked(ts_vjp_call *b, ts_tensor *g)
{
    ts_meta m = ts_rule_arg_meta(b, 2);
    ts_tensor *used = ts_masked_select(g, ARG(1));
    return ts_reshape(ts_slice_backward(used, &m.numel, 1, 0, 0, ts_numel(used), 1), m.sizes,
                      m.ndim);
}
RULES(masked_scatter, (0, READS(1), unmasked(b, g)), (2, READS(1), masked(b, g)))
