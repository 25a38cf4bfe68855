/** @file marks.h  Marks of a profile, which record when threads change their scopes; and the
 * profile's rows for fused groups and device graphs. */
// SPDX-License-Identifier: MIT
#ifndef TS_DISPATCH_MARKS_H
#define TS_DISPATCH_MARKS_H

#include "dispatch/record.h"
#include "include/tessera/backend.h"

/** Most marks of a recording; later marks are lost. */
enum { TS_MARKS_MOST = 1 << 16 };

/** The thread is in `scope` starting at `tick`. */
typedef struct ts_mark {
    _Atomic int64_t tick; /* 0: the mark is not complete */
    uint32_t scope;
    int thread; /* ts_timers.thread_id */
} ts_mark;

/** Removes all marks, when a recording begins. */
void ts_marks_clear(void);
/** Records that t's thread is in `scope` from now on. Does nothing unless a device is recorded: the
 *  marks explain its idle time. */
void ts_mark_scope(const ts_timers *t, uint32_t scope);
/** Number of marks of the recording; those of each thread are in the order of time. *lost: number
 *  of marks that were not kept. */
int64_t ts_marks(int64_t *lost);
/** Copies mark i; false if its thread has not completed it. */
bool ts_mark_at(int64_t i, ts_mark *mark);

/** Begins a call of a fused group. Returns a token for ts_timer_group_leave(); NULL if no profile
 *  records, while the thread captures a graph, or if memory is short. */
void *ts_timer_group_enter(ts_thread *thread, const ts_group_call *calls, int count);
/** Ends the call that ts_timer_group_enter() began; a NULL token is allowed. */
void ts_timer_group_leave(ts_thread *thread, void *token);

/** Prepares a call of a group on the CPU: counts the thread's time as the profiler's own until
 *  ts_timer_part_enter() begins the call, which ts_timer_group_leave() ends. Returns the token for
 *  these two functions; NULL if no profile records, or if memory is short. */
void *ts_timer_own(ts_thread *thread);

/** The row and the work of a part of a graph. */
typedef struct ts_graph_part {
    ts_tally_row *row; /* NULL: none */
    ts_work work;
} ts_graph_part;
/** Begins the call that ts_timer_own() prepared. Without part->row, its time belongs to the row
 *  that was active before ts_timer_own(). Does nothing if token is NULL. */
void ts_timer_part_enter(ts_thread *thread, void *token, const ts_graph_part *part);
/** A number that identifies the recording and the thread's scope; rows of ts_graph_row() are valid
 *  while it stays the same. 0: no profile records, or memory is short. */
int64_t ts_graph_period(ts_thread *thread);
/** Sets *part to the row and the work of a call (calls[0]), or of a fused group, in the thread's
 *  scope. Errors: TS_ERR_MEMORY. */
ts_status ts_graph_row(ts_thread *thread, const ts_group_call *calls, int count, bool fused,
                       ts_graph_part *part);
/** Adds a replay of a graph to the rows of its parts, and tags the work that the thread queues
 *  next. Does nothing unless a profile records. works: for each kernel, copy and memset of the
 *  graph, in the order in which they run, its part, or NULL; nworks 0: unknown. `graph` is an
 *  address that identifies the graph. */
void ts_graph_launches(ts_thread *thread, const void *graph, const ts_graph_part *parts, int nparts,
                       const ts_graph_part *const *works, int nworks);
/** Notes that a launch of a device graph runs a call of `op`. An op that updates parameters then
 *  ends a step as if the thread had called it (ts_timers_step()). */
void ts_timer_note_launched(const ts_thread *thread, uint16_t op);

#endif
