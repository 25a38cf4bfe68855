/** @file reduce.c  Reductions over dims. */
// SPDX-License-Identifier: MIT
#include "include/tessera/ops.h"
#include "ops/ops.h"

#include <math.h>

/* ------------------------------------------------------------------------------- rules ---- */

/** Sets *mask to the bits of the dims in args[arg]; an absent or empty list means all dims. */
static ts_status dims_mask(ts_frame *f, int arg, int ndim, int64_t *mask)
{
    const ts_value *dims = &f->args[arg];
    if (dims->tag != TS_TAG_INTS || dims->count == 0) {
        *mask = ((int64_t)1 << ndim) - 1;
        return TS_OK;
    }
    *mask = 0;
    for (uint32_t i = 0; i < dims->count; i++) {
        int64_t d;
        TS_TRY(ts_check_dim(f, arg, dims->ints[i], ndim, &d));
        if (*mask >> d & 1)
            return ts_fail_arg(f, arg, TS_ERR_VALUE, "expected each dim once, got dim %lld twice",
                               (long long)d);
        *mask |= (int64_t)1 << d;
    }
    return TS_OK;
}

/** Returns plan->rows: the number of reduced dims if they are the last ones; the number of kept
 * dims with TS_ROWS_SUMMED if the reduced dims are the first ones; else 0. */
static uint8_t rows_of(const ts_tensor *t, int64_t reduced)
{
    int n = __builtin_popcountll((uint64_t)reduced);
    int64_t first = ((int64_t)1 << n) - 1;
    if (!n || n >= t->ndim)
        return 0;
    return reduced == first << (t->ndim - n) ? (uint8_t)n
           : reduced == first                ? (uint8_t)((t->ndim - n) | TS_ROWS_SUMMED)
                                             : 0;
}

/** The plan of a reduction of args[0] over the dims in args[1], keepdim in args[2]. */
static ts_status plan_dims(ts_frame *f, ts_dtype compute, ts_dtype result)
{
    const ts_tensor *t = f->args[0].t;
    ts_plan *plan = f->plan;
    bool keep = f->args[2].i;
    TS_TRY(dims_mask(f, 1, t->ndim, &plan->reduced));
    plan->share = NULL;
    int n = 0;
    for (int d = 0; d < t->ndim; d++) {
        if (!(plan->reduced >> d & 1))
            plan->buffer[0][n++] = t->sizes[d];
        else if (keep)
            plan->buffer[0][n++] = 1;
    }
    plan->ret[0] = ts_meta_of(plan->buffer[0], result, t->storage->device, n, 0);
    plan->compute = compute;
    plan->cast = 1;
    plan->strided = 1;
    plan->rows = rows_of(t, plan->reduced);
    return TS_OK;
}

/** Integers and bool are summed and multiplied in i64. */
ts_status ts_infer_sum(ts_frame *f)
{
    ts_dtype d = (ts_dtype)f->args[0].t->dtype;
    d = ts_dtype_is_float(d) ? d : TS_I64;
    return plan_dims(f, d, d);
}

ts_status ts_infer_mean(ts_frame *f)
{
    ts_dtype d = (ts_dtype)f->args[0].t->dtype;
    TS_TRY(ts_check_float(f, 0));
    return plan_dims(f, d, d);
}

ts_status ts_infer_extreme(ts_frame *f)
{
    const ts_tensor *t = f->args[0].t;
    TS_TRY(plan_dims(f, (ts_dtype)t->dtype, (ts_dtype)t->dtype));
    for (int d = 0; d < t->ndim; d++)
        if ((f->plan->reduced >> d & 1) && t->sizes[d] == 0)
            return ts_fail_arg(f, 0, TS_ERR_SHAPE,
                               "expected at least one element in dim %d, got sizes %s", d,
                               TS_SIZES_TEXT(t));
    return TS_OK;
}

ts_status ts_infer_truth(ts_frame *f)
{
    return plan_dims(f, (ts_dtype)f->args[0].t->dtype, TS_BOOL);
}

/** norm(self, dims, keepdim, p) */
ts_status ts_infer_norm(ts_frame *f)
{
    double p = f->args[3].d;
    if (!(p == 1 || p == 2 || p == (double)INFINITY))
        return ts_fail_arg(f, 3, TS_ERR_VALUE, "expected 1, 2 or infinity, got %g", p);
    TS_TRY(ts_infer_mean(f));
    return p == (double)INFINITY ? ts_infer_extreme(f) : TS_OK;
}

ts_status ts_infer_sum_to_size(ts_frame *f)
{
    const ts_tensor *t = f->args[0].t;
    const ts_value *sizes = &f->args[1];
    int n = (int)sizes->count, shift = t->ndim - n;
    bool fits = sizes->count <= TS_MAX_DIMS && shift >= 0;
    for (int d = 0; fits && d < n; d++)
        fits = sizes->ints[d] == t->sizes[d + shift] || sizes->ints[d] == 1;
    if (!fits)
        return ts_fail_arg(f, 1, TS_ERR_SHAPE, "expected sizes that broadcast to %s, got %s",
                           TS_SIZES_TEXT(t), TS_LIST_TEXT(sizes->ints, n));
    ts_dtype dtype = ts_dtype_is_float((ts_dtype)t->dtype) ? (ts_dtype)t->dtype : TS_I64;
    f->plan->compute = dtype;
    f->plan->cast = f->plan->strided = 1;
    f->plan->reduced = 0;
    f->plan->share = NULL;
    for (int d = 0; d < t->ndim; d++)
        if (d < shift || sizes->ints[d - shift] != t->sizes[d])
            f->plan->reduced |= (int64_t)1 << d;
    /* if the rows stay, argument `sizes` contains their number, so the op does not work by rows */
    uint8_t rows = rows_of(t, f->plan->reduced);
    f->plan->rows = rows & TS_ROWS_SUMMED ? rows : 0;
    ts_plan_result(f->plan, 0, sizes->ints, n, dtype, t->storage->device);
    return TS_OK;
}

/** unreduce(self, sizes, dims): a view of a reduced tensor, broadcast over the reduced dims. */
ts_status ts_infer_unreduce(ts_frame *f)
{
    const ts_tensor *t = f->args[0].t;
    const ts_value *to = &f->args[1];
    int64_t mask, strides[TS_MAX_DIMS], numel;
    int n = (int)to->count;
    if (to->count > TS_MAX_DIMS || !ts_product(to->ints, n, &numel))
        return ts_fail_arg(f, 1, TS_ERR_SHAPE, "expected at most %d sizes of 0 or more, got %s",
                           TS_MAX_DIMS, TS_LIST_TEXT(to->ints, to->count));
    TS_TRY(dims_mask(f, 2, n, &mask));
    bool kept = t->ndim == n, fits = kept || t->ndim == n - __builtin_popcountll((uint64_t)mask);
    for (int d = 0, s = 0; fits && d < n; d++) {
        strides[d] = 0;
        if ((mask >> d & 1) && !kept)
            continue;
        fits = t->sizes[s] == to->ints[d] || t->sizes[s] == 1;
        strides[d] = t->sizes[s] == to->ints[d] ? t->strides[s] : 0;
        s++;
    }
    if (!fits)
        return ts_fail_arg(f, 0, TS_ERR_SHAPE,
                           "expected the result of a reduction of sizes %s, got sizes %s",
                           TS_LIST_TEXT(to->ints, n), TS_SIZES_TEXT(t));
    return ts_give_alias(f, 0, to->ints, strides, n, 0);
}
