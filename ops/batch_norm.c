/** @file batch_norm.c  Batch norm and group norm: shape rules, composites and public functions. */
// SPDX-License-Identifier: MIT
#include "core/device.h"
#include "include/tessera/check.h"
#include "ops/parts.h"
#include "ops/spatial.h"

/* ------------------------------------------------------------------------------- rules ---- */

/** Checks optional argument i, a parameter or statistic: `n` sizes, and the dtype of argument
 * `self` or the dtype that its arithmetic uses (f32 for bf16 and f16). */
static ts_status check_parameter(ts_frame *f, int i, int self, const int64_t *sizes, int n)
{
    if (f->args[i].tag != TS_TAG_TENSOR)
        return TS_OK;
    ts_dtype dtype = (ts_dtype)f->args[self].t->dtype;
    TS_TRY(ts_check_sizes(f, i, sizes, n));
    return f->args[i].t->dtype == ts_widened_dtype(dtype)
               ? TS_OK
               : ts_check_dtype_as(f, i, self, "cast with ts_to()");
}

static ts_status check_image(ts_frame *f, int self)
{
    const ts_tensor *t = f->args[self].t;
    TS_TRY(ts_check_float(f, self));
    if (t->ndim < 2)
        return ts_fail_arg(f, self, TS_ERR_SHAPE,
                           "expected 2 dims at least, (N, C, ...), got sizes %s", TS_SIZES_TEXT(t));
    return ts_check_one_device(f);
}

static ts_status check_groups(ts_frame *f, int arg, const ts_tensor *t)
{
    int64_t groups = f->args[arg].i;
    if (groups >= 1 && t->sizes[1] % groups == 0)
        return TS_OK;
    return ts_fail_arg(f, arg, TS_ERR_VALUE, "expected a divisor of %lld channels, got %lld",
                       (long long)t->sizes[1], (long long)groups);
}

/** Refuses statistics over a single element: the result would be the bias alone. */
static ts_status check_elements(ts_frame *f, int64_t n, const char *what)
{
    return n != 1 ? TS_OK
                  : ts_fail_arg(f, 0, TS_ERR_SHAPE,
                                "expected more than one element per %s, got sizes %s", what,
                                TS_SIZES_TEXT(f->args[0].t));
}

/** Plans result 0 like self, and results 1 and 2, mean and variance, with `n` sizes `sizes`. */
static void plan_results(ts_frame *f, const int64_t *sizes, int n)
{
    const ts_tensor *t = f->args[0].t;
    ts_plan_like(f->plan, t);
    for (int i = 1; i < 3; i++)
        ts_plan_result(f->plan, i, sizes, n, ts_widened_dtype((ts_dtype)t->dtype),
                       t->storage->device);
    ts_plan_layout(f, 0, 1, 1);
}

/** (self, mean?, var?, weight?, bias?, eps) -> (result, mean, var) */
ts_status ts_infer_batch_norm(ts_frame *f)
{
    const ts_tensor *t = f->args[0].t;
    bool given = f->args[1].tag == TS_TAG_TENSOR;
    TS_TRY(check_image(f, 0));
    if (given != (f->args[2].tag == TS_TAG_TENSOR))
        return ts_fail_arg(f, 2, TS_ERR_VALUE, "expected %s, as argument 'mean', got %s",
                           given ? "a tensor" : "TS_NONE", given ? "TS_NONE" : "a tensor");
    for (int i = 1; i < 5; i++)
        TS_TRY(check_parameter(f, i, 0, &t->sizes[1], 1));
    TS_TRY(ts_check_eps(f, 5));
    if (!given)
        TS_TRY(check_elements(f, t->sizes[1] ? t->numel / t->sizes[1] : 0, "channel"));
    plan_results(f, &t->sizes[1], 1);
    return TS_OK;
}

/** (self, num_groups, weight?, bias?, eps) -> (result, mean, var) */
ts_status ts_infer_group_norm(ts_frame *f)
{
    const ts_tensor *t = f->args[0].t;
    TS_TRY(check_image(f, 0));
    TS_TRY(check_groups(f, 1, t));
    TS_TRY(check_parameter(f, 2, 0, &t->sizes[1], 1));
    TS_TRY(check_parameter(f, 3, 0, &t->sizes[1], 1));
    TS_TRY(ts_check_eps(f, 4));
    plan_results(f, (int64_t[]){t->sizes[0], f->args[1].i}, 2);
    return TS_OK;
}

/** (grad, self, mean, var, weight?, ...) -> (dx, dw, db). The statistics have n sizes `sizes`; eps:
 *  index of that argument. */
static ts_status infer_backward(ts_frame *f, const int64_t *sizes, int n, int eps)
{
    const ts_tensor *t = f->args[1].t;
    TS_TRY(ts_check_sizes(f, 0, t->sizes, t->ndim));
    TS_TRY(check_parameter(f, 2, 1, sizes, n));
    TS_TRY(check_parameter(f, 3, 1, sizes, n));
    TS_TRY(check_parameter(f, 4, 1, &t->sizes[1], 1));
    TS_TRY(ts_check_eps(f, eps));
    ts_plan_like(f->plan, t);
    f->plan->cast = 1;
    ts_dtype dtype =
        (ts_dtype)(f->args[4].tag == TS_TAG_TENSOR ? f->args[4].t->dtype : t->dtype);
    for (int i = 1; i < 3; i++)
        ts_plan_result(f->plan, i, &t->sizes[1], 1, dtype, t->storage->device);
    ts_plan_layout(f, 1, 3, 1);
    return TS_OK;
}

/** Shape rule of batch_norm_backward and of batch_norm_relu_backward, which also has a bias
 *  (argument 5). */
ts_status ts_infer_batch_norm_backward(ts_frame *f)
{
    bool relu = f->op == TS_OP_batch_norm_relu_backward;
    TS_TRY(check_image(f, 1));
    if (relu)
        TS_TRY(check_parameter(f, 5, 1, &f->args[1].t->sizes[1], 1));
    return infer_backward(f, &f->args[1].t->sizes[1], 1, 5 + relu);
}

ts_status ts_infer_group_norm_backward(ts_frame *f)
{
    const ts_tensor *t = f->args[1].t;
    TS_TRY(check_image(f, 1));
    TS_TRY(check_groups(f, 5, t));
    return infer_backward(f, (int64_t[]){t->sizes[0], f->args[5].i}, 2, 6);
}

/** (running_mean, running_var, mean, var, count, momentum) */
ts_status ts_infer_batch_norm_update(ts_frame *f)
{
    const ts_tensor *t = f->args[0].t;
    TS_TRY(ts_check_one_device(f));
    TS_TRY(ts_check_ndim(f, 0, 1));
    for (int i = 0; i < 4; i++) {
        TS_TRY(ts_check_float(f, i));
        TS_TRY(ts_check_sizes(f, i, t->sizes, 1));
        if (i < 2 && !(f->args[i].t->flags & TS_TENSOR_CONTIGUOUS))
            return ts_fail_arg(f, i, TS_ERR_SHAPE, "expected a contiguous tensor, got strides %s",
                               TS_LIST_TEXT(f->args[i].t->strides, f->args[i].t->ndim));
    }
    if (f->args[4].i < 2)
        return ts_fail_arg(f, 4, TS_ERR_VALUE, "expected 2 elements or more, got %lld",
                           (long long)f->args[4].i);
    double momentum = f->args[5].d;
    if (!(momentum >= 0 && momentum <= 1))
        return ts_fail_arg(f, 5, TS_ERR_VALUE, "expected 0 to 1, got %g", momentum);
    f->plan->compute = t->dtype;
    return TS_OK;
}

/* ------------------------------------------------------------------------------ by parts ---- */

/** Returns a parameter or statistic as (samples, groups, C / groups or 1, 1) in dtype, so that it
 * broadcasts against (N, groups, C / groups, positions). */
static ts_tensor *against_groups(ts_tensor *t, int64_t samples, int64_t groups, ts_dtype dtype)
{
    int64_t sets = samples * groups, rest = t && sets ? t->numel / sets : 1;
    return ts_reshape(ts_as(t, dtype), TS_SIZES(samples, groups, rest, 1));
}

/**
 * With z = (x - mean) rstd and h = g w: dx = rstd (h - mean(h) - z mean(h z)), or rstd h if the
 * statistics are constant; dw = sum(g z), db = sum(g). Computed on tensors that are reshaped to
 * (N, groups, C / groups, positions). batch: statistics are over N as well.
 */
static ts_status backward_parts(ts_frame *f, int64_t groups, bool batch, double eps, bool constant)
{
    TS_SCOPE;
    static const int64_t of_batch[] = {0, 2, 3}, of_group[] = {2, 3}, of_channel[] = {0, 3};
    const ts_value *args = f->args;
    const ts_tensor *t = args[1].t;
    ts_dtype dtype = ts_widened_dtype(f->plan->compute);
    int64_t width = t->sizes[1] / ts_max64(groups, 1), samples = batch ? 1 : t->sizes[0],
            positions = 1;
    for (int d = 2; d < t->ndim; d++)
        positions *= t->sizes[d];
    int64_t sizes[] = {t->sizes[0], groups, width, positions};
    ts_tensor *g = ts_reshape(ts_as(args[0].t, dtype), sizes, 4),
              *x = ts_reshape(ts_as(args[1].t, dtype), sizes, 4),
              *mean = against_groups(args[2].t, samples, groups, dtype),
              *rstd = ts_rsqrt(
                  ts_add_scalar(against_groups(args[3].t, samples, groups, dtype), eps)),
              *z = ts_mul(ts_sub(x, mean), rstd), *results[3] = {NULL, NULL, NULL};
    const int64_t *dims = batch ? of_batch : of_group;
    int n = batch ? 3 : 2;
    if (f->want & 1) {
        ts_tensor *h = args[4].tag == TS_TAG_TENSOR
                           ? ts_mul(g, against_groups(args[4].t, 1, groups, dtype))
                           : g;
        ts_tensor *part = h;
        if (!constant && t->numel)
            part = ts_sub(ts_sub(h, ts_mean_dims(h, dims, n, true)),
                          ts_mul(z, ts_mean_dims(ts_mul(h, z), dims, n, true)));
        results[0] = ts_reshape(ts_mul(rstd, part), t->sizes, t->ndim);
    }
    for (int i = 1; i < 3; i++)
        if (f->want >> i & 1)
            results[i] = ts_reshape(ts_sum_dims(i == 1 ? ts_mul(g, z) : g, of_channel, 2, false),
                                    &t->sizes[1], 1);
    return ts_parts_give(f, results, 3);
}

ts_status ts_composite_batch_norm_backward(ts_frame *f)
{
    return backward_parts(f, f->args[1].t->sizes[1], true, f->args[5].d, f->args[6].i);
}
ts_status ts_composite_group_norm_backward(ts_frame *f)
{
    return backward_parts(f, f->args[5].i, false, f->args[6].d, false);
}

ts_status ts_composite_batch_norm_relu(ts_frame *f)
{
    TS_SCOPE;
    ts_tensor *results[3] = {NULL};
    ts_tensor **outs[] = {NULL, f->want & 2 ? &results[1] : NULL, f->want & 4 ? &results[2] : NULL};
    results[0] = ts_invoke_many(TS_OP_batch_norm, f->args, f->nargs, 3, outs);
    TS_TRY(results[0]);
    if (f->want & 1)
        results[0] = ts_relu(results[0]);
    return ts_parts_give(f, results, 3);
}

/** The mask of relu depends on y without its history, because the mask's derivative is 0. */
ts_status ts_composite_batch_norm_relu_backward(ts_frame *f)
{
    TS_SCOPE;
    const ts_value *a = f->args;
    ts_value forward[] = {a[1], a[2], a[3], a[4], a[5], a[6]};
    ts_tensor *results[3] = {NULL}, *y, *weight = a[4].tag == TS_TAG_TENSOR ? a[4].t : TS_NONE;
    TS_TRY(y = ts_invoke_many(TS_OP_batch_norm, forward, TS_N(forward), 3,
                              (ts_tensor **[]){NULL, NULL, NULL}));
    results[0] = ts_batch_norm_backward(ts_threshold_backward(a[0].t, ts_detach(y), 0), a[1].t,
                                        a[2].t, a[3].t, weight, a[6].d, a[7].i,
                                        f->want & 2 ? &results[1] : NULL,
                                        f->want & 4 ? &results[2] : NULL);
    TS_TRY(results[0]);
    return ts_parts_give(f, results, 3);
}

/* -------------------------------------------------------------------------- public forms ---- */

/** A call of a public function, for errors that name its arguments. */
typedef struct caller {
    const char *op;
    const void *site;
    const ts_tensor *self;
} caller;

/** Checks self of a call. */
static ts_status check_self(const caller *c)
{
    const ts_tensor *t = c->self;
    if (!ts_tensor_ok(t, c->op, "self", c->site))
        return ts_error_code();
    if (!ts_dtype_is_float((ts_dtype)t->dtype))
        return ts_fail_op(TS_ERR_DTYPE, c->op, c->site, "cast with ts_to()",
                          "argument 'self': expected a floating dtype, got %s",
                          ts_dtype_name((ts_dtype)t->dtype));
    return t->ndim >= 2 ? TS_OK
                        : ts_fail_op(TS_ERR_SHAPE, c->op, c->site, NULL,
                                     "argument 'self': expected 2 dims at least, (N, C, ...), got "
                                     "sizes %s", TS_SIZES_TEXT(t));
}

/** Checks that none of n optional tensors is NULL. */
static ts_status check_given(const caller *c, ts_tensor *const *t, const char *const *names, int n)
{
    for (int i = 0; i < n; i++)
        if (!ts_is_none(t[i]) && !ts_tensor_ok(t[i], c->op, names[i], c->site))
            return ts_error_code();
    return TS_OK;
}

/** Checks that t, argument `name`, has size C and self's device and, unless `any`, self's dtype or
 *  the dtype that its arithmetic uses; with `any` a floating dtype. */
static ts_status check_channels(const caller *c, const ts_tensor *t, const char *name, bool any)
{
    const ts_tensor *self = c->self;
    ts_dtype want = (ts_dtype)self->dtype, got = (ts_dtype)t->dtype;
    if (t->ndim != 1 || t->sizes[0] != self->sizes[1])
        return ts_fail_op(TS_ERR_SHAPE, c->op, c->site, NULL,
                          "argument '%s': expected sizes (%lld), got %s", name,
                          (long long)self->sizes[1], TS_SIZES_TEXT(t));
    if (!ts_same_device(t->device, self->device))
        return ts_fail_op(TS_ERR_DEVICE, c->op, c->site, ts_move_hint(t->device, self->device),
                          "argument '%s': expected device %s as argument 'self', got %s", name,
                          ts_device_name(self->device), ts_device_name(t->device));
    if (any ? ts_dtype_is_float(got) : got == want || got == ts_widened_dtype(want))
        return TS_OK;
    return any ? ts_fail_op(TS_ERR_DTYPE, c->op, c->site, "cast with ts_to()",
                            "argument '%s': expected a floating dtype, got %s", name,
                            ts_dtype_name(got))
               : ts_fail_op(TS_ERR_DTYPE, c->op, c->site, "cast with ts_to()",
                            "argument '%s': expected dtype %s as argument 'self', got %s", name,
                            ts_dtype_name(want), ts_dtype_name(got));
}

/** Checks running_mean and running_var. In training both may be TS_NONE. */
static ts_status check_running(const caller *c, ts_tensor *const *running, bool training)
{
    static const char *const names[] = {"running_mean", "running_var"};
    for (int i = 0; i < 2; i++) {
        const ts_tensor *t = running[i];
        if (ts_is_none(t) && (!training || !ts_is_none(running[1 - i])))
            return ts_fail_op(TS_ERR_NULL, c->op, c->site, NULL,
                              "argument '%s': expected a tensor %s, got TS_NONE", names[i],
                              training ? i ? "as argument 'running_mean'"
                                           : "as argument 'running_var'"
                                       : "in evaluation");
        if (ts_is_none(t))
            continue;
        TS_TRY(check_channels(c, t, names[i], training));
        if (training && !(t->flags & TS_TENSOR_CONTIGUOUS))
            return ts_fail_op(TS_ERR_SHAPE, c->op, c->site, NULL,
                              "argument '%s': expected a contiguous tensor, got strides %s",
                              names[i], TS_LIST_TEXT(t->strides, t->ndim));
    }
    return TS_OK;
}

/** Calls `op`, which is batch_norm or batch_norm_relu. If training, updates the running statistics,
 *  unless they are TS_NONE. Inlined, so that ts_invoke_many() sees the caller's return address. */
TS_INLINE ts_tensor *normalise(int op, const void *site, ts_tensor *self, ts_tensor *running_mean,
                               ts_tensor *running_var, ts_tensor *weight, ts_tensor *bias,
                               bool training, double momentum, double eps)
{
    const caller c = {ts_op_name(op), site, self};
    static const char *const names[] = {"running_mean", "running_var", "weight", "bias"};
    ts_tensor *const given[] = {running_mean, running_var, weight, bias};
    TS_TRY_NULL(check_self(&c));
    TS_TRY_NULL(check_given(&c, given, names, TS_COUNTOF(given)));
    TS_TRY_NULL(check_running(&c, given, training));
    bool track = training && !ts_is_none(running_mean);
    if (track && !(momentum >= 0 && momentum <= 1)) {
        ts_fail_op(TS_ERR_VALUE, c.op, site, NULL,
                   "argument 'momentum': expected 0 to 1, got %g", momentum);
        return NULL;
    }
    TS_SCOPE;
    ts_tensor *mean = NULL, *var = NULL;
    ts_value none = ts_value_none();
    ts_value args[] = {V_T(self), training ? none : V_T(running_mean),
                       training ? none : V_T(running_var), V_OPT(weight), V_OPT(bias), V_F(eps)};
    ts_tensor **outs[] = {NULL, track ? &mean : NULL, track ? &var : NULL};
    ts_tensor *y = ts_invoke_many(op, args, TS_N(args), 3, outs);
    if (y && track && self->numel) {
        ts_value update[] = {V_T(running_mean), V_T(running_var), V_T(mean), V_T(var),
                             V_I(self->numel / self->sizes[1]), V_F(momentum)};
        TS_TRY_NULL(ts_invoke_status(TS_OP_batch_norm_update, update, TS_N(update)));
    }
    return ts_keep(y);
}

ts_tensor *ts_batch_norm(ts_tensor *self, ts_tensor *running_mean, ts_tensor *running_var,
                         ts_tensor *weight, ts_tensor *bias, bool training, double momentum,
                         double eps)
{
    return normalise(TS_OP_batch_norm, __builtin_return_address(0), self, running_mean, running_var,
                     weight, bias, training, momentum, eps);
}

ts_tensor *ts_batch_norm_relu(ts_tensor *self, ts_tensor *running_mean, ts_tensor *running_var,
                              ts_tensor *weight, ts_tensor *bias, bool training, double momentum,
                              double eps)
{
    return normalise(TS_OP_batch_norm_relu, __builtin_return_address(0), self, running_mean,
                     running_var, weight, bias, training, momentum, eps);
}

ts_tensor *ts_instance_norm(ts_tensor *self, ts_tensor *weight, ts_tensor *bias, double eps)
{
    const caller c = {"instance_norm", __builtin_return_address(0), self};
    ts_tensor *const parameters[] = {weight, bias};
    static const char *const names[] = {"weight", "bias"};
    TS_TRY_NULL(check_self(&c));
    TS_TRY_NULL(check_given(&c, parameters, names, TS_COUNTOF(parameters)));
    for (int i = 0; i < 2; i++)
        if (!ts_is_none(parameters[i]))
            TS_TRY_NULL(check_channels(&c, parameters[i], names[i], false));
    if (!(eps >= 0 && eps <= DBL_MAX)) {
        ts_fail_op(TS_ERR_VALUE, c.op, c.site, NULL,
                   "argument 'eps': expected a finite number from 0, got %g", eps);
        return NULL;
    }
    /* in autocast regions PyTorch runs group norm in f32, but instance norm in self's dtype */
    TS_KEEP_MODES;
    ts_thread_self()->exclude |= TS_KEYSET(TS_KEY_AUTOCAST);
    return ts_group_norm(self, ts_max64(self->sizes[1], 1), weight, bias, eps);
}
