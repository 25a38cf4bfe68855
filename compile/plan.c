/**
 * @file plan.c  Makes a plan from a recorded stream: divides the calls into steps.
 *
 * One pass over the calls makes the steps. A call joins the earlier group with which it saves most
 * bytes, if all calls that it depends on are in that group or in earlier steps. Then groups are
 * merged, those that save most bytes first (join.c).
 */
// SPDX-License-Identifier: MIT
#include "compile/emit.h"
#include "compile/plan.h"
#include "compile/replay.h"
#include "ops/ops.h"

#include <string.h>

/* -------------------------------------------------------------------------------- steps ---- */

static bool add_touch(maker *m, ts_id id, bool writes, bool fresh)
{
    if (!ts_array_reserve(&m->touches, 1, sizeof(touch)))
        return false;
    uint32_t value = ts_id_index(id);
    *TS_PUSH(m->touches, touch) =
        (touch){ts_graph_value_at(m->graph, id)->storage, value, writes, fresh, false};
    return true;
}

static bool find_touches(maker *m)
{
    const ts_graph *g = m->graph;
    for (uint32_t i = 0; i < g->nodes.count; i++) {
        const ts_graph_node *n = ts_graph_node_at(g, i);
        const ts_schema *schema = &ts_ops[n->op].schema;
        const ts_graph_arg *a = ts_graph_args_of(g, n);
        m->begin[i] = m->touches.count;
        for (int k = 0; k < n->nargs; k++) {
            bool list = a[k].tag == TS_TAG_TENSORS;
            for (uint32_t j = 0; j < (list ? a[k].count : a[k].tag == TS_TAG_TENSOR); j++)
                if (!add_touch(m, list ? (ts_id)ts_graph_ints_at(g, a[k].at)[j] : a[k].id,
                               schema->args[k].written, false))
                    return false;
        }
        for (int k = 0; k < n->nrets; k++)
            if (n->rets[k] && !add_touch(m, n->rets[k], true, !(n->given >> k & 1)))
                return false;
    }
    m->begin[g->nodes.count] = m->touches.count;
    return true;
}

/** Sets m->uses: the calls that use each storage, without dropped calls. */
static void count_uses(const maker *m)
{
    const touch *t = (const touch *)m->touches.data;
    for (uint32_t i = 0; i < m->graph->nodes.count; i++)
        for (uint32_t k = m->begin[i]; k < m->begin[i + 1] && m->step_of[i] != UINT32_MAX; k++) {
            uint32_t before = m->begin[i];
            while (t[before].storage != t[k].storage)
                before++;
            m->uses[t[k].storage] += before == k;
        }
}

/** Finds touches, and finds them again if cats are dropped. */
static bool find_final_touches(maker *m)
{
    bool some = false;
    bool ok = find_touches(m) &&
              (!m->by_rows || m->max_groups == -1 || ts_plan_drop_cats(m, &some));
    if (!ok || !some)
        return ok;
    m->touches.count = 0;
    return find_touches(m);
}

/** Marks the results of node i that no other call of its group may use. */
static void mark_last(maker *m, uint32_t i, const ts_group_part *part)
{
    const ts_graph_node *n = ts_graph_node_at(m->graph, i);
    touch *t = (touch *)m->touches.data;
    for (int r = 0; r < n->nrets; r++)
        for (uint32_t k = m->begin[i]; k < m->begin[i + 1] && n->rets[r]; k++)
            t[k].last |= (part->results >> r & 1) && t[k].value == ts_id_index(n->rets[r]);
}

/** Marks all results of node i, a call on results of folds. */
static void mark_results(maker *m, uint32_t i)
{
    touch *t = (touch *)m->touches.data;
    for (uint32_t k = m->begin[i]; k < m->begin[i + 1]; k++)
        t[k].last |= t[k].writes;
}

/**
 * Merges node i into linear_backward, the call before it, if node i is the sum_to_size that lazy.c
 * records for the bias gradient. The product of the weight's gradient then computes this sum. The
 * touches of both nodes are adjacent and become those of linear_backward. False if node i is no
 * such call. Only for a node that joined no group.
 */
static bool rejoin_bias(maker *m, uint32_t i)
{
    enum { BIAS = 2 };
    const ts_graph_node *sum = ts_graph_node_at(m->graph, i);
    ts_graph_node *product = i ? ts_graph_node_at(m->graph, i - 1) : NULL;
    if (sum->op != TS_OP_sum_to_size || !product || product->op != TS_OP_linear_backward ||
        product->rets[BIAS] || m->step_of[i - 1] == UINT32_MAX)
        return false;
    ts_id g = ts_graph_args_of(m->graph, sum)[0].id;
    ts_graph_value *bias = ts_graph_value_at(m->graph, sum->rets[0]),
                   *of = ts_graph_value_at(m->graph, g);
    const ts_step *s = &m->exec->steps[m->step_of[i - 1]];
    if (ts_graph_args_of(m->graph, product)[0].id != g || bias->ndim != 1 || of->ndim < 2 ||
        bias->dtype != of->dtype || s->fused || sum->given || !product->rets[1] ||
        *ts_graph_ints_at(m->graph, bias->ints) !=
            ts_graph_ints_at(m->graph, of->ints)[of->ndim - 1])
        return false;
    product->rets[BIAS] = sum->rets[0];
    bias->slot = i - 1;
    product->want |= 1 << BIAS;
    m->begin[i] = m->begin[i + 1];
    m->exec->storages[bias->storage].writer = m->step_of[i - 1] + 1;
    m->step_of[i] = UINT32_MAX;
    return true;
}

void ts_plan_add(maker *m, uint32_t i, uint32_t step)
{
    const touch *t = (const touch *)m->touches.data;
    m->exec->steps[step].count++;
    m->step_of[i] = step;
    for (uint32_t k = m->begin[i]; k < m->begin[i + 1]; k++) {
        ts_plan_storage *s = &m->exec->storages[t[k].storage];
        uint32_t *last = t[k].writes ? &s->writer : &s->reader,
                 *recent = m->recent + (size_t)TS_RECENT * t[k].storage;
        *last = step + 1 > *last ? step + 1 : *last;
        int at = 0;
        while (at < TS_RECENT - 1 && recent[at] && recent[at] != step + 1)
            at++;
        memmove(recent + 1, recent, (size_t)at * sizeof *recent);
        recent[0] = step + 1;
    }
}

/** Adds node i to a group or makes a step for it. While steps are made, ts_step.first is the number
 *  of the step's first node. */
static void add_node(maker *m, uint32_t i)
{
    ts_exec *e = m->exec;
    const ts_graph_node *n = ts_graph_node_at(m->graph, i);
    const touch *t = (const touch *)m->touches.data;
    uint32_t after = n->flags & TS_NODE_RECOMPUTED ? m->barrier + 1 : 0, step = UINT32_MAX;
    int64_t saved = 0;
    for (uint32_t k = m->begin[i]; k < m->begin[i + 1]; k++) {
        const ts_plan_storage *s = &e->storages[t[k].storage];
        after = s->writer > after ? s->writer : after;
        if (t[k].writes && s->reader > after)
            after = s->reader;
    }
    ts_group_part part = {0};
    bool groups = m->max_groups != -1;
    if (groups)
        part = ts_group_takes(m->graph, n, m->numbers);
    part.takes = part.takes && (m->by_rows || !part.rows);
    if (!part.takes)
        part = (ts_group_part){0};
    const ts_graph_value *v = NULL; /* its sizes are the iteration space */
    if (part.takes)
        v = ts_graph_value_at(m->graph, part.rows || part.folds
                                            ? ts_graph_args_of(m->graph, n)[0].id
                                            : n->rets[0]);
    mark_last(m, i, &part);
    bool joins = !(part.rows || part.folds) || n->op == TS_OP_sum_to_size;
    if (groups && joins && m->by_rows && ts_plan_join_product(m, i))
        return;
    if (part.takes)
        step = ts_plan_find_group(m, i, v, &part, after ? after - 1 : 0, &saved);
    if (step == UINT32_MAX && rejoin_bias(m, i))
        return;
    bool step_is_late = step != UINT32_MAX && ts_plan_is_late(m, i, &e->steps[step], v, &part);
    if (step == UINT32_MAX) {
        step = e->nsteps++;
        e->steps[step] = (ts_step){.first = i, .fused = part.takes, .ndim = v ? v->ndim : 0};
        if (v) {
            e->steps[step].device = v->device;
            e->steps[step].numel = 1;
            for (int d = 0; d < v->ndim; d++)
                e->steps[step].numel *= e->steps[step].sizes[d] =
                    ts_graph_ints_at(m->graph, v->ints)[d];
        }
    }
    ts_step *s = &e->steps[step];
    if (step_is_late)
        mark_results(m, i);
    s->rows = part.rows ? part.rows : s->rows;
    s->inner = part.inner;
    s->saved += saved;
    if (part.folds) {
        s->folds = part.folds;
        s->from = part.from;
        s->fold_dtype = part.dtype;
    }
    e->ngroups += s->fused && s->count == 1; /* this is its second call */
    ts_plan_add(m, i, step);
}

/** Fills e->order: nodes by step, and within a step by member. Sets ts_step.first to the index of a
 *  step's first node in e->order. A group of one node becomes a single call. */
static void order_nodes(maker *m)
{
    ts_exec *e = m->exec;
    uint32_t at = 0;
    for (uint32_t k = 0; k < e->nsteps; k++) {
        ts_step *s = &e->steps[k];
        uint32_t each = s->members ? s->count / s->members : s->count, left = s->count,
                 first = s->first;
        s->first = at;
        s->fused = s->fused && s->count > 1;
        memset(e->order + at, 0xff, s->count * sizeof *e->order);
        for (uint32_t i = first; left; i++)
            if (m->step_of[i] == k) {
                uint32_t *to = &e->order[s->first + m->member[i] * each];
                while (*to != UINT32_MAX)
                    to++;
                *to = i;
                left--;
            }
        at += s->count;
        e->nfused += s->fused ? s->count : 0;
    }
    for (uint32_t k = 0; k < e->nsteps; k++)
        e->steps[k].narrow = e->steps[k].fused && e->steps[k].device.backend == TS_KEY_CPU &&
                             ts_group_is_narrow(e, &e->steps[k]);
    e->nnodes = at;
}

int64_t ts_value_bytes(const ts_graph *g, const ts_graph_value *v)
{
    int64_t n = ts_dtype_sizes[v->dtype];
    for (int d = 0; d < v->ndim; d++)
        n *= ts_graph_ints_at(g, v->ints)[d];
    return n;
}

/** Computes the first and last step of each storage, which storages are inside a group, and the
 *  bytes that the steps move. */
static void find_lives(const maker *m)
{
    ts_exec *e = m->exec;
    const ts_graph *g = m->graph;
    const touch *t = (const touch *)m->touches.data;
    e->bytes = e->fused_bytes = 0;
    for (uint32_t i = 0; i < e->nstorages; i++) {
        e->storages[i].first = e->storages[i].last = UINT32_MAX;
        e->storages[i].inside = false;
    }
    for (uint32_t k = 0; k < e->nsteps; k++)
        for (uint32_t i = e->steps[k].first; i < e->steps[k].first + e->steps[k].count; i++)
            for (uint32_t j = m->begin[e->order[i]]; j < m->begin[e->order[i] + 1]; j++) {
                ts_plan_storage *s = &e->storages[t[j].storage];
                const ts_graph_value *v = (const ts_graph_value *)g->values.data + t[j].value;
                if (s->first == UINT32_MAX) {
                    s->first = k;
                    s->inside = e->steps[k].fused && !s->outside && !s->held && t[j].fresh &&
                                ts_value_bytes(g, v) == s->bytes;
                }
                s->inside = s->inside && s->first == k;
                s->last = k;
                e->bytes += ts_value_bytes(g, v);
            }
    for (uint32_t k = 0; k < e->nsteps; k++)
        for (uint32_t i = e->steps[k].first; i < e->steps[k].first + e->steps[k].count; i++)
            for (uint32_t j = m->begin[e->order[i]]; j < m->begin[e->order[i] + 1]; j++) {
                bool again = e->storages[t[j].storage].inside; /* or used before in this member */
                uint32_t p = e->steps[k].first;
                if (e->steps[k].members)
                    p = i - (i - p) % (e->steps[k].count / e->steps[k].members);
                for (; p < i && e->steps[k].fused && !again; p++)
                    for (uint32_t q = m->begin[e->order[p]]; q < m->begin[e->order[p] + 1]; q++)
                        again |= t[q].value == t[j].value;
                if (!again)
                    e->fused_bytes +=
                        ts_value_bytes(g, (const ts_graph_value *)g->values.data + t[j].value);
            }
}

/* --------------------------------------------------------------------------------- plan ---- */

/** Allocates zeroed memory, freed with give(); NULL without an error message. */
static void *take(size_t bytes)
{
    void *p = ts_alloc(ts_thread_self(), bytes ? bytes : 1);
    if (p)
        memset(p, 0, bytes);
    return p;
}
static void give(void *p, size_t bytes)
{
    if (p)
        ts_free(&ts_tls, p, bytes ? bytes : 1);
}

/** Fills e->opens and e->closes, the storages sorted by first and by last step, and the fields
 *  opens and closes of each step (a counting sort). */
static void list_lives(ts_exec *e)
{
    for (uint32_t k = 0; k < e->nsteps; k++)
        e->steps[k].opens = e->steps[k].closes = 0;
    for (int last = 0; last < 2; last++) {
        uint32_t *list = last ? e->closes : e->opens, at = 0;
        for (uint32_t i = 0; i < e->nstorages; i++) { /* count per step */
            uint32_t k = last ? e->storages[i].last : e->storages[i].first;
            if (k != UINT32_MAX)
                ++*(last ? &e->steps[k].closes : &e->steps[k].opens);
        }
        for (uint32_t k = 0; k < e->nsteps; k++) { /* counts to begins; the next loop makes ends */
            uint32_t *end = last ? &e->steps[k].closes : &e->steps[k].opens, n = *end;
            *end = at;
            at += n;
        }
        for (uint32_t i = 0; i < e->nstorages; i++) {
            uint32_t k = last ? e->storages[i].last : e->storages[i].first;
            if (k != UINT32_MAX)
                list[(*(last ? &e->steps[k].closes : &e->steps[k].opens))++] = i;
        }
    }
}

void ts_plan_find_lives(const maker *m)
{
    find_lives(m);
    list_lives(m->exec);
    ts_exec_find_peak(m->exec);
}

/** Adds the calls that `chosen` names to the graph. *done: false if that is impossible. False if
 *  out of memory. */
static bool recompute(maker *m, ts_array *storages, const ts_recomputation *chosen, bool *done)
{
    ts_exec *e = m->exec;
    size_t bytes = (m->graph->nodes.count + 1) * sizeof *m->begin;
    *done = true;
    if (!chosen)
        return true;
    m->begin = take(bytes);
    m->step_of = take(bytes);
    bool ok = m->begin && m->step_of && find_touches(m);
    if (ok) {
        e->storages = storages->data; /* borrowed by ts_plan_drop_dead() */
        e->nstorages = storages->count;
        ts_plan_drop_dead(m);
        e->storages = NULL;
        ok = ts_plan_recompute(m, storages, chosen, done);
    }
    give(m->begin, bytes);
    give(m->step_of, bytes);
    m->begin = m->step_of = NULL;
    m->touches.count = 0;
    return ok;
}

/** Allocates the arrays of a plan and of its maker. */
static bool allocate(ts_exec *e, maker *m, const ts_array *storages)
{
    uint32_t n = m->graph->nodes.count;
    e->storages = take(storages->count * sizeof *e->storages);
    e->nstorages = storages->count;
    bool ok = e->storages && (e->steps = take(n * sizeof *e->steps)) &&
              (e->kernels = take(n * sizeof *e->kernels)) &&
              (e->tiles = take(n * sizeof *e->tiles)) && (e->code = take(n * sizeof *e->code)) &&
              (e->order = take(n * sizeof *e->order)) &&
              (e->opens = take(e->nstorages * sizeof *e->opens)) &&
              (e->closes = take(e->nstorages * sizeof *e->closes)) &&
              (e->offsets = take(e->nstorages * sizeof *e->offsets)) &&
              (m->begin = take((n + 1) * sizeof *m->begin)) &&
              (m->step_of = take((n + 1) * sizeof *m->step_of)) &&
              (m->uses = take(e->nstorages * sizeof *m->uses)) &&
              (m->recent = take(e->nstorages * TS_RECENT * sizeof *m->recent)) &&
              (m->member = take((n + 1) * sizeof *m->member));
    if (ok && storages->count)
        memcpy(e->storages, storages->data, storages->count * sizeof *e->storages);
    return ok;
}

/** Divides the calls into steps; m->begin to m->member are allocated. split: number of the first
 *  late call. */
static bool make_steps(maker *m, uint32_t split)
{
    if (!find_final_touches(m))
        return false;
    ts_plan_drop_dead(m);
    count_uses(m);
    for (uint32_t i = 0; i < m->graph->nodes.count; i++) {
        const ts_graph_node *n = ts_graph_node_at(m->graph, i);
        if (n->end < split && !(n->flags & TS_NODE_RECOMPUTED))
            m->barrier = m->exec->nsteps;
        if (m->step_of[i] != UINT32_MAX)
            add_node(m, i);
        m->exec->nrecomputed += m->step_of[i] != UINT32_MAX && (n->flags & TS_NODE_RECOMPUTED);
    }
    return ts_plan_merge_groups(m) && ts_plan_join_alike(m);
}

/** Makes a plan. in: the storages that it recomputes, or NULL. out: receives those that a second
 *  plan should recompute. NULL if out of memory, and if `in` cannot be done. */
static ts_exec *make(const uint64_t *words, uint32_t nwords, const uint64_t *numbers,
                     const ts_plan_options *o, const ts_recomputation *in, ts_recomputation *out)
{
    ts_exec *e = take(sizeof *e);
    ts_graph *g = ts_graph_new();
    ts_array storages = {0};
    bool ok = e && g && ts_plan_decode(words, nwords, g, &storages), done = true;
    maker m = {.exec = e, .graph = g, .numbers = numbers, .max_groups = o->max_groups,
               .lowers = o->lowers, .by_rows = o->by_rows};
    if (e) {
        e->graph = g;
        e->nrecorded = storages.count;
        e->words = take(nwords * sizeof *words);
        e->nwords = nwords;
    }
    ok = ok && e->words && (!o->folds || ts_plan_fold(e, g, &storages, numbers, o->knows)) &&
         (!o->merges || ts_plan_merge(e, g, &storages, numbers)) &&
         (!o->folds || ts_plan_find_constants(e, g, &storages, numbers, o)) &&
         (!o->widens || ts_plan_widen(e, g, numbers)) &&
         recompute(&m, &storages, in, &done) && done && allocate(e, &m, &storages) &&
         make_steps(&m, in ? in->split : 0);
    uint32_t n = g ? g->nodes.count : 0;
    if (ok) {
        memcpy(e->words, words, nwords * sizeof *words);
        order_nodes(&m);
        ts_plan_find_lives(&m);
        ok = !m.lowers || ts_plan_order(&m);
        e->kept_peak = e->peak;
        for (uint32_t i = 0; i < n; i++)
            e->nconstants += (ts_graph_node_at(g, i)->flags & TS_NODE_CONSTANT_CALL) != 0;
        ok = ok && (!out || e->peak <= o->recompute || ts_plan_choose(&m, out));
    }
    give(m.begin, (n + 1) * sizeof *m.begin);
    give(m.step_of, (n + 1) * sizeof *m.step_of);
    give(m.member, (n + 1) * sizeof *m.member);
    if (e) {
        give(m.uses, e->nstorages * sizeof *m.uses);
        give(m.recent, e->nstorages * TS_RECENT * sizeof *m.recent);
    }
    ts_array_free(&m.touches, sizeof(touch));
    ts_array_free(&storages, sizeof(ts_plan_storage));
    if (ok)
        return e;
    if (e)
        ts_exec_free(e);
    else
        ts_graph_free(g);
    return NULL;
}

/** Makes the plan with merged calls. If some calls are merged, also makes the plan without, and
 *  returns that one if the other moves more bytes or needs 1/64 more memory: a merged value is kept
 *  until the last call that reads it, across steps that a recomputed value would not need. */
static ts_exec *make_best(const uint64_t *words, uint32_t nwords, const uint64_t *numbers,
                          ts_plan_options *o, ts_recomputation *chosen)
{
    ts_exec *e = make(words, nwords, numbers, o, NULL, chosen), *plain;
    if (!e || !e->merged.count)
        return e;
    ts_recomputation other = {0};
    o->merges = false;
    plain = make(words, nwords, numbers, o, NULL, &other);
    o->merges = !plain || (e->fused_bytes <= plain->fused_bytes &&
                           e->kept_peak - plain->kept_peak <= plain->kept_peak / 64);
    ts_recomputation_free(o->merges ? &other : chosen);
    if (o->merges && plain)
        ts_exec_free(plain);
    if (o->merges)
        return e;
    ts_exec_free(e);
    *chosen = other;
    return plain;
}

ts_exec *ts_exec_new(const uint64_t *words, uint32_t nwords, const uint64_t *numbers,
                     const ts_plan_options *options)
{
    ts_recomputation chosen = {0};
    ts_plan_options o = *options;
    ts_exec *e = make_best(words, nwords, numbers, &o, &chosen), *less = NULL;
    if (e && chosen.count)
        less = make(words, nwords, numbers, &o, &chosen, NULL);
    ts_recomputation_free(&chosen);
    if (less && less->peak < e->peak) {
        less->kept_peak = e->peak;
        ts_exec_free(e);
        e = less;
    } else if (less) {
        ts_exec_free(less);
    }
    if (e && !ts_exec_plan_arena(e)) {
        ts_exec_free(e);
        e = NULL;
    }
    if (!e)
        ts_error_memory("a plan", 0);
    return e;
}

void ts_exec_free(ts_exec *e)
{
    uint32_t n = e->graph ? e->graph->nodes.count : 0;
    ts_captured_free(e->captured);
    ts_replay_free(e->replay);
    if (e->graph)
        ts_slots_free(e, atomic_load(&e->slots));
    give(e->storages, e->nstorages * sizeof *e->storages);
    give(e->words, e->nwords * sizeof *e->words);
    give(e->steps, n * sizeof *e->steps);
    give(e->kernels, n * sizeof *e->kernels);
    for (uint32_t k = 0; e->tiles && k < n; k++)
        ts_tiles_free(atomic_load(&e->tiles[k]));
    give(e->tiles, n * sizeof *e->tiles);
    for (uint32_t k = 0; e->code && k < n; k++)
        ts_emitted_free(atomic_load(&e->code[k]));
    give(e->code, n * sizeof *e->code);
    give(e->order, n * sizeof *e->order);
    give(e->opens, e->nstorages * sizeof *e->opens);
    give(e->closes, e->nstorages * sizeof *e->closes);
    give(e->offsets, e->nstorages * sizeof *e->offsets);
    ts_constants_free(e, atomic_load(&e->kept));
    ts_array_free(&e->folded, sizeof(ts_folded));
    ts_array_free(&e->known, sizeof(ts_known_number));
    ts_array_free(&e->widened, sizeof(ts_widened));
    ts_array_free(&e->cats, sizeof(ts_dropped_cat));
    ts_array_free(&e->moved, sizeof(ts_moved));
    ts_array_free(&e->merged, sizeof(ts_merged));
    ts_array_free(&e->equal, sizeof(ts_equal_numbers));
    ts_graph_free(e->graph);
    give(e, sizeof *e);
}
