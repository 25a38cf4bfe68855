/**
 * @file device.h  Functions for devices other than the CPU: waiting, streams, events, pinned host
 * memory.
 *
 * A backend with streams works asynchronously: an op returns when its work is queued on the calling
 * thread's current stream of the device. Calls that bring values to the host (ts_item(),
 * ts_copy_to(), ts_print(), ts_to_device() to the CPU) wait. On a device without streams these
 * functions are allowed and do nothing.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_DEVICE_H
#define TESSERA_DEVICE_H

#include "core.h"

TS_BEGIN_DECLS

/** A queue of work on a device; NULL is the device's default stream. On CUDA a cudaStream_t, which
 * the program may create itself. */
typedef struct ts_stream ts_stream;
/** A mark in a stream; made and read by its backend alone. */
typedef struct ts_event ts_event;

/**
 * Opens the device of this name, after opening its backend as by ts_backend_open(). "auto" is the
 * first device of the backends that are distributed with the library, else the CPU, and is never an
 * error. Any other device ("cpu", "cuda", "cuda:1") must exist.
 * @param device  receives the device
 * @param why     receives the reason for the choice, one line cut to `size` bytes; may be NULL
 *
 * Errors: TS_ERR_VALUE (no such name), TS_ERR_DEVICE (no such device, no driver, a driver too old),
 * and those of ts_backend_open().
 */
TS_API ts_status ts_device_open(const char *name, ts_device *device, char *why, size_t size);

/** Number of devices of a backend, by the backend's number (ts_device.backend); 0 without any. */
TS_API int ts_device_count(uint8_t backend);
/** Waits until everything queued on the device has been done. Errors: TS_ERR_DEVICE (no such
 *  device), and those of the backend, which may report a failure of earlier work. */
TS_API ts_status ts_synchronize(ts_device device);

/** Makes a stream; TS_OK with *stream NULL on a device without streams. */
TS_API ts_status ts_stream_new(ts_device device, ts_stream **stream);
/** Frees a stream after its queued work is done. If it is the calling thread's current stream, the
 *  default stream becomes current. NULL is allowed. */
TS_API void ts_stream_free(ts_device device, ts_stream *stream);
/** The calling thread's current stream of a device; initially NULL, the default stream. */
TS_API ts_stream *ts_stream_current(ts_device device);
/**
 * Makes a stream the calling thread's current stream of a device; NULL selects the default stream.
 * TS_ERR_DEVICE: no such device; TS_ERR_STATE: streams of more than 8 devices at once.
 */
TS_API ts_status ts_stream_use(ts_device device, ts_stream *stream);
/** Waits until everything queued on a stream has been done. */
TS_API ts_status ts_stream_synchronize(ts_device device, ts_stream *stream);

/** Makes an event; TS_OK with *event NULL on a device without streams. */
TS_API ts_status ts_event_new(ts_device device, ts_event **event);
/** Frees an event. NULL is allowed. */
TS_API void ts_event_free(ts_device device, ts_event *event);
/** Records the event after the work queued on the calling thread's current stream. */
TS_API ts_status ts_event_record(ts_device device, ts_event *event);
/** Makes later work on the calling thread's current stream wait for the event. The host does not
 *  wait. */
TS_API ts_status ts_event_wait(ts_device device, ts_event *event);
/** The host waits for the event. */
TS_API ts_status ts_event_synchronize(ts_device device, ts_event *event);
/** Writes the device's time between two completed events, in milliseconds, to *ms.
 *  TS_ERR_UNSUPPORTED if the backend does not measure, or if an event is NULL. */
TS_API ts_status ts_event_elapsed(ts_device device, ts_event *start, ts_event *end, double *ms);

/**
 * Tells the device's allocator that work on the calling thread's current stream uses t, which was
 * made on another stream. The allocator does not reuse its memory before that work is done.
 */
TS_API ts_status ts_record_stream(ts_tensor *t);

/**
 * Uninitialised contiguous tensor on the CPU in pinned memory, or in ordinary memory if the backend
 * has none. A copy from it to `device` is asynchronous: do not write to the tensor until
 * ts_synchronize() or ts_stream_synchronize() returned. A copy to it waits, as each copy to the
 * CPU.
 * @param sizes  ndim sizes
 */
TS_API ts_tensor *ts_empty_pinned(const int64_t *sizes, int ndim, ts_dtype dtype, ts_device device);

/** Switches deterministic mode for all threads and all backends, also those loaded later. While it
 *  is on, results do not depend on scheduling. Errors: those of the backends. */
TS_API ts_status ts_set_deterministic(bool on);
/** True while deterministic mode is on. */
TS_API bool ts_deterministic(void);

TS_END_DECLS
#endif
