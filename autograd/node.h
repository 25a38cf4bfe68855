/** @file node.h  The recorded graph. */
// SPDX-License-Identifier: MIT
#ifndef TS_AUTOGRAD_NODE_H
#define TS_AUTOGRAD_NODE_H

#include "autograd/vjp.h"
#include "include/tessera/autograd.h"

/** A tensor argument of a recorded call (list members count one each). */
typedef struct ts_input {
    ts_node *next;     /* owned: who made it, or its leaf's accumulator; NULL when it needs no gradient */
    ts_tensor *saved;  /* owned; NULL when the rule does not read it, or freed after a backward */
    uint32_t version;  /* of the storage when saved */
    uint8_t output;    /* which result of next */
    uint8_t arg;       /* argument it belongs to */
    uint8_t dtype, ndim;
    ts_device device;
    int64_t sizes[TS_MAX_DIMS];
} ts_input;

/** A result of a recorded call. */
typedef struct ts_output {
    ts_tensor *saved;  /* owned alias without history (no cycle); its node is this one, given at unpack */
    uint32_t version;
    bool own;          /* made for the rule only; no history to give back */
    uint8_t dtype, ndim;
    ts_device device;
    int64_t sizes[TS_MAX_DIMS];
} ts_output;

struct ts_hook {
    ts_hook *next;
    ts_grad_hook fn;
    void *payload;
    int output;
};

/**
 * A recorded call, or the accumulator of a leaf (leaf set or orphaned, op TS_NODE_LEAF). seq grows
 * along every edge towards the root, so nodes run in order of falling seq.
 */
struct ts_node {
    _Atomic int32_t refs;
    uint16_t op;
    uint8_t nargs, nrets;
    bool freed;          /* saved tensors are gone */
    bool keep_grad;      /* accumulator or node whose tensor asked for ts_retain_grad */
    uint16_t ninputs;
    uint32_t bytes;      /* of this block */
    uint64_t seq;
    const ts_vjp *vjp;   /* NULL: no rule; backward through it is an error */
    const void *site;
    ts_rng_state rng;
    ts_tensor *leaf;     /* of an accumulator: weak, cleared when the leaf dies */
    ts_hook *hooks;      /* owned */
    ts_node *garbage;    /* list of nodes being released */
    ts_value *args;      /* nargs */
    ts_input *inputs;    /* ninputs */
    ts_output *outputs;  /* nrets */
};

#define TS_NODE_LEAF 0xffff

/** What a leaf (or a tensor that keeps its gradient) has beside its data. */
struct ts_grad_meta {
    ts_tensor *grad;      /* owned */
    ts_node *accumulator; /* owned; of leaves */
};

/** Gradient meta of t, made on demand; NULL with an error. */
ts_grad_meta *ts_grad_meta_of(ts_tensor *t);
/** The node a gradient of t goes to: t's own, or its leaf's accumulator; borrowed. NULL with an error. */
ts_node *ts_gradient_node(ts_tensor *t);

void ts_node_release(ts_node *node);
/** Drops saved tensors; a later unpack is an error. */
void ts_node_free_saved(ts_node *node);
/** Input index of (argument, member); -1 when it is no tensor. */
int ts_node_input(const ts_node *node, int arg, int member);

/**
 * The only place where gradients are summed (invariant 5). *slot owns a reference or is NULL; g is
 * borrowed. With record, sums are recorded for double backward.
 */
ts_status ts_accumulate_grad(ts_tensor **slot, ts_tensor *g, bool record);

TS_INLINE ts_node *ts_node_ref(ts_node *node)
{
    atomic_fetch_add_explicit(&node->refs, 1, memory_order_relaxed);
    return node;
}

#endif
