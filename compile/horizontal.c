/**
 * @file horizontal.c  Joins pointwise steps of a plan that run the same calls over different
 * tensors, such as the casts of all parameters. They become members of one step, which a device
 * runs as one kernel.
 *
 * Two steps conflict if both use a storage that one of them writes. A step may move to any position
 * between the last earlier step and the first later step that it conflicts with. Members are joined
 * at a position that all of them may move to and conflict with no other member, so conflicting
 * calls keep their order and results do not change.
 */
// SPDX-License-Identifier: MIT
#include "compile/plan.h"
#include "include/tessera/backend.h"

#include <string.h>
#include <xxhash.h>

enum {
    MOST_ELEMENTS = 1 << 22, /* elements of a member. Joining larger steps saves no time, and moving
                                them would keep much memory alive for longer */
    MOST_MEMBERS = 1024,     /* members of a joined step */
    MOST_CANDIDATES = 4096,  /* candidates per plan */
    MOST_JOINS = 32          /* joined steps per plan */
};

/** A step that may become a member. */
typedef struct candidate {
    uint32_t step;
    uint32_t words, nwords;  /* range in joiner.words that describes its calls, without the
                                identity and sizes of tensors */
    uint64_t hash;           /* of these words */
    uint32_t like;           /* index of the first candidate with the same words and device */
    uint32_t first, last;    /* it may move to the position before any of the steps first .. last */
    bool done;               /* it is a member */
} candidate;

/** A step that uses a storage. */
typedef struct use {
    uint32_t step;
    bool writes;
} use;

typedef struct joiner {
    maker *m;
    ts_array candidates, words; /* of candidate; of uint64_t */
    uint32_t *begin;    /* index in `uses` of each storage's first use, and the end */
    use *uses;          /* sorted by storage, then by node */
    uint32_t *seen;     /* per storage: 2 * (the last join with a member that uses it) + (such a
                           member writes it) */
    uint32_t *nodes, *node_begin; /* nodes by step, and the index of each step's first */
    uint32_t *to;       /* new number of each step; UINT32_MAX: a member */
    ts_step *before;    /* copy of the steps, while a join renumbers them */
    uint32_t joins;     /* attempts so far; the number of the current one */
    uint32_t joined;    /* steps made */
} joiner;

static const touch *touch_at(const joiner *j, uint32_t i)
{
    return (const touch *)j->m->touches.data + i;
}
static candidate *candidate_at(const joiner *j, uint32_t i)
{
    return (candidate *)j->candidates.data + i;
}

/* ------------------------------------------------------------------------------ likeness ---- */

static bool put(joiner *j, uint64_t word)
{
    if (!ts_array_reserve(&j->words, 1, sizeof word))
        return false;
    *TS_PUSH(j->words, uint64_t) = word;
    return true;
}

/** The tensors of a member, numbered in the order in which its calls first use them. */
typedef struct names {
    uint32_t value[64]; /* index in the graph */
    int count;
    int64_t numel; /* elements of the member's iteration space */
} names;

/** Appends a word with a tensor's number, its dtype, and whether it has one element per element of
 *  the space or one in all. False if it has neither, is not contiguous, or shares its storage with
 *  another tensor of the member; also if out of memory. */
static bool put_tensor(joiner *j, names *n, ts_id id)
{
    const ts_graph *g = j->m->graph;
    uint32_t value = ts_id_index(id);
    const ts_graph_value *v = ts_graph_value_at(g, id);
    const int64_t *sizes = ts_graph_ints_at(g, v->ints);
    int64_t numel = 1;
    int i = 0;
    for (int d = 0; d < v->ndim; d++)
        numel *= sizes[d];
    if (!ts_strides_contiguous(sizes, sizes + v->ndim, v->ndim) ||
        (numel != n->numel && numel != 1))
        return false;
    for (; i < n->count && n->value[i] != value; i++)
        if (((const ts_graph_value *)g->values.data)[n->value[i]].storage == v->storage)
            return false;
    if (i == n->count) {
        if (i == (int)(sizeof n->value / sizeof *n->value))
            return false;
        n->value[n->count++] = value;
    }
    return put(j, (uint64_t)i | (uint64_t)v->dtype << 16 | (uint64_t)(numel == n->numel) << 24);
}

static bool put_arg(joiner *j, names *n, const ts_graph_arg *a)
{
    if (!put(j, a->tag | (uint64_t)a->role << 8 | (uint64_t)a->count << 32))
        return false;
    switch (a->tag) {
    case TS_TAG_NONE: return true;
    case TS_TAG_TENSOR: return put_tensor(j, n, a->id);
    case TS_TAG_INT:
    case TS_TAG_FLOAT:
    case TS_TAG_BOOL:
    case TS_TAG_DTYPE: return a->role == TS_ROLE_VALUE || put(j, (uint64_t)a->i);
    default: return false;
    }
}

static bool put_call(joiner *j, names *n, const ts_graph_node *node)
{
    const ts_graph_arg *a = ts_graph_args_of(j->m->graph, node);
    bool ok = !(node->flags & (TS_NODE_RANDOM | TS_NODE_RECOMPUTED)) && node->nrets == 1 &&
              put(j, node->op | (uint64_t)node->nargs << 16 | (uint64_t)node->want << 24 |
                         (uint64_t)node->given << 32);
    for (int i = 0; i < node->nargs && ok; i++)
        ok = put_arg(j, n, &a[i]);
    return ok && put_tensor(j, n, node->rets[0]);
}

/** Adds step k to the candidates if it is pointwise over contiguous tensors, small enough, and its
 *  backend can run members. False if out of memory. */
static bool add_candidate(joiner *j, uint32_t k)
{
    const ts_step *s = &j->m->exec->steps[k];
    const ts_backend *b = s->fused ? ts_backend_of(s->device) : NULL;
    if (s->rows || s->folds || s->product || !b || !b->group_run_members ||
        s->numel > MOST_ELEMENTS)
        return true;
    candidate c = {.step = k, .words = j->words.count};
    names n = {.numel = s->numel};
    bool ok = true;
    for (uint32_t i = 0; i < s->count && ok; i++)
        ok = put_call(j, &n, ts_graph_node_at(j->m->graph, j->nodes[j->node_begin[k] + i]));
    c.nwords = j->words.count - c.words;
    if (!ok) {
        j->words.count = c.words;
        return true;
    }
    c.hash = XXH3_64bits((const uint64_t *)j->words.data + c.words, c.nwords * sizeof(uint64_t));
    if (!ts_array_reserve(&j->candidates, 1, sizeof c))
        return false;
    *TS_PUSH(j->candidates, candidate) = c;
    return true;
}

/** Sets `like` of candidate i; those before it have theirs. */
static void find_like(const joiner *j, uint32_t i)
{
    const uint64_t *words = j->words.data;
    candidate *c = candidate_at(j, i);
    for (c->like = 0; c->like < i; c->like++) {
        const candidate *o = candidate_at(j, c->like);
        if (o->like == c->like && o->hash == c->hash && o->nwords == c->nwords &&
            ts_same_device(j->m->exec->steps[o->step].device,
                           j->m->exec->steps[c->step].device) &&
            memcmp(words + o->words, words + c->words, c->nwords * sizeof *words) == 0)
            return;
    }
}

/* ----------------------------------------------------------------------------- positions ---- */

/** Fills node_begin, nodes, begin and uses for the current steps. */
static void list_uses(joiner *j)
{
    const maker *m = j->m;
    const ts_exec *e = m->exec;
    uint32_t n = m->graph->nodes.count, at = 0;
    for (uint32_t k = 0; k < e->nsteps; k++) {
        j->node_begin[k] = at;
        at += e->steps[k].count;
    }
    j->node_begin[e->nsteps] = at;
    for (uint32_t i = 0; i < n; i++)
        if (m->step_of[i] != UINT32_MAX)
            j->nodes[j->node_begin[m->step_of[i]]++] = i;
    for (uint32_t k = e->nsteps; k > 0; k--)
        j->node_begin[k] = j->node_begin[k - 1];
    j->node_begin[0] = 0;
    memset(j->begin, 0, (e->nstorages + 1) * sizeof *j->begin);
    for (uint32_t i = 0; i < at; i++)
        for (uint32_t t = m->begin[j->nodes[i]]; t < m->begin[j->nodes[i] + 1]; t++)
            j->begin[touch_at(j, t)->storage]++;
    for (uint32_t s = 1; s <= e->nstorages; s++) /* ends, which the next loop moves to begins */
        j->begin[s] += j->begin[s - 1];
    for (uint32_t i = at; i-- > 0;)
        for (uint32_t t = m->begin[j->nodes[i]]; t < m->begin[j->nodes[i] + 1]; t++)
            j->uses[--j->begin[touch_at(j, t)->storage]] =
                (use){m->step_of[j->nodes[i]], touch_at(j, t)->writes};
}

/** Sets c->first and c->last, from the conflicts of its step. */
static void find_positions(const joiner *j, candidate *c)
{
    const maker *m = j->m;
    c->first = 0;
    c->last = m->exec->nsteps;
    for (uint32_t i = j->node_begin[c->step]; i < j->node_begin[c->step + 1]; i++)
        for (uint32_t t = m->begin[j->nodes[i]]; t < m->begin[j->nodes[i] + 1]; t++) {
            const touch *own = touch_at(j, t);
            for (uint32_t u = j->begin[own->storage]; u < j->begin[own->storage + 1]; u++) {
                const use *other = &j->uses[u];
                if (other->step == c->step || !(own->writes || other->writes))
                    continue;
                if (other->step < c->step && other->step >= c->first)
                    c->first = other->step + 1;
                if (other->step > c->step && other->step < c->last)
                    c->last = other->step;
            }
        }
}

/** The position that most candidates with the calls of `like` may move to; *count receives their
 *  number. */
static uint32_t best_position(const joiner *j, uint32_t like, uint32_t *count)
{
    uint32_t best = 0;
    *count = 0;
    for (uint32_t i = like; i < j->candidates.count; i++) {
        const candidate *c = candidate_at(j, i);
        uint32_t at = c->last, n = 0;
        if (c->like != like || c->done)
            continue;
        for (uint32_t k = like; k < j->candidates.count; k++) {
            const candidate *o = candidate_at(j, k);
            n += o->like == like && !o->done && o->first <= at && at <= o->last;
        }
        if (n > *count) {
            *count = n;
            best = at;
        }
    }
    return best;
}

/** Adds a candidate's storages to the current join (`seen`). False, without a change, if the
 *  candidate conflicts with a member of the join. */
static bool join_one(joiner *j, const candidate *c)
{
    const maker *m = j->m;
    for (int marks = 0; marks < 2; marks++)
        for (uint32_t i = j->node_begin[c->step]; i < j->node_begin[c->step + 1]; i++)
            for (uint32_t t = m->begin[j->nodes[i]]; t < m->begin[j->nodes[i] + 1]; t++) {
                const touch *own = touch_at(j, t);
                uint32_t *seen = &j->seen[own->storage];
                bool used = *seen / 2 == j->joins;
                if (!marks && used && (own->writes || *seen % 2))
                    return false;
                if (marks)
                    *seen = 2 * j->joins + (own->writes || (used && *seen % 2));
            }
    return true;
}

/* ---------------------------------------------------------------------------------- join ---- */

/** Replaces the steps of the chosen candidates by one step with these members, before step
 *  `position`; renumbers steps. */
static void move(joiner *j, uint32_t position, const uint32_t *members, uint32_t count)
{
    maker *m = j->m;
    ts_exec *e = m->exec;
    ts_step made = e->steps[candidate_at(j, members[0])->step];
    uint32_t at = 0, here = 0;
    memcpy(j->before, e->steps, e->nsteps * sizeof *e->steps);
    memset(j->to, 0, e->nsteps * sizeof *j->to);
    made.members = count;
    made.ndim = 0;
    made.count = 0;
    made.numel = 0;
    e->ngroups++;
    for (uint32_t i = 0; i < count; i++) {
        candidate *c = candidate_at(j, members[i]);
        const ts_step *s = &j->before[c->step];
        c->done = true;
        j->to[c->step] = UINT32_MAX;
        made.count += s->count;
        made.numel += s->numel;
        made.first = s->first < made.first ? s->first : made.first;
        e->ngroups -= s->count > 1;
        for (uint32_t k = j->node_begin[c->step]; k < j->node_begin[c->step + 1]; k++)
            m->member[j->nodes[k]] = i;
    }
    for (uint32_t k = 0; k <= e->nsteps; k++) {
        if (k == position)
            here = at++;
        if (k < e->nsteps && j->to[k] != UINT32_MAX)
            j->to[k] = at++;
    }
    for (uint32_t k = 0; k < e->nsteps; k++)
        if (j->to[k] != UINT32_MAX)
            e->steps[j->to[k]] = j->before[k];
    e->steps[here] = made;
    e->nsteps = at;
    for (uint32_t i = 0; i < m->graph->nodes.count; i++)
        if (m->step_of[i] != UINT32_MAX)
            m->step_of[i] = j->to[m->step_of[i]] == UINT32_MAX ? here : j->to[m->step_of[i]];
    for (uint32_t i = 0; i < j->candidates.count; i++)
        if (!candidate_at(j, i)->done)
            candidate_at(j, i)->step = j->to[candidate_at(j, i)->step];
}

/** Joins candidates with the calls of `like` at the position that most of them may move to. False
 *  if fewer than two can be joined. */
static bool join(joiner *j, uint32_t like)
{
    uint32_t chosen[MOST_MEMBERS], n = 0, count, members = 0;
    for (uint32_t i = like; i < j->candidates.count; i++)
        members += candidate_at(j, i)->like == like && !candidate_at(j, i)->done;
    if (members < 2)
        return false;
    list_uses(j);
    j->joins++;
    for (uint32_t i = like; i < j->candidates.count; i++)
        if (candidate_at(j, i)->like == like && !candidate_at(j, i)->done)
            find_positions(j, candidate_at(j, i));
    uint32_t position = best_position(j, like, &count);
    for (uint32_t i = like; i < j->candidates.count && n < MOST_MEMBERS && count > 1; i++) {
        const candidate *c = candidate_at(j, i);
        if (c->like == like && !c->done && c->first <= position && position <= c->last &&
            join_one(j, c))
            chosen[n++] = i;
    }
    if (n > 1) {
        move(j, position, chosen, n);
        j->joined++;
    }
    return n > 1;
}

static bool join_all(joiner *j)
{
    const ts_exec *e = j->m->exec;
    list_uses(j);
    for (uint32_t k = 0; k < e->nsteps && j->candidates.count < MOST_CANDIDATES; k++)
        if (!add_candidate(j, k))
            return false;
    for (uint32_t i = 0; i < j->candidates.count; i++)
        find_like(j, i);
    for (uint32_t i = 0; i < j->candidates.count; i++)
        while (candidate_at(j, i)->like == i && j->joined < MOST_JOINS &&
               !ts_plan_is_full(j->m) && join(j, i))
            ;
    return true;
}

bool ts_plan_join_alike(maker *m)
{
    const ts_exec *e = m->exec;
    size_t steps = e->nsteps + 1, storages = e->nstorages + 1, nodes = m->graph->nodes.count + 1,
           bytes = m->touches.count * sizeof(use) + steps * sizeof(ts_step) +
                   (2 * storages + nodes + 2 * steps) * sizeof(uint32_t);
    if (m->max_groups == -1)
        return true;
    char *block = ts_alloc(ts_thread_self(), bytes);
    if (!block)
        return false;
    joiner j = {.m = m, .before = (ts_step *)block};
    j.uses = (use *)(j.before + steps);
    j.begin = (uint32_t *)(j.uses + m->touches.count);
    j.seen = j.begin + storages;
    j.nodes = j.seen + storages;
    j.node_begin = j.nodes + nodes;
    j.to = j.node_begin + steps;
    memset(j.seen, 0, storages * sizeof *j.seen);
    bool ok = join_all(&j);
    ts_array_free(&j.candidates, sizeof(candidate));
    ts_array_free(&j.words, sizeof(uint64_t));
    ts_free(ts_thread_self(), block, bytes);
    return ok;
}
