/** @file reduce.c  Gradient rules of reductions: broadcast the result's gradient over the reduced
 * dims. */
// SPDX-License-Identifier: MIT
#include "autograd/rule.h"

#include <math.h>

/** Broadcasts t, which has the sizes of the result, over the reduced dims to the sizes of
 *  argument 0. */
static ts_tensor *expand_reduced(ts_vjp_call *b, ts_tensor *t)
{
    const ts_value *dims = ts_rule_arg(b, 1);
    bool all = dims->tag != TS_TAG_INTS;
    return ts_unreduce(t, SIZES(0), all ? NULL : dims->ints, all ? 0 : (int)dims->count);
}

/** Reduces t by `op` over the dims in argument 1 with keepdim, or over all elements if argument 1
 *  is absent. */
#define KEPT(op, t)                                                                                \
    (ts_rule_arg(b, 1)->tag == TS_TAG_INTS                                                         \
         ? ts_##op##_dims(t, ts_rule_arg(b, 1)->ints, (int)ts_rule_arg(b, 1)->count, true)         \
         : ts_##op(t))

/** Number of elements of argument 0 per element of the result, less `correction`; at least 0. */
static double reduced_count(ts_vjp_call *b, double correction)
{
    ts_tensor *g = GRAD(0);
    double n = g->numel ? (double)ts_rule_arg_meta(b, 0).numel / (double)g->numel : 0;
    return n > correction ? n - correction : 0;
}

RULE(sum, 0, expand_reduced(b, g))
RULE(mean, 0, expand_reduced(b, ts_mul_scalar(g, 1 / reduced_count(b, 0))))

/** The gradient of sum_to_size: g broadcast to the sizes of argument 0. */
static ts_tensor *from_size(ts_vjp_call *b, ts_tensor *g)
{
    static const int64_t leading[] = {0, 1, 2, 3, 4, 5, 6, 7};
    int fewer = ts_rule_arg_meta(b, 0).ndim - g->ndim;
    return ts_unreduce(g, SIZES(0), fewer ? leading : NULL, fewer);
}
RULE(sum_to_size, 0, from_size(b, g))

/** The gradient of unreduce: g summed to the sizes of argument 0. */
static ts_tensor *reduced(ts_vjp_call *b, ts_tensor *g)
{
    const ts_value *sizes = ts_rule_arg(b, 1), *dims = ts_rule_arg(b, 2);
    if (ts_rule_arg_meta(b, 0).ndim != (int)sizes->count)
        g = ts_sum_dims(g, dims->ints, (int)dims->count, false);
    return ts_sum_to_size(g, SIZES(0));
}
RULE(unreduce, 0, reduced(b, g))

/* d var / dx = 2 (x - mean) / (n - correction) */
#define DEVIATIONS ts_sub(X, KEPT(mean, X))
RULE(var, READS_X,
     ts_mul(expand_reduced(b, ts_mul_scalar(g, 2 / reduced_count(b, NUM(3)))), DEVIATIONS))

/** t / y, where y is the norm or deviation of the reduced elements; 0 where y is 0. t is divided by
 * y before g multiplies it, because g / y and 1 / y may overflow where t / y is small. */
static ts_tensor *by_length(ts_vjp_call *b, ts_tensor *t, ts_tensor *y)
{
    return ts_div(t, expand_reduced(b, ts_masked_fill_scalar(y, ts_eq_scalar(y, 0), INFINITY)));
}

/* d std / dx = (x - mean) / ((n - correction) std), and 0 if std is 0 */
#define PER_DEGREE ts_mul_scalar(g, 1 / reduced_count(b, NUM(3)))
RULE(std, READS_X | READS_Y, ts_mul(by_length(b, DEVIATIONS, Y), expand_reduced(b, PER_DEGREE)))

/** Divides g evenly among the elements for which `chosen` (bool, sizes of argument 0) is true. They
 * are counted in f32 or f64, since bf16 and f16 cannot hold large counts. Other elements get 0 g,
 * which is NaN where g is not finite. */
static ts_tensor *share(ts_vjp_call *b, ts_tensor *g, ts_tensor *chosen)
{
    ts_dtype wide = g->dtype == TS_F64 ? TS_F64 : TS_F32;
    ts_tensor *count = ts_reshape(ts_to(KEPT(sum, chosen), wide), g->sizes, g->ndim);
    ts_tensor *part = ts_to(ts_div(ts_to(g, wide), count), (ts_dtype)g->dtype);
    return ts_where(chosen, expand_reduced(b, part), expand_reduced(b, ts_mul_scalar(part, 0)));
}
RULE(extreme, READS_X | READS_Y, share(b, g, ts_eq(X, expand_reduced(b, Y))))

/** exp(x - y), the softmax of x for y = logsumexp(x). Where all elements are -Inf, y is -Inf, too,
 *  and is replaced by 0. */
static ts_tensor *softmax_of(ts_vjp_call *b, ts_tensor *y)
{
    y = ts_masked_fill_scalar(y, ts_eq_scalar(y, -INFINITY), 0);
    return ts_exp(ts_sub(X, expand_reduced(b, y)));
}
RULE(logsumexp, READS_X | READS_Y, ts_mul(softmax_of(b, Y), expand_reduced(b, g)))

/** The gradient of a p-norm y. p = 1: sign(x) g; p = 2: x / y g, and 0 where y is 0; p = Inf:
 *  sign(x) g divided evenly among the elements with |x| = y. */
static ts_tensor *gradient_of_norm(ts_vjp_call *b, ts_tensor *g, double p)
{
    if (p == 1)
        return ts_mul(ts_sign(X), expand_reduced(b, g));
    if (p == 2)
        return ts_mul(by_length(b, X, Y), expand_reduced(b, g));
    return ts_mul(ts_sign(X), share(b, g, ts_eq(ts_abs(X), expand_reduced(b, Y))));
}
RULE(norm, READS_X | READS_Y, gradient_of_norm(b, g, NUM(3)))

/** For each element of the last dim, the product of the elements before it (`behind`: after it), in
 *  log2(n) steps. */
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
 * For each element of x, the product of the other elements of its reduction. No division is used,
 * because the derivative of a quotient is wrong if an element is 0. Needs log2(n) times the memory
 * for n elements per reduction, so only a recorded backward uses it.
 */
static ts_tensor *others_recorded(ts_vjp_call *b, ts_tensor *x)
{
    const ts_value *dims = ts_rule_arg(b, 1);
    uint32_t n = dims->tag == TS_TAG_INTS ? dims->count : 0, mask = n ? 0 : UINT32_MAX;
    for (uint32_t i = 0; i < n && x->ndim; i++)
        mask |= 1u << (dims->ints[i] + (dims->ints[i] < 0 ? x->ndim : 0));
    int64_t order[TS_MAX_DIMS], back[TS_MAX_DIMS], sizes[TS_MAX_DIMS], rows[TS_MAX_DIMS];
    int kept = 0, at = 0, ndim = x->ndim;
    for (uint32_t gone = 0; gone < 2; gone++) /* kept dims first, then reduced dims */
        for (int d = 0; d < ndim; d++)
            if ((mask >> d & 1) == gone) {
                kept += !gone;
                back[d] = at;
                order[at] = d;
                rows[at] = sizes[at] = x->sizes[d];
                at++;
            }
    if (kept == ndim || !x->numel)
        return ts_ones_like(x);
    rows[kept] = -1;
    TS_TRY_NULL(x = ts_reshape(ts_permute(x, order, ndim), rows, kept + 1));
    ts_tensor *others = ts_mul(running_product(x, false), running_product(x, true));
    return ts_permute(ts_reshape(others, sizes, ndim), back, ndim);
}

/** The gradient of prod: g times the product of the other elements. A backward that is not recorded
 *  divides the product of the nonzero elements by x, if x is not 0, and sets the result to 0 where
 *  another element is 0. */
static ts_tensor *product_of_others(ts_vjp_call *b, ts_tensor *g)
{
    ts_tensor *x = X;
    TS_TRY_NULL(x);
    ts_tensor *zero = ts_eq_scalar(x, 0), *count = ts_to(zero, (ts_dtype)x->dtype);
    ts_tensor *other_zero = ts_ne(KEPT(sum, count), count);
    if (ts_grad_enabled()) { /* if a partial product overflows, Inf times a zero is NaN */
        ts_tensor *y = ts_mul(others_recorded(b, x), expand_reduced(b, g));
        return ts_masked_fill_scalar(y, ts_logical_and(ts_isnan(y), other_zero), 0);
    }
    ts_tensor *rest = ts_masked_fill_scalar(x, zero, 1), *product = KEPT(prod, rest);
    ts_tensor *quotient = ts_div(product, rest);
    return ts_masked_fill_scalar(ts_mul(quotient, expand_reduced(b, g)), other_zero, 0);
}
RULE(prod, READS_X, product_of_others(b, g))
