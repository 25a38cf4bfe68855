/**
 * @file parts.h  Functions shared by composites: casts, and return of results.
 *
 * A composite runs on a backend that lacks the op's kernel. For a BY_PARTS op it also runs in place
 * of the fused kernel if a gradient through the op is needed; AUTOGRAD then records the composite's
 * ops. If the op has a shape rule, the rule has checked the arguments and the composite may read
 * the plan. A composite keeps its tensors in its own scope until all results are complete.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_OPS_PARTS_H
#define TS_OPS_PARTS_H

#include <float.h>

#include "include/tessera/ops.h"
#include "ops/ops.h"

/** t, cast if its dtype differs; NULL if t is NULL or the cast failed. */
TS_INLINE ts_tensor *ts_as(ts_tensor *t, ts_dtype dtype)
{
    return t && t->dtype != dtype ? ts_to(t, dtype) : t;
}

/** Number argument `arg`, which a norm adds to variances, must be finite and >= 0. TS_ERR_VALUE. */
TS_INLINE ts_status ts_check_eps(ts_frame *f, int arg)
{
    double eps = f->args[arg].d;
    return eps >= 0 && eps <= DBL_MAX
               ? TS_OK
               : ts_fail_arg(f, arg, TS_ERR_VALUE, "expected a finite number from 0, got %g", eps);
}

/** sigmoid(x) for second gradients. For x > 0 it is computed as 1 - sigmoid(-x), because the slope
 * y (1 - y) of y = sigmoid(x) cancels when y is near 1. */
TS_INLINE ts_tensor *ts_logistic(ts_tensor *x)
{
    ts_tensor *above = ts_rsub_scalar(ts_sigmoid(ts_neg(x)), 1);
    return ts_where(ts_gt_scalar(x, 0), above, ts_sigmoid(x));
}

/** t, or a contiguous copy; NULL if t is NULL or the copy failed. */
TS_INLINE ts_tensor *ts_as_contiguous(ts_tensor *t)
{
    return t && !(t->flags & TS_TENSOR_CONTIGUOUS) ? ts_contiguous(t) : t;
}

/** Stores the wanted results among results[0..n) in the frame, cast to the plan's dtypes, and
 * contiguous unless plan->ordered has the result's bit. A wanted result that is NULL is an error of
 * an earlier call, which is returned. */
TS_INLINE ts_status ts_parts_give(ts_frame *f, ts_tensor **results, int n)
{
    for (int i = 0; i < n; i++)
        if (f->want >> i & 1)
            TS_TRY(results[i] = ts_as(f->plan->ordered >> i & 1 ? results[i]
                                                                : ts_as_contiguous(results[i]),
                                      f->plan->ret[i].dtype));
    for (int i = 0; i < n; i++)
        f->rets[i] = f->want >> i & 1 ? V_T(ts_retain(results[i])) : ts_value_none();
    return TS_OK;
}

#endif
