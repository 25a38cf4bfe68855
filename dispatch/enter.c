/** @file enter.c  The generic entries of views, of composites and of kernels that create their own
 *  results; the entry of a ts_backend's kernels, which first checks the arguments' devices. */
// SPDX-License-Identifier: MIT
#include "core/device.h"
#include "core/float_env.h"
#include "dispatch/entries.h"
#include "dispatch/invoke.h"

ts_status ts_enter_view(ts_frame *f)
{
    if (TS_UNLIKELY(f->given))
        return ts_fail_op(TS_ERR_VALUE, ts_op_name(f->op), f->site, NULL,
                          "a view has no out= form");
    ts_kernel own = f->table->impl[f->key];
    return own ? own(f) : f->table->infer(f);
}

/** True if f's tensor for result i stays and gets the values of `made` by a copy. */
static bool is_copied(const ts_frame *f, int i, const ts_tensor *made)
{
    const ts_value *v = &f->rets[i];
    return v->tag == TS_TAG_TENSOR && ((f->given >> i & 1) || v->t->dtype != made->dtype);
}

ts_status ts_deliver(ts_frame *f, ts_value *made, ts_status status)
{
    for (int i = 0; i < f->nrets; i++) /* copy_into() below increments these results' versions */
        if (f->plan && (f->given >> i & 1) &&
            !(made[i].tag == TS_TAG_TENSOR && made[i].t == f->rets[i].t))
            f->plan->delivered |= (uint8_t)(1 << i);
    for (int i = 0; i < f->nrets && status == TS_OK; i++)
        if (made[i].tag == TS_TAG_TENSOR && made[i].t != f->rets[i].t &&
            is_copied(f, i, made[i].t)) {
            ts_storage *s = f->rets[i].t->storage;
            uint32_t version = s->version;
            status = ts_above.copy_into(f->rets[i].t, made[i].t, f->op);
            if (!(f->given >> i & 1))
                s->version = version; /* a new result begins without a write */
        }
    for (int i = 0; i < f->nrets; i++) {
        ts_value spare = made[i];
        if (spare.tag != TS_TAG_TENSOR || spare.t == f->rets[i].t)
            continue;
        if (status == TS_OK && !is_copied(f, i, spare.t)) {
            spare = f->rets[i];
            f->rets[i] = made[i];
        }
        if (spare.tag == TS_TAG_TENSOR)
            ts_tensor_unref(spare.t);
    }
    return status;
}

/** Runs a kernel that makes new results, and copies these to f's destinations. */
static TS_COLD ts_status whole_into(ts_frame *f, ts_kernel kernel)
{
    ts_value made[TS_MAX_RETS];
    ts_frame inner = *f;
    inner.rets = made;
    inner.given = 0;
    for (int i = 0; i < f->nrets; i++)
        made[i] = ts_value_none();
    ts_status status = kernel(&inner);
    for (int i = 0; i < f->nrets && status == TS_OK; i++) { /* all checks before the first write */
        const ts_tensor *t = made[i].tag == TS_TAG_TENSOR ? made[i].t : NULL;
        if (f->given >> i & 1)
            status = t ? ts_check_fits_result(f, f->rets[i].t,
                                              &(ts_meta){t->sizes, t->numel, {t->kind}})
                       : ts_fail_no_result(&inner);
    }
    return ts_deliver(f, made, status);
}

ts_status ts_run_whole(ts_frame *f, ts_kernel kernel)
{
    return TS_LIKELY(!f->given) ? kernel(f) : whole_into(f, kernel);
}

static TS_COLD ts_status whole_plainly(ts_frame *f)
{
    TS_PLAIN_FLOATS;
    return ts_enter_whole(f);
}

ts_status ts_enter_whole(ts_frame *f)
{
    if (TS_UNLIKELY(!ts_float_env_is_plain()))
        return whole_plainly(f);
    return ts_run_whole(f, f->table->impl[f->key]);
}

ts_status ts_run_parts(ts_frame *f, ts_kernel composite)
{
    if (f->table->info->kind != TS_FILL)
        return composite(f);
    ts_plan plan;
    ts_plan_open(f, &plan);
    ts_status status = f->table->infer(f);
    if (status == TS_OK)
        status = composite(f);
    f->plan = NULL;
    return status;
}

ts_status ts_enter_parts(ts_frame *f) { return ts_run_parts(f, ts_enter_whole); }

ts_status ts_enter_foreign(ts_frame *f)
{
    /* the shape rule checks arguments, so that errors read the same for every kernel */
    if (f->table->infer)
        TS_TRY(f->table->infer(f));
    ts_status status = ts_enter_whole(f);
    return status == TS_OK ? status : ts_drop_results(f, status);
}

/* ----------------------------------------------------------------------------- devices ---- */

/**
 * True if a kernel of key may take t: t is on the key's device, or is a 0-dim CPU tensor. *index:
 * device index of the key's first tensor, -1 before one is found.
 */
static bool fits_device(const ts_tensor *t, ts_key key, int *index)
{
    ts_device device = t->device;
    if (device.backend != key)
        return device.backend == TS_KEY_CPU && t->ndim == 0;
    if (*index < 0)
        *index = device.index;
    return device.index == *index;
}

int ts_find_other_device(const ts_frame *f)
{
    int index = -1;
    for (int i = 0; i < f->nargs; i++) {
        uint32_t n;
        ts_tensor *const *t = ts_value_members(&f->args[i], &n);
        for (uint32_t k = 0; k < n; k++)
            if (!ts_is_none(t[k]) && !fits_device(t[k], f->key, &index))
                return i;
    }
    for (int i = 0; i < f->nrets; i++) {
        if (!(f->given >> i & 1))
            continue;
        ts_device device = f->rets[i].t->device;
        if (device.backend != f->key || (index >= 0 && device.index != index))
            return f->nargs;
    }
    return -1;
}

/** Runs the shape rule, whose error it returns, and then the backend's supports(), so that
 *  supports() gets valid arguments and the decoders of kernel.h. */
static ts_status ask_backend(const ts_backend *b, ts_frame *f, bool *supported)
{
    ts_plan plan;
    ts_op_kind kind = f->table->info->kind;
    ts_status status = TS_OK;
    if (kind == TS_FILL)
        ts_plan_open(f, &plan);
    if (kind != TS_VIEW && f->table->infer)
        status = f->table->infer(f);
    if (status == TS_OK)
        *supported = b->supports(b->state, f);
    f->plan = NULL;
    return status;
}

ts_status ts_enter_device(ts_frame *f)
{
    const ts_backend *b = ts_backend_of((ts_device){f->key, 0});
    if (TS_UNLIKELY(!b))
        return ts_missing_kernel(f);
    int other = ts_find_other_device(f);
    if (TS_UNLIKELY(other >= 0))
        return ts_above.across(f, other);
    /* supports() concerns the backend's own kernels; ts_transfer() is the library's */
    bool own = f->table->impl[f->key] != ts_transfer;
    if (own && b->supports) {
        bool supported = true;
        TS_TRY(ask_backend(b, f, &supported));
        if (!supported)
            return ts_unsupported_call(f);
    }
    ts_op_kind kind = f->table->info->kind;
    return kind == TS_FILL   ? ts_enter_fill(f)
           : kind == TS_VIEW ? ts_enter_view(f)
                             : ts_enter_foreign(f);
}
