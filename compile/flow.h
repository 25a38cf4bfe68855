/** @file flow.h  Minimum cut of a flow network, by Dinic's algorithm. */
// SPDX-License-Identifier: MIT
#ifndef TS_COMPILE_FLOW_H
#define TS_COMPILE_FLOW_H

#include "tracing/graph.h"

/** Capacity of an edge that must not be cut. All other capacities together must be smaller. */
#define TS_FLOW_UNLIMITED ((int64_t)1 << 60)

/** A network over vertices 0 .. vertices - 1. */
typedef struct ts_flow {
    uint32_t vertices;
    uint32_t *first; /* per vertex: index + 1 of its newest edge; 0: none */
    ts_array edges;  /* an edge at each even index, its reverse edge after it */
} ts_flow;

/** Makes a network without edges. The caller frees it with ts_flow_free(), also after a failure.
 *  False if out of memory. */
bool ts_flow_begin(ts_flow *f, uint32_t vertices);
/** Adds a directed edge with a capacity >= 0. False if out of memory. */
bool ts_flow_add(ts_flow *f, uint32_t from, uint32_t to, int64_t capacity);
/**
 * Finds the minimum cut between source and sink that has the fewest vertices on the source's side.
 * Call it once per network, because it uses up the capacities.
 * @param reached   receives one bool per vertex: whether it is on the source's side
 * @param capacity  receives the sum of the capacities of the cut's edges. If it is at least
 *                  TS_FLOW_UNLIMITED, each cut contains an unlimited edge, and `reached` is not a
 *                  minimum cut
 * @return false if out of memory
 */
bool ts_flow_cut(ts_flow *f, uint32_t source, uint32_t sink, bool *reached, int64_t *capacity);
void ts_flow_free(ts_flow *f);

#endif
