/** @file node.c  Creation and release of nodes; saved tensors. */
// SPDX-License-Identifier: MIT
#include "autograd/function.h"

#include <sched.h>
#include <time.h>

/* ------------------------------------------------------------------------------ release ---- */

ts_saved *ts_node_saved(ts_node *node, uint32_t k)
{
    if (k < node->ninputs)
        return &node->inputs[k].saved;
    k -= node->ninputs;
    if (k < node->nrets)
        return &node->outputs[k].saved;
    k -= node->nrets;
    if (node->op != TS_NODE_FUNCTION)
        return NULL;
    ts_function_call *call = ts_function_of(node);
    return k < (uint32_t)call->nsaved ? &call->saved[k].saved : NULL;
}

void ts_node_free_saved(ts_node *node)
{
    if (!node->saves)
        return;
    node->saves = false;
    bool freed = false;
    for (ts_end *in = node->inputs, *end = in + node->ninputs; in < end; in++)
        freed |= ts_saved_drop(&in->saved);
    ts_saved *s;
    for (uint32_t k = node->ninputs; (s = ts_node_saved(node, k)); k++)
        freed |= ts_saved_drop(s);
    node->freed |= freed;
    if (TS_UNLIKELY(node->segment != NULL)) {
        ts_segment *segment = node->segment;
        node->segment = NULL;
        node->freed = true;
        ts_segment_unref(segment);
    }
}

/* Nodes and gradients whose last reference was dropped while another node is being released. These
 * lists replace recursion along a chain of nodes. */
static _Thread_local ts_node *garbage __attribute__((tls_model("initial-exec")));
static _Thread_local ts_tensor *gradients __attribute__((tls_model("initial-exec")));
static _Thread_local bool sweeping __attribute__((tls_model("initial-exec")));

static void release_pending(void)
{
    if (sweeping)
        return;
    sweeping = true;
    while (garbage || gradients) {
        ts_node *n = garbage;
        if (!n) {
            ts_tensor *t = gradients;
            gradients = t->next;
            ts_tensor_destroy(t);
            continue;
        }
        garbage = n->garbage;
        ts_node_free_saved(n);
        if (TS_UNLIKELY(n->op == TS_NODE_FUNCTION))
            ts_function_end(n);
        for (const ts_end *in = n->inputs, *end = in + n->ninputs; in < end; in++)
            if (in->next)
                ts_node_unref(in->next);
        for (ts_hook *h = n->hooks, *next; h; h = next) {
            next = h->next;
            ts_hook_unref(h);
        }
        ts_free(&ts_tls, n, n->bytes);
    }
    sweeping = false;
}

void ts_node_unref(ts_node *node)
{
    if (atomic_load_explicit(&node->refs, memory_order_acquire) != 1 &&
        atomic_fetch_sub_explicit(&node->refs, 1, memory_order_acq_rel) != 1)
        return;
    node->garbage = garbage;
    garbage = node;
    release_pending();
}

/** Drops a reference to a gradient. Uses the list too, because a gradient may have a gradient. */
static void gradient_unref(ts_tensor *t)
{
    if (atomic_fetch_sub_explicit(&t->refs, 1, memory_order_acq_rel) != 1)
        return;
    t->next = gradients; /* free to use: only a referenced tensor is in a scope's list */
    gradients = t;
    release_pending();
}

/** Removes the leaf from its accumulator node, under the node's lock: a backward pass in another
 * thread may be about to store a gradient. */
static void detach_accumulator(ts_node *n)
{
    bool mine = ts_node_lock(n, ts_node_self(&ts_tls));
    n->leaf = NULL;
    if (mine)
        ts_node_unlock(n);
    ts_node_unref(n);
}

void ts_node_release_history(ts_tensor *t)
{
    ts_grad_meta *m = t->grad;
    if (t->node && m)
        ts_hook_move(t->node, NULL, t);
    if (t->node)
        ts_node_unref(t->node);
    if (m) {
        if (m->accumulator)
            detach_accumulator(m->accumulator);
        if (m->grad)
            gradient_unref(m->grad);
        ts_free(&ts_tls, m, sizeof *m);
    }
}

/* ------------------------------------------------------------------------------- leaves ---- */

ts_grad_meta *ts_grad_meta_of(ts_tensor *t)
{
    ts_grad_meta *m = __atomic_load_n(&t->grad, __ATOMIC_ACQUIRE);
    if (TS_LIKELY(m != NULL))
        return m;
    m = ts_alloc(ts_thread_self(), sizeof *m);
    if (!m) {
        ts_error_memory("a leaf's gradient record", sizeof *m);
        return NULL;
    }
    *m = (ts_grad_meta){NULL, NULL};
    ts_grad_meta *first = NULL; /* threads may record the use of one leaf at the same time */
    if (__atomic_compare_exchange_n(&t->grad, &first, m, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return m;
    ts_free(&ts_tls, m, sizeof *m);
    return first;
}

ts_node *ts_accumulator_of(ts_tensor *t)
{
    ts_grad_meta *m = ts_grad_meta_of(t);
    if (!m)
        return NULL;
    ts_node *n = __atomic_load_n(&m->accumulator, __ATOMIC_ACQUIRE);
    if (n)
        return n;
    size_t bytes = sizeof(ts_node);
    n = ts_alloc(ts_thread_self(), bytes);
    if (!n) {
        ts_error_memory("a leaf's accumulator", (int64_t)bytes);
        return NULL;
    }
    *n = (ts_node){
        .op = TS_NODE_LEAF, .nrets = 1, .guarded = true, .bytes = bytes, .leaf = t};
    atomic_init(&n->refs, 1);
    atomic_init(&n->owner, 0);
    ts_node *first = NULL;
    if (__atomic_compare_exchange_n(&m->accumulator, &first, n, false, __ATOMIC_ACQ_REL,
                                    __ATOMIC_ACQUIRE))
        return n;
    ts_free(&ts_tls, n, bytes);
    return first;
}

/* -------------------------------------------------------------------------- ownership ---- */

void ts_back_off(long tries)
{
    /* the owner runs one gradient rule: yield first, then sleep, 1 µs to 0.5 ms */
    if (tries < 64)
        sched_yield();
    else
        nanosleep(&(struct timespec){0, 1000L << (tries < 73 ? tries - 64 : 9)}, NULL);
}

static void clear_owner(ts_thread *thread, void *owner)
{
    if (ts_node_self(thread) == *(uint32_t *)owner)
        *(uint32_t *)owner = 0;
}

/** True if no live thread of this process has the lock id (ts_node_self()) `owner`, for example
 *  after a fork. */
static bool has_ended(uint32_t owner)
{
    ts_thread_walk(clear_owner, &owner);
    return owner != 0;
}

bool ts_node_wait(ts_node *node, uint32_t self)
{
    for (long tries = 0;; tries++) {
        uint32_t owner = atomic_load_explicit(&node->owner, memory_order_relaxed);
        if (owner == self)
            return false;
        /* Take over the lock of a thread that no longer exists. The thread may have left a change
           unfinished, but the node's pointers are valid in the middle of a change, too. */
        if (owner && ((tries & 63) != 63 || !has_ended(owner)))
            owner = 0;
        if (atomic_compare_exchange_weak_explicit(&node->owner, &owner, self, memory_order_acquire,
                                                  memory_order_relaxed))
            return true;
        ts_back_off(tries);
    }
}
