/**
 * @file recompute.h  Graphs that save slot numbers and recompute the tensors that rules read.
 *
 * While a checkpointed function runs forward, its thread records on a tape: nodes get edges as
 * usual, but slot numbers of a segment instead of tensors. The first rule that reads a slot runs
 * the function again on a tape that collects the tensors in the same order. The graph of the first
 * run is the only one, so leaves, hooks and double backward work unchanged.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_AUTOGRAD_RECOMPUTE_H
#define TS_AUTOGRAD_RECOMPUTE_H

#include "autograd/engine.h"

typedef struct ts_segment ts_segment;

/** Treatment of saved tensors in a recording thread. */
struct ts_tape {
    ts_segment *segment;      /* forward: numbers are given */
    ts_collected *into;       /* again: tensors are collected; with neither they are dropped */
    ts_tensor *const *inputs; /* of the function */
    int n;
};

/** Part of ts_saved_pack(): asks the tape. */
bool ts_tape_take(ts_tape *tape, ts_node *node, ts_tensor *t, ts_saved *s);
/** True: the thread's tape takes care of a tensor that node wants to save, and has given its number
 *  to *s if there will be one to ask for. False: node keeps it. */
TS_INLINE bool ts_saved_pack(ts_thread *thread, ts_node *node, ts_tensor *t, ts_saved *s)
{
    return TS_UNLIKELY(thread->tape != NULL) && ts_tape_take(thread->tape, node, t, s);
}

/** A tensor that the node saved, recomputed if necessary, without history; NULL with an error.
 *  Lives until the node has run. */
const ts_saved *ts_collected_get(ts_run *run, ts_node *node, const ts_end *packed);
/** Releases the tensors that were recomputed for a node that has run. */
void ts_collected_done(ts_run *run, ts_node *node);
/** The end of a run. */
void ts_collected_free(ts_run *run);
void ts_segment_unref(ts_segment *segment);

#endif
