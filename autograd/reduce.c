/** @file reduce.c  Rules of reductions: gradients of results spread over what was reduced. */
// SPDX-License-Identifier: MIT
#include "autograd/vjp.h"
#include "include/tessera/autograd.h"
#include "include/tessera/ops.h"
#include "ops/rows.h"

#include <math.h>

/** t, like the result of a reduction of argument 0 over the dims
 * in argument 1, over its elements. */
static ts_tensor *spread(ts_vjp_call *b, ts_tensor *t)
{
    const ts_value *dims = ts_rule_arg(b, 1);
    ts_meta m = ts_rule_arg_meta(b, 0);
    return dims->tag == TS_TAG_INTS ? ts_unreduce(t, m.sizes, m.ndim, dims->ints, (int)dims->count)
                                    : ts_unreduce(t, m.sizes, m.ndim, NULL, 0);
}

/** Elements of argument 0 that went into each result. */
static double reduced_count(ts_vjp_call *b)
{
    ts_meta m = ts_rule_arg_meta(b, 0);
    ts_tensor *g = ts_rule_grad(b, 0);
    double n = 1;
    for (int d = 0; d < m.ndim; d++)
        n *= (double)m.sizes[d];
    return g->numel ? n / (double)g->numel : 0;
}

static ts_status sum(ts_vjp_call *b) { return ts_rule_give(b, 0, spread(b, ts_rule_grad(b, 0))); }
const ts_vjp ts_vjp_sum = {.rule = sum};

static ts_status mean(ts_vjp_call *b)
{
    return ts_rule_give(b, 0, spread(b, ts_mul_scalar(ts_rule_grad(b, 0), 1 / reduced_count(b))));
}
const ts_vjp ts_vjp_mean = {.rule = mean};

static ts_status sum_to_size(ts_vjp_call *b)
{
    static const int64_t leading[] = {0, 1, 2, 3, 4, 5, 6, 7};
    ts_meta m = ts_rule_arg_meta(b, 0);
    ts_tensor *g = ts_rule_grad(b, 0);
    if (m.ndim == g->ndim)
        return ts_rule_give(b, 0, ts_unreduce(g, m.sizes, m.ndim, NULL, 0));
    return ts_rule_give(b, 0, ts_unreduce(g, m.sizes, m.ndim, leading, m.ndim - g->ndim));
}
const ts_vjp ts_vjp_sum_to_size = {.rule = sum_to_size};

static ts_status unreduce(ts_vjp_call *b)
{
    ts_meta m = ts_rule_arg_meta(b, 0);
    const ts_value *sizes = ts_rule_arg(b, 1), *dims = ts_rule_arg(b, 2);
    ts_tensor *g = ts_rule_grad(b, 0);
    if (m.ndim == (int)sizes->count)
        return ts_rule_give(b, 0, ts_sum_to_size(g, m.sizes, m.ndim));
    return ts_rule_give(
        b, 0, ts_sum_to_size(ts_sum_dims(g, dims->ints, (int)dims->count, false), m.sizes, m.ndim));
}
const ts_vjp ts_vjp_unreduce = {.rule = unreduce};

/** x - mean(x): what a variance is made of. */
static ts_tensor *deviations(ts_vjp_call *b)
{
    const ts_value *dims = ts_rule_arg(b, 1);
    ts_tensor *x = ts_rule_saved_arg(b, 0);
    ts_tensor *mean =
        dims->tag == TS_TAG_INTS ? ts_mean_dims(x, dims->ints, (int)dims->count, true) : ts_mean(x);
    return ts_sub(x, mean);
}

/** d var / dx = 2 (x - mean) / (n - correction) */
static ts_status var(ts_vjp_call *b)
{
    double n = reduced_count(b) - ts_rule_arg(b, 3)->d;
    ts_tensor *g = spread(b, ts_mul_scalar(ts_rule_grad(b, 0), 2 / (n > 0 ? n : 0)));
    return ts_rule_give(b, 0, ts_mul(g, deviations(b)));
}
const ts_vjp ts_vjp_var = {.rule = var, .saves = {[0] = TS_SAVE_ARG(0)}};

/** sum over the dims of the reduction, kept with size 1. */
static ts_tensor *sum_kept(ts_vjp_call *b, ts_tensor *t)
{
    const ts_value *dims = ts_rule_arg(b, 1);
    return dims->tag == TS_TAG_INTS ? ts_sum_dims(t, dims->ints, (int)dims->count, true)
                                    : ts_sum(t);
}

/** d std / dx = (x - mean) / ((n - correction) std), and 0 where nothing deviates */
static ts_status std(ts_vjp_call *b)
{
    double n = reduced_count(b) - ts_rule_arg(b, 3)->d;
    ts_tensor *y = ts_rule_saved_ret(b, 0);
    ts_tensor *g = ts_div(ts_mul_scalar(ts_rule_grad(b, 0), 1 / (n > 0 ? n : 0)), y);
    g = ts_masked_fill_scalar(g, ts_eq_scalar(y, 0), 0);
    return ts_rule_give(b, 0, ts_mul(spread(b, g), deviations(b)));
}
const ts_vjp ts_vjp_std = {.rule = std, .saves = {[0] = TS_SAVE_ARG(0) | TS_SAVE_RET(0)}};

/** g shared evenly among the elements for which `chosen` (bool, like argument 0) holds. */
static ts_tensor *share(ts_vjp_call *b, ts_tensor *g, ts_tensor *chosen)
{
    ts_tensor *weight = chosen ? ts_to(chosen, (ts_dtype)g->dtype) : NULL;
    return ts_mul(ts_div(weight, sum_kept(b, weight)), spread(b, g));
}

static ts_status extreme(ts_vjp_call *b)
{
    ts_tensor *chosen = ts_eq(ts_rule_saved_arg(b, 0), spread(b, ts_rule_saved_ret(b, 0)));
    return ts_rule_give(b, 0, share(b, ts_rule_grad(b, 0), chosen));
}
const ts_vjp ts_vjp_amax = {.rule = extreme, .saves = {[0] = TS_SAVE_ARG(0) | TS_SAVE_RET(0)}};
const ts_vjp ts_vjp_amin = {.rule = extreme, .saves = {[0] = TS_SAVE_ARG(0) | TS_SAVE_RET(0)}};

/** exp(x - y) g; where all is -Inf, so is y, and 0 stands for it. */
static ts_status logsumexp(ts_vjp_call *b)
{
    ts_tensor *y = ts_rule_saved_ret(b, 0);
    y = ts_masked_fill_scalar(y, ts_eq_scalar(y, -INFINITY), 0);
    ts_tensor *share = ts_exp(ts_sub(ts_rule_saved_arg(b, 0), spread(b, y)));
    return ts_rule_give(b, 0, ts_mul(share, spread(b, ts_rule_grad(b, 0))));
}
const ts_vjp ts_vjp_logsumexp = {.rule = logsumexp,
                                 .saves = {[0] = TS_SAVE_ARG(0) | TS_SAVE_RET(0)}};

/** p = 1: sign(x); p = 2: x / y, and 0 at y = 0; p = Inf: sign(x) shared among the largest. */
static ts_status norm(ts_vjp_call *b)
{
    double p = ts_rule_arg(b, 3)->d;
    ts_tensor *x = ts_rule_saved_arg(b, 0), *y = ts_rule_saved_ret(b, 0), *g = ts_rule_grad(b, 0);
    if (p == 1)
        return ts_rule_give(b, 0, ts_mul(ts_sign(x), spread(b, g)));
    if (p == 2) {
        ts_tensor *scale = ts_masked_fill_scalar(ts_div(g, y), ts_eq_scalar(y, 0), 0);
        return ts_rule_give(b, 0, ts_mul(x, spread(b, scale)));
    }
    return ts_rule_give(b, 0, ts_mul(ts_sign(x), share(b, g, ts_eq(ts_abs(x), spread(b, y)))));
}
const ts_vjp ts_vjp_norm = {.rule = norm, .saves = {[0] = TS_SAVE_ARG(0) | TS_SAVE_RET(0)}};

/** Products of the elements before each one of the last dim, or behind it, in log2(n) steps. */
static ts_tensor *running_product(ts_tensor *x, bool behind)
{
    int last = x->ndim - 1;
    int64_t n = x->sizes[last];
    ts_tensor *one = ts_ones_like(ts_slice(x, last, 0, 1, 1));
    ts_tensor *p = behind ? ts_cat((ts_tensor *[]){ts_slice(x, last, 1, n, 1), one}, 2, last)
                          : ts_cat((ts_tensor *[]){one, ts_slice(x, last, 0, n - 1, 1)}, 2, last);
    for (int64_t step = 1; step < n; step *= 2) {
        ts_tensor *low = ts_slice(p, last, 0, n - step, 1), *high = ts_slice(p, last, step, n, 1);
        ts_tensor *product = ts_mul(low, high);
        p = behind ? ts_cat((ts_tensor *[]){product, ts_slice(p, last, n - step, n, 1)}, 2, last)
                   : ts_cat((ts_tensor *[]){ts_slice(p, last, 0, step, 1), product}, 2, last);
    }
    return p;
}

/**
 * The product of the others without a division: a quotient says nothing of how the product
 * of an element's others changes while one of them is 0. Takes log2(n) times the memory,
 * so only a recorded backward does this.
 */
static ts_tensor *others_recorded(ts_vjp_call *b, ts_tensor *x)
{
    const ts_value *dims = ts_rule_arg(b, 1);
    int n = dims->tag == TS_TAG_INTS ? (int)dims->count : 0, kept = 0, gone = 0, ndim = x->ndim;
    uint32_t mask = 0;
    for (int i = 0; i < n; i++)
        mask |= 1u << (dims->ints[i] < 0 ? dims->ints[i] + ndim : dims->ints[i]);
    int64_t order[TS_MAX_DIMS], back[TS_MAX_DIMS], sizes[TS_MAX_DIMS];
    for (int d = 0; d < ndim; d++) /* those that stay come first */
        if (n && !(mask >> d & 1))
            order[kept++] = d;
    for (int d = 0; d < ndim; d++)
        if (!n || mask >> d & 1)
            order[kept + gone++] = d;
    for (int d = 0; d < ndim; d++) {
        back[order[d]] = d;
        sizes[d] = x->sizes[order[d]];
    }
    int64_t rows[TS_MAX_DIMS], length = 1;
    for (int d = 0; d < kept; d++)
        rows[d] = sizes[d];
    for (int d = kept; d < ndim; d++)
        length *= sizes[d];
    if (!gone || !x->numel)
        return ts_ones_like(x);
    rows[kept] = length;
    TS_TRY_NULL(x = ts_reshape(ts_permute(x, order, ndim), rows, kept + 1));
    ts_tensor *others = ts_mul(running_product(x, false), running_product(x, true));
    return ts_permute(ts_reshape(others, sizes, ndim), back, ndim);
}

/** The product of the others: of all that are not 0, over x, where no other element is 0. */
static ts_status prod(ts_vjp_call *b)
{
    const ts_value *dims = ts_rule_arg(b, 1);
    ts_tensor *x = ts_rule_saved_arg(b, 0), *g = ts_rule_grad(b, 0);
    TS_TRY(x);
    if (ts_grad_enabled())
        return ts_rule_give(b, 0, ts_mul(others_recorded(b, x), spread(b, g)));
    ts_tensor *zero = ts_eq_scalar(x, 0), *count = zero ? ts_to(zero, (ts_dtype)x->dtype) : NULL;
    ts_tensor *rest = ts_masked_fill_scalar(x, zero, 1);
    ts_tensor *product = dims->tag == TS_TAG_INTS
                             ? ts_prod_dims(rest, dims->ints, (int)dims->count, true)
                             : ts_prod(rest);
    ts_tensor *others = ts_ne(sum_kept(b, count), count);
    return ts_rule_give(b, 0,
                   ts_masked_fill_scalar(ts_mul(ts_div(product, rest), spread(b, g)), others, 0));
}
const ts_vjp ts_vjp_prod = {.rule = prod, .saves = {[0] = TS_SAVE_ARG(0)}};
