/**
 * @file device.h  Functions for devices other than the CPU: waiting, streams, events, pinned
 * (page-locked) host memory.
 *
 * A backend with streams works asynchronously: an op returns when its work is queued on the calling
 * thread's current stream of the device. Calls that bring values to the host (ts_item(),
 * ts_copy_to(), ts_print(), ts_to_device() to the CPU) wait. On a device without streams the
 * functions for waiting and streams do nothing, ts_event_new() makes the event NULL, and the
 * functions for events ignore NULL, except that ts_event_elapsed() fails.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_DEVICE_H
#define TESSERA_DEVICE_H

#include "core.h"

TS_BEGIN_DECLS

/** A queue of work on a device; NULL is the device's default stream. On CUDA it is a cudaStream_t,
 *  which the program may also create itself. */
typedef struct ts_stream ts_stream;
/** A point in a stream's queue for which the host or other streams can wait. Opaque. */
typedef struct ts_event ts_event;

/**
 * Opens a backend if necessary (ts_backend_open()) and finds a device by name.
 * @param name    "cpu", "cuda", "cuda:1", ...: a device that must exist; or "auto": the first CUDA
 *                device, or the CPU if there is none, without an error
 * @param device  receives the device
 * @param why     receives the reason for the choice, one line cut to `size` bytes; may be NULL
 *
 * Errors: TS_ERR_VALUE (no such name), TS_ERR_DEVICE (no such device, no driver, a driver too old),
 * and those of ts_backend_open().
 */
TS_API ts_status ts_device_open(const char *name, ts_device *device, char *why, size_t size);

/** Number of devices of a backend, at most 256; 1 for CPU and META, 0 if the backend is not loaded.
 *  backend: as in ts_device. */
TS_API int ts_device_count(uint8_t backend);
/** Waits until everything queued on the device has been done. Errors: TS_ERR_DEVICE (no such
 *  device), TS_ERR_UNSUPPORTED (while a compiled function (compile.h) is captured as a device
 *  graph), and those of the backend, which may report a failure of earlier work. */
TS_API ts_status ts_synchronize(ts_device device);

/** Makes a stream, which the caller frees with ts_stream_free(). *stream becomes NULL, without an
 *  error, on a device without streams. Errors: TS_ERR_DEVICE, TS_ERR_NULL, TS_ERR_MEMORY. */
TS_API ts_status ts_stream_new(ts_device device, ts_stream **stream);
/** Frees a stream after its queued work is done. If it is the calling thread's current stream, the
 *  default stream becomes current. It must not be current in another thread. NULL is allowed. */
TS_API void ts_stream_free(ts_device device, ts_stream *stream);
/** The calling thread's current stream of a device; initially NULL, the default stream. */
TS_API ts_stream *ts_stream_current(ts_device device);
/**
 * Makes a stream the calling thread's current stream of a device; NULL selects the default stream.
 * Errors: TS_ERR_DEVICE for an unknown device; TS_ERR_STATE if the thread already uses streams,
 * other than default streams, of 8 other devices.
 */
TS_API ts_status ts_stream_use(ts_device device, ts_stream *stream);
/** Waits until everything queued on a stream has been done. Errors as ts_synchronize(). */
TS_API ts_status ts_stream_synchronize(ts_device device, ts_stream *stream);

/** Makes an event, which the caller frees with ts_event_free(). *event becomes NULL, without an
 *  error, on a device without events. Errors: TS_ERR_DEVICE, TS_ERR_NULL, TS_ERR_MEMORY. */
TS_API ts_status ts_event_new(ts_device device, ts_event **event);
/** Frees an event. NULL is allowed. */
TS_API void ts_event_free(ts_device device, ts_event *event);
/* The next three do nothing if event is NULL. Errors: TS_ERR_DEVICE, TS_ERR_VALUE for an event on a
 * device without events, and those of the backend. */
/** Records the event after the work queued so far on the calling thread's current stream. */
TS_API ts_status ts_event_record(ts_device device, ts_event *event);
/** Makes later work on the calling thread's current stream wait for the event. The host does not
 *  wait. */
TS_API ts_status ts_event_wait(ts_device device, ts_event *event);
/** The host waits for the event. */
TS_API ts_status ts_event_synchronize(ts_device device, ts_event *event);
/** Writes the device's time between two completed events, in milliseconds, to *ms. Errors:
 *  TS_ERR_UNSUPPORTED if the backend does not measure, or if an event is NULL; TS_ERR_DEVICE,
 *  TS_ERR_NULL, and those of the backend, for example for an event that is not completed. */
TS_API ts_status ts_event_elapsed(ts_device device, ts_event *start, ts_event *end, double *ms);

/**
 * Tells the device's allocator that work on the calling thread's current stream uses t, which was
 * made on another stream. When t is freed, the allocator does not reuse t's memory until that work
 * is done. Errors: TS_ERR_NULL, TS_ERR_STATE for a released tensor, those of the backend, and those
 * of recorded calls (compile.h) that compute t.
 */
TS_API ts_status ts_record_stream(ts_tensor *t);

/**
 * Makes an uninitialised contiguous CPU tensor in pinned memory of `device`'s backend, or in
 * ordinary memory if the backend has none. A copy from pinned memory to `device` is asynchronous:
 * do not write to the tensor until ts_synchronize() or ts_stream_synchronize() has returned. A copy
 * from a device to it waits, as every copy to the CPU does.
 * @param sizes  ndim sizes
 * Errors: TS_ERR_SHAPE, TS_ERR_DTYPE, TS_ERR_DEVICE, TS_ERR_NULL, TS_ERR_VALUE, TS_ERR_MEMORY.
 */
TS_API ts_tensor *ts_empty_pinned(const int64_t *sizes, int ndim, ts_dtype dtype, ts_device device);

/** Switches deterministic mode for all threads and all backends, including backends loaded later.
 *  While the mode is on, equal calls give equal bits. Errors: those of the backends; the mode is
 *  then switched, but not in the backend that failed and those after it. */
TS_API ts_status ts_set_deterministic(bool on);
/** True while deterministic mode is on. */
TS_API bool ts_deterministic(void);

TS_END_DECLS
#endif
