/**
 * @file determinism.c  The determinism checker: runs each call twice, over copies of the tensors
 * that it writes, and compares the bits.
 *
 * Both calls use the same frame, so they have the same random numbers and keys. The call over
 * copies runs first: if it runs out of memory, no tensor of the program has been written. Its
 * results are released after the comparison.
 */
// SPDX-License-Identifier: MIT
#include "layers/watch.h"
#include "include/tessera/ops.h"

#include <string.h>

/** A tensor that the call writes, and its copy from before. */
typedef struct copied {
    ts_tensor *original;
    ts_tensor *copy; /* owned */
} copied;

typedef struct copies {
    copied *list;
    int count;
} copies;

/** The copy of t, or of another handle of the same elements; t itself if the call does not write
 * it. */
static ts_tensor *copy_of(const copies *w, ts_tensor *t)
{
    for (int i = 0; i < w->count; i++)
        if (t == w->list[i].original ||
            (!ts_is_none(t) && t->storage == w->list[i].original->storage &&
             t->data == w->list[i].original->data && t->numel == w->list[i].original->numel))
            return w->list[i].copy;
    return t;
}

static ts_status add_copy(copies *w, ts_tensor *t)
{
    if (!ts_has_values(t) || copy_of(w, t) != t)
        return TS_OK;
    TS_SCOPE;
    ts_tensor *copy = ts_clone(t);
    TS_TRY(copy);
    w->list[w->count++] = (copied){t, ts_tensor_ref(copy)};
    return TS_OK;
}

/** Copies of everything that the call is about to write. */
static ts_status copy_written(const ts_frame *f, copies *w)
{
    for (int i = 0; i < f->nrets; i++)
        if (f->given >> i & 1)
            TS_TRY(add_copy(w, f->rets[i].t));
    for (int i = 0; i < f->nargs; i++) {
        if (!ts_is_written_arg(f, i))
            continue;
        if (f->args[i].tag == TS_TAG_TENSOR)
            TS_TRY(add_copy(w, f->args[i].t));
        for (uint32_t k = 0; f->args[i].tag == TS_TAG_TENSORS && k < f->args[i].count; k++)
            TS_TRY(add_copy(w, f->args[i].list[k]));
    }
    return TS_OK;
}

/** t, or a contiguous copy on the CPU. */
static ts_tensor *readable(ts_tensor *t)
{
    bool there = t->device.backend == TS_KEY_CPU && (t->flags & TS_TENSOR_CONTIGUOUS);
    return there ? t : ts_contiguous(ts_to_device(t, TS_DEVICE_CPU));
}

/** Sets *same: whether a and b have the same sizes, dtype and bits. Tensors without values are
 * compared by sizes and dtype only. */
static ts_status compare(ts_tensor *a, ts_tensor *b, bool *same)
{
    *same = a->ndim == b->ndim && a->dtype == b->dtype &&
            memcmp(a->sizes, b->sizes, a->ndim * sizeof *a->sizes) == 0;
    if (!*same || !ts_has_values(a) || !ts_has_values(b))
        return TS_OK;
    TS_SCOPE;
    ts_tensor *x = readable(a), *y = readable(b);
    TS_TRY(x);
    TS_TRY(y);
    TS_TRY(ts_resolve(x));
    TS_TRY(ts_resolve(y));
    *same = memcmp(x->data, y->data, (size_t)x->numel * ts_dtype_sizes[x->dtype]) == 0;
    return TS_OK;
}

/** Runs the call over the copies, then f. Writes the first difference to `what`, which is unchanged
 * if there is none. members: buffer for the members of all list arguments.
 */
static ts_status run_twice(ts_frame *f, const copies *w, ts_tensor **members, char *what,
                           size_t size)
{
    ts_value args[TS_MAX_ARGS], rets[TS_MAX_RETS];
    ts_frame again = *f;
    again.args = args;
    again.rets = rets;
    for (int i = 0; i < f->nargs; i++) {
        args[i] = f->args[i];
        if (args[i].tag == TS_TAG_TENSOR) {
            args[i].t = copy_of(w, args[i].t);
        } else if (args[i].tag == TS_TAG_TENSORS) {
            for (uint32_t k = 0; k < args[i].count; k++)
                members[k] = copy_of(w, args[i].list[k]);
            args[i].list = members;
            members += args[i].count;
        }
    }
    for (int i = 0; i < f->nrets; i++)
        rets[i] = f->given >> i & 1 ? ts_value_tensor(copy_of(w, f->rets[i].t)) : ts_value_none();
    TS_TRY(ts_redispatch(&again));
    ts_status status = ts_redispatch(f);

    ts_mask_guard masks = ts_mask_push(0, ~TS_BACKEND_KEYS);
    bool same = true;
    for (int i = 0; i < f->nrets && same && status == TS_OK; i++)
        if (f->rets[i].tag == TS_TAG_TENSOR && rets[i].tag == TS_TAG_TENSOR) {
            status = compare(f->rets[i].t, rets[i].t, &same);
            if (!same)
                snprintf(what, size, "a second run gave other bits in result %d", i);
        }
    for (int i = 0; i < w->count && same && status == TS_OK; i++) {
        status = compare(w->list[i].original, w->list[i].copy, &same);
        if (!same)
            snprintf(what, size, "a second run wrote other bits");
    }
    ts_mask_pop(masks);
    return ts_drop_results(&again, status);
}

static ts_status check(ts_frame *f)
{
    const ts_op_info *info = f->table->info;
    if (info->kind == TS_VIEW || strcmp(info->name, "empty") == 0)
        return ts_redispatch(f);
    int tensors = f->nrets, members = 0;
    for (int i = 0; i < f->nargs; i++) {
        tensors += f->args[i].tag == TS_TAG_TENSORS ? (int)f->args[i].count : 1;
        members += f->args[i].tag == TS_TAG_TENSORS ? (int)f->args[i].count : 0;
    }
    size_t bytes = (size_t)tensors * sizeof(copied) + (size_t)members * sizeof(ts_tensor *);
    char *block = ts_alloc(f->thread, bytes);
    if (!block)
        return ts_error_memory("the determinism checker's copies", (int64_t)bytes);
    copies w = {(copied *)block, 0};
    char what[80] = "";
    ts_mask_guard masks = ts_mask_push(0, ~TS_BACKEND_KEYS);
    ts_status status = copy_written(f, &w);
    ts_mask_pop(masks);
    if (status == TS_OK) {
        status = run_twice(f, &w, (ts_tensor **)(w.list + tensors), what, sizeof what);
        if (status == TS_OK && what[0]) {
            char call[700];
            ts_watcher_report(&ts_watch_determinism, f, what);
            ts_watcher_describe(f, what, call, sizeof call);
            status = ts_fail_op(TS_ERR_STATE, info->name, f->site, NULL, "%s", call);
        }
        if (status != TS_OK)
            ts_drop_results(f, status);
    }
    for (int i = 0; i < w.count; i++)
        ts_tensor_unref(w.list[i].copy);
    ts_free(f->thread, block, bytes);
    return status;
}

ts_watcher ts_watch_determinism = {.name = "determinism", .layer = "TWICE", .kernel = check};

ts_status ts_determinism_checker(ts_layer_scope scope, bool on)
{
    return ts_watcher_switch(&ts_watch_determinism, scope, on);
}
