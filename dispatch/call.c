/** @file call.c  Redispatch, boxed calls, and the slow path into a call. */
// SPDX-License-Identifier: MIT
#include "core/device.h"
#include "dispatch/invoke.h"
#include "dispatch/registry.h"
#include "dispatch/timers.h"

/* ------------------------------------------------------------------------- redispatch ---- */

/** TS_ERR_VALUE if the schema does not allow a value of this kind as argument i. */
static ts_status check_kind(int op, int i, const ts_value *v, const void *site)
{
    const ts_param *p = &ts_ops[op].schema.args[i];
    bool fits = v->tag == TS_TAG_NONE ? p->optional
                                      : v->tag <= TS_TAG_STRING && (p->kinds >> v->tag & 1);
    return fits ? TS_OK
                : ts_fail_op(TS_ERR_VALUE, ts_op_name(op), site, ts_ops[op].schema_text,
                             "argument '%s': expected a kind that the schema accepts, got kind %d",
                             p->name, v->tag);
}

/** State of a frame and of its thread that run_lower_layers() changes and restores. */
typedef struct saved {
    ts_frame *f;
    ts_keyset keys, exclude;
    uint8_t key;
} saved;

TS_INLINE void restore(const saved *p)
{
    p->f->keys = p->keys;
    p->f->key = p->key;
    p->f->thread->exclude = p->exclude;
}

/** Runs the slot of the highest key in `keys` below f->key; afterwards restores f and the thread's
 *  exclude mask. */
TS_INLINE ts_status run_lower_layers(ts_frame *f, ts_keyset keys)
{
    ts_thread *thread = f->thread;
    ts_keyset exclude = thread->exclude, lower = TS_KEYSET(f->key) - 1, below = keys & lower;
    if (TS_UNLIKELY(below == 0))
        return ts_fail_no_keys(f);
    const saved before __attribute__((cleanup(restore), unused)) = {f, f->keys, exclude, f->key};
    /* excludes the running key and all above, except TS_KEY_ABSENT, which rejects TS_NONE */
    thread->exclude = exclude | (lower ^ (TS_KEYSET(TS_KEY_ABSENT) - 1));
    f->keys = below;
    f->key = ts_highest_key(below);
    return ts_hop(f, f->table->slot[f->key]);
}

ts_status ts_redispatch(ts_frame *f)
{
    TS_TRY(TS_CHECK_LENT(f, "frame"));
    return run_lower_layers(f, f->keys);
}

ts_status ts_redispatch_new(ts_frame *f, const ts_value *args)
{
    TS_TRY(TS_CHECK_LENT(f, "frame"));
    if (TS_UNLIKELY(!args && f->nargs))
        return ts_fail_op(TS_ERR_NULL, ts_op_name(f->op), f->site, NULL,
                          "redispatch_new: argument 'args': expected %d values, got NULL",
                          f->nargs);
    ts_frame inner = *f;
    inner.args = args;
    ts_keyset keys = 0;
    for (int i = 0; i < f->nargs; i++)
        if (args[i].tag != f->args[i].tag)
            TS_TRY(check_kind(f->op, i, &args[i], f->site));
    TS_TRY(ts_keys_collect(f->op, args, f->nargs, f->rets, f->nrets, f->given, f->site, &keys));
    return run_lower_layers(&inner, ts_keys_visited(keys, f->thread, f->table));
}

/* --------------------------------------------------------------------------- slow path ---- */

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
    ts_status status;
    {
        TS_DEPTH_AFTER(thread->depth);
        thread->depth++;
        status = ts_hop(f, f->table->slot[f->key]);
    }
    return ts_call_end(f, status, f->want & ~f->given & 1, f->rets);
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

/* ------------------------------------------------------------------------- boxed calls ---- */

static ts_status call_from(const void *site, int op, const ts_value *args, int nargs,
                           ts_value *rets, int nrets)
{
    if (op < 0 || op >= ts_op_count())
        return ts_fail_op(TS_ERR_REGISTRY, "call_boxed", site, "ts_op_by_name() gives the number",
                          "argument 'op': expected a number from 0 to %d, got %d",
                          ts_op_count() - 1, op);
    const ts_schema *s = &ts_ops[op].schema;
    if (nargs != s->nargs || nrets != s->nrets)
        return ts_fail_op(TS_ERR_VALUE, s->name, site, ts_ops[op].schema_text,
                          "expected %d arguments and %d results, got %d and %d", s->nargs, s->nrets,
                          nargs, nrets);
    if ((nargs && !args) || (nrets && !rets))
        return ts_fail_op(TS_ERR_NULL, s->name, site, NULL,
                          "argument '%s' of the boxed call: expected %d values, got NULL",
                          nargs && !args ? "args" : "rets", nargs && !args ? nargs : nrets);
    for (int i = 0; i < nargs; i++) {
        if (ts_is_refused(&args[i]))
            return ts_fail_refused(op, i, &args[i], site);
        TS_TRY(check_kind(op, i, &args[i], site));
        if (args[i].tag == TS_TAG_DEVICE && !ts_device_exists(args[i].device))
            return ts_device_check(args[i].device, s->name);
        bool list = args[i].tag == TS_TAG_TENSORS || args[i].tag == TS_TAG_INTS;
        if (list && args[i].count > INT32_MAX)
            return ts_fail_op(TS_ERR_VALUE, s->name, site, NULL,
                              "argument '%s': expected 0 to %d entries, got %d", s->args[i].name,
                              INT32_MAX, (int32_t)args[i].count);
    }
    int given = 0;
    for (int i = 0; i < nrets; i++)
        if (rets[i].tag == TS_TAG_TENSOR && rets[i].t)
            given |= 1 << i;
        else
            rets[i] = ts_value_none();
    return ts_call(op, args, nargs, rets, nrets, given, (1 << nrets) - 1, site);
}

ts_status ts_call_boxed(int op, const ts_value *args, int nargs, ts_value *rets, int nrets)
{
    return call_from(__builtin_return_address(0), op, args, nargs, rets, nrets);
}

ts_status ts_call_for(const ts_frame *frame, int op, const ts_value *args, int nargs,
                      ts_value *rets, int nrets)
{
    TS_TRY(TS_CHECK_LENT(frame, "frame"));
    return call_from(frame->site, op, args, nargs, rets, nrets);
}
