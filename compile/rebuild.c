/**
 * @file rebuild.c  Adds recomputed calls to the graph of a plan. recompute.c chooses the storages
 * and divides the recorded calls into early and late ones, before and after the memory peak.
 *
 * A late call that reads a chosen storage reads a copy instead. The call that computes the copy is
 * placed directly before the first late call that needs it. It has the arguments, numbers and
 * random counters of the recorded call.
 *
 * A linear_backward computes two products, the gradients of input and weight. If it reads a copy,
 * it becomes two calls. The product for the weight's gradient, the only one that reads the copy,
 * waits until after the cheap calls that follow. The copy can then be computed in their group,
 * which often reads the same tensors.
 */
// SPDX-License-Identifier: MIT
#include "compile/plan.h"
#include "ops/ops.h"

#include <string.h>

/** A late call that will be placed after the cheap calls that follow it. */
typedef struct waiting {
    ts_graph_node node;
    uint32_t first, touches; /* its touches: index of the first in builder.touches, and number */
} waiting;

typedef struct builder {
    maker *m;
    ts_graph *graph;
    ts_array *storages; /* of ts_plan_storage */
    const ts_recomputation *chosen;
    uint32_t *made;     /* per recorded storage: index of the first call that writes it */
    uint32_t *copies;   /* per recorded storage: index + 1 of its copy; 0: none yet */
    uint32_t *values;   /* per recorded value: index + 1 of its copy; 0: none yet */
    ts_array nodes;     /* ts_graph_node: the new nodes in order */
    ts_array waiting, touches; /* waiting calls; touch: the touches of all waiting calls */
    uint32_t now;       /* index of the recorded call that is being placed */
    bool stale;         /* recomputation is impossible: an argument has been overwritten since the
                           recorded call read it, or the chain of recomputed calls is too long */
} builder;

/** Appends a copy of *n to the new nodes. Like all functions of this file that add nodes or values,
 *  returns false if out of memory. */

static bool emit(builder *b, const ts_graph_node *n)
{
    if (!ts_array_reserve(&b->nodes, 1, sizeof *n))
        return false;
    for (int r = 0; r < n->nrets; r++)
        if (n->rets[r])
            ts_graph_value_at(b->graph, n->rets[r])->slot = b->nodes.count;
    *TS_PUSH(b->nodes, ts_graph_node) = *n;
    return true;
}

/** True if the value is on a recorded storage that is chosen for recomputation. */
static bool is_recomputed(const builder *b, ts_id id)
{
    uint32_t s = ts_graph_value_at(b->graph, id)->storage;
    return s < b->chosen->nstorages && b->chosen->storages[s];
}

/* ------------------------------------------------------------------------------- copies ---- */

/** Adds a storage with the properties of s; *copy receives its index. */
static bool add_storage(builder *b, uint32_t s, uint32_t *copy)
{
    if (!ts_array_reserve(b->storages, 1, sizeof(ts_plan_storage)) ||
        !ts_graph_add_storage(b->graph, TS_SOURCE_RESULT, 0, copy))
        return false;
    ts_plan_storage like = ((const ts_plan_storage *)b->storages->data)[s];
    like.held = false;
    *TS_PUSH(*b->storages, ts_plan_storage) = like;
    return true;
}

/** Adds a value with the layout of *id on another storage, and sets *id to the new value. */
static bool add_value(builder *b, ts_id *id, uint32_t storage)
{
    ts_graph *g = b->graph;
    if (!ts_array_reserve(&g->values, 1, sizeof(ts_graph_value)))
        return false;
    ts_graph_value v = *ts_graph_value_at(g, *id);
    ts_graph_storage *s = (ts_graph_storage *)g->storages.data + storage;
    v.storage = storage;
    v.before = s->newest;
    *TS_PUSH(g->values, ts_graph_value) = v;
    s->newest = g->values.count;
    *id = ts_id_make(g, g->values.count - 1);
    return true;
}

static bool copy_storage(builder *b, uint32_t s, int depth);

/** If the value *id is on a chosen storage, replaces *id by the value's copy, and first adds the
 * call that computes the copy, unless it was added before. depth: number of recursive calls. */
static bool copy_value(builder *b, ts_id *id, int depth)
{
    uint32_t at = ts_id_index(*id), s = ts_graph_value_at(b->graph, *id)->storage;
    if (!is_recomputed(b, *id))
        return true;
    if (!copy_storage(b, s, depth))
        return false;
    if (b->stale)
        return true;
    if (!b->values[at]) {
        if (!add_value(b, id, b->copies[s] - 1))
            return false;
        b->values[at] = ts_id_index(*id) + 1;
    }
    *id = ts_id_make(b->graph, b->values[at] - 1);
    return true;
}

/** Replaces all results of a recomputed call by new values on new storages, the copies. */
static bool add_results(builder *b, ts_graph_node *call)
{
    for (int r = 0; r < call->nrets; r++) {
        ts_id id = call->rets[r];
        if (!id)
            continue;
        uint32_t at = ts_id_index(id), s = ts_graph_value_at(b->graph, id)->storage, copy;
        if (!add_storage(b, s, &copy) || !add_value(b, &call->rets[r], copy))
            return false;
        b->copies[s] = copy + 1;
        b->values[at] = ts_id_index(call->rets[r]) + 1;
    }
    return true;
}

/** Adds the call that recomputes storage s, and before it those of its chosen arguments. Does
 *  nothing if the copy exists. Sets b->stale, and adds no call for s, if that is impossible. */
static bool copy_storage(builder *b, uint32_t s, int depth)
{
    ts_graph_node call;
    ts_graph_arg args[TS_MAX_ARGS];
    uint32_t from = b->made[s], at;
    if (b->copies[s])
        return true;
    if (depth > 2 * TS_MAX_CHAIN)
        return b->stale = true;
    ts_plan_maker(b->m, from, s, true, &call, args);
    for (int k = 0; k < call.nargs; k++) {
        if (args[k].tag != TS_TAG_TENSOR)
            continue;
        b->stale |= !is_recomputed(b, args[k].id) &&
                    ts_plan_is_written(b->m, ts_graph_value_at(b->graph, args[k].id)->storage, from,
                                       b->now);
        if (!copy_value(b, &args[k].id, depth + 1))
            return false;
    }
    if (b->stale)
        return true;
    if (!ts_graph_add_args(b->graph, call.nargs, &at) || !add_results(b, &call))
        return false;
    call.args = at;
    call.flags |= TS_NODE_RECOMPUTED;
    if (call.nargs)
        memcpy(ts_graph_args_of(b->graph, &call), args, call.nargs * sizeof *args);
    return emit(b, &call);
}

/** Adds a late call, with the copies of chosen storages as arguments. */
static bool emit_late(builder *b, const ts_graph_node *n)
{
    ts_graph *g = b->graph;
    for (int k = 0; k < n->nargs; k++) { /* copies may move the arrays of arguments and integers */
        ts_graph_arg a = ts_graph_args_of(g, n)[k];
        if (a.tag == TS_TAG_TENSOR) {
            if (!copy_value(b, &a.id, 0))
                return false;
            ts_graph_args_of(g, n)[k].id = a.id;
        }
        for (uint32_t i = 0; a.tag == TS_TAG_TENSORS && i < a.count; i++) {
            ts_id id = (ts_id)ts_graph_ints_at(g, a.at)[i];
            if (!copy_value(b, &id, 0))
                return false;
            ts_graph_ints_at(g, a.at)[i] = (int64_t)id;
        }
    }
    return emit(b, n);
}

/* -------------------------------------------------------------------------- early calls ---- */

/** Adds an early call. If only its cheap part is recomputed later (ts_plan_decompose()), adds its
 *  two parts instead. */
static bool emit_early(builder *b, const ts_graph_node *n)
{
    ts_graph_node parts[2];
    ts_graph_arg args[TS_MAX_ARGS];
    if (!b->m->by_rows || !ts_plan_decompose(b->graph, n, parts, args) ||
        !is_recomputed(b, parts[1].rets[0]))
        return emit(b, n);
    if (!emit(b, &parts[0]) || !ts_graph_add_args(b->graph, parts[1].nargs, &parts[1].args))
        return false;
    memcpy(ts_graph_args_of(b->graph, &parts[1]), args, parts[1].nargs * sizeof *args);
    return emit(b, &parts[1]);
}

/* --------------------------------------------------------------------- weight's products ---- */

/** Appends n to the waiting calls, with the touches of the recorded call i. If `some` is not NULL,
 *  only with those on the storages of its `count` values. */
static bool wait(builder *b, const ts_graph_node *n, uint32_t i, const ts_id *some, int count)
{
    uint32_t k;
    const touch *t = ts_touches_of(b->m, i, &k);
    waiting w = {.node = *n, .first = b->touches.count};
    if (!ts_array_reserve(&b->touches, k, sizeof *t) || !ts_array_reserve(&b->waiting, 1, sizeof w))
        return false;
    for (; k-- > 0; t++) {
        bool used = !some;
        for (int s = 0; s < count; s++)
            used |= some[s] && ts_graph_value_at(b->graph, some[s])->storage == t->storage;
        if (used)
            *TS_PUSH(b->touches, touch) = *t;
    }
    w.touches = b->touches.count - w.first;
    *TS_PUSH(b->waiting, waiting) = w;
    return true;
}

/** True if call i must stay after the waiting calls: both use a storage that one of them writes. */
static bool conflicts(const builder *b, uint32_t i)
{
    uint32_t n;
    const touch *t = ts_touches_of(b->m, i, &n), *other = b->touches.data;
    for (uint32_t k = 0; k < n; k++)
        for (uint32_t o = 0; o < b->touches.count; o++)
            if (t[k].storage == other[o].storage && (t[k].writes || other[o].writes))
                return true;
    return false;
}

/** Adds the waiting calls in order. */
static bool emit_waiting(builder *b)
{
    for (uint32_t i = 0; i < b->waiting.count; i++) {
        ts_graph_node n = ((const waiting *)b->waiting.data)[i].node;
        if (!emit_late(b, &n))
            return false;
    }
    b->waiting.count = b->touches.count = 0;
    return true;
}

/**
 * If call i is a linear_backward that reads a copy as its input, on a device other than the CPU:
 * adds the product for the input's gradient, unless another call computes it, and appends the
 * product for the weight's gradient to the waiting calls. The sum for the bias's gradient, which
 * may follow as a call of its own (lazy.c), waits too; *next then skips it. *split receives whether
 * the call waits.
 */
static bool split_products(builder *b, uint32_t i, uint32_t *next, bool *split)
{
    enum { GRAD, INPUT, WEIGHT };
    ts_graph *g = b->graph;
    ts_graph_node n = *ts_graph_node_at(g, i), half[2] = {n, n};
    const ts_graph_arg *a = ts_graph_args_of(g, &n);
    *split = b->m->by_rows && n.op == TS_OP_linear_backward && !n.given && n.rets[1] &&
             a[INPUT].tag == TS_TAG_TENSOR && is_recomputed(b, a[INPUT].id) &&
             ts_graph_value_at(g, n.rets[1])->device.backend != TS_KEY_CPU;
    if (!*split)
        return true;
    ts_id grad = a[GRAD].id, uses[] = {grad, n.rets[1], n.rets[2]};
    for (int k = 0; k < 2 && n.rets[0]; k++) {
        ts_graph_arg args[3];
        memcpy(args, ts_graph_args_of(g, &n), sizeof args);
        args[k ? WEIGHT : INPUT] = (ts_graph_arg){.tag = TS_TAG_NONE};
        if (!ts_graph_add_args(g, 3, &half[k].args))
            return false;
        memcpy(ts_graph_args_of(g, &half[k]), args, sizeof args);
        half[k].want = k ? n.want & ~1 : 1;
    }
    half[0].rets[1] = half[0].rets[2] = half[1].rets[0] = 0;
    if ((n.rets[0] && !emit_late(b, &half[0])) || !wait(b, &half[1], i, uses, 3))
        return false;
    const ts_graph_node *sum = i + 1 < g->nodes.count ? ts_graph_node_at(g, i + 1) : NULL;
    if (sum && sum->op == TS_OP_sum_to_size && ts_graph_args_of(g, sum)[0].id == grad) {
        if (!wait(b, sum, i + 1, NULL, 0))
            return false;
        ++*next;
    }
    return true;
}

/** Adds late call i, or appends it to the waiting calls if it conflicts with them. A call that is
 *  not cheap is placed after the waiting calls. *next: the next call to append. */
static bool append_late(builder *b, uint32_t i, uint32_t *next)
{
    ts_graph_node n = *ts_graph_node_at(b->graph, i);
    bool split;
    if (b->waiting.count && !ts_group_takes(b->graph, &n, b->m->numbers).cheap) {
        if (!emit_waiting(b))
            return false;
    } else if (b->waiting.count && conflicts(b, i)) {
        return wait(b, &n, i, NULL, 0);
    }
    return split_products(b, i, next, &split) && (split || emit_late(b, &n));
}

/* ------------------------------------------------------------------------------ rebuild ---- */

static bool append_all(builder *b)
{
    uint32_t count = b->graph->nodes.count, next, n;
    for (uint32_t i = count; i-- > 0;) {
        const touch *t = ts_touches_of(b->m, i, &n);
        for (uint32_t k = 0; k < n; k++)
            if (t[k].writes)
                b->made[t[k].storage] = i;
    }
    for (b->now = 0; b->now < count; b->now = next) {
        ts_graph_node early = *ts_graph_node_at(b->graph, b->now);
        next = b->now + 1;
        /* drop dead calls here: after the rebuild, a dead write to a copy would not look dead */
        if (b->m->step_of[b->now] == UINT32_MAX && !(early.flags & TS_NODE_CONSTANT_CALL))
            continue;
        if (b->now < b->chosen->split ? !emit_early(b, &early) : !append_late(b, b->now, &next))
            return false;
    }
    return emit_waiting(b);
}

bool ts_plan_recompute(maker *m, ts_array *storages, const ts_recomputation *chosen, bool *done)
{
    ts_graph *g = m->graph;
    builder b = {.m = m, .graph = g, .storages = storages, .chosen = chosen};
    size_t n = g->values.count + 2 * (size_t)storages->count + 1, bytes = n * sizeof(uint32_t);
    if (!(b.made = ts_alloc(ts_thread_self(), bytes)))
        return false;
    memset(b.made, 0, bytes);
    b.copies = b.made + storages->count;
    b.values = b.copies + storages->count;
    bool ok = append_all(&b);
    if (ok) {
        ts_array before = g->nodes;
        g->nodes = b.nodes;
        b.nodes = before;
        ts_graph_finish(g);
    }
    *done = !b.stale;
    ts_array_free(&b.nodes, sizeof(ts_graph_node));
    ts_array_free(&b.waiting, sizeof(waiting));
    ts_array_free(&b.touches, sizeof(touch));
    ts_free(ts_thread_self(), b.made, bytes);
    return ok;
}
