/**
 * @file fill.c  The generic entry of ops with a shape rule: rule, results, kernel, versions.
 *
 * given.c checks destinations; adapt.c casts or packs arguments that the kernel does not take.
 */
// SPDX-License-Identifier: MIT
#include "core/float_env.h"
#include "dispatch/entries.h"
#include "dispatch/timers.h"

/** Sets the strides of a new tensor: dense, with the dims in memory in `order`, outermost first. */
static __attribute__((noinline)) void order_dims(ts_tensor *t, const uint8_t *order)
{
    int64_t step = 1;
    for (int d = t->ndim - 1; d >= 0; d--) {
        t->strides[order[d]] = step;
        step *= t->sizes[order[d]] ? t->sizes[order[d]] : 1;
    }
    if (!ts_strides_contiguous(t->sizes, t->strides, t->ndim))
        t->flags &= (uint8_t)~TS_TENSOR_CONTIGUOUS;
}

/** True if result i is wanted and has no tensor yet. */
TS_INLINE bool is_lacking(const ts_frame *f, int i)
{
    return f->rets[i].tag != TS_TAG_TENSOR && (f->want >> i & 1);
}

/** Creates result i, with `make` if that is not NULL, and stores it in f. NULL with an error. */
TS_INLINE ts_tensor *make_result(ts_frame *f, ts_plan *plan, int i, ts_make make)
{
    const ts_meta *m = &plan->ret[i];
    ts_tensor *t =
        make                          ? make(f, m)
        : TS_LIKELY(ts_meta_fits(m)) ? ts_tensor_new_unchecked(f->thread, m)
            : ts_tensor_new(f->thread, (ts_dtype)m->dtype, m->sizes, m->ndim, m->device);
    if (TS_UNLIKELY(!t)) {
        ts_fail_within(ts_op_name(f->op), f->site);
        return NULL;
    }
    if (TS_UNLIKELY(plan->ordered >> i & 1) && !(f->table->packed >> f->key & 1))
        order_dims(t, plan->order);
    f->rets[i] = ts_value_tensor(t);
    return t;
}

ts_status ts_drop_results(ts_frame *f, ts_status status)
{
    for (int i = 0; i < f->nrets; i++)
        if (!(f->given >> i & 1)) {
            if (f->rets[i].tag == TS_TAG_TENSOR)
                ts_release(f->rets[i].t);
            f->rets[i] = ts_value_none();
        }
    return status;
}

/** Increments the versions of arguments that the op writes. */
static __attribute__((noinline)) void count_written_args(const ts_frame *f)
{
    for (unsigned left = f->table->written; left; left &= left - 1) {
        uint32_t n;
        ts_tensor *const *t = ts_value_members(&f->args[__builtin_ctz(left)], &n);
        for (uint32_t k = 0; k < n; k++)
            ts_storage_wrote(t[k]->storage, f->op);
    }
}

/** Increments the versions of all tensors that the call wrote. */
TS_INLINE void count_writes(ts_frame *f, const ts_plan *plan)
{
    for (unsigned left = f->given & ~plan->delivered; left; left &= left - 1)
        ts_storage_wrote(f->rets[__builtin_ctz(left)].t->storage, f->op);
    if (f->table->written)
        count_written_args(f);
}

/** Completes the iteration space of a pointwise op. first: the first result; unused, and may be
 *  NULL, if the plan is not flat. */
TS_INLINE void plan_space(ts_frame *f, ts_plan *plan, const ts_tensor *first)
{
    if (plan->flat && (first->flags & TS_TENSOR_CONTIGUOUS)) {
        plan->iter.data[0] = first->data;
        plan->iter.strides[0][0] = ts_dtype_sizes[first->dtype];
    } else if (plan->pointwise) {
        plan->flat = false; /* kernels rely on one run of contiguous operands */
        ts_plan_iterate(f);
    }
}
void ts_fill_space(ts_frame *f) { plan_space(f, f->plan, f->rets[0].t); }

/** Runs the kernel and increments versions; releases new results on an error. All results exist.
 *  first: as in plan_space(). */
TS_INLINE ts_status run_kernel(ts_frame *f, ts_plan *plan, ts_kernel kernel, const ts_tensor *first)
{
    plan_space(f, plan, first);
    ts_status status = kernel(f);
    if (f->given | f->table->written)
        count_writes(f, plan);
    return TS_LIKELY(status == TS_OK) ? status : ts_drop_results(f, status);
}

ts_status ts_fill_run(ts_frame *f, ts_kernel kernel)
{
    for (int i = 0; i < f->nrets; i++)
        if (is_lacking(f, i) && TS_UNLIKELY(!make_result(f, f->plan, i, NULL)))
            return ts_drop_results(f, ts_error_code());
    return run_kernel(f, f->plan, kernel, f->plan->flat ? f->rets[0].t : NULL);
}

/** The steps after the shape rule. */
TS_INLINE ts_status fill(ts_frame *f, ts_plan *plan)
{
    const ts_accepts *accepts = &f->table->accepts[f->key];
    ts_kernel kernel = f->table->impl[f->key];
    if (!(accepts->dtypes >> plan->compute & 1))
        return ts_fill_unaccepted(f);
    if (f->given)
        TS_TRY(ts_check_given(f));
    if (!plan->flat && (plan->cast || !((accepts->takes & TS_TAKES_STRIDES) | plan->pointwise)))
        return ts_fill_adapted(f, *accepts, kernel);
    if (f->nrets != 1)
        return ts_fill_run(f, kernel);
    bool lacking = is_lacking(f, 0);
    ts_tensor *first = lacking ? make_result(f, plan, 0, NULL) : f->rets[0].t;
    if (TS_UNLIKELY(lacking && !first))
        return ts_error_code();
    return run_kernel(f, plan, kernel, first);
}

/** The entry for threads with a non-default floating-point environment: restores the default for
 *  the call. */
static TS_COLD ts_status fill_plainly(ts_frame *f)
{
    TS_PLAIN_FLOATS;
    return ts_enter_fill(f);
}

/** True if the kernel gets arguments and destinations as they are. */
static bool runs_plainly(const ts_frame *f, const ts_plan *plan)
{
    const ts_accepts *accepts = &f->table->accepts[f->key];
    bool strides = (accepts->takes & TS_TAKES_STRIDES) | plan->pointwise;
    return (accepts->dtypes >> plan->compute & 1) &&
           (plan->flat || (!plan->cast && strides) || ts_fill_is_plain(f));
}

/** ts_fill_run() in profiles with detail. */
static ts_status run_in_parts(ts_frame *f, ts_kernel kernel)
{
    void *part = ts_detail(f->thread, TS_PART_ALLOCATION);
    bool made = true;
    for (int i = 0; i < f->nrets && made; i++)
        made = !is_lacking(f, i) || make_result(f, f->plan, i, NULL);
    ts_detail_leave(f->thread, part);
    if (!made)
        return ts_drop_results(f, ts_error_code());
    part = ts_detail(f->thread, TS_PART_KERNEL);
    ts_status status = run_kernel(f, f->plan, kernel, f->plan->flat ? f->rets[0].t : NULL);
    ts_detail_leave(f->thread, part);
    return status;
}

ts_status ts_fill_run_part(ts_frame *f, ts_kernel kernel)
{
    bool detail = atomic_load_explicit(&f->thread->state, memory_order_relaxed) & TS_THREAD_DETAIL;
    return TS_UNLIKELY(detail) ? run_in_parts(f, kernel) : ts_fill_run(f, kernel);
}

/** The entry in profiles with detail. */
static TS_COLD ts_status fill_in_detail(ts_frame *f)
{
    ts_plan plan;
    ts_plan_open(f, &plan);
    void *part = ts_detail(f->thread, TS_PART_RULE);
    ts_status status = f->table->infer(f);
    ts_detail_leave(f->thread, part);
    if (status == TS_OK && runs_plainly(f, &plan)) {
        if (f->given)
            status = ts_check_given(f);
        if (status == TS_OK)
            status = run_in_parts(f, f->table->impl[f->key]);
    } else if (status == TS_OK) {
        part = ts_detail(f->thread, TS_PART_CASTS);
        status = fill(f, &plan);
        ts_detail_leave(f->thread, part);
    }
    f->plan = NULL;
    return status;
}

ts_status ts_enter_fill(ts_frame *f)
{
    if (TS_UNLIKELY(!ts_float_env_is_plain()))
        return fill_plainly(f);
    if (TS_UNLIKELY(atomic_load_explicit(&f->thread->state, memory_order_relaxed) &
                    TS_THREAD_DETAIL))
        return fill_in_detail(f);
    ts_plan plan;
    ts_plan_open(f, &plan);
    ts_status status = f->table->infer(f);
    if (TS_LIKELY(status == TS_OK))
        status = fill(f, &plan);
    f->plan = NULL;
    return status;
}

ts_status ts_enter_deferred(ts_frame *f, ts_make make, ts_kernel record)
{
    ts_plan plan;
    ts_plan_open(f, &plan);
    ts_status status = f->table->infer(f);
    if (status == TS_OK && f->given)
        status = ts_check_given(f);
    for (int i = 0; i < f->nrets && status == TS_OK; i++)
        if (is_lacking(f, i) && !make_result(f, &plan, i, make))
            status = ts_error_code();
    if (status == TS_OK)
        status = record(f);
    if (status == TS_OK)
        count_writes(f, &plan);
    f->plan = NULL;
    return status == TS_OK ? status : ts_drop_results(f, status);
}

ts_status ts_shapes_only(ts_frame *f)
{
    (void)f;
    return TS_OK;
}
