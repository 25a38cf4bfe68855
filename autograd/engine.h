/** @file engine.h  The backward engine. */
// SPDX-License-Identifier: MIT
#ifndef TS_AUTOGRAD_ENGINE_H
#define TS_AUTOGRAD_ENGINE_H

#include "autograd/node.h"

typedef struct ts_run ts_run;

/** A gradient to hand out instead of accumulating it. */
typedef struct ts_capture {
    ts_node *node;   /* borrowed */
    int output;
    ts_tensor *grad; /* owned; NULL while none has arrived */
} ts_capture;

/**
 * Runs the graph below `root` with the gradient of its result `output`.
 * record: record the rules' ops; retain: keep saved tensors; captures: NULL accumulates into leaves.
 */
ts_status ts_engine_run(ts_node *root, int output, ts_tensor *gradient, bool record, bool retain,
                        ts_capture *captures, int ncaptures);

#endif
