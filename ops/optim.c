/** @file optim.c  Optimizer updates and norms over lists of tensors. */
// SPDX-License-Identifier: MIT
#include "core/device.h"
#include "include/tessera/check.h"
#include "include/tessera/ops.h"
#include "ops/ops.h"

/** The cost of an op with `operations` for each element of the first list. */
static ts_work cost_of_lists(const ts_frame *f, double operations)
{
    double elements = 0, largest, bytes = ts_cost_bytes(f, &largest);
    for (uint32_t k = 0; k < f->args[0].count; k++)
        elements += (double)f->args[0].list[k]->numel;
    return (ts_work){operations * elements, bytes};
}
/* Counted from the formulas in include/tessera/ops/optim.h. adamw: two averages (3 and 4), update
 * (4), decay (2). sgd: momentum (2), update (2), decay (2). */
ts_work ts_cost_adamw(const ts_frame *f) { return cost_of_lists(f, 13); }
ts_work ts_cost_sgd(const ts_frame *f) { return cost_of_lists(f, 6); }
ts_work ts_cost_norms(const ts_frame *f) { return cost_of_lists(f, 2); }
ts_work ts_cost_scales(const ts_frame *f) { return cost_of_lists(f, 1); }

/* ------------------------------------------------------------------------------- rules ---- */

/** True if a member of list argument `arg` may have `dtype`: that of its parameter; bf16 or f16 for
 * gradients (argument 1) of f32 parameters; f32 for the state of bf16 and f16 parameters. */
static bool fits_dtype(int arg, ts_dtype param, ts_dtype dtype)
{
    return dtype == param ||
           (arg == 1 ? param == TS_F32 && ts_dtype_is_half(dtype)
                     : dtype == TS_F32 && ts_dtype_is_half(param));
}

/** Checks member k of a list: a floating tensor with the sizes and device of the first list's. */
static __attribute__((noinline)) ts_status check_member(ts_frame *f, int arg, uint32_t k)
{
    const ts_tensor *p = f->args[0].list[k], *t = f->args[arg].list[k];
    if (!ts_dtype_is_float((ts_dtype)t->dtype))
        return ts_fail_member(f, arg, k, TS_ERR_DTYPE, "cast with ts_to()",
                              "expected a floating dtype, got %s",
                              ts_dtype_name((ts_dtype)t->dtype));
    if ((f->table->written >> arg & 1) && ts_is_expanded(t))
        return ts_fail_member(f, arg, k, TS_ERR_VALUE, "write to ts_clone() of it",
                              "expected distinct elements, got an expanded tensor");
    if (t->ndim != p->ndim || !ts_same_sizes(t->sizes, p->sizes, p->ndim))
        return ts_fail_member(f, arg, k, TS_ERR_SHAPE, NULL, "expected sizes %s, got %s",
                              TS_SIZES_TEXT(p), TS_SIZES_TEXT(t));
    if (!fits_dtype(arg, (ts_dtype)p->dtype, (ts_dtype)t->dtype))
        return ts_fail_member(f, arg, k, TS_ERR_DTYPE, "cast with ts_to()",
                              "expected dtype %s, got %s", ts_dtype_name((ts_dtype)p->dtype),
                              ts_dtype_name((ts_dtype)t->dtype));
    return TS_OK;
}

/** Checks that arguments 0 to lists - 1, the lists, agree in length, sizes and dtypes, and that all
 * tensors are on one device, which *device receives. */
static ts_status check_lists(ts_frame *f, int lists, ts_device *device)
{
    const ts_value *first = &f->args[0];
    for (int a = 0; a < lists; a++) {
        if (f->args[a].count != first->count)
            return ts_fail_arg(f, a, TS_ERR_VALUE, "expected %u tensors, got %u", first->count,
                               f->args[a].count);
        for (uint32_t k = 0; k < first->count; k++) {
            const ts_tensor *p = first->list[k], *t = f->args[a].list[k];
            bool alike = a && t->kind.bits == p->kind.bits && (t->flags & TS_TENSOR_CONTIGUOUS) &&
                         ts_same_sizes(t->sizes, p->sizes, p->ndim);
            if (!alike)
                TS_TRY(check_member(f, a, k));
        }
    }
    if (first->count)
        f->plan->compute = (ts_dtype)first->list[0]->dtype;
    TS_TRY(ts_check_devices(f, true, device));
    /* 0-dim CPU tensors are allowed as numbers, but not as members of the lists */
    for (int a = 0; a < lists && !ts_is_on_cpu(f); a++)
        for (uint32_t k = 0; k < first->count; k++)
            if (!ts_same_device(f->args[a].list[k]->storage->device, *device))
                return ts_fail_member(f, a, k, TS_ERR_DEVICE,
                                      ts_move_hint(f->args[a].list[k]->storage->device, *device),
                                      "expected device %s, got %s", ts_device_name(*device),
                                      ts_device_name(f->args[a].list[k]->storage->device));
    return TS_OK;
}

/** Checks that t, which is argument `arg` or its member, has one f32 element on the device of the
 *  lists. member -1: t is the argument. */
static ts_status check_f32_number(ts_frame *f, int arg, int64_t member, const ts_tensor *t,
                                  ts_device device)
{
    if (t->dtype != TS_F32)
        return ts_fail_member(f, arg, member, TS_ERR_DTYPE, "cast with ts_to()",
                              "expected dtype f32, got %s", ts_dtype_name((ts_dtype)t->dtype));
    if (t->numel != 1)
        return ts_fail_member(f, arg, member, TS_ERR_SHAPE, NULL,
                              "expected one element, got sizes %s", TS_SIZES_TEXT(t));
    if (f->args[0].count && !ts_same_device(t->storage->device, device))
        return ts_fail_member(f, arg, member, TS_ERR_DEVICE,
                              ts_move_hint(t->storage->device, device),
                              "expected device %s, got %s", ts_device_name(device),
                              ts_device_name(t->storage->device));
    return TS_OK;
}

/** Checks the optional arguments starting at `arg`: found (one flag), skipped (one counter per
 *  tensor of list 0) and grad_scale (a factor). */
static ts_status check_guard_and_scale(ts_frame *f, int arg, ts_device device)
{
    const ts_value *found = &f->args[arg], *skipped = &f->args[arg + 1];
    uint32_t n = found->tag == TS_TAG_TENSOR ? f->args[0].count : 0,
             got = skipped->tag == TS_TAG_TENSORS ? skipped->count : 0;
    if (got != n)
        return ts_fail_arg(f, arg + 1, TS_ERR_VALUE, "expected %u tensors, got %u", n, got);
    if (found->tag == TS_TAG_TENSOR)
        TS_TRY(check_f32_number(f, arg, -1, found->t, device));
    for (uint32_t k = 0; k < n; k++)
        TS_TRY(check_f32_number(f, arg + 1, k, skipped->list[k], device));
    const ts_value *grad_scale = &f->args[arg + 2];
    return grad_scale->tag == TS_TAG_TENSOR ? check_f32_number(f, arg + 2, -1, grad_scale->t,
                                                               device)
                                            : TS_OK;
}

static ts_status check_steps(ts_frame *f, int arg)
{
    const ts_value *steps = &f->args[arg];
    if (steps->count != f->args[0].count)
        return ts_fail_arg(f, arg, TS_ERR_VALUE, "expected %u numbers, got %u", f->args[0].count,
                           steps->count);
    for (uint32_t k = 0; k < steps->count; k++)
        if (steps->ints[k] < 1)
            return ts_fail_member(f, arg, k, TS_ERR_VALUE, NULL, "expected at least 1, got %lld",
                                  (long long)steps->ints[k]);
    return TS_OK;
}

static ts_status check_at_least_0(ts_frame *f, int arg)
{
    if (f->args[arg].d >= 0) /* false for NaN */
        return TS_OK;
    return ts_fail_arg(f, arg, TS_ERR_VALUE, "expected at least 0, got %g", f->args[arg].d);
}

ts_status ts_infer_adamw(ts_frame *f)
{
    ts_device device;
    TS_TRY(check_lists(f, 4, &device));
    TS_TRY(check_steps(f, 4));
    for (int a = 5; a <= 9; a++)
        TS_TRY(check_at_least_0(f, a));
    for (int a = 6; a <= 7; a++)
        if (f->args[a].d >= 1)
            return ts_fail_arg(f, a, TS_ERR_VALUE, "expected less than 1, got %g", f->args[a].d);
    f->plan->widens = 1 << 1;
    return check_guard_and_scale(f, 11, device);
}

ts_status ts_infer_sgd(ts_frame *f)
{
    ts_device device;
    bool momentum = f->args[5].d != 0;
    f->plan->widens = 1 << 1;
    TS_TRY(check_lists(f, momentum ? 3 : 2, &device));
    TS_TRY(check_steps(f, 3));
    for (int a = 4; a <= 7; a++)
        if (a != 6)
            TS_TRY(check_at_least_0(f, a));
    if (!(f->args[6].d - f->args[6].d == 0))
        return ts_fail_arg(f, 6, TS_ERR_VALUE, "expected a finite number, got %g", f->args[6].d);
    if (f->args[8].i && (!momentum || f->args[6].d != 0))
        return ts_fail_arg(f, 8, TS_ERR_VALUE,
                           "expected momentum > 0 and dampening 0, got %g and %g", f->args[5].d,
                           f->args[6].d);
    return check_guard_and_scale(f, 9, device);
}

ts_status ts_infer_global_norm(ts_frame *f)
{
    ts_device device = TS_DEVICE_CPU;
    TS_TRY(check_lists(f, 1, &device));
    ts_dtype dtype = TS_F32;
    for (uint32_t k = 0; k < f->args[0].count; k++)
        if (f->args[0].list[k]->dtype == TS_F64)
            dtype = TS_F64;
    f->plan->widens = 1 << 0;
    ts_plan_result(f->plan, 0, NULL, 0, dtype, device);
    return TS_OK;
}

/** Checks a factor or norm: if it is a tensor, it has one floating element. */
static ts_status check_number(ts_frame *f, int arg)
{
    if (f->args[arg].tag != TS_TAG_TENSOR)
        return TS_OK;
    const ts_tensor *t = f->args[arg].t;
    if (t->numel != 1)
        return ts_fail_arg(f, arg, TS_ERR_SHAPE, "expected one element, got sizes %s",
                           TS_SIZES_TEXT(t));
    return ts_check_float(f, arg);
}

ts_status ts_infer_scale(ts_frame *f)
{
    ts_device device;
    TS_TRY(check_lists(f, 1, &device));
    return check_number(f, 1);
}

ts_status ts_infer_unscale(ts_frame *f)
{
    TS_TRY(ts_infer_scale(f));
    ts_plan_result(f->plan, 0, NULL, 0, TS_F32,
                   f->args[0].count ? f->args[0].list[0]->storage->device : TS_DEVICE_CPU);
    return TS_OK;
}

ts_status ts_infer_clip_norm(ts_frame *f)
{
    TS_TRY(ts_infer_scale(f));
    return check_at_least_0(f, 2);
}

/* ------------------------------------------------------------------------ public forms ---- */

/** Checks that the length of a list can be boxed: 0 to INT32_MAX. */
static ts_status check_length(const char *op, int64_t n, const void *site)
{
    if (n >= 0 && n <= INT32_MAX)
        return TS_OK;
    return ts_fail_op(TS_ERR_VALUE, op, site, NULL, "argument 'n': expected 0 to %d, got %lld",
                      INT32_MAX, (long long)n);
}

#define SITE __builtin_return_address(0)

/** Arguments found, skipped and grad_scale of a rule. */
#define V_GUARD_AND_SCALE(rule, n)                                                         \
    ts_value_at((rule)->guard ? &(rule)->guard->found : NULL),                             \
        (rule)->guard && (rule)->guard->found != TS_NONE ? V_TS((rule)->guard->skipped, n) \
                                                         : ts_value_none(),                \
        ts_value_at((rule)->grad_scale)

ts_status ts_adamw_(ts_tensor *const *params, ts_tensor *const *grads, ts_tensor *const *exp_avg,
                    ts_tensor *const *exp_avg_sq, const int64_t *steps, int64_t n,
                    const ts_adamw_rule *rule)
{
    TS_TRY(check_length("adamw", n, SITE));
    TS_TRY(TS_CHECK_POINTERS(rule));
    if (n == 0)
        return TS_OK;
    ts_value args[] = {V_TS(params, n),    V_TS(grads, n),   V_TS(exp_avg, n), V_TS(exp_avg_sq, n),
                       V_IS(steps, n),     V_F(rule->lr),    V_F(rule->beta1), V_F(rule->beta2),
                       V_F(rule->eps),     V_F(rule->weight_decay), V_B(rule->decoupled),
                       V_GUARD_AND_SCALE(rule, n)};
    return ts_invoke_status(TS_OP_adamw, args, TS_N(args));
}

ts_status ts_sgd_(ts_tensor *const *params, ts_tensor *const *grads,
                  ts_tensor *const *momentum_buffers, const int64_t *steps, int64_t n,
                  const ts_sgd_rule *rule)
{
    TS_TRY(check_length("sgd", n, SITE));
    TS_TRY(TS_CHECK_POINTERS(rule));
    if (n == 0)
        return TS_OK;
    ts_value args[] = {V_TS(params, n),
                       V_TS(grads, n),
                       V_TS(momentum_buffers, rule->momentum != 0 ? n : 0),
                       V_IS(steps, n),
                       V_F(rule->lr),
                       V_F(rule->momentum),
                       V_F(rule->dampening),
                       V_F(rule->weight_decay),
                       V_B(rule->nesterov),
                       V_GUARD_AND_SCALE(rule, n)};
    return ts_invoke_status(TS_OP_sgd, args, TS_N(args));
}

ts_tensor *ts_global_norm(ts_tensor *const *tensors, int64_t n)
{
    TS_TRY_NULL(check_length("global_norm", n, SITE));
    if (n == 0)
        return ts_zeros(NULL, 0, TS_F32);
    return TS_INVOKE(TS_OP_global_norm, V_TS(tensors, n));
}

ts_status(ts_scale_)(ts_tensor *const *tensors, int64_t n, ts_scalar factor)
{
    TS_TRY(check_length("scale", n, SITE));
    if (n == 0)
        return TS_OK;
    ts_value args[] = {V_TS(tensors, n), V_S(factor)};
    return ts_invoke_status(TS_OP_scale, args, TS_N(args));
}

ts_status ts_scale_by_(ts_tensor *const *tensors, int64_t n, ts_tensor *factor)
{
    TS_TRY(check_length("scale", n, SITE));
    if (n == 0)
        return TS_CHECK_TENSORS(factor); /* NULL if the call that returned it failed */
    ts_value args[] = {V_TS(tensors, n), V_T(factor)};
    return ts_invoke_status(TS_OP_scale, args, TS_N(args));
}

ts_tensor *(ts_unscale_)(ts_tensor *const *tensors, int64_t n, ts_scalar factor)
{
    TS_TRY_NULL(check_length("unscale", n, SITE));
    if (n == 0)
        return ts_zeros(NULL, 0, TS_F32);
    return TS_INVOKE(TS_OP_unscale, V_TS(tensors, n), V_S(factor));
}

ts_tensor *ts_unscale_by_(ts_tensor *const *tensors, int64_t n, ts_tensor *factor)
{
    TS_TRY_NULL(check_length("unscale", n, SITE));
    if (n == 0)
        return TS_CHECK_TENSORS(factor) != TS_OK ? NULL : ts_zeros(NULL, 0, TS_F32);
    return TS_INVOKE(TS_OP_unscale, V_TS(tensors, n), V_T(factor));
}

ts_status ts_clip_norm_(ts_tensor *const *tensors, int64_t n, ts_tensor *norm, double max_norm)
{
    TS_TRY(check_length("clip_norm", n, SITE));
    if (n == 0)
        return TS_CHECK_TENSORS(norm);
    ts_value args[] = {V_TS(tensors, n), V_T(norm), V_F(max_norm)};
    return ts_invoke_status(TS_OP_clip_norm, args, TS_N(args));
}
