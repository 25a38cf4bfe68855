/** @file cycles.c  Breaks reference cycles: gradients, and tensors written in place, whose history
 * saved their own tensor. */
// SPDX-License-Identifier: MIT
#include "autograd/engine.h"

#include <string.h>

/** Gradients whose histories the walk visits in addition to the graph of its root. */
typedef struct roots {
    ts_tensor **grads; /* owned */
    uint32_t n, capacity;
    const ts_tensor *written; /* replace this tensor; NULL: those that may have a gradient */
    const ts_node *before;    /* the walk does not enter this node */
} roots;

static bool may_have_gradient(const ts_tensor *t)
{
    return __atomic_load_n(&t->grad, __ATOMIC_ACQUIRE) != NULL;
}

/** An alias of t with t's history and without its gradient; one reference. NULL with an error. */
static ts_tensor *alias_in_graph(ts_thread *thread, ts_tensor *t)
{
    bool recorded = t->flags & TS_TENSOR_REQUIRES_GRAD;
    ts_node *maker = recorded ? ts_gradient_node(t) : NULL;
    ts_tensor *alias = maker || !recorded ? ts_whole_alias(thread, t) : NULL;
    if (!alias || !recorded)
        return alias;
    alias->node = ts_node_ref(maker);
    alias->output = t->output;
    alias->flags = t->flags;
    alias->keys = t->keys;
    return alias;
}

ts_tensor *ts_gradient_to_keep(ts_thread *thread, ts_tensor *g, bool history)
{
    if (!may_have_gradient(g) && (history || !g->node))
        return ts_tensor_ref(g);
    return history ? alias_in_graph(thread, g) : ts_whole_alias(thread, g);
}

/** A tensor like t without memory, which replaces a saved tensor that was written after it was
 * saved. An alias would share t's storage, so writes to t would be refused. */
static ts_tensor *without_elements(ts_thread *thread, const ts_tensor *t)
{
    ts_tensor *empty = ts_tensor_new(thread, (ts_dtype)t->dtype, t->sizes, t->ndim,
                                     TS_DEVICE_META);
    TS_TRY_NULL(empty);
    empty->storage->version = t->storage->version;
    empty->storage->writer = t->storage->writer;
    return empty;
}

/**
 * Replaces the tensor in s: if it is `written` and its version has changed, by one without
 * elements; if `written` is NULL and it may have a gradient, by an alias with the same history.
 * *old receives the tensor; release it after unlocking the node, because that may free a graph.
 */
static ts_status replace(ts_thread *thread, ts_saved *s, const ts_tensor *written, ts_tensor **old)
{
    ts_tensor *t = s->t;
    if (!t || t == TS_NONE)
        return TS_OK;
    if (written ? t != written || s->version == t->storage->version : !may_have_gradient(t))
        return TS_OK;
    ts_tensor *other = written ? without_elements(thread, t) : alias_in_graph(thread, t);
    TS_TRY(other);
    s->t = other;
    *old = t;
    return TS_OK;
}

/** Replaces a node's saved tensors, and continues with the nodes of its inputs. */
static ts_status replace_saved_tensors(ts_run *walk, ts_node *n, uint32_t number, void *ctx)
{
    const roots *more = ctx;
    for (uint32_t i = 0; number == 0 && more && i < more->n; i++)
        TS_TRY(ts_run_schedule(walk, more->grads[i]->node));
    for (const ts_end *in = n->inputs; in < n->inputs + n->ninputs; in++)
        if (in->next && !(more && in->next == more->before))
            TS_TRY(ts_run_schedule(walk, in->next));
    ts_saved *s = NULL;
    for (uint32_t k = 0; n->op != TS_NODE_LEAF && n->guarded && (k == 0 || s); k++) {
        ts_tensor *old = NULL;
        ts_status status = TS_OK;
        bool mine = ts_node_lock(n, walk->self);
        s = n->unlocked_runs ? NULL : ts_node_saved(n, k); /* these runs may be reading */
        if (s)
            status = replace(walk->thread, s, more ? more->written : NULL, &old);
        if (mine)
            ts_node_unlock(n);
        if (old)
            ts_tensor_unref(old);
        TS_TRY(status);
    }
    return TS_OK;
}

/** Replaces saved tensors in the graph of root and in the histories of `more` (may be NULL). Being
 *  out of memory is not an error: a cycle then stays until ts_zero_grad(). */
static void walk(ts_thread *thread, ts_node *root, roots *more)
{
    ts_error before = *thread->error;
    if (ts_engine_walk(root, replace_saved_tensors, more) != TS_OK)
        *thread->error = before;
}

void ts_break_write_cycle(ts_tensor *t, const ts_node *before)
{
    /* with one reference, the caller's, no node has saved t */
    if (t->node && atomic_load_explicit(&t->refs, memory_order_relaxed) > 1)
        walk(ts_thread_self(), t->node, &(roots){.written = t, .before = before});
}

void ts_break_cycle(ts_node *history) { walk(ts_thread_self(), history, NULL); }

/** Keeps t's gradient for the walk if the gradient has a history. */
static ts_status add_root(ts_thread *thread, roots *r, const ts_tensor *t)
{
    ts_grad_meta *m = t ? __atomic_load_n(&t->grad, __ATOMIC_ACQUIRE) : NULL;
    if (!m || !m->grad || !m->grad->node)
        return TS_OK;
    if (r->n == r->capacity) {
        uint32_t capacity = r->capacity ? 2 * r->capacity : 16;
        ts_tensor **grads = ts_alloc(thread, capacity * sizeof *grads);
        if (!grads)
            return TS_ERR_MEMORY;
        if (r->n) {
            memcpy(grads, r->grads, r->n * sizeof *grads);
            ts_free(thread, r->grads, r->capacity * sizeof *grads);
        }
        r->grads = grads;
        r->capacity = capacity;
    }
    r->grads[r->n++] = ts_tensor_ref(m->grad);
    return TS_OK;
}

void ts_break_cycles(const ts_run *run, ts_node *root)
{
    roots more = {0};
    ts_status status = TS_OK;
    for (uint32_t i = 0; i < run->ntasks && status == TS_OK; i++) {
        ts_node *n = run->tasks[i].node;
        bool leaf = n->op == TS_NODE_LEAF && !run->captures;
        if (!leaf && !__atomic_load_n(&n->hooks, __ATOMIC_ACQUIRE))
            continue;
        bool mine = ts_node_lock(n, run->self);
        if (leaf)
            status = add_root(run->thread, &more, n->leaf);
        for (const ts_hook *h = n->hooks; h && status == TS_OK; h = h->next)
            if (h->kind == TS_HOOK_RETAIN)
                status = add_root(run->thread, &more, h->payload);
        if (mine)
            ts_node_unlock(n);
    }
    if (!more.n)
        return;
    walk(run->thread, root, &more);
    for (uint32_t i = 0; i < more.n; i++)
        ts_tensor_unref(more.grads[i]);
    ts_free(run->thread, more.grads, more.capacity * sizeof *more.grads);
}
