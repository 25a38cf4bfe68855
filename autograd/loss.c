/** @file loss.c  Gradient rules of losses. */
// SPDX-License-Identifier: MIT
#include "autograd/rule.h"

static ts_status cross_entropy(ts_vjp_call *b)
{
    ts_tensor *g = GRAD(0), *g_lse = GRAD(1), *x = X, *lse = RET(1);
    ts_tensor *dx = NULL;
    TS_TRY(x);
    if (g)
        TS_TRY(dx = ts_cross_entropy_backward(g, x, ARG(1), lse, (ts_reduction)INT(2), INT(3),
                                              NUM(4)));
    if (g_lse) { /* d log(sum(exp)) = softmax */
        int dim = x->ndim > 1;
        ts_tensor *part =
            ts_mul(ts_softmax_as(x, dim, (ts_dtype)lse->dtype), ts_unsqueeze(g_lse, dim));
        dx = dx ? ts_add(dx, part) : part;
    }
    return ts_rule_give(b, 0, dx); /* lse is f32 for halves */
}
const ts_vjp ts_vjp_cross_entropy = {
    .rule = cross_entropy, .always = READS_X | READS(1) | READS_RET(1)};

RULE(nll_loss, READS(0) | READS(1),
     ts_nll_loss_backward(g, X, ARG(1), (ts_reduction)INT(2), INT(3)))

/** Gradient of `grad` in a backward op that is linear in grad and independent of self: the loss
 *  applied to the upstream gradient u. */
static ts_tensor *loss_of(ts_vjp_call *b, ts_tensor *u)
{
    int64_t ignore = INT(4);
    ts_loss_opts opts = {
        .size = sizeof opts, .reduction = (ts_reduction)INT(3), .ignore_index = &ignore};
    return ts_nll_loss_ex(u, ARG(2), &opts);
}
RULES(nll_loss_backward, (0, READS(2), loss_of(b, g)), (1, 0, ts_zeros_like(g)))

/** A loss whose gradient op computes both gradients. */
#define PAIR(name, ...)                                                                            \
    static ts_status name(ts_vjp_call *b)                                                          \
    {                                                                                              \
        ts_tensor *dt = NULL;                                                                      \
        ts_tensor *dx = ts_##name##_backward(GRAD(0), X, ARG(1), (ts_reduction)INT(2),             \
                                             ##__VA_ARGS__, ts_rule_needs(b, 1) ? &dt : NULL);     \
        TS_TRY(dx);                                                                                \
        GIVE(0, dx);                                                                               \
        GIVE(1, dt);                                                                               \
        return TS_OK;                                                                              \
    }                                                                                              \
    const ts_vjp ts_vjp_##name = {.rule = name, .always = READS(0) | READS(1)};

PAIR(mse_loss)
PAIR(l1_loss)
PAIR(binary_cross_entropy_with_logits)
PAIR(smooth_l1_loss, NUM(3))
PAIR(huber_loss, NUM(3))
PAIR(kl_div, INT(3))
