/** @file run.c  Runs a plan: allocates promised storages when steps need them, runs calls and
 * groups. */
// SPDX-License-Identifier: MIT
#include "compile/cache.h"
#include "compile/plan.h"
#include "dispatch/entries.h"
#include "dispatch/invoke.h"

#include <string.h>

#define LAZY TS_KEYSET(TS_KEY_LAZY)

/** A handle of value v over its storage, owned by the caller; NULL with an error. */
static ts_tensor *handle_of(const ts_run *r, const ts_graph_value *v)
{
    const ts_graph *g = r->exec->graph;
    const int64_t *sizes = ts_graph_ints_at(g, v->ints);
    ts_storage *s = r->storages[v->storage];
    ts_tensor base = {.keys = TS_KEYSET(s->device.backend), .storage = s, .data = s->data};
    base.dtype = v->dtype;
    base.device = s->device;
    return ts_tensor_alias(r->thread, &base, sizes, sizes + v->ndim, v->ndim,
                           v->offset / ts_dtype_sizes[v->dtype]);
}

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
        const ts_graph_value *v = (const ts_graph_value *)e->graph->values.data + (next - 1);
        if (!(r->registers[next - 1] = handle_of(r, v)))
            return ts_error_code();
        next = v->before;
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
    for (uint32_t next = ((const ts_graph_storage *)e->graph->storages.data)[i].newest; next;) {
        if (r->registers[next - 1])
            ts_tensor_unref(r->registers[next - 1]);
        r->registers[next - 1] = NULL;
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
    uint32_t opened = 0, closed = 0;
    for (uint32_t k = 0; k < e->nsteps; k++) {
        const ts_step *s = &e->steps[k];
        while (opened < s->opens)
            TS_TRY(ts_exec_open(r, e->opens[opened++]));
        ts_status status = run_step(r, s);
        if (TS_UNLIKELY(status != TS_OK))
            return fail_at_step(r, k, status);
        if (TS_UNLIKELY(r->keeps != NULL) && (!r->workspace->live || *r->keeps == UINT32_MAX))
            *r->keeps = r->workspace->live ? k : UINT32_MAX;
        while (closed < s->closes)
            ts_exec_close(r, e->closes[closed++]);
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

/** A storage's version and writer before the run. The run restores them, because recording has
 * counted its writes already. */
typedef struct count {
    uint32_t version;
    uint16_t writer;
} count;

ts_status ts_exec_run(ts_exec *e, ts_lazy *l)
{
    const ts_graph *g = e->graph;
    ts_thread *thread = l->thread;
    size_t bytes = e->nstorages * (sizeof(ts_storage *) + sizeof(count)) +
                   (g->values.count + (size_t)g->widest) * sizeof(ts_tensor *);
    uint32_t failed = UINT32_MAX;
    char *block = ts_alloc(thread, bytes + 8);
    if (!block)
        return ts_error_memory("registers of a compiled call", (int64_t)bytes);
    memset(block, 0, bytes);
    ts_run r = {.compiled = l->compiled, .exec = e, .numbers = l->numbers.data,
                .sites = l->sites.data, .thread = thread, .failed = &failed};
    r.registers = (ts_tensor **)block;
    r.lists = r.registers + g->values.count;
    r.storages = (ts_storage **)(r.lists + g->widest);
    count *counts = (count *)(r.storages + e->nstorages);
    const ts_lazy_storage *recorded = l->storages.data;
    for (uint32_t i = 0; i < e->nrecorded; i++)
        if ((r.storages[i] = recorded[i].storage) != NULL) {
            atomic_fetch_add_explicit(&r.storages[i]->refs, 1, memory_order_relaxed);
            counts[i] = (count){r.storages[i]->version, r.storages[i]->writer};
        }
    ts_keyset exclude = thread->exclude;
    ts_rng_state rng = thread->rng;
    thread->exclude |= ~(LAZY - 1) & ~TS_KEYSET(TS_KEY_ABSENT);
    bool graph = ((const ts_compiled *)l->compiled)->opts.graph;
    ts_status status = e->nconstants ? ts_constants_open(&r) : TS_OK;
    for (uint32_t i = 0; i < e->nrecorded && e->nconstants; i++)
        if (e->storages[i].constant && r.storages[i])
            counts[i] = (count){r.storages[i]->version, r.storages[i]->writer};
    ts_storage *arena = graph || status != TS_OK ? NULL : ts_arena_begin(&r);
    if (status == TS_OK)
        status = graph ? ts_capture_run(&r, e, l) : ts_exec_steps(&r);
    thread->exclude = exclude;
    thread->rng = rng;
    if (TS_UNLIKELY(status != TS_OK) && failed != UINT32_MAX)
        rewind_draws(thread, e, r.numbers, failed);
    for (uint32_t i = 0; i < e->nstorages; i++) {
        ts_exec_close(&r, i);
        if (r.storages[i] && i < e->nrecorded) {
            if (r.storages[i]->version != counts[i].version) { /* other threads may read it */
                r.storages[i]->version = counts[i].version;
                r.storages[i]->writer = counts[i].writer;
            }
            ts_storage_release(r.storages[i]);
        }
    }
    if (arena)
        ts_storage_release(arena);
    ts_free(thread, block, bytes + 8);
    return status;
}
