/** @file loss.c  Losses. For losses over classes, plan->count is the number of classes, and outer
 * and inner are the numbers of positions before and after the class dim. */
// SPDX-License-Identifier: MIT
#include "include/tessera/check.h"
#include "include/tessera/kernel.h"
#include "ops/parts.h"

#include <string.h>

/* ------------------------------------------------------------------------------- rules ---- */

static ts_status check_reduction(ts_frame *f, int arg, int most)
{
    if (f->args[arg].i >= 0 && f->args[arg].i <= most)
        return TS_OK;
    return ts_fail_arg(f, arg, TS_ERR_VALUE, "expected a ts_reduction from 0 to %d, got %lld", most,
                       (long long)f->args[arg].i);
}

/** Checks logits (C) or (N, C, ...) and target () or (N, ...), plans the class dim, and writes the
 * target's sizes to `sizes`. */
static ts_status plan_classes(ts_frame *f, int logits, int target, int64_t *sizes)
{
    const ts_tensor *x = f->args[logits].t, *t = f->args[target].t;
    ts_plan *plan = f->plan;
    TS_TRY(ts_check_float(f, logits));
    if (x->ndim == 0)
        return ts_fail_arg(f, logits, TS_ERR_SHAPE,
                           "expected sizes (C) or (N, C, ...), got a tensor without dims");
    if (t->dtype != TS_I64 && t->dtype != TS_I32)
        return ts_fail_arg_hint(f, target, TS_ERR_DTYPE, "cast class indices with ts_to()",
                                "expected dtype i64 or i32, got %s",
                                ts_dtype_name((ts_dtype)t->dtype));
    int dim = x->ndim > 1;
    if (dim)
        sizes[0] = x->sizes[0];
    for (int d = 2; d < x->ndim; d++)
        sizes[d - 1] = x->sizes[d];
    TS_TRY(ts_check_sizes(f, target, sizes, x->ndim - 1));
    TS_TRY(ts_check_one_device(f));
    plan->compute = (ts_dtype)x->dtype;
    ts_plan_split(plan, x, dim, dim + 1);
    if (plan->count == 0)
        return ts_fail_arg(f, logits, TS_ERR_SHAPE, "expected at least one class, got none");
    return TS_OK;
}

ts_status ts_infer_classes(ts_frame *f)
{
    const ts_tensor *x = f->args[0].t;
    int64_t sizes[TS_MAX_DIMS];
    TS_TRY(plan_classes(f, 0, 1, sizes));
    TS_TRY(check_reduction(f, 2, TS_REDUCTION_NONE));
    int n = f->args[2].i == TS_REDUCTION_NONE ? x->ndim - 1 : 0;
    ts_plan_result(f->plan, 0, sizes, n, (ts_dtype)x->dtype, x->storage->device);
    if (f->nrets > 1)
        ts_plan_result(f->plan, 1, sizes, x->ndim - 1, ts_widened_dtype((ts_dtype)x->dtype),
                       x->storage->device);
    return TS_OK;
}

ts_status ts_infer_cross_entropy(ts_frame *f)
{
    double s = f->args[4].d;
    if (!(s >= 0 && s <= 1))
        return ts_fail_arg(f, 4, TS_ERR_VALUE, "expected a number from 0 to 1, got %g", s);
    return ts_infer_classes(f);
}
/** Results: the gradient, and the loss, which is not differentiable and f32 for bf16 and f16. */
ts_status ts_infer_cross_entropy_grad(ts_frame *f)
{
    TS_TRY(ts_infer_cross_entropy(f));
    ts_meta loss = f->plan->ret[0];
    ts_plan_result(f->plan, 1, loss.sizes, loss.ndim, ts_widened_dtype(loss.dtype), loss.device);
    ts_plan_result_like(f->plan, 0, f->args[0].t, loss.dtype);
    f->plan->operands = 1; /* bit 0: result 0 may be self */
    return TS_OK;
}

/** (grad, self, target, lse of cross_entropy, reduction, ...) */
ts_status ts_infer_classes_backward(ts_frame *f)
{
    int arg = f->op == TS_OP_cross_entropy_backward ? 4 : 3;
    const ts_tensor *x = f->args[1].t;
    int64_t sizes[TS_MAX_DIMS];
    TS_TRY(plan_classes(f, 1, 2, sizes));
    TS_TRY(check_reduction(f, arg, TS_REDUCTION_NONE));
    TS_TRY(ts_check_sizes(f, 0, sizes, f->args[arg].i == TS_REDUCTION_NONE ? x->ndim - 1 : 0));
    if (arg == 4)
        TS_TRY(ts_check_sizes(f, 3, sizes, x->ndim - 1));
    /* for bf16 and f16, lse is f32; a cast would round it */
    bool lse = arg == 4 && ts_widened_dtype(f->plan->compute) == f->plan->compute;
    f->plan->cast = lse ? 1 | 1 << 3 : 1;
    if (arg == 3)
        f->plan->strided = 1 << 1; /* self, whose elements the gradient of nll_loss does not need */
    ts_plan_result_like(f->plan, 0, x, (ts_dtype)x->dtype);
    return TS_OK;
}

/** Checks self (argument `arg`), target and reduction (the next arguments): same sizes, one device,
 *  a floating promoted dtype, which becomes the compute dtype. */
static ts_status plan_pairs(ts_frame *f, int arg)
{
    bool batches = f->op == TS_OP_kl_div || f->op == TS_OP_kl_div_backward;
    const ts_tensor *x = f->args[arg].t, *t = f->args[arg + 1].t;
    TS_TRY(ts_check_sizes(f, arg + 1, x->sizes, x->ndim));
    TS_TRY(ts_check_one_device(f));
    TS_TRY(check_reduction(f, arg + 2, batches ? TS_REDUCTION_BATCHMEAN : TS_REDUCTION_NONE));
    ts_dtype compute = (ts_dtype)x->dtype;
    if (t->dtype != x->dtype)
        compute = ts_promote_values(&f->args[arg], 2);
    if (!ts_dtype_is_float(compute))
        return ts_check_float(f, arg);
    f->plan->compute = compute;
    f->plan->cast = (uint16_t)(3u << arg);
    return TS_OK;
}

ts_status ts_infer_pair(ts_frame *f)
{
    const ts_tensor *x = f->args[0].t;
    TS_TRY(plan_pairs(f, 0));
    if (f->args[2].i == TS_REDUCTION_NONE)
        ts_plan_result_like(f->plan, 0, x, f->plan->compute);
    else
        f->plan->ret[0] = ts_meta_of(x->sizes, f->plan->compute, x->storage->device, 0, 1);
    return TS_OK;
}
ts_status ts_infer_pair_backward(ts_frame *f)
{
    const ts_tensor *x = f->args[1].t;
    TS_TRY(plan_pairs(f, 1));
    TS_TRY(ts_check_sizes(f, 0, x->sizes, f->args[3].i == TS_REDUCTION_NONE ? x->ndim : 0));
    f->plan->cast |= 1;
    ts_plan_result_like(f->plan, 0, x, f->plan->compute);
    ts_plan_result_like(f->plan, 1, x, f->plan->compute);
    return TS_OK;
}

/** Pair losses with a bound: huber_loss needs one above 0, smooth_l1_loss one of at least 0. */
ts_status ts_infer_bounded(ts_frame *f)
{
    double b = f->args[3].d;
    bool positive = f->op == TS_OP_huber_loss;
    if (positive ? b > 0 : b >= 0)
        return ts_infer_pair(f);
    return ts_fail_arg(f, 3, TS_ERR_VALUE, "expected a number %s 0, got %g",
                       positive ? "above" : "of at least", b);
}

/* ------------------------------------------------------------------------------ by parts ---- */

/** dx = g (exp(x - lse) - smoothing / C), plus g (smoothing - 1) at the target. If lse is so large
 * that it has lost digits, the softmax replaces exp(x - lse), as in the kernels. */
ts_status ts_composite_cross_entropy_backward(ts_frame *f)
{
    TS_SCOPE;
    const ts_value *args = f->args;
    ts_dtype dtype = ts_widened_dtype(f->plan->compute);
    ts_tensor *target = args[2].t, *counted = ts_ne_scalar(target, args[5].i),
              *g = ts_as(args[0].t, dtype);
    int dim = args[1].t->ndim > 1;
    if (args[4].i == TS_REDUCTION_MEAN) /* without counted elements g is unused */
        g = ts_div(g, ts_as(ts_clamp_min(ts_sum(counted), 1), dtype));
    g = ts_unsqueeze(ts_where_scalar(counted, g, 0), dim);
    ts_tensor *index = ts_unsqueeze(ts_where_scalar(counted, target, 0), dim);
    ts_tensor *x = ts_as(args[1].t, dtype), *lse = ts_unsqueeze(ts_as(args[3].t, dtype), dim);
    ts_tensor *p = ts_where(ts_le_scalar(ts_abs(lse), TS_LSE_EXACT), ts_exp(ts_sub(x, lse)),
                            ts_softmax(x, dim));
    double smoothing = args[6].d;
    ts_tensor *dx = ts_mul(ts_sub_scalar(p, smoothing / (double)f->plan->count), g);
    dx = ts_scatter_add(dx, dim, index, ts_mul_scalar(g, smoothing - 1));
    return ts_parts_give(f, &dx, 1);
}

ts_status ts_composite_cross_entropy_grad(ts_frame *f)
{
    TS_SCOPE;
    const ts_value *args = f->args;
    ts_tensor *x = ts_as(args[0].t, ts_widened_dtype(f->plan->compute)), *lse = NULL, *results[2],
              **outs[2] = {NULL, &lse};
    TS_TRY(x);
    ts_value parts[] = {V_T(x), args[1], args[2], args[3], args[4]};
    results[1] = ts_invoke_many(TS_OP_cross_entropy, parts, TS_N(parts), 2, outs);
    results[0] = ts_cross_entropy_backward(ts_ones_like(results[1]), x, args[1].t, lse,
                                           (ts_reduction)args[2].i, args[3].i, args[4].d);
    return ts_parts_give(f, results, 2);
}

/** Operands of the derivatives of a pair loss. A member that is NULL after an error makes the
 * results NULL. */
typedef struct pair_parts {
    ts_tensor *g, *x, *t, *d; /* gradient of an element's loss, self, target, self - target */
} pair_parts;

static pair_parts pair_open(const ts_frame *f)
{
    const ts_tensor *self = f->args[1].t;
    ts_dtype dtype = ts_widened_dtype(f->plan->compute);
    int64_t reduction = f->args[3].i;
    pair_parts p = {ts_as(f->args[0].t, dtype), ts_as(f->args[1].t, dtype),
                    ts_as(f->args[2].t, dtype), NULL};
    p.d = ts_sub(p.x, p.t);
    if (reduction == TS_REDUCTION_MEAN)
        p.g = ts_mul_scalar(p.g, 1 / (double)self->numel);
    else if (reduction == TS_REDUCTION_BATCHMEAN && self->ndim)
        p.g = ts_mul_scalar(p.g, 1 / (double)self->sizes[0]);
    return p;
}

/** Stores the gradients of self and target: the derivatives times the gradient of the loss. */
static ts_status pair_give(ts_frame *f, pair_parts *p, ts_tensor *by_self, ts_tensor *by_target)
{
    ts_tensor *results[] = {f->want & 1 ? ts_mul(by_self, p->g) : NULL,
                            f->want & 2 ? ts_mul(by_target, p->g) : NULL};
    return ts_parts_give(f, results, 2);
}

/** Defines the backward composite of a loss of self - target; slope: its derivative. */
#define DIFFERENCE_PARTS(name, slope)                                    \
    ts_status ts_composite_##name##_backward(ts_frame *f)                \
    {                                                                    \
        TS_SCOPE;                                                        \
        pair_parts p = pair_open(f);                                     \
        ts_tensor *by_self = slope;                                      \
        return pair_give(f, &p, by_self, f->want & 2 ? ts_neg(by_self) : NULL); \
    }
#define BOUND f->args[4].d

DIFFERENCE_PARTS(mse_loss, ts_mul_scalar(p.d, 2))
DIFFERENCE_PARTS(l1_loss, ts_sign(p.d))
DIFFERENCE_PARTS(smooth_l1_loss,
                 BOUND == 0 ? ts_sign(p.d) : ts_clamp(ts_mul_scalar(p.d, 1 / BOUND), -1, 1))
DIFFERENCE_PARTS(huber_loss, ts_clamp(p.d, -BOUND, BOUND))

ts_status ts_composite_binary_cross_entropy_with_logits_backward(ts_frame *f)
{
    TS_SCOPE;
    pair_parts p = pair_open(f);
    return pair_give(f, &p, ts_sub(ts_logistic(p.x), p.t), f->want & 2 ? ts_neg(p.x) : NULL);
}

ts_status ts_composite_kl_div_backward(ts_frame *f)
{
    TS_SCOPE;
    pair_parts p = pair_open(f);
    if (!f->args[4].i) /* the loss is t (log t - x) */
        return pair_give(f, &p, ts_neg(p.t),
                         f->want & 2 ? ts_sub(ts_add_scalar(ts_log(p.t), 1), p.x) : NULL);
    ts_tensor *e = ts_exp(p.t); /* the loss is e^t (t - x) */
    return pair_give(f, &p, ts_neg(e), f->want & 2 ? ts_mul(e, ts_rsub_scalar(p.d, 1)) : NULL);
}

/* -------------------------------------------------------------------------- public forms ---- */

ts_tensor *ts_cross_entropy_last_ex(ts_tensor *self, ts_tensor *target, const ts_loss_opts *opts)
{
    ts_loss_opts o;
    TS_TRY_NULL(TS_CHECK_TENSORS(self, target));
    TS_TRY_NULL(TS_CHECK_OPTS(&o, opts));
    int ndim = self->ndim - 1; /* number of dims of target */
    if (ndim < 0 || target->ndim != ndim ||
        memcmp(target->sizes, self->sizes, (size_t)ndim * sizeof *self->sizes) != 0) {
        ts_fail_op(TS_ERR_SHAPE, "cross_entropy_last", __builtin_return_address(0), NULL,
                   "argument 'target': expected the sizes %s of argument 'self' without the last, "
                   "got %s",
                   TS_SIZES_TEXT(self), TS_SIZES_TEXT(target));
        return NULL;
    }
    TS_SCOPE;
    ts_tensor *rows = ts_reshape(self, TS_SIZES(target->numel, self->sizes[ndim])),
              *loss = ts_cross_entropy_ex(rows, ts_reshape(target, &target->numel, 1), &o);
    return ts_keep(o.reduction == TS_REDUCTION_NONE ? ts_reshape(loss, target->sizes, ndim) : loss);
}
ts_tensor *ts_cross_entropy_last(ts_tensor *self, ts_tensor *target)
{
    return ts_cross_entropy_last_ex(self, target, NULL);
}

ts_tensor *ts_cross_entropy_grad_(ts_tensor *self, ts_tensor *target, const ts_loss_opts *opts)
{
    const void *site = __builtin_return_address(0);
    ts_loss_opts o;
    TS_TRY_NULL(TS_CHECK_OPTS(&o, opts));
    if (!ts_tensor_ok(self, "cross_entropy_grad", "self", site))
        return NULL;
    ts_value args[] = {V_T(self), V_T(target), V_I(o.reduction),
                       V_I(o.ignore_index ? *o.ignore_index : -100), V_F(o.label_smoothing)};
    ts_value rets[2] = {V_T(self), ts_value_none()};
    TS_TRY_NULL(ts_call(TS_OP_cross_entropy_grad, args, TS_N(args), rets, 2, 1, 3, site));
    return ts_adopt(rets[1].t);
}
