/** @file norm.c  Rules of layer and RMS normalisation. */
// SPDX-License-Identifier: MIT
#include "autograd/rule.h"

/**
 * dx with what came for the statistics: d mean = 1 / n, d rstd = -rstd^3 (x - mean) / n.
 * Both arrive when somebody uses them beside the result, as the parts of a second gradient do.
 */
static ts_status add_statistics(ts_tensor **input, ts_tensor *x, int64_t dims, ts_tensor *mean,
                                ts_tensor *g_mean, ts_tensor *rstd, ts_tensor *g_rstd)
{
    TS_TRY(x);
    ts_tensor *dx = *input;
    double n = 1;
    for (int d = x->ndim - (int)dims; d < x->ndim; d++)
        n *= (double)x->sizes[d];
    if (g_rstd) {
        ts_tensor *slope = ts_mul(ts_mul_scalar(g_rstd, -1 / n), ts_mul(ts_square(rstd), rstd));
        ts_tensor *part = ts_mul(slope, mean ? ts_sub(x, mean) : x);
        dx = dx ? ts_add(dx, part) : part;
        TS_TRY(dx);
    }
    if (g_mean) {
        ts_tensor *part = ts_mul_scalar(g_mean, 1 / n);
        dx = dx ? ts_add(dx, part) : ts_expand(part, x->sizes, x->ndim);
        TS_TRY(dx);
    }
    *input = dx;
    return TS_OK;
}

static ts_status give_input(ts_vjp_call *b, ts_tensor *dx, ts_tensor *mean, ts_tensor *g_mean,
                            ts_tensor *rstd, ts_tensor *g_rstd)
{
    TS_TRY(add_statistics(&dx, ts_rule_saved_arg(b, 0), ts_rule_arg(b, 1)->i, mean, g_mean, rstd,
                          g_rstd));
    /* of halves the statistics are f32 */
    return dx ? ts_rule_give(b, 0, dx) : TS_OK;
}

static ts_status layer_norm(ts_vjp_call *b)
{
    ts_tensor *g = ts_rule_grad(b, 0), *mean = ts_rule_saved_ret(b, 1),
              *rstd = ts_rule_saved_ret(b, 2);
    ts_tensor *dx = NULL;
    if (g) {
        bool weighted = ts_rule_needs(b, 2), biased = ts_rule_needs(b, 3);
        ts_tensor *dw = NULL, *db = NULL;
        dx = ts_layer_norm_backward(g, ts_rule_saved_arg(b, 0), mean, rstd, ts_rule_saved_arg(b, 2),
                                    (int)ts_rule_arg(b, 1)->i, weighted ? &dw : NULL,
                                    biased ? &db : NULL);
        TS_TRY(dx);
        if (weighted)
            TS_TRY(ts_rule_give(b, 2, dw));
        if (biased)
            TS_TRY(ts_rule_give(b, 3, db));
    }
    return ts_rule_needs(b, 0)
               ? give_input(b, dx, mean, ts_rule_grad(b, 1), rstd, ts_rule_grad(b, 2))
               : TS_OK;
}
const ts_vjp ts_vjp_layer_norm = {.rule = layer_norm,
                                  .always = TS_SAVE_ARG(0) | TS_SAVE_ARG(2) | TS_SAVE_RET(1) |
                                            TS_SAVE_RET(2),
                                  .want = 6};

/** Of the sum; both terms have its gradient. */
static ts_status add_layer_norm(ts_vjp_call *b)
{
    ts_tensor *g = ts_rule_grad(b, 0), *g_sum = ts_rule_grad(b, 1), *mean = ts_rule_saved_ret(b, 2),
              *rstd = ts_rule_saved_ret(b, 3);
    ts_tensor *sum = ts_rule_saved_ret(b, 1), *dx = NULL;
    if (g) {
        bool weighted = ts_rule_needs(b, 3), biased = ts_rule_needs(b, 4);
        ts_tensor *dw = NULL, *db = NULL;
        dx = ts_layer_norm_backward(g, sum, mean, rstd, ts_rule_saved_arg(b, 3),
                                    (int)ts_rule_arg(b, 2)->i, weighted ? &dw : NULL,
                                    biased ? &db : NULL);
        TS_TRY(dx);
        if (weighted)
            TS_TRY(ts_rule_give(b, 3, dw));
        if (biased)
            TS_TRY(ts_rule_give(b, 4, db));
    }
    if (!ts_rule_needs(b, 0) && !ts_rule_needs(b, 1))
        return TS_OK;
    TS_TRY(add_statistics(&dx, sum, ts_rule_arg(b, 2)->i, mean, ts_rule_grad(b, 2), rstd,
                          ts_rule_grad(b, 3)));
    if (g_sum) {
        dx = dx ? ts_add(dx, g_sum) : g_sum;
        TS_TRY(dx);
    }
    for (int i = 0; dx && i < 2; i++)
        GIVE(i, dx);
    return TS_OK;
}
const ts_vjp ts_vjp_add_layer_norm = {.rule = add_layer_norm,
                                      .always = TS_SAVE_ARG(3) | TS_SAVE_RET(1) | TS_SAVE_RET(2) |
                                                TS_SAVE_RET(3),
                                      .want = 14};

static ts_status rms_norm(ts_vjp_call *b)
{
    ts_tensor *g = ts_rule_grad(b, 0), *rstd = ts_rule_saved_ret(b, 1), *dx = NULL;
    if (g) {
        bool weighted = ts_rule_needs(b, 2);
        ts_tensor *dw = NULL;
        dx = ts_rms_norm_backward(g, ts_rule_saved_arg(b, 0), rstd, ts_rule_saved_arg(b, 2),
                                  (int)ts_rule_arg(b, 1)->i, weighted ? &dw : NULL);
        TS_TRY(dx);
        if (weighted)
            TS_TRY(ts_rule_give(b, 2, dw));
    }
    return ts_rule_needs(b, 0) ? give_input(b, dx, NULL, NULL, rstd, ts_rule_grad(b, 1)) : TS_OK;
}
const ts_vjp ts_vjp_rms_norm = {
    .rule = rms_norm, .always = TS_SAVE_ARG(0) | TS_SAVE_ARG(2) | TS_SAVE_RET(1), .want = 2};
