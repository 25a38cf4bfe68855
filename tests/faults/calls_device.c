/** @file calls_device.c  Out-of-memory sweeps: backends, streams, events and pinned memory. */
// SPDX-License-Identifier: MIT
#include "tests/dispatch/offset.h"
#include "tests/faults/calls.h"

/* ------------------------------------------------ a device whose every answer takes memory ---- */

static ts_status answer(const char *what)
{
    void *block = malloc(32);
    free(block);
    return block ? TS_OK : ts_error_set(TS_ERR_MEMORY, "%s: out of memory on the device", what);
}

static ts_stream *stream_new(void *state, int device)
{
    (void)state, (void)device;
    return malloc(32);
}
static void stream_free(void *state, int device, ts_stream *stream)
{
    (void)state, (void)device;
    free(stream);
}
static ts_event *event_new(void *state, int device)
{
    (void)state, (void)device;
    return malloc(32);
}
static void event_free(void *state, int device, ts_event *event)
{
    (void)state, (void)device;
    free(event);
}
static ts_status synchronize(void *state, int device, ts_stream *stream)
{
    (void)state, (void)device, (void)stream;
    return answer("synchronize");
}
static ts_status synchronize_device(void *state, int device)
{
    (void)state, (void)device;
    return answer("synchronize_device");
}
static ts_status event_record(void *state, int device, ts_event *event, ts_stream *stream)
{
    (void)state, (void)device, (void)event, (void)stream;
    return answer("event_record");
}
static ts_status event_wait(void *state, int device, ts_event *event, ts_stream *stream)
{
    (void)state, (void)device, (void)event, (void)stream;
    return answer("event_wait");
}
static ts_status event_synchronize(void *state, int device, ts_event *event)
{
    (void)state, (void)device, (void)event;
    return answer("event_synchronize");
}
static ts_status event_elapsed(void *state, int device, ts_event *start, ts_event *end, double *ms)
{
    (void)state, (void)device, (void)start, (void)end;
    TS_TRY(answer("event_elapsed"));
    *ms = 1.5;
    return TS_OK;
}
static ts_status record_stream(void *state, int device, void *data, int64_t bytes,
                               ts_stream *stream)
{
    (void)state, (void)device, (void)data, (void)bytes, (void)stream;
    return answer("record_stream");
}
static void *host_allocate(void *state, int device, int64_t bytes)
{
    (void)state, (void)device;
    return malloc((size_t)bytes);
}
static void host_free(void *state, int device, void *data, int64_t bytes)
{
    (void)state, (void)device, (void)bytes;
    free(data);
}
static ts_status set_deterministic(void *state, bool on)
{
    (void)state, (void)on;
    return answer("set_deterministic");
}
static ts_status memory_stats(void *state, int device, ts_memory_stats *stats)
{
    (void)device;
    *stats = (ts_memory_stats){.in_use = ((offset_state *)state)->live};
    return answer("memory_stats");
}
static ts_status memory_reset_peak(void *state, int device)
{
    (void)state, (void)device;
    return answer("memory_reset_peak");
}

/** -a, of packed f32. */
static ts_status negate(ts_frame *frame)
{
    const float *a = from_handle(ts_kernel_data(frame->args[0].t));
    float *y = from_handle(ts_kernel_data(frame->rets[0].t));
    for (int64_t i = 0; i < ts_numel(frame->rets[0].t); i++)
        y[i] = -a[i];
    return TS_OK;
}
static ts_status install(void *state, ts_key key)
{
    (void)state;
    ts_kernel_opts opts = {.size = sizeof opts, .dtypes = TS_DTYPE_BIT(TS_F32)};
    return ts_register_kernel_ex("neg", key, negate, &opts, NULL);
}

static offset_state memory = {.devices = 1};
static const ts_backend backend = {
    OFFSET_BACKEND("FAULTY", TS_BACKEND_CPU_FALLBACK, &memory), .install = install,
    .host_allocate = host_allocate, .host_free = host_free,
    .synchronize = synchronize, .synchronize_device = synchronize_device,
    .stream_new = stream_new, .stream_free = stream_free,
    .event_new = event_new, .event_free = event_free, .event_record = event_record,
    .event_wait = event_wait,
    .event_synchronize = event_synchronize, .event_elapsed = event_elapsed,
    .record_stream = record_stream, .set_deterministic = set_deterministic,
    .memory_stats = memory_stats, .memory_reset_peak = memory_reset_peak,
};

/* ------------------------------------------------------------------------------- sweeps ---- */

/* Registration allocates a table for each op. FAULT_SPARSE: these allocations are all alike. */
CALLS_WITH(backends, FAULT_FRESH | FAULT_KEEPS | FAULT_SPARSE, .loop = 0)
{
    ts_device device = {0, 0};
    FAULTY(f, ts_register_backend(&backend, &device.backend));
    TS_SCOPE;
    ts_tensor *x = ts_arange(0, 4, 1, TS_F32), *y = ts_neg(ts_to_device(x, device));
    fault_see(f, ts_to_device(y, TS_DEVICE_CPU));
}

/** Sweeps calls on a device with streams, or on the CPU, which has none. */
static void use_device(fault_try *f, ts_device device)
{
    TS_SCOPE;
    bool streams = device.backend != TS_KEY_CPU;
    ts_stream *stream = NULL;
    ts_event *start = NULL, *end = NULL;
    ts_memory_stats stats;
    ts_tensor *x = ts_arange(0, 4, 1, TS_F32), *there = ts_to_device(x, device);
    ts_tensor *y = NULL, *sum = NULL, *back = NULL, *host = NULL;
    double ms = 0;
    fault_watch(f, x);
    QUIET(f, ts_device_count(device.backend));
    FAULTY(f, ts_device_memory_stats(device, &stats));
    FAULTY(f, ts_device_memory_reset_peak(device));
    FAULTY(f, ts_stream_new(device, &stream));
    FAULTY(f, ts_stream_use(device, stream));
    QUIET(f, ts_stream_current(device));
    FAULTY(f, ts_event_new(device, &start));
    FAULTY(f, ts_event_new(device, &end));
    FAULTY(f, ts_event_record(device, start));
    FAULTY(f, y = ts_neg(there));
    FAULTY(f, sum = ts_add(y, y)); /* no kernel: a round trip over the CPU */
    FAULTY(f, ts_record_stream(sum));
    FAULTY(f, ts_event_record(device, end));
    FAULTY(f, ts_event_wait(device, end));
    FAULTY(f, ts_event_synchronize(device, end));
    if (streams)
        FAULTY(f, ts_event_elapsed(device, start, end, &ms));
    fault_see_number(f, ms);
    FAULTY(f, ts_stream_synchronize(device, stream));
    FAULTY(f, ts_synchronize(device));
    FAULTY(f, back = ts_to_device(sum, TS_DEVICE_CPU));
    fault_see(f, back);
    FAULTY(f, host = ts_empty_pinned(TS_SIZES(4), TS_F32, device));
    ck_assert_ptr_nonnull(ts_copy_(host, x));
    FAULTY(f, back = ts_to_device(host, device));
    QUIET(f, ts_event_free(device, start));
    QUIET(f, ts_event_free(device, end));
    QUIET(f, ts_stream_free(device, stream));
    FAULTY(f, ts_set_deterministic(true));
    QUIET(f, ts_deterministic());
    FAULTY(f, ts_set_deterministic(false));
}

CALLS(devices)
{
    static ts_device device;
    ts_backend_stats stats;
    if (!device.backend)
        ck_assert_int_eq(ts_register_backend(&backend, &device.backend), TS_OK);
    use_device(f, TS_DEVICE_CPU);
    fault_unwatch(f);
    use_device(f, device);
    QUIET(f, ts_backend_get_stats(device.backend, &stats));
}
