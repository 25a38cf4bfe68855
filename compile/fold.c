/**
 * @file fold.c  Constant folding: drops calls whose results are their argument's elements, and runs
 * calls without arguments from outside only once.
 *
 * A call is dropped if it copies a value, casts a value back to the dtype from which it was
 * widened, or computes x * 1, x / 1, x - 0 or -0.0 + x. Its result must have the argument's layout
 * and a storage that neither the program nor another call can write, and no call may write the
 * argument before the last read of the result. Readers then read the argument.
 *
 * A constant call draws no random numbers, and all its tensors are results of constant calls, such
 * as ones() and tril(ones()). The first run of the plan computes these values; the plan keeps those
 * that other calls read, and later runs read them like tensors from outside. A value that a group
 * can compute without a load is not kept.
 *
 * A call with a number that is one of a list, such as x * 1 among x * a for many tensors, stays on
 * a device that joins the calls of a list (horizontal.c).
 *
 * If a folded call has a number that is no part of the recorded structure, the plan serves only
 * recordings with the same number (ts_exec_serves()).
 */
// SPDX-License-Identifier: MIT
#include "compile/rewrite.h"
#include "dispatch/entries.h"
#include "include/tessera/backend.h"
#include "include/tessera/device.h"
#include "ops/ops.h"

#include <string.h>

#define MOST_CONSTANT ((int64_t)16 << 20) /* bytes of a plan's constant values */

typedef struct pass {
    ts_rewrite w;
    ts_exec *exec;
    uint32_t *made; /* per value: the call that made it, + 1; 0: none so far */
    uint16_t *maker, *reader; /* per value: op of the call that makes it, and of the first call that
                                 reads it, + 1; 0: none */
    bool knows;     /* calls with numbers may be folded */
} pass;

static bool is_number(const ts_graph_arg *a)
{
    return a->role == TS_ROLE_VALUE && a->tag != TS_TAG_NONE;
}

/** Adds a call and its numbers to the lists of the plan. False if out of memory. */
static bool list(const pass *p, const ts_graph_node *n, bool constant)
{
    ts_exec *e = p->exec;
    const ts_graph_arg *a = ts_graph_args_of(p->w.graph, n);
    if (!ts_array_reserve(&e->folded, 1, sizeof(ts_folded)) ||
        !ts_array_reserve(&e->known, TS_MAX_ARGS, sizeof(ts_known_number)))
        return false;
    *TS_PUSH(e->folded, ts_folded) = (ts_folded){n->end, n->op, constant};
    for (int k = 0; k < n->nargs; k++)
        if (is_number(&a[k]))
            *TS_PUSH(e->known, ts_known_number) =
                (ts_known_number){a[k].at, p->w.numbers[a[k].at]};
    return true;
}

/* ------------------------------------------------------------------------- dropped calls ---- */

/** True if a cast from `from` to `to` keeps all values apart, so that a cast back restores them. */
static bool is_exact(uint8_t from, uint8_t to)
{
    static const uint8_t digits[TS_DTYPE_COUNT] = {
        [TS_BOOL] = 1, [TS_U8] = 8, [TS_I32] = 31, [TS_I64] = 63,
        [TS_F16] = 11, [TS_BF16] = 8, [TS_F32] = 24, [TS_F64] = 53};
    if (ts_dtype_is_float((ts_dtype)from))
        return (to == TS_F32 || to == TS_F64) && digits[from] <= digits[to];
    return digits[from] <= digits[to] && (to != TS_U8 || from == TS_BOOL);
}

/** Ops that return their argument `self` unchanged if the other argument is `neutral`. Floats must
 *  have its bits, because x + 0.0 changes the sign of -0.0. */
static const struct {
    uint16_t op;
    uint8_t self, other;
    double neutral;
} neutrals[] = {{TS_OP_mul, 0, 1, 1.0}, {TS_OP_mul, 1, 0, 1.0}, {TS_OP_div, 0, 1, 1.0},
                {TS_OP_sub, 0, 1, 0.0}, {TS_OP_add, 0, 1, -0.0}, {TS_OP_add, 1, 0, -0.0}};

static bool is_neutral(const pass *p, const ts_graph_arg *a, double neutral)
{
    uint64_t bits;
    memcpy(&bits, &neutral, sizeof bits);
    return a->tag == TS_TAG_INT     ? a->role != TS_ROLE_VALUE && a->i == 1 && neutral == 1.0
           : a->tag != TS_TAG_FLOAT ? false
           : a->role != TS_ROLE_VALUE ? (uint64_t)a->i == bits
                                      : p->knows && p->w.numbers[a->at] == bits;
}

/** The argument whose elements are those of n's result; NULL if there is none. */
static const ts_graph_arg *source_of(const pass *p, const ts_graph_node *n)
{
    const ts_graph_arg *a = ts_graph_args_of(p->w.graph, n);
    if (n->op == TS_OP_copy || n->op == TS_OP_contiguous || n->op == TS_OP_to)
        return a;
    for (int i = 0; i < TS_COUNTOF(neutrals); i++)
        if (neutrals[i].op == n->op && a[neutrals[i].self].tag == TS_TAG_TENSOR &&
            is_neutral(p, &a[neutrals[i].other], neutrals[i].neutral))
            return &a[neutrals[i].self];
    return NULL;
}

/** If a cast made value v, and v's dtype has all values of the cast's argument, sets *from to that
 *  argument and returns the cast's index + 1; else 0. */
static uint32_t widened_from(const pass *p, uint32_t v, uint32_t *from)
{
    const ts_graph_node *cast = p->made[v] ? ts_graph_node_at(p->w.graph, p->made[v] - 1) : NULL;
    if (!cast || cast->op != TS_OP_to || !cast->nargs || !ts_rewrite_is_pure(&p->w, cast))
        return 0;
    *from = ts_rewrite_value(&p->w, ts_graph_args_of(p->w.graph, cast)[0].id);
    return is_exact(ts_rewrite_value_at(&p->w, *from)->dtype, ts_rewrite_value_at(&p->w, v)->dtype)
               ? p->made[v]
               : 0;
}

/** Fills p->maker and p->reader. */
static void list_neighbours(const pass *p)
{
    const ts_graph *g = p->w.graph;
    for (uint32_t i = 0; i < g->nodes.count; i++) {
        const ts_graph_node *n = ts_graph_node_at(g, i);
        const ts_graph_arg *a = ts_graph_args_of(g, n);
        for (int k = 0; k < n->nargs; k++)
            if (a[k].tag == TS_TAG_TENSOR && !p->reader[ts_id_index(a[k].id)])
                p->reader[ts_id_index(a[k].id)] = n->op + 1;
        for (int k = 0; k < n->nrets; k++)
            if (n->rets[k])
                p->maker[ts_id_index(n->rets[k])] = n->op + 1;
    }
}

/** True if call n, whose number leaves argument `self` unchanged, is one of a list on a device that
 *  can join its calls: another call has the same op and dtypes, neighbours with the same ops, and
 *  another number. */
static bool is_of_list(const pass *p, const ts_graph_node *n, const ts_graph_arg *self)
{
    const ts_graph *g = p->w.graph;
    const ts_graph_arg *a = ts_graph_args_of(g, n);
    const ts_graph_value *y = ts_graph_value_at(g, n->rets[0]);
    const ts_backend *b = ts_backend_of(y->device);
    int at = (int)(self - a), other = n->nargs > 1 && at == 0 ? 1 : 0;
    if (!b || !b->group_run_members || a[other].role != TS_ROLE_VALUE)
        return false;
    for (uint32_t i = 0; i < g->nodes.count; i++) {
        const ts_graph_node *o = ts_graph_node_at(g, i);
        const ts_graph_arg *c = ts_graph_args_of(g, o);
        if (o == n || o->op != n->op || o->nargs != n->nargs || o->nrets != 1 ||
            c[at].tag != TS_TAG_TENSOR || c[other].tag != a[other].tag ||
            c[other].role != TS_ROLE_VALUE ||
            p->w.numbers[c[other].at] == p->w.numbers[a[other].at])
            continue;
        const ts_graph_value *z = ts_graph_value_at(g, o->rets[0]);
        uint32_t x = ts_id_index(self->id), u = ts_id_index(c[at].id),
                 r = ts_id_index(n->rets[0]), s = ts_id_index(o->rets[0]);
        if (z->dtype == y->dtype && ts_same_device(z->device, y->device) &&
            ts_graph_value_at(g, self->id)->dtype == ts_graph_value_at(g, c[at].id)->dtype &&
            p->maker[x] == p->maker[u] && p->reader[r] == p->reader[s])
            return true;
    }
    return false;
}

/** Drops call i if its result can be replaced by an argument. False if out of memory. */
static bool drop(pass *p, uint32_t i)
{
    ts_rewrite *w = &p->w;
    ts_graph_node *n = ts_graph_node_at(w->graph, i);
    const ts_graph_arg *a;
    if (n->nrets != 1 || !ts_rewrite_is_pure(w, n) || ts_rewrite_is_held(w, n) ||
        !(a = source_of(p, n)) || a->tag != TS_TAG_TENSOR || is_of_list(p, n, a))
        return true;
    uint32_t result = ts_rewrite_value(w, n->rets[0]), from = ts_rewrite_value(w, a->id), wide,
             cast = 0;
    const ts_graph_value *to = ts_rewrite_value_at(w, result);
    if (!ts_rewrite_equal_layouts(w, ts_rewrite_value_at(w, from), to)) {
        if (n->op != TS_OP_to || !(cast = widened_from(p, from, &wide)))
            return true;
        from = wide;
    }
    const ts_graph_value *v = ts_rewrite_value_at(w, from);
    if (!ts_rewrite_equal_layouts(w, v, to) || (cast && w->written[v->storage] > cast) ||
        ts_rewrite_is_written(w, v->storage, i + 1, w->used[to->storage]))
        return true;
    if (!list(p, n, false))
        return false;
    if (w->used[v->storage] < w->used[to->storage])
        w->used[v->storage] = w->used[to->storage];
    ts_rewrite_move(w, to->storage, v->storage, v->offset - to->offset);
    n->nargs = n->nrets = 0; /* without arguments and results it is dead */
    return true;
}

bool ts_plan_fold(ts_exec *e, ts_graph *g, const ts_array *storages, const uint64_t *numbers,
                  bool knows)
{
    size_t values = g->values.count + 1,
           bytes = values * (sizeof(uint32_t) + 2 * sizeof(uint16_t));
    pass p = {.exec = e, .made = ts_alloc(ts_thread_self(), bytes), .knows = knows};
    if (!p.made)
        return false;
    memset(p.made, 0, bytes);
    p.maker = (uint16_t *)(p.made + values);
    p.reader = p.maker + values;
    bool ok = ts_rewrite_begin(&p.w, g, storages, numbers);
    if (ok)
        list_neighbours(&p);
    for (uint32_t i = 0; i < g->nodes.count && ok; i++) {
        const ts_graph_node *n = ts_graph_node_at(g, i);
        ok = drop(&p, i);
        ts_rewrite_pass(&p.w, i);
        for (int k = 0; k < n->nrets; k++)
            if (n->rets[k])
                p.made[ts_rewrite_value(&p.w, n->rets[k])] = i + 1;
    }
    if (p.w.written)
        ts_rewrite_end(&p.w, ok && e->folded.count);
    ts_free(ts_thread_self(), p.made, bytes);
    return ok;
}

static bool has_known_numbers(const ts_exec *e, const uint64_t *numbers)
{
    const ts_known_number *known = e->known.data;
    for (uint32_t i = 0; i < e->known.count; i++)
        if (numbers[known[i].at] != known[i].bits)
            return false;
    return true;
}

bool ts_exec_serves(const ts_exec *e, const uint64_t *numbers)
{
    const ts_equal_numbers *equal = e->equal.data;
    for (uint32_t i = 0; i < e->equal.count; i++)
        if (numbers[equal[i].a] != numbers[equal[i].b])
            return false;
    return has_known_numbers(e, numbers);
}

/* ----------------------------------------------------------------------------- constants ---- */

static bool is_on_constant(const ts_rewrite *w, ts_id id, void *state)
{
    (void)state;
    return w->storages[ts_rewrite_storage(w, id)].constant;
}

/** True if n is a constant call. *bytes: those of its results. */
static bool is_constant(const pass *p, const ts_graph_node *n, int64_t *bytes)
{
    const ts_graph_arg *a = ts_graph_args_of(p->w.graph, n);
    if (n->op == TS_OP_empty || !ts_rewrite_is_pure(&p->w, n) || ts_rewrite_is_held(&p->w, n) ||
        !ts_rewrite_each_argument(&p->w, n, is_on_constant, NULL))
        return false;
    for (int k = 0; k < n->nargs && !p->knows; k++)
        if (is_number(&a[k]))
            return false;
    *bytes = 0;
    for (int k = 0; k < n->nrets; k++)
        *bytes += n->rets[k] ? p->w.storages[ts_rewrite_storage(&p->w, n->rets[k])].bytes : 0;
    return true;
}

/** Whether the readers of a constant storage need its values in memory. */
enum { FREE = 1,    /* a group can compute it from numbers alone, without a load */
       GROUPED = 2, /* a call of a group reads it */
       KEPT = 4     /* a constant call that is kept reads it */ };

typedef struct readers {
    uint8_t *flags; /* per storage */
    uint8_t set;    /* to set for each argument on a constant storage */
    bool all;       /* receives whether all arguments have FREE */
} readers;

static bool note_reader(const ts_rewrite *w, ts_id id, void *state)
{
    readers *r = state;
    uint32_t s = ts_rewrite_storage(w, id);
    r->flags[s] |= w->storages[s].constant ? r->set : 0;
    r->all &= r->flags[s] & FREE;
    return true;
}

/** Sets or clears the marks of a constant call and of its results. */
static void mark(const ts_rewrite *w, ts_plan_storage *storages, ts_graph_node *n, bool constant)
{
    n->flags = (uint8_t)(constant ? n->flags | TS_NODE_CONSTANT_CALL
                                  : n->flags & ~TS_NODE_CONSTANT_CALL);
    for (int k = 0; k < n->nrets; k++)
        if (n->rets[k])
            storages[ts_rewrite_storage(w, n->rets[k])].constant = constant;
}

/** Unmarks constant calls whose values a group can compute without a load, unless another call
 *  needs these values in memory. */
static void unmark_grouped(const pass *p, ts_plan_storage *storages, uint8_t *flags)
{
    ts_graph *g = p->w.graph;
    readers r = {.flags = flags};
    for (uint32_t i = 0; i < g->nodes.count; i++) {
        const ts_graph_node *n = ts_graph_node_at(g, i);
        bool constant = n->flags & TS_NODE_CONSTANT_CALL;
        r.set = 0;
        r.all = true;
        if (!n->nrets || (ts_rewrite_each_argument(&p->w, n, note_reader, &r), !r.all && constant))
            continue;
        bool takes = ts_group_takes(g, n, p->w.numbers).takes;
        r.set = takes && !constant ? GROUPED : 0;
        ts_rewrite_each_argument(&p->w, n, note_reader, &r);
        for (int k = 0; k < n->nrets && takes && constant; k++)
            if (n->rets[k])
                flags[ts_rewrite_storage(&p->w, n->rets[k])] |= FREE;
    }
    for (uint32_t i = g->nodes.count; i-- > 0;) {
        ts_graph_node *n = ts_graph_node_at(g, i);
        uint8_t all = n->nrets && n->rets[0] ? flags[ts_rewrite_storage(&p->w, n->rets[0])] : 0;
        if (!(n->flags & TS_NODE_CONSTANT_CALL))
            continue;
        bool spare = (all & (FREE | GROUPED | KEPT)) == (FREE | GROUPED);
        r.set = spare ? GROUPED : KEPT;
        ts_rewrite_each_argument(&p->w, n, note_reader, &r);
        if (spare)
            mark(&p->w, storages, n, false);
    }
}

/** Lists the constant calls and their numbers. False if out of memory. */
static bool list_constants(const pass *p)
{
    const ts_graph *g = p->w.graph;
    for (uint32_t i = 0; i < g->nodes.count; i++) {
        const ts_graph_node *n = ts_graph_node_at(g, i);
        if ((n->flags & TS_NODE_CONSTANT_CALL) && !list(p, n, true))
            return false;
    }
    return true;
}

bool ts_plan_find_constants(ts_exec *e, ts_graph *g, const ts_array *storages,
                            const uint64_t *numbers, const ts_plan_options *o)
{
    pass p = {.exec = e, .knows = o->knows};
    int64_t left = MOST_CONSTANT, bytes;
    uint8_t *flags = NULL;
    bool some = false, ok = ts_rewrite_begin(&p.w, g, storages, numbers);
    for (uint32_t i = 0; i < g->nodes.count && ok; i++) {
        ts_graph_node *n = ts_graph_node_at(g, i);
        if (!is_constant(&p, n, &bytes) || bytes > left)
            continue;
        left -= bytes;
        mark(&p.w, storages->data, n, true);
        some = true;
    }
    if (ok && some && o->max_groups != -1)
        ok = (flags = ts_alloc(ts_thread_self(), storages->count)) != NULL;
    if (flags) {
        memset(flags, 0, storages->count);
        unmark_grouped(&p, storages->data, flags);
        ts_free(ts_thread_self(), flags, storages->count);
    }
    ok = ok && (!some || list_constants(&p));
    if (p.w.written)
        ts_rewrite_end(&p.w, false);
    return ok;
}

/* ---------------------------------------------------------------------------------- runs ---- */

/** The constant values that a plan keeps. */
typedef struct ts_kept {
    ts_storage *storages[1]; /* one per storage of the recording; NULL: not kept */
} ts_kept;

static size_t bytes_of(const ts_exec *e) { return e->nrecorded * sizeof(ts_storage *); }

void ts_constants_free(const ts_exec *e, ts_kept *kept)
{
    for (uint32_t i = 0; kept && i < e->nrecorded; i++)
        if (kept->storages[i])
            ts_storage_release(kept->storages[i]);
    if (kept)
        ts_free(ts_thread_self(), kept, bytes_of(e));
}

/** Runs the constant calls. Sets *made to the values, with a reference to each. */
static ts_status compute(const ts_run *r, ts_kept **made)
{
    const ts_exec *e = r->exec;
    const ts_graph *g = e->graph;
    ts_status status = TS_OK;
    if (!(*made = ts_alloc(r->thread, bytes_of(e))))
        return ts_error_memory("constants of a plan", (int64_t)bytes_of(e));
    memset(*made, 0, bytes_of(e));
    for (uint32_t i = 0; i < g->nodes.count && status == TS_OK; i++) {
        const ts_graph_node *n = ts_graph_node_at(g, i);
        if (!(n->flags & TS_NODE_CONSTANT_CALL))
            continue;
        for (int k = 0; k < n->nrets && status == TS_OK; k++)
            if (n->rets[k])
                status = ts_exec_open(r, ts_graph_value_at(g, n->rets[k])->storage);
        if (status == TS_OK && (status = ts_exec_call(r, i)) != TS_OK)
            *r->failed = n->end;
    }
    for (uint32_t i = 0; i < e->nrecorded; i++) {
        ts_storage *s = r->storages[i];
        if (!e->storages[i].constant || !s)
            continue;
        ts_exec_close(r, i);
        r->storages[i] = NULL;
        if (status == TS_OK && s->device.backend != TS_KEY_CPU)
            status = ts_synchronize(s->device); /* other threads may use other streams */
        if (e->storages[i].first != UINT32_MAX)
            (*made)->storages[i] = s;
        else
            ts_storage_release(s);
    }
    return status;
}

ts_status ts_constants_open(const ts_run *r)
{
    ts_exec *e = (ts_exec *)(uintptr_t)r->exec;
    struct ts_kept *kept = atomic_load(&e->kept), *before = NULL;
    if (!kept) {
        ts_status status = compute(r, &kept);
        if (status == TS_OK && !atomic_compare_exchange_strong(&e->kept, &before, kept)) {
            ts_constants_free(e, kept); /* another thread has computed them meanwhile */
            kept = before;
        } else if (status != TS_OK) {
            ts_constants_free(e, kept);
            return status;
        }
    }
    for (uint32_t i = 0; i < e->nrecorded; i++)
        if (kept->storages[i]) {
            r->storages[i] = kept->storages[i];
            atomic_fetch_add_explicit(&r->storages[i]->refs, 1, memory_order_relaxed);
        }
    return TS_OK;
}
