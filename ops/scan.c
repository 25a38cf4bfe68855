/**
 * @file scan.c  Cumulative sums. The plan treats self as (outer, count, inner), where count is the
 * summed dim.
 */
// SPDX-License-Identifier: MIT
#include "include/tessera/ops.h"
#include "ops/ops.h"

/** Integers and bool are summed in i64, as by ts_sum(). */
ts_status ts_infer_cumsum(ts_frame *f)
{
    const ts_tensor *t = f->args[0].t;
    ts_plan *plan = f->plan;
    ts_dtype dtype = ts_dtype_is_float((ts_dtype)t->dtype) ? (ts_dtype)t->dtype : TS_I64;
    int64_t dim;
    TS_TRY(ts_check_dim(f, 1, f->args[1].i, t->ndim, &dim));
    ts_plan_split(plan, t, dim, dim + 1);
    plan->compute = dtype;
    plan->cast = 1;
    plan->operands = 1; /* bit 0: the result may be self */
    ts_plan_result_like(plan, 0, t, dtype);
    return TS_OK;
}
