/** @file attention.c  Gradient rule of scaled dot-product attention. */
// SPDX-License-Identifier: MIT
#include "autograd/rule.h"
#include "dispatch/invoke.h"
#include "ops/kernel.h"

/** Indices of the forward call's arguments starting at `mask`. */
enum { MASK = 3, CU_SEQLENS, MAX_SEQLENS, SCALE, WINDOW, SOFTCAP, DROPOUT_P };

static ts_status scaled_dot_product_attention(ts_vjp_call *b)
{
    if (NEEDS(MASK))
        return ts_error_set_hint(TS_ERR_AUTOGRAD,
                                 "pass ts_detach() of it, or compute attention with separate ops",
                                 "scaled_dot_product_attention: argument 'mask': requires grad, "
                                 "and attention has no gradient for it");
    ts_tensor *out = Y, *g = GRAD(0), *g_lse = GRAD(1), *mask = ARG(MASK);
    ts_tensor *bounds[2] = {TS_NONE, TS_NONE};
    const ts_value *lists = ts_rule_arg(b, CU_SEQLENS), *p = ts_rule_arg(b, DROPOUT_P);
    for (uint32_t k = 0; lists->tag == TS_TAG_TENSORS && k < lists->count; k++)
        TS_TRY(bounds[k] = ts_rule_saved_member(b, CU_SEQLENS, (int)k));
    TS_TRY(out && mask ? out : NULL);
    ts_rng_state rng = p->d > 0 ? ts_rule_rng(b) : (ts_rng_state){0, 0};
    ts_value args[] = {V_T(g ? g : ts_zeros_like(out)),
                       V_OPT(g_lse ? g_lse : TS_NONE),
                       V_T(X),
                       V_T(ARG(1)),
                       V_T(ARG(2)),
                       V_T(out),
                       V_T(RET(1)),
                       V_OPT(mask),
                       lists->tag == TS_TAG_NONE ? *lists : V_TS(bounds, lists->count),
                       *ts_rule_arg(b, MAX_SEQLENS),
                       *ts_rule_arg(b, SCALE),
                       *ts_rule_arg(b, WINDOW),
                       *ts_rule_arg(b, SOFTCAP),
                       *p,
                       V_I((int64_t)rng.seed),
                       V_I((int64_t)rng.offset)};
    ts_value rets[3] = {ts_value_none(), ts_value_none(), ts_value_none()};
    int want = 0;
    for (int i = 0; i < 3; i++)
        want |= NEEDS(i) << i;
    TS_TRY(ts_call(TS_OP_scaled_dot_product_attention_backward, args, TS_N(args), rets, 3, 0, want,
                   __builtin_return_address(0)));
    for (int i = 0; i < 3; i++)
        rets[i].t = want >> i & 1 ? ts_scope_adopt(&ts_tls, rets[i].t) : NULL;
    for (int i = 0; i < 3; i++)
        if (want >> i & 1)
            TS_TRY(ts_rule_give(b, i, rets[i].t));
    return TS_OK;
}
const ts_vjp ts_vjp_scaled_dot_product_attention = {
    .rule = scaled_dot_product_attention,
    .always =
        READS_X | READS(1) | READS(2) | READS(MASK) | READS(CU_SEQLENS) | READS_Y | READS_RET(1),
};
