/**
 * @file engine.c  Runs rules in reverse.
 *
 * Nodes wait in a heap ordered by seq, which falls along every edge, so when a node comes up all its
 * consumers have run and its gradients are complete: no counts are needed. Buffers live in the run,
 * so runs over a shared graph do not see each other.
 */
// SPDX-License-Identifier: MIT
#include "autograd/engine.h"
#include "dispatch/timers.h"
#include "include/tessera/ops.h"

#include <string.h>

/** A node of this run with the gradients that have arrived for its results. */
typedef struct task {
    ts_node *node;
    ts_tensor *grads[TS_MAX_RETS]; /* owned */
} task;

/** One backward. Arrays come from the thread's free lists. */
struct ts_run {
    ts_thread *thread;
    task *tasks;
    uint32_t *heap;    /* indices of waiting tasks, largest seq first */
    uint32_t *table;   /* open addressing: node -> task index + 1 */
    uint32_t ntasks, nheap, room; /* room: of tasks and heap; table has 2 * room */
    bool record, retain;
    ts_capture *captures;
    int ncaptures;
};

struct ts_vjp_call {
    ts_run *run;
    task *task;
    ts_node *node;
    ts_tensor **given; /* per input, borrowed from the rule's scope */
};

/* ---------------------------------------------------------------------------- the tables ---- */

static uint32_t hash(const ts_node *n, uint32_t mask)
{
    return (uint32_t)(((uintptr_t)n >> 6) * 0x9e3779b97f4a7c15ull >> 40) & mask;
}

static void table_insert(ts_run *run, uint32_t index)
{
    uint32_t mask = 2 * run->room - 1, at = hash(run->tasks[index].node, mask);
    while (run->table[at])
        at = (at + 1) & mask;
    run->table[at] = index + 1;
}

static void run_free(ts_run *run)
{
    for (uint32_t i = 0; i < run->ntasks; i++)
        for (int k = 0; k < TS_MAX_RETS; k++)
            if (run->tasks[i].grads[k])
                ts_tensor_unref(run->tasks[i].grads[k]);
    if (run->room) {
        ts_free(run->thread, run->tasks, run->room * sizeof *run->tasks);
        ts_free(run->thread, run->heap, run->room * sizeof *run->heap);
        ts_free(run->thread, run->table, 2 * run->room * sizeof *run->table);
    }
}

static ts_status run_grow(ts_run *run)
{
    uint32_t room = run->room ? 2 * run->room : 32;
    task *tasks = ts_alloc(run->thread, room * sizeof *tasks);
    uint32_t *heap = ts_alloc(run->thread, room * sizeof *heap);
    uint32_t *table = ts_alloc(run->thread, 2 * room * sizeof *table);
    if (!tasks || !heap || !table) {
        if (tasks)
            ts_free(run->thread, tasks, room * sizeof *tasks);
        if (heap)
            ts_free(run->thread, heap, room * sizeof *heap);
        if (table)
            ts_free(run->thread, table, 2 * room * sizeof *table);
        return ts_fail_memory("the backward's tables", (int64_t)(room * sizeof *tasks));
    }
    if (run->room) {
        memcpy(tasks, run->tasks, run->ntasks * sizeof *tasks);
        memcpy(heap, run->heap, run->nheap * sizeof *heap);
        ts_free(run->thread, run->tasks, run->room * sizeof *tasks);
        ts_free(run->thread, run->heap, run->room * sizeof *heap);
        ts_free(run->thread, run->table, 2 * run->room * sizeof *table);
    }
    run->tasks = tasks;
    run->heap = heap;
    run->table = table;
    run->room = room;
    memset(table, 0, 2 * room * sizeof *table);
    for (uint32_t i = 0; i < run->ntasks; i++)
        table_insert(run, i);
    return TS_OK;
}

/** Ties are broken by age in the run, so the order is the same on every run. */
static bool before(const ts_run *run, uint32_t a, uint32_t b)
{
    uint64_t x = run->tasks[a].node->seq, y = run->tasks[b].node->seq;
    return x > y || (x == y && a < b);
}

static void heap_push(ts_run *run, uint32_t index)
{
    uint32_t at = run->nheap++;
    while (at && before(run, index, run->heap[(at - 1) / 2])) {
        run->heap[at] = run->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    run->heap[at] = index;
}

static uint32_t heap_pop(ts_run *run)
{
    uint32_t top = run->heap[0], last = run->heap[--run->nheap], at = 0;
    for (uint32_t child; (child = 2 * at + 1) < run->nheap; at = child) {
        if (child + 1 < run->nheap && before(run, run->heap[child + 1], run->heap[child]))
            child++;
        if (!before(run, run->heap[child], last))
            break;
        run->heap[at] = run->heap[child];
    }
    run->heap[at] = last;
    return top;
}

/** Adds a gradient (borrowed) for a result of node; the node waits from its first one on. */
static ts_status send(ts_run *run, ts_node *node, int output, ts_tensor *g)
{
    uint32_t index = 0;
    if (run->room) {
        uint32_t mask = 2 * run->room - 1;
        for (uint32_t at = hash(node, mask); run->table[at] && !index; at = (at + 1) & mask)
            if (run->tasks[run->table[at] - 1].node == node)
                index = run->table[at];
    }
    if (!index) {
        if (run->ntasks == run->room)
            TS_TRY(run_grow(run));
        index = ++run->ntasks;
        run->tasks[index - 1] = (task){.node = node};
        table_insert(run, index - 1);
        heap_push(run, index - 1);
    }
    return ts_accumulate_grad(&run->tasks[index - 1].grads[output], g, run->record);
}

/* ---------------------------------------------------------------------------- gradients ---- */

static bool sole_owner(const ts_tensor *t)
{
    return atomic_load_explicit(&t->refs, memory_order_acquire) == 1 &&
           atomic_load_explicit(&t->storage->refs, memory_order_acquire) == 1;
}

ts_status ts_accumulate_grad(ts_tensor **slot, ts_tensor *g, bool record)
{
    if (!*slot) {
        *slot = ts_tensor_ref(g);
        return TS_OK;
    }
    if (!record && sole_owner(*slot) && !((*slot)->flags & TS_TENSOR_VIEW))
        return TS_STATUS_OF(ts_add_(*slot, g));
    TS_SCOPE;
    ts_tensor *sum = ts_add(*slot, g);
    TS_TRY(sum);
    ts_tensor_unref(*slot);
    *slot = ts_tensor_ref(sum);
    return TS_OK;
}

/** A leaf's complete gradient: into .grad, without a copy when nobody else has its storage. */
static ts_status deliver(ts_run *run, ts_node *n, ts_tensor **grad)
{
    ts_tensor *leaf = n->leaf;
    if (!leaf)
        return TS_OK; /* the leaf is gone; nobody can ask */
    ts_grad_meta *m = ts_grad_meta_of(leaf);
    if (!m)
        return ts_error_code();
    if (m->grad)
        return ts_accumulate_grad(&m->grad, *grad, run->record);
    bool take = run->record || (sole_owner(*grad) && ((*grad)->flags & TS_TENSOR_CONTIGUOUS) && !(*grad)->link);
    if (take) {
        m->grad = *grad;
        *grad = NULL;
        m->grad->flags &= (uint8_t)~TS_TENSOR_VIEW;
        return TS_OK;
    }
    TS_SCOPE;
    ts_tensor *copy = ts_clone(*grad);
    TS_TRY(copy);
    m->grad = ts_tensor_ref(copy);
    return TS_OK;
}

static ts_status run_hooks(ts_run *run, task *t, int output)
{
    (void)run;
    for (ts_hook *h = t->node->hooks, *next; h; h = next) {
        next = h->next;
        if (h->output != output)
            continue;
        TS_SCOPE;
        ts_tensor *g = h->fn(h->payload, t->grads[output]);
        if (!g)
            return TS_STATUS_OF(g);
        if (g != t->grads[output]) {
            ts_tensor_ref(g);
            ts_tensor_unref(t->grads[output]);
            t->grads[output] = g;
        }
    }
    return TS_OK;
}

static const char *node_name(const ts_node *n) { return n->op == TS_NODE_LEAF ? "leaf" : ts_op_name(n->op); }

/** Runs one rule and sends what it gives. */
static ts_status run_rule(ts_run *run, uint32_t index)
{
    ts_node *n = run->tasks[index].node;
    if (!n->vjp)
        return ts_fail_op(TS_ERR_AUTOGRAD, node_name(n), n->site,
                          "detach what need not be differentiated, or register a gradient for the op",
                          "the op has no gradient rule, and a gradient through it is needed");
    if (n->freed)
        return ts_fail_op(TS_ERR_AUTOGRAD, node_name(n), n->site, "pass retain_graph to the first backward",
                          "backward runs a second time through a graph whose saved tensors are freed");
    enum { FEW = 8 };
    ts_tensor *few[FEW] = {0}, **given = few;
    if (n->ninputs > FEW) {
        given = ts_alloc(run->thread, n->ninputs * sizeof *given);
        if (!given)
            return ts_fail_memory("the gradients of a list", (int64_t)(n->ninputs * sizeof *given));
        memset(given, 0, n->ninputs * sizeof *given);
    }
    ts_status status;
    {
        TS_SCOPE;
        task copy = run->tasks[index]; /* sending may move the array */
        ts_vjp_call b = {run, &copy, n, given};
        status = n->vjp->rule(&b);
        for (int i = 0; i < n->ninputs && status == TS_OK; i++)
            if (given[i] && n->inputs[i].next)
                status = send(run, n->inputs[i].next, n->inputs[i].output, given[i]);
    }
    if (given != few)
        ts_free(run->thread, given, n->ninputs * sizeof *given);
    if (!run->retain)
        ts_node_free_saved(n);
    return status;
}

static ts_status run_task(ts_run *run, uint32_t index)
{
    task *t = &run->tasks[index];
    ts_node *n = t->node;
    for (int i = 0; n->hooks && i < n->nrets; i++)
        if (t->grads[i])
            TS_TRY(run_hooks(run, t, i));
    for (int i = 0; i < run->ncaptures; i++) {
        ts_capture *c = &run->captures[i];
        if (c->node == n && t->grads[c->output] && !c->grad)
            c->grad = ts_tensor_ref(t->grads[c->output]);
    }
    if (n->op != TS_NODE_LEAF)
        return run_rule(run, index);
    return run->captures ? TS_OK : deliver(run, n, &t->grads[0]);
}

ts_status ts_engine_run(ts_node *root, int output, ts_tensor *gradient, bool record, bool retain,
                        ts_capture *captures, int ncaptures)
{
    ts_run run = {.thread = ts_thread_self(), .record = record, .retain = retain, .captures = captures,
                  .ncaptures = ncaptures};
    /* rules never see autocast, and see autograd only when they are to be recorded */
    ts_mask_guard masks = ts_mask_get();
    ts_thread *thread = run.thread;
    ts_keyset grad = TS_KEYSET(TS_KEY_AUTOGRAD);
    thread->exclude = (record ? thread->exclude & ~grad : thread->exclude | grad) | TS_KEYSET(TS_KEY_AUTOCAST);
    void *timer = ts_timer_enter(thread, TS_TIMER_ENGINE);
    ts_node_ref(root);
    ts_status status = send(&run, root, output, gradient);
    while (status == TS_OK && run.nheap) {
        uint32_t index = heap_pop(&run);
        status = run_task(&run, index);
        for (int k = 0; k < TS_MAX_RETS; k++) {
            ts_tensor *g = run.tasks[index].grads[k];
            run.tasks[index].grads[k] = NULL;
            if (g)
                ts_tensor_unref(g);
        }
    }
    run_free(&run);
    ts_node_release(root);
    ts_timer_leave(thread, timer);
    ts_mask_pop(masks);
    return status;
}

/* ------------------------------------------------------------------------ what rules use ---- */

ts_tensor *ts_grad_out(ts_vjp_call *b, int i) { return b->task->grads[i]; }

bool ts_needs(const ts_vjp_call *b, int i)
{
    for (int k = 0; k < b->node->ninputs; k++)
        if (b->node->inputs[k].arg == i && b->node->inputs[k].next)
            return true;
    return false;
}

bool ts_needs_member(const ts_vjp_call *b, int i, int k)
{
    int at = ts_node_input(b->node, i, k);
    return at >= 0 && b->node->inputs[at].next;
}

/** Checks that nobody wrote since the tensor was saved (F: version errors). */
static ts_tensor *unpack(ts_vjp_call *b, ts_tensor *saved, uint32_t version, const char *what)
{
    if (!saved) {
        ts_fail_op(TS_ERR_INTERNAL, node_name(b->node), b->node->site, NULL, "the rule reads %s, which it does not save", what);
        return NULL;
    }
    if (saved->storage->version != version) {
        uint16_t writer = saved->storage->writer;
        ts_fail_op(TS_ERR_AUTOGRAD, node_name(b->node), b->node->site, "write to ts_clone() of it instead",
                   "%s is needed for the gradient but was written in place since, last by '%s' (version %u, saved at %u)",
                   what, writer ? ts_op_name(writer) : "ts_data_mut", saved->storage->version, version);
        return NULL;
    }
    return saved;
}

ts_tensor *ts_saved_member(ts_vjp_call *b, int i, int k)
{
    if (b->node->args[i].tag == TS_TAG_NONE)
        return TS_NONE;
    int at = ts_node_input(b->node, i, k);
    char what[64];
    const ts_op_info *info = &ts_ops[b->node->op];
    snprintf(what, sizeof what, "argument '%s'", info->schema.args[i].name);
    ts_tensor *t = unpack(b, at < 0 ? NULL : b->node->inputs[at].saved, at < 0 ? 0 : b->node->inputs[at].version, what);
    return t;
}

ts_tensor *ts_saved_arg(ts_vjp_call *b, int i) { return ts_saved_member(b, i, 0); }

ts_tensor *ts_saved_ret(ts_vjp_call *b, int i)
{
    ts_output *o = &b->node->outputs[i];
    ts_tensor *t = unpack(b, o->saved, o->version, "the result");
    if (!t || o->own || !b->run->record || !ts_dtype_is_float((ts_dtype)t->dtype))
        return t;
    /* the weak link is closed only for as long as the rule runs */
    ts_tensor *live = ts_tensor_alias(b->run->thread, t, t->sizes, t->strides, t->ndim, 0);
    if (!live)
        return NULL;
    live->node = ts_node_ref(b->node);
    live->output = (uint8_t)i;
    live->flags = t->flags | TS_TENSOR_REQUIRES_GRAD;
    live->keys |= TS_KEYSET(TS_KEY_AUTOGRAD);
    return ts_scope_adopt(b->run->thread, live);
}

const ts_value *ts_arg(const ts_vjp_call *b, int i) { return &b->node->args[i]; }
ts_rng_state ts_vjp_rng(const ts_vjp_call *b) { return b->node->rng; }

ts_meta ts_member_meta(const ts_vjp_call *b, int i, int k)
{
    int at = ts_node_input(b->node, i, k);
    if (at < 0)
        return (ts_meta){NULL, TS_DTYPE_NONE, TS_DEVICE_CPU, 0, 0};
    const ts_input *in = &b->node->inputs[at];
    return (ts_meta){in->sizes, (ts_dtype)in->dtype, in->device, in->ndim, 0};
}

ts_meta ts_arg_meta(const ts_vjp_call *b, int i) { return ts_member_meta(b, i, 0); }

ts_status ts_give_member(ts_vjp_call *b, int i, int k, ts_tensor *grad)
{
    TS_TRY(grad);
    int at = ts_node_input(b->node, i, k);
    const ts_input *in = at < 0 ? NULL : &b->node->inputs[at];
    bool fits = in && in->ndim == grad->ndim && in->dtype == grad->dtype;
    for (int d = 0; fits && d < grad->ndim; d++)
        fits = grad->sizes[d] == in->sizes[d];
    if (!fits) {
        char got[192], want[192];
        return ts_fail_op(TS_ERR_INTERNAL, node_name(b->node), b->node->site, NULL,
                          "the gradient of argument %d is %s %s, expected %s %s", i,
                          ts_format_sizes(got, sizeof got, grad->sizes, grad->ndim), ts_dtype_name((ts_dtype)grad->dtype),
                          ts_format_sizes(want, sizeof want, in ? in->sizes : NULL, in ? in->ndim : 0),
                          ts_dtype_name(in ? (ts_dtype)in->dtype : TS_DTYPE_NONE));
    }
    b->given[at] = grad;
    return TS_OK;
}

ts_status ts_give(ts_vjp_call *b, int i, ts_tensor *grad) { return ts_give_member(b, i, 0, grad); }

ts_tensor *ts_reduce_to(ts_vjp_call *b, int i, ts_tensor *g)
{
    if (!g)
        return NULL;
    ts_meta m = ts_arg_meta(b, i);
    bool same = m.ndim == g->ndim;
    for (int d = 0; same && d < m.ndim; d++)
        same = m.sizes[d] == g->sizes[d];
    if (!same)
        g = ts_sum_to_size(g, m.sizes, m.ndim);
    return g && g->dtype != m.dtype ? ts_to(g, m.dtype) : g;
}
