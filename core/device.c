/** @file device.c  Memory, copies, streams and events of devices, through their backends'
 *  structs. */
// SPDX-License-Identifier: MIT
#include "core/device.h"
#include "core/tensor.h"
#include "include/tessera/check.h"

#include <stdio.h>
#include <string.h>

_Atomic(const ts_backend *) ts_devices[16];
ts_device_counts ts_device_count_of[16];

#define NAME(key) [TS_KEY_##key] = #key
_Atomic(const char *) ts_key_names[TS_KEY_COUNT] = {
    NAME(CPU), NAME(CUDA), NAME(LAZY), NAME(META),
    NAME(AUTOGRAD), NAME(TRACING), NAME(AUTOCAST), NAME(ABSENT),
};

const char *ts_key_name(ts_key key)
{
    const char *name =
        key < TS_KEY_COUNT ? atomic_load_explicit(&ts_key_names[key], memory_order_acquire) : NULL;
    return name ? name : "?";
}

const char *ts_device_name(ts_device device)
{
    static _Thread_local char ring[8][32];
    static _Thread_local unsigned next;
    char *out = ring[next++ & 7];
    const char *key = ts_key_name(device.backend);
    size_t n = 0;
    for (; key[n] && n < 24; n++)
        out[n] = (char)(key[n] >= 'A' && key[n] <= 'Z' ? key[n] + 32 : key[n]);
    out[n] = 0;
    if ((device.backend != TS_KEY_CPU && device.backend != TS_KEY_META) || device.index)
        snprintf(out + n, sizeof ring[0] - n, ":%d", device.index);
    return out;
}

ts_device ts_default_device(void) { return ts_thread_self()->device; }

ts_status ts_set_default_device(ts_device device)
{
    if (device.backend > 15 || device.backend == TS_KEY_LAZY ||
        strcmp(ts_key_name(device.backend), "?") == 0)
        return ts_error_set(TS_ERR_DEVICE,
                            "set_default_device: argument 'device': expected a known backend, got "
                            "key %d", device.backend);
    /* without a ts_backend the key's devices cannot be counted; its kernels check the device */
    if (ts_device_count(device.backend))
        TS_TRY(ts_device_check(device, "set_default_device"));
    ts_thread_self()->device = device;
    return TS_OK;
}

static unsigned failures(void) { return ts_thread_self()->error->count; }

static ts_status reported_since(unsigned before, ts_status status, ts_device device,
                                const char *what)
{
    if (status == TS_OK || failures() != before)
        return status;
    return ts_error_set(status, "%s failed on %s", what, ts_device_name(device));
}

/** The status of a call of a backend. If it is a failure that the backend did not record, records
 *  it: "WHAT failed on DEVICE". */
#define REPORTED(call, device, what)                                                               \
    __extension__({                                                                                \
        unsigned before_ = failures();                                                             \
        ts_status status_ = (call);                                                                \
        reported_since(before_, status_, device, what);                                            \
    })

/** True if the backend has recorded the loss of a device since failures() was `before`. */
static bool is_lost(unsigned before)
{
    return failures() != before && ts_error_code() == TS_ERR_DEVICE;
}

/* ----------------------------------------------------------------------------- devices ---- */

int ts_device_count(uint8_t backend)
{
    if (backend == TS_KEY_CPU || backend == TS_KEY_META)
        return 1;
    const ts_backend *b = ts_backend_of((ts_device){backend, 0});
    int n = b ? b->device_count ? b->device_count(b->state) : 1 : 0;
    return n < 0 ? 0 : n > 256 ? 256 : n;
}

/* Number of devices that each backend last returned. Devices do not disappear, so device_count() is
 * called again only for an index that is not below this number. */
static _Atomic int counted[16];

ts_status ts_device_check(ts_device device, const char *what)
{
    if (TS_LIKELY(device.backend < 16 &&
                  device.index <
                      atomic_load_explicit(&counted[device.backend], memory_order_relaxed)))
        return TS_OK;
    int count = ts_device_count(device.backend);
    if (device.backend < 16)
        atomic_store_explicit(&counted[device.backend], count, memory_order_relaxed);
    if (device.index < count)
        return TS_OK;
    const char *backend = ts_key_name(device.backend), *first, *why = NULL, *hint = NULL;
    first = ts_device_name((ts_device){device.backend, 0});
    if (count == 1)
        return ts_error_set(TS_ERR_DEVICE,
                            "%s: argument 'device': expected %s, the only one, got %s", what,
                            first, ts_device_name(device));
    if (count)
        return ts_error_set(TS_ERR_DEVICE,
                            "%s: argument 'device': expected a device from %s to %s, got %s", what,
                            first,
                            ts_device_name((ts_device){device.backend, (uint8_t)(count - 1)}),
                            ts_device_name(device));
    const ts_backend *b = ts_backend_of(device);
    if (b) { /* the backend may record why it has no device */
        ts_error_clear();
        b->device_count(b->state);
        if (ts_error_code() != TS_OK)
            why = ts_error_message(), hint = ts_error_hint();
        return ts_error_set_hint(TS_ERR_DEVICE, hint,
                                 "%s: argument 'device': there is no %s device%s%s", what, backend,
                                 why ? ": " : "", why ? why : "");
    }
    if (device.backend > 15 || device.backend == TS_KEY_LAZY || strcmp(backend, "?") == 0)
        return ts_error_set_hint(TS_ERR_DEVICE,
                                 "load a backend with ts_backend_load(), and use its key",
                                 "%s: argument 'device': expected the device of a known backend, "
                                 "got backend number %d",
                                 what, device.backend);
    return ts_error_set_hint(TS_ERR_DEVICE,
                             "load its backend with ts_backend_open() or ts_backend_load()",
                             "%s: argument 'device': expected a device with a loaded backend, got "
                             "%s", what, ts_device_name(device));
}

const char *ts_move_hint(ts_device got, ts_device expected)
{
    return got.backend == TS_KEY_META || expected.backend == TS_KEY_META
               ? "META tensors have no values: create both tensors on META, or neither"
               : "move it with ts_to_device()";
}

ts_status ts_device_memory_stats(ts_device device, ts_memory_stats *stats)
{
    TS_TRY(ts_device_check(device, "device_memory_stats"));
    TS_TRY(TS_CHECK_POINTERS(stats));
    const ts_backend *b = ts_backend_of(device);
    if (device.backend == TS_KEY_CPU) {
        *stats = ts_memory_get_stats();
        return TS_OK;
    }
    if (!b || !b->memory_stats)
        return ts_error_set(TS_ERR_UNSUPPORTED, "device_memory_stats: %s has no memory statistics",
                            ts_device_name(device));
    return REPORTED(b->memory_stats(b->state, device.index, stats), device, "device_memory_stats");
}

ts_status ts_device_memory_reset_peak(ts_device device)
{
    TS_TRY(ts_device_check(device, "device_memory_reset_peak"));
    const ts_backend *b = ts_backend_of(device);
    if (device.backend == TS_KEY_CPU) {
        ts_memory_reset_peak();
        return TS_OK;
    }
    if (!b || !b->memory_reset_peak)
        return ts_error_set(TS_ERR_UNSUPPORTED,
                            "device_memory_reset_peak: the backend of %s cannot reset its peak",
                            ts_device_name(device));
    return REPORTED(b->memory_reset_peak(b->state, device.index), device,
                    "device_memory_reset_peak");
}

/* ------------------------------------------------------------------------------ memory ---- */

/** Allocates from the thread's workspace. NULL with an error if it is full, or without an error if
 *  it only measures. */
static void *take_from_workspace(ts_workspace *g, int64_t bytes, const char *what)
{
    enum { ROUND = 512 };
    int64_t at = g->used;
    g->used += (bytes + ROUND - 1) / ROUND * ROUND;
    g->most = ts_max64(g->most, g->used);
    g->live++;
    if (!g->base || g->used <= g->bytes)
        return g->base ? g->base + at : NULL;
    g->live--;
    ts_error_set(TS_ERR_MEMORY, "%s of %lld bytes: a captured call needs more than was measured",
                 what, (long long)bytes);
    return NULL;
}

void *ts_device_allocate(ts_device device, int64_t bytes, const char *what)
{
    const ts_backend *b = ts_backend_of(device);
    ts_workspace *g = ts_tls.workspace;
    if (TS_UNLIKELY(g != NULL) && ts_same_device(g->device, device)) {
        void *taken = take_from_workspace(g, bytes, what);
        if (g->base)
            return taken;
    }
    unsigned before = failures();
    void *data = b->allocate(b->state, device.index, bytes, ts_stream_current(device));
    if (!data && !is_lost(before)) {
        ts_memory_stats stats;
        char held[80] = "";
        if (b->memory_stats && b->memory_stats(b->state, device.index, &stats) == TS_OK)
            snprintf(held, sizeof held, " (in use %lld, reserved %lld)", (long long)stats.in_use,
                     (long long)stats.reserved);
        ts_error_set_hint(TS_ERR_MEMORY, "release tensors or use a smaller batch",
                          "out of memory on %s: %s needs %lld bytes%s", ts_device_name(device),
                          what, (long long)bytes, held);
    }
    return data;
}

void ts_device_release(ts_device device, void *data, int64_t bytes)
{
    const ts_backend *b = ts_backend_of(device);
    ts_workspace *g = ts_tls.workspace;
    if (TS_UNLIKELY(g != NULL) && ts_same_device(g->device, device)) {
        g->live--;
        if (g->base && (char *)data >= g->base && (char *)data < g->base + g->bytes)
            return;
    }
    b->free(b->state, device.index, data, bytes);
}

/** Copies in pieces through the host, between devices of two backends or of a backend without
 *  copy_between(). */
static ts_status copy_through_host(ts_device to, char *data, ts_device from, const char *source,
                                   int64_t bytes)
{
    enum { PIECE = 1 << 20 };
    ts_thread *thread = ts_thread_self();
    size_t piece = (size_t)ts_min64(bytes, PIECE);
    char *host = ts_alloc(thread, piece);
    if (!host)
        return ts_error_memory("a copy between devices", (int64_t)piece);
    ts_status status = TS_OK;
    for (int64_t at = 0; at < bytes && status == TS_OK; at += PIECE) {
        int64_t n = ts_min64(bytes - at, PIECE);
        status = ts_device_copy(TS_DEVICE_CPU, host, from, source + at, n);
        if (status == TS_OK)
            status = ts_device_copy(to, data + at, TS_DEVICE_CPU, host, n);
    }
    ts_free(thread, host, piece);
    return status;
}

ts_status ts_device_copy(ts_device to, void *data, ts_device from, const void *source,
                         int64_t bytes)
{
    if (bytes <= 0)
        return TS_OK;
    const ts_backend *dst = ts_backend_of(to), *src = ts_backend_of(from);
    if ((!dst && to.backend != TS_KEY_CPU) || (!src && from.backend != TS_KEY_CPU))
        return ts_error_set(TS_ERR_DEVICE,
                            "copy: expected the CPU or a device with a loaded backend, got %s",
                            ts_device_name(dst || to.backend == TS_KEY_CPU ? from : to));
    if (!dst && !src) {
        memcpy(data, source, (size_t)bytes);
        return TS_OK;
    }
    if (!ts_same_device(to, from) && ts_is_captured(&ts_tls))
        return ts_error_set(TS_ERR_UNSUPPORTED, "a copy from %s to %s cannot be captured",
                            ts_device_name(from), ts_device_name(to));
    if (!src) {
        atomic_fetch_add_explicit(&ts_device_count_of[to.backend].bytes_in, (uint64_t)bytes,
                                  memory_order_relaxed);
        return REPORTED(
            dst->copy_in(dst->state, to.index, data, source, bytes, ts_stream_current(to)), to,
            "copy_in");
    }
    if (!dst) {
        atomic_fetch_add_explicit(&ts_device_count_of[from.backend].bytes_out, (uint64_t)bytes,
                                  memory_order_relaxed);
        ts_stream *stream = ts_stream_current(from);
        TS_TRY(REPORTED(src->copy_out(src->state, from.index, data, source, bytes, stream), from,
                        "copy_out"));
        return ts_stream_synchronize(from, stream);
    }
    if (ts_same_device(to, from))
        return REPORTED(
            dst->copy_within(dst->state, to.index, data, source, bytes, ts_stream_current(to)), to,
            "copy_within");
    if (dst != src || !dst->copy_between)
        return copy_through_host(to, data, from, source, bytes);
    return REPORTED(dst->copy_between(dst->state, to.index, data, from.index, source, bytes,
                                      ts_stream_current(to)),
                    to, "copy_between");
}

static void pinned_release(void *payload, void *data, int64_t bytes)
{
    uintptr_t packed = (uintptr_t)payload;
    ts_device device = {(uint8_t)(packed >> 8), (uint8_t)packed};
    const ts_backend *b = ts_backend_of(device);
    b->host_free(b->state, device.index, data, bytes);
}

ts_tensor *ts_empty_pinned(const int64_t *sizes, int ndim, ts_dtype dtype, ts_device device)
{
    TS_TRY_NULL(TS_CHECK_LIST(sizes, ndim));
    TS_TRY_NULL(ts_device_check(device, "empty_pinned"));
    ts_thread *thread = ts_thread_self();
    int64_t numel, bytes;
    if (!ts_layout_ok("empty_pinned", __builtin_return_address(0), dtype, sizes, ndim, &numel,
                      &bytes))
        return NULL;
    const ts_backend *b = ts_backend_of(device);
    if (!bytes || !b || !b->host_allocate) {
        ts_tensor *t = ts_tensor_new(thread, dtype, sizes, ndim, TS_DEVICE_CPU);
        return t ? ts_scope_adopt(thread, t) : NULL;
    }
    unsigned before = failures();
    void *data = b->host_allocate(b->state, device.index, bytes);
    if (!data) {
        if (!is_lost(before))
            ts_error_memory("a tensor in pinned memory", bytes);
        return NULL;
    }
    void *payload = (void *)((uintptr_t)device.backend << 8 | device.index);
    ts_tensor *t = ts_from_blob(data, dtype, sizes, ndim, pinned_release, payload);
    if (!t)
        b->host_free(b->state, device.index, data, bytes);
    return t;
}

/* ----------------------------------------------------------------------------- streams ---- */

/* The thread's current streams, except default streams. Few devices are in use at a time. */
enum { MOST = 8 };
static _Thread_local struct {
    ts_device device;
    ts_stream *stream; /* NULL: the entry is free */
} current[MOST];
static _Thread_local int used; /* entries starting at this index are free */

ts_stream *ts_stream_current(ts_device device)
{
    for (int i = 0; i < used; i++)
        if (current[i].stream && ts_same_device(current[i].device, device))
            return current[i].stream;
    return NULL;
}

ts_status ts_stream_use(ts_device device, ts_stream *stream)
{
    TS_TRY(ts_device_check(device, "stream_use"));
    int at = -1;
    for (int i = 0; i < MOST; i++) {
        if (current[i].stream && ts_same_device(current[i].device, device)) {
            at = i;
            break;
        }
        if (!current[i].stream && at < 0)
            at = i;
    }
    if (at < 0 && stream)
        return ts_error_set(TS_ERR_STATE,
                            "stream_use: the thread already uses streams of %d devices",
                            MOST);
    if (at >= 0) {
        current[at].device = device;
        current[at].stream = stream;
        used = at < used ? used : at + 1;
        while (used && !current[used - 1].stream)
            used--;
    }
    return TS_OK;
}

/** The error after a backend returned NULL: the loss of the device, if recorded since failures()
 *  was `before`, or out of memory. */
static ts_status fail_allocation(unsigned before, ts_device device, const char *what)
{
    if (is_lost(before))
        return TS_ERR_DEVICE;
    return ts_error_set(TS_ERR_MEMORY, "%s_new: out of memory, or %s has no further %s", what,
                        ts_device_name(device), what);
}

ts_status ts_stream_new(ts_device device, ts_stream **stream)
{
    TS_TRY(ts_device_check(device, "stream_new"));
    TS_TRY(TS_CHECK_POINTERS(stream));
    const ts_backend *b = ts_backend_of(device);
    unsigned before = failures();
    *stream = NULL;
    if (b && b->stream_new && !(*stream = b->stream_new(b->state, device.index)))
        return fail_allocation(before, device, "stream");
    return TS_OK;
}

void ts_stream_free(ts_device device, ts_stream *stream)
{
    const ts_backend *b = ts_backend_of(device);
    if (!stream || !b || !b->stream_free)
        return;
    if (ts_stream_current(device) == stream)
        ts_stream_use(device, NULL);
    b->stream_free(b->state, device.index, stream);
}

ts_status ts_stream_synchronize(ts_device device, ts_stream *stream)
{
    TS_TRY(ts_device_check(device, "stream_synchronize"));
    const ts_backend *b = ts_backend_of(device);
    if (ts_is_captured(&ts_tls))
        return ts_error_set(TS_ERR_UNSUPPORTED, "waiting for %s cannot be captured",
                            ts_device_name(device));
    return b && b->synchronize
               ? REPORTED(b->synchronize(b->state, device.index, stream), device, "synchronize")
               : TS_OK;
}

ts_status ts_synchronize(ts_device device)
{
    TS_TRY(ts_device_check(device, "synchronize"));
    const ts_backend *b = ts_backend_of(device);
    if (!b || !b->synchronize_device)
        return ts_stream_synchronize(device, NULL);
    if (ts_is_captured(&ts_tls))
        return ts_error_set(TS_ERR_UNSUPPORTED, "waiting for %s cannot be captured",
                            ts_device_name(device));
    return REPORTED(b->synchronize_device(b->state, device.index), device, "synchronize_device");
}

ts_status ts_record_stream(ts_tensor *t)
{
    TS_TRY(TS_CHECK_TENSORS(t));
    TS_TRY(ts_resolve(t)); /* in a compiled function the calls so far run, and t gets memory */
    ts_device device = t->storage->device;
    const ts_backend *b = ts_backend_of(device);
    if (!b || !b->record_stream || !t->storage->data)
        return TS_OK;
    return REPORTED(b->record_stream(b->state, device.index, t->storage->data, t->storage->bytes,
                                     ts_stream_current(device)),
                    device, "record_stream");
}

/* ------------------------------------------------------------------------------ events ---- */

ts_status ts_event_new(ts_device device, ts_event **event)
{
    TS_TRY(ts_device_check(device, "event_new"));
    TS_TRY(TS_CHECK_POINTERS(event));
    const ts_backend *b = ts_backend_of(device);
    unsigned before = failures();
    *event = NULL;
    if (b && b->event_new && !(*event = b->event_new(b->state, device.index)))
        return fail_allocation(before, device, "event");
    return TS_OK;
}

void ts_event_free(ts_device device, ts_event *event)
{
    const ts_backend *b = ts_backend_of(device);
    if (event && b && b->event_free)
        b->event_free(b->state, device.index, event);
}

/** An error if event is not NULL and the device has no events. */
static ts_status check_event(ts_device device, const ts_backend *b, const ts_event *event,
                             const char *op)
{
    TS_TRY(ts_device_check(device, op));
    if (!event || (b && b->event_new))
        return TS_OK;
    return ts_fail_op(TS_ERR_VALUE, op, NULL, NULL, "argument 'event': expected NULL, as %s has no "
                      "events, got one of another device", ts_device_name(device));
}

ts_status ts_event_record(ts_device device, ts_event *event)
{
    const ts_backend *b = ts_backend_of(device);
    TS_TRY(check_event(device, b, event, "event_record"));
    if (!event)
        return TS_OK;
    return REPORTED(b->event_record(b->state, device.index, event, ts_stream_current(device)),
                    device, "event_record");
}

ts_status ts_event_wait(ts_device device, ts_event *event)
{
    const ts_backend *b = ts_backend_of(device);
    TS_TRY(check_event(device, b, event, "event_wait"));
    if (!event)
        return TS_OK;
    return REPORTED(b->event_wait(b->state, device.index, event, ts_stream_current(device)), device,
                    "event_wait");
}

ts_status ts_event_synchronize(ts_device device, ts_event *event)
{
    const ts_backend *b = ts_backend_of(device);
    TS_TRY(check_event(device, b, event, "event_synchronize"));
    return event ? REPORTED(b->event_synchronize(b->state, device.index, event), device,
                            "event_synchronize")
                 : TS_OK;
}

ts_status ts_event_elapsed(ts_device device, ts_event *start, ts_event *end, double *ms)
{
    TS_TRY(ts_device_check(device, "event_elapsed"));
    const ts_backend *b = ts_backend_of(device);
    TS_TRY(TS_CHECK_POINTERS(ms));
    if (!b || !b->event_elapsed || !start || !end) /* a device without events uses NULL events */
        return ts_error_set(TS_ERR_UNSUPPORTED,
                            "event_elapsed: expected two events of a device that measures, got "
                            "%s and %s of %s",
                            start ? "an event" : "NULL", end ? "an event" : "NULL",
                            ts_device_name(device));
    return REPORTED(b->event_elapsed(b->state, device.index, start, end, ms), device,
                    "event_elapsed");
}

/* ------------------------------------------------------------------------- determinism ---- */

static _Atomic bool deterministic;

bool ts_deterministic(void) { return atomic_load(&deterministic); }

ts_status ts_device_pass_deterministic(const ts_backend *b)
{
    return b->set_deterministic ? b->set_deterministic(b->state, ts_deterministic()) : TS_OK;
}

ts_status ts_set_deterministic(bool on)
{
    atomic_store(&deterministic, on);
    for (uint8_t k = 0; k < 16; k++) {
        const ts_backend *b = ts_backend_of((ts_device){k, 0});
        if (b)
            TS_TRY(ts_device_pass_deterministic(b));
    }
    return TS_OK;
}
