/** @file call.c  Redispatch, boxed calls, masks, and everything rare on the way into a call. */
// SPDX-License-Identifier: MIT
#include "core/device.h"
#include "dispatch/invoke.h"
#include "dispatch/registry.h"
#include "dispatch/timers.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ----------------------------------------------------------------------- the way down ---- */

/** Runs the highest of f->keys (not empty) and restores f's place afterwards. */
TS_INLINE ts_status descend(ts_frame *f, ts_keyset below)
{
    ts_thread *thread = f->thread;
    ts_keyset keys = f->keys, exclude = thread->exclude;
    uint8_t key = f->key;
    if (TS_UNLIKELY(below == 0))
        return ts_fail_no_keys(f);
    thread->exclude = exclude | ~(TS_KEYSET(key) - 1); /* the running key and all above */
    f->keys = below;
    f->key = ts_highest_key(below);
    ts_status status = ts_hop(f, f->table->slot[f->key]);
    f->keys = keys;
    f->key = key;
    thread->exclude = exclude;
    return status;
}

ts_status ts_redispatch(ts_frame *f)
{
    return descend(f, f->keys & (TS_KEYSET(f->key) - 1));
}

ts_status ts_redispatch_new(ts_frame *f, const ts_value *args)
{
    ts_frame inner = *f;
    inner.args = args;
    ts_keyset keys = 0;
    for (int i = 0; i < f->nargs; i++) {
        if (args[i].tag == TS_TAG_TENSOR) {
            if (!args[i].t)
                return ts_fail_null_arg(f->op, i, f->site);
            keys |= args[i].t->keys;
        } else if (args[i].tag == TS_TAG_TENSORS) {
            ts_keyset list = ts_list_keys(&args[i]);
            if (list == TS_LIST_NULL)
                return ts_fail_null_arg(f->op, i, f->site);
            keys |= list;
        } else if (args[i].tag == TS_TAG_DEVICE) {
            keys |= ts_device_keys(args[i].device);
        }
    }
    for (int i = 0; i < f->nrets; i++)
        if (f->given >> i & 1)
            keys |= f->rets[i].t->keys;
    keys = (keys | f->thread->include |
            atomic_load_explicit(&f->thread->include_all, memory_order_relaxed)) &
           ~f->thread->exclude & f->table->mask & (TS_KEYSET(f->key) - 1);
    return descend(&inner, keys);
}

/* ------------------------------------------------------------------------- rare things ---- */

ts_status ts_call_slow(ts_frame *f)
{
    ts_thread *thread = f->thread;
    if (!atomic_load_explicit(&thread->state, memory_order_relaxed)) {
        ts_thread_init(thread);
        f->keys |= atomic_load(&thread->include_all) & ~thread->exclude & f->table->mask;
    }
    if (!f->keys)
        return ts_fail_no_keys(f);
    if (thread->depth >= TS_MAX_DEPTH)
        return ts_fail_op(TS_ERR_STATE, ts_op_name(f->op), f->site,
                          "a kernel that calls its own op from the top recurses; use ts_redispatch",
                          "calls are nested %d deep", TS_MAX_DEPTH);
    if (f->table->flags & TS_OP_RANDOM) {
        f->rng = thread->rng;
        thread->rng.offset += ts_ops[f->op].reserve(f);
    }
    f->key = ts_highest_key(f->keys);
    thread->depth++;
    ts_status status = ts_hop(f, f->table->slot[f->key]);
    thread->depth--;
    return status;
}

ts_keyset ts_list_keys(const ts_value *list)
{
    ts_keyset keys = 0;
    if (list->count && !list->list)
        return TS_LIST_NULL;
    for (uint32_t i = 0; i < list->count; i++) {
        if (!list->list[i])
            return TS_LIST_NULL;
        keys |= list->list[i]->keys;
    }
    return keys;
}

ts_status ts_fail_null_arg(int op, int index, const void *site)
{
    return ts_fail_null(ts_op_name(op), site, ts_ops[op].schema.args[index].name);
}

ts_status ts_absent_tensor(ts_frame *f)
{
    const char *name = "out";
    for (int i = f->nargs - 1; i >= 0; i--) {
        const ts_value *v = &f->args[i];
        if (v->tag == TS_TAG_DEVICE && v->device.backend > 15)
            return ts_fail_arg_hint(f, i, TS_ERR_DEVICE,
                                    "ts_device_from_name() knows the devices that there are",
                                    "expected a device, got backend number %d", v->device.backend);
        bool absent = v->tag == TS_TAG_TENSOR && v->t == TS_NONE;
        for (uint32_t k = 0; v->tag == TS_TAG_TENSORS && k < v->count; k++)
            absent |= v->list[k] == TS_NONE;
        if (absent)
            name = ts_ops[f->op].schema.args[i].name;
    }
    return ts_fail_op(TS_ERR_NULL, ts_op_name(f->op), f->site, NULL,
                      "argument '%s': expected a tensor, got TS_NONE", name);
}

ts_status ts_fail_no_keys(const ts_frame *f)
{
    return ts_fail_op(TS_ERR_UNSUPPORTED, ts_op_name(f->op), f->site,
                      "pass at least one tensor or a device; check what the thread excludes",
                      "no dispatch key is left: the arguments carry none that is not excluded");
}

ts_status ts_missing_kernel(ts_frame *f)
{
    char call[512];
    ts_frame_describe(f, call, sizeof call);
    bool goes = false; /* the call itself asks for the device: moving tensors is no remedy */
    for (int i = 0; i < f->nargs; i++)
        goes |= f->args[i].tag == TS_TAG_DEVICE && f->args[i].device.backend == f->key;
    bool loaded =
        f->key == TS_KEY_CPU || f->key == TS_KEY_META || ts_backend_of((ts_device){f->key, 0});
    return ts_fail_op(
        TS_ERR_UNSUPPORTED, ts_op_name(f->op), f->site,
        goes && !loaded ? "load the device's backend with ts_backend_load()"
        : goes ? "make the tensor on the CPU, or register a kernel or a fallback for this backend"
               : "move the tensors with ts_to_device(), or register a kernel or a fallback for "
                 "this backend",
        "no kernel for %s; called as %s", ts_key_name(f->key), call);
}

ts_status ts_fail_arg_(const ts_frame *f, int index, ts_status code, const char *hint,
                       const char *format, ...)
{
    char text[900];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return ts_fail_op(code, ts_op_name(f->op), f->site, hint, "argument '%s': %s",
                      ts_ops[f->op].schema.args[index].name, text);
}

/* ------------------------------------------------------------------------- boxed calls ---- */

static ts_status call_from(const void *site, int op, const ts_value *args, int nargs,
                           ts_value *rets, int nrets)
{
    if (op < 0 || op >= ts_op_count())
        return ts_error_set(TS_ERR_REGISTRY, "call_boxed: expected an op number below %d, got %d",
                            ts_op_count(), op);
    const ts_schema *s = &ts_ops[op].schema;
    if (nargs != s->nargs || nrets != s->nrets)
        return ts_fail_op(TS_ERR_VALUE, s->name, site, ts_ops[op].schema_text,
                          "expected %d arguments and %d results, got %d and %d", s->nargs, s->nrets,
                          nargs, nrets);
    for (int i = 0; i < nargs; i++) {
        bool fits = args[i].tag == TS_TAG_NONE
                        ? s->args[i].optional
                        : args[i].tag <= TS_TAG_STRING && (s->args[i].kinds >> args[i].tag & 1);
        if (!fits)
            return ts_fail_op(TS_ERR_VALUE, s->name, site, ts_ops[op].schema_text,
                              "argument '%s': got a value of kind %d", s->args[i].name,
                              args[i].tag);
    }
    int given = 0;
    for (int i = 0; i < nrets; i++)
        given |= (rets[i].tag == TS_TAG_TENSOR && rets[i].t) << i;
    return ts_call(op, args, nargs, rets, nrets, given, (1 << nrets) - 1, site);
}

ts_status ts_call_boxed(int op, const ts_value *args, int nargs, ts_value *rets, int nrets)
{
    return call_from(__builtin_return_address(0), op, args, nargs, rets, nrets);
}

ts_status ts_call_for(const ts_frame *frame, int op, const ts_value *args, int nargs,
                      ts_value *rets, int nrets)
{
    return call_from(frame->site, op, args, nargs, rets, nrets);
}

/* ------------------------------------------------------------------------------- masks ---- */

ts_mask_guard ts_mask_get(void)
{
    ts_thread *t = ts_thread_self();
    return (ts_mask_guard){t->include, t->exclude};
}

ts_mask_guard ts_mask_push(ts_keyset include, ts_keyset exclude)
{
    ts_thread *t = ts_thread_self();
    ts_mask_guard before = {t->include, t->exclude};
    t->include |= include;
    t->exclude |= exclude;
    return before;
}

void ts_mask_pop(ts_mask_guard guard)
{
    ts_thread *t = ts_thread_self();
    t->include = guard.include;
    t->exclude = guard.exclude;
}

static ts_status layer_check(const char *op, ts_key key)
{
    if (key < 16 || key >= TS_KEY_COUNT || ts_key_name(key)[0] == '?')
        return ts_error_set(TS_ERR_VALUE, "%s: argument 'key': expected a layer's key, got %d", op,
                            key);
    return TS_OK;
}

ts_status ts_layer_enable(ts_key key, bool on)
{
    TS_TRY(layer_check("layer_enable", key));
    ts_thread *t = ts_thread_self();
    if (on)
        t->include |= TS_KEYSET(key);
    else
        t->include &= ~TS_KEYSET(key);
    return TS_OK;
}

typedef struct toggle {
    ts_keyset set, clear;
} toggle;

static void apply(ts_thread *t, void *ctx)
{
    const toggle *g = ctx;
    atomic_fetch_or_explicit(&t->include_all, g->set, memory_order_relaxed);
    atomic_fetch_and_explicit(&t->include_all, ~g->clear, memory_order_relaxed);
}

ts_status ts_layer_enable_all(ts_key key, bool on)
{
    TS_TRY(layer_check("layer_enable_all", key));
    toggle g = {on ? TS_KEYSET(key) : 0, on ? 0 : TS_KEYSET(key)};
    ts_thread_defaults(g.set, g.clear, 0, 0);
    ts_thread_walk(apply, &g);
    return TS_OK;
}

/* ------------------------------------------------------------------------- description ---- */

static int put(char *buffer, size_t size, int used, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static int put(char *buffer, size_t size, int used, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    size_t at = (size_t)used < size ? (size_t)used : size;
    int n = vsnprintf(buffer ? buffer + at : NULL, size - at, format, args);
    va_end(args);
    return used + (n > 0 ? n : 0);
}

static int put_tensor(char *buffer, size_t size, int used, const ts_tensor *t)
{
    char sizes[192];
    if (!t || t == TS_NONE)
        return put(buffer, size, used, "none");
    ts_format_sizes(sizes, sizeof sizes, t->sizes, t->ndim);
    used = put(buffer, size, used, "%s %s", sizes, ts_dtype_name(t->dtype));
    if (t->keys & ~TS_KEYSET(TS_KEY_CPU) & TS_BACKEND_KEYS)
        used = put(buffer, size, used, " %s", ts_device_name(t->storage->device));
    return used;
}

int ts_frame_describe(const ts_frame *f, char *buffer, size_t size)
{
    return ts_call_describe(ts_op_name(f->op), f->args, f->nargs, buffer, size);
}

int ts_call_describe(const char *name, const ts_value *args, int nargs, char *buffer, size_t size)
{
    int used = put(buffer, size, 0, "%s(", name);
    for (int i = 0; i < nargs; i++) {
        const ts_value *v = &args[i];
        if (i)
            used = put(buffer, size, used, ", ");
        switch (v->tag) {
        case TS_TAG_BOOL: used = put(buffer, size, used, "%s", v->i ? "true" : "false"); break;
        case TS_TAG_INT: used = put(buffer, size, used, "%lld", (long long)v->i); break;
        case TS_TAG_FLOAT: used = put(buffer, size, used, "%g", v->d); break;
        case TS_TAG_TENSOR: used = put_tensor(buffer, size, used, v->t); break;
        case TS_TAG_TENSORS:
            used = put(buffer, size, used, "[");
            for (uint32_t k = 0; k < v->count && k < 4; k++) {
                used = put(buffer, size, used, k ? ", " : "");
                used = put_tensor(buffer, size, used, v->list[k]);
            }
            used = put(buffer, size, used, v->count > 4 ? ", … %u]" : "]", v->count);
            break;
        case TS_TAG_INTS: {
            char ints[192];
            ts_format_sizes(ints, sizeof ints, v->ints, v->count > 16 ? 16 : (int)v->count);
            used = put(buffer, size, used, "%s", ints);
            break;
        }
        case TS_TAG_DTYPE:
            used = put(buffer, size, used, "%s", ts_dtype_name((ts_dtype)v->i));
            break;
        case TS_TAG_DEVICE: used = put(buffer, size, used, "%s", ts_device_name(v->device)); break;
        case TS_TAG_STRING: used = put(buffer, size, used, "'%s'", v->str); break;
        default: used = put(buffer, size, used, "none");
        }
    }
    return put(buffer, size, used, ")");
}
