/** @file plan.h  The state of a plan that is being made: widen.c and cats.c change its
 * calls, plan.c makes its steps, horizontal.c joins them. */
// SPDX-License-Identifier: MIT
#ifndef TS_COMPILE_PLAN_H
#define TS_COMPILE_PLAN_H

#include "compile/compile.h"

/** A storage and value that a node uses, and whether the node writes it. */
typedef struct touch {
    uint32_t storage, value;
    bool writes, fresh; /* fresh: the first write, to all of a new promised storage */
    bool last;          /* a group's result that no other call of the group may use */
} touch;

typedef struct maker {
    ts_exec *exec;
    ts_graph *graph;
    ts_array touches;  /* touches of all nodes */
    uint32_t *begin;   /* index of each node's first touch, and the end */
    uint32_t *step_of; /* step of each node; UINT32_MAX: dead */
    const uint64_t *numbers;
    int64_t max_groups;
    bool by_rows;
    uint32_t *member;  /* of each node: its member of a step with several */
} maker;

/** Replaces casts from halves to f32 in the lists of calls that take halves (widen.c). False if out
 *  of memory. */
bool ts_plan_widen(ts_graph *g, uint32_t nstorages, const uint64_t *numbers);
/** Drops cats whose parts can be written in place (cats.c); *some: it dropped one, so touches have
 *  changed. False if out of memory. */
bool ts_plan_drop_cats(maker *m, bool *some);
/** Joins steps that run the same calls over different tensors; each becomes a member of one step.
 *  ts_step.first is still the number of the step's first node. False if out of memory. */
bool ts_plan_join_alike(maker *m);

#endif
