/** @file node.h  The recorded autograd graph: nodes, saved tensors, hooks, locks. */
// SPDX-License-Identifier: MIT
#ifndef TS_AUTOGRAD_NODE_H
#define TS_AUTOGRAD_NODE_H

#include "autograd/vjp.h"
#include "include/tessera/autograd.h"
#include "ops/spatial.h"

#include <stdatomic.h>
#include <string.h>

/** Sizes, dtype, device and memory format of a tensor; a copy, so that it outlives the tensor. */
typedef struct ts_shape {
    TS_KIND_MEMBERS;
    uint8_t output; /* inputs only: index among the results of the node that made the input */
    bool last;      /* not contiguous, and channels-last (ts_is_channels_last()) */
    int64_t sizes[TS_MAX_DIMS];
} ts_shape;

/** A tensor that a rule will read. */
typedef struct ts_saved {
    ts_tensor *t;     /* owned; TS_NONE for an absent tensor; NULL if the rule does not read it, if
                         it is packed, or if a backward freed it */
    uint32_t version; /* storage version when saved; if packed: slot number in the node's segment */
    uint16_t op;      /* in ts_collected: op of the node that saved it in the second run */
    bool packed;      /* a slot number was saved instead of the tensor (recompute.h) */
} ts_saved;

/**
 * A tensor argument (list members count one each) or a result of a recorded call, or a tensor that
 * a ts_function saved. A saved result has no history, which avoids a cycle; rules get an alias that
 * has it (ts_relink()).
 */
typedef struct ts_end {
    ts_node *next; /* inputs only, owned: the node that made the input, or the accumulator of a
                      leaf; NULL: the input needs no gradient */
    ts_saved saved;
    ts_shape shape;
} ts_end;

/** GRAD hooks run on a complete gradient, PRE hooks before the rule, POST hooks after it. A RETAIN
 *  hook runs no code: it marks a tensor that keeps its gradient (ts_retain_grad()). */
typedef enum ts_hook_kind { TS_HOOK_GRAD, TS_HOOK_RETAIN, TS_HOOK_PRE, TS_HOOK_POST } ts_hook_kind;

struct ts_hook {
    ts_hook *next;
    _Atomic int32_t refs; /* held by the list and by runs that will call the hook */
    atomic_bool removed;
    uint32_t forks; /* fork count of the process when the hook was made */
    union {
        ts_grad_hook grad;
        ts_node_pre_hook pre;
        ts_node_post_hook post;
    };
    void *payload; /* argument of the hook's function; RETAIN: the tensor, weak, whose release
                      removes the hook */
    uint8_t kind;   /* a ts_hook_kind */
    uint8_t output; /* GRAD and RETAIN: index of the result; other kinds: 0 */
};

/**
 * A recorded call, the accumulator of a leaf (op TS_NODE_LEAF) or a user's function
 * (TS_NODE_FUNCTION). seq grows along every edge towards the root, so nodes run in order of falling
 * seq. One block of memory holds, in this order: the node, inputs, outputs, args, the tail (the
 * ts_function_call of a function), the ts_trail.
 */
struct ts_node {
    _Atomic int32_t refs;
    uint16_t op;
    uint8_t nargs, nrets;
    uint32_t ninputs;
    uint16_t needs;         /* bit i: argument i needs a gradient; ops only */
    uint16_t scope;         /* profile scope of the recorded call; 0: none */
    size_t bytes;           /* size of the block with the node, its arrays and its tail */
    _Atomic uint32_t owner; /* id + 1 of the thread whose run holds the lock; 0: unlocked */
    bool saves;             /* may hold saved tensors */
    bool guarded;           /* a run must hold the lock to run the rule; set at creation */
    uint16_t freed : 1;     /* saved tensors are freed, or will be when unlocked_runs is 0 */
    uint16_t trail : 1;     /* the block ends with a ts_trail (anomaly mode) */
    uint16_t unlocked_runs : 14; /* runs that are in user code of the node without holding its lock;
                                    the saved tensors must stay */
    uint64_t seq;
    const ts_vjp *vjp; /* NULL: no rule; backward through it is an error */
    union {
        const void *site;
        ts_node *garbage; /* list of nodes being released */
    };
    ts_rng_state rng;
    union {
        ts_tensor *leaf;            /* accumulators: the leaf, weak; NULL after it is freed */
        struct ts_segment *segment; /* others: owned; recomputes the node's packed tensors */
    };
    ts_hook *hooks;     /* owned */
    ts_value *args;  /* nargs values; that of a tensor argument points to its ts_end in inputs */
    ts_end *inputs;  /* ninputs entries */
    ts_end *outputs; /* nrets entries, after the inputs */
};

#define TS_NODE_LEAF 0xffff
#define TS_NODE_FUNCTION 0xfffe

/** Autograd state of a leaf, or of a tensor that keeps its gradient. */
struct ts_grad_meta {
    ts_tensor *grad;      /* owned */
    ts_node *accumulator; /* owned; node of a leaf (TS_NODE_LEAF); NULL until needed */
};

/** The ts_grad_meta of t, and the accumulator node of leaf t; made on demand, borrowed. NULL with
 *  TS_ERR_MEMORY. */
ts_grad_meta *ts_grad_meta_of(ts_tensor *t);
ts_node *ts_accumulator_of(ts_tensor *t);
/** The node that receives a gradient of t: the node that made t, or a leaf's accumulator; borrowed.
 * NULL with an error. */
TS_INLINE ts_node *ts_gradient_node(ts_tensor *t)
{
    if (t->node)
        return t->node;
    ts_grad_meta *m = __atomic_load_n(&t->grad, __ATOMIC_ACQUIRE);
    ts_node *n = m ? __atomic_load_n(&m->accumulator, __ATOMIC_ACQUIRE) : NULL;
    return TS_LIKELY(n != NULL) ? n : ts_accumulator_of(t);
}

/** Releases one reference to a node that is not NULL. The last release frees the node. */
void ts_node_unref(ts_node *node);
/** The AUTOGRAD layer: runs the call and attaches a node to its results. */
ts_status ts_record(ts_frame *f);
/** Releases the node and the gradient of a tensor that is being freed. */
void ts_node_release_history(ts_tensor *t);
/** Drops a node's saved tensors; a rule that reads them later fails. */
void ts_node_free_saved(ts_node *node);
/** Saved tensor k of a node that is not a leaf, in the order inputs, outputs, tensors of a
 *  function; NULL after the last. */
ts_saved *ts_node_saved(ts_node *node, uint32_t k);
/** The input for member k of list argument `arg`, or for tensor argument `arg` if k is 0; NULL if
 *  there is none. */
TS_INLINE ts_end *ts_node_input(const ts_node *node, int arg, uint32_t k)
{
    if ((unsigned)arg >= node->nargs)
        return NULL;
    const ts_value *v = &node->args[arg];
    if (v->tag != TS_TAG_TENSOR && v->tag != TS_TAG_TENSORS)
        return NULL;
    return k < (v->tag == TS_TAG_TENSOR ? 1 : v->count) ? (ts_end *)(void *)v->t + k : NULL;
}

/**
 * Returns the tensor to store as a gradient, owned by the caller; NULL with an error. It is g, or
 * an alias of g in two cases: if g may have a gradient of its own, because a chain of gradients
 * could form a reference cycle; and if g must lose its history. With `history` the result keeps g's
 * node, and ts_break_cycle() breaks cycles; otherwise the result has no history.
 */
ts_tensor *ts_gradient_to_keep(ts_thread *thread, ts_tensor *g, bool history);

/**
 * Adds g (borrowed) to the gradient in *slot, which owns a reference or is NULL. The engine sums
 * here the whole gradients that rules send to one tensor, unless a rule takes the sum
 * (ts_rule_take()). With `record` the sum is recorded, for double backward.
 * @param old  receives the tensor that a sum replaced, owned; unchanged if there is none. Its
 *             release may free a graph, so release it while no node is locked.
 */
ts_status ts_accumulate_grad(ts_tensor **slot, ts_tensor *g, bool record, ts_tensor **old);

TS_INLINE void ts_shape_fill(ts_shape *s, const ts_tensor *t)
{
    s->kind = t->kind;
    s->last = TS_UNLIKELY(!(t->flags & TS_TENSOR_CONTIGUOUS)) && ts_is_channels_last(t);
    memcpy(s->sizes, t->sizes, sizeof s->sizes); /* all: a few moves instead of a loop */
}
/** True if t has the sizes of s. */
TS_INLINE bool ts_shape_sizes_fit(const ts_shape *s, const ts_tensor *t)
{
    bool fit = s->ndim == t->ndim;
    for (int d = 0; fit && d < t->ndim; d++)
        fit = s->sizes[d] == t->sizes[d];
    return fit;
}
/** True if t has the sizes and dtype of s; the device may differ. */
TS_INLINE bool ts_shape_fits(const ts_shape *s, const ts_tensor *t)
{
    return s->dtype == t->dtype && ts_shape_sizes_fit(s, t);
}
/** Sizes and dtype of a tensor or a shape for an error: "(2, 3) f32". */
#define TS_SHAPE_TEXT(x) ts_shape_text((char[208]){0}, 208, (x)->sizes, (x)->ndim, (x)->dtype)
const char *ts_shape_text(char *buffer, size_t size, const int64_t *sizes, int ndim, int dtype);

/** A new alias of all of t, without history, with one reference; NULL with an error. */
TS_INLINE ts_tensor *ts_whole_alias(ts_thread *thread, const ts_tensor *t)
{
    return ts_tensor_alias(thread, t, t->sizes, t->strides, t->ndim, 0);
}
/** Releases a saved tensor; false if there was none. */
TS_INLINE bool ts_saved_drop(ts_saved *s)
{
    ts_tensor *t = s->t;
    s->t = NULL;
    if (t && t != TS_NONE)
        ts_tensor_unref(t);
    return t != NULL;
}

TS_INLINE ts_node *ts_node_ref(ts_node *node)
{
    atomic_fetch_add_explicit(&node->refs, 1, memory_order_relaxed);
    return node;
}
/** Return addresses of the calls around a recorded call, innermost first; stored at the end of the
 *  node's block. */
typedef struct ts_trail {
    int n;
    void *frames[24];
} ts_trail;
/** Set by ts_anomaly_enable(): new nodes get a trail. */
extern _Atomic bool ts_anomaly_on;
/** Writes the trail into the end of the node's block. */
TS_COLD void ts_trail_take(ts_node *node);

/** A node with one reference and memory for its arrays and `tail` bytes after them. The caller
 *  sets needs, scope, vjp, rng and args, and adds the inputs with ts_node_add_input(). NULL with
 *  TS_ERR_MEMORY. */
TS_INLINE ts_node *ts_node_new(ts_thread *thread, uint16_t op, uint8_t nargs, uint32_t ninputs,
                               uint8_t nrets, size_t tail, const void *site)
{
    bool trail = TS_UNLIKELY(atomic_load_explicit(&ts_anomaly_on, memory_order_relaxed));
    size_t bytes = sizeof(ts_node) + nargs * sizeof(ts_value) +
                   ((size_t)ninputs + nrets) * sizeof(ts_end) + tail +
                   (trail ? sizeof(ts_trail) : 0);
    ts_node *n = ts_alloc(thread, bytes);
    if (TS_UNLIKELY(!n)) {
        ts_error_memory("a node of the graph", (int64_t)bytes);
        return NULL;
    }
    atomic_init(&n->refs, 1);
    n->op = op;
    n->nargs = nargs;
    n->nrets = nrets;
    n->ninputs = 0;
    n->bytes = bytes;
    atomic_init(&n->owner, 0);
    n->saves = n->guarded = false;
    n->freed = n->trail = n->unlocked_runs = 0;
    n->seq = thread->seq;
    n->site = site;
    n->leaf = NULL;
    n->hooks = NULL;
    n->inputs = (ts_end *)(n + 1);
    n->outputs = n->inputs + ninputs;
    n->args = (ts_value *)(n->outputs + nrets);
    for (ts_end *o = n->outputs; o < n->outputs + nrets; o++) {
        o->saved = (ts_saved){0};
        o->shape.kind = (ts_kind){0};
    }
    if (TS_UNLIKELY(trail))
        ts_trail_take(n);
    return n;
}

/** Fills *in as the node's next input for t. If the node records and t needs a gradient, adds an
 *  edge to ts_gradient_node(t). */
TS_INLINE ts_status ts_node_add_input(ts_node *n, ts_end *in, ts_tensor *t, bool records)
{
    n->ninputs++;
    in->next = NULL;
    in->saved = (ts_saved){0};
    ts_shape_fill(&in->shape, t);
    if (!records || !(t->flags & TS_TENSOR_REQUIRES_GRAD) || t->dtype > TS_F16)
        return TS_OK;
    ts_node *next = ts_gradient_node(t);
    if (TS_UNLIKELY(!next))
        return ts_error_code();
    in->next = ts_node_ref(next);
    in->shape.output = t->output;
    n->seq = n->seq > next->seq ? n->seq : next->seq;
    return TS_OK;
}
/* ts_node_ref() and ts_node_unref() for a node that no other thread can reach: without an atomic
 * read-modify-write. */
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

/** Yields or sleeps before attempt number `tries` of a spin loop; the time grows with `tries`. */
TS_COLD void ts_back_off(long tries);
/** The slow part of ts_node_lock(): waits for the lock and takes it. Takes over the lock of a
 *  thread that has ended. False if the calling thread already holds the lock. */
TS_COLD bool ts_node_wait(ts_node *node, uint32_t self);

/** ts_node_lock() without waiting: false if any thread holds the lock. */
TS_INLINE bool ts_node_try_lock(ts_node *node, uint32_t self)
{
    uint32_t unlocked = 0;
    return atomic_compare_exchange_strong_explicit(&node->owner, &unlocked, self,
                                                   memory_order_acquire, memory_order_relaxed);
}
/**
 * Locks a node to run a rule that changes it, or a leaf to add to its gradient, because threads may
 * share nodes and leaves. A thread holds no lock while it runs user code, so a backward inside
 * another cannot deadlock; only a recording keeps its leaves locked until it has run.
 * self: ts_node_self(). False if this thread already holds the lock.
 */
TS_INLINE bool ts_node_lock(ts_node *node, uint32_t self)
{
    return TS_LIKELY(ts_node_try_lock(node, self)) || ts_node_wait(node, self);
}
TS_INLINE void ts_node_unlock(ts_node *node)
{
    atomic_store_explicit(&node->owner, 0, memory_order_release);
}
TS_INLINE uint32_t ts_node_self(const ts_thread *thread) { return (uint32_t)thread->id + 1; }

/** Releases one reference to a hook. */
TS_COLD void ts_hook_unref(ts_hook *hook);
/** Called in a forked child: ts_hook_remove() does not wait for hooks that threads of the parent
 *  were running. */
void ts_hooks_forked(void);
/** Moves a tensor's RETAIN hook from one node to another (NULL: the tensor is freed). */
TS_COLD void ts_hook_move(ts_node *from, ts_node *to, const ts_tensor *t);

/** Makes t result i of a new node, which t then references; t requires grad. */
TS_INLINE void ts_node_attach(ts_node *n, ts_tensor *t, int i)
{
    ts_node *before = t->node;
    t->node = ts_node_ref_new(n);
    t->output = (uint8_t)i;
    t->flags |= TS_TENSOR_REQUIRES_GRAD;
    t->keys |= TS_KEYSET(TS_KEY_AUTOGRAD);
    if (TS_UNLIKELY(before != NULL)) { /* t was written in place: consumers own `before` by edges */
        if (t->grad)
            ts_hook_move(before, n, t);
        ts_node_unref(before);
    }
}

/** TS_ERR_AUTOGRAD if an in-place write to t would break recorded history: t is a leaf that
 *  requires grad, a view, or shares its storage (docs/architecture.md). `what` names t in the
 *  error. */
ts_status ts_check_write(const char *op, const void *site, const ts_tensor *t, const char *what);

/** After a recorded write to t: the graph of t's node may have saved t, which then owns its own
 *  history. Replaces such a saved tensor by one without elements, whose version keeps a backward
 *  from reading it. before: t's node before the write. Its graph is not searched: that graph was
 *  complete before this value of t existed, and earlier values in it were replaced. */
void ts_break_write_cycle(ts_tensor *t, const ts_node *before);

#endif
