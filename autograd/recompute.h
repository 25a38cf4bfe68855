/**
 * @file recompute.h  Graphs that save slot numbers and recompute the tensors that rules read.
 *
 * While a function checkpointed by ts_recompute() runs forward, its thread has a tape. Nodes get
 * edges as usual, but they save slot numbers instead of tensors. One run of the function gives out
 * the slots of one segment. The first rule that reads a slot runs the function again, with a tape
 * that collects the tensors in the same order. Backward always uses the graph of the first run, so
 * leaves, hooks and double backward work unchanged.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_AUTOGRAD_RECOMPUTE_H
#define TS_AUTOGRAD_RECOMPUTE_H

#include "autograd/engine.h"

typedef struct ts_segment ts_segment;

/** How a thread saves tensors for backward while a checkpointed function runs. If both segment and
 *  into are NULL (an inner checkpointed function, while the outer one runs again), nodes save only
 *  leaves that require grad and are not inputs; nothing would read the others. */
struct ts_tape {
    ts_segment *segment;      /* first run: gives slot numbers */
    ts_collected *into;       /* second run: collects the tensors */
    ts_tensor *const *inputs; /* inputs of the function */
    int n;                    /* number of inputs */
};

/** The slow part of ts_saved_pack(). */
bool ts_tape_take(ts_tape *tape, ts_node *node, ts_tensor *t, ts_saved *s);
/** Offers t, which node is about to save, to the thread's tape. True: the tape handles it: the
 *  first run writes a slot number to *s, the second run collects t. False: the node must save t
 *  itself. */
TS_INLINE bool ts_saved_pack(ts_thread *thread, ts_node *node, ts_tensor *t, ts_saved *s)
{
    return TS_UNLIKELY(thread->tape != NULL) && ts_tape_take(thread->tape, node, t, s);
}

/** The tensor whose slot number the node saved in `packed`, without history; valid until the node
 *  has run. The first call of a backward for a segment runs its function again. NULL with an error:
 *  TS_ERR_STATE if the second run differs from the first, TS_ERR_AUTOGRAD if it cannot start (an
 *  input was written since, forward failed or still runs), TS_ERR_INTERNAL if the node has no
 *  segment, TS_ERR_MEMORY, or the function's own error. */
const ts_saved *ts_collected_get(ts_run *run, ts_node *node, const ts_end *packed);
/** Releases the tensors that were recomputed for a node that has run. */
void ts_collected_done(ts_run *run, ts_node *node);
/** Releases all tensors that were recomputed for the run, at its end. */
void ts_collected_free(ts_run *run);
void ts_segment_unref(ts_segment *segment);

#endif
