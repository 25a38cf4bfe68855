/** @file reduce.c  Rules of reductions: gradients of results spread over what was reduced. */
// SPDX-License-Identifier: MIT
#include "autograd/vjp.h"
#include "include/tessera/ops.h"
#include "ops/rows.h"

/** t, like the result of a reduction of argument 0 over the dims in argument 1, over its elements. */
static ts_tensor *spread(ts_vjp_call *b, ts_tensor *t)
{
    const ts_value *dims = ts_arg(b, 1);
    ts_meta m = ts_arg_meta(b, 0);
    return dims->tag == TS_TAG_INTS ? ts_unreduce(t, m.sizes, m.ndim, dims->ints, (int)dims->count)
                                    : ts_unreduce(t, m.sizes, m.ndim, NULL, 0);
}

/** Elements of argument 0 that went into each result. */
static double reduced_count(ts_vjp_call *b)
{
    ts_meta m = ts_arg_meta(b, 0);
    ts_tensor *g = ts_grad_out(b, 0);
    double n = 1;
    for (int d = 0; d < m.ndim; d++)
        n *= (double)m.sizes[d];
    return g->numel ? n / (double)g->numel : 0;
}

static ts_status sum(ts_vjp_call *b) { return ts_give(b, 0, spread(b, ts_grad_out(b, 0))); }
const ts_vjp ts_vjp_sum = {.rule = sum};

static ts_status mean(ts_vjp_call *b)
{
    return ts_give(b, 0, spread(b, ts_mul_scalar(ts_grad_out(b, 0), 1 / reduced_count(b))));
}
const ts_vjp ts_vjp_mean = {.rule = mean};

static ts_status sum_to_size(ts_vjp_call *b)
{
    static const int64_t leading[] = {0, 1, 2, 3, 4, 5, 6, 7};
    ts_meta m = ts_arg_meta(b, 0);
    ts_tensor *g = ts_grad_out(b, 0);
    if (m.ndim == g->ndim)
        return ts_give(b, 0, ts_unreduce(g, m.sizes, m.ndim, NULL, 0));
    return ts_give(b, 0, ts_unreduce(g, m.sizes, m.ndim, leading, m.ndim - g->ndim));
}
const ts_vjp ts_vjp_sum_to_size = {.rule = sum_to_size};

static ts_status unreduce(ts_vjp_call *b)
{
    ts_meta m = ts_arg_meta(b, 0);
    const ts_value *sizes = ts_arg(b, 1), *dims = ts_arg(b, 2);
    ts_tensor *g = ts_grad_out(b, 0);
    if (m.ndim == (int)sizes->count)
        return ts_give(b, 0, ts_sum_to_size(g, m.sizes, m.ndim));
    return ts_give(b, 0, ts_sum_to_size(ts_sum_dims(g, dims->ints, (int)dims->count, false), m.sizes, m.ndim));
}
const ts_vjp ts_vjp_unreduce = {.rule = unreduce};

/** x - mean(x): what a variance is made of. */
static ts_tensor *deviations(ts_vjp_call *b)
{
    const ts_value *dims = ts_arg(b, 1);
    ts_tensor *x = ts_saved_arg(b, 0);
    ts_tensor *mean = dims->tag == TS_TAG_INTS ? ts_mean_dims(x, dims->ints, (int)dims->count, true) : ts_mean(x);
    return ts_sub(x, mean);
}

/** d var / dx = 2 (x - mean) / (n - correction) */
static ts_status var(ts_vjp_call *b)
{
    double n = reduced_count(b) - ts_arg(b, 3)->d;
    ts_tensor *g = spread(b, ts_mul_scalar(ts_grad_out(b, 0), 2 / (n > 0 ? n : 0)));
    return ts_give(b, 0, ts_mul(g, deviations(b)));
}
const ts_vjp ts_vjp_var = {.rule = var, .saves = {[0] = TS_SAVE_ARG(0)}};
