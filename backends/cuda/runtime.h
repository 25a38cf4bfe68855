/** @file runtime.h  Common host code of this backend: errors, devices, streams, memory. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_RUNTIME_H
#define TS_CUDA_RUNTIME_H

#include <cuda_runtime_api.h>

#include "tessera/kernel.h"

TS_BEGIN_DECLS

/** Most devices that are used; the others of a machine are left alone. */
#define TS_CUDA_DEVICES 16

/** Call and argument of a kernel, for a report that is read after the call. */
typedef struct ts_cuda_caller {
    const ts_op_table *table;
    const void *site;
    uint16_t op;
    uint8_t nargs, arg;
} ts_cuda_caller;

/** A kernel's report of an invalid value in device memory: the first since the last read. The
 *  report is in host memory that the device can write; waiting for the device reads it. */
typedef struct ts_cuda_fault {
    int32_t some;         /* 0 nothing, 1 an index, 2 a number, -1 being written */
    ts_cuda_caller caller;
    const char *expected; /* host text: "indices", "probabilities from 0 to 1" */
    int64_t position;     /* among the elements of the argument; of a number -1: not known */
    int64_t index, bound; /* an index, expected within [0, bound) */
    double number;
} ts_cuda_fault;

/** Properties of a device, queried once. */
typedef struct ts_cuda_device {
    int index;
    int sms;             /* multiprocessors */
    int shared;          /* bytes of shared memory that a block may have */
    bool clusters;       /* sm_90 and later, and code for it */
    bool hopper;         /* sm_90 itself, and code for it:
                            instructions of sm_90a are on no other GPU */
    cudaStream_t stream; /* the device's own */
    ts_cuda_fault *fault;
} ts_cuda_device;

/** Counts devices; 0, without an error, if there is no driver or no GPU. */
int ts_cuda_count(void);
/** A device, initialised at its first use and current in the calling thread. NULL with an error,
 * for example if the device is lost. */
ts_cuda_device *ts_cuda_use(int index);
/** Waits for each initialised device and ignores errors, for memory that any device may be
 *  reading. */
void ts_cuda_wait_for_all(void);
/** Whether a kernel that CUDA stopped, or a fork, has made the device unusable. */
bool ts_cuda_is_lost(int device);
/** Writes the compute capability that the library's code on the current device was compiled for, as
 *  10 major + minor. The number is below the device's own if the driver compiled PTX. Kernels for
 *  other capabilities may have empty bodies in this code. */
cudaError_t ts_cuda_code_capability(int *capability);
/** A backend's stream as CUDA's: NULL is the device's own. */
static inline cudaStream_t ts_cuda_stream(const ts_cuda_device *device, ts_stream *stream)
{
    return stream ? (cudaStream_t)stream : device->stream;
}

/** TS_OK, or the error with the operation: "copy of 64 bytes to cuda:0". Empties CUDA's own
 * record. */
ts_status ts_cuda_check(cudaError_t error, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/** After a launch: its own error; with TS_SYNC=1 waits, so that the culprit is named. */
ts_status ts_cuda_launched(const ts_frame *frame, cudaError_t error, cudaStream_t stream);
/** Call before the launch of a graph, for reports of asynchronous errors. */
void ts_cuda_replayed(cudaStream_t stream);
/** Whether TS_SYNC=1 makes each launch wait. */
bool ts_cuda_synchronous(void);
/** The number of launches so far. The second function notes that the first `end` launches on
 * `stream` (NULL: on any) succeeded. */
uint32_t ts_cuda_launches(void);
void ts_cuda_waited(int device, cudaStream_t stream, uint32_t end);

/** TS_ERR_INDEX or TS_ERR_VALUE, once, when a kernel has met a wrong index or number. */
ts_status ts_cuda_check_fault(ts_cuda_device *device);

/* alloc.c: the slots of the backend's struct */
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
    uint32_t dtypes;
    bool strided, converts; /* of ts_kernel_opts */
} ts_cuda_kernel;
/** Kernels of a family; families.h lists them. Last lines of a kernel file:
 * TS_CUDA_FAMILY(norm, {...}, ...) */
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
