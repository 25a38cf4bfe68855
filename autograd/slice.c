/** @file slice.c  Rules of parts of a tensor. */
// SPDX-License-Identifier: MIT
#include "autograd/rule.h"

#include <string.h>

static ts_status slice(ts_vjp_call *b)
{
    return ts_rule_give_slice(b, GRAD(0), DIM(1), INT(2), INT(3), INT(4));
}
const ts_vjp ts_vjp_slice = {.rule = slice};

RULE(slice_backward, 0, ts_slice(g, DIM(2), INT(3), INT(4), INT(5)))
RULE(diagonal, 0, ts_diagonal_backward(g, SIZES(0), INT(1), DIM(2), DIM(3)))
RULE(diagonal_backward, 0, ts_diagonal(g, INT(2), DIM(3), DIM(4)))
RULES(slice_scatter,
      (0, 0,
       ts_slice_scatter(g, ts_rule_zeros(ts_rule_arg_meta(b, 1)), DIM(2), INT(3), INT(4), INT(5))),
      (1, 0, ts_slice(g, DIM(2), INT(3), INT(4), INT(5))))

static ts_status select(ts_vjp_call *b)
{
    ts_meta m = ts_rule_arg_meta(b, 0);
    int dim = DIM(1);
    int64_t index = INT(2);
    dim += dim < 0 ? m.ndim : 0;
    index += index < 0 ? m.sizes[dim] : 0;
    return ts_rule_give_slice(b, ts_unsqueeze(GRAD(0), dim), dim, index, index + 1, 1);
}
const ts_vjp ts_vjp_select = {.rule = select};

/** One write of the whole gradient; a part that nobody used counts as zeros. */
static ts_status split(ts_vjp_call *b)
{
    ts_meta m = ts_rule_arg_meta(b, 0), part = m;
    int dim = DIM(2) + (DIM(2) < 0 ? m.ndim : 0);
    int64_t size = INT(1), n = m.sizes[dim], sizes[TS_MAX_DIMS];
    int parts = n ? (int)((n - 1) / size + 1) : 1;
    ts_tensor *grads[TS_MAX_RETS];
    memcpy(sizes, m.sizes, (size_t)m.ndim * sizeof *sizes);
    part.sizes = sizes;
    for (int i = 0; i < parts; i++) {
        sizes[dim] = size < n - i * size ? size : n - i * size;
        TS_TRY(grads[i] = GRAD(i) ? GRAD(i) : ts_rule_zeros(part));
    }
    return ts_rule_give(b, 0, parts == 1 ? grads[0] : ts_cat(grads, parts, dim));
}
const ts_vjp ts_vjp_split = {.rule = split};
