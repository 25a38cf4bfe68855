/** @file node.h  The recorded graph. */
// SPDX-License-Identifier: MIT
#ifndef TS_AUTOGRAD_NODE_H
#define TS_AUTOGRAD_NODE_H

#include "autograd/vjp.h"
#include "include/tessera/autograd.h"

#include <string.h>

/** A tensor argument of a recorded call (list members count one each). */
typedef struct ts_input {
    ts_node *next;     /* owned: who made it, or its leaf's accumulator;
                          NULL when it needs no gradient */
    ts_tensor *saved;  /* owned; NULL when the rule does not read it, packed,
                          or freed after a backward */
    uint32_t version;  /* of the storage when saved; packed: the number in the node's segment */
    uint8_t output;    /* which result of next */
    uint8_t arg;       /* argument it belongs to */
    bool packed;
    TS_KIND_MEMBERS;
    int64_t sizes[TS_MAX_DIMS];
} ts_input;

/** A result of a recorded call. */
typedef struct ts_output {
    ts_tensor *saved;  /* owned alias without history (no cycle);
                          its node is this one, given at unpack */
    uint32_t version;
    bool packed;
    TS_KIND_MEMBERS;
    int64_t sizes[TS_MAX_DIMS];
} ts_output;

/** When a hook runs: on a gradient that is complete, then before the rule, then after it. */
typedef enum ts_hook_kind { TS_HOOK_GRAD, TS_HOOK_RETAIN, TS_HOOK_PRE, TS_HOOK_POST } ts_hook_kind;

struct ts_hook {
    ts_hook *next;
    union {
        ts_grad_hook grad;
        ts_node_pre_hook pre;
        ts_node_post_hook post;
    };
    void *payload; /* RETAIN: the tensor, weak; it takes the hook along when it dies */
    uint8_t kind;  /* ts_hook_kind */
    uint8_t output;
};

/**
 * A recorded call, the accumulator of a leaf (op TS_NODE_LEAF) or a user's function
 * (TS_NODE_FUNCTION). seq grows along every edge towards the root, so nodes run
 * in order of falling seq.
 */
struct ts_node {
    _Atomic int32_t refs;
    uint16_t op;
    uint8_t nargs, nrets;
    uint32_t ninputs;
    uint32_t bytes;           /* of this block */
    _Atomic uint32_t owner;   /* the thread (its id + 1) whose run is in this node; 0: none */
    bool saves;               /* may hold saved tensors */
    bool guarded;             /* runs change it: one at a time; never changes */
    bool freed;               /* saved tensors are gone */
    bool trail;               /* the block ends with a ts_trail */
    uint64_t seq;
    const ts_vjp *vjp;        /* NULL: no rule; backward through it is an error */
    union {
        const void *site;
        ts_node *garbage;     /* list of nodes being released */
    };
    ts_rng_state rng;
    union {
        ts_tensor *leaf;      /* of an accumulator: weak, cleared when the leaf dies */
        struct ts_segment *segment; /* of others: owned; where packed tensors come from */
    };
    ts_hook *hooks;           /* owned */
    ts_value *args;           /* nargs */
    ts_input *inputs;         /* ninputs */
    ts_output *outputs;       /* nrets */
};

#define TS_NODE_LEAF 0xffff
#define TS_NODE_FUNCTION 0xfffe

/** What a leaf (or a tensor that keeps its gradient) has beside its data. */
struct ts_grad_meta {
    ts_tensor *grad;      /* owned */
    ts_node *accumulator; /* owned; of leaves */
};

/** Gradient meta of t, made on demand; NULL with an error. */
ts_grad_meta *ts_grad_meta_of(ts_tensor *t);
ts_node *ts_accumulator_of(ts_tensor *t);
/** The node a gradient of t goes to: t's own, or its leaf's accumulator;
 * borrowed. NULL with an error. */
TS_INLINE ts_node *ts_gradient_node(ts_tensor *t)
{
    if (t->node)
        return t->node;
    ts_grad_meta *m = __atomic_load_n(&t->grad, __ATOMIC_ACQUIRE);
    ts_node *n = m ? __atomic_load_n(&m->accumulator, __ATOMIC_ACQUIRE) : NULL;
    return TS_LIKELY(n != NULL) ? n : ts_accumulator_of(t);
}

void ts_node_unref(ts_node *node);
/** The AUTOGRAD layer: runs the call and attaches a node to its results. */
ts_status ts_record(ts_frame *f);
/** Releases the node and the gradient of a tensor that ends. */
void ts_node_release_history(ts_tensor *t);
/** Drops saved tensors; a later unpack is an error. */
void ts_node_free_saved(ts_node *node);
/** Input index of (argument, member); -1 when it is no tensor. */
int ts_node_input(const ts_node *node, int arg, int member);

/**
 * The only place where gradients are summed (invariant 5). *slot owns a reference or is NULL; g is
 * borrowed. With record, sums are recorded for double backward.
 */
ts_status ts_accumulate_grad(ts_tensor **slot, ts_tensor *g, bool record);

TS_INLINE void ts_input_fill(ts_input *in, int arg, const ts_tensor *t)
{
    in->next = NULL;
    in->saved = NULL;
    in->packed = false;
    in->arg = (uint8_t)arg;
    in->kind = t->kind;
    memcpy(in->sizes, t->sizes, sizeof in->sizes); /* all: a few moves instead of a loop */
}
TS_INLINE void ts_output_fill(ts_output *o, const ts_tensor *t)
{
    o->kind = t->kind;
    memcpy(o->sizes, t->sizes, sizeof o->sizes);
}
TS_INLINE ts_node *ts_node_ref(ts_node *node)
{
    atomic_fetch_add_explicit(&node->refs, 1, memory_order_relaxed);
    return node;
}
/* While no other thread can know a node, its references are counted without locking the bus. */
TS_INLINE ts_node *ts_node_ref_new(ts_node *node)
{
    atomic_store_explicit(&node->refs, atomic_load_explicit(&node->refs, memory_order_relaxed) + 1,
                          memory_order_relaxed);
    return node;
}
TS_INLINE void ts_node_unref_new(ts_node *node)
{
    int32_t refs = atomic_load_explicit(&node->refs, memory_order_relaxed);
    if (refs > 1)
        atomic_store_explicit(&node->refs, refs - 1, memory_order_relaxed);
    else
        ts_node_unref(node);
}

/** Takes the node when another thread has it; false when the calling one has it already. */
TS_COLD bool ts_node_wait(ts_node *node, uint32_t self);

/**
 * While a run is in a node that it changes, or a leaf's gradient changes, the thread owns it:
 * runs of several threads may share nodes and leaves. False when this thread owns it already.
 */
TS_INLINE bool ts_node_lock(ts_node *node, uint32_t self)
{
    uint32_t nobody = 0;
    if (TS_LIKELY(atomic_compare_exchange_strong_explicit(
            &node->owner, &nobody, self, memory_order_acquire, memory_order_relaxed)))
        return true;
    return ts_node_wait(node, self);
}
TS_INLINE void ts_node_unlock(ts_node *node)
{
    atomic_store_explicit(&node->owner, 0, memory_order_release);
}
TS_INLINE uint32_t ts_node_self(const ts_thread *thread) { return (uint32_t)thread->id + 1; }

/** Takes a tensor's ts_retain_grad() from one of its nodes to the next (NULL: it dies). */
TS_COLD void ts_hook_move(ts_node *from, ts_node *to, const ts_tensor *t);

/** Makes t the result i of a node that is new. */
TS_INLINE void ts_node_attach(ts_node *n, ts_tensor *t, int i)
{
    ts_node *before = t->node;
    t->node = ts_node_ref_new(n);
    t->output = (uint8_t)i;
    t->flags |= TS_TENSOR_REQUIRES_GRAD;
    t->keys |= TS_KEYSET(TS_KEY_AUTOGRAD);
    if (TS_UNLIKELY(before != NULL)) { /* in place: its consumers hold it through edges */
        if (t->grad)
            ts_hook_move(before, n, t);
        ts_node_unref(before);
    }
}

/** A write that would create or change history is refused (docs/architecture.md). */
ts_status ts_check_write(const char *op, const void *site, const ts_tensor *t, const char *what);

#endif
