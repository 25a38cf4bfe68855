/** @file anomaly.h  Naming the forward call behind a gradient that went wrong. */
// SPDX-License-Identifier: MIT
#ifndef TS_AUTOGRAD_ANOMALY_H
#define TS_AUTOGRAD_ANOMALY_H

#include "autograd/node.h"

/** The calls that led to a recorded one, innermost first. */
typedef struct ts_trail {
    int n;
    void *frames[24];
} ts_trail;

/** Set by ts_anomaly_enable(). */
extern _Atomic bool ts_anomaly_on;
/** Bytes that a node needs behind its own for a trail: 0 while the mode is off. */
TS_INLINE size_t ts_trail_bytes(void)
{
    return TS_UNLIKELY(atomic_load_explicit(&ts_anomaly_on, memory_order_relaxed))
               ? sizeof(ts_trail)
               : 0;
}
/** Writes the trail into the end of the node's block. */
TS_COLD void ts_trail_take(ts_node *node);

/** A rule gave these; an error when one is not finite.
 * Also for the gradient that a backward starts with. */
TS_COLD ts_status ts_anomaly_check(const ts_node *node, ts_tensor *const *given, int n,
                                   const char *what);
/** Adds the node's forward call to the error on record. */
TS_COLD ts_status ts_anomaly_explain(const ts_node *node, ts_status status);

#endif
