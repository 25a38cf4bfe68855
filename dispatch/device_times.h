/**
 * @file device_times.h  Times of device work (kernels, copies, memsets) while a profile records.
 *
 * A "work" is one kernel, copy or memset. The backend records its works. Each carries the tag that
 * the queuing thread had set. A tag contains a row of the profile and a step, so works are assigned
 * to rows by tag, not by time. If the backend cannot record, events time its calls instead
 * (device_events.h).
 */
// SPDX-License-Identifier: MIT
#ifndef TS_DISPATCH_DEVICE_TIMES_H
#define TS_DISPATCH_DEVICE_TIMES_H

#include "dispatch/marks.h"

/* A tag, from the highest bit:
 *   44 bits  highest bits of the row's hash; 0: no row
 *    4 bits  number of resets, modulo 16
 *   16 bits  step, modulo 65536
 * TS_TAG_STEP and TS_TAG_RESET are widths; TS_TAG_ROW is the row's lowest bit. */
enum { TS_TAG_STEP = 16, TS_TAG_RESET = 4, TS_TAG_ROW = TS_TAG_STEP + TS_TAG_RESET };

/** The row's bits of a tag: its hash >> TS_TAG_ROW; 0: no row. */
TS_INLINE uint64_t ts_tag_row(uint64_t tag) { return tag >> TS_TAG_ROW; }
/** The step of a tag: number of steps that had ended since the last reset, modulo 65536. */
TS_INLINE int64_t ts_tag_step(uint64_t tag) { return (int64_t)(tag & ((1 << TS_TAG_STEP) - 1)); }
/** True if the tag is of the current recording, not of one before a reset. */
bool ts_tag_is_current(uint64_t tag);

void ts_device_times_install(void);
/** Starts recording on one loaded backend: the first, by key, that has a device and profile_begin()
 *  and can be recorded. If profile_begin() fails, events time the backend's calls if they can;
 *  ts_device_times() returns the reason as a note. Call it before ts_timers_record(true);
 *  ts_timers_record(false) ends it. */
void ts_device_times_begin(void);
/** Starts recording on `backend`, which was just loaded, if a profile records and no other backend
 *  records. NULL is allowed. */
void ts_device_times_join(const ts_backend *backend);
/** Drops the work recorded so far, at a reset. */
void ts_device_times_drop(void);
/** Ends recording and fetches the record from the backend. If another thread is ending the
 *  recording, waits until it has finished. Does nothing if no backend records. */
void ts_device_times_end(void);
/** True if a backend records, or made the last recording. Calls no backend and takes no lock. */
bool ts_device_times_exist(void);
/** Sets the tag of the work that the calling thread queues from now on. row: NULL for no row;
 *  reset: number of the last reset that the thread saw. */
void ts_device_times_tag(const ts_backend *backend, const ts_tally_row *row, int64_t reset);
/** Tags the work that the calling thread queues, until the next tag, as works of a graph. row: the
 *  thread's running row, which gets the works that have no row of their own. graph, works, nworks:
 *  see ts_graph_launches(). The work keeps the thread's tag if nworks is 0, if events time the
 *  backend, or if memory is short. */
void ts_device_times_graph(const ts_backend *backend, const ts_tally_row *row, int64_t reset,
                           const void *graph, const ts_graph_part *const *works, int nworks);
/** Rows of a graph's works, as row bits of tags (ts_tag_row()). */
typedef struct ts_graph_map {
    uint64_t id;         /* row bits in the tag of the graph's launches */
    uint64_t launch_row; /* row of the launch, which gets the works that have no row of their own */
    int count;           /* number of works */
    uint64_t *rows;      /* row of each work, in the order in which the works run */
} ts_graph_map;
/** The graphs of the last recording, borrowed. */
const ts_graph_map *ts_device_times_graphs(int *count);

/** The host's clock (ticks) and the device's clock (ns), read at the same moment: [0] at the start
 * of a recording, [1] at its end. */
typedef struct ts_device_clock {
    int64_t ticks[2], ns[2];
} ts_device_clock;
/** The clocks of the last recording; NULL: unknown. */
const ts_device_clock *ts_device_times_clock(void);

/** Switches ranges on, until the recording ends: backends with profile_range() pass scopes and
 *  steps to other tools as named ranges (on CUDA by NVTX, the NVIDIA Tools Extension). */
void ts_device_times_name_ranges(bool on);
/** Ends the range "step", if one is open, and begins the next. */
void ts_device_times_range_step(void);
/** Begins a range of the calling thread; NULL ends its innermost range. Does nothing unless
 *  ts_device_times_name_ranges() switched ranges on. */
void ts_device_times_range(const char *name);

/** ts_device_times_scope() while a profile records. */
void ts_device_times_open_scope(const char *name);
/** Opens a scope of the profile for work that a compiled plan queues outside of calls, such as the
 *  launch of a graph; name NULL closes it. Does nothing unless a profile records. */
TS_INLINE void ts_device_times_scope(const ts_thread *thread, const char *name)
{
    if (TS_UNLIKELY(atomic_load_explicit(&thread->state, memory_order_relaxed) &
                    TS_THREAD_RECORDING))
        ts_device_times_open_scope(name);
}
/** The work of the last recording, valid until the next one begins; count is 0 if there is none.
 *  *note: the error of the backend's recording, also if events replaced it; "": none. */
const ts_device_record *ts_device_times(const char **note);
/** The first device of the backend that made the last recording; the CPU if none did. */
ts_device ts_device_of_times(void);

#endif
