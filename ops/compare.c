/** @file compare.c  Comparisons, tests, and selection by a bool tensor. */
// SPDX-License-Identifier: MIT
#include "include/tessera/ops.h"
#include "ops/ops.h"

ts_status ts_infer_compare(ts_frame *f)
{
    TS_TRY(ts_infer_discontinuous(f, TS_BOOL));
    TS_TRY(ts_check_fits(f, 0)); /* a number outside the dtype would wrap before the comparison */
    return ts_check_fits(f, 1);
}
ts_status ts_infer_test(ts_frame *f) { return ts_infer_pointwise(f, 1, TS_BOOL, false); }

static ts_status check_bool(ts_frame *f, int arg)
{
    ts_dtype dtype = (ts_dtype)f->args[arg].t->dtype;
    if (TS_LIKELY(dtype == TS_BOOL))
        return TS_OK;
    return ts_fail_arg_hint(f, arg, TS_ERR_DTYPE, "compare with ts_ne_scalar(t, 0)",
                            "expected bool, got %s", ts_dtype_name(dtype));
}

ts_status ts_infer_where(ts_frame *f)
{
    TS_TRY(check_bool(f, 0));
    return ts_infer_pointwise_typed(f, 3, 1, 3, TS_DTYPE_NONE, false);
}

/** self determines the dtype; the value must fit it. */
ts_status ts_infer_masked_fill(ts_frame *f)
{
    TS_TRY(check_bool(f, 1));
    TS_TRY(ts_infer_pointwise_typed(f, 3, 0, 1, TS_DTYPE_NONE, false));
    const ts_value *v = &f->args[2];
    bool tensor = v->tag == TS_TAG_TENSOR;
    if (tensor && v->t->ndim > 0)
        return ts_fail_arg_hint(f, 2, TS_ERR_SHAPE, "use ts_where()",
                                "expected a tensor without dims, got %d dims", v->t->ndim);
    bool real = tensor ? ts_dtype_is_float((ts_dtype)v->t->dtype) : v->tag == TS_TAG_FLOAT;
    if (real && !ts_dtype_is_float(f->plan->compute))
        return ts_fail_arg(f, 2, TS_ERR_DTYPE,
                           "expected an integer for self of %s, got a floating value",
                           ts_dtype_name(f->plan->compute));
    f->plan->cast |= 1 << 2;
    return ts_check_fits(f, 2);
}
