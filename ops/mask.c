/** @file mask.c  Triangular parts, and elements selected by a mask. */
// SPDX-License-Identifier: MIT
#include "include/tessera/ops.h"
#include "ops/ops.h"

ts_status ts_infer_triangle(ts_frame *f)
{
    const ts_tensor *t = f->args[0].t;
    if (t->ndim < 2)
        return ts_fail_arg(f, 0, TS_ERR_SHAPE, "expected at least two dims, got %d", t->ndim);
    f->plan->operands = 1; /* bit 0: the result may be self */
    f->plan->strided = 1;
    ts_plan_like(f->plan, t);
    return TS_OK;
}

/** Checks that argument 1, the mask, is bool and broadcasts with self. sizes, an array of
 * TS_MAX_DIMS, and *ndim receive the broadcast sizes. */
static ts_status check_mask(ts_frame *f, int64_t *sizes, int *ndim)
{
    const ts_tensor *t = f->args[0].t, *mask = f->args[1].t;
    if (mask->dtype != TS_BOOL)
        return ts_fail_arg_hint(f, 1, TS_ERR_DTYPE, "compare, or cast with ts_to()",
                                "expected dtype bool, got %s",
                                ts_dtype_name((ts_dtype)mask->dtype));
    TS_TRY(ts_check_one_device(f));
    if (!ts_broadcast(t->sizes, t->ndim, mask->sizes, mask->ndim, sizes, ndim))
        return ts_fail_arg(f, 1, TS_ERR_SHAPE, "expected sizes that broadcast with %s, got %s",
                           TS_SIZES_TEXT(t), TS_SIZES_TEXT(mask));
    return TS_OK;
}

ts_status ts_infer_masked_select(ts_frame *f)
{
    int64_t sizes[TS_MAX_DIMS];
    int ndim;
    return check_mask(f, sizes, &ndim);
}

ts_status ts_infer_masked_scatter(ts_frame *f)
{
    const ts_tensor *t = f->args[0].t;
    int64_t sizes[TS_MAX_DIMS];
    int ndim;
    TS_TRY(check_mask(f, sizes, &ndim));
    TS_TRY(ts_check_dtype(f, 2, (ts_dtype)t->dtype));
    f->plan->compute = (ts_dtype)t->dtype;
    f->plan->strided = 3; /* self and mask, which the kernel broadcasts */
    f->plan->operands = 1; /* bit 0: the result may be self */
    ts_plan_result(f->plan, 0, sizes, ndim, (ts_dtype)t->dtype, t->storage->device);
    return TS_OK;
}
