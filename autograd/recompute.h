/**
 * @file recompute.h  Graphs that save nothing and compute again what their rules read.
 *
 * While a checkpointed function runs forward, its thread records on a tape: nodes get their edges
 * as always, but instead of tensors they keep numbers of a segment. The first rule that reads one
 * runs the function again on a tape that collects what nodes would have saved, in the same order.
 * The graph is the first one throughout, so leaves, hooks and double backward do not know of it.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_AUTOGRAD_RECOMPUTE_H
#define TS_AUTOGRAD_RECOMPUTE_H

#include "autograd/engine.h"

typedef struct ts_segment ts_segment;

/** What a recording thread does with tensors that rules will read. */
struct ts_tape {
    ts_segment *segment;      /* forward: numbers are given */
    ts_collected *into;       /* again: tensors are collected; with neither they are dropped */
    ts_tensor *const *inputs; /* of the function */
    int n;
};

/** Sizes and dtype of a tensor that is not there any more. */
typedef struct ts_shape {
    uint8_t dtype, ndim;
    int64_t sizes[TS_MAX_DIMS];
} ts_shape;
ts_shape ts_shape_of(const ts_tensor *t);

/**
 * Asks the tape about a tensor that node wants to save. True: it is taken care of, and *slot is its
 * number when there will be one to ask for. False: node keeps it, as without a tape.
 */
bool ts_tape_take(ts_tape *tape, ts_node *node, ts_tensor *t, uint32_t *slot);

/** A tensor that was computed again. */
typedef struct ts_kept {
    ts_tensor *t; /* owned, without history */
    uint32_t version;
    uint16_t op;  /* of the node that wanted it */
} ts_kept;

/** What node saved under a number, computed again when need be; NULL with an error.
 *  Lives until the node has run. */
const ts_kept *ts_collected_get(ts_run *run, ts_node *node, uint32_t slot,
                                const ts_shape *expected);
/** node has run: what was computed for it goes. */
void ts_collected_done(ts_run *run, const ts_node *node);
/** The end of a run. */
void ts_collected_free(ts_run *run);
void ts_segment_unref(ts_segment *segment);

#endif
