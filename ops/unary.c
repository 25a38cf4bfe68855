/** @file unary.c  Elementary functions of one tensor. */
// SPDX-License-Identifier: MIT
#include "include/tessera/ops.h"
#include "ops/ops.h"

ts_status ts_infer_unary(ts_frame *f) { return ts_infer_pointwise(f, 1, TS_DTYPE_NONE, false); }
ts_status ts_infer_unary_float(ts_frame *f)
{
    return ts_infer_pointwise(f, 1, TS_DTYPE_NONE, true);
}
