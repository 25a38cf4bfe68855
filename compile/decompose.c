/**
 * @file decompose.c  Splits a call that equals a costly call followed by a cheap call on its
 * result, so that the cheap part alone can be recomputed: linear_gelu is a linear followed by a
 * gelu.
 */
// SPDX-License-Identifier: MIT
#include "compile/plan.h"
#include "ops/ops.h"

#include <string.h>

bool ts_plan_decompose(const ts_graph *g, const ts_graph_node *n, ts_graph_node parts[2],
                       ts_graph_arg *args)
{
    enum { GELU, LINEAR /* results of linear_gelu */, TANH_FORM = 3 /* its last argument */ };
    if (n->op != TS_OP_linear_gelu || n->given || !n->rets[GELU] || !n->rets[LINEAR])
        return false;
    args[0] = (ts_graph_arg){.tag = TS_TAG_TENSOR, .id = n->rets[LINEAR]};
    args[1] = ts_graph_args_of(g, n)[TANH_FORM];
    parts[0] = parts[1] = *n;
    parts[0].op = TS_OP_linear;
    parts[0].nargs = TANH_FORM;
    parts[0].rets[0] = n->rets[LINEAR];
    parts[1].op = TS_OP_gelu;
    parts[1].nargs = 2;
    for (int i = 0; i < 2; i++) {
        parts[i].rets[1] = 0;
        parts[i].nrets = parts[i].want = 1;
    }
    return true;
}

bool ts_plan_maker(const maker *m, uint32_t node, uint32_t s, bool cheap, ts_graph_node *call,
                   ts_graph_arg *args)
{
    const ts_graph *g = m->graph;
    const ts_graph_node *n = ts_graph_node_at(g, node);
    ts_graph_node parts[2];
    if (m->by_rows && ts_plan_decompose(g, n, parts, args) &&
        ts_graph_value_at(g, parts[1].rets[0])->storage == s) {
        *call = parts[1];
        return true;
    }
    *call = *n;
    if (n->nargs)
        memcpy(args, ts_graph_args_of(g, n), n->nargs * sizeof *args);
    return cheap;
}

bool ts_plan_is_written(const maker *m, uint32_t storage, uint32_t from, uint32_t until)
{
    for (uint32_t i = from + 1, n; i < until; i++) {
        const touch *t = ts_touches_of(m, i, &n);
        for (uint32_t k = 0; k < n && m->step_of[i] != UINT32_MAX; k++)
            if (t[k].storage == storage && t[k].writes)
                return true;
    }
    return false;
}
