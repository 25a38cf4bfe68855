/** @file run.c  Runs a plan: allocates promised storages when steps need them, runs calls and
 * groups. */
// SPDX-License-Identifier: MIT
#include "compile/cache.h"
#include "compile/plan.h"
#include "compile/replay.h"
#include "dispatch/entries.h"
#include "dispatch/invoke.h"

#include <string.h>

#define LAZY TS_KEYSET(TS_KEY_LAZY)

/** ts_storage.release of a storage in the arena: frees nothing, because the arena owns it. */
static void release_nothing(void *foreign, void *data, int64_t bytes)
{
    (void)foreign, (void)data, (void)bytes;
}

/** Makes promised storage i, of which no tensor was left at the end of the recording. During a
 * capture it must have an offset in the graph's arena. */
static ts_storage *new_storage(const ts_run *r, uint32_t i)
{
    const ts_plan_storage *s = &r->exec->storages[i];
    bool in_arena = r->arena && r->offsets[i] >= 0;
    if (!in_arena && r->workspace && r->workspace->base) {
        ts_error_set(TS_ERR_STATE, "a group was refused after its capture was planned");
        return NULL;
    }
    ts_storage *made = ts_storage_new(r->thread, s->device, in_arena ? 0 : s->bytes);
    if (made && in_arena) {
        made->bytes = s->bytes;
        made->data = r->arena + r->offsets[i];
        made->release = release_nothing;
    }
    return made;
}

ts_status ts_exec_open_inside(const ts_run *r, uint32_t i)
{
    const ts_exec *e = r->exec;
    uint32_t newest = ((const ts_graph_storage *)e->graph->storages.data)[i].newest;
    if (newest && r->registers[newest - 1])
        return TS_OK;
    if (!r->storages[i]) {
        if (!(r->storages[i] = new_storage(r, i)))
            return ts_error_code();
        TS_TRY(ts_arena_fill(r, i));
    } else if (ts_is_promised(r->storages[i]->data) &&
               !ts_storage_fulfil(r->thread, r->storages[i])) {
        return ts_error_code();
    }
    for (uint32_t next = newest; next;) {
        if (!ts_handle_bind(r, next - 1))
            return ts_error_code();
        next = ((const ts_graph_value *)e->graph->values.data)[next - 1].before;
    }
    return TS_OK;
}

ts_status ts_exec_open(const ts_run *r, uint32_t i)
{
    return r->exec->storages[i].inside ? TS_OK : ts_exec_open_inside(r, i);
}

/** Called after the last step that uses storage i: releases the handles of its values, and the
 *  storage unless it outlives the run. */
void ts_exec_close(const ts_run *r, uint32_t i)
{
    const ts_exec *e = r->exec;
    const ts_plan_storage *s = &e->storages[i];
    if (r->fixed && r->fixed[i])
        return;
    for (uint32_t next = ((const ts_graph_storage *)e->graph->storages.data)[i].newest; next;) {
        ts_handle_unbind(r, next - 1);
        next = ((const ts_graph_value *)e->graph->values.data)[next - 1].before;
    }
    if (!s->outside && !s->constant && !s->held && r->storages[i]) {
        ts_arena_fill(r, i); /* poisons the bytes for debugging; a failure is ignored */
        ts_storage_release(r->storages[i]);
        r->storages[i] = NULL;
    }
}

/** The tensor of a value; NULL for a value inside a group, or without registers. */
static ts_tensor *get(const ts_run *r, ts_id id)
{
    return r->registers ? r->registers[ts_id_index(id)] : NULL;
}

void ts_run_unbox(const ts_run *r, const ts_graph_node *n, ts_value *args)
{
    const ts_graph *g = r->exec->graph;
    const ts_graph_arg *a = ts_graph_args_of(g, n);
    uint32_t listed = 0;
    for (int i = 0; i < n->nargs; i++) {
        bool number = a[i].role == TS_ROLE_VALUE;
        args[i] = (ts_value){.tag = a[i].tag, .count = a[i].count};
        switch (a[i].tag) {
        case TS_TAG_TENSOR:
            args[i].count = 0;
            args[i].t = get(r, a[i].id);
            break;
        case TS_TAG_TENSORS:
            args[i].list = r->lists + listed;
            for (uint32_t k = 0; k < a[i].count; k++)
                r->lists[listed++] = get(r, (ts_id)ts_graph_ints_at(g, a[i].at)[k]);
            break;
        case TS_TAG_INTS:
            args[i].ints = number ? (const int64_t *)r->numbers + a[i].at
                                  : ts_graph_ints_at(g, a[i].at);
            break;
        case TS_TAG_STRING:
            args[i].count = 0;
            args[i].str = ts_graph_text_at(g, a[i].at);
            break;
        case TS_TAG_DEVICE: args[i].device = a[i].device; break;
        default: args[i].i = number ? (int64_t)r->numbers[a[i].at] : a[i].i;
        }
    }
}

/** True if the slot of the highest key accepts results that already exist. */
static bool fills(const ts_op_table *t, ts_keyset keys)
{
    ts_kernel slot = t->slot[ts_highest_key(keys)];
    return slot == ts_enter_fill || slot == ts_enter_device;
}

ts_status ts_exec_call(const ts_run *r, uint32_t node)
{
    const ts_graph_node *n = ts_graph_node_at(r->exec->graph, node);
    const ts_op_table *table = atomic_load_explicit(&ts_tables[n->op], memory_order_acquire);
    ts_value args[TS_MAX_ARGS], rets[TS_MAX_RETS];
    int nrets = n->nrets <= TS_MAX_RETS ? n->nrets : TS_MAX_RETS;
    ts_run_unbox(r, n, args);
    ts_keyset keys = 0;
    TS_TRY(ts_keys_collect(n->op, args, n->nargs, NULL, 0, 0, ts_run_site(r, node), &keys));
    for (int i = 0; i < nrets; i++)
        keys |= n->given >> i & 1 ? get(r, n->rets[i])->keys : 0;
    keys &= table->mask & (LAZY - 1);
    bool there = keys && fills(table, keys);
    for (int i = 0; i < nrets; i++) {
        bool given = n->given >> i & 1;
        rets[i] = n->rets[i] && (given || there) ? ts_value_tensor(get(r, n->rets[i]))
                                                 : ts_value_none();
        if (!given && rets[i].tag == TS_TAG_TENSOR)
            ts_tensor_ref(rets[i].t); /* a reference for the call, as for a new result */
    }
    if (n->flags & TS_NODE_RANDOM)
        r->thread->rng = (ts_rng_state){r->numbers[n->rng.offset], r->numbers[n->rng.offset + 1]};
    if (r->workspace)
        r->workspace->used = 0;
    r->thread->workspace = r->workspace;
    ts_status status = ts_call(n->op, args, n->nargs, rets, nrets, n->given, n->want,
                               ts_run_site(r, node));
    for (int i = 0; i < nrets; i++) {
        if (n->given >> i & 1 || rets[i].tag != TS_TAG_TENSOR || !rets[i].t)
            continue;
        if (status == TS_OK && n->rets[i] && rets[i].t != get(r, n->rets[i]))
            status = ts_above.copy_into(get(r, n->rets[i]), rets[i].t, n->op);
        ts_tensor_unref(rets[i].t);
    }
    r->thread->workspace = NULL;
    return status;
}

static ts_status run_step(const ts_run *r, const ts_step *s)
{
    return s->fused ? ts_group_run(r, s) : ts_exec_call(r, r->exec->order[s->first]);
}

/** Number of the first recorded call of a step, or of its last. */
static uint32_t call_of(const ts_exec *e, const ts_step *s, bool last)
{
    uint32_t call = last ? 0 : UINT32_MAX;
    for (uint32_t i = s->first; i < s->first + s->count; i++) {
        uint32_t end = ts_graph_node_at(e->graph, e->order[i])->end;
        call = (end > call) == last ? end : call;
    }
    return call;
}

/** Ends a run in which step k has failed with `status`, as ts_exec_steps() describes. */
static ts_status fail_at_step(const ts_run *r, uint32_t k, ts_status status)
{
    const ts_exec *e = r->exec;
    *r->failed = call_of(e, &e->steps[k], false);
    for (uint32_t opened = e->steps[k].opens; ++k < e->nsteps && status != TS_ERR_MEMORY;) {
        const ts_step *s = &e->steps[k];
        ts_error before = *r->thread->error;
        for (; opened < s->opens; opened++)
            TS_TRY(ts_exec_open(r, e->opens[opened]));
        if (call_of(e, s, true) >= *r->failed)
            continue;
        ts_status now = run_step(r, s);
        if (now == TS_OK) {
            *r->thread->error = before;
            continue;
        }
        status = now;
        *r->failed = call_of(e, s, false);
    }
    return status;
}

ts_status ts_exec_steps(const ts_run *r)
{
    const ts_exec *e = r->exec;
    const bool *fixed = r->fixed; /* already open */
    uint32_t opened = 0, closed = 0;
    for (uint32_t k = 0; k < e->nsteps; k++) {
        const ts_step *s = &e->steps[k];
        for (; opened < s->opens; opened++)
            if (!(fixed && fixed[e->opens[opened]]))
                TS_TRY(ts_exec_open(r, e->opens[opened]));
        ts_status status = run_step(r, s);
        if (TS_UNLIKELY(status != TS_OK))
            return fail_at_step(r, k, status);
        if (TS_UNLIKELY(r->keeps != NULL) && (!r->workspace->live || *r->keeps == UINT32_MAX))
            *r->keeps = r->workspace->live ? k : UINT32_MAX;
        for (; closed < s->closes; closed++)
            if (!(fixed && fixed[e->closes[closed]]))
                ts_exec_close(r, e->closes[closed]);
    }
    return TS_OK;
}

/** Sets the generator to its state after an eager run of the calls up to number `failed`: it has
 *  not drawn for later calls. numbers: those of the run. */
static void rewind_draws(ts_thread *thread, const ts_exec *e, const uint64_t *numbers,
                         uint32_t failed)
{
    uint32_t at = ts_plan_next_draw(e, failed);
    if (at != UINT32_MAX)
        thread->rng = (ts_rng_state){numbers[at], numbers[at + 1]};
}

/** The storages of a run whose entries it sets and clears: all, or in a replay those that may
 *  differ from the replay before. */
typedef struct entries {
    const uint32_t *list; /* in ascending order; NULL: all */
    uint32_t count;
} entries;
static uint32_t entry(const entries *all, uint32_t k) { return all->list ? all->list[k] : k; }

/** Makes the storages of the recording available to a run, with a reference to each promised one,
 *  and stores the versions of the listed ones: the run restores them, because recording has counted
 *  its writes already. */
static void take_storages(const ts_run *r, const ts_lazy *l, const entries *some,
                          ts_write_count *counts)
{
    const ts_exec *e = r->exec;
    const ts_lazy_storage *recorded = l->storages.data;
    for (uint32_t k = 0; k < some->count; k++) {
        uint32_t i = entry(some, k);
        ts_storage *s = i < e->nrecorded ? recorded[i].storage : NULL;
        r->storages[i] = s;
        if (!s)
            continue;
        if (!e->storages[i].outside)
            atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
        counts[i] = (ts_write_count){s->version, s->writer};
    }
}

/** Binds the storages that are the same in all replays. TS_ERR_MEMORY. */
static ts_status open_fixed(const ts_run *r, const ts_lazy *l)
{
    const ts_lazy_storage *recorded = l->storages.data;
    for (uint32_t i = 0; i < r->exec->nrecorded; i++) {
        if (!r->fixed[i])
            continue;
        r->storages[i] = recorded[i].storage;
        TS_TRY(ts_exec_open_inside(r, i));
    }
    return TS_OK;
}

/** Restores the versions and releases the storages of the run. close: the handles too. */
static void give_storages(const ts_run *r, const entries *some, bool close,
                          const ts_write_count *counts)
{
    const ts_exec *e = r->exec;
    for (uint32_t i = 0; i < e->nstorages && close; i++)
        ts_exec_close(r, i);
    for (uint32_t k = 0; k < some->count; k++) {
        uint32_t i = entry(some, k);
        ts_storage *s = r->storages[i];
        r->storages[i] = NULL;
        if (!s || i >= e->nrecorded)
            continue;
        if (s->version != counts[i].version) { /* other threads may read it */
            s->version = counts[i].version;
            s->writer = counts[i].writer;
        }
        if (!e->storages[i].outside)
            ts_storage_release(s);
    }
}

ts_status ts_exec_run(ts_exec *e, ts_lazy *l)
{
    ts_thread *thread = l->thread;
    uint32_t failed = UINT32_MAX;
    ts_slots *slots = ts_slots_take(e, thread);
    if (!slots)
        return ts_error_code();
    const ts_repeat *replay = l->repeat;
    ts_run r = {.compiled = l->compiled, .exec = e, .numbers = l->numbers.data,
                .sites = l->sites.data, .thread = thread, .failed = &failed,
                .registers = slots->registers, .handles = slots->handles, .lists = slots->lists,
                .storages = slots->storages, .fixed = replay ? replay->stays.data : NULL};
    uint64_t serial = replay ? replay->serial : 0;
    bool anew = replay && slots->bound != serial;
    ts_slots_bind(e, slots, serial);
    entries some = {NULL, e->nstorages};
    if (replay)
        some = (entries){replay->varying.data, replay->varying.count};
    take_storages(&r, l, &some, slots->counts);
    ts_status status = anew ? open_fixed(&r, l) : TS_OK;
    ts_keyset exclude = thread->exclude;
    ts_rng_state rng = thread->rng;
    thread->exclude |= ~(LAZY - 1) & ~TS_KEYSET(TS_KEY_ABSENT) & ~TS_KEYSET(TS_KEY_META);
    bool graph = ((const ts_compiled *)l->compiled)->opts.graph;
    if (e->nconstants && status == TS_OK)
        status = ts_constants_open(&r);
    for (uint32_t i = 0; i < e->nrecorded && e->nconstants; i++)
        if (e->storages[i].constant && r.storages[i])
            slots->counts[i] = (ts_write_count){r.storages[i]->version, r.storages[i]->writer};
    ts_storage *arena = graph || status != TS_OK ? NULL : ts_arena_begin(&r);
    if (status == TS_OK)
        status = graph ? ts_capture_run(&r, e, l) : ts_exec_steps(&r);
    thread->exclude = exclude;
    thread->rng = rng;
    if (TS_UNLIKELY(status != TS_OK) && failed != UINT32_MAX)
        rewind_draws(thread, e, r.numbers, failed);
    give_storages(&r, &some, status != TS_OK || graph, slots->counts);
    if (!ts_handles_stay(&r))
        slots->bound = 0;
    if (arena)
        ts_storage_release(arena);
    ts_slots_keep(e, slots);
    return status;
}
