/** @file pool.c  Shape rules of max pools, and the public functions of max and average pools. */
// SPDX-License-Identifier: MIT
#include "include/tessera/check.h"
#include "include/tessera/ops.h"
#include "ops/spatial.h"

#include <string.h>

ts_status ts_infer_max_pool(ts_frame *f) { return ts_infer_pool_of(f); }
ts_status ts_infer_adaptive_max_pool(ts_frame *f) { return ts_infer_pool_of(f); }

/** (grad, indices, sizes, kernel, stride, padding, dilation) -> dx */
ts_status ts_infer_max_pool_backward(ts_frame *f)
{
    TS_TRY(ts_check_sizes(f, 1, f->args[0].t->sizes, f->args[0].t->ndim));
    TS_TRY(ts_check_dtype(f, 1, TS_I64));
    return ts_infer_pool_of(f);
}

/** Elements of a window; more than MOST_TAPS, and sizes below 1, count as MOST_TAPS + 1. */
enum { MOST_TAPS = 256 };
static int64_t taps_of(const int64_t *kernel, int count, int n)
{
    int64_t taps = 1;
    for (int d = 0; d < n && taps <= MOST_TAPS; d++) {
        int64_t size = kernel[count == 1 ? 0 : d];
        taps *= size < 1 ? MOST_TAPS + 1 : ts_min64(size, MOST_TAPS + 1);
    }
    return ts_min64(taps, MOST_TAPS + 1);
}

static ts_status check_taps(ts_frame *f, int arg, int n)
{
    const ts_value *kernel = &f->args[arg];
    return taps_of(kernel->ints, (int)kernel->count, n) <= MOST_TAPS
               ? TS_OK
               : ts_fail_arg(f, arg, TS_ERR_VALUE,
                             "expected windows of at most %d elements, got kernel %s", MOST_TAPS,
                             TS_LIST_TEXT(kernel->ints, kernel->count));
}

ts_status ts_infer_max_pool_taps(ts_frame *f)
{
    TS_TRY(ts_infer_pool_of(f));
    return check_taps(f, 1, (int)f->args[1].count);
}

/** (grad, taps, added, sizes, kernel, stride, padding, dilation) -> dx */
ts_status ts_infer_max_pool_taps_backward(ts_frame *f)
{
    const ts_tensor *g = f->args[0].t;
    TS_TRY(ts_check_sizes(f, 1, g->sizes, g->ndim));
    TS_TRY(ts_check_dtype(f, 1, TS_U8));
    TS_TRY(ts_infer_pool_of(f));
    f->plan->strided |= 1 << 2; /* the gradient that a slice or cat gives is not dense */
    int n = (int)f->args[3].count;
    if (!f->args[4].count)
        return ts_fail_arg(f, 4, TS_ERR_VALUE, "expected %d numbers, got none", n);
    if (f->args[2].tag == TS_TAG_TENSOR) {
        int64_t sizes[TS_MAX_DIMS];
        memcpy(sizes, g->sizes, sizeof sizes);
        for (int d = 0; d < n; d++)
            sizes[g->ndim - n + d] = ts_spatial_number(&f->args[3], d);
        TS_TRY(ts_check_sizes(f, 2, sizes, g->ndim));
        TS_TRY(ts_check_dtype_as(f, 2, 0, "cast with ts_to()"));
        TS_TRY(ts_check_one_device(f));
    }
    return check_taps(f, 4, n);
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
        if (!largest && (o->dilation[d] < 0 || o->dilation[d] > 1))
            return ts_check_refuse(at, "opts.dilation", "0 or 1 for averages",
                                   TS_SCALAR(o->dilation[d]));
        o->dilation[d] = o->dilation[d] ? o->dilation[d] : 1;
    }
    return TS_OK;
}

/* Both are inlined, so that ts_invoke() sees the return address of the public function. */
TS_INLINE ts_tensor *max_pool(ts_tensor *self, const ts_pool_opts *opts, ts_tensor **indices, int n,
                              ts_check_place at)
{
    ts_pool_opts o;
    TS_TRY_NULL(read_opts(&o, opts, self, n, true, at));
    ts_value args[] = {V_T(self), V_IS(o.kernel, n), V_IS(o.stride, n), V_IS(o.padding, n),
                       V_IS(o.dilation, n), V_B(o.ceil)};
    ts_tensor **outs[] = {NULL, indices};
    /* a backward reads eight times fewer bytes of taps than of indices */
    bool recorded = (self->keys & ~ts_tls.exclude) >> TS_KEY_AUTOGRAD & 1,
         taps = !indices && recorded && taps_of(o.kernel, n, n) <= MOST_TAPS;
    return ts_invoke_many(taps ? TS_OP_max_pool_taps : TS_OP_max_pool, args, TS_N(args), 2, outs);
}

TS_INLINE ts_tensor *avg_pool(ts_tensor *self, const ts_pool_opts *opts, int n, ts_check_place at)
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
