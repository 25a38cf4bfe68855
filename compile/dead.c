/** @file dead.c  Drops dead calls: nothing reads the storages that they write. Constant calls,
 *  which run before the steps, are dropped too. A call that may fail because of its values, or
 *  whose kernel a program registered with its op, is never dead: eager calls report its error or
 *  have its effect. */
// SPDX-License-Identifier: MIT
#include "compile/plan.h"
#include "dispatch/entries.h"

/** True if a call runs although nothing reads its results. A call that another pass has dropped has
 *  neither arguments nor results. */
static bool is_kept(const ts_graph_node *n)
{
    const ts_op_info *op = &ts_ops[n->op];
    bool dropped = !n->nargs && !n->nrets && op->schema.nargs + op->schema.nrets;
    return (op->flags & (TS_OP_CHECKED | TS_OP_RUNTIME)) && !dropped;
}

void ts_plan_drop_dead(maker *m)
{
    ts_plan_storage *s = m->exec->storages;
    const touch *t = (const touch *)m->touches.data;
    if (!m->lowers) /* all calls run */
        return;
    for (uint32_t i = 0; i < m->exec->nstorages; i++)
        s[i].writer = s[i].outside || s[i].held;
    for (uint32_t i = m->graph->nodes.count; i-- > 0;) {
        const ts_graph_node *n = ts_graph_node_at(m->graph, i);
        bool constant = n->flags & TS_NODE_CONSTANT_CALL, wanted = !constant && is_kept(n);
        for (uint32_t k = m->begin[i]; k < m->begin[i + 1] && !constant; k++)
            wanted |= t[k].writes && s[t[k].storage].writer;
        m->step_of[i] = wanted ? 0 : UINT32_MAX;
        for (uint32_t k = m->begin[i]; k < m->begin[i + 1] && wanted; k++)
            s[t[k].storage].writer = 1;
    }
    for (uint32_t i = 0; i < m->exec->nstorages; i++)
        s[i].writer = 0;
}
