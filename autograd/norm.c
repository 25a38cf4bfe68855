/** @file norm.c  Gradient rules of layer and RMS normalisation. */
// SPDX-License-Identifier: MIT
#include "autograd/rule.h"

/**
 * Adds to *input, the gradient of x or NULL, the gradient that arrives through the statistics: d
 * mean / dx = 1 / n, d rstd / dx = -rstd^3 (x - mean) / n. g_mean and g_rstd (NULL: none) arrive if
 * the program uses the statistics, as the ops of a second gradient do.
 */
static ts_status add_statistics(ts_tensor **input, ts_tensor *x, int64_t dims, ts_tensor *mean,
                                ts_tensor *g_mean, ts_tensor *rstd, ts_tensor *g_rstd)
{
    ts_tensor *dx = *input;
    TS_TRY(x);
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

/**
 * Gives the gradients of weight and bias, and writes the gradient of x, the normalised tensor, to
 * *dx; NULL if no gradient arrived. at: shift of argument and result numbers, 0 for layer_norm and
 * 1 for add_layer_norm.
 */
static ts_status undo_layer_norm(ts_vjp_call *b, int at, ts_tensor *x, ts_tensor **dx)
{
    ts_tensor *mean = RET(at + 1), *rstd = RET(at + 2), *dw = NULL, *db = NULL;
    *dx = NULL;
    if (GRAD(0)) {
        TS_TRY(*dx = ts_layer_norm_backward(GRAD(0), x, mean, rstd, ARG(at + 2), DIM(at + 1),
                                            NEEDS(at + 2) ? &dw : NULL,
                                            NEEDS(at + 3) ? &db : NULL));
        GIVE(at + 2, dw);
        GIVE(at + 3, db);
    }
    return add_statistics(dx, x, INT(at + 1), mean, GRAD(at + 1), rstd, GRAD(at + 2));
}

static ts_status layer_norm(ts_vjp_call *b)
{
    ts_tensor *dx;
    TS_TRY(undo_layer_norm(b, 0, X, &dx));
    if (dx)
        GIVE(0, dx); /* casts dx, which may be f32 like the statistics, to x's dtype */
    return TS_OK;
}
const ts_vjp ts_vjp_layer_norm = {
    .rule = layer_norm, .always = READS(0) | READS(2) | READS_RET(1) | READS_RET(2)};

/** Rule of add_layer_norm: both terms of the sum receive its gradient. */
static ts_status add_layer_norm(ts_vjp_call *b)
{
    ts_tensor *dx, *g_sum = GRAD(1);
    TS_TRY(undo_layer_norm(b, 1, RET(1), &dx));
    if (g_sum)
        TS_TRY(dx = dx ? ts_add(dx, g_sum) : g_sum);
    for (int i = 0; dx && i < 2; i++)
        GIVE(i, dx);
    return TS_OK;
}
const ts_vjp ts_vjp_add_layer_norm = {
    .rule = add_layer_norm, .always = READS(3) | READS_RET(1) | READS_RET(2) | READS_RET(3)};

static ts_status rms_norm(ts_vjp_call *b)
{
    ts_tensor *rstd = RET(1), *dx = NULL, *dw = NULL;
    if (GRAD(0)) {
        TS_TRY(dx = ts_rms_norm_backward(GRAD(0), X, rstd, ARG(2), DIM(1),
                                         NEEDS(2) ? &dw : NULL));
        GIVE(2, dw);
    }
    TS_TRY(add_statistics(&dx, X, INT(1), NULL, NULL, rstd, GRAD(1)));
    if (dx)
        GIVE(0, dx);
    return TS_OK;
}
const ts_vjp ts_vjp_rms_norm = {
    .rule = rms_norm, .always = READS(0) | READS(2) | READS_RET(1)};
