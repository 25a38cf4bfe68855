/** @file marks.h  Marks of a profile: changes of scopes; rows of fused groups and of graphs. */
// SPDX-License-Identifier: MIT
#ifndef TS_DISPATCH_MARKS_H
#define TS_DISPATCH_MARKS_H

#include "dispatch/record.h"
#include "include/tessera/backend.h"

enum { TS_MARKS_MOST = 1 << 16 };

/** The thread is in `scope` from `tick` on. */
typedef struct ts_mark {
    int64_t tick;
    uint32_t scope;
    int thread;
} ts_mark;

void ts_marks_install(void);
/** Removes all marks, when a recording begins. */
void ts_marks_clear(void);
/** Records that t's thread is in another scope. */
void ts_mark_scope(const ts_timers *t, uint32_t scope);
/** The marks of the recording in the order of their times in each thread; borrowed. *lost: marks
 *  without room. */
const ts_mark *ts_marks(int64_t *count, int64_t *lost);

/** Begins a call of a fused group outside of a capture. Returns a token for
 *  ts_timer_group_leave(); NULL: no profile records. */
void *ts_timer_group_enter(ts_thread *thread, const ts_group_call *calls, int count);
void ts_timer_group_leave(ts_thread *thread, void *token);

/** The row and the work of a part of a graph. */
typedef struct ts_graph_part {
    ts_tally_row *row; /* NULL: none */
    ts_work work;
} ts_graph_part;
/** Number of the recording and the scope in which the thread's rows for graphs are valid; 0: no
 *  profile records. */
int64_t ts_graph_period(ts_thread *thread);
/** Sets *part to the row of a call, or of a fused group, in the thread's scope. TS_ERR_MEMORY. */
ts_status ts_graph_row(ts_thread *thread, const ts_group_call *calls, int count, bool fused,
                       ts_graph_part *part);
/** Adds a replay of a graph to the rows of its parts, and tags the work that the thread queues
 *  next. works: the part of each work of the graph, in the order in which they run; nworks 0:
 *  unknown. `graph` identifies the graph. */
void ts_graph_launches(ts_thread *thread, const void *graph, const ts_graph_part *parts, int nparts,
                       const ts_graph_part *const *works, int nworks);

#endif
