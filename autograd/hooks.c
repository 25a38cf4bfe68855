/** @file hooks.c  Hooks: user functions that a backward calls on gradients and around rules. */
// SPDX-License-Identifier: MIT
#include "autograd/engine.h"
#include "core/device.h"
#include "include/tessera/check.h"

static uint32_t forks; /* number of forks from the first process to this one */
void ts_hooks_forked(void) { forks++; }

/** Adds a hook at the end of the list: hooks run in the order of registration. */
static void append(ts_node *node, ts_hook *h)
{
    bool mine = ts_node_lock(node, ts_node_self(ts_thread_self()));
    ts_hook **link = &node->hooks;
    while (*link)
        link = &(*link)->next;
    /* a release store, because runs test for hooks without the lock */
    __atomic_store_n(link, h, __ATOMIC_RELEASE);
    if (mine)
        ts_node_unlock(node);
}

static bool keeps(const ts_hook *h, const ts_tensor *t)
{
    return t && h->kind == TS_HOOK_RETAIN && h->payload == t;
}

/** Removes a hook, or the RETAIN hook of t, from the list; NULL if it is not in the list. */
static ts_hook *take_out(ts_node *node, const ts_hook *hook, const ts_tensor *t)
{
    bool mine = ts_node_lock(node, ts_node_self(ts_thread_self()));
    ts_hook **link = &node->hooks, *h;
    while ((h = *link) && h != hook && !keeps(h, t))
        link = &h->next;
    if (h) {
        __atomic_store_n(link, h->next, __ATOMIC_RELEASE);
        h->next = NULL;
    }
    if (mine)
        ts_node_unlock(node);
    return h;
}

void ts_hook_unref(ts_hook *h)
{
    if (atomic_fetch_sub(&h->refs, 1) == 1)
        ts_free(&ts_tls, h, sizeof *h);
}

/** Copies a node's hooks of one kind (GRAD and RETAIN: for one output; others: output 0) and takes
 *  a reference to each of the *n hooks. Adding or removing hooks does not change the copy.
 *  TS_ERR_MEMORY. */
static TS_COLD ts_status take_hooks(ts_node *node, ts_hook_kind kind, int output, ts_hook ***hooks,
                                    int *n)
{
    ts_thread *thread = ts_thread_self();
    ts_status status = TS_OK;
    bool mine = ts_node_lock(node, ts_node_self(thread));
    *n = 0;
    for (const ts_hook *h = node->hooks; h; h = h->next)
        *n += h->kind == kind && h->output == output;
    size_t bytes = (size_t)*n * sizeof **hooks;
    *hooks = *n ? ts_alloc(thread, bytes) : NULL;
    if (*n && !*hooks) {
        *n = 0;
        status = ts_error_memory("the hooks of a node", (int64_t)bytes);
    }
    int k = 0;
    for (ts_hook *h = node->hooks; h && k < *n; h = h->next)
        if (h->kind == kind && h->output == output) {
            atomic_fetch_add(&h->refs, 1);
            (*hooks)[k++] = h;
        }
    if (mine)
        ts_node_unlock(node);
    return status;
}

/** Releases the hooks of take_hooks() and frees the array. */
static TS_COLD void release_hooks(ts_hook **hooks, int n)
{
    for (int k = 0; k < n; k++)
        ts_hook_unref(hooks[k]);
    if (n)
        ts_free(&ts_tls, hooks, (size_t)n * sizeof *hooks);
}

static ts_status add(ts_node *node, ts_hook hook, ts_hook **out)
{
    ts_hook *h = ts_alloc(ts_thread_self(), sizeof *h);
    if (!h)
        return ts_error_memory("a hook", sizeof *h);
    *h = hook;
    atomic_init(&h->refs, 1);
    atomic_init(&h->removed, false);
    h->forks = forks;
    append(node, h);
    if (out)
        *out = h;
    return TS_OK;
}

void ts_hook_move(ts_node *from, ts_node *to, const ts_tensor *t)
{
    ts_hook *h = take_out(from, NULL, t);
    if (!h)
        return;
    h->output = t->output;
    if (to)
        append(to, h);
    else
        ts_hook_unref(h);
}

/* ------------------------------------------------------------------------------ tensors ---- */

static ts_status check_grad(const char *op, const void *site, const ts_tensor *t)
{
    return ts_requires_grad(t)
               ? TS_OK
               : ts_fail_op(TS_ERR_AUTOGRAD, op, site, "ts_set_requires_grad(t, true)",
                            "argument 't': expected a tensor that requires grad, got one that does "
                            "not");
}

ts_status ts_register_hook(ts_tensor *t, ts_grad_hook fn, void *payload, ts_hook **out)
{
    const void *site = __builtin_return_address(0);
    TS_TRY(TS_CHECK_TENSORS(t));
    TS_TRY(TS_CHECK_POINTERS(fn));
    TS_TRY(check_grad("register_hook", site, t));
    ts_node *n = ts_gradient_node(t);
    TS_TRY(n);
    ts_epoch_ends_for(t->storage);
    return add(n,
               (ts_hook){.grad = fn, .payload = payload, .kind = TS_HOOK_GRAD, .output = t->output},
               out);
}

void ts_hook_remove(ts_tensor *t, ts_hook *hook)
{
    if (t && t != TS_NONE && hook)
        ts_epoch_ends_for(t->storage);
    if (t && t != TS_NONE)
        ts_node_hook_remove(t->node ? t->node : t->grad ? t->grad->accumulator : NULL, hook);
}

/** Adds g to the gradient that ts_retain_grad() keeps for result `output`. */
static TS_COLD ts_status keep_grad(ts_node *node, int output, ts_tensor *g, bool record)
{
    ts_thread *thread = ts_thread_self();
    for (int k = 0;; k++) {
        ts_tensor *old = NULL;
        int at = k;
        ts_status status = TS_OK;
        bool mine = ts_node_lock(node, ts_node_self(thread));
        ts_hook *h = node->hooks;
        while (h && (h->kind != TS_HOOK_RETAIN || h->output != output || at--))
            h = h->next;
        if (h) { /* its tensor is alive: freeing a tensor removes its hook first */
            ts_grad_meta *m = ts_grad_meta_of(h->payload);
            status = !m        ? ts_error_code()
                     : m->grad ? ts_accumulate_grad(&m->grad, g, record, &old)
                               : TS_STATUS_OF(m->grad = ts_gradient_to_keep(thread, g, record));
        }
        if (mine)
            ts_node_unlock(node);
        if (old)
            ts_tensor_unref(old);
        if (!h || status != TS_OK)
            return status;
    }
}

ts_status ts_retain_grad(ts_tensor *t)
{
    const void *site = __builtin_return_address(0);
    TS_TRY(TS_CHECK_TENSORS(t));
    TS_TRY(check_grad("retain_grad", site, t));
    if (!t->node)
        return TS_OK; /* a leaf keeps its gradient anyway */
    bool mine = ts_node_lock(t->node, ts_node_self(ts_thread_self()));
    const ts_hook *h = t->node->hooks;
    while (h && !keeps(h, t))
        h = h->next;
    if (mine)
        ts_node_unlock(t->node);
    if (h)
        return TS_OK;
    /* t->grad also tells the release of t that a hook points to t */
    TS_TRY(ts_grad_meta_of(t));
    return add(t->node, (ts_hook){.payload = t, .kind = TS_HOOK_RETAIN, .output = t->output}, NULL);
}

/* -------------------------------------------------------------------------------- nodes ---- */

ts_status ts_node_hook_before(ts_node *node, ts_node_pre_hook fn, void *payload, ts_hook **out)
{
    TS_TRY(TS_CHECK_OBJECTS(node));
    TS_TRY(TS_CHECK_POINTERS(fn));
    return add(node, (ts_hook){.pre = fn, .payload = payload, .kind = TS_HOOK_PRE}, out);
}

ts_status ts_node_hook_after(ts_node *node, ts_node_post_hook fn, void *payload, ts_hook **out)
{
    TS_TRY(TS_CHECK_OBJECTS(node));
    TS_TRY(TS_CHECK_POINTERS(fn));
    return add(node, (ts_hook){.post = fn, .payload = payload, .kind = TS_HOOK_POST}, out);
}

void ts_node_hook_remove(ts_node *node, ts_hook *hook)
{
    ts_hook *h = node && hook ? take_out(node, hook, NULL) : NULL;
    if (!h)
        return;
    atomic_store(&h->removed, true);
    /* Wait for threads that run the hook, because the caller may free the payload afterwards. Code
       inside a hook does not wait, because two hooks could wait for each other. */
    bool waits = !ts_tls.user_code;
    for (long tries = 0; waits && h->forks == forks && atomic_load(&h->refs) > 1; tries++)
        ts_back_off(tries);
    ts_hook_unref(h);
}

/* ------------------------------------------------------------------------- in a backward ---- */

/** Checks that a hook's replacement has the gradient's sizes, dtype and device. */
static ts_status check_hook(const ts_node *n, const ts_tensor *old, const ts_tensor *g)
{
    if (!g)
        return ts_fail_null(ts_node_name(n), n->site, "result of a hook");
    if (g != TS_NONE && ts_tensor_is_dead(g))
        return ts_fail_dead(ts_node_name(n), n->site, "result of a hook", g);
    if (g == old || g == TS_NONE || !old || old == TS_NONE)
        return TS_OK;
    ts_shape want;
    ts_shape_fill(&want, old);
    if (!ts_shape_fits(&want, g))
        return ts_fail_op(TS_ERR_SHAPE, ts_node_name(n), n->site, NULL,
                          "result of a hook: expected %s, got %s", TS_SHAPE_TEXT(old),
                          TS_SHAPE_TEXT(g));
    if (!ts_same_device(old->device, g->device))
        return ts_fail_op(TS_ERR_DEVICE, ts_node_name(n), n->site,
                          ts_move_hint(g->device, old->device),
                          "result of a hook: expected a tensor on %s, got one on %s",
                          ts_device_name(old->device), ts_device_name(g->device));
    return TS_OK;
}

/** Calls a hook. seen: `count` gradients, which the hook may replace; grads: the gradients of the
 *  results, for a POST hook. */
static ts_status call_hook(const ts_hook *h, ts_node *n, ts_tensor **seen, int count,
                           ts_tensor **grads)
{
    if (atomic_load(&h->removed))
        return TS_OK; /* removed by a hook that ran before */
    if (h->kind == TS_HOOK_PRE)
        return h->pre(h->payload, n, seen, count);
    if (h->kind == TS_HOOK_POST)
        return h->post(h->payload, n, seen, count, grads, n->nrets);
    ts_tensor *g = h->grad(h->payload, *seen);
    *seen = g == TS_NONE ? *seen : g; /* check_hook() refuses NULL */
    return TS_OK;
}

/** References held while hooks run; released also if a hook throws an exception. */
typedef struct hooks_held {
    ts_run *run;
    ts_hook **hooks;
    int nhooks;
    ts_tensor **seen;
    size_t bytes;
    ts_user_code in;
} hooks_held;
static void hooks_end(hooks_held *h)
{
    h->run->thread->user_code = h->in.outer;
    release_hooks(h->hooks, h->nhooks);
    if (h->seen)
        ts_free(h->run->thread, h->seen, h->bytes);
}

ts_status ts_run_hooks(ts_run *run, ts_node *n, ts_hook_kind kind, int output,
                       ts_tensor **edited, int count, ts_tensor **grads)
{
    ts_hook **hooks;
    int nhooks, all = count + (grads ? n->nrets : 0);
    TS_TRY(take_hooks(n, kind, output, &hooks, &nhooks));
    if (!nhooks)
        return TS_OK;
    hooks_held held __attribute__((cleanup(hooks_end))) = {
        run, hooks, nhooks, .bytes = (size_t)all * sizeof(ts_tensor *),
        .in = {.node = n, .outer = run->thread->user_code}};
    ts_tensor **seen = held.seen = ts_alloc(run->thread, held.bytes);
    ts_status status =
        seen ? TS_OK : ts_error_memory("the gradients that a hook sees", (int64_t)held.bytes);
    run->thread->user_code = &held.in;
    for (int k = 0; k < nhooks && status == TS_OK; k++) {
        for (int i = 0; i < all; i++) {
            seen[i] = i < count ? edited[i] : grads[i - count];
            seen[i] = seen[i] ? seen[i] : TS_NONE;
        }
        uint64_t scope = run->thread->scope->serial;
        status = call_hook(hooks[k], n, seen, count, seen + count);
        status = ts_fail_callback(status, ts_node_name(n), n->site, "a hook");
        status = ts_end_open_scopes(status, scope, ts_node_name(n), n->site, "a hook");
        for (int i = 0; i < count && status == TS_OK; i++) {
            ts_tensor *old = edited[i];
            if ((status = check_hook(n, old, seen[i])) != TS_OK || seen[i] == old)
                continue;
            edited[i] = seen[i] == TS_NONE ? NULL : seen[i];
            if (!grads && edited[i])
                ts_tensor_ref(edited[i]);
            if (!grads && old)
                ts_tensor_unref(old);
        }
    }
    return status;
}

ts_status ts_run_grad_hooks(ts_run *run, ts_node *n, ts_tensor **grads)
{
    TS_SCOPE;
    for (int i = 0; i < n->nrets; i++) {
        if (grads[i])
            TS_TRY(ts_run_hooks(run, n, TS_HOOK_GRAD, i, &grads[i], 1, NULL));
        if (grads[i])
            TS_TRY(keep_grad(n, i, grads[i], run->record));
    }
    return TS_OK;
}
