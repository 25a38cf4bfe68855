/** @file softmax.c  softmax and log_softmax over one dim. */
// SPDX-License-Identifier: MIT
#include "include/tessera/ops.h"
#include "ops/ops.h"

/** Checks the dim in argument `arg` and plans it: count is its size, outer and inner are the
 * products of the sizes before and after it, rows is 1 if it is the last dim. */
static ts_status plan_dim(ts_frame *f, const ts_tensor *t, int arg)
{
    ts_plan *plan = f->plan;
    TS_TRY(ts_check_dim(f, arg, f->args[arg].i, t->ndim, &plan->dim));
    ts_plan_split(plan, t, plan->dim, plan->dim + 1);
    plan->rows = plan->dim == t->ndim - 1;
    return TS_OK;
}

/** softmax(self, dim, dtype?); self is cast to a given dtype */
ts_status ts_infer_softmax(ts_frame *f)
{
    const ts_tensor *t = f->args[0].t;
    ts_dtype dtype = (ts_dtype)t->dtype;
    if (f->args[2].tag == TS_TAG_DTYPE) {
        if (f->args[2].i < 0 || f->args[2].i >= TS_DTYPE_COUNT ||
            !ts_dtype_is_float((ts_dtype)f->args[2].i))
            return ts_fail_arg(f, 2, TS_ERR_DTYPE, "expected a floating dtype, got %s",
                               ts_dtype_name((ts_dtype)f->args[2].i));
        dtype = (ts_dtype)f->args[2].i;
        f->plan->cast = 1;
    } else {
        TS_TRY(ts_check_float(f, 0));
    }
    f->plan->compute = dtype;
    ts_plan_result_like(f->plan, 0, t, dtype);
    return plan_dim(f, t, 1);
}

/** softmax_backward(grad, result, dim); grad is cast to result's dtype */
ts_status ts_infer_softmax_backward(ts_frame *f)
{
    const ts_tensor *y = f->args[1].t;
    TS_TRY(ts_check_float(f, 1));
    TS_TRY(ts_check_sizes(f, 0, y->sizes, y->ndim));
    TS_TRY(ts_check_one_device(f));
    f->plan->cast = 1;
    ts_plan_like(f->plan, y);
    return plan_dim(f, y, 2);
}
