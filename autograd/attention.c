/** @file attention.c  Rule of scaled dot-product attention. */
// SPDX-License-Identifier: MIT
#include "autograd/vjp.h"
#include "include/tessera/ops.h"
#include "ops/rows.h"

static ts_status scaled_dot_product_attention(ts_vjp_call *b)
{
    ts_tensor *out = ts_saved_ret(b, 0), *g = ts_grad_out(b, 0), *g_lse = ts_grad_out(b, 1);
    const ts_value *scale = ts_arg(b, 3);
    ts_attention_opts opts = {.size = sizeof opts, .causal = ts_arg(b, 4)->i};
    opts.scale = scale->tag == TS_TAG_FLOAT ? scale->d : scale->tag == TS_TAG_NONE ? 0 : (double)scale->i;
    TS_TRY(out);
    ts_tensor *grads[3], **wanted[3];
    for (int i = 0; i < 3; i++)
        wanted[i] = ts_needs(b, i) ? &grads[i] : NULL;
    TS_TRY(ts_scaled_dot_product_attention_backward(g ? g : ts_zeros_like(out), g_lse ? g_lse : TS_NONE, ts_saved_arg(b, 0),
                                                    ts_saved_arg(b, 1), ts_saved_arg(b, 2), out, ts_saved_ret(b, 1), &opts,
                                                    wanted));
    for (int i = 0; i < 3; i++)
        if (wanted[i])
            TS_TRY(ts_give(b, i, grads[i]));
    return TS_OK;
}
const ts_vjp ts_vjp_scaled_dot_product_attention = {
    .rule = scaled_dot_product_attention,
    .always = TS_SAVE_ARG(0) | TS_SAVE_ARG(1) | TS_SAVE_ARG(2) | TS_SAVE_RET(0) | TS_SAVE_RET(1),
    .want = 2,
};
