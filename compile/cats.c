/**
 * @file cats.c  Drops a cat and lets the calls that make its parts write them into its result. For
 * example, attention then writes the gradients of query, key and value directly into the gradient
 * of their common projection.
 *
 * The values of a part get the storage of the cat's result, with the strides and offset of their
 * position in that result. A cat is dropped if each part is a whole storage that one call writes
 * and only the cat reads, and that call runs on a device (not the CPU), writes results with any
 * strides, and joins no group.
 */
// SPDX-License-Identifier: MIT
#include "compile/plan.h"
#include "dispatch/entries.h"
#include "ops/ops.h"

#include <string.h>

/** How calls use a storage. */
typedef struct usage {
    uint32_t touches, writes; /* number of uses; number of uses that write */
    uint32_t writer; /* the last call that writes it */
} usage;

/** The position of a part in the cat's result: of each `all` elements, the part has `own` elements
 *  starting at `start`. */
typedef struct block {
    int64_t own, all, start;
} block;

/** Number of elements of dims first to end - 1. */
static int64_t elements(const int64_t *sizes, int first, int end)
{
    int64_t n = 1;
    for (int d = first; d < end; d++)
        n *= sizes[d];
    return n;
}

/** True if a value has all elements of its storage, in order. */
static bool is_whole(const maker *m, const ts_graph_value *v)
{
    const int64_t *sizes = ts_graph_ints_at(m->graph, v->ints);
    return v->offset == 0 && ts_strides_contiguous(sizes, sizes + v->ndim, v->ndim) &&
           ts_value_bytes(m->graph, v) == m->exec->storages[v->storage].bytes;
}

/** True if value v of a part can have strides in the cat's result. With `move`, sets its strides
 *  and offset. */
static bool lay_out(const maker *m, ts_graph_value *v, const block *b, bool move)
{
    int64_t *sizes = ts_graph_ints_at(m->graph, v->ints), *strides = sizes + v->ndim, inside = 0;
    int64_t item = ts_dtype_sizes[v->dtype], offset = v->offset / item;
    for (int d = 0; d < v->ndim; d++) {
        if (sizes[d] == 1)
            continue;
        if (strides[d] < 0)
            return false;
        if (strides[d] % b->own)
            inside += (sizes[d] - 1) * strides[d];
        else if (move)
            strides[d] = strides[d] / b->own * b->all;
    }
    if (move)
        v->offset = (offset / b->own * b->all + b->start + offset % b->own) * item;
    return inside + offset % b->own < b->own;
}

/** True if a call on this device can write a result with any strides and joins no group. */
static bool writes_strides(const maker *m, const ts_graph_node *n, ts_device device)
{
    const ts_op_table *t = atomic_load_explicit(&ts_tables[n->op], memory_order_acquire);
    return device.backend != TS_KEY_CPU && t->slot[device.backend] == ts_enter_device &&
           t->info->kind == TS_FILL && !n->given && n->nrets <= TS_MAX_RETS &&
           (t->accepts[device.backend].takes & TS_TAKES_STRIDES) &&
           !(t->packed >> device.backend & 1) && !ts_group_takes(m->graph, n, m->numbers).takes;
}

/** The result of a node that is on this storage; NULL: none. */
static ts_graph_value *result_on(const maker *m, const ts_graph_node *n, uint32_t storage)
{
    for (int i = 0; i < n->nrets; i++)
        if (n->rets[i] && ts_graph_value_at(m->graph, n->rets[i])->storage == storage)
            return ts_graph_value_at(m->graph, n->rets[i]);
    return NULL;
}

/** Sets b->own for a part `id` of a cat, and returns true if the part can be written in place. With
 *  `move`, moves the values of its storage to the storage of `whole`, the cat's result. */
static bool take_part(const maker *m, const usage *uses, const ts_graph_value *whole, int dim,
                      ts_id id, block *b, bool move)
{
    ts_graph *g = m->graph;
    ts_graph_value *part = ts_graph_value_at(g, id), *made;
    const ts_plan_storage *s = &m->exec->storages[part->storage];
    const int64_t *sizes = ts_graph_ints_at(g, part->ints);
    const usage *u = &uses[part->storage];
    int64_t item = ts_dtype_sizes[part->dtype];
    uint32_t from = part->storage;
    b->own = elements(sizes, dim, part->ndim);
    if (s->outside || s->constant || s->held || part->ndim != whole->ndim ||
        part->dtype != whole->dtype || !s->bytes || u->touches != 2 || u->writes != 1 ||
        b->start * item % 16 || !is_whole(m, part))
        return false;
    const ts_graph_node *writer = ts_graph_node_at(g, u->writer);
    if (!(made = result_on(m, writer, from)) || made->dtype != part->dtype ||
        !lay_out(m, made, b, false) || !writes_strides(m, writer, whole->device))
        return false;
    if (!move)
        return true;
    ts_graph_storage *of = (ts_graph_storage *)g->storages.data;
    for (uint32_t next = of[from].newest, before; next; next = before) {
        ts_graph_value *v = (ts_graph_value *)g->values.data + (next - 1);
        before = v->before;
        lay_out(m, v, b, true);
        v->storage = whole->storage;
        v->before = of[whole->storage].newest;
        of[whole->storage].newest = next;
    }
    of[from].newest = 0;
    return true;
}

/** Moves the parts of n and makes n dead, if n is a cat whose parts can all be written in place;
 *  false if not. */
static bool drop_cat(const maker *m, const usage *uses, ts_graph_node *n)
{
    ts_graph *g = m->graph;
    const ts_graph_arg *a = ts_graph_args_of(g, n);
    if (n->op != TS_OP_cat || n->given || a[0].tag != TS_TAG_TENSORS || a[1].tag != TS_TAG_INT)
        return false;
    const ts_graph_value *whole = ts_graph_value_at(g, n->rets[0]);
    const int64_t *sizes = ts_graph_ints_at(g, whole->ints);
    int dim = (int)(a[1].i < 0 ? a[1].i + whole->ndim : a[1].i);
    block b = {.all = elements(sizes, dim, whole->ndim)};
    if (!ts_array_reserve(&m->exec->cats, 1, sizeof(ts_dropped_cat)) ||
        m->exec->storages[whole->storage].outside || !is_whole(m, whole) ||
        b.all * ts_dtype_sizes[whole->dtype] % 16)
        return false;
    for (int move = 0; move < 2; move++) {
        b.start = 0;
        for (uint32_t k = 0; k < a[0].count; k++, b.start += b.own)
            if (!take_part(m, uses, whole, dim, (ts_id)ts_graph_ints_at(g, a[0].at)[k], &b, move))
                return false;
    }
    *TS_PUSH(m->exec->cats, ts_dropped_cat) =
        (ts_dropped_cat){n->end, a[0].count, m->exec->storages[whole->storage].bytes};
    n->nargs = n->nrets = 0; /* without arguments and results it is dead */
    return true;
}

bool ts_plan_drop_cats(maker *m, bool *some)
{
    const ts_graph *g = m->graph;
    *some = false;
    uint32_t cats = 0;
    for (uint32_t i = 0; i < g->nodes.count; i++)
        cats += ts_graph_node_at(g, i)->op == TS_OP_cat;
    size_t bytes = (m->exec->nstorages + 1) * sizeof(usage);
    usage *uses = cats ? ts_alloc(ts_thread_self(), bytes) : NULL;
    if (!uses)
        return !cats;
    memset(uses, 0, bytes);
    for (uint32_t i = 0; i < g->nodes.count; i++)
        for (uint32_t t = m->begin[i]; t < m->begin[i + 1]; t++) {
            const touch *own = (const touch *)m->touches.data + t;
            usage *u = &uses[own->storage];
            u->touches++;
            u->writes += own->writes;
            u->writer = own->writes ? i : u->writer;
        }
    for (uint32_t i = 0; i < g->nodes.count; i++)
        *some |= drop_cat(m, uses, ts_graph_node_at(g, i));
    ts_free(ts_thread_self(), uses, bytes);
    return true;
}
