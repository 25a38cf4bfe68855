/**
 * @file arg.c  Extremes with their indices. The plan treats self as (outer, count, inner), where
 * count is the searched dim.
 */
// SPDX-License-Identifier: MIT
#include "include/tessera/ops.h"
#include "ops/ops.h"

/* ------------------------------------------------------------------------------- rules ---- */

/** Arguments: self, dim, keepdim. An absent dim means all elements, as one dim. */
ts_status ts_infer_arg(ts_frame *f)
{
    const ts_tensor *t = f->args[0].t;
    ts_plan *plan = f->plan;
    int64_t first = 0, last = t->ndim;
    int n = 0;
    if (f->args[1].tag != TS_TAG_NONE) {
        TS_TRY(ts_check_dim(f, 1, f->args[1].i, t->ndim, &first));
        last = first + 1;
    }
    ts_plan_split(plan, t, first, last);
    for (int d = 0; d < t->ndim; d++) {
        bool gone = d >= first && d < last;
        if (!gone || f->args[2].i)
            plan->buffer[0][n++] = gone ? 1 : t->sizes[d];
    }
    if (plan->count == 0)
        return ts_fail_arg(f, 0, TS_ERR_SHAPE,
                           "expected at least one element to choose from, got sizes %s",
                           TS_SIZES_TEXT(t));
    plan->compute = (ts_dtype)t->dtype;
    plan->ret[0] = ts_meta_of(plan->buffer[0], TS_I64, t->storage->device, n, 0);
    return TS_OK;
}

/** Like ts_infer_arg(), with the results (values, indices). */
ts_status ts_infer_extreme_dim(ts_frame *f)
{
    TS_TRY(ts_infer_arg(f));
    f->plan->ret[1] = f->plan->ret[0];
    f->plan->ret[0].dtype = f->plan->compute;
    return TS_OK;
}
