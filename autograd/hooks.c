/** @file hooks.c  Hooks: user functions that a backward calls on gradients and around rules. */
// SPDX-License-Identifier: MIT
#include "autograd/node.h"
#include "include/tessera/check.h"

static uint32_t forks; /* number of forks from the first process to this one */
void ts_hooks_forked(void) { forks++; }

/** Puts a hook behind the others: hooks run in the order of registration. */
static void append(ts_node *node, ts_hook *h)
{
    bool mine = ts_node_lock(node, ts_node_self(ts_thread_self()));
    ts_hook **place = &node->hooks;
    while (*place)
        place = &(*place)->next;
    /* a release store, because runs test for hooks without the lock */
    __atomic_store_n(place, h, __ATOMIC_RELEASE);
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
    ts_hook **place = &node->hooks, *h;
    while ((h = *place) && h != hook && !keeps(h, t))
        place = &h->next;
    if (h) {
        __atomic_store_n(place, h->next, __ATOMIC_RELEASE);
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

ts_status ts_hooks_take(ts_node *node, ts_hook_kind kind, int output, ts_hook ***hooks, int *n)
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

void ts_hooks_release(ts_hook **hooks, int n)
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
                            "argument 't': expected a tensor that requires grad");
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

ts_status ts_hooks_keep_grad(ts_node *node, int output, ts_tensor *g, bool record)
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
