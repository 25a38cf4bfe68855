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
 * kernel.h has the interface of kernels; docs/add-a-backend.md explains a complete backend.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_BACKEND_H
#define TESSERA_BACKEND_H

#include "device.h"
#include "dispatch.h"

TS_BEGIN_DECLS

/**
 * Version of struct ts_backend and of kernel.h. While it is 0, a backend must have been built with
 * the library's headers: abi_version and struct_size must be equal to the library's.
 */
#define TS_BACKEND_ABI 0u

/** Bits of ts_backend.flags. */
typedef enum ts_backend_flag {
    TS_BACKEND_CPU_FALLBACK = 1, /**< calls without a kernel run on the CPU, with copies there and
                                      back; ts_backend_get_stats() counts them */
    TS_BACKEND_WHOLE_OPS = 2     /**< the backend's fallback takes precedence over composites */
} ts_backend_flag;

/** A capture: the recorded work of a stream, which is replayed as a whole; opaque to the library.
 *  It consists of numbered parts: capture_part() begins a part, which ends at the next call of
 *  capture_part() or capture_end(). In the library, a part is one step of a plan (compile.h). */
typedef struct ts_capture ts_capture;
/** Two parts of a capture, by number: `after` runs after `before`. */
typedef struct ts_part_pair {
    int before, after;
} ts_part_pair;

/**
 * A call of a fused group: a frame that is ready for its kernel. A fused group is a list of calls
 * of a compiled function (compile.h) that the backend runs as one kernel or a few. All calls of a
 * group are on one device and iterate over the same sizes, the group's sizes. They run as if in
 * order: a call reads the results of earlier calls. A group consists of these calls:
 *
 * - Pointwise calls, with a result of the group's sizes.
 * - Calls by rows (ts_kernel_row_dims() is not 0), with an argument 0 of the group's sizes. A row
 *   consists of the last dims; their number is the same in all these calls. Each tensor of the
 *   group is then contiguous along a row or has one element per row, results of pointwise calls
 *   included. No call of the group reads a result that is a sum over rows or that lacks the dims of
 *   a row.
 * - Only in groups without calls by rows: reductions (ts_kernel_row_dims() is 0) of the same
 *   adjacent dims and dtype, with an argument 0 of the group's sizes. Such a group may also have
 *   pointwise calls whose tensors have one element or the sizes of the reductions' results,
 *   where dims of size 1 do not count.
 * - Only as the first call: a product. All other calls are then its epilogue
 *   (ts_backend.epilogue_cost).
 *
 * Arguments and results of the group with equal addresses are the same tensor. A tensor without
 * data (ts_kernel_data() is NULL) is used only inside the group and needs no memory. If an
 * argument's dtype is not ts_kernel_dtype(), the backend casts it, as ts_to() does.
 */
typedef struct ts_group_call {
    ts_frame *frame;
    ts_kernel kernel;
} ts_group_call;
/** For group_takes and group_run. If the call works by rows of argument 0 (norms, softmax,
 *  reductions of the last dims, sums over the first dims), returns the number of last dims that
 *  form a row; else 0. Sets *summed, unless it is NULL: true if results whose sizes differ from
 *  argument 0 are sums over all rows, false if they have one number per row. */
TS_API int ts_kernel_row_dims(const ts_frame *frame, bool *summed);
/** Result of running a group. */
typedef struct ts_group_report {
    int64_t launches;  /**< number of kernels launched */
    double compile_ms; /**< time to compile or load these kernels; 0: they were in memory */
    bool from_disk;    /**< the kernels were loaded from files of an earlier compilation */
} ts_group_report;

/** A kernel, copy or memset that a device ran. Times are in ns, on the clock of profile_clock. */
typedef struct ts_device_work {
    uint64_t tag; /**< the tag (profile_tag) of the thread that queued it; 0: none */
    int64_t begin_ns, end_ns;
    int64_t called_ns, queued_ns; /**< begin and end of the host's call; 0: unknown */
    const char *name; /**< a kernel's name, for tools; NULL: unknown. Valid as long as the record */
    uint32_t launch;  /**< number of the host call that queued the work; all work of one graph
                           launch has the same number */
    float waves;      /**< a kernel's blocks, divided by the blocks that the device runs at once; 0:
                           unknown, or a persistent kernel, whose blocks loop over the work */
    uint8_t device;   /**< index of the device in the backend */
    bool kernel;      /**< false: a copy or a memset */
    bool pageable;    /**< a copy from or to pageable host memory, which blocks the host */
} ts_device_work;
/** A call that blocks the host, which cannot queue work meanwhile. */
typedef struct ts_device_wait {
    uint64_t tag; /**< the tag (profile_tag) of the calling thread; 0: none */
    int64_t begin_ns, end_ns;
    bool allocates; /**< true: it allocates or frees device memory; false: it waits for work */
} ts_device_wait;
/** The work of all devices of a backend during one recording. */
typedef struct ts_device_record {
    const ts_device_work *work; /**< in any order; owned by the backend, valid until the next
                                     profile_begin */
    int64_t count;    /**< length of `work` */
    int64_t lost;     /**< number of kernels, copies and memsets that are not in `work`, because
                           they were not recorded or have an invalid time */
    char source[32];  /**< name of the timing library and its version number */
    const ts_device_wait *waits; /**< nwaits waits, owned like `work`; NULL: not recorded */
    int64_t nwaits;
} ts_device_record;

/**
 * Functions of a backend. Each gets the struct's `state`; `device` is a device's index. Several
 * threads may call them at the same time. Functions that return ts_status record errors with
 * ts_error_set(). A function marked "(optional: ...)" may be NULL; the text after the colon says
 * how the library then behaves. A function marked "(required with f)" must not be NULL if f is not.
 *
 * Only the backend dereferences a memory address: the library adds byte offsets to it (views) and
 * passes it on. Sizes are in bytes, above 0. Copies are queued in order on a stream. A copy from
 * ordinary host memory, not from host_allocate, must have read that memory before the function
 * returns. A NULL stream is the device's default stream.
 */
typedef struct ts_backend {
    uint32_t struct_size; /**< sizeof(ts_backend) */
    uint32_t abi_version; /**< TS_BACKEND_ABI */
    /** Name of the dispatch key, 1 to 23 characters; in lower case it is the name of the devices.
     *  "CUDA" gets TS_KEY_CUDA, other names get a free key. */
    const char *name;
    uint64_t flags; /**< bits of ts_backend_flag */
    void *state;

    /** Registers the kernels, with the functions of dispatch.h. If it succeeds, all registrations
     *  become visible together; if it fails, none does. (optional: a backend without kernels) */
    ts_status (*install)(void *state, ts_key key);
    /** Number of devices; the library uses at most 256. If it returns 0, it may record the reason
     *  with ts_error_set(). (optional: 1) */
    int (*device_count)(void *state);

    /** Allocates `bytes` bytes, aligned to 64, for first use on `stream`. NULL: out of memory, or
     *  the device is lost and TS_ERR_DEVICE is recorded. */
    void *(*allocate)(void *state, int device, int64_t bytes, ts_stream *stream);
    /** Frees memory; work that uses it may still be queued. */
    void (*free)(void *state, int device, void *data, int64_t bytes);
    /** Copies from the host to the device. */
    ts_status (*copy_in)(void *state, int device, void *to, const void *from, int64_t bytes,
                         ts_stream *stream);
    /** Copies from the device to the host; the values are valid after a wait for the stream. */
    ts_status (*copy_out)(void *state, int device, void *to, const void *from, int64_t bytes,
                          ts_stream *stream);
    /** Copies inside a device's memory; the ranges do not overlap. */
    ts_status (*copy_within)(void *state, int device, void *to, const void *from, int64_t bytes,
                             ts_stream *stream);
    /** Copies from another device of the backend, on a stream of the destination `device`, after
     *  the work on the source's current stream. (optional: copies through the host) */
    ts_status (*copy_between)(void *state, int device, void *to, int from_device, const void *from,
                              int64_t bytes, ts_stream *stream);

    /** Allocates pinned host memory, from which copies are asynchronous. NULL: as for allocate.
     *  (optional: ordinary memory) */
    void *(*host_allocate)(void *state, int device, int64_t bytes);
    /** Frees pinned memory; copies that use it may still be queued. (required with
     *  host_allocate) */
    void (*host_free)(void *state, int device, void *data, int64_t bytes);

    /** Waits for a stream. (required with stream_new; optional: all functions and kernels are
     *  synchronous) */
    ts_status (*synchronize)(void *state, int device, ts_stream *stream);
    /** Waits for all streams of the device. (optional: synchronize with the device's own stream) */
    ts_status (*synchronize_device)(void *state, int device);
    /** Creates a stream. NULL: TS_ERR_MEMORY, or the device is lost and TS_ERR_DEVICE is recorded.
     *  (optional: there is only the default stream) */
    ts_stream *(*stream_new)(void *state, int device);
    /** Frees a stream after its queued work is done. (required with stream_new) */
    void (*stream_free)(void *state, int device, ts_stream *stream);
    /** Creates an event. NULL: as for stream_new. (optional: no events) */
    ts_event *(*event_new)(void *state, int device);
    /** Frees an event. (required with event_new) */
    void (*event_free)(void *state, int device, ts_event *event);
    /** Records the event after the work queued on the stream. (required with event_new, as are
     *  event_wait and event_synchronize) */
    ts_status (*event_record)(void *state, int device, ts_event *event, ts_stream *stream);
    /** Makes later work on the stream wait for the event. */
    ts_status (*event_wait)(void *state, int device, ts_event *event, ts_stream *stream);
    /** The host waits for the event. */
    ts_status (*event_synchronize)(void *state, int device, ts_event *event);
    /** Writes the milliseconds between two completed events to *ms. (optional: not measured) */
    ts_status (*event_elapsed)(void *state, int device, ts_event *start, ts_event *end, double *ms);
    /** Notes that work on `stream`, other than the stream of the allocation, uses the memory: free
     *  must not reuse it before that work is done. (optional: free waits for all streams) */
    ts_status (*record_stream)(void *state, int device, void *data, int64_t bytes,
                               ts_stream *stream);

    /** True if the backend's kernel supports this call; called before each kernel of the backend.
     *  The shape rule has accepted the arguments, so ts_kernel_dtype() and the decoders, such as
     *  ts_kernel_convolution(), have their values. The tensors are the caller's: neither cast nor
     *  packed, and new results are not yet made. If false, the call runs on the CPU if `flags` has
     *  TS_BACKEND_CPU_FALLBACK; otherwise it is TS_ERR_UNSUPPORTED. (optional: always true) */
    bool (*supports)(void *state, const ts_frame *frame);
    /** Switches deterministic mode: kernels use only algorithms whose results do not depend on
     *  scheduling. (optional: results never depend on scheduling) */
    ts_status (*set_deterministic)(void *state, bool on);
    /** Writes the memory statistics of one device to *stats. (optional: TS_ERR_UNSUPPORTED) */
    ts_status (*memory_stats)(void *state, int device, ts_memory_stats *stats);
    /** Resets the peak to the bytes in use now. (optional: TS_ERR_UNSUPPORTED) */
    ts_status (*memory_reset_peak)(void *state, int device);

    /** Begins a capture: until capture_end, the backend records the work that the calling thread
     *  queues on *stream, and does not run it. If *capture is NULL, the backend makes a new
     *  capture; otherwise the recorded parts replace those of the same numbers in *capture. Until
     *  capture_end the library neither allocates, nor copies from or to the host, nor waits.
     *  (optional: work is never captured) */
    ts_status (*capture_begin)(void *state, int device, ts_capture **capture, ts_stream **stream);
    /** Ends the current part of the captured work and begins part number `part`; numbers ascend
     *  within a capture. (required with capture_begin, as are capture_end, capture_replay and
     *  capture_free) */
    ts_status (*capture_part)(void *state, int device, ts_capture *capture, int part);
    /** Ends capturing and writes the number of kernel launches of a replay to *launches. It is an
     *  error if the kernels of a replaced part changed. After an error the library frees the
     *  capture. */
    ts_status (*capture_end)(void *state, int device, ts_capture *capture, int64_t *launches);
    /** Queues the captured work on a stream, in order after earlier replays of the same capture. */
    ts_status (*capture_replay)(void *state, int device, ts_capture *capture, ts_stream *stream);
    /** Frees a capture, also one that was begun but not ended. Waits for its replays. */
    void (*capture_free)(void *state, int device, ts_capture *capture);

    /** True if the backend can run a call of a fused group: a pointwise call, a call by rows or a
     *  reduction (see ts_group_call). The frame is the kernel's frame, except that its tensors have
     *  no memory; `kernel` is the call's kernel.
     *  (optional: no groups) */
    bool (*group_takes)(void *state, ts_frame *frame, ts_kernel kernel);
    /** The cost of running calls[0] as a product whose epilogue computes calls[1] to
     *  calls[count - 1], by group_run, which then gets exactly these calls. It is the time that the
     *  epilogue adds to the product, in bytes of memory traffic, beyond loads and stores of the
     *  calls' tensors. Each call after calls[0] has one result and reads the result of an earlier
     *  call. The function must not access elements. A tensor that has an address (ts_kernel_data())
     *  must be stored; a tensor whose address is NULL is used by these calls only.
     *  Negative: not possible, or calls[0] is not a product.
     *  (optional, only with group_takes: products have no epilogues) */
    int64_t (*epilogue_cost)(void *state, const ts_group_call *calls, int count);
    /** Queues all calls of a group as fused kernels and fills *report. If the function records and
     *  returns TS_ERR_UNSUPPORTED, the library runs the calls one by one. (required with
     *  group_takes) */
    ts_status (*group_run)(void *state, int device, const ts_group_call *calls, int count,
                           ts_stream *stream, ts_group_report *report);
    /** Like group_run, for `members` groups with the same calls over different tensors, ideally as
     *  one kernel: member m has calls[m * count] to calls[m * count + count - 1]. The calls are
     *  pointwise; each tensor is contiguous and has either its member's sizes or one element. No
     *  member reads or writes a tensor that another member writes.
     *  (optional: each member runs as a group of its own) */
    ts_status (*group_run_members)(void *state, int device, const ts_group_call *calls, int count,
                                   int members, ts_stream *stream, ts_group_report *report);

    /** Starts recording the times of the devices' work; if a recording is active, drops its data.
     *  Called when a profile starts, when the backend is loaded while a profile records, and when a
     *  profile is reset. The profile prints the text of an error. (optional: profiles have host
     *  times only) */
    ts_status (*profile_begin)(void *state);
    /** Sets the tag of the work that the calling thread queues from now on. (required with
     *  profile_begin, as is profile_end) */
    void (*profile_tag)(void *state, uint64_t tag);
    /** Waits for the devices, ends recording and fills *record. */
    ts_status (*profile_end)(void *state, ts_device_record *record);
    /** Returns the current time in ns on the clock of ts_device_work; 0 or less: unknown.
     *  (optional: a device's idle time is not divided among the scopes and layers of the host) */
    int64_t (*profile_clock)(void *state);
    /** Returns the size of a device's memory in bytes. (optional: unknown) */
    int64_t (*memory_capacity)(void *state, int device);
    /** Begins a range of the calling thread with this name for external tools (NVTX, NVIDIA Tools
     *  Extension); NULL ends the thread's innermost range. (optional: no ranges) */
    void (*profile_range)(void *state, const char *name);
    /** Sets *parts to an array with the part number (see capture_part) of each captured kernel,
     *  copy and memset, in the order in which they run. The backend owns the array, which is valid
     *  until the capture changes. Returns its length; 0: unknown. (optional: the work of a capture
     *  has one row in profiles) */
    int (*capture_parts)(void *state, int device, ts_capture *capture, const int **parts);
    /** Writes the device's model, such as "NVIDIA H200", and a text that differs between devices,
     *  drivers and settings on which the speed of kernels depends; each buffer has `size` bytes.
     *  (optional: each process measures the device's ceilings, and profiles name the device only
     *  by its number) */
    ts_status (*identify)(void *state, int device, char *model, char *identity, size_t size);
    /** Replaces the order of the parts of a new capture by a partial one: part pairs[i].after runs
     *  after part pairs[i].before, for 0 <= i < n. Parts that no chain of pairs connects may run at
     *  the same time. Called at most once, between the last part and capture_end.
     *  (optional: parts run one after another) */
    ts_status (*capture_order)(void *state, int device, ts_capture *capture,
                               const ts_part_pair *pairs, int n);
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
 * Loads a shared library and its backend in one transaction: if any part fails (install included),
 * the registry is unchanged and the library is closed. Otherwise the library stays loaded until the
 * process ends.
 * @param path  as for dlopen(): a file if it contains a slash, else a name that the linker searches
 * @param key   receives the backend's key, which is ts_device.backend of its devices; may be NULL
 *
 * Errors: TS_ERR_NULL (path), TS_ERR_IO (cannot be opened), TS_ERR_FORMAT (no such symbol, another
 * ABI, a required function is NULL), TS_ERR_VALUE (an invalid name), TS_ERR_REGISTRY (loaded
 * already, name taken, no key free, a kernel written for another schema or for an op that does not
 * exist), TS_ERR_MEMORY, and those of install and set_deterministic. Each message names the file.
 */
TS_API ts_status ts_backend_load(const char *path, ts_key *key);
/** Loads a backend that is part of the program, as ts_backend_load(). *backend must stay valid
 *  until the process ends. Errors: those of ts_backend_load() without TS_ERR_IO. */
TS_API ts_status ts_register_backend(const ts_backend *backend, ts_key *key);
/**
 * Opens a backend that is distributed with the library ("cuda", in upper or lower case). If a
 * backend of this name is loaded already, only writes its key. Searches for the file
 * (libtessera_cuda.so.0) in the folder of this library, in its subfolder backends/cuda (as in a
 * build folder), then by the dynamic linker's rules.
 * The environment variable TS_CUDA disables the backend (0) or names the file; "" and 1 do neither.
 * A program opens backends explicitly; an open backend may have no device.
 * @param key  receives the backend's key; may be NULL
 *
 * Errors: TS_ERR_NULL, TS_ERR_VALUE (unknown name), TS_ERR_DEVICE (disabled), and those of
 * ts_backend_load().
 */
TS_API ts_status ts_backend_open(const char *name, ts_key *key);

/** Counters of a backend since the process began. */
typedef struct ts_backend_stats {
    uint64_t round_trips;  /**< calls that ran on the CPU because the backend has no kernel for
                                them */
    uint64_t bytes_in;     /**< bytes copied from the host, round trips included */
    uint64_t bytes_out;    /**< bytes copied to the host, round trips included */
} ts_backend_stats;
/** Writes the counters of a backend to *stats. TS_ERR_DEVICE for a key without a ts_backend, such
 *  as those of the CPU and META; TS_ERR_NULL. TS_LOG=backend logs the first round trip of each
 *  op. */
TS_API ts_status ts_backend_get_stats(ts_key key, ts_backend_stats *stats);
/** Writes the memory statistics of a device to *stats; for the CPU, those of the host allocator.
 *  Errors: TS_ERR_DEVICE, TS_ERR_NULL, TS_ERR_UNSUPPORTED if the backend has no statistics. */
TS_API ts_status ts_device_memory_stats(ts_device device, ts_memory_stats *stats);
/**
 * Resets a device's peak to the bytes in use now; for the CPU as ts_memory_reset_peak().
 * TS_ERR_DEVICE: no such device; TS_ERR_UNSUPPORTED: the backend cannot.
 */
TS_API ts_status ts_device_memory_reset_peak(ts_device device);

TS_END_DECLS
#endif
