/** @file device_events.h  Times of device work for a backend that cannot record its work itself.
 * Events before and after each kernel call on device 0 delimit an interval, which becomes one
 * ts_device_work. */
// SPDX-License-Identifier: MIT
#ifndef TS_DISPATCH_DEVICE_EVENTS_H
#define TS_DISPATCH_DEVICE_EVENTS_H

#include "include/tessera/backend.h"

/** Begins recording. False if the backend has no events that measure time. */
bool ts_device_events_begin(const ts_backend *backend);
/** Ends the calling thread's interval, if one is open. If `kernel`, begins the next interval, with
 *  the tag `tag`. */
void ts_device_events_tag(const ts_backend *backend, uint64_t tag, bool kernel);
/** Drops the intervals recorded so far. */
void ts_device_events_drop(void);
/** Waits for the device and fills *record, whose work is valid until the next recording. */
ts_status ts_device_events_end(const ts_backend *backend, ts_device_record *record);

#endif
