/** @file dispatch.c  noop, an op without a computation, for measurements of the call overhead. */
// SPDX-License-Identifier: MIT
#include "ops/ops.h"

ts_status ts_composite_noop(ts_frame *f)
{
    (void)f;
    return TS_OK;
}

ts_status ts_noop(ts_tensor *a, ts_tensor *b, ts_scalar c)
{
    ts_value args[] = {V_T(a), V_T(b), V_S(c)};
    return ts_invoke_status(TS_OP_noop, args, TS_N(args));
}
