/**
 * @file plan.c  Makes a plan from a recorded stream: decodes the graph, drops dead calls, and
 * divides the others into steps.
 *
 * One pass over the calls makes the steps. A call joins an earlier group if all calls that it
 * depends on are in that group or in earlier steps, so dependences are preserved. Two calls of a
 * group may share a written storage only through the same layout, because a group runs all its
 * calls on one tile before the next tile.
 */
// SPDX-License-Identifier: MIT
#include "compile/plan.h"
#include "compile/replay.h"
#include "ops/ops.h"

#include <string.h>

enum { MAX_GROUP = 64 /* calls */, MAX_ROW_GROUP = 16, OPEN_GROUPS = 8 };

/* ------------------------------------------------------------------------------- decode ---- */

typedef struct reader {
    const uint64_t *words;
    uint32_t at, count;
    uint32_t numbers; /* read so far */
    ts_graph *graph;
    ts_array storages;
} reader;

static uint64_t next(reader *r) { return r->words[r->at++]; }

static bool read_storage(reader *r, uint64_t head)
{
    uint32_t at;
    if (!ts_array_reserve(&r->storages, 1, sizeof(ts_plan_storage)))
        return false;
    bool outside = head >> 8 & 1;
    *TS_PUSH(r->storages, ts_plan_storage) =
        (ts_plan_storage){.bytes = (int64_t)next(r), .outside = outside,
                          .device = {(uint8_t)(head >> 16), (uint8_t)(head >> 24)},
                          .first = UINT32_MAX, .last = UINT32_MAX};
    return ts_graph_add_storage(r->graph, outside ? TS_SOURCE_CAPTURE : TS_SOURCE_RESULT, 0, &at);
}

static bool read_value(reader *r, uint64_t head)
{
    ts_id id;
    uint32_t storage = (uint32_t)(head >> 32);
    const ts_plan_storage *s = (const ts_plan_storage *)r->storages.data + storage;
    ts_storage none = {.device = s->device};
    ts_tensor t = {.storage = &none};
    t.dtype = (uint8_t)(head >> 8);
    t.ndim = (uint8_t)(head >> 16);
    int64_t offset = (int64_t)next(r);
    for (int d = 0; d < t.ndim; d++)
        t.sizes[d] = (int64_t)next(r);
    for (int d = 0; d < t.ndim; d++)
        t.strides[d] = (int64_t)next(r);
    if (!ts_graph_add_value(r->graph, &t, s->outside ? TS_SOURCE_CAPTURE : TS_SOURCE_RESULT, 0,
                            storage, &id))
        return false;
    ts_graph_value_at(r->graph, id)->offset = offset;
    return true;
}

static bool read_list(reader *r, ts_graph_arg *a, bool ids)
{
    uint32_t n = a->count, ignored;
    a->at = r->graph->ints.count;
    for (uint32_t k = 0; k < n; k++) {
        int64_t word = (int64_t)next(r);
        if (ids)
            word = (int64_t)ts_id_make(r->graph, (uint32_t)word);
        if (!ts_graph_add_ints(r->graph, &word, 1, &ignored))
            return false;
    }
    return true;
}

static bool read_arg(reader *r, ts_graph_arg *a)
{
    uint64_t head = next(r);
    *a = (ts_graph_arg){.tag = (uint8_t)head, .role = (uint8_t)(head >> 8),
                        .count = (uint32_t)(head >> 32)};
    bool number = a->role == TS_ROLE_VALUE;
    switch (a->tag) {
    case TS_TAG_NONE: return true;
    case TS_TAG_TENSOR: a->id = ts_id_make(r->graph, (uint32_t)next(r)); return true;
    case TS_TAG_TENSORS: return read_list(r, a, true);
    case TS_TAG_STRING: {
        uint32_t words = (a->count + 7) / 8;
        bool ok = ts_graph_add_text(r->graph, (const char *)(r->words + r->at), &a->at);
        r->at += words;
        return ok;
    }
    case TS_TAG_INTS:
        if (!number)
            return read_list(r, a, false);
        a->at = r->numbers;
        r->numbers += a->count;
        return true;
    case TS_TAG_DEVICE: {
        uint64_t word = next(r);
        a->device = (ts_device){(uint8_t)word, (uint8_t)(word >> 8)};
        return true;
    }
    default:
        if (number)
            a->at = r->numbers++;
        else
            a->i = (int64_t)next(r);
        return true;
    }
}

/** Reads a call; `name` is the index of its record, for messages about differing streams. */
static bool read_call(reader *r, uint64_t head)
{
    ts_graph_node n = {.name = r->at - 1, .op = (uint16_t)(head >> 8), .kind = TS_NODE_CALL,
                       .nargs = (uint8_t)(head >> 24), .nrets = (uint8_t)(head >> 32),
                       .want = (uint8_t)(head >> 40), .given = (uint8_t)(head >> 48),
                       .flags = head >> 56 & 1 ? TS_NODE_RANDOM : 0};
    if (!ts_graph_add_args(r->graph, n.nargs, &n.args))
        return false;
    for (int i = 0; i < n.nargs; i++) {
        ts_graph_arg a;
        if (!read_arg(r, &a))
            return false;
        ts_graph_args_of(r->graph, &n)[i] = a;
    }
    for (int i = 0; i < n.nrets; i++) {
        uint64_t value = next(r);
        n.rets[i] = value ? ts_id_make(r->graph, (uint32_t)value - 1) : 0;
        if (value)
            ts_graph_value_at(r->graph, n.rets[i])->slot = r->graph->nodes.count;
    }
    if (n.flags & TS_NODE_RANDOM) {
        n.rng.offset = r->numbers; /* index of seed and offset */
        r->numbers += 2;
    }
    return ts_graph_add_node(r->graph, &n, NULL);
}

static bool read_stream(reader *r)
{
    bool ok = true;
    while (ok && r->at < r->count) {
        uint64_t head = next(r);
        switch ((enum ts_word)(head & 0xff)) {
        case TS_WORD_STORAGE: ok = read_storage(r, head); break;
        case TS_WORD_VALUE: ok = read_value(r, head); break;
        case TS_WORD_CALL: ok = read_call(r, head); break;
        case TS_WORD_END:
            for (uint32_t i = 0; i < r->storages.count; i += 64) {
                uint64_t bits = next(r);
                for (uint32_t k = i; k < i + 64 && k < r->storages.count; k++)
                    ((ts_plan_storage *)r->storages.data)[k].held = bits >> (k - i) & 1;
            }
        }
    }
    return ok;
}

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

/** Sets step_of of each node: UINT32_MAX if nothing reads the storages that it writes, else 0. */
static void drop_dead(maker *m)
{
    ts_plan_storage *s = m->exec->storages;
    for (uint32_t i = 0; i < m->exec->nstorages; i++)
        s[i].writer = s[i].outside || s[i].held;
    for (uint32_t i = m->graph->nodes.count; i-- > 0;) {
        const touch *t = (const touch *)m->touches.data;
        bool wanted = false;
        for (uint32_t k = m->begin[i]; k < m->begin[i + 1]; k++)
            wanted |= t[k].writes && s[t[k].storage].writer;
        m->step_of[i] = wanted ? 0 : UINT32_MAX;
        for (uint32_t k = m->begin[i]; k < m->begin[i + 1] && wanted; k++)
            s[t[k].storage].writer = 1;
    }
    for (uint32_t i = 0; i < m->exec->nstorages; i++)
        s[i].writer = 0;
}

/** True if node i may join the group: both use each common storage that one of them writes through
 *  the same value, and node i uses no result marked touch.last. *shares: they have a common
 *  storage; valid only if true is returned. */
static bool fits(const maker *m, uint32_t i, uint32_t step, bool *shares)
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
                if (t[b].last || (t[a].value != t[b].value && (t[a].writes || t[b].writes)))
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

/** True if sizes, rows and device of node i match those of the group s, which is step number `step`
 *  and not full. The sizes of v are the node's iteration space. */
static bool matches(const maker *m, uint32_t i, const ts_step *s, uint32_t step,
                    const ts_graph_value *v, const ts_group_part *part)
{
    const int64_t *sizes = ts_graph_ints_at(m->graph, v->ints);
    bool each = s->rows && !part->rows && ts_rows_each(m->graph, v, s->sizes, s->ndim, s->rows);
    int rows = part->rows ? part->rows : s->rows;
    uint32_t most = rows ? MAX_ROW_GROUP : MAX_GROUP;
    if (!s->fused || s->product || s->count >= most || !ts_same_device(s->device, v->device) ||
        (part->rows && s->rows && part->rows != s->rows) ||
        !(each || (s->ndim == v->ndim && ts_same_sizes(s->sizes, sizes, v->ndim))))
        return false;
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

/** Finds the last group that node i can join and shares a storage with, among the latest steps from
 *  `after` on; UINT32_MAX if there is none. The sizes of v are the node's iteration space. */
static uint32_t find_group(const maker *m, uint32_t i, const ts_graph_value *v,
                           const ts_group_part *part, uint32_t after)
{
    const ts_exec *e = m->exec;
    uint32_t end = e->nsteps > OPEN_GROUPS * 4 ? e->nsteps - OPEN_GROUPS * 4 : 0;
    if (end < after)
        end = after;
    for (uint32_t k = e->nsteps; k-- > end;) {
        bool shares;
        if (matches(m, i, &e->steps[k], k, v, part) && fits(m, i, k, &shares) && shares)
            return k;
    }
    return UINT32_MAX;
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
        uint32_t *last = t[k].writes ? &s->writer : &s->reader;
        *last = step + 1 > *last ? step + 1 : *last;
    }
}

/** Adds node i to a group or makes a step for it. While steps are made, ts_step.first is the number
 *  of the step's first node. */
static void add_node(maker *m, uint32_t i)
{
    ts_exec *e = m->exec;
    const ts_graph_node *n = ts_graph_node_at(m->graph, i);
    const touch *t = (const touch *)m->touches.data;
    uint32_t after = 0, step = UINT32_MAX;
    for (uint32_t k = m->begin[i]; k < m->begin[i + 1]; k++) {
        const ts_plan_storage *s = &e->storages[t[k].storage];
        after = s->writer > after ? s->writer : after;
        if (t[k].writes && s->reader > after)
            after = s->reader;
    }
    ts_group_part part = {0};
    if (m->max_groups != -1 && (!m->max_groups || e->ngroups <= m->max_groups))
        part = ts_group_takes(m->graph, n, m->numbers);
    part.takes = part.takes && (m->by_rows || !part.rows);
    if (!part.takes)
        part = (ts_group_part){0};
    const ts_graph_value *v = NULL; /* its sizes are the iteration space */
    if (part.takes)
        v = ts_graph_value_at(m->graph, part.rows ? ts_graph_args_of(m->graph, n)[0].id
                                                  : n->rets[0]);
    mark_last(m, i, &part);
    if (part.takes && !part.rows && m->by_rows && ts_plan_join_product(m, i))
        return;
    if (part.takes)
        step = find_group(m, i, v, &part, after ? after - 1 : 0);
    if (step == UINT32_MAX && rejoin_bias(m, i))
        return;
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
    s->rows = part.rows ? part.rows : s->rows;
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
static void find_lives(maker *m)
{
    ts_exec *e = m->exec;
    const ts_graph *g = m->graph;
    const touch *t = (const touch *)m->touches.data;
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

ts_exec *ts_exec_new(const uint64_t *words, uint32_t nwords, const uint64_t *numbers,
                     int64_t max_groups, bool by_rows)
{
    ts_exec *e = take(sizeof *e);
    reader r = {.words = words, .count = nwords, .graph = ts_graph_new()};
    bool ok = e && r.graph && read_stream(&r);
    uint32_t n = ok ? r.graph->nodes.count : 0;
    maker m = {.exec = e, .graph = r.graph, .numbers = numbers, .max_groups = max_groups,
               .by_rows = by_rows};
    if (e) {
        e->graph = r.graph;
        e->storages = take(r.storages.count * sizeof *e->storages);
        e->nstorages = r.storages.count;
        e->words = take(nwords * sizeof *words);
        e->nwords = nwords;
    }
    ok = ok && e->storages && e->words && (e->steps = take(n * sizeof *e->steps)) &&
         (e->kernels = take(n * sizeof *e->kernels)) &&
         (e->tiles = take(n * sizeof *e->tiles)) &&
         (e->order = take(n * sizeof *e->order)) &&
         (e->opens = take(e->nstorages * sizeof *e->opens)) &&
         (e->closes = take(e->nstorages * sizeof *e->closes)) &&
         (m.begin = take((n + 1) * sizeof *m.begin)) &&
         (m.step_of = take((n + 1) * sizeof *m.step_of)) &&
         (m.member = take((n + 1) * sizeof *m.member));
    if (ok && r.storages.count)
        memcpy(e->storages, r.storages.data, r.storages.count * sizeof *e->storages);
    if (ok)
        ts_graph_finish(e->graph);
    ok = ok && (max_groups == -1 || ts_plan_widen(e->graph, e->nstorages, numbers)) &&
         find_final_touches(&m);
    if (ok) {
        memcpy(e->words, words, nwords * sizeof *words);
        drop_dead(&m);
        for (uint32_t i = 0; i < n; i++)
            if (m.step_of[i] != UINT32_MAX)
                add_node(&m, i);
        ok = ts_plan_join_alike(&m);
    }
    if (ok) {
        order_nodes(&m);
        find_lives(&m);
        list_lives(e);
    }
    give(m.begin, (n + 1) * sizeof *m.begin);
    give(m.step_of, (n + 1) * sizeof *m.step_of);
    give(m.member, (n + 1) * sizeof *m.member);
    ts_array_free(&m.touches, sizeof(touch));
    ts_array_free(&r.storages, sizeof(ts_plan_storage));
    if (ok)
        return e;
    if (e)
        ts_exec_free(e);
    else
        ts_graph_free(r.graph);
    ts_error_memory("a plan", 0);
    return NULL;
}

void ts_exec_free(ts_exec *e)
{
    uint32_t n = e->graph ? e->graph->nodes.count : 0;
    ts_captured_free(e->captured);
    ts_replay_free(e->replay);
    give(e->storages, e->nstorages * sizeof *e->storages);
    give(e->words, e->nwords * sizeof *e->words);
    give(e->steps, n * sizeof *e->steps);
    give(e->kernels, n * sizeof *e->kernels);
    for (uint32_t k = 0; e->tiles && k < n; k++)
        ts_tiles_free(atomic_load(&e->tiles[k]));
    give(e->tiles, n * sizeof *e->tiles);
    give(e->order, n * sizeof *e->order);
    give(e->opens, e->nstorages * sizeof *e->opens);
    give(e->closes, e->nstorages * sizeof *e->closes);
    ts_graph_free(e->graph);
    give(e, sizeof *e);
}
