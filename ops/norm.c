/** @file norm.c  Layer and RMS normalisation. The plan has plan->outer rows of plan->count
 * elements. */
// SPDX-License-Identifier: MIT
#include "include/tessera/check.h"
#include "ops/parts.h"

#include <float.h>

/* ------------------------------------------------------------------------------- rules ---- */

/** Checks optional argument `arg`: the dtype of argument `self`, and the sizes of its n dims
 * starting at dim `first`. */
static ts_status check_dims(ts_frame *f, int arg, int self, int first, int n)
{
    if (f->args[arg].tag != TS_TAG_TENSOR)
        return TS_OK;
    TS_TRY(ts_check_sizes(f, arg, f->args[self].t->sizes + first, n));
    return ts_check_dtype_as(f, arg, self, "cast with ts_to()");
}

/** Plans result i with one value per row: t's sizes, with size 1 in the last `last` dims. */
static void plan_statistic(ts_plan *plan, int i, const ts_tensor *t, int last)
{
    for (int d = 0; d < t->ndim; d++)
        plan->buffer[i][d] = d < t->ndim - last ? t->sizes[d] : 1;
    plan->ret[i] = ts_meta_of(plan->buffer[i], ts_widened_dtype((ts_dtype)t->dtype),
                             t->storage->device, t->ndim, 0);
}

/** (self, residual, dims, affine ...) -> (result, sums, statistics ...). terms: 2, or 1 for an op
 * without residual and sums. affine: number of affine arguments. */
static ts_status infer_norm(ts_frame *f, int terms, int affine)
{
    const ts_tensor *t = f->args[0].t;
    int64_t last = f->args[terms].i;
    TS_TRY(ts_check_float(f, 0));
    for (int i = 1; i < terms; i++)
        TS_TRY(check_dims(f, i, 0, 0, t->ndim));
    if (last < 1 || last > t->ndim)
        return ts_fail_arg(f, terms, TS_ERR_SHAPE, "expected 1 to %d normalised dims, got %lld",
                           t->ndim, (long long)last);
    for (int i = terms + 1; i <= terms + affine; i++)
        TS_TRY(check_dims(f, i, 0, t->ndim - (int)last, (int)last));
    TS_TRY(ts_check_one_device(f));
    TS_TRY(ts_check_eps(f, f->nargs - 1));
    ts_plan_split(f->plan, t, t->ndim - last, t->ndim);
    ts_plan_like(f->plan, t);
    f->plan->rows = (uint8_t)last;
    f->plan->ret[terms - 1] = f->plan->ret[0];
    for (int i = terms; i < f->nrets; i++)
        plan_statistic(f->plan, i, t, (int)last);
    return TS_OK;
}

ts_status ts_infer_layer_norm(ts_frame *f) { return infer_norm(f, 1, 2); }
ts_status ts_infer_add_layer_norm(ts_frame *f) { return infer_norm(f, 2, 2); }
ts_status ts_infer_rms_norm(ts_frame *f) { return infer_norm(f, 1, 1); }

/** (grad, self, statistics ..., weight?, dims) -> (dx, dw, ...) */
static ts_status infer_backward(ts_frame *f, int statistics)
{
    const ts_tensor *t = f->args[1].t;
    int64_t last = f->args[3 + statistics].i, one[TS_MAX_DIMS];
    TS_TRY(ts_check_float(f, 1));
    if (last < 1 || last > t->ndim)
        return ts_fail_arg(f, 3 + statistics, TS_ERR_SHAPE,
                           "expected 1 to %d normalised dims, got %lld", t->ndim, (long long)last);
    for (int d = 0; d < t->ndim; d++)
        one[d] = d < t->ndim - last ? t->sizes[d] : 1;
    TS_TRY(ts_check_sizes(f, 0, t->sizes, t->ndim));
    for (int i = 2; i < 2 + statistics; i++)
        TS_TRY(ts_check_sizes(f, i, one, t->ndim));
    TS_TRY(check_dims(f, 2 + statistics, 1, t->ndim - (int)last, (int)last));
    TS_TRY(ts_check_one_device(f));
    ts_plan_like(f->plan, t);
    /* for bf16 and f16, statistics are f32; a cast would round them */
    f->plan->cast = ts_widened_dtype(f->plan->compute) == f->plan->compute
                        ? (uint16_t)((1u << (2 + statistics)) - 1)
                        : 3;
    ts_plan_split(f->plan, t, t->ndim - last, t->ndim);
    f->plan->rows = (uint8_t)last | TS_ROWS_SUMMED;
    for (int i = 1; i < f->nrets; i++)
        f->plan->ret[i] = ts_meta_of(t->sizes + t->ndim - last, (ts_dtype)t->dtype,
                                    t->storage->device, (int)last, 0);
    return TS_OK;
}

ts_status ts_infer_layer_norm_backward(ts_frame *f) { return infer_backward(f, 2); }
ts_status ts_infer_rms_norm_backward(ts_frame *f) { return infer_backward(f, 1); }

/* ------------------------------------------------------------------------------ by parts ---- */

/** Layer norm of the sum, which is rounded to the arguments' dtype first. */
ts_status ts_composite_add_layer_norm(ts_frame *f)
{
    TS_SCOPE;
    ts_tensor *results[4] = {NULL, ts_add(f->args[0].t, f->args[1].t), NULL, NULL},
              **outs[3] = {NULL, &results[2], &results[3]};
    ts_value norm[] = {V_T(results[1]), f->args[2], f->args[3], f->args[4], f->args[5]};
    results[0] = ts_invoke_many(TS_OP_layer_norm, norm, TS_N(norm), 3, outs);
    return ts_parts_give(f, results, 4);
}

/** Mean over the last dims, which stay with size 1. */
static ts_tensor *row_mean(ts_tensor *t, int dims)
{
    static const int64_t last[] = {-1, -2, -3, -4, -5, -6, -7, -8};
    return ts_mean_dims(t, last, dims, true);
}

/**
 * With hat = (x - mean) rstd and gw = g w: dx = rstd (gw - mean(gw) - hat mean(gw hat)), dw = sum(g
 * hat), db = sum(g). RMS normalisation has no mean and leaves these terms out.
 */
static ts_status backward_parts(ts_frame *f, int rstd_arg)
{
    TS_SCOPE;
    ts_dtype dtype = ts_widened_dtype(f->plan->compute);
    const ts_value *args = f->args;
    bool centred = rstd_arg == 3;
    ts_tensor *g = ts_as(args[0].t, dtype), *x = ts_as(args[1].t, dtype),
              *rstd = ts_as(args[rstd_arg].t, dtype);
    ts_tensor *hat = ts_mul(centred ? ts_sub(x, ts_as(args[2].t, dtype)) : x, rstd);
    const ts_value *weight = &args[rstd_arg + 1];
    int dims = (int)args[rstd_arg + 2].i;
    ts_tensor *results[3] = {NULL, NULL, NULL};
    if (f->want & 1) {
        ts_tensor *gw = weight->tag == TS_TAG_TENSOR ? ts_mul(g, ts_as(weight->t, dtype)) : g;
        ts_tensor *part = centred ? ts_sub(gw, row_mean(gw, dims)) : gw;
        results[0] = ts_mul(rstd, ts_sub(part, ts_mul(hat, row_mean(ts_mul(gw, hat), dims))));
    }
    for (int i = 1; i < f->nrets; i++)
        if (f->want >> i & 1)
            results[i] = ts_sum_to_size(i == 1 ? ts_mul(g, hat) : g, f->plan->ret[i].sizes, dims);
    return ts_parts_give(f, results, f->nrets);
}

ts_status ts_composite_layer_norm_backward(ts_frame *f) { return backward_parts(f, 3); }
ts_status ts_composite_rms_norm_backward(ts_frame *f) { return backward_parts(f, 2); }

/* -------------------------------------------------------------------------- public forms ---- */

/** The number of normalised dims: the ndim of weight or bias; 1 without them. */
TS_INLINE int affine_dims(const ts_tensor *weight, const ts_tensor *bias)
{
    if (weight && !ts_is_none(weight))
        return weight->ndim;
    return bias && !ts_is_none(bias) ? bias->ndim : 1;
}

ts_tensor *ts_layer_norm(ts_tensor *self, ts_tensor *weight, ts_tensor *bias)
{
    ts_value args[] = {V_T(self), V_I(affine_dims(weight, bias)), V_OPT(weight), V_OPT(bias),
                       V_F(1e-5)};
    return ts_invoke(TS_OP_layer_norm, args, TS_N(args), 3);
}

ts_tensor *ts_layer_norm_ex(ts_tensor *self, ts_tensor *weight, ts_tensor *bias,
                            const ts_normalization_opts *opts)
{
    ts_normalization_opts o;
    TS_TRY_NULL(TS_CHECK_OPTS(&o, opts));
    int dims = o.dims ? o.dims : affine_dims(weight, bias);
    ts_value args[] = {V_T(self), V_I(dims), V_OPT(weight), V_OPT(bias), V_F(o.eps ? o.eps : 1e-5)};
    ts_tensor **outs[3] = {NULL, o.mean, o.rstd};
    return ts_invoke_many(TS_OP_layer_norm, args, TS_N(args), 3, outs);
}

ts_tensor *ts_add_layer_norm(ts_tensor *self, ts_tensor *residual, ts_tensor *weight,
                             ts_tensor *bias, ts_tensor **sum)
{
    return ts_add_layer_norm_ex(self, residual, weight, bias, sum, NULL);
}

ts_tensor *ts_add_layer_norm_ex(ts_tensor *self, ts_tensor *residual, ts_tensor *weight,
                                ts_tensor *bias, ts_tensor **sum, const ts_normalization_opts *opts)
{
    ts_normalization_opts o;
    TS_TRY_NULL(TS_CHECK_OPTS(&o, opts));
    int dims = o.dims ? o.dims : affine_dims(weight, bias);
    ts_value args[] = {V_T(self), V_T(residual), V_I(dims), V_OPT(weight), V_OPT(bias),
                       V_F(o.eps ? o.eps : 1e-5)};
    ts_tensor **outs[4] = {NULL, sum, o.mean, o.rstd};
    return ts_invoke_many(TS_OP_add_layer_norm, args, TS_N(args), 4, outs);
}

/** The default eps: the epsilon of the dtype in which the op computes, f64, or f32 for others. */
static double rms_eps(const ts_tensor *t)
{
    return t && t->dtype == TS_F64 ? DBL_EPSILON : (double)FLT_EPSILON;
}

ts_tensor *ts_rms_norm(ts_tensor *self, ts_tensor *weight)
{
    ts_value args[] = {V_T(self), V_I(affine_dims(weight, TS_NONE)), V_OPT(weight),
                       V_F(rms_eps(self))};
    return ts_invoke(TS_OP_rms_norm, args, TS_N(args), 2);
}

ts_tensor *ts_rms_norm_ex(ts_tensor *self, ts_tensor *weight, const ts_normalization_opts *opts)
{
    ts_normalization_opts o;
    TS_TRY_NULL(TS_CHECK_OPTS(&o, opts));
    int dims = o.dims ? o.dims : affine_dims(weight, TS_NONE);
    ts_value args[] = {V_T(self), V_I(dims), V_OPT(weight), V_F(o.eps ? o.eps : rms_eps(self))};
    ts_tensor **outs[2] = {NULL, o.rstd};
    return ts_invoke_many(TS_OP_rms_norm, args, TS_N(args), 2, outs);
}
