/**
 * @file engine.c  The backward engine: runs gradient rules from the root to the leaves.
 *
 * Nodes wait in a heap ordered by seq, which falls along every edge. When a node is popped, all its
 * consumers have run and its gradients are complete, so no dependency counts are needed. Leaves run
 * last. Gradient buffers belong to the run, so runs over a shared graph are independent.
 */
// SPDX-License-Identifier: MIT
#include "autograd/recompute.h"
#include "core/device.h"
#include "core/recorder.h"
#include "dispatch/timers.h"
#include "include/tessera/ops.h"

#include <string.h>

/* ---------------------------------------------------------------------------- the tables ---- */

static void table_insert(ts_run *run, uint32_t index)
{
    uint32_t mask = 2 * run->capacity - 1, at = ts_hash_pointer(run->tasks[index].node, mask);
    while (run->table[at])
        at = (at + 1) & mask;
    run->table[at] = index + 1;
}

TS_INLINE ts_tensor **grads_of(ts_task *t)
{
    return TS_LIKELY(t->node->nrets <= TS_MAX_RETS) ? t->few : t->many;
}

/** Releases the gradients of a task. */
TS_INLINE void task_end(ts_run *run, ts_task *t)
{
    int n = t->node->nrets;
    ts_tensor **grads = grads_of(t);
    for (int k = 0; grads && k < n; k++)
        if (grads[k])
            ts_tensor_unref(grads[k]);
    if (TS_UNLIKELY(n > TS_MAX_RETS) && grads)
        ts_free(run->thread, grads, (size_t)n * sizeof *grads);
}

/** Number of tasks that are stored in the run itself, on the stack. */
enum { FEW_TASKS = 8 };
typedef struct few_tasks {
    ts_task tasks[FEW_TASKS];
    uint32_t heap[FEW_TASKS], table[2 * FEW_TASKS];
} few_tasks;

TS_INLINE void run_begin(ts_run *run, few_tasks *few)
{
    memset(few->table, 0, sizeof few->table);
    run->tasks = few->tasks;
    run->heap = few->heap;
    run->table = few->table;
    run->capacity = FEW_TASKS;
}

static size_t block_bytes(uint32_t capacity)
{
    return capacity * (sizeof(ts_task) + 3 * sizeof(uint32_t));
}

/** Moves the tables into a block for four times as many tasks. */
static TS_COLD ts_status run_grow(ts_run *run)
{
    ts_run more = *run;
    more.capacity = 4 * run->capacity;
    more.tasks = ts_alloc(run->thread, block_bytes(more.capacity));
    if (!more.tasks)
        return ts_error_memory("the backward's tables", (int64_t)block_bytes(more.capacity));
    more.heap = (uint32_t *)(more.tasks + more.capacity);
    more.table = more.heap + more.capacity;
    memcpy(more.tasks, run->tasks, run->ntasks * sizeof *run->tasks);
    memcpy(more.heap, run->heap, run->nheap * sizeof *run->heap);
    memset(more.table, 0, 2 * more.capacity * sizeof *more.table);
    if (run->capacity > FEW_TASKS)
        ts_free(run->thread, run->tasks, block_bytes(run->capacity));
    *run = more;
    for (uint32_t i = 0; i < run->ntasks; i++)
        table_insert(run, i);
    return TS_OK;
}

/** True if task a runs before task b: larger seq first, then the task that was added first, so the
 *  order is deterministic. */
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

/** Moves the heap's former last task to its empty root and restores the order. */
static __attribute__((noinline)) void heap_sift(ts_run *run, uint32_t last)
{
    uint32_t at = 0;
    for (uint32_t child; (child = 2 * at + 1) < run->nheap; at = child) {
        if (child + 1 < run->nheap && before(run, run->heap[child + 1], run->heap[child]))
            child++;
        if (!before(run, run->heap[child], last))
            break;
        run->heap[at] = run->heap[child];
    }
    run->heap[at] = last;
}

/** Takes the next waiting task; false if there is none. Leaves come last, in the order of
 *  discovery. */
TS_INLINE bool next_task(ts_run *run, uint32_t *index)
{
    if (run->nheap) {
        *index = run->heap[0];
        if (--run->nheap)
            heap_sift(run, run->heap[run->nheap]);
        return true;
    }
    while (run->nleaves < run->ntasks) {
        *index = run->nleaves++;
        if (run->tasks[*index].node->op == TS_NODE_LEAF)
            return true;
    }
    return false;
}

/** Frees the run. Finished tasks own nothing, so only waiting tasks are ended. */
static void run_free(ts_run *run)
{
    uint32_t index;
    while (next_task(run, &index)) {
        ts_pieces_free(run->tasks[index].pieces);
        task_end(run, &run->tasks[index]);
    }
    if (run->capacity > FEW_TASKS)
        ts_free(run->thread, run->tasks, block_bytes(run->capacity));
}

ts_task *ts_run_schedule(ts_run *run, ts_node *node)
{
    uint32_t mask = 2 * run->capacity - 1;
    for (uint32_t at = ts_hash_pointer(node, mask); run->table[at]; at = (at + 1) & mask)
        if (run->tasks[run->table[at] - 1].node == node)
            return &run->tasks[run->table[at] - 1];
    if (run->ntasks == run->capacity)
        TS_TRY_NULL(run_grow(run));
    uint32_t index = run->ntasks++;
    run->tasks[index] = (ts_task){.node = node};
    table_insert(run, index);
    if (node->op != TS_NODE_LEAF)
        heap_push(run, index);
    return &run->tasks[index];
}

/** The task of a node, with memory for its results' gradients; NULL with an error. */
TS_INLINE ts_task *task_for(ts_run *run, ts_node *node)
{
    ts_task *t = ts_run_schedule(run, node);
    if (TS_LIKELY(t && grads_of(t)))
        return t;
    if (!t)
        return NULL;
    size_t bytes = node->nrets * sizeof *t->many;
    t->many = ts_alloc(run->thread, bytes);
    if (!t->many) {
        ts_error_memory("the gradients of a function's results", (int64_t)bytes);
        return NULL;
    }
    memset(t->many, 0, bytes);
    return t;
}

/** Adds a gradient (borrowed) for a result of node. */
TS_INLINE ts_status send(ts_run *run, ts_node *node, int output, ts_tensor *g)
{
    ts_task *t = task_for(run, node);
    if (TS_UNLIKELY(!t))
        return ts_error_code();
    ts_tensor **grads = grads_of(t);
    if (TS_LIKELY(grads[output] == NULL)) {
        grads[output] = ts_tensor_ref(g);
        return TS_OK;
    }
    ts_tensor *old = NULL;
    ts_status status = ts_accumulate_grad(&grads[output], g, run->record, &old);
    if (old)
        ts_tensor_unref(old);
    return status;
}

/* ---------------------------------------------------------------------------- gradients ---- */

static bool sole_owner(const ts_tensor *t)
{
    return atomic_load_explicit(&t->refs, memory_order_acquire) == 1 &&
           !ts_storage_shared(t->storage);
}

ts_status ts_accumulate_grad(ts_tensor **slot, ts_tensor *g, bool record, ts_tensor **old)
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
    *old = *slot;
    *slot = ts_tensor_ref(sum);
    return TS_OK;
}

/** Adds to the gradient that a leaf has. */
static ts_status add_to_grad(ts_run *run, ts_tensor *leaf, ts_tensor **slot, ts_tensor *grad,
                             ts_tensor **old)
{
    TS_REPORT_EVENT(run->thread, grad_read, leaf, *slot);
    TS_TRY(ts_accumulate_grad(slot, grad, run->record, old));
    if (*old)
        TS_REPORT_EVENT(run->thread, grad_set, leaf, *slot);
    return TS_OK;
}

/** Adds a leaf's complete gradient, *grad, to the leaf's gradient, without a copy if the storage
 *  has no other holder; *grad is NULL then. *old: as in ts_accumulate_grad(). The leaf's node n is
 *  locked, so the leaf is not freed meanwhile. */
static ts_status deliver(ts_run *run, ts_node *n, ts_tensor **grad, ts_tensor **old)
{
    ts_tensor *leaf = n->leaf, *g = *grad;
    if (!leaf)
        return TS_OK; /* the leaf was freed */
    /* m is set, because it owns n; the load is atomic, because other threads that record a use of
       the leaf may try to set it */
    ts_grad_meta *m = __atomic_load_n(&leaf->grad, __ATOMIC_ACQUIRE);
    if (m->grad)
        return add_to_grad(run, leaf, &m->grad, g, old);
    bool keeps = (g->flags & TS_TENSOR_CONTIGUOUS) ||
                 (ts_is_dense_last(g) && ts_is_dense_last(leaf)); /* this layout */
    if (TS_UNLIKELY(run->record)) {
        TS_TRY(g = ts_gradient_to_keep(run->thread, g, true));
        g->flags &= (uint8_t)~TS_TENSOR_VIEW;
    } else if (keeps && sole_owner(g) && !g->link && !g->grad &&
               !(g->flags & TS_TENSOR_REQUIRES_GRAD)) {
        *grad = NULL;
        g->flags &= (uint8_t)~TS_TENSOR_VIEW;
    } else {
        TS_SCOPE;
        TS_TRY(g = keeps ? ts_clone(g) : ts_contiguous(g));
        ts_tensor_ref(g);
    }
    m->grad = g;
    ts_storage_own(g->storage, TS_OWNER_GRADIENT);
    TS_REPORT_EVENT(run->thread, grad_set, leaf, g);
    return TS_OK;
}

/* -------------------------------------------------------------------------------- nodes ---- */

ts_status ts_run_send_part(ts_run *run, const ts_end *in, ts_tensor *g, const ts_positions *at)
{
    if (!in->next || in->next->seq < run->floor)
        return TS_OK;
    ts_task *t = task_for(run, in->next);
    TS_TRY(t);
    return ts_pieces_add(run, &t->pieces, &grads_of(t)[in->shape.output], in, g, at);
}

ts_tensor *ts_rule_take(ts_vjp_call *b, int i, const ts_tensor *like)
{
    ts_run *run = b->run;
    const ts_end *in = ts_node_input(b->node, i, 0);
    bool seen = run->record || run->anomaly ||
                __atomic_load_n(&b->node->hooks, __ATOMIC_ACQUIRE) != NULL;
    if (seen || !in || !in->next || in->next->seq < run->floor || in->next->op == TS_NODE_LEAF)
        return NULL;
    ts_task *t = task_for(run, in->next);
    ts_tensor **slot = t ? &grads_of(t)[in->shape.output] : NULL, *g = t ? *slot : NULL;
    const ts_shape *s = &in->shape;
    if (!g || g->dtype != like->dtype || g->ndim != s->ndim ||
        !ts_same_device(g->storage->device, like->storage->device) ||
        memcmp(g->sizes, s->sizes, s->ndim * sizeof *s->sizes) != 0)
        return NULL;
    *slot = NULL;
    return ts_adopt(g);
}

/** Marks a node whose saved tensors the run will free, so that no other run enters it. */
static void claim(const ts_run *run, ts_node *n)
{
    const ts_saved *s;
    bool holds = n->segment != NULL;
    for (uint32_t k = 0; !holds && (s = ts_node_saved(n, k)); k++)
        holds = s->t && s->t != TS_NONE;
    n->freed |= holds && !run->retain;
}

void ts_user_code_enter(ts_run *run, ts_user_code *in)
{
    in->run = run;
    in->outer = run->thread->user_code;
    run->thread->user_code = in;
    claim(run, in->node);
    in->node->unlocked_runs++;
    ts_node_unlock(in->node);
}

void ts_user_code_leave(ts_user_code *in)
{
    ts_node_lock(in->node, in->run->self);
    in->node->unlocked_runs--;
    in->run->thread->user_code = in->outer;
}

/** Calls the rule of a node. The caller has locked the node if n->guarded is set. */
TS_INLINE ts_status call_rule(ts_vjp_call *b)
{
    ts_run *run = b->run;
    ts_node *n = b->node;
    if (TS_UNLIKELY(n->freed))
        return ts_fail_op(
            TS_ERR_AUTOGRAD, ts_node_name(n), n->site, "pass retain_graph to the first backward",
            "backward runs a second time through a graph whose saved tensors are freed");
    if (TS_UNLIKELY(run->timer != NULL))
        ts_timer_follow(run->thread, run->scope, n->scope, n->seq);
    ts_status status = n->vjp->rule(b);
    if (TS_UNLIKELY(n->segment != NULL))
        ts_collected_done(run, n);
    if (TS_UNLIKELY(n->unlocked_runs))
        claim(run, n);
    else if (!run->retain || n->freed)
        ts_node_free_saved(n);
    return status;
}

static TS_COLD ts_status fail_reentered(const ts_node *n)
{
    return ts_fail_op(
        TS_ERR_AUTOGRAD, ts_node_name(n), n->site, "detach the root of the inner backward",
        "the node's own backward, or a hook on it, started a backward through it");
}

/** In anomaly mode, checks that the rule's gradients are finite. Runs the POST hooks, which may
 *  replace the gradients. */
static TS_COLD ts_status check_rule_results(ts_vjp_call *b, bool hooked)
{
    ts_node *n = b->node;
    if (b->run->anomaly)
        TS_TRY(ts_anomaly_check(n, b->given, (int)n->ninputs, TS_GIVEN));
    return hooked ? ts_run_hooks(b->run, n, TS_HOOK_POST, 0, b->given, (int)n->ninputs,
                              (ts_tensor **)b->grads)
                  : TS_OK;
}

static void unlock(ts_node *const *n) { ts_node_unlock(*n); }

/** call_rule() under the node's lock. */
static ts_status call_locked(ts_vjp_call *b)
{
    if (TS_UNLIKELY(!ts_node_lock(b->node, b->run->self)))
        return fail_reentered(b->node);
    ts_node *const locked __attribute__((cleanup(unlock), unused)) = b->node;
    return call_rule(b);
}

/** Runs one rule and passes on its gradients. */
static ts_status run_rule(ts_run *run, ts_node *n, ts_tensor **grads, bool hooked)
{
    if (TS_UNLIKELY(!n->vjp))
        return ts_fail_op(
            TS_ERR_AUTOGRAD, ts_node_name(n), n->site,
            "pass ts_detach() of the op's arguments, or register a gradient rule for the op",
            "the op has no gradient rule, and a gradient through it is needed");
    enum { FEW = 8 };
    ts_tensor *few[FEW] = {0}, **given = few;
    ts_held list TS_HELD = {run->thread, NULL, n->ninputs * sizeof *given};
    if (n->ninputs > FEW) {
        given = list.at = ts_alloc(run->thread, list.bytes);
        if (!given)
            return ts_error_memory("the gradients of a list", (int64_t)list.bytes);
        memset(given, 0, list.bytes);
    }
    ts_status status;
    {
        TS_SCOPE;
        ts_vjp_call b;
        b.run = run;
        b.node = n;
        b.grads = grads;
        b.given = given;
        status = n->guarded ? call_locked(&b) : call_rule(&b);
        if (TS_UNLIKELY(hooked || run->anomaly) && status == TS_OK)
            status = check_rule_results(&b, hooked);
        for (uint32_t i = 0; i < n->ninputs && status == TS_OK; i++) {
            ts_node *next = n->inputs[i].next;
            if (!given[i] || !next || next->seq < run->floor)
                continue;
            status = send(run, next, n->inputs[i].shape.output, given[i]);
        }
    }
    return status;
}

/** Runs the POST hooks of a leaf after the accumulation. A hook may remove the gradient or free the
 *  leaf. */
static TS_COLD ts_status run_leaf_hooks(ts_run *run, ts_node *n)
{
    TS_SCOPE;
    bool mine = ts_node_lock(n, run->self);
    ts_tensor *g = n->leaf ? n->leaf->grad->grad : NULL;
    if (g)
        ts_tensor_ref(g);
    if (mine)
        ts_node_unlock(n);
    ts_status status = g ? ts_run_hooks(run, n, TS_HOOK_POST, 0, NULL, 0, &g) : TS_OK;
    if (g)
        ts_tensor_unref(g);
    return status;
}

static void unlock_leaf(ts_node *const *n)
{
    if (TS_LIKELY(*n != NULL))
        ts_node_unlock(*n);
}

static ts_status deliver_locked(ts_run *run, ts_node *n, ts_tensor **grads, ts_tensor **old)
{
    bool held = TS_UNLIKELY(run->thread->lazy != NULL); /* until the recording has run */
    if (held)
        TS_TRY(ts_above.hold_leaf(n));
    else if (TS_UNLIKELY(!ts_node_lock(n, run->self)))
        return fail_reentered(n);
    ts_node *const locked __attribute__((cleanup(unlock_leaf), unused)) = held ? NULL : n;
    return deliver(run, n, grads, old);
}

/** Accumulates a leaf's gradient, then runs its POST hooks. */
TS_INLINE ts_status run_leaf(ts_run *run, ts_node *n, ts_tensor **grads, bool hooked)
{
    ts_tensor *old = NULL;
    ts_status status = deliver_locked(run, n, grads, &old);
    if (old)
        ts_tensor_unref(old);
    return TS_UNLIKELY(hooked) && status == TS_OK ? run_leaf_hooks(run, n) : status;
}

static TS_COLD bool has_gradient(const ts_node *n, ts_tensor *const *grads)
{
    for (int i = 0; i < n->nrets; i++)
        if (grads[i])
            return true;
    return false;
}

/** Runs the PRE hooks. *on is false if they removed all gradients, so the rule is skipped. */
static TS_COLD ts_status run_hooks_before(ts_run *run, ts_node *n, ts_tensor **grads, bool *on)
{
    TS_SCOPE;
    TS_TRY(ts_run_hooks(run, n, TS_HOOK_PRE, 0, grads, n->nrets, NULL));
    *on = has_gradient(n, grads);
    return TS_OK;
}

/** True if `in`, or user code around it, is in the rule or a hook of n. */
static TS_COLD bool is_around(const ts_user_code *in, const ts_node *n)
{
    while (in && in->node != n)
        in = in->outer;
    return in;
}

/** The status of a node that failed: records an error if its rule did not, and in anomaly mode adds
 *  the forward call. */
static TS_COLD ts_status fail_node(const ts_run *run, const ts_node *n, ts_status status)
{
    status = ts_fail_callback(status, ts_node_name(n), n->site, "the gradient rule");
    return run->anomaly ? ts_anomaly_explain(n, status) : status;
}

/** Runs one task: GRAD hooks, captures, PRE hooks, then the rule or the leaf's accumulation. */
static ts_status run_node(ts_run *run, ts_task *t)
{
    ts_node *n = t->node;
    ts_tensor **grads = grads_of(t);
    if (TS_UNLIKELY(t->pieces != NULL)) {
        TS_TRY(ts_pieces_end(run, n, t->pieces, grads));
        if (!has_gradient(n, grads))
            return TS_OK; /* all gradients were parts, which a view passed on to its argument */
    }
    if (TS_UNLIKELY(run->around != NULL) && is_around(run->around, n))
        return fail_reentered(n);
    /* another thread may be adding the first hook */
    bool hooked = TS_UNLIKELY(__atomic_load_n(&n->hooks, __ATOMIC_ACQUIRE) != NULL);
    if (hooked)
        TS_TRY(ts_run_grad_hooks(run, n, grads));
    for (int i = 0; i < run->ncaptures; i++) {
        ts_capture *c = &run->captures[i];
        if (c->node == n && grads[c->output] && !c->grad)
            c->grad = ts_tensor_ref(grads[c->output]);
    }
    if (run->captures && n->seq <= run->floor)
        return TS_OK; /* a captured leaf or node; no gradient below it is requested */
    if (hooked) {
        bool on;
        TS_TRY(run_hooks_before(run, n, grads, &on));
        if (!on)
            return TS_OK;
    }
    return n->op == TS_NODE_LEAF ? run_leaf(run, n, grads, hooked)
                                 : run_rule(run, n, grads, hooked);
}

/** Ends a run, also after an exception in user code. */
static void run_end(ts_run *run)
{
    if (TS_UNLIKELY(run->now != NULL))
        task_end(run, run->now);
    if (TS_UNLIKELY(run->collected != NULL))
        ts_collected_free(run);
    run_free(run);
    ts_node_unref(run->root);
    ts_timer_leave(run->thread, run->timer);
}

ts_status ts_engine_run(ts_node *root, int output, ts_tensor *gradient, bool record, bool retain,
                        ts_capture *captures, int ncaptures)
{
    ts_thread *thread = ts_thread_self();
    few_tasks few;
    ts_task t;
    ts_node_ref(root);
    ts_run run __attribute__((cleanup(run_end))) = {.thread = thread,
                                                    .record = record,
                                                    .retain = retain,
                                                    .captures = captures,
                                                    .ncaptures = ncaptures,
                                                    .root = root,
                                                    .timer = ts_timer_enter(thread)};
    run_begin(&run, &few);
    run.scope = ts_timer_scope(thread, 0);
    run.self = ts_node_self(thread);
    run.anomaly = ts_anomaly_enabled();
    run.around = thread->user_code;
    for (int i = 0; i < ncaptures; i++)
        run.floor = i == 0 || captures[i].node->seq < run.floor ? captures[i].node->seq : run.floor;
    /* rules run without autocast, and with autograd only if the run is recorded */
    TS_KEEP_MODES;
    ts_keyset grad = TS_KEYSET(TS_KEY_AUTOGRAD);
    thread->exclude =
        (record ? thread->exclude & ~grad : thread->exclude | grad) | TS_KEYSET(TS_KEY_AUTOCAST);
    ts_status status =
        TS_UNLIKELY(run.anomaly)
            ? ts_anomaly_check(root, &gradient, 1,
                               "backward starts with a gradient that is not finite: result")
            : TS_OK;
    if (status == TS_OK)
        status = send(&run, root, output, gradient);
    ts_tensor_unref(gradient);
    for (uint32_t index; status == TS_OK && next_task(&run, &index);) {
        t = run.tasks[index]; /* a copy: sending may move the tasks */
        run.now = &t;
        status = run_node(&run, &t);
        if (TS_UNLIKELY(status != TS_OK))
            status = fail_node(&run, t.node, status);
        run.now = NULL;
        task_end(&run, &t);
    }
    if (TS_UNLIKELY(record) && status == TS_OK)
        ts_break_cycles(&run, root);
    return status;
}

/* --------------------------------------------------------------------------------- walks ---- */

ts_status ts_engine_walk(ts_node *root,
                         ts_status (*visit)(ts_run *walk, ts_node *node, uint32_t number,
                                            void *ctx),
                         void *ctx)
{
    ts_run walk = {.thread = ts_thread_self()};
    walk.self = ts_node_self(walk.thread);
    few_tasks few;
    run_begin(&walk, &few);
    ts_status status = TS_STATUS_OF(ts_run_schedule(&walk, root));
    for (uint32_t number; status == TS_OK && next_task(&walk, &number);)
        status = visit(&walk, walk.tasks[number].node, number, ctx);
    run_free(&walk);
    return status;
}
