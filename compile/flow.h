/** @file flow.h  Minimum cut of a flow network, by Dinic's algorithm. */
// SPDX-License-Identifier: MIT
#ifndef TS_COMPILE_FLOW_H
#define TS_COMPILE_FLOW_H

#include "tracing/graph.h"

/** Capacity of edges that no cut contains. */
#define TS_FLOW_UNLIMITED ((int64_t)1 << 60)

/** A network over vertices 0 .. vertices - 1. */
typedef struct ts_flow {
    uint32_t vertices;
    uint32_t *first; /* per vertex: its newest edge, + 1; 0: none */
    ts_array edges;  /* pairs: an edge and its reverse */
} ts_flow;

/** Makes a network without edges; free it with ts_flow_free(). False if out of memory. */
bool ts_flow_begin(ts_flow *f, uint32_t vertices);
/** Adds a directed edge with a capacity >= 0. False if out of memory. */
bool ts_flow_add(ts_flow *f, uint32_t from, uint32_t to, int64_t capacity);
/**
 * Finds a minimum cut between two vertices. Call it once for a network.
 * @param reached  receives for each vertex whether it is on the source's side. Of all minimum cuts
 *                 it is the one with the fewest vertices on that side
 * @param capacity receives the sum of the capacities of the cut's edges; >= TS_FLOW_UNLIMITED if
 *                 each cut contains an unlimited edge
 * @return false if out of memory
 */
bool ts_flow_cut(ts_flow *f, uint32_t source, uint32_t sink, bool *reached, int64_t *capacity);
void ts_flow_free(ts_flow *f);

#endif
