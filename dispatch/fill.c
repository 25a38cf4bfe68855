/**
 * @file fill.c  The generic entry of ops with a shape rule: rule, checks, results, kernel, versions.
 *
 * The common call goes straight through. What a kernel does not take as it is goes by way of
 * adapt.c, what is wrong with a destination is said in given.c.
 */
// SPDX-License-Identifier: MIT
#include "dispatch/entries.h"

/** Gives a fresh tensor of 4 dims the strides of one whose dims 1 and 2 were exchanged. */
static TS_COLD void swap_layout(ts_tensor *t)
{
    const int64_t sizes[] = {t->sizes[0], t->sizes[2], t->sizes[1], t->sizes[3]};
    int64_t strides[4];
    ts_strides_fill(sizes, 4, strides);
    t->strides[1] = strides[2];
    t->strides[2] = strides[1];
    if (!ts_strides_contiguous(t->sizes, t->strides, 4))
        t->flags &= (uint8_t)~TS_TENSOR_CONTIGUOUS;
}

/** Makes the results that are wanted and not there yet. A bit of *made for each. */
TS_INLINE ts_status make_results(ts_frame *f, unsigned *made)
{
    const ts_plan *plan = f->plan;
    for (int i = 0; i < f->nrets; i++) {
        if (f->rets[i].tag == TS_TAG_TENSOR || !(f->want >> i & 1))
            continue;
        const ts_meta *m = &plan->ret[i];
        ts_tensor *t =
            TS_LIKELY(m->numel)
                ? ts_tensor_new_unchecked(f->thread, m->kind, m->sizes, m->numel)
                : ts_tensor_new(f->thread, (ts_dtype)m->dtype, m->sizes, m->ndim, m->device);
        if (TS_UNLIKELY(!t))
            return ts_fail_within(ts_op_name(f->op), f->site);
        if (TS_UNLIKELY((plan->swapped >> i & 1) && !(f->table->packed >> f->key & 1)))
            swap_layout(t);
        f->rets[i] = ts_value_tensor(t);
        *made |= 1u << i;
    }
    return TS_OK;
}

/** Counts the writes to destinations and to arguments that the op writes (invariant 4). */
TS_INLINE void count_writes(const ts_frame *f)
{
    for (int i = 0; f->given >> i; i++)
        if (f->given >> i & 1)
            ts_storage_wrote(f->rets[i].t->storage, f->op);
    for (unsigned left = f->table->written; left; left &= left - 1) {
        const ts_value *v = &f->args[__builtin_ctz(left)];
        if (v->tag == TS_TAG_TENSOR)
            ts_storage_wrote(v->t->storage, f->op);
        for (uint32_t k = 0; v->tag == TS_TAG_TENSORS && k < v->count; k++)
            ts_storage_wrote(v->list[k]->storage, f->op);
    }
}

static TS_COLD void drop_results(ts_frame *f, unsigned made)
{
    for (int i = 0; made >> i; i++)
        if (made >> i & 1) {
            ts_tensor_unref(f->rets[i].t);
            f->rets[i] = ts_value_none();
        }
}

TS_INLINE ts_status run(ts_frame *f, ts_kernel kernel)
{
    ts_plan *plan = f->plan;
    unsigned made = 0;
    ts_status status = make_results(f, &made);
    if (TS_LIKELY(status == TS_OK)) {
        if (TS_LIKELY(plan->flat && (f->rets[0].t->flags & TS_TENSOR_CONTIGUOUS))) {
            plan->iter.data[0] = f->rets[0].t->data;
            plan->iter.strides[0][0] = ts_dtype_sizes[f->rets[0].t->dtype];
        } else if (plan->pointwise) {
            ts_plan_iterate(f);
        }
        status = kernel(f);
        if (f->given | f->table->written)
            count_writes(f);
    }
    if (TS_UNLIKELY(status != TS_OK))
        drop_results(f, made);
    return status;
}

ts_status ts_fill_run(ts_frame *f, ts_kernel kernel) { return run(f, kernel); }

ts_status ts_enter_fill(ts_frame *f)
{
    ts_plan plan;
    ts_plan_open(f, &plan);
    const ts_accepts *accepts = &f->table->accepts[f->key];
    ts_status status = f->table->info->infer(f);
    if (TS_LIKELY(status == TS_OK)) {
        if (TS_UNLIKELY(!(accepts->dtypes >> plan.compute & 1)))
            status = ts_fill_unaccepted(f, accepts);
        else if (f->given && (status = ts_check_given(f)) != TS_OK)
            ;
        else if (plan.cast || !(accepts->strided | plan.pointwise))
            status = ts_fill_adapted(f, accepts, f->table->impl[f->key]);
        else
            status = run(f, f->table->impl[f->key]);
    }
    f->plan = NULL;
    return status;
}

ts_status ts_shapes_only(ts_frame *f)
{
    (void)f;
    return TS_OK;
}
