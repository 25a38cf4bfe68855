/**
 * @file plan.h  The state of a plan while it is made, in this order: decode.c reads the recording;
 * widen.c, rebuild.c and cats.c change the calls; plan.c makes steps of them, horizontal.c joins
 * steps, order.c moves them; recompute.c chooses what a second plan computes again.
 */
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
    uint32_t barrier;  /* calls that are made again join no step before this one */
    uint32_t *member;  /* per node: index of its member in its step; 0 in steps without members */
} maker;

enum { TS_MAX_CHAIN = 100 }; /* calls that are made again one after the other */

/** What a plan computes again instead of keeping it in memory (recompute.c). All indices are those
 *  of the recording. */
typedef struct ts_again {
    uint32_t split;    /* number of the calls up to the peak of memory; later ones read copies */
    bool *storages;    /* per storage: later calls read a copy, computed when they need it */
    uint32_t nstorages;
    uint32_t count;    /* number of such storages; 0: nothing to gain */
} ts_again;
/** Chooses what to compute again in a plan whose steps and peak are known. Free it with
 *  ts_again_free(). False if out of memory. */
bool ts_plan_choose(const maker *m, ts_again *again);
/**
 * Adds the chosen calls to the graph and removes dead ones. m->touches and m->step_of must be
 * complete, and must be found again afterwards; m->begin is of the old nodes. storages: array of
 * ts_plan_storage, which grows. *done is false if a call would read an argument that has been
 * written since; the graph is then unusable. False if out of memory.
 */
bool ts_plan_recompute(maker *m, ts_array *storages, const ts_again *again, bool *done);
void ts_again_free(ts_again *again);

/** The touches of a node; *count receives their number. */
static inline const touch *ts_touches_of(const maker *m, uint32_t node, uint32_t *count)
{
    *count = m->begin[node + 1] - m->begin[node];
    return (const touch *)m->touches.data + m->begin[node];
}
/** True if a call after `from` and before `until` that is not dead writes the storage. */
bool ts_plan_is_written(const maker *m, uint32_t storage, uint32_t from, uint32_t until);
/** Sets *call and args to the call that makes storage s again, which `node` made; args has room for
 *  TS_MAX_ARGS. False if there is none. cheap: the node may be made again itself. */
bool ts_plan_maker(const maker *m, uint32_t node, uint32_t s, bool cheap, ts_graph_node *call,
                   ts_graph_arg *args);
/** If the call is a costly call and a cheap call of its result (decompose.c), sets parts[0] and
 *  parts[1] to them and args to the arguments of the second. parts[0] shares arguments with n. */
bool ts_plan_decompose(const ts_graph *g, const ts_graph_node *n, ts_graph_node parts[2],
                       ts_graph_arg *args);

/** Adds the calls and values of a recording to an empty graph, and its storages (ts_plan_storage)
 *  to an empty array. False if out of memory. */
bool ts_plan_decode(const uint64_t *words, uint32_t count, ts_graph *graph, ts_array *storages);

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

/** Moves steps so that the peak is lower (order.c). The nodes must be in the order of the steps,
 *  and lives must be known. False if out of memory. */
bool ts_plan_order(maker *m);
/** Computes the first and last step of each storage, which storages are inside a group, the bytes
 *  that the steps move, the lists of storages by first and last step, and the peak. */
void ts_plan_find_lives(const maker *m);

#endif
