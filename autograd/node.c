/** @file node.c  Life and end of nodes; what a rule reads from them. */
// SPDX-License-Identifier: MIT
#include "autograd/node.h"

/* ------------------------------------------------------------------------------ release ---- */

void ts_node_free_saved(ts_node *node)
{
    for (int i = 0; i < node->ninputs; i++) {
        ts_tensor *t = node->inputs[i].saved;
        node->inputs[i].saved = NULL;
        node->freed |= t != NULL;
        if (t)
            ts_tensor_unref(t);
    }
    if (node->op == TS_NODE_LEAF)
        return;
    for (int i = 0; i < node->nrets; i++) {
        ts_tensor *t = node->outputs[i].saved;
        node->outputs[i].saved = NULL;
        node->freed |= t != NULL;
        if (t)
            ts_tensor_unref(t);
    }
}

/* Nodes whose last reference went while another is being released; a chain never recurses. */
static _Thread_local ts_node *garbage __attribute__((tls_model("initial-exec")));
static _Thread_local bool sweeping __attribute__((tls_model("initial-exec")));

void ts_node_release(ts_node *node)
{
    if (atomic_load_explicit(&node->refs, memory_order_acquire) != 1 &&
        atomic_fetch_sub_explicit(&node->refs, 1, memory_order_acq_rel) != 1)
        return;
    node->garbage = garbage;
    garbage = node;
    if (sweeping)
        return;
    sweeping = true;
    while (garbage) {
        ts_node *n = garbage;
        garbage = n->garbage;
        ts_node_free_saved(n);
        for (int i = 0; i < n->ninputs; i++)
            if (n->inputs[i].next)
                ts_node_release(n->inputs[i].next);
        for (ts_hook *h = n->hooks, *next; h; h = next) {
            next = h->next;
            ts_free(&ts_tls, h, sizeof *h);
        }
        ts_free(&ts_tls, n, n->bytes);
    }
    sweeping = false;
}

static void tensor_release(ts_tensor *t)
{
    if (t->node)
        ts_node_release(t->node);
    if (t->grad) {
        if (t->grad->grad)
            ts_tensor_unref(t->grad->grad);
        if (t->grad->accumulator) {
            t->grad->accumulator->leaf = NULL;
            ts_node_release(t->grad->accumulator);
        }
        ts_free(&ts_tls, t->grad, sizeof *t->grad);
    }
}

__attribute__((constructor(101))) static void install(void) { ts_autograd_release = tensor_release; }

/* ------------------------------------------------------------------------------- leaves ---- */

ts_grad_meta *ts_grad_meta_of(ts_tensor *t)
{
    if (!t->grad) {
        ts_grad_meta *m = ts_alloc(ts_thread_self(), sizeof *m);
        if (!m) {
            ts_fail_memory("a leaf's gradient record", sizeof *m);
            return NULL;
        }
        *m = (ts_grad_meta){NULL, NULL};
        t->grad = m;
    }
    return t->grad;
}

ts_node *ts_gradient_node(ts_tensor *t)
{
    if (t->node)
        return t->node;
    ts_grad_meta *m = ts_grad_meta_of(t);
    if (!m)
        return NULL;
    if (!m->accumulator) {
        size_t bytes = sizeof(ts_node);
        ts_node *n = ts_alloc(ts_thread_self(), bytes);
        if (!n) {
            ts_fail_memory("a leaf's accumulator", (int64_t)bytes);
            return NULL;
        }
        *n = (ts_node){.op = TS_NODE_LEAF, .nrets = 1, .bytes = (uint32_t)bytes, .leaf = t};
        atomic_init(&n->refs, 1);
        m->accumulator = n;
    }
    return m->accumulator;
}

int ts_node_input(const ts_node *node, int arg, int member)
{
    for (int k = 0; k < node->ninputs; k++)
        if (node->inputs[k].arg == arg)
            return k + member;
    return -1;
}
