/** @file index.c  Rules of reading and writing by index: each is the other's gradient. */
// SPDX-License-Identifier: MIT
#include "autograd/rule.h"

static ts_tensor *zeros(ts_meta m)
{
    ts_tensor *like = ts_empty_on(m.sizes, m.ndim, m.dtype, m.device);
    return like ? ts_zero_(like) : NULL;
}

static ts_status embedding(ts_vjp_call *b)
{
    return ts_rule_give(b, 0,
                   ts_embedding_backward(ts_rule_grad(b, 0), ts_rule_saved_arg(b, 1),
                                         ts_rule_arg_meta(b, 0).sizes[0], ts_rule_arg(b, 2)->i));
}
const ts_vjp ts_vjp_embedding = {.rule = embedding, .saves = {[0] = TS_SAVE_ARG(1)}};

/** Rows of the second gradient; the padding row passed nothing on. */
static ts_status embedding_backward(ts_vjp_call *b)
{
    ts_tensor *gg = ts_rule_grad(b, 0);
    int64_t padding = ts_rule_arg(b, 3)->i;
    if (padding >= 0) {
        ts_tensor *row = ts_slice(gg, 0, padding, padding + 1, 1);
        gg = row ? ts_slice_scatter(gg, ts_zeros_like(row), 0, padding, padding + 1, 1) : NULL;
    }
    return ts_rule_give(b, 0, ts_embedding(gg, ts_rule_saved_arg(b, 1), -1));
}
const ts_vjp ts_vjp_embedding_backward = {.rule = embedding_backward,
                                          .saves = {[0] = TS_SAVE_ARG(1)}};

static ts_status index_select(ts_vjp_call *b)
{
    ts_tensor *into = zeros(ts_rule_arg_meta(b, 0));
    return ts_rule_give(b, 0,
                        into ? ts_index_add(into, (int)ts_rule_arg(b, 1)->i,
                                            ts_rule_saved_arg(b, 2), ts_rule_grad(b, 0))
                             : NULL);
}
const ts_vjp ts_vjp_index_select = {.rule = index_select, .saves = {[0] = TS_SAVE_ARG(2)}};

static ts_status index_add(ts_vjp_call *b)
{
    ts_tensor *g = ts_rule_grad(b, 0);
    GIVE(0, g);
    return ts_rule_needs(b, 3)
               ? ts_rule_give(
                     b, 3, ts_index_select(g, (int)ts_rule_arg(b, 1)->i, ts_rule_saved_arg(b, 2)))
               : TS_OK;
}
const ts_vjp ts_vjp_index_add = {.rule = index_add, .saves = {[3] = TS_SAVE_ARG(2)}};

static ts_status gather(ts_vjp_call *b)
{
    ts_tensor *into = zeros(ts_rule_arg_meta(b, 0));
    return ts_rule_give(b, 0,
                        into ? ts_scatter_add(into, (int)ts_rule_arg(b, 1)->i,
                                              ts_rule_saved_arg(b, 2), ts_rule_grad(b, 0))
                             : NULL);
}
const ts_vjp ts_vjp_gather = {.rule = gather, .saves = {[0] = TS_SAVE_ARG(2)}};

/** What the written places of g hold, in src's sizes: src may be larger than index. */
static ts_tensor *read_back(ts_vjp_call *b, ts_tensor *g)
{
    ts_meta m = ts_rule_arg_meta(b, 3);
    ts_tensor *part = ts_gather(g, (int)ts_rule_arg(b, 1)->i, ts_rule_saved_arg(b, 2));
    for (int d = 0; part && d < m.ndim; d++) {
        int64_t sizes[TS_MAX_DIMS], n = ts_sizes(part)[d];
        if (n == m.sizes[d])
            continue;
        for (int k = 0; k < m.ndim; k++)
            sizes[k] = k == d ? m.sizes[k] : ts_sizes(part)[k];
        part = ts_slice_backward(part, sizes, m.ndim, d, 0, n, 1);
    }
    return part;
}

static ts_status scatter(ts_vjp_call *b)
{
    ts_tensor *g = ts_rule_grad(b, 0);
    if (ts_rule_needs(b, 0))
        TS_TRY(ts_rule_give(
            b, 0, ts_scatter_value(g, (int)ts_rule_arg(b, 1)->i, ts_rule_saved_arg(b, 2), 0)));
    return ts_rule_needs(b, 3) ? ts_rule_give(b, 3, read_back(b, g)) : TS_OK;
}
const ts_vjp ts_vjp_scatter = {.rule = scatter,
                               .saves = {[0] = TS_SAVE_ARG(2), [3] = TS_SAVE_ARG(2)}};

static ts_status scatter_add(ts_vjp_call *b)
{
    ts_tensor *g = ts_rule_grad(b, 0);
    GIVE(0, g);
    return ts_rule_needs(b, 3) ? ts_rule_give(b, 3, read_back(b, g)) : TS_OK;
}
const ts_vjp ts_vjp_scatter_add = {.rule = scatter_add, .saves = {[3] = TS_SAVE_ARG(2)}};
