/** @file pool.c  Shape rules of max pools, and the public functions of max and average pools. */
// SPDX-License-Identifier: MIT
#include "include/tessera/check.h"
#include "include/tessera/ops.h"
#include "ops/spatial.h"

ts_status ts_infer_max_pool(ts_frame *f) { return ts_infer_pool_of(f); }
ts_status ts_infer_adaptive_max_pool(ts_frame *f) { return ts_infer_pool_of(f); }

/** (grad, indices, sizes, kernel, stride, padding, dilation) -> dx */
ts_status ts_infer_max_pool_backward(ts_frame *f)
{
    TS_TRY(ts_check_sizes(f, 1, f->args[0].t->sizes, f->args[0].t->ndim));
    TS_TRY(ts_check_dtype(f, 1, TS_I64));
    return ts_infer_pool_of(f);
}

/* -------------------------------------------------------------------------- public forms ---- */

/** Checks self and opts, and copies opts to *o with defaults for 0. n: number of spatial dims;
 *  largest: the pool computes maxima, not averages. */
static ts_status read_opts(ts_pool_opts *o, const ts_pool_opts *opts, ts_tensor *self, int n,
                           bool largest, ts_check_place at)
{
    TS_TRY(ts_check_tensors(at, "self", (const ts_tensor *[]){self}, 1));
    TS_TRY(ts_check_pointers(at, "opts", (const void *const[]){opts}, 1, false));
    TS_TRY(ts_check_opts(at, "opts", o, sizeof *o, opts));
    for (int d = 0; d < TS_MAX_SPATIAL; d++) {
        const int64_t numbers[] = {o->kernel[d], o->stride[d], o->padding[d], o->dilation[d]};
        if (d >= n)
            TS_TRY(ts_check_spatial_unused(at, numbers, TS_COUNTOF(numbers)));
        o->stride[d] = o->stride[d] ? o->stride[d] : o->kernel[d];
        if (!largest && o->dilation[d] > 1)
            return ts_check_refuse(at, "opts.dilation", "0 or 1 for averages",
                                   TS_SCALAR(o->dilation[d]));
        o->dilation[d] = o->dilation[d] ? o->dilation[d] : 1;
    }
    return TS_OK;
}

static ts_tensor *max_pool(ts_tensor *self, const ts_pool_opts *opts, ts_tensor **indices, int n,
                           ts_check_place at)
{
    ts_pool_opts o;
    TS_TRY_NULL(read_opts(&o, opts, self, n, true, at));
    ts_value args[] = {V_T(self), V_IS(o.kernel, n), V_IS(o.stride, n), V_IS(o.padding, n),
                       V_IS(o.dilation, n), V_B(o.ceil)};
    ts_tensor **outs[] = {NULL, indices};
    return ts_invoke_many(TS_OP_max_pool, args, TS_N(args), 2, outs);
}

static ts_tensor *avg_pool(ts_tensor *self, const ts_pool_opts *opts, int n, ts_check_place at)
{
    ts_pool_opts o;
    TS_TRY_NULL(read_opts(&o, opts, self, n, false, at));
    ts_value args[] = {V_T(self), V_IS(o.kernel, n), V_IS(o.stride, n), V_IS(o.padding, n),
                       V_B(o.ceil), V_B(!o.exclude_padding), V_I(o.divisor)};
    return ts_invoke(TS_OP_avg_pool, args, TS_N(args), 1);
}

#define FORMS(n)                                                                                   \
    ts_tensor *ts_max_pool##n##d(ts_tensor *self, const ts_pool_opts *opts, ts_tensor **indices)   \
    {                                                                                              \
        return max_pool(self, opts, indices, n, TS_CHECK_HERE);                                    \
    }                                                                                              \
    ts_tensor *ts_avg_pool##n##d(ts_tensor *self, const ts_pool_opts *opts)                        \
    {                                                                                              \
        return avg_pool(self, opts, n, TS_CHECK_HERE);                                             \
    }
FORMS(1)
FORMS(2)
FORMS(3)
