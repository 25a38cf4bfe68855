/**
 * @file round_trip.c  A call on the CPU in the place of a kernel that a backend lacks.
 *
 * Whole storages are copied to the host, once each, and the call sees tensors of the same
 * layout over them: strides, overlaps and in-place forms mean the same as on the device,
 * and the device needs no kernel for any of it. What was written goes back, results are moved
 * with the layout they have.
 */
// SPDX-License-Identifier: MIT
#include "core/device.h"
#include "dispatch/registry.h"
#include "dispatch/timers.h"

#include <string.h>

/** A storage of the device and its copy. */
typedef struct mirror {
    ts_storage *there; /* borrowed */
    ts_storage *here;  /* owned */
    bool written;
} mirror;

typedef struct trip {
    ts_thread *thread;
    ts_device device; /* where results go */
    mirror *mirrors;
    ts_tensor **tensors; /* owned: host views of arguments and given results */
    ts_tensor **lists;   /* members of list arguments, in a row */
    int nmirrors, ntensors, nlists, room;
} trip;

/** t's layout over another storage, at the same distance from its start; NULL with an error. */
static ts_tensor *view_over(ts_thread *thread, const ts_tensor *t, ts_storage *from, ts_storage *to)
{
    ts_tensor *view = ts_tensor_header(thread);
    if (!view)
        return NULL;
    atomic_fetch_add_explicit(&to->refs, 1, memory_order_relaxed);
    view->storage = to;
    view->keys = TS_KEYSET(to->device.backend);
    view->data = to->data ? (char *)to->data + (t->data - (char *)from->data) : NULL;
    view->numel = t->numel;
    view->kind = ts_kind_of((ts_dtype)t->dtype, t->ndim, to->device);
    view->flags = t->flags & TS_TENSOR_CONTIGUOUS;
    memcpy(view->sizes, t->sizes, sizeof view->sizes);
    memcpy(view->strides, t->strides, sizeof view->strides);
    return view;
}

/** The host view of a tensor (itself when it is on the host); NULL with an error. */
static ts_tensor *bring(trip *trip, ts_tensor *t, bool written)
{
    if (ts_is_none(t) || t->storage->device.backend == TS_KEY_CPU)
        return t;
    ts_storage *there = t->storage;
    mirror *m = NULL;
    for (int i = 0; i < trip->nmirrors && !m; i++)
        m = trip->mirrors[i].there == there ? &trip->mirrors[i] : NULL;
    if (!m) {
        ts_storage *here = ts_storage_new(trip->thread, TS_DEVICE_CPU, there->bytes);
        if (!here)
            return NULL;
        m = &trip->mirrors[trip->nmirrors++];
        *m = (mirror){there, here, false};
        if (ts_device_copy(TS_DEVICE_CPU, here->data, there->device, there->data,
                           there->data ? there->bytes : 0) != TS_OK)
            return NULL;
    }
    m->written |= written;
    ts_tensor *view = view_over(trip->thread, t, there, m->here);
    if (view)
        trip->tensors[trip->ntensors++] = view;
    return view;
}

/** The device's tensor for a result that the CPU made; NULL with an error. */
static ts_tensor *send(trip *trip, ts_tensor *result, ts_tensor *const *sent,
                       ts_tensor *const *results, int nsent)
{
    ts_storage *here = result->storage, *there = NULL;
    for (int i = 0; i < trip->nmirrors && !there; i++)
        there = trip->mirrors[i].here == here ? trip->mirrors[i].there : NULL;
    for (int i = 0; i < nsent && !there; i++)
        there = sent[i] && results[i]->storage == here ? sent[i]->storage : NULL;
    if (there)
        return view_over(trip->thread, result, here, there);
    there = ts_storage_new(trip->thread, trip->device, here->bytes);
    if (!there)
        return NULL;
    ts_tensor *t = NULL;
    if (ts_device_copy(trip->device, there->data, TS_DEVICE_CPU, here->data, here->bytes) == TS_OK)
        t = view_over(trip->thread, result, here, there);
    ts_storage_release(there); /* the tensor holds it now, or nobody */
    return t;
}

/** Arguments as the CPU is to see them. */
static ts_status bring_args(trip *trip, const ts_frame *f, ts_value *args)
{
    for (int i = 0; i < f->nargs; i++) {
        bool written = f->table->written >> i & 1;
        args[i] = f->args[i];
        if (args[i].tag == TS_TAG_TENSOR) {
            TS_TRY(args[i].t = bring(trip, f->args[i].t, written));
        } else if (args[i].tag == TS_TAG_TENSORS) {
            args[i].list = trip->lists + trip->nlists;
            for (uint32_t k = 0; k < args[i].count; k++)
                TS_TRY(trip->lists[trip->nlists++] = bring(trip, f->args[i].list[k], written));
        } else if (args[i].tag == TS_TAG_DEVICE && args[i].device.backend == f->key) {
            args[i].device = TS_DEVICE_CPU;
        }
    }
    return TS_OK;
}

/** Writes go back to where they belong; results of the CPU are replaced by the device's. */
static ts_status bring_back(trip *trip, ts_frame *f, ts_value *rets)
{
    for (int i = 0; i < trip->nmirrors; i++) {
        mirror *m = &trip->mirrors[i];
        if (!m->written)
            continue;
        if (m->there->data)
            TS_TRY(ts_device_copy(m->there->device, m->there->data, TS_DEVICE_CPU, m->here->data,
                                  m->there->bytes));
        ts_storage_wrote(m->there, f->op);
    }
    ts_tensor *sent[TS_MAX_RETS] = {0}, *results[TS_MAX_RETS] = {0};
    ts_status status = TS_OK;
    for (int i = 0; i < f->nrets && status == TS_OK; i++) {
        if ((f->given >> i & 1) || rets[i].tag != TS_TAG_TENSOR)
            continue;
        results[i] = rets[i].t;
        sent[i] = send(trip, results[i], sent, results, i);
        status = sent[i] ? TS_OK : ts_error_code();
    }
    for (int i = 0; i < f->nrets; i++) {
        if (f->given >> i & 1)
            continue;
        if (status == TS_OK && sent[i])
            f->rets[i] = ts_value_tensor(sent[i]);
        else if (sent[i])
            ts_tensor_unref(sent[i]);
    }
    return status;
}

static void note_trip(const ts_frame *f)
{
    static _Atomic uint8_t seen[16][TS_MAX_OPS];
    atomic_fetch_add_explicit(&ts_device_count_of[f->key].round_trips, 1, memory_order_relaxed);
    if (!ts_log_on("backend") ||
        atomic_exchange_explicit(&seen[f->key][f->op], 1, memory_order_relaxed))
        return;
    char call[512];
    ts_frame_describe(f, call, sizeof call);
    ts_log_write("backend", "%s has no kernel for this call, the CPU's is used: %s",
                 ts_key_name(f->key), call);
}

ts_status ts_round_trip(ts_frame *f)
{
    int far = ts_find_far(f);
    if (far >= 0)
        return ts_above.across(f, far);
    trip trip = {.thread = f->thread, .device = ts_kernel_device(f)};
    for (int i = 0; i < f->nargs; i++)
        trip.room += f->args[i].tag == TS_TAG_TENSOR    ? 1
                     : f->args[i].tag == TS_TAG_TENSORS ? (int)f->args[i].count
                                                        : 0;
    trip.room += f->nrets;
    size_t bytes = (size_t)trip.room * (sizeof(mirror) + 2 * sizeof(ts_tensor *));
    char *block = ts_alloc(f->thread, bytes);
    if (!block && bytes)
        return ts_fail_memory("a round trip over the CPU", (int64_t)bytes);
    trip.mirrors = (mirror *)block;
    trip.tensors = (ts_tensor **)(trip.mirrors + trip.room);
    trip.lists = trip.tensors + trip.room;

    note_trip(f);
    ts_value args[TS_MAX_ARGS], rets[TS_MAX_RETS];
    ts_frame inner = *f;
    inner.args = args;
    inner.rets = rets;
    inner.plan = NULL;
    inner.key = TS_KEY_CPU;
    inner.keys = TS_KEYSET(TS_KEY_CPU);
    ts_status status = bring_args(&trip, f, args);
    for (int i = 0; i < f->nrets && status == TS_OK; i++) {
        rets[i] = ts_value_none();
        if (f->given >> i & 1)
            status = TS_STATUS_OF((rets[i] = ts_value_tensor(bring(&trip, f->rets[i].t, true))).t);
    }
    if (status == TS_OK) {
        status = ts_hop(&inner, f->table->slot[TS_KEY_CPU]);
        if (status == TS_OK) {
            status = bring_back(&trip, f, rets);
            for (int i = 0; i < f->nrets; i++)
                if (!(f->given >> i & 1) && rets[i].tag == TS_TAG_TENSOR)
                    ts_tensor_unref(rets[i].t);
        }
    }
    for (int i = 0; i < trip.ntensors; i++)
        ts_tensor_unref(trip.tensors[i]);
    for (int i = 0; i < trip.nmirrors; i++)
        ts_storage_release(trip.mirrors[i].here);
    if (block)
        ts_free(f->thread, block, bytes);
    return status;
}
