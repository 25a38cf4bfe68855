/** @file rewrite.c  The common part of passes that replace values (rewrite.h). */
// SPDX-License-Identifier: MIT
#include "compile/rewrite.h"
#include "dispatch/entries.h"

#include <string.h>

uint32_t ts_rewrite_value(const ts_rewrite *w, ts_id id)
{
    uint32_t i = ts_id_index(id);
    while (w->same[i] != i)
        i = w->same[i];
    return i;
}
uint32_t ts_rewrite_storage(const ts_rewrite *w, ts_id id)
{
    return ts_rewrite_value_at(w, ts_rewrite_value(w, id))->storage;
}

/** The id of member j of a tensor argument or of a list of tensors. */
static ts_id member(const ts_rewrite *w, const ts_graph_arg *a, uint32_t j)
{
    return a->tag == TS_TAG_TENSORS ? (ts_id)ts_graph_ints_at(w->graph, a->at)[j] : a->id;
}
static uint32_t members(const ts_graph_arg *a)
{
    return a->tag == TS_TAG_TENSORS ? a->count : a->tag == TS_TAG_TENSOR;
}

bool ts_rewrite_each_argument(const ts_rewrite *w, const ts_graph_node *n,
                              bool (*use)(const ts_rewrite *, ts_id, void *), void *state)
{
    const ts_graph_arg *a = ts_graph_args_of(w->graph, n);
    for (int k = 0; k < n->nargs; k++)
        for (uint32_t j = 0; j < members(&a[k]); j++)
            if (!use(w, member(w, &a[k], j), state))
                return false;
    return true;
}

/* -------------------------------------------------------------------------------- writes ---- */

/** Calls visit for the storage of each tensor argument that the node writes, and of each result.
 *  made: the call creates the result. */
static void each_write(ts_rewrite *w, uint32_t i,
                       void (*visit)(ts_rewrite *, uint32_t node, uint32_t storage, bool made))
{
    const ts_graph_node *n = ts_graph_node_at(w->graph, i);
    const ts_schema *schema = &ts_ops[n->op].schema;
    const ts_graph_arg *a = ts_graph_args_of(w->graph, n);
    for (int k = 0; k < n->nargs; k++)
        for (uint32_t j = 0; schema->args[k].written && j < members(&a[k]); j++)
            visit(w, i, ts_rewrite_storage(w, member(w, &a[k], j)), false);
    for (int k = 0; k < n->nrets; k++)
        if (n->rets[k])
            visit(w, i, ts_rewrite_storage(w, n->rets[k]), !(n->given >> k & 1));
}

static void note_shared(ts_rewrite *w, uint32_t node, uint32_t storage, bool made)
{
    uint32_t *written = &w->written[storage];
    w->shared[storage] |= !made || w->storages[storage].outside ||
                          (*written && *written != node + 1);
    *written = node + 1;
}
static void note_write(ts_rewrite *w, uint32_t node, uint32_t storage, bool made)
{
    (void)made;
    w->written[storage] = node + 1;
}
static bool note_use(const ts_rewrite *w, ts_id id, void *node)
{
    w->used[ts_rewrite_storage(w, id)] = *(const uint32_t *)node + 1;
    return true;
}

bool ts_rewrite_begin(ts_rewrite *w, ts_graph *g, const ts_array *storages,
                      const uint64_t *numbers)
{
    *w = (ts_rewrite){.graph = g, .storages = storages->data, .numbers = numbers};
    w->bytes = (2 * (size_t)storages->count + g->values.count + 1) * sizeof(uint32_t) +
               storages->count * sizeof(bool);
    if (!(w->written = ts_alloc(ts_thread_self(), w->bytes)))
        return false;
    memset(w->written, 0, w->bytes);
    w->used = w->written + storages->count;
    w->same = w->used + storages->count;
    w->shared = (bool *)(w->same + g->values.count);
    for (uint32_t i = 0; i < g->values.count; i++)
        w->same[i] = i;
    for (uint32_t i = 0; i < g->nodes.count; i++) {
        each_write(w, i, note_shared);
        ts_rewrite_each_argument(w, ts_graph_node_at(g, i), note_use, &i);
    }
    memset(w->written, 0, storages->count * sizeof *w->written);
    return true;
}

void ts_rewrite_pass(ts_rewrite *w, uint32_t i) { each_write(w, i, note_write); }

static void note_write_to(ts_rewrite *w, uint32_t node, uint32_t storage, bool made)
{
    (void)node, (void)made;
    w->found |= storage == w->looked_for;
}
bool ts_rewrite_is_written(ts_rewrite *w, uint32_t storage, uint32_t from, uint32_t until)
{
    w->looked_for = storage;
    w->found = false;
    for (uint32_t i = from; i < until && !w->found; i++)
        each_write(w, i, note_write_to);
    return w->found;
}

/** Names the replacements of replaced values in the arguments of all calls. */
static void replace_args(const ts_rewrite *w)
{
    ts_graph *g = w->graph;
    for (uint32_t i = 0; i < g->nodes.count; i++) {
        const ts_graph_node *n = ts_graph_node_at(g, i);
        ts_graph_arg *a = ts_graph_args_of(g, n);
        for (int k = 0; k < n->nargs; k++) {
            if (a[k].tag == TS_TAG_TENSOR)
                a[k].id = ts_id_make(g, ts_rewrite_value(w, a[k].id));
            for (uint32_t j = 0; a[k].tag == TS_TAG_TENSORS && j < a[k].count; j++) {
                int64_t *id = &ts_graph_ints_at(g, a[k].at)[j];
                *id = (int64_t)ts_id_make(g, ts_rewrite_value(w, (ts_id)*id));
            }
        }
    }
}

void ts_rewrite_end(ts_rewrite *w, bool some)
{
    if (some)
        replace_args(w);
    ts_free(ts_thread_self(), w->written, w->bytes);
}

/* -------------------------------------------------------------------------------- values ---- */

bool ts_rewrite_is_pure(const ts_rewrite *w, const ts_graph_node *n)
{
    bool some = false;
    if (n->given || (n->flags & TS_NODE_RANDOM) || (ts_ops[n->op].flags & TS_OP_RUNTIME))
        return false;
    for (int k = 0; k < n->nargs; k++) /* counts change with each call */
        if (ts_graph_args_of(w->graph, n)[k].tag == TS_TAG_INTS &&
            ts_graph_args_of(w->graph, n)[k].role == TS_ROLE_VALUE)
            return false;
    for (int k = 0; k < n->nrets; k++) {
        if (n->rets[k] && w->shared[ts_rewrite_storage(w, n->rets[k])])
            return false;
        some |= n->rets[k] != 0;
    }
    return some;
}

bool ts_rewrite_is_held(const ts_rewrite *w, const ts_graph_node *n)
{
    for (int k = 0; k < n->nrets; k++)
        if (n->rets[k] && w->storages[ts_rewrite_storage(w, n->rets[k])].held)
            return true;
    return false;
}

bool ts_rewrite_equal_layouts(const ts_rewrite *w, const ts_graph_value *a,
                              const ts_graph_value *b)
{
    return a->dtype == b->dtype && a->ndim == b->ndim && ts_same_device(a->device, b->device) &&
           (!a->ndim || memcmp(ts_graph_ints_at(w->graph, a->ints),
                               ts_graph_ints_at(w->graph, b->ints),
                               2 * a->ndim * sizeof(int64_t)) == 0); /* sizes and strides */
}

void ts_rewrite_move(const ts_rewrite *w, uint32_t from, uint32_t to, int64_t shift)
{
    ts_graph_storage *of = (ts_graph_storage *)w->graph->storages.data;
    if (from == to)
        return;
    for (uint32_t next = of[from].newest, before; next; next = before) {
        ts_graph_value *v = ts_rewrite_value_at(w, next - 1);
        uint32_t k = of[to].newest;
        before = v->before;
        v->offset += shift;
        while (k && !(ts_rewrite_equal_layouts(w, ts_rewrite_value_at(w, k - 1), v) &&
                      ts_rewrite_value_at(w, k - 1)->offset == v->offset))
            k = ts_rewrite_value_at(w, k - 1)->before;
        if (k) {
            w->same[next - 1] = k - 1;
            continue;
        }
        v->storage = to;
        v->before = of[to].newest;
        of[to].newest = next;
    }
    of[from].newest = 0;
}
