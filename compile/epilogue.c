/**
 * @file epilogue.c  Products with epilogues: calls on each element, such as pointwise calls or a
 * batch norm with given statistics, that a product's kernel applies before it stores the result.
 *
 * The planner has no list of products. The backend says whether it can run given calls as one
 * product with an epilogue, and at what cost (ts_backend.epilogue_cost). A call joins the product
 * that makes one of its arguments, or whose epilogue reads the same argument, if that saves bytes.
 * The saving is the load of the argument and, if the product makes it and no other call uses it,
 * its store. The cost is the backend's cost and, if later calls could have formed a group with the
 * call and kept its result in registers, the load of that result and, unless it is stored anyway,
 * its store.
 */
// SPDX-License-Identifier: MIT
#include "compile/plan.h"
#include "dispatch/entries.h"

enum { MOST_CALLS = 4, MOST_TENSORS = 24 /* of a product and its epilogue together */ };

/** A product and the calls that join it. */
typedef struct chain {
    maker *m;
    uint32_t step;
    uint32_t nodes[MOST_CALLS];
    int count;
} chain;

/** A call whose tensors are headers without memory, for shape inference and the backend. */
typedef struct shaped_call {
    ts_frame f;
    ts_plan plan;
    ts_value args[TS_MAX_ARGS], rets[TS_MAX_RETS];
} shaped_call;

static const touch *touch_at(const maker *m, uint32_t i)
{
    return (const touch *)m->touches.data + i;
}
static const ts_graph_value *value_at(const maker *m, uint32_t i)
{
    return (const ts_graph_value *)m->graph->values.data + i;
}

static bool is_in(const chain *c, uint32_t node)
{
    bool found = false;
    for (int k = 0; k < c->count; k++)
        found |= c->nodes[k] == node;
    return found;
}

static bool uses(const maker *m, uint32_t node, uint32_t storage)
{
    for (uint32_t t = m->begin[node]; t < m->begin[node + 1]; t++)
        if (touch_at(m, t)->storage == storage)
            return true;
    return false;
}

/** True if the chain makes the storage, and no call outside of the chain uses it. */
static bool is_inside(const chain *c, uint32_t storage)
{
    const maker *m = c->m;
    const ts_plan_storage *s = &m->exec->storages[storage];
    bool inside = false;
    for (int k = 0; k < c->count; k++)
        for (uint32_t t = m->begin[c->nodes[k]]; t < m->begin[c->nodes[k] + 1]; t++)
            inside |= touch_at(m, t)->storage == storage && touch_at(m, t)->fresh;
    inside = inside && !s->outside && !s->held;
    for (uint32_t i = c->nodes[0]; i < m->graph->nodes.count && inside; i++)
        inside = m->step_of[i] == UINT32_MAX || is_in(c, i) || !uses(m, i, storage);
    return inside;
}

/** Sets *t to the header of a value. Its data is NULL if only the chain uses the value, else a
 *  made-up address, equal for equal offsets in a storage. */
static void set_header(const chain *c, ts_id id, ts_tensor *t)
{
    const ts_graph_value *v = ts_graph_value_at(c->m->graph, id);
    ts_group_header(c->m->graph, v, t);
    t->data = is_inside(c, v->storage) ? NULL
                                       : (char *)((((uintptr_t)v->storage + 1) << 32) +
                                                  (uintptr_t)v->offset);
}

/** The backend's cost of the chain in bytes (ts_backend.epilogue_cost); -1 if a shape rule or the
 *  backend refuses the chain. Leaves the thread's error record unchanged. */
static int64_t cost_of(const chain *c)
{
    ts_graph *g = c->m->graph;
    shaped_call calls[MOST_CALLS];
    ts_group_call group[MOST_CALLS];
    ts_tensor headers[MOST_TENSORS];
    ts_id ids[MOST_TENSORS];
    int headers_used = 0;
    ts_run r = {.exec = &(ts_exec){.graph = g}, .numbers = c->m->numbers};
    ts_thread *thread = ts_thread_self();
    ts_error before = *thread->error;
    ts_device device = TS_DEVICE_CPU;
    for (int k = 0; k < c->count; k++) {
        const ts_graph_node *n = ts_graph_node_at(g, c->nodes[k]);
        const ts_graph_arg *a = ts_graph_args_of(g, n);
        if (n->nargs + n->nrets > TS_GROUP_TENSORS || n->nrets > TS_MAX_RETS)
            return -1;
        for (int i = 0; i < n->nargs; i++)
            if (a[i].tag == TS_TAG_TENSORS)
                return -1;
        ts_run_unbox(&r, n, calls[k].args);
        for (int i = 0; i < n->nargs + n->nrets; i++) {
            ts_id id = i < n->nargs ? a[i].tag == TS_TAG_TENSOR ? a[i].id : 0
                                    : n->rets[i - n->nargs];
            ts_value *v = i < n->nargs ? &calls[k].args[i] : &calls[k].rets[i - n->nargs];
            int at = 0;
            if (i >= n->nargs)
                *v = ts_value_none();
            if (!id)
                continue;
            while (at < headers_used && ids[at] != id)
                at++;
            if (at == MOST_TENSORS)
                return -1;
            if (at == headers_used) {
                set_header(c, id, &headers[at]);
                ids[headers_used++] = id;
                device = headers[at].device;
                if (!ts_same_device(device, headers[0].device))
                    return -1;
            }
            *v = ts_value_tensor(&headers[at]);
        }
        calls[k].f = ts_group_frame(n, device, thread);
        calls[k].f.args = calls[k].args;
        calls[k].f.rets = calls[k].rets;
        ts_plan_open(&calls[k].f, &calls[k].plan);
        calls[k].plan.rows = 0;
        if (!calls[k].f.table->infer || calls[k].f.table->infer(&calls[k].f) != TS_OK) {
            *thread->error = before;
            return -1;
        }
        group[k] = (ts_group_call){&calls[k].f, calls[k].f.table->impl[device.backend]};
    }
    const ts_backend *b = ts_backend_of(device);
    int64_t cost = b && b->epilogue_cost ? b->epilogue_cost(b->state, group, c->count) : -1;
    *thread->error = before;
    return cost;
}

/** True if node i can run at the chain's step: its arguments are complete before that step, or are
 *  results of the chain that no later step has overwritten; it writes nothing that the chain makes
 *  or a later step uses; and it shares a written storage with the chain only through the same value
 *  (layout). */
static bool can_move(const chain *c, uint32_t i)
{
    const maker *m = c->m;
    for (uint32_t t = m->begin[i]; t < m->begin[i + 1]; t++) {
        const touch *own = touch_at(m, t);
        const ts_plan_storage *s = &m->exec->storages[own->storage];
        bool made = false;
        for (int k = 0; k < c->count; k++)
            for (uint32_t u = m->begin[c->nodes[k]]; u < m->begin[c->nodes[k] + 1]; u++) {
                const touch *other = touch_at(m, u);
                if (other->storage != own->storage)
                    continue;
                made |= other->writes;
                if (other->value != own->value && (own->writes || other->writes))
                    return false;
            }
        if (made && (own->writes || s->writer > c->step + 1))
            return false; /* a later step has overwritten it */
        if (!made && !own->fresh &&
            (s->writer > c->step || (own->writes && s->reader > c->step) ||
             (!s->outside && !s->constant && !s->writer)))
            return false;
    }
    return true;
}

/** Index of a result of the chain that node i reads, or else of an argument that both read.
 *  UINT32_MAX: there is none. */
static uint32_t value_between(const chain *c, uint32_t i)
{
    const maker *m = c->m;
    uint32_t shared = UINT32_MAX;
    for (uint32_t t = m->begin[i]; t < m->begin[i + 1]; t++)
        for (int k = 0; k < c->count && !touch_at(m, t)->writes; k++)
            for (uint32_t u = m->begin[c->nodes[k]]; u < m->begin[c->nodes[k] + 1]; u++) {
                const touch *other = touch_at(m, u);
                if (other->value != touch_at(m, t)->value)
                    continue;
                if (other->fresh)
                    return other->value;
                shared = other->writes ? shared : other->value;
            }
    return shared;
}

/**
 * The bytes of memory traffic that a run of the plan saves if node i joins the chain, including the
 * gain of a following node that can then join too. before: cost of the chain without node i. 0 if
 * node i cannot join or saves nothing.
 */
static int64_t gain_of(chain *c, uint32_t i, int64_t before)
{
    const maker *m = c->m;
    const ts_graph_node *n = ts_graph_node_at(m->graph, i);
    uint32_t y = value_between(c, i), next = UINT32_MAX, users = 0;
    bool alone = n->nrets > 0 && n->rets[0];
    for (int r = 1; r < n->nrets; r++)
        alone = alone && !n->rets[r];
    if (c->count == MOST_CALLS || y == UINT32_MAX || !alone || !can_move(c, i))
        return 0;
    c->nodes[c->count++] = i;
    int64_t cost = cost_of(c), gain = 0;
    if (cost >= 0) {
        const ts_graph_value *made = ts_graph_value_at(m->graph, n->rets[0]);
        const ts_plan_storage *s = &m->exec->storages[made->storage];
        int64_t bytes = ts_value_bytes(m->graph, value_at(m, y));
        bool grouped = false, stored = s->outside || s->held || (n->given & 1);
        gain = bytes * (1 + is_inside(c, value_at(m, y)->storage)) - (cost - before);
        for (uint32_t j = i + 1; j < m->graph->nodes.count; j++) {
            if (m->step_of[j] == UINT32_MAX || !uses(m, j, made->storage))
                continue;
            ts_group_part part = ts_group_takes(m->graph, ts_graph_node_at(m->graph, j),
                                                m->numbers);
            grouped |= part.takes;
            stored |= !part.takes;
            next = part.takes && !part.rows && !part.folds ? j : next;
            users++;
        }
        stored |= users > 1; /* one group seldom contains all users, so the result is stored */
        if (grouped && ts_group_takes(m->graph, n, m->numbers).takes)
            gain -= ts_value_bytes(m->graph, made) * (1 + !stored);
        if (next != UINT32_MAX && users == 1)
            gain += gain_of(c, next, cost);
    }
    c->count--;
    return gain > 0 ? gain : 0;
}

/** Adds node i to step k, a product or a call that may become one, if that saves bytes. */
static bool join_step(maker *m, uint32_t i, uint32_t k)
{
    ts_exec *e = m->exec;
    const ts_graph_node *n = ts_graph_node_at(m->graph, i);
    ts_step *s = &e->steps[k];
    chain c = {.m = m, .step = k};
    if ((!s->product && (s->fused || ts_plan_is_full(m))) ||
        ((n->flags & TS_NODE_RECOMPUTED) && k < m->barrier))
        return false;
    for (uint32_t j = s->first, left = s->count; left && c.count < MOST_CALLS; j++)
        if (m->step_of[j] == k) {
            c.nodes[c.count++] = j;
            left--;
        }
    int64_t before = c.count == (int)s->count && c.count < MOST_CALLS ? cost_of(&c) : -1;
    if (before < 0 || !gain_of(&c, i, before))
        return false;
    const ts_graph_value *v = ts_graph_value_at(m->graph, n->rets[0]);
    if (!s->product) {
        e->ngroups++;
        s->fused = s->product = true;
        s->device = v->device;
        s->ndim = v->ndim;
        s->numel = 1;
        for (int d = 0; d < v->ndim; d++)
            s->numel *= s->sizes[d] = ts_graph_ints_at(m->graph, v->ints)[d];
    }
    ts_plan_add(m, i, k);
    return true;
}

bool ts_plan_join_product(maker *m, uint32_t i)
{
    ts_exec *e = m->exec;
    const ts_graph_node *n = ts_graph_node_at(m->graph, i);
    if (!n->nrets || !n->rets[0])
        return false;
    const ts_backend *backend = ts_backend_of(ts_graph_value_at(m->graph, n->rets[0])->device);
    if (!backend || !backend->epilogue_cost)
        return false;
    for (uint32_t t = m->begin[i]; t < m->begin[i + 1]; t++) {
        const ts_plan_storage *s = &e->storages[touch_at(m, t)->storage];
        if (touch_at(m, t)->writes)
            continue;
        if (s->writer && join_step(m, i, s->writer - 1))
            return true;
        /* the newest step that reads the argument, if it has an epilogue */
        if (s->reader && s->reader != s->writer && e->steps[s->reader - 1].product &&
            join_step(m, i, s->reader - 1))
            return true;
    }
    return false;
}
