/**
 * @file common.c  Common subexpressions: drops a call that equals an earlier call, whose results
 * then replace its own.
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
#include "compile/rewrite.h"
#include "dispatch/entries.h"

#include <string.h>
#include <xxhash.h>

/** The pass over the calls, in their order. */
typedef struct pass {
    ts_rewrite w;
    ts_exec *exec;
    uint32_t *table;   /* hash table of calls (open addressing): index + 1; 0: unused */
    uint32_t slots;    /* of the table, a power of two */
} pass;

/* ----------------------------------------------------------------------------- equality ---- */

/** The bits of an argument that is not a tensor, list or string. */
static uint64_t bits_of(const pass *p, const ts_graph_arg *a)
{
    if (a->tag == TS_TAG_NONE)
        return 0;
    if (a->role == TS_ROLE_VALUE)
        return p->w.numbers[a->at];
    return a->tag == TS_TAG_DEVICE ? (uint64_t)a->device.backend << 8 | a->device.index
                                   : (uint64_t)a->i;
}

static uint64_t hash_of(const pass *p, const ts_graph_node *n)
{
    const ts_graph_arg *a = ts_graph_args_of(p->w.graph, n);
    uint64_t hash = ts_hash_word(ts_hash_word(n->op, n->nargs), n->want);
    for (int k = 0; k < n->nargs; k++) {
        bool ids = a[k].tag == TS_TAG_TENSORS;
        hash = ts_hash_word(hash, a[k].tag);
        switch (a[k].tag) {
        case TS_TAG_TENSOR: hash = ts_hash_word(hash, ts_rewrite_value(&p->w, a[k].id)); break;
        case TS_TAG_TENSORS: case TS_TAG_INTS:
            for (uint32_t j = 0; j < a[k].count; j++) {
                int64_t word = ts_graph_ints_at(p->w.graph, a[k].at)[j];
                hash = ts_hash_word(hash, ids ? ts_rewrite_value(&p->w, (ts_id)word)
                                              : (uint64_t)word);
            }
            break;
        case TS_TAG_STRING:
            hash = ts_hash_word(hash, XXH3_64bits(ts_graph_text_at(p->w.graph, a[k].at),
                                                  a[k].count));
            break;
        default: hash = ts_hash_word(hash, bits_of(p, &a[k]));
        }
    }
    return hash ^ hash >> 32;
}

static bool equal_args(const pass *p, const ts_graph_arg *a, const ts_graph_arg *b)
{
    const ts_graph *g = p->w.graph;
    if (a->tag != b->tag || a->role != b->role || a->count != b->count)
        return false;
    switch (a->tag) {
    case TS_TAG_TENSOR: return ts_rewrite_value(&p->w, a->id) == ts_rewrite_value(&p->w, b->id);
    case TS_TAG_TENSORS:
        for (uint32_t j = 0; j < a->count; j++)
            if (ts_rewrite_value(&p->w, (ts_id)ts_graph_ints_at(g, a->at)[j]) !=
                ts_rewrite_value(&p->w, (ts_id)ts_graph_ints_at(g, b->at)[j]))
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

static bool equal_calls(const pass *p, const ts_graph_node *a, const ts_graph_node *b)
{
    const ts_graph *g = p->w.graph;
    if (a->op != b->op || a->nargs != b->nargs || a->nrets != b->nrets || a->want != b->want)
        return false;
    for (int k = 0; k < a->nargs; k++)
        if (!equal_args(p, &ts_graph_args_of(g, a)[k], &ts_graph_args_of(g, b)[k]))
            return false;
    for (int k = 0; k < a->nrets; k++) {
        if (!a->rets[k] != !b->rets[k])
            return false;
        if (!a->rets[k])
            continue;
        const ts_graph_value *x = ts_graph_value_at(g, a->rets[k]),
                             *y = ts_graph_value_at(g, b->rets[k]);
        if (!ts_rewrite_equal_layouts(&p->w, x, y) || x->offset != y->offset ||
            p->w.storages[ts_rewrite_storage(&p->w, a->rets[k])].bytes !=
                p->w.storages[ts_rewrite_storage(&p->w, b->rets[k])].bytes)
            return false;
    }
    return true;
}

static bool is_older(const ts_rewrite *w, ts_id id, void *node)
{
    return w->written[ts_rewrite_storage(w, id)] <= *(const uint32_t *)node;
}
/** True if no call after `node` and before the current one writes an argument of `node`. */
static bool is_current(const pass *p, uint32_t node)
{
    return ts_rewrite_each_argument(&p->w, ts_graph_node_at(p->w.graph, node), is_older, &node);
}

/* ------------------------------------------------------------------------------- merging ---- */

/** Notes that the plan depends on equal numbers in two equal calls. False if out of memory. */
static bool note_numbers(const pass *p, const ts_graph_node *a, const ts_graph_node *b)
{
    for (int k = 0; k < a->nargs; k++) {
        const ts_graph_arg *x = &ts_graph_args_of(p->w.graph, a)[k],
                           *y = &ts_graph_args_of(p->w.graph, b)[k];
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
    ts_graph_node *a = ts_graph_node_at(p->w.graph, first), *b = ts_graph_node_at(p->w.graph, i);
    bool swap = ts_rewrite_is_held(&p->w, b); /* the held results remain */
    if (!note_numbers(p, a, b) || !ts_array_reserve(&p->exec->merged, 1, sizeof(ts_merged)))
        return false;
    *TS_PUSH(p->exec->merged, ts_merged) = (ts_merged){b->end, a->end, b->op};
    for (int k = 0; k < a->nrets; k++) {
        if (!a->rets[k])
            continue;
        uint32_t own = ts_rewrite_storage(&p->w, a->rets[k]),
                 other = ts_rewrite_storage(&p->w, b->rets[k]);
        ts_rewrite_move(&p->w, swap ? own : other, swap ? other : own, 0);
        p->w.written[swap ? other : own] = first + 1;
        if (swap)
            a->rets[k] = b->rets[k];
        ts_graph_value_at(p->w.graph, a->rets[k])->slot = first;
    }
    b->nargs = b->nrets = 0; /* without arguments and results it is dead */
    return true;
}

/** Looks for an earlier equal call of call i and merges both, or adds call i to the table. False if
 *  out of memory. */
static bool look_up(const pass *p, uint32_t i)
{
    const ts_graph_node *n = ts_graph_node_at(p->w.graph, i);
    uint32_t at = (uint32_t)hash_of(p, n) & (p->slots - 1);
    for (; p->table[at]; at = (at + 1) & (p->slots - 1)) {
        uint32_t first = p->table[at] - 1;
        const ts_graph_node *other = ts_graph_node_at(p->w.graph, first);
        if (!equal_calls(p, other, n))
            continue;
        bool both = ts_rewrite_is_held(&p->w, n) && ts_rewrite_is_held(&p->w, other);
        if (is_current(p, first) && !both)
            return merge(p, first, i);
        break; /* later calls may equal this one */
    }
    p->table[at] = i + 1;
    return true;
}

bool ts_plan_merge(ts_exec *e, ts_graph *g, const ts_array *storages, const uint64_t *numbers)
{
    size_t n = g->nodes.count, slots = 16;
    while (slots < 2 * n)
        slots *= 2;
    size_t bytes = slots * sizeof(uint32_t);
    pass p = {.exec = e, .table = ts_alloc(ts_thread_self(), bytes), .slots = (uint32_t)slots};
    if (!p.table)
        return false;
    memset(p.table, 0, bytes);
    bool ok = ts_rewrite_begin(&p.w, g, storages, numbers);
    for (uint32_t i = 0; i < n && ok; i++) {
        ok = !ts_rewrite_is_pure(&p.w, ts_graph_node_at(g, i)) || look_up(&p, i);
        ts_rewrite_pass(&p.w, i); /* a dropped call writes nothing */
    }
    if (p.w.written)
        ts_rewrite_end(&p.w, ok && e->merged.count);
    ts_free(ts_thread_self(), p.table, bytes);
    return ok;
}
