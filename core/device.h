/** @file device.h  Internal access to devices through their backends' structs. */
// SPDX-License-Identifier: MIT
#ifndef TS_CORE_DEVICE_H
#define TS_CORE_DEVICE_H

#include <stdatomic.h>

#include "core/thread.h"
#include "include/tessera/backend.h"

/** The backend of each key; NULL for the CPU, META and keys without a struct. dispatch/ sets each
 * once. */
extern _Atomic(const ts_backend *) ts_devices[16];
/** Name of each key; NULL for unused keys. Names of built-in keys are constant, dispatch/ publishes
 *  those of registered keys. */
extern _Atomic(const char *) ts_key_names[];
/** The counters of a backend that ts_backend_get_stats() reports: calls that ran on the CPU
 *  instead, bytes copied from the host (in) and to the host (out). ts_device_count_of has one per
 *  key. */
typedef struct ts_device_counts {
    _Atomic uint64_t round_trips, bytes_in, bytes_out;
} ts_device_counts;
extern ts_device_counts ts_device_count_of[16];

/** The backend of a device; NULL when it has none of its own. */
TS_INLINE const ts_backend *ts_backend_of(ts_device device)
{
    return device.backend < 16
               ? atomic_load_explicit(&ts_devices[device.backend], memory_order_acquire)
               : NULL;
}

/** TS_ERR_DEVICE if the device does not exist; the message begins with `what`. META and the CPU
 *  have one device each. */
ts_status ts_device_check(ts_device device, const char *what);
/** False for devices that cannot exist: those of LAZY, and of the CPU and META with another index
 *  than 0. ts_device_check() checks other devices. */
TS_INLINE bool ts_device_exists(ts_device device)
{
    return TS_LIKELY(device.backend == TS_KEY_CPU || device.backend == TS_KEY_META)
               ? !device.index
               : device.backend != TS_KEY_LAZY;
}
/** Hint for an error about a tensor on device `got` instead of `expected`. */
const char *ts_move_hint(ts_device got, ts_device expected);
/**
 * Device memory for the temporaries of a thread's calls while a plan is captured
 * (compile/capture.c). Each call starts at `base` again, so a repeated capture gets the same
 * addresses. With base NULL the workspace only adds up the sizes, and the backend allocates.
 */
typedef struct ts_workspace {
    ts_device device;
    char *base;
    int64_t bytes, used, most; /* capacity; bytes that the current call uses; largest `used` */
    int64_t live;              /* allocations not yet freed */
} ts_workspace;

/** True if a graph captures the thread's calls, so the work that they queue does not run yet. */
TS_INLINE bool ts_is_captured(const ts_thread *thread)
{
    return TS_UNLIKELY(thread->workspace != NULL) && thread->workspace->base;
}

/** Allocates bytes > 0 of memory on a device that has a backend: from the thread's workspace for
 *  the device, if that has a base, otherwise from the backend. NULL with TS_ERR_MEMORY, which names
 *  `what`, or with the backend's TS_ERR_DEVICE if the device is lost. */
void *ts_device_allocate(ts_device device, int64_t bytes, const char *what);
/** Frees memory of ts_device_allocate(); bytes: the size passed there. */
void ts_device_release(ts_device device, void *data, int64_t bytes);
/**
 * Copies bytes between any two devices with memory. A copy to the host waits for the values; a copy
 * to a device is queued on the current stream of the destination. A copy between devices of two
 * backends, or of a backend without copy_between(), goes through the host, which waits for the
 * current stream of the source. Errors:
 * TS_ERR_DEVICE (a device has no memory), TS_ERR_UNSUPPORTED (in a capture, unless both are the
 * same device), TS_ERR_MEMORY, those of the backend. bytes of 0 or less copy nothing.
 */
ts_status ts_device_copy(ts_device to, void *data, ts_device from, const void *source,
                         int64_t bytes);
/** Passes the current deterministic mode (ts_set_deterministic()) to one backend. */
ts_status ts_device_pass_deterministic(const ts_backend *backend);

#endif
