/**
 * @file join.c  Greedy fusion by bytes: the group that a call joins, and merges of groups.
 *
 * The score of a call and a group, or of two groups, is the number of bytes that one kernel in
 * place of two saves. A tensor that both use is loaded once less. If it is a result that nothing
 * else uses, it is not stored either.
 *
 * Two calls of a group may share a written storage only through the same layout, because a group
 * runs all its calls on one tile before the next tile.
 */
// SPDX-License-Identifier: MIT
#include "compile/plan.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_GROUP = 64 /* calls */, MAX_ROW_GROUP = 16,
       DISTANCE = 32, /* steps that a call or a group may move at most */
       LEAST = 4096 /* bytes that a merge saves at least on a device. On the CPU each merge also
                       saves the time that a group takes to begin */ };

/** True if node i may join the group: both use each common storage that one of them writes through
 *  the same value, and node i uses no result marked touch.last, unless `late`. *shares: they have a
 *  common storage; valid only if true is returned. */
static bool fits(const maker *m, uint32_t i, uint32_t step, bool late, bool *shares)
{
    const touch *t = (const touch *)m->touches.data;
    const ts_step *s = &m->exec->steps[step];
    uint32_t left = s->count;
    *shares = false;
    for (uint32_t j = s->first; left; j++) {
        if (m->step_of[j] != step)
            continue;
        left--;
        for (uint32_t a = m->begin[i]; a < m->begin[i + 1]; a++)
            for (uint32_t b = m->begin[j]; b < m->begin[j + 1]; b++) {
                if (t[a].storage != t[b].storage)
                    continue;
                *shares = true;
                if ((t[b].last && !late) ||
                    (t[a].value != t[b].value && (t[a].writes || t[b].writes)))
                    return false;
            }
    }
    return true;
}

/** True if the values of node i can be in a group over s's space whose last `rows` dims form rows.
 *  Results that no call of the group may use (touch.last) are not checked. */
static bool fits_rows(const maker *m, uint32_t i, const ts_step *s, int rows)
{
    const touch *t = (const touch *)m->touches.data;
    for (uint32_t k = m->begin[i]; k < m->begin[i + 1]; k++)
        if (!t[k].last && !ts_rows_fit(m->graph, (const ts_graph_value *)m->graph->values.data +
                                                     t[k].value, s->sizes, s->ndim, rows))
            return false;
    return true;
}

/** True if node i is a call on the results of the folds of group s: all its tensors have their
 *  sizes or one element. The sizes of v are the node's iteration space. */
bool ts_plan_is_late(const maker *m, uint32_t i, const ts_step *s, const ts_graph_value *v,
                    const ts_group_part *part)
{
    const touch *t = (const touch *)m->touches.data;
    bool late = s->folds && !part->folds && !part->rows &&
                !(ts_graph_node_at(m->graph, i)->flags & TS_NODE_RANDOM) &&
                ts_fold_is_result(m->graph, v, s);
    for (uint32_t k = m->begin[i]; k < m->begin[i + 1] && late; k++) {
        const ts_graph_value *own = (const ts_graph_value *)m->graph->values.data + t[k].value;
        int64_t numel = 1;
        for (int d = 0; d < own->ndim; d++)
            numel *= ts_graph_ints_at(m->graph, own->ints)[d];
        late = numel == 1 || ts_fold_is_result(m->graph, own, s);
    }
    return late;
}

/** True if the tensors of node i can be in a group over s's space that has folds. */
static bool fits_folds(const maker *m, uint32_t i, const ts_step *s)
{
    const touch *t = (const touch *)m->touches.data;
    for (uint32_t k = m->begin[i]; k < m->begin[i + 1]; k++)
        if (!t[k].last && !ts_fold_fits(m->graph, (const ts_graph_value *)m->graph->values.data +
                                                      t[k].value, s))
            return false;
    return true;
}

/** matches() for a group s with folds, or for a fold: the calls on the space are pointwise, and all
 *  folds have the same dims and dtype. */
static bool matches_folds(const maker *m, uint32_t i, const ts_step *s, uint32_t step,
                          const ts_group_part *part)
{
    if (part->rows || s->rows || (s->folds && part->folds &&
                                  (part->folds != s->folds || part->from != s->from ||
                                   part->dtype != s->fold_dtype)))
        return false;
    for (uint32_t j = s->first, left = s->folds ? 0 : s->count; left; j++)
        if (m->step_of[j] == step) {
            left--;
            if (!fits_folds(m, j, s))
                return false;
        }
    return fits_folds(m, i, s);
}

/** True if sizes, rows and device of node i match those of the group s, which is step number `step`
 *  and not full. The sizes of v are the node's iteration space. late: ts_plan_is_late(). */
static bool matches(const maker *m, uint32_t i, const ts_step *s, uint32_t step, bool late,
                    const ts_graph_value *v, const ts_group_part *part)
{
    const int64_t *sizes = ts_graph_ints_at(m->graph, v->ints);
    bool each = s->rows && !part->rows && !ts_is_whole(s) &&
                ts_rows_each(m->graph, v, s->sizes, s->ndim, s->rows);
    int rows = part->rows ? part->rows : s->rows;
    uint32_t most = rows ? MAX_ROW_GROUP : MAX_GROUP;
    if (!s->fused || s->product || s->count >= most || !ts_same_device(s->device, v->device) ||
        (part->rows && s->rows && part->rows != s->rows) || (!rows && part->inner != s->inner))
        return false;
    if (late)
        return true;
    if (!(each || (s->ndim == v->ndim && ts_same_sizes(s->sizes, sizes, v->ndim))))
        return false;
    if (s->folds || part->folds)
        return matches_folds(m, i, s, step, part);
    if (!rows)
        return true;
    for (uint32_t j = s->first, left = s->rows ? 0 : s->count; left; j++)
        if (m->step_of[j] == step) {
            left--;
            if (!fits_rows(m, j, s, rows))
                return false;
        }
    return fits_rows(m, i, s, rows);
}

/* --------------------------------------------------------------------------------- bytes ---- */

/** The bytes that node i saves in a step: see the head of this file. */
static int64_t bytes_saved(const maker *m, uint32_t i, uint32_t step)
{
    const touch *t = (const touch *)m->touches.data;
    const ts_step *s = &m->exec->steps[step];
    int64_t saved = 0;
    for (uint32_t a = m->begin[i]; a < m->begin[i + 1]; a++) {
        const ts_plan_storage *of = &m->exec->storages[t[a].storage];
        uint32_t first = m->begin[i], users = 0;
        bool fresh = false;
        while (t[first].storage != t[a].storage)
            first++;
        for (uint32_t j = s->first, left = first == a ? s->count : 0; left; j++) {
            if (m->step_of[j] != step)
                continue;
            left--;
            bool uses = false;
            for (uint32_t b = m->begin[j]; b < m->begin[j + 1]; b++)
                if (t[b].storage == t[a].storage) {
                    uses = true;
                    fresh |= t[b].fresh;
                }
            users += uses;
        }
        if (!users)
            continue;
        bool dies = fresh && !of->outside && !of->held && users + 1 == m->uses[t[a].storage];
        saved += (1 + dies) * ts_value_bytes(m->graph, (const ts_graph_value *)
                                                           m->graph->values.data + t[a].value);
    }
    return saved;
}

/** Adds k to the n numbers of `steps`, unless it is there or is no step from `end` on. Returns the
 *  new n. */
static int add_step(uint32_t *steps, int n, uint32_t k, uint32_t end)
{
    int at = 0;
    while (at < n && steps[at] != k)
        at++;
    if (at < n || k == UINT32_MAX || k < end)
        return n;
    steps[n] = k;
    return n + 1;
}

uint32_t ts_plan_find_group(const maker *m, uint32_t i, const ts_graph_value *v,
                            const ts_group_part *part, uint32_t after, int64_t *saved)
{
    const ts_exec *e = m->exec;
    const touch *t = (const touch *)m->touches.data;
    bool recomputed = ts_graph_node_at(m->graph, i)->flags & TS_NODE_RECOMPUTED;
    uint32_t end = e->nsteps > DISTANCE ? e->nsteps - DISTANCE : 0, best = UINT32_MAX,
             steps[TS_RECENT * (TS_GROUP_TENSORS + 2) + 1];
    int n = 0;
    if (end < after)
        end = after;
    if (recomputed && e->nsteps)
        n = add_step(steps, n, e->nsteps - 1, end);
    for (uint32_t a = m->begin[i]; a < m->begin[i + 1] && a < m->begin[i] + TS_GROUP_TENSORS; a++)
        for (int r = 0; r < TS_RECENT; r++)
            n = add_step(steps, n, m->recent[(size_t)TS_RECENT * t[a].storage + r] - 1, end);
    *saved = 0;
    for (int c = 0; c < n; c++) {
        uint32_t k = steps[c];
        bool shares;
        if (e->steps[k].count == 1 && ts_plan_is_full(m))
            continue;
        bool late = ts_plan_is_late(m, i, &e->steps[k], v, part);
        if (!matches(m, i, &e->steps[k], k, late, v, part) || !fits(m, i, k, late, &shares) ||
            !(shares || (recomputed && k + 1 == e->nsteps)))
            continue;
        int64_t bytes = bytes_saved(m, i, k);
        if (best == UINT32_MAX || bytes > *saved || (bytes == *saved && k > best)) {
            best = k;
            *saved = bytes;
        }
    }
    return best;
}

/* -------------------------------------------------------------------------------- merges ---- */

/** True if a call of step a and a call of step b use a storage that one of them writes. */
static bool conflict(const maker *m, uint32_t a, uint32_t b)
{
    const touch *t = (const touch *)m->touches.data;
    const ts_step *x = &m->exec->steps[a], *y = &m->exec->steps[b];
    for (uint32_t i = x->first, left = x->count; left; i++) {
        if (m->step_of[i] != a)
            continue;
        left--;
        for (uint32_t j = y->first, rest = y->count; rest; j++) {
            if (m->step_of[j] != b)
                continue;
            rest--;
            for (uint32_t p = m->begin[i]; p < m->begin[i + 1]; p++)
                for (uint32_t q = m->begin[j]; q < m->begin[j + 1]; q++)
                    if (t[p].storage == t[q].storage && (t[p].writes || t[q].writes))
                        return true;
        }
    }
    return false;
}

/** True if step b may move up to the position of step a (up), or step a down to that of step b. */
static bool can_meet(const maker *m, uint32_t a, uint32_t b, bool up)
{
    for (uint32_t k = a + 1; k < b; k++)
        if (conflict(m, up ? b : a, k))
            return false;
    return true;
}

/** The bytes saved by a merge of the groups a < b, which are alike and of which one is pointwise;
 *  0: impossible. */
static int64_t merge_score(const maker *m, uint32_t a, uint32_t b)
{
    const ts_exec *e = m->exec;
    const ts_step *x = &e->steps[a], *y = &e->steps[b];
    bool plain = !(y->rows || y->folds); /* its calls join the other group */
    const ts_step *from = plain ? y : x, *to = plain ? x : y;
    uint32_t step = plain ? b : a, other = plain ? a : b;
    ts_group_part part = {.takes = true, .inner = from->inner};
    int64_t saved = 0;
    bool shares, some = false;
    if (from->rows || from->folds ||
        x->count + y->count > (to->rows ? MAX_ROW_GROUP : MAX_GROUP) ||
        (x->count == 1 && y->count == 1 && ts_plan_is_full(m)))
        return 0;
    for (uint32_t i = from->first, left = from->count; left; i++) {
        if (m->step_of[i] != step)
            continue;
        left--;
        const ts_graph_node *n = ts_graph_node_at(m->graph, i);
        if ((n->flags & TS_NODE_RECOMPUTED) ||
            !matches(m, i, to, other, false, ts_graph_value_at(m->graph, n->rets[0]), &part) ||
            !fits(m, i, other, false, &shares))
            return 0;
        some |= shares;
        saved += bytes_saved(m, i, other);
    }
    int64_t least = e->steps[a].device.backend == TS_KEY_CPU ? 1 : LEAST;
    return some && saved >= least && (can_meet(m, a, b, true) || can_meet(m, a, b, false)) ? saved
                                                                                          : 0;
}

/** Merges the groups a < b, and renumbers the steps. */
static void merge(maker *m, uint32_t a, uint32_t b, int64_t saved)
{
    ts_exec *e = m->exec;
    ts_step *x = &e->steps[a], *y = &e->steps[b], made = x->rows || x->folds ? *x : *y;
    uint32_t to = can_meet(m, a, b, true) ? a : b, gone = a + b - to;
    made.first = x->first < y->first ? x->first : y->first;
    made.count = x->count + y->count;
    made.saved = x->saved + y->saved + saved;
    e->ngroups += 1 - (x->count > 1) - (y->count > 1);
    e->steps[to] = made;
    for (uint32_t k = gone; k + 1 < e->nsteps; k++)
        e->steps[k] = e->steps[k + 1];
    e->nsteps--;
    for (uint32_t i = 0; i < m->graph->nodes.count; i++) {
        uint32_t *s = &m->step_of[i];
        if (*s == UINT32_MAX)
            continue;
        *s = *s == gone ? to : *s;
        *s -= *s > gone;
    }
}

/** Two steps, by their first nodes, and the bytes that their merge saves. */
typedef struct pair {
    int64_t saved;
    uint32_t a, b;
} pair;

static int by_bytes(const void *x, const void *y)
{
    const pair *p = x, *q = y;
    return p->saved != q->saved ? (p->saved < q->saved ? 1 : -1)
           : p->a != q->a       ? (p->a > q->a ? 1 : -1)
                                : (p->b > q->b) - (p->b < q->b);
}

/** True if the steps may be merged, as far as their iteration spaces say. */
static bool are_alike(const ts_step *x, const ts_step *y)
{
    return x->fused && y->fused && !x->product && !y->product && x->ndim == y->ndim &&
           ts_same_sizes(x->sizes, y->sizes, x->ndim) && ts_same_device(x->device, y->device);
}

/** Marks the storages of step a, or returns whether step b uses a storage that is marked with a. */
static bool marked(const maker *m, const uint32_t *nodes, const uint32_t *begin, uint32_t *marks,
                   uint32_t a, uint32_t b)
{
    const touch *t = (const touch *)m->touches.data;
    for (uint32_t i = begin[b]; i < begin[b + 1]; i++)
        for (uint32_t k = m->begin[nodes[i]]; k < m->begin[nodes[i] + 1]; k++) {
            if (a != b && marks[t[k].storage] == a + 1)
                return true;
            if (a == b)
                marks[t[k].storage] = a + 1;
        }
    return false;
}

/** Adds the pairs whose merge saves bytes. room: for the nodes, their begins by step, and a mark
 *  per storage. False if out of memory. */
static bool find_pairs(const maker *m, ts_array *pairs, uint32_t *room)
{
    const ts_exec *e = m->exec;
    uint32_t n = m->graph->nodes.count, *nodes = room, *begin = nodes + n,
             *marks = begin + n + 2;
    memset(begin, 0, (n + 2 + e->nstorages) * sizeof *begin);
    for (uint32_t i = 0; i < n; i++)
        if (m->step_of[i] != UINT32_MAX)
            begin[m->step_of[i] + 2]++;
    for (uint32_t k = 2; k < e->nsteps + 2; k++)
        begin[k] += begin[k - 1];
    for (uint32_t i = 0; i < n; i++)
        if (m->step_of[i] != UINT32_MAX)
            nodes[begin[m->step_of[i] + 1]++] = i;
    for (uint32_t a = 0; a < e->nsteps; a++) {
        if (!e->steps[a].fused)
            continue;
        marked(m, nodes, begin, marks, a, a);
        for (uint32_t b = a + 1; b < e->nsteps && b <= a + DISTANCE; b++) {
            int64_t saved = 0;
            if (are_alike(&e->steps[a], &e->steps[b]) && marked(m, nodes, begin, marks, a, b))
                saved = merge_score(m, a, b);
            if (!saved)
                continue;
            if (!ts_array_reserve(pairs, 1, sizeof(pair)))
                return false;
            *TS_PUSH(*pairs, pair) = (pair){saved, e->steps[a].first, e->steps[b].first};
        }
    }
    return true;
}

bool ts_plan_merge_groups(maker *m)
{
    const ts_exec *e = m->exec;
    size_t bytes = (2 * (size_t)m->graph->nodes.count + 2 + e->nstorages) * sizeof(uint32_t);
    uint32_t *room = m->max_groups == -1 ? NULL : ts_alloc(ts_thread_self(), bytes);
    ts_array pairs = {0};
    bool some = room != NULL, ok = room || m->max_groups == -1;
    while (some && ok) { /* merges make other pairs */
        pairs.count = 0;
        some = false;
        ok = find_pairs(m, &pairs, room);
        if (ok && pairs.count)
            qsort(pairs.data, pairs.count, sizeof(pair), by_bytes);
        for (uint32_t i = 0; i < pairs.count && ok; i++) {
            const pair *p = (const pair *)pairs.data + i;
            uint32_t a = m->step_of[p->a], b = m->step_of[p->b];
            int64_t saved = 0;
            if (a < b && e->steps[a].first == p->a && e->steps[b].first == p->b)
                saved = merge_score(m, a, b);
            if (saved)
                merge(m, a, b, saved);
            some |= saved != 0;
        }
    }
    ts_array_free(&pairs, sizeof(pair));
    if (room)
        ts_free(ts_thread_self(), room, bytes);
    return ok;
}
