/** @file view.c  Ops that make aliases. */
// SPDX-License-Identifier: MIT
#include "include/tessera/autograd.h"
#include "include/tessera/ops.h"
#include "ops/ops.h"

ts_status ts_infer_alias(ts_frame *f)
{
    const ts_tensor *t = f->args[0].t;
    ts_tensor *alias = ts_tensor_alias(f->thread, t, t->sizes, t->strides, t->ndim, 0);
    TS_TRY(alias);
    f->rets[0] = V_T(alias);
    return TS_OK;
}

ts_tensor *ts_detach(ts_tensor *t)
{
    ts_value args[] = {V_T(t)};
    return ts_invoke(TS_OP_detach, args, TS_N(args), 1);
}

ts_tensor *ts_contiguous(ts_tensor *t)
{
    if (t && !(t->flags & TS_TENSOR_CONTIGUOUS))
        return ts_clone(t);
    ts_value args[] = {V_T(t)};
    return ts_invoke(TS_OP_alias, args, TS_N(args), 1);
}
