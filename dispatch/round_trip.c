/**
 * @file round_trip.c  Runs a call on the CPU if a backend lacks the kernel.
 *
 * Each storage is copied to the host once, as a whole, and the call gets tensors with the same
 * layout over the copies. Strides, overlaps and in-place forms therefore work as on the device, and
 * the device needs no packing kernel. Written storages are copied back; results are moved to the
 * device with their layout.
 */
// SPDX-License-Identifier: MIT
#include "core/device.h"
#include "dispatch/entries.h"
#include "dispatch/timers.h"

/** A storage of the device and its host copy; the trip owns a reference to each. */
typedef struct mirror {
    ts_storage *there, *here;
    bool written;
} mirror;

typedef struct trip {
    ts_thread *thread;
    mirror *mirrors;
    ts_tensor **tensors; /* owned: the CPU's arguments and given results */
    int nmirrors, ntensors;
} trip;

/** The mirror of a storage; the first request copies the storage to `device`. NULL with an
 *  error. */
static mirror *mirror_of(trip *trip, ts_storage *s, ts_device device)
{
    for (mirror *m = trip->mirrors; m < trip->mirrors + trip->nmirrors; m++)
        if (m->there == s || m->here == s)
            return m;
    ts_storage *copy = ts_storage_new(trip->thread, device, s->bytes);
    if (!copy)
        return NULL;
    atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
    mirror *m = &trip->mirrors[trip->nmirrors++];
    *m = device.backend == TS_KEY_CPU ? (mirror){s, copy, false} : (mirror){copy, s, false};
    ts_status status =
        ts_device_copy(device, copy->data, s->device, s->data, s->data ? s->bytes : 0);
    return status == TS_OK ? m : NULL;
}

/** A tensor on `device` with t's layout over the copy of t's storage, owned; NULL with an error. */
static ts_tensor *mirror_view(trip *trip, const ts_tensor *t, ts_device device, bool written)
{
    mirror *m = mirror_of(trip, t->storage, device);
    ts_tensor *view = m ? ts_tensor_alias(trip->thread, t, t->sizes, t->strides, t->ndim, 0) : NULL;
    if (!view)
        return NULL;
    m->written |= written;
    view->storage = m->there == t->storage ? m->here : m->there;
    atomic_fetch_add_explicit(&view->storage->refs, 1, memory_order_relaxed);
    ts_storage_release(t->storage); /* the alias took a reference */
    char *data = view->storage->data;
    view->data = data ? data + (t->data - (char *)t->storage->data) : NULL;
    view->keys = TS_KEYSET(device.backend);
    view->device = view->storage->device;
    view->flags &= TS_TENSOR_CONTIGUOUS;
    return view;
}

/** Adds the CPU's version of a tensor: the tensor itself if it is on the host. */
static ts_status add_host_tensor(trip *trip, ts_tensor *t, bool written)
{
    bool host = !ts_is_none(t) && t->storage->device.backend == TS_KEY_CPU;
    ts_tensor *here = ts_is_none(t) ? t
                      : host        ? ts_tensor_ref(t)
                                    : mirror_view(trip, t, TS_DEVICE_CPU, written);
    TS_TRY(here);
    trip->tensors[trip->ntensors++] = here;
    return TS_OK;
}

/** Makes the CPU's version of arguments and given results. */
static ts_status add_host_arguments(trip *trip, const ts_frame *f, ts_value *args, ts_value *rets)
{
    for (int i = 0; i < f->nargs; i++) {
        uint32_t n;
        ts_tensor *const *members = ts_value_members(&f->args[i], &n);
        ts_tensor **here = trip->tensors + trip->ntensors;
        for (uint32_t k = 0; k < n; k++)
            TS_TRY(add_host_tensor(trip, members[k], f->table->written >> i & 1));
        args[i] = f->args[i];
        if (args[i].tag == TS_TAG_TENSOR)
            args[i].t = *here;
        else if (args[i].tag == TS_TAG_TENSORS)
            args[i].list = here;
        else if (args[i].tag == TS_TAG_DEVICE && args[i].device.backend == f->key)
            args[i].device = TS_DEVICE_CPU;
    }
    for (int i = 0; i < f->nrets; i++) {
        rets[i] = ts_value_none();
        if (f->given >> i & 1) {
            TS_TRY(add_host_tensor(trip, f->rets[i].t, true));
            rets[i] = ts_value_tensor(trip->tensors[trip->ntensors - 1]);
        }
    }
    return TS_OK;
}

/** Copies written storages back and replaces CPU results by device tensors. */
static ts_status copy_back(trip *trip, ts_frame *f, ts_value *rets)
{
    ts_device device = ts_kernel_device(f);
    ts_status status = TS_OK;
    for (mirror *m = trip->mirrors; m < trip->mirrors + trip->nmirrors && status == TS_OK; m++)
        if (m->written) {
            status = ts_device_copy(m->there->device, m->there->data, TS_DEVICE_CPU, m->here->data,
                                    m->there->data ? m->there->bytes : 0);
            ts_storage_wrote(m->there, f->op);
        }
    for (int i = 0; i < f->nrets; i++) {
        if (f->given >> i & 1) {
            rets[i] = f->rets[i]; /* its storage was copied back */
        } else if (rets[i].tag == TS_TAG_TENSOR) {
            ts_tensor *made = rets[i].t;
            ts_tensor *moved = status == TS_OK ? mirror_view(trip, made, device, false) : NULL;
            rets[i] = moved ? ts_value_tensor(moved) : ts_value_none();
            status = moved ? status : ts_error_code();
            ts_tensor_unref(made);
        }
    }
    return ts_deliver(f, rets, status);
}

static void count_round_trip(const ts_frame *f)
{
    static _Atomic uint8_t seen[16][TS_MAX_OPS];
    atomic_fetch_add_explicit(&ts_device_count_of[f->key].round_trips, 1, memory_order_relaxed);
    if (!ts_log_on("backend") ||
        atomic_exchange_explicit(&seen[f->key][f->op], 1, memory_order_relaxed))
        return;
    char call[512];
    ts_frame_describe(f, call, sizeof call);
    ts_log_write("backend", "%s has no kernel for this call, which runs on the CPU: %s",
                 ts_key_name(f->key), call);
}

ts_status ts_round_trip(ts_frame *f)
{
    int other = ts_find_other_device(f);
    if (other >= 0)
        return ts_above.across(f, other);
    size_t entries = f->nrets;
    for (int i = 0; i < f->nargs; i++) {
        uint32_t n;
        ts_value_members(&f->args[i], &n);
        entries += n;
    }
    size_t bytes = entries * (sizeof(mirror) + sizeof(ts_tensor *));
    mirror *block = ts_alloc(f->thread, bytes);
    if (!block && bytes)
        return ts_error_memory("a round trip over the CPU", (int64_t)bytes);
    trip trip = {f->thread, block, (ts_tensor **)(block + entries), 0, 0};

    count_round_trip(f);
    ts_value args[TS_MAX_ARGS], rets[TS_MAX_RETS];
    ts_frame inner = *f;
    inner.args = args;
    inner.rets = rets;
    inner.plan = NULL;
    inner.key = TS_KEY_CPU;
    inner.keys = TS_KEYSET(TS_KEY_CPU);
    ts_status status = add_host_arguments(&trip, f, args, rets);
    if (status == TS_OK)
        status = ts_hop(&inner, f->table->slot[TS_KEY_CPU]);
    if (status == TS_OK)
        status = copy_back(&trip, f, rets);
    for (int i = 0; i < trip.ntensors; i++)
        if (!ts_is_none(trip.tensors[i]))
            ts_tensor_unref(trip.tensors[i]);
    for (int i = 0; i < trip.nmirrors; i++) {
        ts_storage_release(block[i].there);
        ts_storage_release(block[i].here);
    }
    if (block)
        ts_free(f->thread, block, bytes);
    return status;
}
