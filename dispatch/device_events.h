/** @file device_events.h  Times of device work for a backend that cannot record its work itself.
 * Events of device 0, recorded before and after each kernel call, delimit an interval, which
 * becomes one ts_device_work. Work on the backend's other devices is not timed. */
// SPDX-License-Identifier: MIT
#ifndef TS_DISPATCH_DEVICE_EVENTS_H
#define TS_DISPATCH_DEVICE_EVENTS_H

#include "include/tessera/backend.h"

/** Begins recording. False if the backend has no events that measure time, or they fail. */
bool ts_device_events_begin(const ts_backend *backend);
/** Ends the calling thread's interval, if one is open. kernel: true if the thread is about to run a
 *  kernel of the backend, which begins the next interval; tag: of that interval. Does nothing while
 *  the thread captures a graph, or if another backend is recorded. */
void ts_device_events_tag(const ts_backend *backend, uint64_t tag, bool kernel);
/** Drops the intervals recorded so far. */
void ts_device_events_drop(void);
/** Waits for the events of the recorded intervals, frees all events, and fills *record, whose work
 *  is valid until the next recording. Returns TS_OK. */
ts_status ts_device_events_end(const ts_backend *backend, ts_device_record *record);

#endif
