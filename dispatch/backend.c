/** @file backend.c  Registers backends other than the CPU, loads their libraries, and moves tensors
 * between devices. */
// SPDX-License-Identifier: MIT
#include "core/device.h"
#include "core/files.h"
#include "dispatch/device_times.h"
#include "dispatch/store.h"
#include "include/tessera/check.h"

#include <dlfcn.h>
#include <string.h>

/* --------------------------------------------------------------------------- transfers ---- */

ts_status ts_transfer(ts_frame *f)
{
    ts_tensor *from = f->args[0].t, *to = f->rets[0].t, *packed = NULL, *landed = NULL;
    ts_status status = TS_OK;
    bool alike = ts_is_dense_last(from) && ts_is_dense_last(to); /* the same bytes in memory */
    bool plain = alike || (from->flags & to->flags & TS_TENSOR_CONTIGUOUS);
    if (!plain && ts_same_device(from->storage->device, to->storage->device)) {
        f->plan->delivered = 1; /* copy_into() increments the version of `to` */
        return ts_above.copy_into(to, from, f->op);
    }
    if (!(from->flags & TS_TENSOR_CONTIGUOUS) && !alike) {
        if (!(packed = ts_above.convert(from, (ts_dtype)from->dtype)))
            return ts_checked(f, ts_error_code());
        from = packed;
    }
    if (!(to->flags & TS_TENSOR_CONTIGUOUS) && !alike) {
        landed =
            ts_tensor_new(f->thread, (ts_dtype)to->dtype, to->sizes, to->ndim, to->storage->device);
        status = landed ? TS_OK : ts_error_code();
        f->plan->delivered = 1; /* copy_into() below increments the version of `to` */
    }
    ts_tensor *target = landed ? landed : to;
    if (status == TS_OK)
        status = ts_device_copy(target->storage->device, target->data, from->storage->device,
                                from->data, from->numel * ts_dtype_sizes[from->dtype]);
    if (status == TS_OK && landed)
        status = ts_above.copy_into(to, landed, f->op);
    if (packed)
        ts_tensor_unref(packed);
    if (landed)
        ts_tensor_unref(landed);
    return status;
}

/* ------------------------------------------------------------------------ registration ---- */

/** Checks a backend's struct without calling its functions. what: prefix of error messages, such as
 *  "backend_load: 'path'". */
static ts_status check(const ts_backend *b, const char *what)
{
    if (!b)
        return ts_error_set(TS_ERR_FORMAT, "%s: expected a backend, got NULL", what);
    if (b->abi_version != TS_BACKEND_ABI)
        return ts_error_set_hint(TS_ERR_FORMAT, "build it against the headers of this library",
                                 "%s: expected a backend of ABI %u, got ABI %u", what,
                                 TS_BACKEND_ABI, b->abi_version);
    if (b->struct_size != sizeof *b)
        return ts_error_set_hint(TS_ERR_FORMAT, "build it against the headers of this library",
                                 "%s: expected a struct of %zu bytes, got %u", what, sizeof *b,
                                 b->struct_size);
    const char *lacks = !b->name                                 ? "name"
                        : !b->allocate                           ? "allocate"
                        : !b->free                               ? "free"
                        : !b->copy_in                            ? "copy_in"
                        : !b->copy_out                           ? "copy_out"
                        : !b->copy_within                        ? "copy_within"
                        : b->host_allocate && !b->host_free      ? "host_free"
                        : b->stream_new && !b->stream_free       ? "stream_free"
                        : b->stream_new && !b->synchronize       ? "synchronize"
                        : b->event_new && !b->event_free         ? "event_free"
                        : b->event_new && !b->event_record       ? "event_record"
                        : b->event_new && !b->event_wait         ? "event_wait"
                        : b->event_new && !b->event_synchronize  ? "event_synchronize"
                        : b->capture_begin && !b->capture_part   ? "capture_part"
                        : b->capture_begin && !b->capture_end    ? "capture_end"
                        : b->capture_begin && !b->capture_replay ? "capture_replay"
                        : b->capture_begin && !b->capture_free   ? "capture_free"
                        : b->group_takes && !b->group_run        ? "group_run"
                        : b->profile_begin && !b->profile_tag    ? "profile_tag"
                        : b->profile_begin && !b->profile_end    ? "profile_end"
                                                                 : NULL;
    if (lacks)
        return ts_error_set(TS_ERR_FORMAT, "%s: the slot '%s' is required and NULL", what, lacks);
    for (int k = 0; k < 16; k++)
        if (ts_reg.backends[k] == b)
            return ts_error_set(TS_ERR_REGISTRY, "%s: the backend '%s' is loaded already", what,
                                b->name);
    return TS_OK;
}

/** Makes all of a backend's registrations and writes its key to *out. Call it in a transaction. */
static ts_status add(const ts_backend *b, const char *what, ts_key *out)
{
    ts_key key = TS_KEY_CUDA;
    TS_TRY(check(b, what));
    if (strcmp(b->name, "CUDA") != 0 || ts_reg.backends[TS_KEY_CUDA])
        TS_TRY(ts_key_take(what, b->name, TS_KEY_CUDA + 1, TS_KEY_LAZY - 1,
                           "the range of run-time backends", &key));
    ts_reg.backends[key] = b;
    ts_tables_touch(&ts_fallbacks);
    TS_TRY(ts_kernel_add("to_device", key, ts_transfer, (ts_accepts){.takes = TS_TAKES_STRIDES},
                         NULL, NULL));
    if (b->flags & TS_BACKEND_CPU_FALLBACK)
        TS_TRY(ts_register_fallback(key, ts_round_trip, NULL));
    if (b->flags & TS_BACKEND_WHOLE_OPS)
        TS_TRY(ts_key_prefer_fallback(key, true));
    ts_error_clear();
    ts_status status = b->install ? b->install(b->state, key) : TS_OK;
    if (status == TS_OK)
        status = ts_kernels_have_ops(b->name);
    if (status == TS_OK)
        status = ts_device_pass_deterministic(b);
    if (status != TS_OK && ts_error_code() == TS_OK)
        return ts_error_set(status, "%s: install failed without recording an error (%s)", what,
                            ts_status_name(status));
    if (status != TS_OK)
        return ts_error_set_hint(status, ts_error_hint(), "%s: %s", what, ts_error_message());
    *out = key;
    return TS_OK;
}

ts_status ts_register_backend(const ts_backend *backend, ts_key *key)
{
    ts_key taken = TS_KEY_INVALID;
    TS_TRY(TS_CHECK_POINTERS(backend));
    ts_registry_begin();
    ts_status status = ts_registry_end(add(backend, "register_backend", &taken));
    if (status == TS_OK)
        ts_device_times_join(backend);
    if (status == TS_OK && key)
        *key = taken;
    return status;
}

/* ------------------------------------------------------------------------------ loading ---- */

static ts_status add_library(void *library, const char *what, ts_key *key)
{
    void *symbol = dlsym(library, TS_BACKEND_ENTRY_NAME);
    if (!symbol)
        return ts_error_set_hint(TS_ERR_FORMAT, "define it with TS_BACKEND_ENTRY()",
                                 "%s: exports no '%s'", what, TS_BACKEND_ENTRY_NAME);
    ts_backend_entry_fn entry = (ts_backend_entry_fn)symbol;
    return add(entry(), what, key);
}

ts_status ts_backend_load(const char *path, ts_key *key)
{
    TS_TRY(TS_CHECK_POINTERS(path));
    if (strchr(path, '/')) { /* else the dynamic linker searches for it */
        int fd;
        int64_t bytes;
        /* refuses other kinds of files; on a FIFO, dlopen() would wait */
        TS_TRY(ts_file_open("backend_load", path, &fd, &bytes));
        ts_file_close(fd);
    }
    char what[400];
    snprintf(what, sizeof what, "backend_load: '%s'", path);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *why = dlerror();
        return ts_error_set_hint(
            TS_ERR_IO, "give a path with a slash, or a name that the dynamic linker finds",
            "%s: cannot be opened: %s", what, why ? why : "no reason was given");
    }
    ts_key taken = TS_KEY_INVALID;
    ts_registry_begin();
    ts_status status = ts_registry_end(add_library(library, what, &taken));
    if (status != TS_OK) {
        dlclose(library); /* the registry has no entry of the backend any more */
        return status;
    }
    ts_device_times_join(ts_backend_of((ts_device){taken, 0}));
    if (key)
        *key = taken;
    return TS_OK;
}

ts_status ts_backend_get_stats(ts_key key, ts_backend_stats *stats)
{
    TS_TRY(TS_CHECK_POINTERS(stats));
    if (key >= 16 || !ts_backend_of((ts_device){key, 0}))
        return ts_error_set(TS_ERR_DEVICE,
                            "backend_get_stats: argument 'key': expected the key of a backend, got "
                            "%d",
                            key);
    ts_device_counts *c = &ts_device_count_of[key];
    *stats = (ts_backend_stats){atomic_load(&c->round_trips), atomic_load(&c->bytes_in),
                                atomic_load(&c->bytes_out)};
    return TS_OK;
}
