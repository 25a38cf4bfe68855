/** @file norm.c  Rules of layer and RMS normalisation. */
// SPDX-License-Identifier: MIT
#include "autograd/vjp.h"
#include "include/tessera/ops.h"
#include "ops/rows.h"

static ts_status layer_norm(ts_vjp_call *b)
{
    bool weighted = ts_needs(b, 2), biased = ts_needs(b, 3);
    ts_tensor *dw = NULL, *db = NULL;
    ts_tensor *dx = ts_layer_norm_backward(ts_grad_out(b, 0), ts_saved_arg(b, 0), ts_saved_ret(b, 1), ts_saved_ret(b, 2),
                                           ts_saved_arg(b, 2), (int)ts_arg(b, 1)->i, weighted ? &dw : NULL,
                                           biased ? &db : NULL);
    TS_TRY(dx);
    if (ts_needs(b, 0))
        TS_TRY(ts_give(b, 0, dx));
    if (weighted)
        TS_TRY(ts_give(b, 2, dw));
    return biased ? ts_give(b, 3, db) : TS_OK;
}
const ts_vjp ts_vjp_layer_norm = {
    .rule = layer_norm, .always = TS_SAVE_ARG(0) | TS_SAVE_ARG(2) | TS_SAVE_RET(1) | TS_SAVE_RET(2), .want = 6};

static ts_status rms_norm(ts_vjp_call *b)
{
    bool weighted = ts_needs(b, 2);
    ts_tensor *dw = NULL;
    ts_tensor *dx = ts_rms_norm_backward(ts_grad_out(b, 0), ts_saved_arg(b, 0), ts_saved_ret(b, 1), ts_saved_arg(b, 2),
                                         (int)ts_arg(b, 1)->i, weighted ? &dw : NULL);
    TS_TRY(dx);
    if (ts_needs(b, 0))
        TS_TRY(ts_give(b, 0, dx));
    return weighted ? ts_give(b, 2, dw) : TS_OK;
}
const ts_vjp ts_vjp_rms_norm = {
    .rule = rms_norm, .always = TS_SAVE_ARG(0) | TS_SAVE_ARG(2) | TS_SAVE_RET(1), .want = 2};
