/**
 * @file recompute.c  Chooses values that are recomputed after the memory peak of a plan instead of
 * being kept across it (rematerialisation).
 *
 * The recorded calls up to the last call of the peak step are early, the others late. Without
 * recomputation, a storage that early calls make and late calls read is kept across the peak. Only
 * cheap calls (pointwise or by rows) are recomputed.
 *
 * A minimum cut chooses the storages to keep. Each storage is a vertex whose capacity is the cost
 * of keeping it (in the network: an edge between two vertices). Edges of unlimited capacity connect
 * each argument of a cheap call to its result, the source to storages that cannot be recomputed,
 * and storages that late calls read to the sink. Storages in the cut are kept; storages on the
 * sink's side are recomputed.
 */
// SPDX-License-Identifier: MIT
#include "compile/flow.h"
#include "compile/plan.h"

#include <string.h>

enum {
    LEAST = 2048,   /* storages smaller than 1 / LEAST of the peak are kept */
    SMALLER = 4,    /* a result is kept if the arguments have at least SMALLER times its bytes */
    MOST_DEPTH = 1  /* most far values (see is_far()) in a chain of recomputed calls */
};

/** Properties of a storage. */
typedef struct fact {
    uint32_t made;  /* the last call that writes it; UINT32_MAX: none */
    uint8_t chain;  /* if recomputable: length of the longest chain of recomputed calls up to it */
    uint8_t depth;  /* if recomputable: most far values in such a chain */
    bool recomputable;
    bool fixed;     /* it is always kept: from outside, held, small, or used by the peak step */
    bool several;   /* it cannot be recomputed by one call: it is written more than once, in part
                       only, in place, or by a late call */
    uint32_t first; /* first early call that reads it; UINT32_MAX: none */
    uint32_t last;  /* last early call that reads it; valid if `first` is */
    uint32_t late;  /* first late call that reads it; UINT32_MAX: none */
    uint32_t need;  /* latest call for which it, or a value computed from it, may be recomputed; 0:
                       no late call needs it */
    uint32_t vertex; /* number of its vertex + 1; 0: none */
    uint32_t distance; /* fewest calls from it to a storage that a late call reads, or UINT32_MAX */
} fact;

typedef struct chooser {
    const maker *m;
    const ts_graph *graph;
    const ts_exec *exec;
    uint32_t split;     /* number of early calls */
    int64_t least;      /* storages of fewer bytes are kept */
    fact *facts;        /* per storage */
    uint32_t *costly;   /* per early call: number of live calls before it that are not cheap; one
                           more entry: their total number */
    bool *cheap;        /* per early call: it may be recomputed: it is live, pointwise or by rows,
                           and has no destination from its caller */
    uint32_t vertices;  /* number of storages with a vertex */
} chooser;

/* ------------------------------------------------------------------------------- facts ---- */

/** Updates the facts of the storages that call i uses. */
static void note_uses(const chooser *c, uint32_t i)
{
    uint32_t n;
    const touch *t = ts_touches_of(c->m, i, &n);
    for (uint32_t k = 0; k < n; k++) {
        const ts_graph_value *v = (const ts_graph_value *)c->graph->values.data + t[k].value;
        fact *f = &c->facts[t[k].storage];
        if (t[k].writes) {
            bool whole = t[k].fresh && !v->offset &&
                         ts_value_bytes(c->graph, v) == c->exec->storages[t[k].storage].bytes;
            f->several |= f->made != UINT32_MAX || !whole || i >= c->split;
            f->made = i;
            continue;
        }
        uint32_t *first = i < c->split ? &f->first : &f->late;
        *first = *first == UINT32_MAX ? i : *first;
        if (i < c->split)
            f->last = i;
    }
}

/** Sets facts, costly and cheap, and marks storages that the peak step uses as fixed. */
static void find_facts(chooser *c)
{
    const ts_exec *e = c->exec;
    uint32_t n = c->graph->nodes.count, count;
    for (uint32_t i = 0; i < e->nstorages; i++)
        c->facts[i] = (fact){.made = UINT32_MAX, .first = UINT32_MAX, .late = UINT32_MAX,
                             .distance = UINT32_MAX,
                             .fixed = e->storages[i].outside || e->storages[i].held ||
                                      e->storages[i].constant ||
                                      e->storages[i].bytes < c->least};
    for (uint32_t i = 0; i < n; i++)
        if (c->m->step_of[i] != UINT32_MAX)
            note_uses(c, i);
    for (uint32_t i = 0; i < c->split; i++) {
        const ts_graph_node *node = ts_graph_node_at(c->graph, i);
        bool alive = c->m->step_of[i] != UINT32_MAX;
        c->cheap[i] = alive && !node->given &&
                      ts_group_takes(c->graph, node, c->m->numbers).cheap;
        c->costly[i + 1] = c->costly[i] + (alive && !c->cheap[i]);
    }
    const ts_step *s = &e->steps[e->peak_step];
    for (uint32_t i = s->first; i < s->first + s->count; i++) {
        const touch *t = ts_touches_of(c->m, e->order[i], &count);
        for (uint32_t k = 0; k < count; k++)
            c->facts[t[k].storage].fixed = true;
    }
}

/** Sets *call and args to the call that recomputes storage s; false if there is none. */
static bool call_to_recompute(const chooser *c, uint32_t s, ts_graph_node *call, ts_graph_arg *args)
{
    const fact *f = &c->facts[s];
    return f->made != UINT32_MAX && !f->several &&
           ts_plan_maker(c->m, f->made, s, c->cheap[f->made], call, args);
}

/** True if a call that is not cheap lies between the first and the last early call that reads the
 *  storage. For example, a residual is read before and after a layer. */
static bool is_far(const chooser *c, const fact *f)
{
    return f->first != UINT32_MAX && c->costly[f->last] > c->costly[f->first + 1];
}

/** For each storage that call i makes: updates its `need`, and passes the need on to the arguments
 *  of the call that recomputes it. */
static void propagate_need(const chooser *c, uint32_t i)
{
    ts_graph_node call;
    ts_graph_arg args[TS_MAX_ARGS];
    const ts_graph_node *n = ts_graph_node_at(c->graph, i);
    for (int r = 0; r < n->nrets; r++) {
        uint32_t s = n->rets[r] ? ts_graph_value_at(c->graph, n->rets[r])->storage : UINT32_MAX;
        if (s == UINT32_MAX || !call_to_recompute(c, s, &call, args))
            continue;
        fact *f = &c->facts[s];
        if (f->late != UINT32_MAX && f->late > f->need)
            f->need = f->late;
        for (int k = 0; k < call.nargs; k++) {
            if (args[k].tag != TS_TAG_TENSOR)
                continue;
            fact *of = &c->facts[ts_graph_value_at(c->graph, args[k].id)->storage];
            of->need = f->need > of->need ? f->need : of->need;
        }
    }
}

/** Decides whether storage s can be recomputed; sets its `recomputable`, `depth` and `chain`. */
static void decide(const chooser *c, uint32_t s)
{
    ts_graph_node call;
    ts_graph_arg args[TS_MAX_ARGS];
    fact *f = &c->facts[s];
    int64_t bytes = 0;
    uint32_t depth = 0, chain = 0;
    if (!f->need || f->fixed || !call_to_recompute(c, s, &call, args))
        return;
    for (int k = 0; k < call.nargs; k++) {
        if (args[k].tag == TS_TAG_TENSORS)
            return;
        if (args[k].tag != TS_TAG_TENSOR)
            continue;
        const ts_graph_value *v = ts_graph_value_at(c->graph, args[k].id);
        const fact *of = &c->facts[v->storage];
        bytes += ts_value_bytes(c->graph, v);
        depth = of->recomputable && of->depth > depth ? of->depth : depth;
        chain = of->recomputable && of->chain > chain ? of->chain : chain;
        if (of->several && ts_plan_is_written(c->m, v->storage, f->made, f->need))
            return;
    }
    depth += is_far(c, f);
    f->depth = (uint8_t)depth;
    f->chain = (uint8_t)(chain + 1);
    f->recomputable = depth <= MOST_DEPTH && chain < TS_MAX_CHAIN &&
                      bytes < SMALLER * c->exec->storages[s].bytes;
}

/* --------------------------------------------------------------------------------- cut ---- */

/** True if keeping the storage costs nothing more, because it is kept in any case. */
static bool is_free(const fact *f)
{
    return f->fixed || (f->late != UINT32_MAX && !f->recomputable);
}

/** Adds a vertex for storage s if late calls need it and keeping it has a cost; then updates the
 *  distance of the arguments from which it can be recomputed. Called for results before their
 *  arguments. */
static void add_vertex(chooser *c, uint32_t s)
{
    ts_graph_node call;
    ts_graph_arg args[TS_MAX_ARGS];
    fact *f = &c->facts[s];
    f->distance = f->late != UINT32_MAX ? 0 : f->distance;
    if (is_free(f) || f->distance == UINT32_MAX)
        return;
    f->vertex = ++c->vertices;
    if (!f->recomputable || !call_to_recompute(c, s, &call, args))
        return;
    for (int k = 0; k < call.nargs; k++)
        if (args[k].tag == TS_TAG_TENSOR) {
            fact *of = &c->facts[ts_graph_value_at(c->graph, args[k].id)->storage];
            of->distance = f->distance + 1 < of->distance ? f->distance + 1 : of->distance;
        }
}

/** Cost of keeping a storage: bytes * 1.1^distance, so that storages near their late readers are
 *  preferred; twice that if its group now keeps it in registers, because it must then be stored. */
static int64_t cost_of(const chooser *c, uint32_t s)
{
    double cost = (double)c->exec->storages[s].bytes;
    for (uint32_t k = 0; k < c->facts[s].distance && k < TS_MAX_CHAIN; k++)
        cost *= 1.1;
    return (int64_t)(cost * (1 + c->exec->storages[s].inside));
}

/* A storage has two vertices of the network, in and out; the edge between them has its cost. */
enum { SOURCE, SINK, OTHERS };
static uint32_t in_of(const fact *f) { return OTHERS + 2 * (f->vertex - 1); }
static uint32_t out_of(const fact *f) { return in_of(f) + 1; }

/** Adds the edges of storage s, which has a vertex. False if out of memory. */
static bool add_edges(const chooser *c, ts_flow *flow, uint32_t s)
{
    ts_graph_node call;
    ts_graph_arg args[TS_MAX_ARGS];
    const fact *f = &c->facts[s];
    bool ok = ts_flow_add(flow, in_of(f), out_of(f), cost_of(c, s));
    if (f->late != UINT32_MAX)
        ok = ok && ts_flow_add(flow, out_of(f), SINK, TS_FLOW_UNLIMITED);
    if (!f->recomputable)
        return ok && ts_flow_add(flow, SOURCE, in_of(f), TS_FLOW_UNLIMITED);
    call_to_recompute(c, s, &call, args);
    for (int k = 0; k < call.nargs && ok; k++) {
        if (args[k].tag != TS_TAG_TENSOR)
            continue;
        const fact *of = &c->facts[ts_graph_value_at(c->graph, args[k].id)->storage];
        if (of->vertex)
            ok = ts_flow_add(flow, out_of(of), in_of(f), TS_FLOW_UNLIMITED);
    }
    return ok;
}

/** Chooses the storages on the sink's side of the minimum cut that can be recomputed. */
static bool choose_by_cut(const chooser *c, ts_recomputation *chosen)
{
    ts_flow flow;
    int64_t capacity;
    uint32_t vertices = OTHERS + 2 * c->vertices;
    bool *reached = ts_alloc(ts_thread_self(), vertices);
    bool ok = ts_flow_begin(&flow, vertices) && reached;
    for (uint32_t s = 0; s < c->exec->nstorages && ok; s++)
        if (c->facts[s].vertex)
            ok = add_edges(c, &flow, s);
    ok = ok && ts_flow_cut(&flow, SOURCE, SINK, reached, &capacity);
    for (uint32_t s = 0; s < c->exec->nstorages && ok; s++) {
        const fact *f = &c->facts[s];
        chosen->storages[s] = f->vertex && f->recomputable && !reached[in_of(f)];
        chosen->count += chosen->storages[s] && f->late != UINT32_MAX;
    }
    ts_flow_free(&flow);
    if (reached)
        ts_free(ts_thread_self(), reached, vertices);
    return ok;
}

/** Runs `visit` for the storages that the early calls make, in the order of the calls, or
 *  backwards. A result that is recomputed from another result of its call (linear_gelu) comes after
 *  that result, or backwards before it. */
static void each_made(chooser *c, void (*visit)(chooser *, uint32_t), bool backwards)
{
    for (uint32_t at = 0; at < c->split; at++) {
        uint32_t i = backwards ? c->split - 1 - at : at;
        const ts_graph_node *n = ts_graph_node_at(c->graph, i);
        for (int k = 0; k < n->nrets; k++) { /* in rets, linear_gelu's gelu precedes its argument */
            int r = backwards ? k : n->nrets - 1 - k;
            uint32_t s = n->rets[r] ? ts_graph_value_at(c->graph, n->rets[r])->storage : UINT32_MAX;
            if (s != UINT32_MAX && c->facts[s].made == i)
                visit(c, s);
        }
    }
}
static void visit_decide(chooser *c, uint32_t s) { decide(c, s); }

bool ts_plan_choose(const maker *m, ts_recomputation *chosen)
{
    const ts_exec *e = m->exec;
    const ts_step *s = &e->steps[e->peak_step];
    chooser c = {.m = m, .graph = m->graph, .exec = e, .least = e->peak / LEAST + 1};
    *chosen = (ts_recomputation){.nstorages = e->nstorages};
    if (!e->nsteps || !s->count)
        return true;
    for (uint32_t i = s->first; i < s->first + s->count; i++)
        c.split = e->order[i] + 1 > c.split ? e->order[i] + 1 : c.split;
    size_t bytes = (e->nstorages + 1) * sizeof *c.facts +
                   (c.split + 2) * (sizeof *c.costly + sizeof *c.cheap);
    c.facts = ts_alloc(ts_thread_self(), bytes);
    chosen->storages = ts_alloc(ts_thread_self(), e->nstorages + 1);
    bool ok = c.facts && chosen->storages;
    if (ok) {
        memset(c.facts, 0, bytes);
        memset(chosen->storages, 0, e->nstorages + 1);
        c.costly = (uint32_t *)(c.facts + e->nstorages + 1);
        c.cheap = (bool *)(c.costly + c.split + 2);
        chosen->split = c.split;
        find_facts(&c);
        for (uint32_t i = c.split; i-- > 0;)
            propagate_need(&c, i);
        each_made(&c, visit_decide, false);
        each_made(&c, add_vertex, true);
        ok = !c.vertices || choose_by_cut(&c, chosen);
    }
    if (c.facts)
        ts_free(ts_thread_self(), c.facts, bytes);
    return ok;
}

void ts_recomputation_free(ts_recomputation *chosen)
{
    if (chosen->storages)
        ts_free(ts_thread_self(), chosen->storages, chosen->nstorages + 1);
    chosen->storages = NULL;
}
