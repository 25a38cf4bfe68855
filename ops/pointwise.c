/** @file pointwise.c  Arithmetic of two and three operands with broadcasting
 * and promotion; bounds. */
// SPDX-License-Identifier: MIT
#include "include/tessera/ops.h"
#include "ops/ops.h"

/* ------------------------------------------------------------------------------- rules ---- */

ts_status ts_infer_binary(ts_frame *f) { return ts_infer_pointwise(f, 2, TS_DTYPE_NONE, false); }
ts_status ts_infer_floored(ts_frame *f) { return ts_infer_discontinuous(f, TS_DTYPE_NONE); }
ts_status ts_infer_binary_float(ts_frame *f)
{
    return ts_infer_pointwise(f, 2, TS_DTYPE_NONE, true);
}

ts_status ts_infer_pow(ts_frame *f)
{
    TS_TRY(ts_infer_pointwise(f, 2, TS_DTYPE_NONE, false));
    const ts_value *e = &f->args[1];
    if (TS_UNLIKELY(e->tag == TS_TAG_INT && e->i < 0 && !ts_dtype_is_float(f->plan->compute)))
        return ts_fail_arg_hint(f, 1, TS_ERR_VALUE, "cast self to a floating dtype with ts_to()",
                                "expected an exponent >= 0 for integers, got %lld",
                                (long long)e->i);
    return TS_OK;
}

/** A number as weight is a parameter of the kernel, a tensor its third operand. */
ts_status ts_infer_lerp(ts_frame *f)
{
    TS_TRY(ts_check_float(f, 0));
    return ts_infer_pointwise(f, f->args[2].tag == TS_TAG_TENSOR ? 3 : 2, TS_DTYPE_NONE, false);
}

ts_status ts_infer_addc(ts_frame *f) { return ts_infer_pointwise(f, 3, TS_DTYPE_NONE, false); }

/** The bounds take part in promotion like operands, but the kernel gets them as parameters. */
ts_status ts_infer_clamp(ts_frame *f)
{
    if (TS_UNLIKELY(f->args[1].tag == TS_TAG_NONE && f->args[2].tag == TS_TAG_NONE))
        return ts_fail_arg(f, 1, TS_ERR_VALUE, "expected a bound here or as 'max', got none");
    TS_TRY(ts_infer_pointwise(f, 3, TS_DTYPE_NONE, false));
    f->plan->operands = f->plan->cast = 1;
    TS_TRY(ts_check_fits(f, 1));
    return ts_check_fits(f, 2);
}
