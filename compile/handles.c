/**
 * @file handles.c  Memory that a run of a plan keeps for the next run: the tensor handles of the
 * plan's values, and arrays.
 *
 * The layout of a handle is the same in each run. From ts_handle_bind() to ts_handle_unbind() the
 * handle has the storage of one run, but no reference to it: the run or its replay has one. An
 * unbound handle is marked as dead.
 *
 * If a kernel has kept a reference to a handle, or the handle has a history or a gradient, the plan
 * gives the handle away with a reference to the storage, and the value gets a new handle when it is
 * bound again. With TS_DEBUG=scopes the plan gives each handle away.
 *
 * Storages that are the same in all replays of a plan stay bound from one replay to the next.
 */
// SPDX-License-Identifier: MIT
#include "compile/compile.h"

#include <string.h>

static size_t bytes_of(const ts_exec *e)
{
    return sizeof(ts_slots) + (2 * (size_t)e->graph->values.count + e->graph->widest) *
                                  sizeof(ts_tensor *) +
           e->nstorages * (sizeof(ts_storage *) + sizeof(ts_write_count));
}

ts_slots *ts_slots_take(ts_exec *e, ts_thread *thread)
{
    ts_slots *s = atomic_exchange(&e->slots, NULL);
    size_t bytes = bytes_of(e);
    if (s)
        return s;
    if (!(s = ts_alloc(thread, bytes))) {
        ts_error_memory("registers of a compiled call", (int64_t)bytes);
        return NULL;
    }
    memset(s, 0, bytes);
    s->registers = (ts_tensor **)(s + 1);
    s->handles = s->registers + e->graph->values.count;
    s->lists = s->handles + e->graph->values.count;
    s->storages = (ts_storage **)(s->lists + e->graph->widest);
    s->counts = (ts_write_count *)(s->storages + e->nstorages);
    return s;
}

void ts_slots_bind(const ts_exec *e, ts_slots *s, uint64_t serial)
{
    if (TS_LIKELY(s->bound == serial))
        return;
    for (uint32_t i = 0; i < e->graph->values.count; i++) {
        if (s->registers[i])
            ts_tensor_mark_dead(s->registers[i]);
        s->registers[i] = NULL;
    }
    memset(s->storages, 0, e->nstorages * sizeof *s->storages);
    s->bound = serial;
}

void ts_slots_free(const ts_exec *e, ts_slots *s)
{
    if (!s)
        return;
    for (uint32_t i = 0; i < e->graph->values.count; i++) {
        if (!s->handles[i])
            continue;
        ts_tensor_mark_dead(s->handles[i]);
        ts_free(&ts_tls, s->handles[i], sizeof **s->handles);
    }
    ts_free(&ts_tls, s, bytes_of(e));
}

void ts_slots_keep(ts_exec *e, ts_slots *s)
{
    ts_slots *none = NULL;
    if (!atomic_compare_exchange_strong(&e->slots, &none, s))
        ts_slots_free(e, s); /* another thread has kept its slots */
}

/** A handle of value v without a storage; NULL with TS_ERR_MEMORY. */
static __attribute__((noinline)) ts_tensor *make(const ts_run *r, const ts_graph_value *v)
{
    ts_tensor *t = ts_tensor_header(r->thread);
    if (!t)
        return NULL;
    ts_group_header(r->exec->graph, v, t);
    t->flags |= TS_TENSOR_VIEW;
    return t;
}

bool ts_handle_bind(const ts_run *r, uint32_t number)
{
    const ts_graph_value *v = (const ts_graph_value *)r->exec->graph->values.data + number;
    ts_storage *s = r->storages[v->storage];
    ts_tensor *t = r->handles[number];
    if (TS_UNLIKELY(!t) && !(t = r->handles[number] = make(r, v)))
        return false;
    t->keys = TS_KEYSET(v->device.backend);
    t->storage = s;
    t->data = s->data ? (char *)s->data + v->offset : NULL;
    r->registers[number] = t;
    return true;
}

/** True if the plan has the only reference to a handle, which has no history and no gradient. */
static bool is_own(const ts_tensor *t)
{
    return TS_LIKELY(atomic_load_explicit(&t->refs, memory_order_acquire) == 1) &&
           !((uintptr_t)t->node | (uintptr_t)t->grad);
}

/** Gives a handle, with a reference to its storage, to the holders of its other references. Without
 *  holders the handle is freed. */
static TS_COLD void give_away(const ts_run *r, uint32_t number)
{
    ts_tensor *t = r->handles[number];
    r->handles[number] = r->registers[number] = NULL;
    atomic_fetch_add_explicit(&t->storage->refs, 1, memory_order_relaxed);
    ts_tensor_unref(t);
}

void ts_handle_unbind(const ts_run *r, uint32_t number)
{
    ts_tensor *t = r->registers[number];
    if (!t)
        return;
    if (!is_own(t) || TS_UNLIKELY(ts_scopes_watched)) {
        give_away(r, number);
        return;
    }
    ts_tensor_mark_dead(t);
    t->storage = NULL;
    t->data = NULL;
    r->registers[number] = NULL;
}

bool ts_handles_stay(const ts_run *r)
{
    bool stay = true;
    for (uint32_t i = 0; i < r->exec->graph->values.count; i++)
        if (r->registers[i] && (!is_own(r->registers[i]) || TS_UNLIKELY(ts_scopes_watched))) {
            give_away(r, i);
            stay = false;
        }
    return stay;
}
