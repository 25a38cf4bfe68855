/**
 * @file adapt.c  Adapts calls to kernels with narrower support: casts arguments, packs them (copies
 * them to contiguous tensors), replaces strided destinations by contiguous tensors, computes bf16
 * and f16 in f32.
 */
// SPDX-License-Identifier: MIT
#include "core/device.h"
#include "dispatch/entries.h"

#include <string.h>

/** If a result has at least this many elements, casting an operand with less than 1/8 of that
 * number in a separate pass is cheaper than converting the operand inside the kernel. */
enum { CAST_SEPARATELY = 1 << 18 };

/** Copies of arguments for the kernel; released after the call. */
typedef struct copies {
    ts_value args[TS_MAX_ARGS];
    ts_tensor *made[TS_MAX_ARGS];
    int count;
} copies;

/** Makes a contiguous copy of t with this dtype and enters it in c->args as argument i. */
static ts_status copy_arg(copies *c, const ts_frame *f, int i, ts_tensor *from, ts_dtype dtype)
{
    ts_tensor *t = ts_above.convert(from, dtype);
    if (!t)
        return ts_fail_within(ts_op_name(f->op), f->site);
    if (!c->count)
        memcpy(c->args, f->args, f->nargs * sizeof *c->args);
    c->args[i].t = c->made[c->count++] = t;
    return TS_OK;
}

static void copies_end(const copies *c)
{
    for (int i = 0; i < c->count; i++)
        ts_tensor_unref(c->made[i]);
}

/** Enters argument i in c->args with this dtype, dense and with its dims in memory in plan->order:
 *  a copy, or an alias if only strides of dims of size 1 differ. */
static TS_COLD ts_status turn_arg(copies *c, const ts_frame *f, int i, ts_dtype dtype)
{
    const ts_tensor *t = f->args[i].t;
    const uint8_t *order = f->plan->order;
    int64_t sizes[TS_MAX_DIMS], strides[TS_MAX_DIMS], step = 1;
    for (int d = 0; d < t->ndim; d++) {
        sizes[d] = t->sizes[order[d]];
        strides[d] = t->strides[order[d]];
    }
    ts_tensor *turned = ts_tensor_alias(f->thread, t, sizes, strides, t->ndim, 0);
    if (!turned)
        return ts_fail_within(ts_op_name(f->op), f->site);
    ts_status status = copy_arg(c, f, i, turned, dtype);
    ts_tensor_unref(turned);
    TS_TRY(status);
    ts_tensor *packed = c->made[c->count - 1], *y;
    for (int d = t->ndim - 1; d >= 0; d--) {
        strides[order[d]] = step;
        step *= sizes[d] ? sizes[d] : 1;
    }
    y = ts_tensor_alias(f->thread, packed, t->sizes, strides, t->ndim, 0);
    if (!y)
        return ts_fail_within(ts_op_name(f->op), f->site);
    ts_tensor_unref(packed);
    c->args[i].t = c->made[c->count - 1] = y;
    return TS_OK;
}

/** True if the kernel converts t as it reads: it accepts all dtypes, and t is on its device. A
 *  small operand of a large result (CAST_SEPARATELY) is cast beforehand, because the kernel would
 *  convert each of its elements many times. */
static bool kernel_casts(const ts_frame *f, ts_accepts accepts, const ts_tensor *t)
{
    const ts_meta *m = &f->plan->ret[0];
    int64_t numel;
    if (!ts_product(m->sizes, m->ndim, &numel))
        numel = INT64_MAX; /* a META tensor has no memory that would limit its sizes */
    return (accepts.takes & TS_TAKES_DTYPES) && t->device.backend == f->key &&
           (numel < CAST_SEPARATELY || t->numel >= numel / 8);
}

/** Casts arguments to the compute dtype if the rule asks, and packs them if the kernel asks. */
static ts_status convert_args(copies *c, const ts_frame *f, ts_accepts accepts)
{
    const ts_plan *plan = f->plan;
    bool packed = f->table->packed >> f->key & 1;
    unsigned as_is = f->table->written | (packed ? 0 : plan->strided);
    bool packs = !(accepts.takes & TS_TAKES_STRIDES) && !plan->pointwise;
    for (int i = 0; i < f->nargs; i++) {
        if (f->args[i].tag != TS_TAG_TENSOR)
            continue;
        const ts_tensor *t = f->args[i].t;
        bool cast = (plan->cast >> i & 1) && t->dtype != plan->compute &&
                    !kernel_casts(f, accepts, t);
        ts_dtype dtype = cast ? plan->compute : (ts_dtype)t->dtype;
        if (TS_UNLIKELY((plan->last >> i & 1) && !packed)) {
            if (cast || !ts_is_dense_last(t))
                TS_TRY(turn_arg(c, f, i, dtype));
            continue;
        }
        bool pack = packs && !(t->flags & TS_TENSOR_CONTIGUOUS) && !(as_is >> i & 1);
        if (TS_UNLIKELY(cast || pack))
            TS_TRY(copy_arg(c, f, i, f->args[i].t, dtype));
    }
    return TS_OK;
}

/** True if a kernel cannot write to destination i, because the destination is strided or the kernel
 * writes in the plan's order of dims. */
static bool needs_temporary(const ts_frame *f, int i)
{
    return !(f->rets[i].t->flags & TS_TENSOR_CONTIGUOUS) || (f->plan->ordered >> i & 1);
}

/** Runs the kernel with a new tensor instead of each destination to which it cannot write. */
static TS_COLD ts_status run_into_temporaries(ts_frame *f, ts_kernel kernel)
{
    ts_value made[TS_MAX_RETS];
    ts_frame inner = *f;
    inner.rets = made;
    for (int i = 0; i < f->nrets; i++) {
        made[i] = f->rets[i];
        if ((f->given >> i & 1) && needs_temporary(f, i)) {
            made[i] = ts_value_none();
            inner.given &= (uint8_t) ~(1 << i);
            inner.want |= (uint8_t)(1 << i);
        }
    }
    return ts_deliver(f, made, ts_fill_run_part(&inner, kernel));
}

TS_INLINE bool is_plain(const ts_frame *f)
{
    const ts_plan *plan = f->plan;
    unsigned cast = plan->cast;
    if (TS_UNLIKELY(plan->last))
        return false;
    for (const ts_value *v = f->args, *end = v + f->nargs; v < end; v++, cast >>= 1)
        if (v->tag == TS_TAG_TENSOR && (!(v->t->flags & TS_TENSOR_CONTIGUOUS) ||
                                        ((cast & 1) && v->t->dtype != plan->compute)))
            return false;
    for (unsigned left = f->given; left; left &= left - 1)
        if (!(f->rets[__builtin_ctz(left)].t->flags & TS_TENSOR_CONTIGUOUS))
            return false;
    return true;
}

bool ts_fill_is_plain(const ts_frame *f) { return is_plain(f); }

static __attribute__((noinline)) ts_status run_on_copies(ts_frame *f, ts_accepts accepts,
                                                         ts_kernel kernel)
{
    const ts_value *outer = f->args;
    bool temporaries = false, packs = !(accepts.takes & TS_TAKES_STRIDES) && !f->plan->pointwise;
    for (int i = 0; f->given >> i && packs; i++)
        temporaries |= (f->given >> i & 1) && needs_temporary(f, i);
    copies c;
    c.count = 0;
    ts_status status = convert_args(&c, f, accepts);
    if (status == TS_OK) {
        if (c.count)
            f->args = c.args;
        status = temporaries ? run_into_temporaries(f, kernel) : ts_fill_run_part(f, kernel);
        f->args = outer;
    }
    copies_end(&c);
    return status;
}

ts_status ts_fill_adapted(ts_frame *f, ts_accepts accepts, ts_kernel kernel)
{
    return TS_LIKELY(is_plain(f)) ? ts_fill_run(f, kernel) : run_on_copies(f, accepts, kernel);
}

/* ------------------------------------------------------------------------------ halves ---- */

/** Replaces bf16 and f16 by f32 in tensor arguments (by casts) and in dtype arguments. Rounds
 *  number arguments to the compute dtype if the plan is TS_POINTWISE_ROUNDED. */
static ts_status widen_args(copies *c, const ts_frame *f)
{
    memcpy(c->args, f->args, f->nargs * sizeof *c->args);
    for (int i = 0; i < f->nargs; i++)
        if (f->args[i].tag == TS_TAG_TENSOR && ts_dtype_is_half(f->args[i].t->dtype))
            TS_TRY(copy_arg(c, f, i, f->args[i].t, TS_F32));
    for (int i = 0; i < f->nargs; i++) {
        ts_value *v = &c->args[i];
        bool number = v->tag >= TS_TAG_BOOL && v->tag <= TS_TAG_FLOAT;
        if (v->tag == TS_TAG_DTYPE && ts_dtype_is_half(v->i)) {
            v->i = TS_F32;
        } else if (f->plan->pointwise == TS_POINTWISE_ROUNDED && number) {
            uint16_t rounded;
            ts_scalar_store(v, f->plan->compute, &rounded);
            *v = ts_scalar_load(&rounded, f->plan->compute);
        }
    }
    return TS_OK;
}

ts_status ts_run_widened(ts_frame *f)
{
    copies c;
    c.count = 0;
    ts_value wide[TS_MAX_RETS];
    ts_frame inner = *f;
    inner.args = c.args;
    inner.rets = wide;
    inner.given = inner.want = 0;
    for (int i = 0; i < f->nrets; i++) {
        wide[i] = ts_value_none();
        inner.want |= (uint8_t)((f->rets[i].tag == TS_TAG_TENSOR) << i);
    }
    ts_status status = widen_args(&c, f);
    if (status == TS_OK)
        status = ts_enter_fill(&inner);
    status = ts_deliver(f, wide, status);
    copies_end(&c);
    return status;
}

/** The compute dtypes in which the call can run: those that the kernel accepts, and bf16 and f16 if
 * f32 copies of their tensors can take their place. The f32 copies need a kernel that accepts f32
 * and an op that writes no argument and is not a dtype conversion, and no list may contain bf16 or
 * f16. */
static uint16_t computable(const ts_frame *f)
{
    uint16_t dtypes = f->table->accepts[f->key].dtypes;
    if (!(dtypes >> TS_F32 & 1) || f->table->written || f->plan->converts)
        return dtypes;
    for (int i = 0; i < f->nargs; i++)
        for (uint32_t k = 0; f->args[i].tag == TS_TAG_TENSORS && k < f->args[i].count; k++)
            if (ts_dtype_is_half(f->args[i].list[k]->dtype))
                return dtypes; /* kernels over lists check dtypes themselves */
    return dtypes | TS_DT_HALVES;
}

ts_status ts_fill_unaccepted(ts_frame *f)
{
    uint16_t dtypes = computable(f);
    if (dtypes >> f->plan->compute & 1) {
        if (f->given)
            TS_TRY(ts_check_given(f));
        return ts_fill_adapted(f, (ts_accepts){TS_DT_ALL, TS_TAKES_STRIDES}, ts_run_widened);
    }
    const ts_backend *b = ts_backend_of((ts_device){f->key, 0});
    if (b && (b->flags & TS_BACKEND_CPU_FALLBACK))
        return ts_round_trip(f);
    return ts_fail_kernel_dtype(f, dtypes);
}
