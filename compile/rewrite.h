/**
 * @file rewrite.h  Changes to the calls of a graph before a plan divides them into steps: replacing
 * values by others that have the same elements.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_COMPILE_REWRITE_H
#define TS_COMPILE_REWRITE_H

#include "compile/plan.h"

/** A pass over the calls of a graph, in their order. */
typedef struct ts_rewrite {
    ts_graph *graph;
    const ts_plan_storage *storages;
    const uint64_t *numbers; /* those of the recording */
    uint32_t *written; /* per storage: the last call so far that writes it, + 1 */
    uint32_t *used;    /* per storage: the last call of all that uses it, + 1 */
    bool *shared;      /* per storage: it is outside, or a call that did not create it writes it */
    uint32_t *same;    /* per value: the value that has replaced it; itself if none has */
    size_t bytes;      /* of these arrays, which are one block */
    uint32_t looked_for; /* the storage whose writes ts_rewrite_is_written() looks for */
    bool found;          /* it has found a write to that storage */
} ts_rewrite;

/** Prepares a pass; `written` is 0 everywhere. False if out of memory. */
bool ts_rewrite_begin(ts_rewrite *w, ts_graph *g, const ts_array *storages,
                      const uint64_t *numbers);
/** Ends a pass. If `some`, puts the new values in place of replaced ones in the arguments of all
 *  calls. */
void ts_rewrite_end(ts_rewrite *w, bool some);
/** Updates `written` for call i. Call it for each call after the pass has looked at it. */
void ts_rewrite_pass(ts_rewrite *w, uint32_t i);

static inline ts_graph_value *ts_rewrite_value_at(const ts_rewrite *w, uint32_t i)
{
    return (ts_graph_value *)w->graph->values.data + i;
}
/** Index of the value that now stands for `id`; its storage. */
uint32_t ts_rewrite_value(const ts_rewrite *w, ts_id id);
uint32_t ts_rewrite_storage(const ts_rewrite *w, ts_id id);
/** True if the results of the call depend on its arguments alone, and only this call writes the
 *  storages of its results. False for a call without results or with destinations, a random call,
 *  an op registered at run time, and an op with a counter that changes from run to run. */
bool ts_rewrite_is_pure(const ts_rewrite *w, const ts_graph_node *n);
/** True if one of the calls number `from` to `until` - 1 writes the storage. */
bool ts_rewrite_is_written(ts_rewrite *w, uint32_t storage, uint32_t from, uint32_t until);
/** True if the program holds a result of the node after the recording. */
bool ts_rewrite_is_held(const ts_rewrite *w, const ts_graph_node *n);
/** True if both values have the same dtype, device, sizes and strides; the offsets may differ. */
bool ts_rewrite_equal_layouts(const ts_rewrite *w, const ts_graph_value *a,
                              const ts_graph_value *b);
/** Replaces all values on storage `from` by values with the same layouts on storage `to`, `shift`
 *  bytes later. */
void ts_rewrite_move(const ts_rewrite *w, uint32_t from, uint32_t to, int64_t shift);
/** Applies `use` to each tensor argument of a node, lists included. Stops and returns false when
 *  `use` does. */
bool ts_rewrite_each_argument(const ts_rewrite *w, const ts_graph_node *n,
                              bool (*use)(const ts_rewrite *, ts_id, void *), void *state);

#endif
