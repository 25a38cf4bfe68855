/** @file batch_norm.c  Gradient rules of batch norm and group norm. */
// SPDX-License-Identifier: MIT
#include "autograd/rule.h"

/** Reshapes a statistic, (groups) or (N, groups), so that it broadcasts against x (N, C, ...);
 * `groups` divides C. NULL-safe. */
static ts_tensor *against_image(ts_tensor *statistic, ts_tensor *x, int64_t groups)
{
    TS_TRY_NULL(statistic);
    int64_t sizes[TS_MAX_DIMS] = {statistic->ndim > 1 ? x->sizes[0] : 1, groups, 1, 1, 1, 1, 1, 1};
    if (statistic->ndim > 1 && groups != x->sizes[1]) {
        statistic = ts_reshape(ts_expand(ts_unsqueeze(statistic, 2),
                                         TS_SIZES(x->sizes[0], groups, x->sizes[1] / groups)),
                               TS_SIZES(x->sizes[0], x->sizes[1]));
        sizes[1] = x->sizes[1];
    }
    return ts_reshape(statistic, sizes, x->ndim);
}

/** Adds to *dx the gradients that arrive through the returned means and variances. For n elements
 * per statistic, d mean / dx = 1 / n and d var / dx = 2 (x - mean) / n. */
static ts_status add_statistics(ts_vjp_call *b, ts_tensor **dx, ts_tensor *x, int64_t groups)
{
    ts_tensor *mean = RET(1);
    TS_TRY(mean);
    double n = (double)x->numel / (double)mean->numel;
    ts_tensor *part = NULL;
    if (GRAD(2))
        TS_TRY(part = ts_mul(against_image(ts_mul_scalar(GRAD(2), 2 / n), x, groups),
                             ts_sub(x, against_image(mean, x, groups))));
    if (GRAD(1)) {
        ts_tensor *shift = against_image(ts_mul_scalar(GRAD(1), 1 / n), x, groups);
        part = part ? ts_add(part, shift) : ts_expand(shift, x->sizes, x->ndim);
    }
    if (GRAD(1) || GRAD(2))
        TS_TRY(*dx = *dx ? ts_add(*dx, part) : part);
    return TS_OK;
}

/** Gives the gradients of the arguments mean and var, if they are constants of the call: with
 * z = (x - mean) rstd, -weight rstd sum(g) for mean and -weight rstd^2 sum(g z) / 2 for var, plus
 * the gradients of the returned copies. dw = sum(g z) and db = sum(g); NULL if not needed. */
static ts_status give_constants(ts_vjp_call *b, ts_tensor *dw, ts_tensor *db)
{
    ts_tensor *rstd = ts_rsqrt(ts_add_scalar(RET(2), NUM(5))), *weight = ARG(3),
              *w = ts_is_none(weight) ? rstd : ts_mul(rstd, weight), *parts[2] = {NULL, NULL};
    if (dw) {
        parts[0] = ts_neg(ts_mul(w, db));
        parts[1] = ts_mul_scalar(ts_mul(ts_mul(w, rstd), dw), -0.5);
        TS_TRY(parts[0]);
        TS_TRY(parts[1]);
    }
    for (int i = 0; i < 2; i++) {
        ts_tensor *own = GRAD(1 + i), *g = parts[i];
        if (g || own)
            GIVE(1 + i, g && own ? ts_add(g, own) : g ? g : own);
    }
    return TS_OK;
}

/** The rule of batch_norm; with `relu`, of batch_norm_relu. */
static ts_status normalised(ts_vjp_call *b, bool relu)
{
    ts_tensor *x = X, *dx = NULL, *dw = NULL, *db = NULL;
    bool constant = ts_rule_arg(b, 1)->tag == TS_TAG_TENSOR,
         sums = constant && (NEEDS(1) || NEEDS(2));
    if (GRAD(0)) {
        ts_tensor *g = ts_rule_in_layout_of(GRAD(0), x),
                  **to_w = sums || NEEDS(3) ? &dw : NULL,
                  **to_b = sums || NEEDS(4) ? &db : NULL;
        TS_TRY(dx = relu ? ts_batch_norm_relu_backward(g, x, RET(1), RET(2), ARG(3), ARG(4), NUM(5),
                                                       constant, to_w, to_b)
                         : ts_batch_norm_backward(g, x, RET(1), RET(2), ARG(3), NUM(5), constant,
                                                  to_w, to_b));
        GIVE(3, dw);
        GIVE(4, db);
    }
    if (constant)
        TS_TRY(give_constants(b, sums ? dw : NULL, db));
    else
        TS_TRY(add_statistics(b, &dx, x, x->sizes[1]));
    if (dx)
        GIVE(0, dx);
    return TS_OK;
}
static ts_status batch_norm(ts_vjp_call *b) { return normalised(b, false); }
static ts_status batch_norm_relu(ts_vjp_call *b) { return normalised(b, true); }
const ts_vjp ts_vjp_batch_norm = {
    .rule = batch_norm, .always = READS(0) | READS(3) | READS_RET(1) | READS_RET(2)};
const ts_vjp ts_vjp_batch_norm_relu = {
    .rule = batch_norm_relu,
    .always = READS(0) | READS(3) | READS(4) | READS_RET(1) | READS_RET(2)};

static ts_status group_norm(ts_vjp_call *b)
{
    ts_tensor *x = X, *dx = NULL, *dw = NULL, *db = NULL;
    if (GRAD(0)) {
        TS_TRY(dx = ts_group_norm_backward(ts_rule_in_layout_of(GRAD(0), x), x, RET(1), RET(2),
                                           ARG(2),
                                           INT(1), NUM(4), NEEDS(2) ? &dw : NULL,
                                           NEEDS(3) ? &db : NULL));
        GIVE(2, dw);
        GIVE(3, db);
    }
    TS_TRY(add_statistics(b, &dx, x, INT(1)));
    if (dx)
        GIVE(0, dx);
    return TS_OK;
}
const ts_vjp ts_vjp_group_norm = {
    .rule = group_norm, .always = READS(0) | READS(2) | READS_RET(1) | READS_RET(2)};
