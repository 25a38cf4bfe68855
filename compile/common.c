/**
 * @file common.c  Common subexpressions: drops a call that equals an earlier call, whose results
 * then take the place of its own.
 *
 * Two calls are equal if their op, arguments and requested results are equal and no call in between
 * writes an argument. A call that draws random numbers, writes in place or into a given result, or
 * is of an op that the program registered equals no other call. Results must have storages that no
 * other call writes. If the program holds a result of each call after the recording, both calls
 * remain, because the program may write one of the results later.
 *
 * Numbers such as a scale are no part of the recorded structure. Calls with equal numbers are
 * merged too, and the plan serves only recordings in which these numbers are equal
 * (ts_exec_serves()).
 */
// SPDX-License-Identifier: MIT
#include "compile/plan.h"
#include "dispatch/entries.h"

#include <string.h>
#include <xxhash.h>

/** The pass over the calls, in their order. */
typedef struct pass {
    ts_exec *exec;
    ts_graph *graph;
    const ts_plan_storage *storages;
    const uint64_t *numbers;
    uint32_t *written; /* per storage: the last call so far that writes it, + 1 */
    bool *shared;      /* per storage: it is outside, or a call writes it that did not create it */
    uint32_t *same;    /* per value: the value that has replaced it; itself if none has */
    uint32_t *table;   /* hash table of calls (open addressing): index + 1; 0: unused */
    uint32_t slots;    /* of the table, a power of two */
} pass;

/** The value that now stands for `id`. */
static uint32_t value_of(const pass *p, ts_id id)
{
    uint32_t i = ts_id_index(id);
    while (p->same[i] != i)
        i = p->same[i];
    return i;
}
static ts_graph_value *value_at(const pass *p, uint32_t i)
{
    return (ts_graph_value *)p->graph->values.data + i;
}
static uint32_t storage_of(const pass *p, ts_id id)
{
    return value_at(p, value_of(p, id))->storage;
}

/** Calls visit for the storage of each tensor argument that the node writes, and of each result.
 *  made: the call creates the result. */
static void each_write(const pass *p, uint32_t i,
                       void (*visit)(const pass *, uint32_t node, uint32_t storage, bool made))
{
    const ts_graph_node *n = ts_graph_node_at(p->graph, i);
    const ts_schema *schema = &ts_ops[n->op].schema;
    const ts_graph_arg *a = ts_graph_args_of(p->graph, n);
    for (int k = 0; k < n->nargs; k++) {
        bool list = a[k].tag == TS_TAG_TENSORS;
        uint32_t count = list ? a[k].count : a[k].tag == TS_TAG_TENSOR;
        for (uint32_t j = 0; schema->args[k].written && j < count; j++)
            visit(p, i, storage_of(p, list ? (ts_id)ts_graph_ints_at(p->graph, a[k].at)[j]
                                           : a[k].id), false);
    }
    for (int k = 0; k < n->nrets; k++)
        if (n->rets[k])
            visit(p, i, storage_of(p, n->rets[k]), !(n->given >> k & 1));
}

static void note_shared(const pass *p, uint32_t node, uint32_t storage, bool made)
{
    uint32_t *written = &p->written[storage];
    p->shared[storage] |= !made || p->storages[storage].outside ||
                          (*written && *written != node + 1);
    *written = node + 1;
}
static void note_write(const pass *p, uint32_t node, uint32_t storage, bool made)
{
    (void)made;
    p->written[storage] = node + 1;
}

/** True if the results of the call depend on its arguments alone, and only this call writes the
 *  storages of its results. */
static bool is_pure(const pass *p, const ts_graph_node *n)
{
    const ts_op_table *t = atomic_load_explicit(&ts_tables[n->op], memory_order_acquire);
    bool some = false;
    if (n->given || (n->flags & TS_NODE_RANDOM) || (t->flags & TS_OP_RUNTIME))
        return false;
    for (int k = 0; k < n->nargs; k++) /* counts change with each call */
        if (ts_graph_args_of(p->graph, n)[k].tag == TS_TAG_INTS &&
            ts_graph_args_of(p->graph, n)[k].role == TS_ROLE_VALUE)
            return false;
    for (int k = 0; k < n->nrets; k++) {
        if (n->rets[k] && p->shared[storage_of(p, n->rets[k])])
            return false;
        some |= n->rets[k] != 0;
    }
    return some;
}

/* ----------------------------------------------------------------------------- equality ---- */

static uint64_t mix(uint64_t hash, uint64_t word)
{
    return (hash ^ word) * 0x9e3779b97f4a7c15ull ^ hash >> 29;
}

/** The bits of an argument that is no tensor, list or string. */
static uint64_t bits_of(const pass *p, const ts_graph_arg *a)
{
    if (a->tag == TS_TAG_NONE)
        return 0;
    if (a->role == TS_ROLE_VALUE)
        return p->numbers[a->at];
    return a->tag == TS_TAG_DEVICE ? (uint64_t)a->device.backend << 8 | a->device.index
                                   : (uint64_t)a->i;
}

static uint64_t hash_of(const pass *p, const ts_graph_node *n)
{
    const ts_graph_arg *a = ts_graph_args_of(p->graph, n);
    uint64_t hash = mix(mix(n->op, n->nargs), n->want);
    for (int k = 0; k < n->nargs; k++) {
        bool ids = a[k].tag == TS_TAG_TENSORS;
        hash = mix(hash, a[k].tag);
        switch (a[k].tag) {
        case TS_TAG_TENSOR: hash = mix(hash, value_of(p, a[k].id)); break;
        case TS_TAG_TENSORS: case TS_TAG_INTS:
            for (uint32_t j = 0; j < a[k].count; j++) {
                int64_t word = ts_graph_ints_at(p->graph, a[k].at)[j];
                hash = mix(hash, ids ? value_of(p, (ts_id)word) : (uint64_t)word);
            }
            break;
        case TS_TAG_STRING:
            hash = mix(hash, XXH3_64bits(ts_graph_text_at(p->graph, a[k].at), a[k].count));
            break;
        default: hash = mix(hash, bits_of(p, &a[k]));
        }
    }
    return hash ^ hash >> 32;
}

static bool equal_args(const pass *p, const ts_graph_arg *a, const ts_graph_arg *b)
{
    const ts_graph *g = p->graph;
    if (a->tag != b->tag || a->role != b->role || a->count != b->count)
        return false;
    switch (a->tag) {
    case TS_TAG_TENSOR: return value_of(p, a->id) == value_of(p, b->id);
    case TS_TAG_TENSORS:
        for (uint32_t j = 0; j < a->count; j++)
            if (value_of(p, (ts_id)ts_graph_ints_at(g, a->at)[j]) !=
                value_of(p, (ts_id)ts_graph_ints_at(g, b->at)[j]))
                return false;
        return true;
    case TS_TAG_INTS:
        return !a->count || memcmp(ts_graph_ints_at(g, a->at), ts_graph_ints_at(g, b->at),
                                   a->count * sizeof(int64_t)) == 0;
    case TS_TAG_STRING:
        return memcmp(ts_graph_text_at(g, a->at), ts_graph_text_at(g, b->at), a->count) == 0;
    default: return bits_of(p, a) == bits_of(p, b);
    }
}

static bool equal_layouts(const pass *p, const ts_graph_value *a, const ts_graph_value *b)
{
    return a->dtype == b->dtype && a->ndim == b->ndim && a->offset == b->offset &&
           ts_same_device(a->device, b->device) &&
           (!a->ndim || memcmp(ts_graph_ints_at(p->graph, a->ints),
                               ts_graph_ints_at(p->graph, b->ints),
                               2 * a->ndim * sizeof(int64_t)) == 0); /* sizes and strides */
}

static bool equal_calls(const pass *p, const ts_graph_node *a, const ts_graph_node *b)
{
    const ts_graph *g = p->graph;
    if (a->op != b->op || a->nargs != b->nargs || a->nrets != b->nrets || a->want != b->want)
        return false;
    for (int k = 0; k < a->nargs; k++)
        if (!equal_args(p, &ts_graph_args_of(g, a)[k], &ts_graph_args_of(g, b)[k]))
            return false;
    for (int k = 0; k < a->nrets; k++) {
        if (!a->rets[k] != !b->rets[k])
            return false;
        if (a->rets[k] && (!equal_layouts(p, ts_graph_value_at(g, a->rets[k]),
                                          ts_graph_value_at(g, b->rets[k])) ||
                           p->storages[storage_of(p, a->rets[k])].bytes !=
                               p->storages[storage_of(p, b->rets[k])].bytes))
            return false;
    }
    return true;
}

/** True if no call after `node` and before the current one writes an argument of `node`. */
static bool is_current(const pass *p, uint32_t node)
{
    const ts_graph_node *n = ts_graph_node_at(p->graph, node);
    const ts_graph_arg *a = ts_graph_args_of(p->graph, n);
    for (int k = 0; k < n->nargs; k++) {
        bool list = a[k].tag == TS_TAG_TENSORS;
        for (uint32_t j = 0; j < (list ? a[k].count : a[k].tag == TS_TAG_TENSOR); j++)
            if (p->written[storage_of(p, list ? (ts_id)ts_graph_ints_at(p->graph, a[k].at)[j]
                                              : a[k].id)] > node)
                return false;
    }
    return true;
}

/* ------------------------------------------------------------------------------- merging ---- */

/** True if the program holds a result of the node after the recording. */
static bool is_held(const pass *p, const ts_graph_node *n)
{
    for (int k = 0; k < n->nrets; k++)
        if (n->rets[k] && p->storages[storage_of(p, n->rets[k])].held)
            return true;
    return false;
}

/** Replaces all values on storage `from` by values with the same layouts on storage `to`. */
static void move_values(const pass *p, uint32_t from, uint32_t to)
{
    ts_graph_storage *of = (ts_graph_storage *)p->graph->storages.data;
    if (from == to)
        return;
    for (uint32_t next = of[from].newest, before; next; next = before) {
        ts_graph_value *v = value_at(p, next - 1);
        uint32_t k = of[to].newest;
        before = v->before;
        while (k && !equal_layouts(p, value_at(p, k - 1), v))
            k = value_at(p, k - 1)->before;
        if (k) {
            p->same[next - 1] = k - 1;
            continue;
        }
        v->storage = to;
        v->before = of[to].newest;
        of[to].newest = next;
    }
    of[from].newest = 0;
}

/** Notes that the plan depends on equal numbers in two equal calls. False if out of memory. */
static bool note_numbers(const pass *p, const ts_graph_node *a, const ts_graph_node *b)
{
    for (int k = 0; k < a->nargs; k++) {
        const ts_graph_arg *x = &ts_graph_args_of(p->graph, a)[k],
                           *y = &ts_graph_args_of(p->graph, b)[k];
        if (x->role != TS_ROLE_VALUE || x->tag == TS_TAG_NONE)
            continue;
        if (!ts_array_reserve(&p->exec->equal, 1, sizeof(ts_equal_numbers)))
            return false;
        *TS_PUSH(p->exec->equal, ts_equal_numbers) = (ts_equal_numbers){x->at, y->at};
    }
    return true;
}

/** Drops call i, which equals the earlier call `first`. False if out of memory. */
static bool merge(const pass *p, uint32_t first, uint32_t i)
{
    ts_graph_node *a = ts_graph_node_at(p->graph, first), *b = ts_graph_node_at(p->graph, i);
    bool swap = is_held(p, b); /* the held results remain */
    if (!note_numbers(p, a, b) || !ts_array_reserve(&p->exec->merged, 1, sizeof(ts_merged)))
        return false;
    *TS_PUSH(p->exec->merged, ts_merged) = (ts_merged){b->end, a->end, b->op};
    for (int k = 0; k < a->nrets; k++) {
        if (!a->rets[k])
            continue;
        uint32_t own = storage_of(p, a->rets[k]), other = storage_of(p, b->rets[k]);
        move_values(p, swap ? own : other, swap ? other : own);
        p->written[swap ? other : own] = first + 1;
        if (swap)
            a->rets[k] = b->rets[k];
        ts_graph_value_at(p->graph, a->rets[k])->slot = first;
    }
    b->nargs = b->nrets = 0; /* without arguments and results it is dead */
    return true;
}

/** Looks for an earlier equal call of call i and merges both, or adds call i to the table. False if
 *  out of memory. */
static bool look_up(const pass *p, uint32_t i)
{
    const ts_graph_node *n = ts_graph_node_at(p->graph, i);
    uint32_t at = (uint32_t)hash_of(p, n) & (p->slots - 1);
    for (; p->table[at]; at = (at + 1) & (p->slots - 1)) {
        uint32_t first = p->table[at] - 1;
        const ts_graph_node *other = ts_graph_node_at(p->graph, first);
        if (!equal_calls(p, other, n))
            continue;
        if (is_current(p, first) && !(is_held(p, n) && is_held(p, other)))
            return merge(p, first, i);
        break; /* later calls may equal this one */
    }
    p->table[at] = i + 1;
    return true;
}

/** Replaces merged values in the arguments of all calls. */
static void replace_args(const pass *p)
{
    ts_graph *g = p->graph;
    for (uint32_t i = 0; i < g->nodes.count; i++) {
        const ts_graph_node *n = ts_graph_node_at(g, i);
        ts_graph_arg *a = ts_graph_args_of(g, n);
        for (int k = 0; k < n->nargs; k++) {
            if (a[k].tag == TS_TAG_TENSOR)
                a[k].id = ts_id_make(g, value_of(p, a[k].id));
            for (uint32_t j = 0; a[k].tag == TS_TAG_TENSORS && j < a[k].count; j++) {
                int64_t *id = &ts_graph_ints_at(g, a[k].at)[j];
                *id = (int64_t)ts_id_make(g, value_of(p, (ts_id)*id));
            }
        }
    }
}

bool ts_plan_merge(ts_exec *e, ts_graph *g, const ts_array *storages, const uint64_t *numbers)
{
    size_t n = g->nodes.count, slots = 16;
    while (slots < 2 * n)
        slots *= 2;
    size_t bytes = (storages->count + g->values.count + slots) * sizeof(uint32_t) +
                   storages->count * sizeof(bool);
    uint32_t *block = ts_alloc(ts_thread_self(), bytes);
    if (!block)
        return false;
    memset(block, 0, bytes);
    pass p = {.exec = e, .graph = g, .storages = storages->data, .numbers = numbers,
              .written = block, .table = block + storages->count, .slots = (uint32_t)slots};
    p.same = p.table + slots;
    p.shared = (bool *)(p.same + g->values.count);
    for (uint32_t i = 0; i < g->values.count; i++)
        p.same[i] = i;
    for (uint32_t i = 0; i < n; i++)
        each_write(&p, i, note_shared);
    memset(p.written, 0, storages->count * sizeof *p.written);
    bool ok = true;
    for (uint32_t i = 0; i < n && ok; i++) {
        ok = !is_pure(&p, ts_graph_node_at(g, i)) || look_up(&p, i);
        each_write(&p, i, note_write); /* none by a dropped call */
    }
    if (ok && e->merged.count)
        replace_args(&p);
    ts_free(ts_thread_self(), block, bytes);
    return ok;
}

bool ts_exec_serves(const ts_exec *e, const uint64_t *numbers)
{
    const ts_equal_numbers *equal = e->equal.data;
    for (uint32_t i = 0; i < e->equal.count; i++)
        if (numbers[equal[i].a] != numbers[equal[i].b])
            return false;
    return true;
}
