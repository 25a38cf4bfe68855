/** @file device.h  Internal access to devices: memory, copies and counters. The functions here are
 * implemented by core/device.c, which calls the functions in the device's struct ts_backend
 * (include/tessera/backend.h). The CPU and META have no such struct. */
// SPDX-License-Identifier: MIT
#ifndef TS_CORE_DEVICE_H
#define TS_CORE_DEVICE_H

#include <stdatomic.h>

#include "core/thread.h"
#include "include/tessera/backend.h"

/** The backend of each key; NULL for the CPU, META and keys without a struct. dispatch/ sets each
 * once. */
extern _Atomic(const ts_backend *) ts_devices[16];
/** Name of each key, backend or layer; NULL for unused keys. Names of built-in keys are constant.
 *  dispatch/ sets the name of a registered key, and removes it if the registration fails. */
extern _Atomic(const char *) ts_key_names[];
/** The counters of a backend that ts_backend_get_stats() reports: round trips (calls that ran on
 *  the CPU instead), bytes copied from the host (in) and to the host (out). */
typedef struct ts_device_counts {
    _Atomic uint64_t round_trips, bytes_in, bytes_out;
} ts_device_counts;
extern ts_device_counts ts_device_count_of[16]; /* by backend key */

/** The backend struct of a device; NULL for the CPU, META and keys without a struct. */
TS_INLINE const ts_backend *ts_backend_of(ts_device device)
{
    return device.backend < 16
               ? atomic_load_explicit(&ts_devices[device.backend], memory_order_acquire)
               : NULL;
}

/** TS_ERR_DEVICE if the device does not exist; the message begins with `what`. META and the CPU
 *  have one device each. */
ts_status ts_device_check(ts_device device, const char *what);
/** False for the devices of LAZY, and for those of the CPU and META whose index is not 0. True for
 *  all other devices: ts_device_check() tests whether they exist. */
TS_INLINE bool ts_device_exists(ts_device device)
{
    return TS_LIKELY(device.backend == TS_KEY_CPU || device.backend == TS_KEY_META)
               ? !device.index
               : device.backend != TS_KEY_LAZY;
}
/** Hint for an error about a tensor on device `got` instead of `expected`. */
const char *ts_move_hint(ts_device got, ts_device expected);
/**
 * Device memory for the temporaries of a thread's calls while compile/capture.c captures a plan in
 * a device graph. Each call starts at `base` again, so a repeated capture gets the same addresses.
 * If base is NULL, the workspace only adds up the sizes and the backend allocates.
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
 * current stream of the source. bytes <= 0 copies nothing.
 *
 * Errors: TS_ERR_DEVICE (a device has neither host memory nor a loaded backend), TS_ERR_UNSUPPORTED
 * (in a capture, unless both devices are the same), TS_ERR_MEMORY, those of the backend.
 */
ts_status ts_device_copy(ts_device to, void *data, ts_device from, const void *source,
                         int64_t bytes);
/** Passes the current deterministic mode (ts_set_deterministic()) to one backend. */
ts_status ts_device_pass_deterministic(const ts_backend *backend);

#endif
