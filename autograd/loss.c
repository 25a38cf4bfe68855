/** @file loss.c  Rules of losses. */
// SPDX-License-Identifier: MIT
#include "autograd/rule.h"

static ts_status cross_entropy(ts_vjp_call *b)
{
    ts_tensor *g = ts_rule_grad(b, 0), *g_lse = ts_rule_grad(b, 1), *x = ts_rule_saved_arg(b, 0),
              *lse = ts_rule_saved_ret(b, 1);
    ts_tensor *dx = NULL;
    TS_TRY(x);
    if (g)
        TS_TRY(dx = ts_cross_entropy_backward(g, x, ts_rule_saved_arg(b, 1), lse,
                                              (ts_reduction)ts_rule_arg(b, 2)->i,
                                              ts_rule_arg(b, 3)->i, ts_rule_arg(b, 4)->d));
    if (g_lse) { /* d log(sum(exp)) = softmax */
        int dim = x->ndim > 1;
        ts_tensor *part =
            ts_mul(ts_exp(ts_sub(x, ts_unsqueeze(lse, dim))), ts_unsqueeze(g_lse, dim));
        dx = dx ? ts_add(dx, part) : part;
    }
    return ts_rule_give(b, 0, dx); /* of halves lse is f32 */
}
const ts_vjp ts_vjp_cross_entropy = {
    .rule = cross_entropy, .always = TS_SAVE_ARG(0) | TS_SAVE_ARG(1) | TS_SAVE_RET(1), .want = 2};

static ts_status nll_loss(ts_vjp_call *b)
{
    return ts_rule_give(
        b, 0,
        ts_nll_loss_backward(ts_rule_grad(b, 0), ts_rule_saved_arg(b, 0), ts_rule_saved_arg(b, 1),
                             (ts_reduction)ts_rule_arg(b, 2)->i, ts_rule_arg(b, 3)->i));
}
const ts_vjp ts_vjp_nll_loss = {.rule = nll_loss, .always = TS_SAVE_ARG(0) | TS_SAVE_ARG(1)};

/** Linear in grad, and self does not matter: the gradient of grad is the loss
 * of the upstream itself. */
static ts_status nll_loss_backward(ts_vjp_call *b)
{
    ts_tensor *u = ts_rule_grad(b, 0);
    int64_t ignore = ts_rule_arg(b, 4)->i;
    ts_loss_opts opts = {.size = sizeof opts,
                         .reduction = (ts_reduction)ts_rule_arg(b, 3)->i,
                         .ignore_index = &ignore};
    if (ts_rule_needs(b, 0))
        TS_TRY(ts_rule_give(
            b, 0, ts_rule_reduce_to(b, 0, ts_nll_loss_ex(u, ts_rule_saved_arg(b, 2), &opts))));
    return ts_rule_needs(b, 1) ? ts_rule_give(b, 1, ts_zeros_like(u)) : TS_OK;
}
const ts_vjp ts_vjp_nll_loss_backward = {.rule = nll_loss_backward,
                                         .saves = {[0] = TS_SAVE_ARG(2)}};

/** dx and dt to those who need them, in their dtypes. */
static ts_status give_pair(ts_vjp_call *b, ts_tensor *dx, ts_tensor *dt)
{
    TS_TRY(dx);
    GIVE(0, dx);
    return ts_rule_needs(b, 1) ? ts_rule_give(b, 1, dt) : TS_OK;
}

#define PAIR(name, ...)                                                                            \
    static ts_status name(ts_vjp_call *b)                                                          \
    {                                                                                              \
        ts_tensor *dt = NULL;                                                                      \
        ts_tensor *dx = ts_##name##_backward(                                                      \
            ts_rule_grad(b, 0), ts_rule_saved_arg(b, 0), ts_rule_saved_arg(b, 1),                  \
            (ts_reduction)ts_rule_arg(b, 2)->i, ##__VA_ARGS__, ts_rule_needs(b, 1) ? &dt : NULL);  \
        return give_pair(b, dx, dt);                                                               \
    }                                                                                              \
    const ts_vjp ts_vjp_##name = {.rule = name, .always = TS_SAVE_ARG(0) | TS_SAVE_ARG(1)};

PAIR(mse_loss)
PAIR(l1_loss)
PAIR(binary_cross_entropy_with_logits)
PAIR(smooth_l1_loss, ts_rule_arg(b, 3)->d)
PAIR(huber_loss, ts_rule_arg(b, 3)->d)
PAIR(kl_div, ts_rule_arg(b, 3)->i)
