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
 * Opens the device of this name. "auto" is the first device of the backends that come with the
 * library, else the CPU, and never an error. "cpu", "cuda" and "cuda:1" must exist; their backend
 * is opened as by ts_backend_open().
 * @param why   receives the reason for the choice, one line cut to `size` bytes; may be NULL
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
/** Ends a stream after the work on it. NULL is allowed. */
TS_API void ts_stream_free(ts_device device, ts_stream *stream);
/** The calling thread's current stream of a device; NULL, the device's own, at first. */
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
/** NULL is allowed. */
TS_API void ts_event_free(ts_device device, ts_event *event);
/** Records the event after the work queued on the calling thread's current stream. */
TS_API ts_status ts_event_record(ts_device device, ts_event *event);
/** Makes later work on the calling thread's current stream wait for the event. The host does not
 *  wait. */
TS_API ts_status ts_event_wait(ts_device device, ts_event *event);
/** The host waits for the event. */
TS_API ts_status ts_event_synchronize(ts_device device, ts_event *event);
/** Milliseconds on the device between two events that have both happened. TS_ERR_UNSUPPORTED where
 *  the backend does not measure. */
TS_API ts_status ts_event_elapsed(ts_device device, ts_event *start, ts_event *end, double *ms);

/**
 * Tells the device's allocator that work on the calling thread's current stream uses t, which was
 * made on another stream. The allocator does not reuse its memory before that work is done.
 */
TS_API ts_status ts_record_stream(ts_tensor *t);

/**
 * Uninitialised contiguous tensor on the CPU in pinned memory, from which `device` copies without
 * waiting; ordinary memory if the backend has none. A copy from it is only queued: write to it
 * again after ts_synchronize() or a wait on the stream. Copies to it wait, as all to the CPU do.
 * @param sizes  ndim sizes
 */
TS_API ts_tensor *ts_empty_pinned(const int64_t *sizes, int ndim, ts_dtype dtype, ts_device device);

/** Asks all backends, present and future, for results that do not depend
 * on scheduling (or no longer). */
TS_API ts_status ts_set_deterministic(bool on);
TS_API bool ts_deterministic(void);

TS_END_DECLS
#endif
