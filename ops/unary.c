/** @file unary.c  Elementary functions of one tensor. */
// SPDX-License-Identifier: MIT
#include "include/tessera/ops.h"
#include "ops/ops.h"

ts_status ts_infer_unary(ts_frame *f) { return ts_infer_pointwise(f, 1, TS_DTYPE_NONE, false); }
ts_status ts_infer_unary_float(ts_frame *f)
{
    return ts_infer_pointwise(f, 1, TS_DTYPE_NONE, true);
}

/** The forms of a unary op: new result, in place, destination first. */
#define UNARY(name)                                                    \
    ts_tensor *ts_##name(ts_tensor *self)                              \
    {                                                                  \
        return TS_INVOKE(TS_OP_##name, V_T(self));                     \
    }                                                                  \
    ts_tensor *ts_##name##_(ts_tensor *self)                           \
    {                                                                  \
        return TS_INVOKE_OUT(self, TS_OP_##name, V_T(self));           \
    }                                                                  \
    ts_tensor *ts_##name##_out(ts_tensor *out, ts_tensor *self)        \
    {                                                                  \
        return TS_INVOKE_OUT(out, TS_OP_##name, V_T(self));            \
    }

UNARY(neg)
UNARY(abs)
UNARY(sign)
UNARY(square)
UNARY(floor)
UNARY(ceil)
UNARY(round)
UNARY(trunc)
UNARY(frac)
UNARY(exp)
UNARY(exp2)
UNARY(expm1)
UNARY(log)
UNARY(log2)
UNARY(log10)
UNARY(log1p)
UNARY(sqrt)
UNARY(rsqrt)
UNARY(reciprocal)
UNARY(sin)
UNARY(cos)
UNARY(tan)
UNARY(asin)
UNARY(acos)
UNARY(atan)
UNARY(sinh)
UNARY(cosh)
UNARY(erf)
UNARY(erfc)
