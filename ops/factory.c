/** @file factory.c  New tensors: empty, full, fill. */
// SPDX-License-Identifier: MIT
#include "include/tessera/ops.h"
#include "ops/ops.h"

ts_status ts_infer_sizes(ts_frame *f, int sizes_arg, int dtype_arg)
{
    const ts_value *sizes = &f->args[sizes_arg];
    int64_t dtype = f->args[dtype_arg].i, numel, bytes;
    if (sizes->count > TS_MAX_DIMS || (sizes->count && !sizes->ints))
        return ts_fail_arg(f, sizes_arg, TS_ERR_SHAPE, "expected 0 to %d sizes, got %u", TS_MAX_DIMS, sizes->count);
    if (dtype < 0 || dtype >= TS_DTYPE_COUNT)
        return ts_fail_arg(f, dtype_arg, TS_ERR_DTYPE, "expected a dtype, got number %lld", (long long)dtype);
    if (f->args[dtype_arg + 1].device.backend > TS_KEY_META)
        return ts_fail_arg(f, dtype_arg + 1, TS_ERR_DEVICE, "expected a device, got backend %d",
                           f->args[dtype_arg + 1].device.backend);
    if (!ts_tensor_bytes(sizes->ints, (int)sizes->count, ts_dtype_sizes[dtype], &numel, &bytes)) {
        char got[192];
        return ts_fail_arg(f, sizes_arg, TS_ERR_SHAPE, "expected sizes >= 0 whose bytes fit 63 bits, got %s",
                           ts_format_sizes(got, sizeof got, sizes->ints, (int)sizes->count));
    }
    f->plan->compute = (ts_dtype)dtype;
    f->plan->ret[0] = (ts_meta){sizes->ints, (ts_dtype)dtype, f->args[dtype_arg + 1].device, (int)sizes->count, numel};
    return TS_OK;
}

ts_status ts_infer_factory(ts_frame *f) { return ts_infer_sizes(f, 0, 1); }

ts_status ts_infer_full(ts_frame *f)
{
    f->plan->pointwise = true;
    f->plan->operands = 2; /* the value */
    return ts_infer_sizes(f, 0, 2);
}

ts_status ts_infer_fill(ts_frame *f)
{
    f->plan->compute = (ts_dtype)f->args[0].t->dtype;
    f->plan->strided = 1;
    return TS_OK;
}

static ts_tensor *empty(const int64_t *sizes, int ndim, ts_dtype dtype, ts_device device)
{
    ts_value args[] = {V_IS(sizes, ndim), V_DT(dtype), V_DEV(device)};
    return ts_invoke(TS_OP_empty, args, TS_N(args), 1);
}

ts_tensor *ts_empty(const int64_t *sizes, int ndim, ts_dtype dtype)
{
    return empty(sizes, ndim, dtype, ts_thread_self()->device);
}

ts_tensor *ts_empty_on(const int64_t *sizes, int ndim, ts_dtype dtype, ts_device device)
{
    return empty(sizes, ndim, dtype, device);
}

static ts_tensor *full(const int64_t *sizes, int ndim, ts_scalar value, ts_dtype dtype, ts_device device)
{
    ts_value args[] = {V_IS(sizes, ndim), V_S(value), V_DT(dtype), V_DEV(device)};
    return ts_invoke(TS_OP_full, args, TS_N(args), 1);
}

ts_tensor *(ts_full)(const int64_t *sizes, int ndim, ts_scalar value, ts_dtype dtype)
{
    return full(sizes, ndim, value, dtype, ts_thread_self()->device);
}

ts_tensor *ts_zeros(const int64_t *sizes, int ndim, ts_dtype dtype)
{
    return full(sizes, ndim, ts_scalar_int(0), dtype, ts_thread_self()->device);
}

ts_tensor *ts_ones(const int64_t *sizes, int ndim, ts_dtype dtype)
{
    return full(sizes, ndim, ts_scalar_int(1), dtype, ts_thread_self()->device);
}

/** t checked, for the _like forms. */
static bool given(ts_tensor *t, const char *op)
{
    if (t && t != TS_NONE)
        return true;
    ts_fail_null(op, NULL, "t");
    return false;
}

ts_tensor *ts_empty_like(ts_tensor *t)
{
    return given(t, "empty") ? empty(t->sizes, t->ndim, (ts_dtype)t->dtype, t->storage->device) : NULL;
}

ts_tensor *(ts_full_like)(ts_tensor *t, ts_scalar value)
{
    return given(t, "full") ? full(t->sizes, t->ndim, value, (ts_dtype)t->dtype, t->storage->device) : NULL;
}

ts_tensor *ts_zeros_like(ts_tensor *t) { return (ts_full_like)(t, ts_scalar_int(0)); }
ts_tensor *ts_ones_like(ts_tensor *t) { return (ts_full_like)(t, ts_scalar_int(1)); }

ts_tensor *(ts_fill_)(ts_tensor *t, ts_scalar value)
{
    ts_value args[] = {V_T(t), V_S(value)};
    return ts_invoke_status(TS_OP_fill, args, TS_N(args)) == TS_OK ? t : NULL;
}

ts_tensor *ts_zero_(ts_tensor *t) { return (ts_fill_)(t, ts_scalar_int(0)); }
