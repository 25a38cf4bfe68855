/** @file runtime.h  Host code that all files of this backend share: devices, streams, errors and
 * launch records, memory, tables of kernels. An op's host code calls ts_cuda_use(), launches its
 * kernels (launch.h) and passes the error to ts_cuda_launched(). */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_RUNTIME_H
#define TS_CUDA_RUNTIME_H

#include <cuda_runtime_api.h>

#include "tessera/kernel.h"

TS_BEGIN_DECLS

/** Maximum number of devices that the backend uses; further devices are ignored. */
#define TS_CUDA_DEVICES 16

/** An op call and the index `arg` of one of its arguments, for a report that is read after the
 * call. The other fields are copied from the call's ts_frame. */
typedef struct ts_cuda_caller {
    const ts_op_table *table;
    const void *site;
    uint16_t op;
    uint8_t nargs, arg;
} ts_cuda_caller;

/** A kernel's report of an invalid value in a tensor: the first invalid value since the host last
 *  read the report. The report is in host memory that the device can write. The host reads it when
 *  it waits for the device. */
typedef struct ts_cuda_fault {
    int32_t some;         /* 0 no report, 1 an index, 2 a number, -1 being written */
    ts_cuda_caller caller;
    const char *expected; /* host text: "indices", "probabilities from 0 to 1" */
    int64_t position;     /* the element's index in the argument; for a number -1 if unknown */
    int64_t index, bound; /* the invalid index, which must be in [0, bound) */
    double number;        /* the invalid number */
} ts_cuda_fault;

/** Properties of a device, queried once. */
typedef struct ts_cuda_device {
    int index;
    int sms;             /* multiprocessors */
    int shared;          /* maximum bytes of shared memory of a block */
    bool clusters;       /* the device and the library's code are sm_90 or later */
    bool hopper;         /* the device and the code are sm_90, so instructions of sm_90a can be used
                            if the library contains them (TS_CUDA_SM90A) */
    cudaStream_t stream; /* the device's default stream in this backend */
    ts_cuda_fault *fault; /* where kernels on the device report invalid values */
} ts_cuda_device;

/** The number of GPUs that CUDA reports, at most TS_CUDA_DEVICES; ts_cuda_use() refuses GPUs below
 * compute capability 8.0. 0 after an error, such as no driver or no GPU; the thread's error has the
 * reason. */
int ts_cuda_count(void);
/** Makes a device current in the calling thread, initialising it at its first use. The backend owns
 * the result. Returns NULL with an error if the index is invalid, the device cannot be used or is
 * lost; returns NULL without an error while ts_cuda_describing(). */
ts_cuda_device *ts_cuda_use(int index);
/** Waits for all initialised devices that are not lost, and ignores errors. Call before freeing
 *  memory that any device may still read. May change the thread's current device. A thread must not
 *  call it between ts_cuda_capture_enter() and ts_cuda_capture_leave(). */
void ts_cuda_wait_for_all(void);
/** True if the device is unusable for the rest of the process: an error such as a fault in a kernel
 *  has ended its context, or the process was forked after the device was initialised. device: 0 to
 *  TS_CUDA_DEVICES - 1. */
bool ts_cuda_is_lost(int device);
/** Writes the compute capability for which the library's code on the current device was compiled,
 *  as 10 major + minor. The number is below the device's own if the driver compiled PTX of a lower
 *  capability. Kernels that need a higher capability have empty bodies in this code. */
cudaError_t ts_cuda_code_capability(int *capability);
/** Converts a backend stream to a CUDA stream; NULL is the device's default stream. */
static inline cudaStream_t ts_cuda_stream(const ts_cuda_device *device, ts_stream *stream)
{
    return stream ? (cudaStream_t)stream : device->stream;
}

/** Converts a CUDA error to a status: TS_OK, or TS_ERR_MEMORY or TS_ERR_DEVICE with a message that
 * begins with `format`, the operation, such as "copy of 64 bytes to cuda:0". Clears CUDA's last
 * error. An error that makes the context unusable marks the current device as lost. */
ts_status ts_cuda_check(cudaError_t error, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/** Call after a launch with the launch's error. Records the launch for reports of asynchronous
 * errors and returns the status. With TS_SYNC=1 waits for the kernel and also returns its
 * asynchronous errors and its report of an invalid value. */
ts_status ts_cuda_launched(const ts_frame *frame, cudaError_t error, cudaStream_t stream);
/** Records the launch of a graph for reports of asynchronous errors. Call before the launch. */
void ts_cuda_replayed(cudaStream_t stream);
/** True if TS_SYNC=1 makes each launch wait. */
bool ts_cuda_synchronous(void);
/** The number of launches that ts_cuda_launched() and ts_cuda_replayed() have recorded, on all
 * devices, modulo 2^32. If threads launch at the same time, two launches may count as one. */
uint32_t ts_cuda_launches(void);
/** Records that the launches before number `end` on a device's `stream` (NULL: on all of its
 * streams) have succeeded, so that reports of later errors do not name them. */
void ts_cuda_waited(int device, cudaStream_t stream, uint32_t end);

/** Reads and clears the device's report of an invalid value: TS_ERR_INDEX or TS_ERR_VALUE if a
 * kernel reported an invalid index or number, else TS_OK. Wait for the device or its stream
 * first. */
ts_status ts_cuda_check_fault(ts_cuda_device *device);

/* alloc.c: functions of the backend's table (tessera/backend.h) */
void *ts_cuda_allocate(void *state, int device, int64_t bytes, ts_stream *stream);
void ts_cuda_free(void *state, int device, void *data, int64_t bytes);
ts_status ts_cuda_record_stream(void *state, int device, void *data, int64_t bytes,
                                ts_stream *stream);
ts_status ts_cuda_memory_stats(void *state, int device, ts_memory_stats *stats);
ts_status ts_cuda_memory_reset_peak(void *state, int device);

/** A kernel of an op. */
typedef struct ts_cuda_kernel {
    const char *op;
    ts_kernel kernel;
    uint32_t dtypes;                 /* as in ts_kernel_opts, like the fields after it */
    bool strided, converts, layouts;
} ts_cuda_kernel;
/** Kernels of a family; families.h lists the families. A .cu file defines its table by
 * TS_CUDA_FAMILY(norm, {...}, ...), with one ts_cuda_kernel per op; a .c file defines the constant
 * ts_cuda_<family> itself. */
typedef struct ts_cuda_family {
    const ts_cuda_kernel *kernels;
    int count;
} ts_cuda_family;
#define TS_CUDA_FAMILY(name, ...)                                            \
    static const ts_cuda_kernel family_kernels[] = {__VA_ARGS__};            \
    extern "C" const ts_cuda_family ts_cuda_##name;                          \
    const ts_cuda_family ts_cuda_##name = {family_kernels,                                         \
                                           (int)(sizeof family_kernels / sizeof *family_kernels)};

TS_END_DECLS
#endif
