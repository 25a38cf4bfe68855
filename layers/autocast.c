/**
 * @file autocast.c  The AUTOCAST layer: casts arguments and redispatches with a new frame.
 *
 * AUTOCAST is the highest of the library's layers, so AUTOGRAD and TRACING record its casts like
 * other calls. One kernel per policy serves all ops whose rows in ops.def name the policy; other
 * ops skip the layer. The state is one number per thread, with two bits per kind of device.
 */
// SPDX-License-Identifier: MIT
#include "core/thread.h"
#include "core/error.h"
#include "core/hooks.h"
#include "init.h"
#include "include/tessera/autocast.h"
#include "include/tessera/autograd.h"
#include "include/tessera/check.h"
#include "layers/cast_cache.h"
#include "layers/watch.h"
#include "ops/kernel.h"

#include <string.h>

/** Values of two bits of a state. FAILED: the region's dtype or device was invalid. */
enum { OFF, LOWER_BF16, LOWER_F16, FAILED };
static const ts_dtype lower[] = {TS_DTYPE_NONE, TS_BF16, TS_F16, TS_DTYPE_NONE};

static _Thread_local ts_autocast_stats stats __attribute__((tls_model("initial-exec")));

static unsigned mode_of(ts_autocast_state state, unsigned backend)
{
    return state >> 2 * backend & 3;
}

/* -------------------------------------------------------------------------------- casts ---- */

/** True if t is floating, not f64, and on the region's device. */
static bool is_eligible(const ts_tensor *t, ts_keyset backend)
{
    ts_dtype dtype = ts_keys_of(t) & backend ? ts_dtype_of(t) : TS_DTYPE_NONE;
    return ts_dtype_is_float(dtype) && dtype != TS_F64;
}

static bool needs_cast(const ts_tensor *t, ts_keyset backend, ts_dtype dtype)
{
    return is_eligible(t, backend) && ts_dtype_of(t) != dtype;
}

/** t cast to dtype, from the cache if possible; the innermost scope owns it. NULL with an error. */
static ts_tensor *cast(const ts_frame *f, ts_tensor *t, ts_dtype dtype)
{
    bool keep = !f->thread->no_cast_cache && ts_dtype_of(t) == TS_F32 && ts_is_leaf(t) &&
                ts_requires_grad(t);
    ts_tensor *known = keep ? ts_cast_cache_find(t, dtype) : NULL;
    if (known && (ts_requires_grad(known) || !ts_grad_enabled())) {
        stats.hits++;
        return ts_adopt(ts_retain(known)); /* a later call may empty the cache */
    }
    ts_value args[] = {ts_value_tensor(t), ts_value_dtype(dtype)}, ret = ts_value_none();
    bool casting = f->thread->casting;
    f->thread->casting = true;
    ts_status status = ts_call_for(f, TS_OP_to, args, 2, &ret, 1);
    f->thread->casting = casting;
    if (status != TS_OK)
        return NULL;
    stats.casts++;
    if (keep)
        ts_cast_cache_put(t, ret.t); /* a cache that cannot grow costs another cast later */
    return ts_adopt(ret.t);
}

/** Returns a copy of list v in which casts replace the eligible members; NULL with an error. The
 * caller frees the list; the innermost scope owns the casts. */
static ts_tensor **cast_list(const ts_frame *f, const ts_value *v, ts_keyset backend,
                             ts_dtype dtype)
{
    ts_tensor **list = ts_alloc(f->thread, v->count * sizeof *list);
    if (!list) {
        ts_error_memory("a list of casts", (int64_t)(v->count * sizeof *list));
        return NULL;
    }
    for (uint32_t k = 0; k < v->count; k++) {
        list[k] = needs_cast(v->list[k], backend, dtype) ? cast(f, v->list[k], dtype) : v->list[k];
        if (!list[k]) {
            ts_free(f->thread, list, v->count * sizeof *list);
            return NULL;
        }
    }
    return list;
}

/** Returns a mask: bit i is set if argument i, or a member of list argument i, needs a cast. */
static uint32_t find_casts(const ts_frame *f, ts_keyset backend, ts_dtype dtype)
{
    uint32_t casts = 0;
    for (int i = 0; i < f->nargs; i++) {
        const ts_value *v = &f->args[i];
        if (v->tag == TS_TAG_TENSOR)
            casts |= (uint32_t)needs_cast(v->t, backend, dtype) << i;
        for (uint32_t k = 0; v->tag == TS_TAG_TENSORS && k < v->count; k++)
            casts |= (uint32_t)needs_cast(v->list[k], backend, dtype) << i;
    }
    return casts;
}

/** Casts all eligible arguments to dtype and redispatches. */
static ts_status call_on(ts_frame *f, ts_keyset backend, ts_dtype dtype)
{
    uint32_t casts = find_casts(f, backend, dtype), lists = 0;
    if (!casts)
        return ts_redispatch(f);
    TS_SCOPE; /* owns the casts until the call has returned */
    ts_value args[TS_MAX_ARGS];
    memcpy(args, f->args, f->nargs * sizeof *args);
    ts_status status = TS_OK;
    for (int i = 0; i < f->nargs && status == TS_OK; i++) {
        if (!(casts >> i & 1))
            continue;
        if (args[i].tag == TS_TAG_TENSOR) {
            args[i].t = cast(f, args[i].t, dtype);
            status = TS_STATUS_OF(args[i].t);
        } else {
            args[i].list = cast_list(f, &f->args[i], backend, dtype);
            status = TS_STATUS_OF(args[i].list);
            lists |= (uint32_t)(status == TS_OK) << i;
        }
    }
    if (status == TS_OK)
        status = ts_redispatch_new(f, args);
    for (int i = 0; lists >> i; i++)
        if (lists >> i & 1)
            ts_free(f->thread, (void *)args[i].list, args[i].count * sizeof *args[i].list);
    return status;
}

/* ----------------------------------------------------------------------------- policies ---- */

/** Returns the autocast mode of the kind of device on which the call runs, and sets *backend to its
 *  key; OFF if autocast does not apply. */
static unsigned mode_here(const ts_frame *f, ts_keyset *backend)
{
    /* LAZY only defers calls to a device */
    ts_keyset backends = f->keys & TS_BACKEND_KEYS & ~TS_KEYSET(TS_KEY_LAZY);
    if (!backends || f->given)
        return OFF;
    unsigned key = 63 - (unsigned)__builtin_clzll(backends);
    *backend = TS_KEYSET(key);
    return mode_of(f->thread->autocast, key);
}

static TS_COLD ts_status fail_region(const ts_frame *f)
{
    return ts_fail_op(TS_ERR_STATE, ts_op_name(f->op), f->site,
                      "pass TS_BF16 or TS_F16 and the device of the tensors",
                      "runs in a region of TS_AUTOCAST that could not be opened");
}

static ts_status run_lower(ts_frame *f)
{
    ts_keyset backend = 0;
    unsigned mode = mode_here(f, &backend);
    return mode == OFF      ? ts_redispatch(f)
           : mode == FAILED ? fail_region(f)
                            : call_on(f, backend, lower[mode]);
}

static ts_status run_f32(ts_frame *f)
{
    ts_keyset backend = 0;
    unsigned mode = mode_here(f, &backend);
    for (int i = 0; i < f->nargs; i++)
        if (f->args[i].tag == TS_TAG_DTYPE)
            mode = mode == FAILED ? FAILED : OFF; /* the caller chose the dtype */
    return mode == OFF      ? ts_redispatch(f)
           : mode == FAILED ? fail_region(f)
                            : call_on(f, backend, TS_F32);
}

static void widen(ts_dtype *widest, const ts_tensor *t, ts_keyset backend)
{
    if (is_eligible(t, backend))
        *widest =
            *widest == TS_DTYPE_NONE ? ts_dtype_of(t) : ts_dtype_promote(*widest, ts_dtype_of(t));
}

static ts_status run_widest(ts_frame *f)
{
    ts_keyset backend = 0;
    unsigned mode = mode_here(f, &backend);
    if (mode == FAILED)
        return fail_region(f);
    ts_dtype widest = TS_DTYPE_NONE;
    for (int i = 0; i < f->nargs && mode != OFF; i++) {
        const ts_value *v = &f->args[i];
        if (v->tag == TS_TAG_TENSOR)
            widen(&widest, v->t, backend);
        for (uint32_t k = 0; v->tag == TS_TAG_TENSORS && k < v->count; k++)
            widen(&widest, v->list[k], backend);
    }
    return widest == TS_DTYPE_NONE ? ts_redispatch(f) : call_on(f, backend, widest);
}

/** Redispatches; the exclude mask already disables this layer for all calls below. */
static ts_status run_keep(ts_frame *f)
{
    ts_keyset backend = 0;
    return mode_here(f, &backend) == FAILED ? fail_region(f) : ts_redispatch(f);
}

static const ts_kernel kernels[] = {
    [TS_AUTOCAST_LOWER] = run_lower,
    [TS_AUTOCAST_F32] = run_f32,
    [TS_AUTOCAST_WIDEST] = run_widest,
    [TS_AUTOCAST_KEEP] = run_keep,
};

ts_status ts_autocast_register(const char *op, ts_autocast_policy policy, ts_registration **out)
{
    TS_TRY(TS_CHECK_POINTERS(op));
    if ((unsigned)policy >= (unsigned)TS_COUNTOF(kernels))
        return ts_error_set(TS_ERR_VALUE,
                            "autocast_register: argument 'policy': expected a ts_autocast_policy, "
                            "got %d",
                            (int)policy);
    return ts_register_kernel(op, TS_KEY_AUTOCAST, kernels[policy], NULL, out);
}

/** Policies of the operators in ops.def; ops with NONE skip the layer. */
#define NONE -1
static const struct {
    const char *op;
    int policy;
} rows[] = {
#define TS_AUTOCAST_NONE NONE
#define TS_OP(name, schema, forms, kind, infer, composite, gradient, reserve, autocast, ...)       \
    {#name, TS_AUTOCAST_##autocast},
#include "ops/ops.def"
#undef TS_OP
};

/** Runs body in a separate region, so that casts of leaves are cached until the body ends. */
static ts_status run_under(ts_autocast_state state, ts_status (*body)(void *ctx), void *ctx)
{
    ts_autocast_region region;
    TS_TRY(ts_autocast_enter_state(&region, state));
    ts_status status = body(ctx);
    ts_autocast_exit(&region);
    return status;
}

ts_status ts_layers_install(void)
{
    ts_above.run_autocast = run_under;
    ts_above.clear_cast_cache = ts_cast_cache_clear;
    ts_cast_cache_install();
    ts_watchers_install();
    ts_status status = TS_OK;
    for (int i = 0; i < TS_COUNTOF(rows) && status == TS_OK; i++)
        if (rows[i].policy != NONE)
            status = ts_autocast_register(rows[i].op, (ts_autocast_policy)rows[i].policy, NULL);
    return status;
}

/* ------------------------------------------------------------------------------ regions ---- */

/** Makes `region` the innermost region, with a new state. Cannot fail. */
static void push(ts_autocast_region *region, ts_autocast_state state, bool without_cache)
{
    ts_thread *t = ts_thread_self();
    *region = (ts_autocast_region){t->region, t->include, t->exclude, t->autocast,
                                   t->no_cast_cache};
    t->region = region;
    t->no_cast_cache = without_cache;
    t->autocast = state;
    if (state) { /* enables the layer also inside a kernel or rule that excludes it */
        t->include |= TS_KEYSET(TS_KEY_AUTOCAST);
        t->exclude &= ~TS_KEYSET(TS_KEY_AUTOCAST);
    } else {
        t->include &= ~TS_KEYSET(TS_KEY_AUTOCAST);
    }
    ts_cast_cache_watch();
}

static ts_autocast_state with_mode(ts_autocast_state state, unsigned backend, unsigned mode)
{
    return (state & ~(3u << 2 * backend)) | mode << 2 * backend;
}

static ts_status check(ts_device device, ts_dtype dtype)
{
    if (device.backend >= 16 || ts_key_name(device.backend)[0] == '?')
        return ts_error_set(
            TS_ERR_DEVICE,
            "autocast: argument 'device': expected the device of a backend, got backend %d",
            device.backend);
    if (dtype != TS_BF16 && dtype != TS_F16 && dtype != TS_DTYPE_NONE)
        return ts_error_set(
            TS_ERR_DTYPE, "autocast: argument 'dtype': expected bf16, f16, or none for off; got %s",
            ts_dtype_name(dtype));
    return TS_OK;
}

ts_status ts_autocast_enter_ex(ts_autocast_region *region, ts_device device, ts_dtype dtype,
                               const ts_autocast_opts *opts)
{
    ts_autocast_opts o;
    TS_TRY(TS_CHECK_POINTERS(region));
    TS_TRY(TS_CHECK_OPTS(&o, opts));
    TS_TRY(check(device, dtype));
    unsigned mode = dtype == TS_BF16 ? LOWER_BF16 : dtype == TS_F16 ? LOWER_F16 : OFF;
    push(region, with_mode(ts_thread_self()->autocast, device.backend, mode), o.no_cache);
    return TS_OK;
}

ts_status ts_autocast_enter(ts_autocast_region *region, ts_device device, ts_dtype dtype)
{
    return ts_autocast_enter_ex(region, device, dtype, NULL);
}

ts_status ts_autocast_open(ts_autocast_region *region, ts_device device, ts_dtype dtype)
{
    ts_status status = ts_autocast_enter(region, device, dtype);
    if (status != TS_OK && region)
        push(region,
             device.backend < 16 ? with_mode(ts_thread_self()->autocast, device.backend, FAILED)
                                 : ~0u,
             true);
    return status;
}

ts_status ts_autocast_enter_state(ts_autocast_region *region, ts_autocast_state state)
{
    TS_TRY(TS_CHECK_POINTERS(region));
    for (unsigned backend = 0; backend < 16; backend++)
        if (mode_of(state, backend) == FAILED)
            return ts_error_set(TS_ERR_VALUE,
                                "autocast_enter_state: argument 'state': expected a state outside "
                                "a region that failed to open, got 0x%x",
                                state);
    push(region, state, false);
    return TS_OK;
}

ts_status ts_autocast_exit(ts_autocast_region *region)
{
    TS_TRY(TS_CHECK_POINTERS(region));
    ts_thread *t = ts_thread_self();
    if (region != t->region)
        return ts_error_set_hint(
            TS_ERR_STATE, "close regions in the reverse order, in the thread that opened them",
            "autocast_exit: argument 'region': expected the innermost region of this thread, got "
            "another");
    ts_keyset layer = TS_KEYSET(TS_KEY_AUTOCAST);
    t->include = (t->include & ~layer) | (region->include & layer);
    t->exclude = (t->exclude & ~layer) | (region->exclude & layer);
    t->autocast = region->state;
    t->no_cast_cache = region->no_cache;
    t->region = region->outer;
    if (!t->region)
        ts_cast_cache_clear();
    return TS_OK;
}

ts_dtype ts_autocast_dtype(ts_device device)
{
    return device.backend < 16 ? lower[mode_of(ts_thread_self()->autocast, device.backend)]
                               : TS_DTYPE_NONE;
}

ts_autocast_state ts_autocast_get_state(void) { return ts_thread_self()->autocast; }
bool ts_autocast_is_casting(void) { return ts_thread_self()->casting; }
void ts_autocast_clear_cache(void) { ts_cast_cache_clear(); }

ts_autocast_stats ts_autocast_get_stats(void)
{
    ts_autocast_stats now = stats;
    now.cached = ts_cast_cache_count();
    return now;
}
