/**
 * @file parts.h  Functions shared by composites: compute dtype and return of results.
 *
 * A composite may run on a backend without the op's kernel, or with AUTOGRAD on instead of a fused
 * kernel (BY_PARTS). Its arguments have passed the op's shape rule, whose plan it may read; it
 * keeps results in its own scope until all are complete.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_OPS_PARTS_H
#define TS_OPS_PARTS_H

#include "include/tessera/ops.h"
#include "ops/ops.h"

/** t in a dtype; NULL travels through. */
TS_INLINE ts_tensor *ts_as(ts_tensor *t, ts_dtype dtype)
{
    return t && t->dtype != dtype ? ts_to(t, dtype) : t;
}

/** sigmoid(x) for gradients of gradients: 1 - sigmoid(-x) above 0, since the slope y (1 - y) of a
 * result y near 1 has lost its digits. */
TS_INLINE ts_tensor *ts_logistic(ts_tensor *x)
{
    ts_tensor *above = ts_rsub_scalar(ts_sigmoid(ts_neg(x)), 1);
    return ts_where(ts_gt_scalar(x, 0), above, ts_sigmoid(x));
}

/** t, or a contiguous copy; NULL travels through. */
TS_INLINE ts_tensor *ts_as_contiguous(ts_tensor *t)
{
    return t && !(t->flags & TS_TENSOR_CONTIGUOUS) ? ts_clone(t) : t;
}

/** The wanted ones of n results go to the frame, in the plan's dtypes, contiguous unless the plan
 * has an order of dims for them; a NULL among them means failed. */
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
