/** @file slice.c  Rules of parts of a tensor. */
// SPDX-License-Identifier: MIT
#include "autograd/vjp.h"
#include "include/tessera/ops.h"
#include "ops/rows.h"

#include <string.h>

static ts_status slice(ts_vjp_call *b)
{
    ts_meta m = ts_rule_arg_meta(b, 0);
    return ts_rule_give(b, 0,
                        ts_slice_backward(ts_rule_grad(b, 0), m.sizes, m.ndim,
                                          (int)ts_rule_arg(b, 1)->i, ts_rule_arg(b, 2)->i,
                                          ts_rule_arg(b, 3)->i, ts_rule_arg(b, 4)->i));
}
const ts_vjp ts_vjp_slice = {.rule = slice};

static ts_status slice_backward(ts_vjp_call *b)
{
    return ts_rule_give(b, 0,
                   ts_slice(ts_rule_grad(b, 0), (int)ts_rule_arg(b, 2)->i, ts_rule_arg(b, 3)->i,
                            ts_rule_arg(b, 4)->i, ts_rule_arg(b, 5)->i));
}
const ts_vjp ts_vjp_slice_backward = {.rule = slice_backward};

static ts_status select(ts_vjp_call *b)
{
    ts_meta m = ts_rule_arg_meta(b, 0);
    int dim = (int)ts_rule_arg(b, 1)->i;
    int64_t index = ts_rule_arg(b, 2)->i;
    dim += dim < 0 ? m.ndim : 0;
    index += index < 0 ? m.sizes[dim] : 0;
    ts_tensor *g = ts_unsqueeze(ts_rule_grad(b, 0), dim);
    return ts_rule_give(b, 0, ts_slice_backward(g, m.sizes, m.ndim, dim, index, index + 1, 1));
}
const ts_vjp ts_vjp_select = {.rule = select};

static ts_status diagonal(ts_vjp_call *b)
{
    ts_meta m = ts_rule_arg_meta(b, 0);
    return ts_rule_give(b, 0,
                   ts_diagonal_backward(ts_rule_grad(b, 0), m.sizes, m.ndim, ts_rule_arg(b, 1)->i,
                                        (int)ts_rule_arg(b, 2)->i, (int)ts_rule_arg(b, 3)->i));
}
const ts_vjp ts_vjp_diagonal = {.rule = diagonal};

static ts_status diagonal_backward(ts_vjp_call *b)
{
    return ts_rule_give(b, 0,
                   ts_diagonal(ts_rule_grad(b, 0), ts_rule_arg(b, 2)->i, (int)ts_rule_arg(b, 3)->i,
                               (int)ts_rule_arg(b, 4)->i));
}
const ts_vjp ts_vjp_diagonal_backward = {.rule = diagonal_backward};

/** One write of the whole gradient; a part that nobody used counts as zeros. */
static ts_status split(ts_vjp_call *b)
{
    ts_meta m = ts_rule_arg_meta(b, 0);
    int64_t size = ts_rule_arg(b, 1)->i, sizes[TS_MAX_DIMS];
    int dim = (int)ts_rule_arg(b, 2)->i;
    dim += dim < 0 ? m.ndim : 0;
    int64_t n = m.sizes[dim];
    int parts = n ? (int)((n - 1) / size + 1) : 1;
    ts_tensor *grads[TS_MAX_RETS];
    memcpy(sizes, m.sizes, (size_t)m.ndim * sizeof *sizes);
    for (int i = 0; i < parts; i++) {
        grads[i] = ts_rule_grad(b, i);
        if (grads[i])
            continue;
        sizes[dim] = size < n - i * size ? size : n - i * size;
        ts_tensor *like = ts_empty_on(sizes, m.ndim, m.dtype, m.device);
        grads[i] = like ? ts_zero_(like) : NULL;
        TS_TRY(grads[i]);
    }
    return ts_rule_give(b, 0, parts == 1 ? grads[0] : ts_cat(grads, parts, dim));
}
const ts_vjp ts_vjp_split = {.rule = split};

static ts_status slice_scatter(ts_vjp_call *b)
{
    ts_tensor *g = ts_rule_grad(b, 0);
    int dim = (int)ts_rule_arg(b, 2)->i;
    int64_t start = ts_rule_arg(b, 3)->i, end = ts_rule_arg(b, 4)->i, step = ts_rule_arg(b, 5)->i;
    if (ts_rule_needs(b, 0)) {
        ts_meta m = ts_rule_arg_meta(b, 1);
        ts_tensor *like = ts_empty_on(m.sizes, m.ndim, m.dtype, m.device);
        ts_tensor *zeros = like ? ts_zero_(like) : NULL;
        TS_TRY(zeros);
        TS_TRY(ts_rule_give(b, 0, ts_slice_scatter(g, zeros, dim, start, end, step)));
    }
    return ts_rule_needs(b, 1) ? ts_rule_give(b, 1, ts_slice(g, dim, start, end, step)) : TS_OK;
}
const ts_vjp ts_vjp_slice_scatter = {.rule = slice_scatter};
