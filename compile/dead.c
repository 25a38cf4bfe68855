/** @file dead.c  Drops dead calls: nothing reads the storages that they write. Constant calls,
 *  which run before the steps, are dropped too. */
// SPDX-License-Identifier: MIT
#include "compile/plan.h"

void ts_plan_drop_dead(maker *m)
{
    ts_plan_storage *s = m->exec->storages;
    const touch *t = (const touch *)m->touches.data;
    if (!m->lowers) /* all calls run */
        return;
    for (uint32_t i = 0; i < m->exec->nstorages; i++)
        s[i].writer = s[i].outside || s[i].held;
    for (uint32_t i = m->graph->nodes.count; i-- > 0;) {
        bool constant = ts_graph_node_at(m->graph, i)->flags & TS_NODE_CONSTANT_CALL,
             wanted = false;
        for (uint32_t k = m->begin[i]; k < m->begin[i + 1] && !constant; k++)
            wanted |= t[k].writes && s[t[k].storage].writer;
        m->step_of[i] = wanted ? 0 : UINT32_MAX;
        for (uint32_t k = m->begin[i]; k < m->begin[i + 1] && wanted; k++)
            s[t[k].storage].writer = 1;
    }
    for (uint32_t i = 0; i < m->exec->nstorages; i++)
        s[i].writer = 0;
}
