/**
 * @file device_times.h  Times of device work while a profile records.
 *
 * The backend records its work; each piece has the tag of the thread that queued it. A tag names a
 * row of the profile and a step, so that work is joined to rows by number and never by time.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_DISPATCH_DEVICE_TIMES_H
#define TS_DISPATCH_DEVICE_TIMES_H

#include "dispatch/record.h"
#include "include/tessera/backend.h"

/* Bits of a tag: 44 of the row's hash, 4 of the number of resets, 16 of the step. */
enum { TS_TAG_STEP = 16, TS_TAG_RESET = 4, TS_TAG_ROW = TS_TAG_STEP + TS_TAG_RESET };

/** The row's part of a tag. */
TS_INLINE uint64_t ts_tag_row(uint64_t tag) { return tag >> TS_TAG_ROW; }
/** The step of a tag: steps that had ended since recording began. */
TS_INLINE int64_t ts_tag_step(uint64_t tag) { return (int64_t)(tag & ((1 << TS_TAG_STEP) - 1)); }
/** True if the tag is of the current recording, not of one before a reset. */
bool ts_tag_is_current(uint64_t tag);

/** Starts recording on the first loaded backend that can. Call it before ts_timers_record(true);
 *  ts_timers_record(false) ends it. */
void ts_device_times_begin(void);
/** Starts recording on a backend that is loaded while a profile records. */
void ts_device_times_join(const ts_backend *backend);
/** Drops the work recorded so far, at a reset. */
void ts_device_times_drop(void);
void ts_device_times_end(void);
/** Tags later work of the calling thread. row: NULL for no row; reset: the number of the last reset
 *  that the thread saw. */
void ts_device_times_tag(const ts_backend *backend, const ts_tally_row *row, int64_t reset);
/** Opens a scope of the profile around work that a compiled plan queues without a call, such as a
 *  graph's launch; name NULL closes it. Does nothing while no profile records. */
void ts_device_times_open_scope(const char *name);
TS_INLINE void ts_device_times_scope(const ts_thread *thread, const char *name)
{
    if (TS_UNLIKELY(atomic_load_explicit(&thread->state, memory_order_relaxed) &
                    TS_THREAD_RECORDING))
        ts_device_times_open_scope(name);
}
/** The work of the last recording, borrowed until the next one; count 0 without any. *note: why
 *  there is none, "" if nothing failed. */
const ts_device_record *ts_device_times(const char **note);
/** The first device of the backend that made the last recording; the CPU if none did. */
ts_device ts_device_of_times(void);

#endif
