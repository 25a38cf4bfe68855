/**
 * @file runtime.c  Devices, errors, and the ring of recent launches that reports of asynchronous
 * errors name.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/runtime/capture.h"
#include "backends/cuda/runtime/current.h"
#include "backends/cuda/fuse/describe.h"
#include "tessera/program.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------ errors ---- */

/* Ring of the last launches, one of which may have caused an asynchronous error. An entry holds op,
 * device and stream in one word; it becomes 0 when a wait shows that the launch succeeded. The
 * number of launches is incremented by a load and a store, because an atomic addition would cost
 * each launch more; a race of two threads may lose one entry. */
enum { RING = 16, GRAPH = 0xfffe /* instead of an op */ };
static _Atomic uint32_t launches;
static _Atomic uint64_t ring[RING];
static atomic_bool synchronous; /* TS_SYNC=1, read before the first device is ready */

/** Bits from the top: op + 1 (16), device (4), stream (44, without the zeros of its alignment). */
static uint64_t entry_of(unsigned op, int device, cudaStream_t stream)
{
    _Static_assert(TS_CUDA_DEVICES <= 16, "four bits");
    return (uint64_t)(op + 1) << 48 | (uint64_t)device << 44 |
           ((uint64_t)(uintptr_t)stream >> 4 & (((uint64_t)1 << 44) - 1));
}

static ts_cuda_device devices[TS_CUDA_DEVICES];
/* why a device is lost; written once, before the flag is set */
static char lost_by[TS_CUDA_DEVICES][512];
static atomic_bool lost[TS_CUDA_DEVICES];
_Thread_local ts_cuda_device *ts_cuda_current;

/** Errors after which the device's context can no longer be used. */
static bool is_sticky(cudaError_t e)
{
    return e == cudaErrorIllegalAddress || e == cudaErrorLaunchFailure ||
           e == cudaErrorIllegalInstruction || e == cudaErrorMisalignedAddress ||
           e == cudaErrorInvalidAddressSpace || e == cudaErrorInvalidPc ||
           e == cudaErrorHardwareStackError || e == cudaErrorLaunchTimeout ||
           e == cudaErrorAssert || e == cudaErrorECCUncorrectable;
}

static void describe_ring(int device, char *text, size_t size)
{
    uint32_t end = atomic_load(&launches);
    size_t used = 0, named = 0;
    text[0] = '\0';
    for (uint32_t i = end - RING; i != end && used + 40 < size; i++) {
        uint64_t entry = atomic_load(&ring[i % RING]);
        if (entry && (int)(entry >> 44 & 15) == device)
            used += (size_t)snprintf(text + used, size - used, "%s%s", named++ ? ", " : "",
                                     (int)(entry >> 48) - 1 == GRAPH
                                         ? "a graph of calls"
                                         : ts_op_name((int)(entry >> 48) - 1));
    }
    if (named == RING && used + 20 < size)
        snprintf(text + used, size - used, ", after others");
}

uint32_t ts_cuda_launches(void) { return atomic_load_explicit(&launches, memory_order_relaxed); }

void ts_cuda_waited(int device, cudaStream_t stream, uint32_t end)
{
    uint64_t mask = stream ? ~(uint64_t)0 >> 16 : (uint64_t)15 << 44;
    uint64_t same = entry_of(0, device, stream) & mask;
    for (uint32_t i = end - RING; i != end; i++)
        if ((atomic_load_explicit(&ring[i % RING], memory_order_relaxed) & mask) == same)
            atomic_store_explicit(&ring[i % RING], 0, memory_order_relaxed);
}

/** Marks a device as lost; later calls report `why`. */
static void mark_lost(ts_cuda_device *d, const char *why)
{
    static pthread_mutex_t losing = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&losing);
    int index = (int)(d - devices);
    if (!atomic_load(&lost[index])) {
        snprintf(lost_by[index], sizeof lost_by[index], "%s", why);
        atomic_store_explicit(&lost[index], true, memory_order_release);
        /* so that no thread uses it as its current device */
        __atomic_store_n(&d->index, -1, __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&losing);
}

bool ts_cuda_is_lost(int device)
{
    return atomic_load_explicit(&lost[device], memory_order_acquire);
}

static const char *const after_loss =
    "tensors on the CPU remain valid; restart the process to use the device, with TS_SYNC=1 so "
    "that the failing call itself returns the error";

ts_status ts_cuda_check(cudaError_t error, const char *format, ...)
{
    if (__builtin_expect(error == cudaSuccess, 1))
        return TS_OK;
    char what[128], since[256], text[512];
    va_list list;
    va_start(list, format);
    vsnprintf(what, sizeof what, format, list);
    va_end(list);
    cudaGetLastError(); /* CUDA's own record, which later calls would report again */
    ts_status status = error == cudaErrorMemoryAllocation ? TS_ERR_MEMORY : TS_ERR_DEVICE;
    int used = snprintf(text, sizeof text, "%s: CUDA reports %s: %.100s", what,
                        cudaGetErrorName(error), cudaGetErrorString(error));
    if (!is_sticky(error) || !ts_cuda_current)
        return ts_error_set(status, "%s", text);
    describe_ring(ts_cuda_current->index, since, sizeof since);
    snprintf(text + used, sizeof text - (size_t)used,
             "; launched since the last successful synchronization: %s",
             since[0] ? since : "nothing");
    mark_lost(ts_cuda_current, text);
    return ts_error_set_hint(TS_ERR_DEVICE, after_loss, "%s", text);
}

/** Slow path of the check after a launch. */
static __attribute__((noinline)) ts_status wait_or_fail(const ts_frame *frame, cudaError_t error,
                                                        cudaStream_t stream, uint32_t i)
{
    if (error == cudaSuccess) {
        error = cudaStreamSynchronize(stream);
        if (error == cudaSuccess) {
            ts_cuda_waited(ts_cuda_current->index, stream, i + 1);
            return ts_cuda_check_fault(ts_cuda_current);
        }
    }
    return ts_cuda_check(error, "%s", ts_op_name(frame->op));
}

/** Records a launch in the ring and returns its number. */
static inline uint32_t note(unsigned op, cudaStream_t stream)
{
    uint32_t i = atomic_load_explicit(&launches, memory_order_relaxed);
    atomic_store_explicit(&ring[i % RING], entry_of(op, ts_cuda_current->index, stream),
                          memory_order_relaxed);
    atomic_store_explicit(&launches, i + 1, memory_order_relaxed);
    return i;
}

void ts_cuda_replayed(cudaStream_t stream) { note(GRAPH, stream); }

bool ts_cuda_synchronous(void) { return atomic_load(&synchronous); }

ts_status ts_cuda_launched(const ts_frame *frame, cudaError_t error, cudaStream_t stream)
{
    uint32_t i = note(frame->op, stream);
    if (__builtin_expect(
            error == cudaSuccess && !atomic_load_explicit(&synchronous, memory_order_relaxed), 1))
        return TS_OK;
    return wait_or_fail(frame, error, stream, i);
}

/* ----------------------------------------------------------------------------- devices ---- */

static atomic_bool ready[TS_CUDA_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/** Records the reason why there is no device. */
static void set_no_device_error(cudaError_t error)
{
    int driver = 0;
    cudaDriverGetVersion(&driver);
    cudaGetLastError();
    if (driver == 0)
        ts_error_set_hint(TS_ERR_DEVICE, "install the NVIDIA driver",
                          "no NVIDIA driver found (libcuda.so.1)");
    else if (error == cudaErrorInsufficientDriver || driver / 1000 < CUDART_VERSION / 1000)
        ts_error_set_hint(TS_ERR_DEVICE, "install a newer driver",
                          "the NVIDIA driver is for CUDA %d.%d, this library needs %d.0",
                          driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000);
    else if (error == cudaErrorNoDevice || error == cudaSuccess)
        ts_error_set_hint(TS_ERR_DEVICE, "check nvidia-smi and CUDA_VISIBLE_DEVICES",
                          "the NVIDIA driver shows no GPU");
    else
        ts_error_set(TS_ERR_DEVICE, "CUDA reports %s: %s", cudaGetErrorName(error),
                     cudaGetErrorString(error));
}

int ts_cuda_count(void)
{
    /* queried until the driver reports a device; the number does not change in a process */
    static _Atomic int known;
    int count = atomic_load_explicit(&known, memory_order_relaxed);
    if (count)
        return count;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
        set_no_device_error(error);
        return 0;
    }
    count = count < TS_CUDA_DEVICES ? count : TS_CUDA_DEVICES;
    atomic_store_explicit(&known, count, memory_order_relaxed);
    return count;
}

/** Runs in a forked child, which cannot use its parent's devices: marks them as lost. Later calls
 * return an error; functions that free do nothing. */
static void leave_to_parent(void)
{
    ts_cuda_current = NULL;
    for (int i = 0; i < TS_CUDA_DEVICES; i++)
        if (atomic_load(&ready[i]) && !atomic_load(&lost[i])) {
            snprintf(lost_by[i], sizeof lost_by[i],
                     "it was forked: a child cannot use its parent's CUDA devices");
            devices[i].index = -1;
            atomic_store(&lost[i], true);
        }
}

static ts_status prepare(int index)
{
    static bool watched;
    if (!watched)
        watched = pthread_atfork(NULL, NULL, leave_to_parent) == 0;
    ts_cuda_device *d = &devices[index];
    int major = 0, minor = 0, code = 0, least = 0, greatest = 0;
    atomic_store(&synchronous, ts_variable_choice("TS_SYNC", "1|0") == 0);
    d->index = index;
    TS_TRY(ts_cuda_check(cudaSetDevice(index), "cuda:%d", index));
    TS_TRY(ts_cuda_check(cudaDeviceGetAttribute(&d->sms, cudaDevAttrMultiProcessorCount, index),
                         "cuda:%d", index));
    TS_TRY(ts_cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index),
                         "cuda:%d", index));
    TS_TRY(ts_cuda_check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index),
                         "cuda:%d", index));
    TS_TRY(ts_cuda_check(
        cudaDeviceGetAttribute(&d->shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, index),
        "cuda:%d", index));
    if (major < 8)
        return ts_error_set(TS_ERR_DEVICE,
                            "cuda:%d: expected a GPU of compute capability 8.0 or later, got %d.%d",
                            index, major, minor);
    TS_TRY(ts_cuda_check(ts_cuda_code_capability(&code),
                         "cuda:%d: code for compute capability %d.%d", index, major, minor));
    d->clusters = code >= 90;
    d->hopper = code == 90 && major == 9 && minor == 0;
    TS_TRY(ts_cuda_check(cudaHostAlloc((void **)&d->fault, sizeof *d->fault,
                                       cudaHostAllocPortable | cudaHostAllocMapped),
                         "cuda:%d", index));
    memset(d->fault, 0, sizeof *d->fault);
    TS_TRY(ts_cuda_check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cuda:%d", index));
    return ts_cuda_check(cudaStreamCreateWithPriority(&d->stream, cudaStreamNonBlocking, least),
                         "a stream of cuda:%d", index);
}

ts_status ts_cuda_check_fault(ts_cuda_device *d)
{
    int32_t some = __atomic_load_n(&d->fault->some, __ATOMIC_ACQUIRE);
    if (__builtin_expect(some <= 0, 1))
        return TS_OK;
    ts_cuda_fault fault = *d->fault;
    __atomic_store_n(&d->fault->some, 0, __ATOMIC_RELEASE);
    /* the call has returned; rebuild its frame to report the error for it */
    const ts_cuda_caller *caller = &fault.caller;
    ts_frame frame = {
        .table = caller->table, .site = caller->site, .op = caller->op, .nargs = caller->nargs};
    const char *hint = "run with TS_SYNC=1 so that the call itself returns this error";
    if (some == 1)
        return ts_kernel_error(
            &frame, caller->arg, TS_ERR_INDEX, hint,
            "expected %s from 0 to %lld, got %lld at position %lld; found by a kernel on cuda:%d",
            fault.expected, (long long)fault.bound - 1, (long long)fault.index,
            (long long)fault.position, d->index);
    if (fault.position < 0)
        return ts_kernel_error(&frame, caller->arg, TS_ERR_VALUE, hint,
                               "expected %s, got %g; found by a kernel on cuda:%d", fault.expected,
                               fault.number, d->index);
    return ts_kernel_error(&frame, caller->arg, TS_ERR_VALUE, hint,
                           "expected %s, got %g at position %lld; found by a kernel on cuda:%d",
                           fault.expected, fault.number, (long long)fault.position, d->index);
}

static __attribute__((noinline)) ts_cuda_device *use_another(int index)
{
    if (ts_cuda_describing())
        return NULL;
    if (index < 0 || index >= TS_CUDA_DEVICES) {
        ts_error_set(TS_ERR_DEVICE, "cuda:%d: expected a device below %d", index, TS_CUDA_DEVICES);
        return NULL;
    }
    if (!atomic_load_explicit(&ready[index], memory_order_acquire)) {
        /* prepare() changes CUDA's current device even if it fails, so forget the current one */
        ts_cuda_current = NULL;
        pthread_mutex_lock(&lock);
        ts_status status = atomic_load(&ready[index]) ? TS_OK : prepare(index);
        if (status == TS_OK)
            atomic_store_explicit(&ready[index], true, memory_order_release);
        pthread_mutex_unlock(&lock);
        if (status != TS_OK)
            return NULL;
    }
    if (ts_cuda_is_lost(index)) {
        ts_error_set_hint(TS_ERR_DEVICE, after_loss, "cuda:%d is lost to this process since %s",
                          index, lost_by[index]);
        return NULL;
    }
    ts_cuda_current = &devices[index];
    if (ts_cuda_check(cudaSetDevice(index), "cuda:%d", index) != TS_OK)
        ts_cuda_current = NULL;
    return ts_cuda_current;
}

ts_cuda_device *ts_cuda_use(int index)
{
    ts_cuda_device *d = ts_cuda_current;
    return __builtin_expect(d && d->index == index, 1) ? d : use_another(index);
}

/* Captures hold it shared; a wait for a device holds it exclusively. */
static pthread_rwlock_t captures = PTHREAD_RWLOCK_INITIALIZER;
void ts_cuda_capture_enter(void) { pthread_rwlock_rdlock(&captures); }
void ts_cuda_capture_leave(void) { pthread_rwlock_unlock(&captures); }

cudaError_t ts_cuda_wait_for_device(bool patient)
{
    if ((patient ? pthread_rwlock_wrlock : pthread_rwlock_trywrlock)(&captures) != 0)
        return cudaErrorNotReady;
    cudaError_t error = cudaDeviceSynchronize();
    pthread_rwlock_unlock(&captures);
    return error;
}

void ts_cuda_wait_for_all(void)
{
    for (int i = 0; i < TS_CUDA_DEVICES; i++)
        if (atomic_load_explicit(&ready[i], memory_order_acquire) && !ts_cuda_is_lost(i) &&
            ts_cuda_use(i))
            ts_cuda_wait_for_device(true);
}
