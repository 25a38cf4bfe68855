/**
 * @file backend.h
 * A backend: a struct of functions for memory, copies, streams and events,
 * and kernels that it registers.
 *
 * A backend is a shared library with one exported symbol, built against these headers alone:
 *
 *     static ts_status install(void *state, ts_key key)
 *     {
 *         return ts_register_kernel("relu", key, relu, "relu(Tensor self) -> Tensor", NULL);
 *     }
 *     static const ts_backend backend = {
 *         .struct_size = sizeof backend, .abi_version = TS_BACKEND_ABI, .name = "MINE",
 *         .flags = TS_BACKEND_CPU_FALLBACK, .install = install,
 *         .allocate = allocate, .free = release,
 *         .copy_in = copy_in, .copy_out = copy_out, .copy_within = copy_within,
 *     };
 *     TS_BACKEND_ENTRY(&backend)
 *
 * kernel.h says what a kernel sees; docs/add-a-backend.md walks through a whole one.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_BACKEND_H
#define TESSERA_BACKEND_H

#include "device.h"
#include "dispatch.h"

TS_BEGIN_DECLS

/**
 * Version of struct ts_backend and of kernel.h. While it is 0, a backend must have been built with
 * the same headers: version and struct_size must be equal.
 */
#define TS_BACKEND_ABI 0u

/** Bits of ts_backend.flags. */
typedef enum ts_backend_flag {
    TS_BACKEND_CPU_FALLBACK = 1, /**< calls without a kernel go to the CPU and back; counted */
    TS_BACKEND_WHOLE_OPS = 2     /**< a fallback wins over the library's composites */
} ts_backend_flag;

/** Work that was captured, to be queued as a whole; made and read by its backend alone. */
typedef struct ts_capture ts_capture;

/**
 * A call of a fused group: a frame that is ready for its kernel. Calls of a group are pointwise, on
 * one device, and have results of equal sizes. Arguments and results of the group with equal
 * addresses are one tensor. A tensor without data (ts_kernel_data() is NULL) is made and read
 * inside the group alone and needs no memory. A call reads what the calls before it have written.
 * An argument of another dtype than the kernel takes is cast to ts_kernel_dtype(), as by ts_to().
 */
typedef struct ts_group_call {
    ts_frame *frame;
    ts_kernel kernel;
} ts_group_call;
/** How the backend got the kernel of a group. */
typedef struct ts_group_report {
    int64_t launches;  /**< kernels */
    double compile_ms; /**< to get these kernels; 0: they were there */
    bool from_disk;    /**< they were compiled by an earlier process */
} ts_group_report;

/**
 * Functions of a backend. Each gets `state`; `device` is a device's index. Several threads may call
 * them at once. Functions that return ts_status report with ts_error_set(). Slots marked optional
 * may be NULL, with the effect in brackets.
 *
 * Memory is an address that only the backend must be able to use: the library adds byte offsets
 * to it (views) and never reads or writes there. Sizes are in bytes, above 0. Copies are queued
 * on a stream in order. A copy from host memory that is not from host_allocate must have read it
 * before it returns. A NULL stream is the device's default stream.
 */
typedef struct ts_backend {
    uint32_t struct_size; /**< sizeof(ts_backend) */
    uint32_t abi_version; /**< TS_BACKEND_ABI */
    /** Name of the dispatch key, 1 to 23 characters; devices are called by it in small letters.
     *  "CUDA" takes the key that is kept for it; other names get a free one. */
    const char *name;
    uint64_t flags; /**< of ts_backend_flag */
    void *state;

    /** Registers the kernels, with the functions of dispatch.h. All registrations become visible
     *  together if it succeeds; none if it fails.
     *  (optional: a backend without kernels) */
    ts_status (*install)(void *state, ts_key key);
    /** Number of devices, at most 256. (optional: 1) */
    int (*device_count)(void *state);

    /** Allocates `bytes` at a multiple of 64, for use on `stream` first. NULL: out of memory. */
    void *(*allocate)(void *state, int device, int64_t bytes, ts_stream *stream);
    /** Releases memory; work that uses it may still be queued. */
    void (*free)(void *state, int device, void *data, int64_t bytes);
    /** Host to device. */
    ts_status (*copy_in)(void *state, int device, void *to, const void *from, int64_t bytes,
                         ts_stream *stream);
    /** Device to host; the values are valid once the stream is synchronized. */
    ts_status (*copy_out)(void *state, int device, void *to, const void *from, int64_t bytes,
                          ts_stream *stream);
    /** Device to itself; the two do not overlap. */
    ts_status (*copy_within)(void *state, int device, void *to, const void *from, int64_t bytes,
                             ts_stream *stream);
    /** Between two devices, on a stream of the destination `device`, ordered with the source's
     *  current stream. (optional: through the host) */
    ts_status (*copy_between)(void *state, int device, void *to, int from_device, const void *from,
                              int64_t bytes, ts_stream *stream);

    /** Pinned host memory, for copies that do not wait. (optional: ordinary memory) */
    void *(*host_allocate)(void *state, int device, int64_t bytes);
    /** Releases it; copies that use it may still be queued. (required with host_allocate) */
    void (*host_free)(void *state, int device, void *data, int64_t bytes);

    /** Waits for a stream. (optional, with all of the following:
     * everything is done when it returns) */
    ts_status (*synchronize)(void *state, int device, ts_stream *stream);
    /** Waits for all streams of the device. (optional: synchronize with the device's own stream) */
    ts_status (*synchronize_device)(void *state, int device);
    /** A new stream; NULL is an error. (optional: the device's own is the only one) */
    ts_stream *(*stream_new)(void *state, int device);
    /** Ends a stream after the work on it. (required with stream_new) */
    void (*stream_free)(void *state, int device, ts_stream *stream);
    /** A new event; NULL is an error. (optional: no events) */
    ts_event *(*event_new)(void *state, int device);
    void (*event_free)(void *state, int device, ts_event *event);
    /** Records the event after the work queued on the stream.
     * (this and the next two: required with event_new) */
    ts_status (*event_record)(void *state, int device, ts_event *event, ts_stream *stream);
    /** Makes later work on the stream wait for the event. */
    ts_status (*event_wait)(void *state, int device, ts_event *event, ts_stream *stream);
    /** The host waits for the event. */
    ts_status (*event_synchronize)(void *state, int device, ts_event *event);
    /** Milliseconds between two events that have happened. (optional: not measured) */
    ts_status (*event_elapsed)(void *state, int device, ts_event *start, ts_event *end, double *ms);
    /** Memory is used on a stream other than the one it was allocated for.
     * (optional: free waits for all) */
    ts_status (*record_stream)(void *state, int device, void *data, int64_t bytes,
                               ts_stream *stream);

    /** True if the backend's kernel takes this call; called before each. If not, the fallback runs,
     *  or the call is an error. (optional: always true) */
    bool (*supports)(void *state, const ts_frame *frame);
    /** Selects algorithms whose results do not depend on scheduling, or any algorithms.
     * (optional: results never depend on it) */
    ts_status (*set_deterministic)(void *state, bool on);
    /** Bytes in use, peak, reserved and calls to the system, of one device.
     * (optional: not known) */
    ts_status (*memory_stats)(void *state, int device, ts_memory_stats *stats);
    /** Resets the peak to the bytes in use now. (optional: it cannot be reset) */
    ts_status (*memory_reset_peak)(void *state, int device);

    /** Begins a capture: until capture_end, the backend records the work that the calling thread
     *  queues on *stream, and does not run it. If *capture is NULL, the backend makes a new
     *  capture; otherwise the work replaces parts of *capture. Until capture_end the library
     *  neither allocates, nor copies from or to the host, nor waits.
     *  (optional: work is never captured) */
    ts_status (*capture_begin)(void *state, int device, ts_capture **capture, ts_stream **stream);
    /** Begins part number `part` of the captured work; numbers rise within a capture. (this and
     *  the next three: required with capture_begin) */
    ts_status (*capture_part)(void *state, int device, ts_capture *capture, int part);
    /** Ends capturing. It is an error if a replaced part has other kernels than before. *launches
     *  receives the number of launches of a replay. After an error the library frees the
     *  capture. */
    ts_status (*capture_end)(void *state, int device, ts_capture *capture, int64_t *launches);
    /** Queues the captured work on a stream, in order after earlier replays of the same capture. */
    ts_status (*capture_replay)(void *state, int device, ts_capture *capture, ts_stream *stream);
    /** Frees a capture, also one that was begun but not ended. Waits for its replays. */
    void (*capture_free)(void *state, int device, ts_capture *capture);

    /** True if the backend can run a pointwise call as a part of a fused group. The frame is the
     *  kernel's frame, except that its tensors have no memory; `kernel` is the call's kernel.
     *  (optional: no groups) */
    bool (*group_takes)(void *state, ts_frame *frame, ts_kernel kernel);
    /** Queues all calls of a group at once. TS_ERR_UNSUPPORTED if it cannot, with the reason: the
     *  library then runs the calls one by one. (required with group_takes) */
    ts_status (*group_run)(void *state, int device, const ts_group_call *calls, int count,
                           ts_stream *stream, ts_group_report *report);
} ts_backend;

/** Type and name of the one symbol that a backend's library exports. */
typedef const ts_backend *(*ts_backend_entry_fn)(void);
#define TS_BACKEND_ENTRY_NAME "ts_backend_entry"
/** Defines the symbol. */
#define TS_BACKEND_ENTRY(backend)                                                                  \
    __attribute__((visibility("default"))) const ts_backend *ts_backend_entry(void);               \
    __attribute__((visibility("default"))) const ts_backend *ts_backend_entry(void)                \
    {                                                                                              \
        return (backend);                                                                          \
    }

/**
 * Loads a shared library and its backend, in one transaction: if any part fails (install included),
 * the registry is unchanged. The library is never unloaded afterwards.
 * @param path  as for dlopen(): with a slash a regular file, else searched for
 * @param key   receives the backend's key, the `backend` of its devices; may be NULL
 *
 * Errors: TS_ERR_IO (cannot be opened), TS_ERR_FORMAT (no such symbol, another ABI, a required
 * slot is NULL), TS_ERR_REGISTRY (loaded already, name taken, a kernel written for another schema),
 * or what install reports. Each message names the file.
 */
TS_API ts_status ts_backend_load(const char *path, ts_key *key);
/** Loads a backend that is part of the program. *backend must live as long as the process. */
TS_API ts_status ts_register_backend(const ts_backend *backend, ts_key *key);
/**
 * Opens a backend that comes with the library ("cuda") unless it is open already. Its file
 * (libtessera_cuda.so.0) is searched for beside this library, then by the dynamic linker's rules.
 * The variable TS_CUDA disables it (0) or names the file. The library opens no backend by itself.
 * @param key  receives the backend's key; may be NULL
 *
 * Errors: TS_ERR_VALUE (no such backend comes with the library), TS_ERR_DEVICE (refused), and those
 * of ts_backend_load(). An open backend may have no device.
 */
TS_API ts_status ts_backend_open(const char *name, ts_key *key);

/** Round trips and copies of a backend since the start. */
typedef struct ts_backend_stats {
    uint64_t round_trips;  /**< calls that ran on the CPU because the backend has no kernel */
    uint64_t bytes_in;     /**< copied from the host by the library, round trips included */
    uint64_t bytes_out;    /**< copied to the host */
} ts_backend_stats;
/** TS_ERR_DEVICE for a key without a backend. TS_LOG=backend prints each op's first round trip. */
TS_API ts_status ts_backend_get_stats(ts_key key, ts_backend_stats *stats);
/** Memory of a device; the host's for the CPU. TS_ERR_UNSUPPORTED if the backend does not report
 *  it. */
TS_API ts_status ts_device_memory_stats(ts_device device, ts_memory_stats *stats);
/**
 * Resets a device's peak to the bytes in use now; for the CPU as ts_memory_reset_peak().
 * TS_ERR_DEVICE: no such device; TS_ERR_UNSUPPORTED: the backend cannot.
 */
TS_API ts_status ts_device_memory_reset_peak(ts_device device);

TS_END_DECLS
#endif
