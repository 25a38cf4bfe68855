/** @file backend.c  The backend's function table (ts_backend): copies, streams, events, and
 * registration of the kernels of all families. */
// SPDX-License-Identifier: MIT
#include "backends/cuda/runtime/alloc.h"
#include "backends/cuda/runtime/capture.h"
#include "backends/cuda/runtime/cupti.h"
#include "backends/cuda/runtime/current.h"
#include "backends/cuda/product/epilogue.h"
#include "backends/cuda/fuse/fuse.h"
#include "backends/cuda/runtime/nvtx.h"
#include "include/tessera/program.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define FAMILY(name) extern const ts_cuda_family ts_cuda_##name;
#include "backends/cuda/runtime/families.h"
#undef FAMILY

static const ts_cuda_family *const all_families[] = {
#define FAMILY(name) &ts_cuda_##name,
#include "backends/cuda/runtime/families.h"
#undef FAMILY
};

static ts_status install(void *state, ts_key key)
{
    (void)state;
    for (size_t i = 0; i < sizeof all_families / sizeof *all_families; i++)
        for (int k = 0; k < all_families[i]->count; k++) {
            const ts_cuda_kernel *kernel = &all_families[i]->kernels[k];
            ts_kernel_opts opts = {.size = sizeof opts,
                                   .dtypes = kernel->dtypes,
                                   .strided = kernel->strided,
                                   .converts = kernel->converts,
                                   .layouts = kernel->layouts};
            TS_TRY(ts_register_kernel_ex(kernel->op, key, kernel->kernel, &opts, NULL));
        }
    return TS_OK;
}

static bool is_in(const ts_cuda_family *const *families, size_t count, ts_kernel kernel)
{
    for (size_t i = 0; i < count; i++)
        for (int k = 0; k < families[i]->count; k++)
            if (families[i]->kernels[k].kernel == kernel)
                return true;
    return false;
}
bool ts_cuda_owns(ts_kernel kernel)
{
    return is_in(all_families, sizeof all_families / sizeof *all_families, kernel);
}
bool ts_cuda_describes(ts_kernel kernel)
{
    static const ts_cuda_family *const families[] = {
        &ts_cuda_activation, &ts_cuda_compare, &ts_cuda_copy, &ts_cuda_factory,
        &ts_cuda_pointwise, &ts_cuda_random, &ts_cuda_unary};
    return is_in(families, sizeof families / sizeof *families, kernel);
}
bool ts_cuda_is_by_rows(ts_kernel kernel)
{
    static const ts_cuda_family *const families[] = {
        &ts_cuda_norm, &ts_cuda_reduce, &ts_cuda_softmax};
    return is_in(families, sizeof families / sizeof *families, kernel);
}

static int device_count(void *state)
{
    (void)state;
    return ts_cuda_count();
}

/* ------------------------------------------------------------------------------ copies ---- */

static ts_status copy(int device, void *to, const void *from, int64_t bytes, ts_stream *stream,
                      enum cudaMemcpyKind kind)
{
    const ts_cuda_device *d = ts_cuda_use(device);
    if (!d)
        return ts_error_code();
    return ts_cuda_check(cudaMemcpyAsync(to, from, (size_t)bytes, kind, ts_cuda_stream(d, stream)),
                         "cuda:%d: copy of %lld bytes", device, (long long)bytes);
}
static ts_status copy_in(void *state, int device, void *to, const void *from, int64_t bytes,
                         ts_stream *stream)
{
    (void)state;
    return copy(device, to, from, bytes, stream, cudaMemcpyHostToDevice);
}
static ts_status copy_out(void *state, int device, void *to, const void *from, int64_t bytes,
                          ts_stream *stream)
{
    (void)state;
    return copy(device, to, from, bytes, stream, cudaMemcpyDeviceToHost);
}
static ts_status copy_within(void *state, int device, void *to, const void *from, int64_t bytes,
                             ts_stream *stream)
{
    (void)state;
    return copy(device, to, from, bytes, stream, cudaMemcpyDeviceToDevice);
}
/** Makes later work on a stream wait for the work queued so far on `stream` of `device`. */
static ts_status follow(cudaStream_t later, int device, cudaStream_t stream)
{
    cudaEvent_t event = NULL;
    if (!ts_cuda_use(device))
        return ts_error_code();
    cudaError_t error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    if (error == cudaSuccess)
        error = cudaEventRecord(event, stream);
    if (error == cudaSuccess)
        error = cudaStreamWaitEvent(later, event, 0);
    if (event)
        cudaEventDestroy(event); /* CUDA releases it after it has completed */
    return ts_cuda_check(error, "cuda:%d: ordering streams", device);
}

/* Enables access of the current device to another one's memory, once per pair, so that copies need
 * not go through the host. */
static void enable_peer_access(int device, int other)
{
    static atomic_bool asked[TS_CUDA_DEVICES][TS_CUDA_DEVICES];
    int can = 0;
    if (atomic_exchange(&asked[device][other], true))
        return;
    if (cudaDeviceCanAccessPeer(&can, device, other) == cudaSuccess && can)
        cudaDeviceEnablePeerAccess(other, 0);
    cudaGetLastError(); /* without peer access, copies are only slower */
}

/* Both streams wait for each other: the source's stream also waits for the copy, because it may
 * reuse the source's memory as soon as the source is freed. */
static ts_status copy_between(void *state, int device, void *to, int from_device, const void *from,
                              int64_t bytes, ts_stream *stream)
{
    (void)state;
    const ts_cuda_device *source = ts_cuda_use(from_device);
    if (!source)
        return ts_error_code();
    cudaStream_t first =
        ts_cuda_stream(source, ts_stream_current((ts_device){TS_KEY_CUDA, (uint8_t)from_device}));
    const ts_cuda_device *d = ts_cuda_use(device);
    if (!d)
        return ts_error_code();
    cudaStream_t own = ts_cuda_stream(d, stream);
    TS_TRY(follow(own, from_device, first));
    if (!ts_cuda_use(device))
        return ts_error_code();
    enable_peer_access(device, from_device);
    TS_TRY(ts_cuda_check(cudaMemcpyPeerAsync(to, device, from, from_device, (size_t)bytes, own),
                         "cuda:%d: copy of %lld bytes from cuda:%d", device, (long long)bytes,
                         from_device));
    return follow(first, device, own);
}

static void *host_allocate(void *state, int device, int64_t bytes)
{
    (void)state;
    void *data = NULL;
    if (!ts_cuda_use(device) ||
        ts_cuda_check(cudaHostAlloc(&data, (size_t)bytes, cudaHostAllocPortable),
                      "pinned memory of %lld bytes", (long long)bytes) != TS_OK)
        return NULL;
    return data;
}
/** Makes a device current for functions that cannot return an error. False if the device is lost;
 * then there is nothing to free. */
static bool use_quietly(int device) { return !ts_cuda_is_lost(device) && ts_cuda_use(device); }

static void host_free(void *state, int device, void *data, int64_t bytes)
{
    (void)state, (void)bytes;
    ts_cuda_wait_for_all(); /* copies of any device may be using it */
    if (use_quietly(device))
        cudaFreeHost(data);
}

/* ------------------------------------------------------------------- streams and events ---- */

static ts_status synchronize(void *state, int device, ts_stream *stream)
{
    (void)state;
    ts_cuda_device *d = ts_cuda_use(device);
    if (!d)
        return ts_error_code();
    uint32_t end = ts_cuda_launches();
    TS_TRY(ts_cuda_check(cudaStreamSynchronize(ts_cuda_stream(d, stream)),
                         "cuda:%d: waiting for a stream", device));
    ts_cuda_waited(device, ts_cuda_stream(d, stream), end);
    return ts_cuda_check_fault(d);
}
static ts_status synchronize_device(void *state, int device)
{
    (void)state;
    ts_cuda_device *d = ts_cuda_use(device);
    if (!d)
        return ts_error_code();
    uint32_t end = ts_cuda_launches();
    TS_TRY(ts_cuda_check(ts_cuda_wait_for_device(true), "cuda:%d: waiting for the device", device));
    ts_cuda_waited(device, NULL, end);
    return ts_cuda_check_fault(d);
}
static ts_stream *stream_new(void *state, int device)
{
    (void)state;
    cudaStream_t stream = NULL;
    if (!ts_cuda_use(device) ||
        ts_cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
                      "a stream of cuda:%d", device) != TS_OK)
        return NULL;
    return (ts_stream *)stream;
}
static void stream_free(void *state, int device, ts_stream *stream)
{
    (void)state;
    if (use_quietly(device)) {
        cudaStreamSynchronize((cudaStream_t)stream);
        ts_cuda_stream_ended(device, (cudaStream_t)stream);
        cudaStreamDestroy((cudaStream_t)stream);
    }
}
static ts_event *event_new(void *state, int device)
{
    (void)state;
    cudaEvent_t event = NULL;
    if (!ts_cuda_use(device) ||
        ts_cuda_check(cudaEventCreate(&event), "an event of cuda:%d", device) != TS_OK)
        return NULL;
    return (ts_event *)event;
}
static void event_free(void *state, int device, ts_event *event)
{
    (void)state;
    if (use_quietly(device))
        cudaEventDestroy((cudaEvent_t)event);
}
static ts_status event_record(void *state, int device, ts_event *event, ts_stream *stream)
{
    (void)state;
    const ts_cuda_device *d = ts_cuda_use(device);
    return d ? ts_cuda_check(cudaEventRecord((cudaEvent_t)event, ts_cuda_stream(d, stream)),
                             "cuda:%d: recording an event", device)
             : ts_error_code();
}
static ts_status event_wait(void *state, int device, ts_event *event, ts_stream *stream)
{
    (void)state;
    const ts_cuda_device *d = ts_cuda_use(device);
    return d ? ts_cuda_check(cudaStreamWaitEvent(ts_cuda_stream(d, stream), (cudaEvent_t)event, 0),
                             "cuda:%d: waiting for an event", device)
             : ts_error_code();
}
static ts_status event_synchronize(void *state, int device, ts_event *event)
{
    (void)state;
    return ts_cuda_use(device) ? ts_cuda_check(cudaEventSynchronize((cudaEvent_t)event),
                                               "cuda:%d: waiting for an event", device)
                               : ts_error_code();
}
static ts_status event_elapsed(void *state, int device, ts_event *start, ts_event *end, double *ms)
{
    (void)state;
    float elapsed = 0;
    if (!ts_cuda_use(device))
        return ts_error_code();
    TS_TRY(ts_cuda_check(cudaEventElapsedTime(&elapsed, (cudaEvent_t)start, (cudaEvent_t)end),
                         "cuda:%d: time of events", device));
    *ms = elapsed;
    return TS_OK;
}

/* Kernels with a faster nondeterministic variant call ts_deterministic() at each call, so there is
 * nothing to set. */
static ts_status set_deterministic(void *state, bool on)
{
    (void)state, (void)on;
    return TS_OK;
}

/* ----------------------------------------------------------------------------- profiles ---- */

static int64_t memory_capacity(void *state, int device)
{
    (void)state;
    size_t left = 0, whole = 0;
    if (!ts_cuda_use(device) || cudaMemGetInfo(&left, &whole) != cudaSuccess)
        whole = 0;
    cudaGetLastError();
    return (int64_t)whole;
}

/** Reads the version of NVIDIA's driver; CUDA's functions return only the CUDA version that the
 * driver supports. "" if the file is missing. */
static void read_driver(char *text, size_t size)
{
    int fd;
    ssize_t n = 0;
    if (ts_open_file("cuda", "/proc/driver/nvidia/version", O_RDONLY, &fd) == TS_OK) {
        n = read(fd, text, size - 1);
        close(fd);
    }
    ts_error_clear();
    text[n > 0 ? n : 0] = 0;
    text[strcspn(text, "\n")] = 0;
}

static ts_status identify(void *state, int device, char *model, char *identity, size_t size)
{
    (void)state;
    struct cudaDeviceProp p;
    char driver[128], id[2 * sizeof p.uuid.bytes + 1];
    TS_TRY(ts_cuda_check(cudaGetDeviceProperties(&p, device), "cuda:%d: properties", device));
    for (size_t i = 0; i < sizeof p.uuid.bytes; i++)
        snprintf(id + 2 * i, 3, "%02x", (unsigned char)p.uuid.bytes[i]);
    read_driver(driver, sizeof driver);
    snprintf(model, size, "%s", p.name);
    snprintf(identity, size, "%s %s, CUDA %d, %s, %s", p.name, id, CUDART_VERSION,
             ts_variable_choice("TS_CUDA_TF32", "1|0") == 0 ? "TF32" : "f32", driver);
    return TS_OK;
}

static ts_status profile_begin(void *state)
{
    int n = device_count(state);
    for (int i = 0; i < n && i < TS_CUDA_DEVICES; i++) {
        int of[4] = {0};
        cudaDeviceGetAttribute(&of[0], cudaDevAttrMultiProcessorCount, i);
        cudaDeviceGetAttribute(&of[1], cudaDevAttrMaxThreadsPerMultiProcessor, i);
        cudaDeviceGetAttribute(&of[2], cudaDevAttrMaxRegistersPerMultiprocessor, i);
        cudaDeviceGetAttribute(&of[3], cudaDevAttrMaxSharedMemoryPerMultiprocessor, i);
        ts_cupti_limits limits = {(uint32_t)of[0], (uint32_t)of[1], (uint32_t)of[2],
                                  (uint32_t)of[3]};
        ts_cupti_set_limits(i, &limits);
    }
    return ts_cupti_begin(state);
}

static ts_status profile_end(void *state, ts_device_record *record)
{
    (void)state;
    ts_cuda_wait_for_all(); /* CUPTI delivers records of finished work only */
    if (ts_cuda_current) /* fails at process exit, if CUDA and CUPTI are already shut down */
        TS_TRY(ts_cuda_check(ts_cuda_wait_for_device(true), "no GPU times: wait for the device"));
    return ts_cupti_end(record);
}

static const ts_backend backend = {
    .struct_size = sizeof backend,
    .abi_version = TS_BACKEND_ABI,
    .name = "CUDA",
    .install = install,
    .device_count = device_count,
    .allocate = ts_cuda_allocate,
    .free = ts_cuda_free,
    .copy_in = copy_in,
    .copy_out = copy_out,
    .copy_within = copy_within,
    .copy_between = copy_between,
    .host_allocate = host_allocate,
    .host_free = host_free,
    .synchronize = synchronize,
    .synchronize_device = synchronize_device,
    .stream_new = stream_new,
    .stream_free = stream_free,
    .event_new = event_new,
    .event_free = event_free,
    .event_record = event_record,
    .event_wait = event_wait,
    .event_synchronize = event_synchronize,
    .event_elapsed = event_elapsed,
    .record_stream = ts_cuda_record_stream,
    .set_deterministic = set_deterministic,
    .memory_stats = ts_cuda_memory_stats,
    .memory_reset_peak = ts_cuda_memory_reset_peak,
    .capture_begin = ts_cuda_capture_begin,
    .capture_part = ts_cuda_capture_part,
    .capture_end = ts_cuda_capture_end,
    .capture_replay = ts_cuda_capture_replay,
    .capture_free = ts_cuda_capture_free,
    .group_takes = ts_cuda_group_takes,
    .epilogue_cost = ts_cuda_epilogue_cost,
    .group_run = ts_cuda_group_run,
    .group_run_members = ts_cuda_group_run_members,
    .profile_begin = profile_begin,
    .profile_tag = ts_cupti_tag,
    .profile_end = profile_end,
    .profile_clock = ts_cupti_clock,
    .memory_capacity = memory_capacity,
    .profile_range = ts_cuda_range,
    .capture_parts = ts_cuda_capture_parts,
    .capture_order = ts_cuda_capture_order,
    .identify = identify,
};
TS_BACKEND_ENTRY(&backend)
