/**
 * @file plan.h  The state of a plan while it is made.
 *
 * The stages in order: decode.c reads the recording; fold.c, common.c, widen.c, cats.c and dead.c
 * change the calls; plan.c, join.c and epilogue.c divide them into steps; horizontal.c joins steps;
 * order.c moves steps. If the plan needs too much memory, recompute.c then chooses storages to
 * recompute, and the stages run again for a second plan, in which rebuild.c adds the calls that
 * recompute them.
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
    bool last;          /* a result that no other call of the node's group may use
                           (ts_group_part.results) */
} touch;

/** A plan that is being made. */
typedef struct maker {
    ts_exec *exec;
    ts_graph *graph;
    ts_array touches;  /* touch: those of all nodes, in the order of nodes */
    uint32_t *begin;   /* per node: index of its first touch in `touches`; last entry: the end */
    uint32_t *step_of; /* per node: index of its step; UINT32_MAX: the plan drops the node */
    const uint64_t *numbers; /* numbers of the recording */
    int64_t max_groups;      /* most fused groups; 0: no limit; -1: no groups */
    bool lowers;             /* calls may be dropped and moved */
    bool by_rows;            /* groups may contain calls by rows */
    uint32_t barrier;  /* recomputed calls join no step before this one, neither a group nor a
                          product (recompute.c) */
    uint32_t *uses;    /* per storage: number of calls that use it */
    uint32_t *recent;  /* per storage: index + 1 of the last TS_RECENT steps that use it, the newest
                          first; 0: none */
    uint32_t *member;  /* per node: index of its member in its step; 0 in steps without members */
} maker;

enum { TS_RECENT = 6 };
enum { TS_MAX_CHAIN = 100 }; /* longest chain of recomputed calls, each an argument of the next */

/** The storages that a plan recomputes after its memory peak instead of keeping them in memory
 *  (recompute.c). Indices of calls and storages are those of the recording. */
typedef struct ts_recomputation {
    uint32_t split;    /* the calls before this index are early: the last call of the peak step and
                          all calls before it; the others are late */
    bool *storages;    /* per storage: true if late calls read a recomputed copy of it */
    uint32_t nstorages;
    uint32_t count;    /* number of chosen storages that recorded late calls read; 0: recomputation
                          gains nothing */
} ts_recomputation;
/** Chooses the storages to recompute. The steps, lives and peak of m->exec must be known. The
 *  caller frees *chosen with ts_recomputation_free(), also after a failure. False if out of
 *  memory. */
bool ts_plan_choose(const maker *m, ts_recomputation *chosen);
/**
 * Adds the calls that recompute the chosen storages to the graph, and removes dead calls.
 * m->touches, m->begin and m->step_of must describe the old graph; the caller computes them again
 * afterwards.
 * @param storages  array of ts_plan_storage; receives an entry for each copy
 * @param done      receives false if recomputation is impossible: an argument of a recomputed call
 *                  has been overwritten since the recorded call read it, or a chain of recomputed
 *                  calls is too long. The graph is then unusable
 * @return false if out of memory
 */
bool ts_plan_recompute(maker *m, ts_array *storages, const ts_recomputation *chosen, bool *done);
/** Frees the array of *chosen. */
void ts_recomputation_free(ts_recomputation *chosen);

/** Array of a node's touches, borrowed from m; *count receives its length. */
static inline const touch *ts_touches_of(const maker *m, uint32_t node, uint32_t *count)
{
    *count = m->begin[node + 1] - m->begin[node];
    return (const touch *)m->touches.data + m->begin[node];
}
/** True if a live (not dead) call between the calls `from` and `until`, both excluded, writes the
 *  storage. */
bool ts_plan_is_written(const maker *m, uint32_t storage, uint32_t from, uint32_t until);
/**
 * Sets *call and args to a call that recomputes storage s, a result of `node`: with m->by_rows the
 * cheap part of `node` that computes s (ts_plan_decompose()), else `node` itself.
 * @param cheap  whether `node` itself may be recomputed
 * @param args   buffer of TS_MAX_ARGS arguments
 * @return false if no call may recompute s: `node` has no such part, and `cheap` is false
 */
bool ts_plan_maker(const maker *m, uint32_t node, uint32_t s, bool cheap, ts_graph_node *call,
                   ts_graph_arg *args);
/** If call n equals a costly call followed by a cheap call on its result (decompose.c), sets
 *  parts[0] and parts[1] to these two calls and args to the two arguments of the second, and
 *  returns true. parts[0] shares the arguments of n. */
bool ts_plan_decompose(const ts_graph *g, const ts_graph_node *n, ts_graph_node parts[2],
                       ts_graph_arg *args);

/** True if no further step may become a group; calls may still join the groups that exist. */
static inline bool ts_plan_is_full(const maker *m)
{
    return m->max_groups && m->exec->ngroups >= m->max_groups;
}

/** Adds the calls and values of a recording to an empty graph, and sets *storages to an array of
 *  its storages (ts_plan_storage), which the caller frees, also after a failure. False if out of
 *  memory. */
bool ts_plan_decode(const uint64_t *words, uint32_t count, ts_graph *graph, ts_array *storages);

/** Finds the recording's first random call after call number `call`, also if the plan has dropped
 *  it. Returns the index in the recording's numbers of the generator's state at that call;
 *  UINT32_MAX if there is none, or out of memory. */
uint32_t ts_plan_next_draw(const ts_exec *e, uint32_t call);

/** Drops calls whose results are their argument's elements (fold.c), and fills e->folded and
 *  e->known. knows: as in ts_plan_options. False if out of memory. */
bool ts_plan_fold(ts_exec *e, ts_graph *g, const ts_array *storages, const uint64_t *numbers,
                  bool knows);
/** Marks constant calls with TS_NODE_CONSTANT_CALL and their storages as constant (fold.c). The
 *  other arguments are those of ts_plan_fold(). False if out of memory. */
bool ts_plan_find_constants(ts_exec *e, ts_graph *g, const ts_array *storages,
                            const uint64_t *numbers, const ts_plan_options *o);
/** Drops calls that equal earlier calls (common.c) and fills e->merged and e->equal. storages: of
 *  the graph (ts_plan_storage); numbers: the recording's numbers. False if out of memory. */
bool ts_plan_merge(ts_exec *e, ts_graph *g, const ts_array *storages, const uint64_t *numbers);
/** Drops dead calls (dead.c): sets step_of, which is 0 for all nodes, to UINT32_MAX for constant
 *  calls and for calls whose written storages nothing reads. Calls that may refuse elements
 *  (TS_OP_CHECKED) and ops of the program are never dead. Does nothing unless m->lowers. Uses
 *  ts_plan_storage.writer. */
void ts_plan_drop_dead(maker *m);
/** In lists of tensors, replaces f32 copies of bf16 or f16 values by these values, if the call
 *  takes them (widen.c), and fills e->widened. numbers: the recording's numbers. False if out of
 *  memory. */
bool ts_plan_widen(ts_exec *e, ts_graph *g, const uint64_t *numbers);
/** Drops cat calls whose parts can be written directly to the result (cats.c), and fills
 *  m->exec->cats. m->touches must be complete. *some becomes true if a cat was dropped; the caller
 *  then recomputes the touches. False if out of memory. */
bool ts_plan_drop_cats(maker *m, bool *some);
/** Adds node i, a call that is in no step yet, to the step of the product that makes one of its
 *  arguments, or to the newest step that reads one, if that step is a product. Returns false, and
 *  adds nothing, if there is no such step, if the device cannot compute the node in the product's
 *  epilogue or if that saves no memory traffic (epilogue.c). */
bool ts_plan_join_product(maker *m, uint32_t i);
/** Returns the step that node i can join with the most bytes saved, and sets *saved to these bytes.
 *  Searches the latest steps from `after` on that use the node's storages (maker.recent). If
 *  several save the same, returns the last; if there is none, UINT32_MAX. The sizes of v are the
 *  node's iteration space.
 *
 *  Node i and the group share a storage. Only a recomputed call may join the last step without a
 *  shared storage, because the next call reads its result, and often that of the last step too. */
uint32_t ts_plan_find_group(const maker *m, uint32_t i, const ts_graph_value *v,
                            const ts_group_part *part, uint32_t after, int64_t *saved);
/** True if node i is a call on the results of the folds of group s: all its tensors have the sizes
 *  of these results, or one element. The sizes of v are the node's iteration space. */
bool ts_plan_is_late(const maker *m, uint32_t i, const ts_step *s, const ts_graph_value *v,
                     const ts_group_part *part);
/** Merges groups whose calls may run in one step, as long as that saves bytes; those that save
 *  most bytes first. Call it after all nodes are in steps. False if out of memory. */
bool ts_plan_merge_groups(maker *m);
/** Puts node i into a step. */
void ts_plan_add(maker *m, uint32_t i, uint32_t step);
/** Joins steps of a device that run the same calls over different tensors: they become members of
 *  one step (horizontal.c). Call it after the steps are made and before nodes are ordered, while
 *  ts_step.first is the number of the step's first node. False if out of memory. */
bool ts_plan_join_alike(maker *m);

/** Moves steps to lower the memory peak (order.c), and fills m->exec->moved. m->exec->order must
 *  list the nodes by step, and ts_plan_find_lives() must have run. False if out of memory. */
bool ts_plan_order(maker *m);
/** Computes the lives of all storages (first and last step), the storages that are inside a group,
 *  the bytes that the steps move, the lists of storages by first and last step, and the peak. */
void ts_plan_find_lives(const maker *m);

#endif
