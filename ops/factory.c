/** @file factory.c  Ops that create tensors, such as empty, full and arange; fill. */
// SPDX-License-Identifier: MIT
#include "include/tessera/ops.h"
#include "ops/ops.h"

#include <math.h>

static TS_COLD ts_status fail_sizes(ts_frame *f, int arg)
{
    const ts_value *sizes = &f->args[arg];
    return ts_fail_arg(f, arg, TS_ERR_SHAPE, "expected sizes >= 0 whose bytes fit 63 bits, got %s",
                       TS_LIST_TEXT(sizes->ints, sizes->count));
}

ts_status ts_infer_sizes(ts_frame *f, int sizes_arg, int dtype_arg)
{
    const ts_value *sizes = &f->args[sizes_arg];
    int64_t dtype = f->args[dtype_arg].i, numel, bytes;
    if (sizes->count > TS_MAX_DIMS)
        return ts_fail_arg(f, sizes_arg, TS_ERR_SHAPE, "expected 0 to %d sizes, got %u",
                           TS_MAX_DIMS, sizes->count);
    TS_TRY(ts_check_dtype_number(f, dtype_arg));
    if (!ts_tensor_bytes(sizes->ints, (int)sizes->count, ts_dtype_sizes[dtype], &numel, &bytes))
        return fail_sizes(f, sizes_arg);
    f->plan->compute = (ts_dtype)dtype;
    f->plan->ret[0] = ts_meta_of(sizes->ints, (ts_dtype)dtype, f->args[dtype_arg + 1].device,
                                (int)sizes->count, numel);
    return TS_OK;
}

ts_status ts_infer_factory(ts_frame *f) { return ts_infer_sizes(f, 0, 1); }

ts_status ts_infer_full(ts_frame *f)
{
    f->plan->pointwise = TS_POINTWISE;
    f->plan->operands = 2; /* bit 1: argument 1, the value */
    return ts_infer_sizes(f, 0, 2);
}

ts_status ts_infer_fill(ts_frame *f)
{
    f->plan->compute = (ts_dtype)f->args[0].t->dtype;
    f->plan->strided = 1;
    return TS_OK;
}

/** Plans a new tensor of 1 or 2 dims whose sizes come from number arguments. The last two arguments
 * are dtype and device. */
static ts_status plan_new(ts_frame *f, const int64_t *sizes, int ndim)
{
    int at = f->nargs - 2;
    int64_t dtype = f->args[at].i, numel, bytes;
    TS_TRY(ts_check_dtype_number(f, at));
    if (!ts_tensor_bytes(sizes, ndim, ts_dtype_sizes[dtype], &numel, &bytes))
        return ts_fail_arg(f, 0, TS_ERR_SHAPE,
                           "expected sizes >= 0 whose bytes fit 63 bits, got %s",
                           TS_LIST_TEXT(sizes, ndim));
    f->plan->compute = (ts_dtype)dtype;
    ts_plan_result(f->plan, 0, sizes, ndim, (ts_dtype)dtype, f->args[at + 1].device);
    return TS_OK;
}

ts_status ts_infer_arange(ts_frame *f)
{
    const ts_value *v = f->args;
    double start = ts_value_number(&v[0]), end = ts_value_number(&v[1]),
           step = ts_value_number(&v[2]);
    if (!(step > 0 || step < 0))
        return ts_fail_arg(f, 2, TS_ERR_VALUE, "expected a step other than 0, got %g", step);
    if (!((step > 0 && end >= start) || (step < 0 && end <= start)))
        return ts_fail_arg(f, 1, TS_ERR_VALUE,
                           "expected an end in the direction of the step %g from %g, got %g", step,
                           start, end);
    double count = ceil((end - start) / step);
    if (!(count < 9e18))
        return ts_fail_arg(f, 1, TS_ERR_SHAPE, "expected a finite number of elements, got %g",
                           count);
    int64_t n = (int64_t)count;
    if (v[0].tag != TS_TAG_FLOAT && v[1].tag != TS_TAG_FLOAT && v[2].tag != TS_TAG_FLOAT) {
        /* exact for integers beyond 2^53: the distance of two i64 fits u64 */
        uint64_t far =
            v[2].i > 0 ? (uint64_t)v[1].i - (uint64_t)v[0].i : (uint64_t)v[0].i - (uint64_t)v[1].i;
        uint64_t by = v[2].i > 0 ? (uint64_t)v[2].i : 0 - (uint64_t)v[2].i;
        n = far ? (int64_t)((far - 1) / by + 1) : 0;
    }
    return plan_new(f, &n, 1);
}

ts_status ts_infer_linspace(ts_frame *f)
{
    if (f->args[2].i < 0)
        return ts_fail_arg(f, 2, TS_ERR_VALUE, "expected at least 0, got %lld",
                           (long long)f->args[2].i);
    return plan_new(f, &f->args[2].i, 1);
}

ts_status ts_infer_eye(ts_frame *f)
{
    int64_t sizes[2] = {f->args[0].i, f->args[1].i};
    return plan_new(f, sizes, 2);
}

ts_tensor *(ts_arange)(ts_scalar start, ts_scalar end, ts_scalar step, ts_dtype dtype)
{
    bool whole = start.kind != TS_SCALAR_FLOAT && end.kind != TS_SCALAR_FLOAT &&
                 step.kind != TS_SCALAR_FLOAT;
    ts_dtype made = dtype != TS_DTYPE_NONE ? dtype : whole ? TS_I64 : TS_F32;
    return TS_INVOKE(TS_OP_arange, V_S(start), V_S(end), V_S(step), V_DT(made),
                     V_DEV(ts_thread_self()->device));
}

ts_tensor *(ts_scalar_tensor)(ts_scalar value, ts_dtype dtype)
{
    ts_dtype made = value.kind == TS_SCALAR_FLOAT ? TS_F32
                    : value.kind == TS_SCALAR_INT ? TS_I64
                                                  : TS_BOOL;
    return (ts_full)(NULL, 0, value, dtype == TS_DTYPE_NONE ? made : dtype);
}
