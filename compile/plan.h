/** @file plan.h  The state of a plan while it is made, in this order: widen.c and cats.c change its
 * calls, plan.c makes its steps, horizontal.c joins steps. */
// SPDX-License-Identifier: MIT
#ifndef TS_COMPILE_PLAN_H
#define TS_COMPILE_PLAN_H

#include "compile/compile.h"

/** One use of a value by a node: as an argument or as a result. */
typedef struct touch {
    uint32_t storage, value; /* indices in the graph */
    bool writes;        /* a result, or an argument that the op writes */
    bool fresh;         /* a result that the call creates, not one given by the caller */
    bool last;          /* a result that no other call of the node's group may use */
} touch;

/** A plan that is being made. */
typedef struct maker {
    ts_exec *exec;
    ts_graph *graph;
    ts_array touches;  /* of all nodes, in the order of nodes */
    uint32_t *begin;   /* index in `touches` of each node's first touch; then the end */
    uint32_t *step_of; /* step of each node; UINT32_MAX: dead */
    const uint64_t *numbers; /* numbers of the recording */
    int64_t max_groups;      /* 0: no limit; -1: no groups */
    bool by_rows;            /* groups may contain calls by rows */
    uint32_t *member;  /* per node: index of its member in its step; 0 in steps without members */
} maker;

/** In lists of tensors, replaces f32 copies of bf16 or f16 values by these values, if the call
 *  takes them (widen.c). numbers: those of the recording. False if out of memory. */
bool ts_plan_widen(ts_graph *g, uint32_t nstorages, const uint64_t *numbers);
/** Drops cats whose parts can be written directly to the result (cats.c). m->touches must be
 *  complete. *some: a cat was dropped, so touches must be found again. False if out of memory. */
bool ts_plan_drop_cats(maker *m, bool *some);
/** Adds node i to the step of a product that makes one of its arguments, if the device can compute
 *  the node in the product's epilogue and that saves memory traffic (epilogue.c). False if it does
 *  not. Only for a pointwise node that no step has yet. */
bool ts_plan_join_product(maker *m, uint32_t i);
/** Puts node i into a step. */
void ts_plan_add(maker *m, uint32_t i, uint32_t step);
/** Joins steps of a device that run the same calls over different tensors: they become members of
 *  one step (horizontal.c). Call it after the steps are made and before nodes are ordered, while
 *  ts_step.first is the number of the step's first node. False if out of memory. */
bool ts_plan_join_alike(maker *m);

#endif
