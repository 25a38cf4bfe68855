/** @file masks.c  Keys that a thread includes and excludes; layers switched on and off. */
// SPDX-License-Identifier: MIT
#include "dispatch/op.h"

/**
 * Keys that a caller's mask may hold. Backend keys are left out, because another backend's kernel
 * would read the tensors' memory; TS_KEY_ABSENT is left out, because a kernel would get a handle
 * that is not a tensor.
 */
#define LAYERS (~(TS_BACKEND_KEYS | TS_KEYSET(TS_KEY_ABSENT)))

ts_mask_guard ts_mask_get(void)
{
    ts_thread *t = ts_thread_self();
    return (ts_mask_guard){t->include, t->exclude};
}

ts_mask_guard ts_mask_push(ts_keyset include, ts_keyset exclude)
{
    ts_thread *t = ts_thread_self();
    ts_mask_guard before = {t->include, t->exclude};
    t->include |= include & LAYERS;
    t->exclude |= exclude & LAYERS;
    return before;
}

void ts_mask_pop(ts_mask_guard guard)
{
    ts_thread *t = ts_thread_self();
    /* backend keys in `exclude` come from a redispatch, and run_lower_layers() restores them */
    t->include = (t->include & ~LAYERS) | (guard.include & LAYERS);
    t->exclude = (t->exclude & ~LAYERS) | (guard.exclude & LAYERS);
}

static ts_status layer_check(const char *op, ts_key key)
{
    if (key < 16 || key >= TS_KEY_ABSENT || ts_key_name(key)[0] == '?')
        return ts_error_set(TS_ERR_VALUE, "%s: argument 'key': expected a layer's key, got %d", op,
                            key);
    return TS_OK;
}

ts_status ts_layer_enable(ts_key key, bool on)
{
    TS_TRY(layer_check("layer_enable", key));
    ts_thread *t = ts_thread_self();
    ts_keyset bit = TS_KEYSET(key);
    t->include = on ? t->include | bit : t->include & ~bit;
    for (ts_block *b = t->blocks; b <= t->scope; b++) /* so that no scope's end undoes the change */
        b->modes.include = on ? b->modes.include | bit : b->modes.include & ~bit;
    return TS_OK;
}

/** ctx: a ts_mask_guard; include: keys to add to all threads' masks, exclude: keys to remove. */
static void apply(ts_thread *t, void *ctx)
{
    const ts_mask_guard *g = ctx;
    atomic_fetch_or_explicit(&t->include_all, g->include, memory_order_relaxed);
    atomic_fetch_and_explicit(&t->include_all, ~g->exclude, memory_order_relaxed);
}

ts_status ts_layer_enable_all(ts_key key, bool on)
{
    TS_TRY(layer_check("layer_enable_all", key));
    ts_mask_guard g = {on ? TS_KEYSET(key) : 0, on ? 0 : TS_KEYSET(key)};
    ts_thread_defaults(g.include, g.exclude, 0, 0);
    ts_thread_walk(apply, &g);
    return TS_OK;
}
