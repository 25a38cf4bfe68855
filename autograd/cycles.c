/** @file cycles.c  Gradients with a history that reaches their own tensor. */
// SPDX-License-Identifier: MIT
#include "autograd/engine.h"

#include <string.h>

/** Gradients whose history a walk visits, too. */
typedef struct roots {
    ts_tensor **grads; /* owned, NULL where there is none */
    uint32_t n;
} roots;

/**
 * Puts an alias with the same place in the graph into s, if its tensor may have a gradient.
 * *old receives the tensor, which may end only behind the node's lock.
 */
static ts_status replace(ts_thread *thread, ts_saved *s, ts_tensor **old)
{
    ts_tensor *t = s->t;
    if (!t || t == TS_NONE || !(t->flags & TS_TENSOR_REQUIRES_GRAD) ||
        !__atomic_load_n(&t->grad, __ATOMIC_ACQUIRE))
        return TS_OK;
    ts_node *maker = ts_gradient_node(t);
    ts_tensor *alias = maker ? ts_whole_alias(thread, t) : NULL;
    TS_TRY(alias);
    alias->node = ts_node_ref(maker);
    alias->output = t->output;
    alias->flags = t->flags;
    alias->keys = t->keys;
    s->t = alias;
    *old = t;
    return TS_OK;
}

/** Replaces what a node has saved, and goes on to its makers. */
static ts_status loosen(ts_run *walk, ts_node *n, uint32_t number, void *ctx)
{
    const roots *more = ctx;
    for (uint32_t i = 0; number == 0 && more && i < more->n; i++)
        if (more->grads[i])
            TS_TRY(ts_run_schedule(walk, more->grads[i]->node));
    for (const ts_end *in = n->inputs; in < n->inputs + n->ninputs; in++)
        if (in->next)
            TS_TRY(ts_run_schedule(walk, in->next));
    ts_saved *s = NULL;
    for (uint32_t k = 0; n->op != TS_NODE_LEAF && n->guarded && (k == 0 || s); k++) {
        ts_tensor *old = NULL;
        ts_status status = TS_OK;
        bool mine = ts_node_lock(n, walk->self);
        s = n->guests ? NULL : ts_node_saved(n, k); /* guests may be reading */
        if (s)
            status = replace(walk->thread, s, &old);
        if (mine)
            ts_node_unlock(n);
        if (old)
            ts_tensor_unref(old);
        TS_TRY(status);
    }
    return TS_OK;
}

/** Without memory the cycle stays, until ts_zero_grad(): no reason for an error. */
static void walk(ts_thread *thread, ts_node *root, roots *more)
{
    ts_error before = *thread->error;
    if (ts_engine_walk(root, loosen, more) != TS_OK)
        *thread->error = before;
}

void ts_break_cycle(ts_node *history) { walk(ts_thread_self(), history, NULL); }

void ts_break_cycles(const ts_run *run, ts_node *root)
{
    size_t bytes = run->ntasks * sizeof(ts_tensor *);
    roots more = {ts_alloc(run->thread, bytes), run->ntasks};
    if (!more.grads)
        return;
    memset(more.grads, 0, bytes);
    for (uint32_t i = 0; i < run->ntasks; i++) {
        ts_node *n = run->tasks[i].node;
        if (n->op != TS_NODE_LEAF)
            continue;
        bool mine = ts_node_lock(n, run->self);
        ts_tensor *g = n->leaf ? n->leaf->grad->grad : NULL;
        if (g && g->node)
            more.grads[i] = ts_tensor_ref(g);
        if (mine)
            ts_node_unlock(n);
    }
    walk(run->thread, root, &more);
    for (uint32_t i = 0; i < run->ntasks; i++)
        if (more.grads[i])
            ts_tensor_unref(more.grads[i]);
    ts_free(run->thread, more.grads, bytes);
}
