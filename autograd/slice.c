/** @file slice.c  Gradient rules of parts of a tensor. */
// SPDX-License-Identifier: MIT
#include "autograd/rule.h"

/** Rule of slices, selected elements and diagonals. */
static ts_status part(ts_vjp_call *b) { return ts_rule_give_part(b, 0, GRAD(0)); }
const ts_vjp ts_vjp_part = {.rule = part, .view = true};

RULE(slice_backward, 0, ts_slice(g, DIM(2), INT(3), INT(4), INT(5)))
RULE(diagonal_backward, 0, ts_diagonal(g, INT(2), DIM(3), DIM(4)))
RULES(slice_scatter,
      (0, 0,
       ts_slice_scatter(g, ts_rule_zeros(ts_rule_arg_meta(b, 1)), DIM(2), INT(3), INT(4), INT(5))),
      (1, 0, ts_slice(g, DIM(2), INT(3), INT(4), INT(5))))

/** If every part has a gradient, concatenates them in one write instead of adding part by part. */
static ts_status split(ts_vjp_call *b)
{
    ts_meta m = ts_rule_arg_meta(b, 0);
    int dim = DIM(2) + (DIM(2) < 0 ? m.ndim : 0), used = 0;
    int64_t size = INT(1), n = m.sizes[dim];
    int parts = n ? (int)((n - 1) / size + 1) : 1;
    ts_tensor *grads[TS_MAX_RETS];
    for (int i = 0; i < parts; i++)
        used += (grads[i] = GRAD(i)) != NULL;
    if (used == parts)
        return ts_rule_give(b, 0, parts == 1 ? grads[0] : ts_cat(grads, parts, dim));
    for (int i = 0; i < parts; i++)
        if (grads[i])
            TS_TRY(ts_rule_give_part(b, i, grads[i]));
    return TS_OK;
}
const ts_vjp ts_vjp_split = {.rule = split, .view = true};
