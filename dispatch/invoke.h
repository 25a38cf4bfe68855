/**
 * @file invoke.h  How a public function calls its op: it boxes its arguments as 16-byte tagged
 * values (ts_value) on the C stack and makes one indirect call to the op's slot.
 *
 * The call path is inlined into each public function, where the op and the kinds of arguments are
 * constants. Each public function thus has an indirect call of its own, whose target the processor
 * can predict.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_DISPATCH_INVOKE_H
#define TS_DISPATCH_INVOKE_H

#include "dispatch/op.h"

/* short names for boxing */
#define V_T(t) ts_value_tensor(t)
#define V_OPT(t) ts_value_optional(t)
#define V_TS(list, n) ts_box_tensors(list, (uint32_t)(n))
#define V_I(i) ts_value_int(i)
#define V_B(b) ts_value_bool(b)
#define V_F(d) ts_value_float(d)
#define V_S(s) ts_value_scalar(s)
#define V_IS(ints, n) ts_box_ints(ints, (uint32_t)(n))
#define V_DT(d) ts_value_dtype(d)
#define V_DEV(d) ts_value_device(d)

/** Boxes lists whose count the caller has checked. */
TS_INLINE ts_value ts_box_tensors(ts_tensor *const *list, uint32_t count)
{
    ts_value v = {TS_TAG_TENSORS, 0, 0, count, {0}};
    v.list = list;
    return v;
}
TS_INLINE ts_value ts_box_ints(const int64_t *ints, uint32_t count)
{
    ts_value v = {TS_TAG_INTS, 0, 0, count, {0}};
    v.ints = ints;
    return v;
}

/** The slow path into a call: thread set-up, timers, Philox counters of random ops, the check of
 *  the nesting depth (TS_ERR_STATE), and calls without keys. Returns the call's status. */
TS_COLD ts_status ts_call_slow(ts_frame *f);
/** Error path of a call: releases its new results and records an error if the kernel recorded none.
 *  Returns the status of the recorded error. */
TS_COLD ts_status ts_call_failed(ts_frame *f, ts_status status);
/** Error path of a kernel that returned TS_OK without the first result: TS_ERR_INTERNAL. */
TS_COLD ts_status ts_fail_no_result(ts_frame *f);
/** ts_adopt_result() for a tensor that is in a scope already, such as an argument that the kernel
 *  returns: the tensor stays in that scope. NULL with TS_ERR_INTERNAL if the kernel did not add a
 *  reference for the caller, and for TS_NONE, whose link is not NULL either. */
TS_COLD ts_tensor *ts_adopt_linked(ts_tensor *t, int op, const void *site);
/** Error path of boxing: tensor or list argument `index` is NULL, or a list has a NULL member.
 *  Returns TS_ERR_NULL, or for tensors the code of a recorded failure, which caused the NULL. */
TS_COLD ts_status ts_fail_null_arg(int op, int index, const void *site);
/** True if ts_value_refused() made v, the mark of a number that cannot be boxed. */
TS_INLINE bool ts_is_refused(const ts_value *v)
{
    return v->tag == TS_TAG_DEVICE && v->device.backend == 0xff && v->device.index == 0xff;
}
/** TS_ERR_VALUE for an argument that ts_value_refused() made. */
TS_COLD ts_status ts_fail_refused(int op, int index, const ts_value *v, const void *site);
/** TS_ERR_NULL for a destination that is NULL or TS_NONE; for NULL the code of a recorded failure,
 *  which caused the NULL. Names argument 0 if it is the destination, as in an in-place form, else
 *  `out`. */
TS_COLD ts_status ts_fail_destination(int op, const ts_value *args, int nargs, const ts_tensor *out,
                                      const void *site);
/** TS_ERR_UNSUPPORTED for a call without a key to visit. */
TS_COLD ts_status ts_fail_no_keys(const ts_frame *f);
/** The union of the keys of a list's members; TS_LIST_NULL if a member is NULL, or if the list is
 *  NULL and its count is above 0. `pure`, so that the compiler can keep the caller's boxes
 *  constant. */
#define TS_LIST_NULL (~(ts_keyset)0)
ts_keyset ts_list_keys(const ts_value *list) __attribute__((pure));

/** The key of a device. An invalid backend number gives TS_KEY_ABSENT, whose slot reports it. */
TS_INLINE ts_keyset ts_device_keys(ts_device device)
{
    return TS_KEYSET(device.backend < 16 ? device.backend : TS_KEY_ABSENT);
}

/** Adds the keys of arguments and given results to *keys. The error of ts_fail_null_arg() if a
 *  tensor or a list member is NULL, or if a list is NULL and its count is above 0. Later code does
 *  not check for NULL again. */
TS_INLINE ts_status ts_keys_collect(int op, const ts_value *args, int nargs, const ts_value *rets,
                                    int nrets, int given, const void *site, ts_keyset *keys)
{
    TS_UNROLL(16)
    for (int i = 0; i < nargs; i++) {
        if (args[i].tag == TS_TAG_TENSOR) {
            if (TS_UNLIKELY(!args[i].t))
                return ts_fail_null_arg(op, i, site);
            *keys |= args[i].t->keys;
        } else if (args[i].tag == TS_TAG_TENSORS) {
            ts_keyset list = ts_list_keys(&args[i]);
            if (TS_UNLIKELY(list == TS_LIST_NULL))
                return ts_fail_null_arg(op, i, site);
            *keys |= list;
        } else if (args[i].tag == TS_TAG_INTS) {
            if (TS_UNLIKELY(args[i].count && !args[i].ints))
                return ts_fail_null_arg(op, i, site);
        } else if (args[i].tag == TS_TAG_DEVICE) {
            *keys |= ts_device_keys(args[i].device);
        }
    }
    TS_UNROLL(4)
    for (int i = 0; i < nrets; i++)
        if (given >> i & 1)
            *keys |= rets[i].t->keys;
    return TS_OK;
}

/** The keys that a call visits: adds the thread's included keys, removes its excluded keys and keys
 *  without a slot in the table. */
TS_INLINE ts_keyset ts_keys_visited(ts_keyset keys, const ts_thread *thread,
                                    const ts_op_table *table)
{
    ts_keyset all = atomic_load_explicit(&thread->include_all, memory_order_relaxed);
    return (keys | thread->include | all) & ~thread->exclude & table->mask;
}

/** The status of a call whose highest kernel returned `status`, at the call's own nesting depth.
 *  made: result 0 is wanted and not given; a constant in public functions, unlike f's fields. */
TS_INLINE ts_status ts_call_end(ts_frame *f, ts_status status, bool made, const ts_value *rets)
{
    if (TS_UNLIKELY(status != TS_OK))
        return ts_call_failed(f, status);
    if (made && (TS_UNLIKELY(rets[0].tag != TS_TAG_TENSOR) || TS_UNLIKELY(!rets[0].t)))
        return ts_fail_no_result(f);
    return TS_OK;
}

/** Gives a call's result to the thread's innermost scope. NULL with an error for TS_NONE. */
TS_INLINE ts_tensor *ts_adopt_result(ts_thread *thread, ts_tensor *t, int op, const void *site)
{
    return TS_LIKELY(!t->link) ? ts_scope_adopt(thread, t) : ts_adopt_linked(t, op, site);
}

/** Cleanup that restores the nesting depth when a call ends, also by an exception or
 *  pthread_exit(). It stores the old depth: a decrement would make each call wait for the store of
 *  the call before. */
TS_INLINE void ts_depth_restore(const uint16_t *depth) { ts_tls.depth = *depth; }
#define TS_DEPTH_AFTER(depth)                                                                     \
    const uint16_t depth_after __attribute__((cleanup(ts_depth_restore), unused)) =               \
        (uint16_t)(depth)

/**
 * Calls an op from its highest key: collects the keys of arguments and given results, then runs the
 * slot of the highest key.
 * @param given  bit i: rets[i] is a destination, which the caller owns
 * @param want   bit i: result i is wanted. On TS_OK the caller owns the results that the kernel
 *               set; a wanted result 0 is always set
 * @param site   return address of the public function, for errors
 */
TS_INLINE_LONG ts_status ts_call(int op, const ts_value *args, int nargs, ts_value *rets,
                                 int nrets, int given, int want, const void *site)
{
    ts_thread *thread = &ts_tls;
    ts_keyset keys = 0;
    /* before the acquire load, so that the compiler can fold the constant kinds */
    ts_status status = ts_keys_collect(op, args, nargs, rets, nrets, given, site, &keys);
    if (TS_UNLIKELY(status != TS_OK))
        return status;

    const ts_op_table *table = atomic_load_explicit(&ts_tables[op], memory_order_acquire);
    ts_frame f;
    f.table = table;
    f.args = args;
    f.rets = rets;
    f.thread = thread;
    f.plan = NULL;
    f.site = site;
    f.op = (uint16_t)op;
    f.nargs = (uint8_t)nargs;
    f.nrets = (uint8_t)nrets;
    f.want = (uint8_t)want;
    f.given = (uint8_t)given;
    f.keys = keys = ts_keys_visited(keys, thread, table);
    unsigned depth = thread->depth;
    uint32_t state = atomic_load_explicit(&thread->state, memory_order_relaxed);
    if (TS_UNLIKELY((state ^ TS_THREAD_READY) | table->flags) ||
        TS_UNLIKELY(depth & TS_MAX_DEPTH) || TS_UNLIKELY(!keys))
        return ts_call_slow(&f);
    int key = ts_highest_key(keys);
    f.key = (uint8_t)key;
    thread->depth = (uint16_t)(depth + 1);
    {
        TS_DEPTH_AFTER(depth);
        status = table->slot[key](&f);
    }
    return ts_call_end(&f, status, want & ~given & 1, rets);
}

/** Calls an op and returns result 0, owned by the innermost scope; NULL with an error. */
TS_INLINE ts_tensor *ts_invoke(int op, const ts_value *args, int nargs, int nrets)
{
    ts_value rets[TS_MAX_RETS];
    TS_UNROLL(4)
    for (int i = 0; i < nrets; i++)
        rets[i] = ts_value_none();
    if (TS_UNLIKELY(ts_call(op, args, nargs, rets, nrets, 0, 1, __builtin_return_address(0)) !=
                    TS_OK))
        return NULL;
    return ts_adopt_result(&ts_tls, rets[0].t, op, __builtin_return_address(0));
}

/** Calls an op with `out` as the destination of result 0: in-place and out= forms. Returns out;
 *  NULL with an error. */
TS_INLINE ts_tensor *ts_invoke_out(int op, const ts_value *args, int nargs, int nrets,
                                   ts_tensor *out)
{
    ts_value rets[TS_MAX_RETS];
    if (TS_UNLIKELY(!out || out == TS_NONE)) {
        ts_fail_destination(op, args, nargs, out, __builtin_return_address(0));
        return NULL;
    }
    rets[0] = ts_value_tensor(out);
    TS_UNROLL(4)
    for (int i = 1; i < nrets; i++)
        rets[i] = ts_value_none();
    if (TS_UNLIKELY(ts_call(op, args, nargs, rets, nrets, 1, 1, __builtin_return_address(0)) !=
                    TS_OK))
        return NULL;
    return out;
}

/* The body of most public functions: boxes the arguments, such as V_T(self) or V_I(dim), and calls
 * the op. */
#define TS_INVOKE(op, ...)                                        \
    ({                                                            \
        const ts_value args_[] = {__VA_ARGS__};                   \
        ts_invoke(op, args_, TS_N(args_), 1);                     \
    })
#define TS_INVOKE_OUT(out, op, ...)                               \
    ({                                                            \
        const ts_value args_[] = {__VA_ARGS__};                   \
        ts_invoke_out(op, args_, TS_N(args_), 1, out);            \
    })

/** Calls an op with several results. outs[i] is the address for result i, or NULL if result i is
 *  not wanted; outs[0] is ignored. Returns result 0; the innermost scope owns all results. NULL
 *  with an error. */
TS_INLINE ts_tensor *ts_invoke_many(int op, const ts_value *args, int nargs, int nrets,
                                    ts_tensor ***outs)
{
    ts_value rets[TS_MAX_RETS];
    int want = 1;
    TS_UNROLL(4)
    for (int i = 0; i < nrets; i++) {
        rets[i] = ts_value_none();
        if (i && outs[i]) {
            want |= 1 << i;
            *outs[i] = NULL;
        }
    }
    if (TS_UNLIKELY(ts_call(op, args, nargs, rets, nrets, 0, want, __builtin_return_address(0)) !=
                    TS_OK))
        return NULL;
    ts_thread *thread = &ts_tls;
    TS_UNROLL(4)
    for (int i = 1; i < nrets; i++)
        if (outs[i] && rets[i].tag == TS_TAG_TENSOR && TS_LIKELY(rets[i].t != NULL))
            *outs[i] = ts_adopt_result(thread, rets[i].t, op, __builtin_return_address(0));
    return ts_adopt_result(thread, rets[0].t, op, __builtin_return_address(0));
}

/* ts_invoke() and ts_invoke_many() with boxed arguments. n: number of results of the op. outs: an
 * array with one address per result. */
#define TS_INVOKE_FIRST(n, op, ...)                               \
    ({                                                            \
        const ts_value args_[] = {__VA_ARGS__};                   \
        ts_invoke(op, args_, TS_N(args_), n);                     \
    })
#define TS_INVOKE_MANY(outs, op, ...)                                             \
    ({                                                                            \
        const ts_value args_[] = {__VA_ARGS__};                                   \
        ts_invoke_many(op, args_, TS_N(args_), (int)(TS_COUNTOF(outs)), outs);    \
    })

/** Calls an op without results. */
TS_INLINE ts_status ts_invoke_status(int op, const ts_value *args, int nargs)
{
    return ts_call(op, args, nargs, NULL, 0, 0, 0, __builtin_return_address(0));
}

#define TS_N(args) ((int)(sizeof(args) / sizeof((args)[0])))

#endif
