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
    return ts_rule_give(b, 0, dx); /* casts dx, which may be f32 like lse, to x's dtype */
}
const ts_vjp ts_vjp_cross_entropy = {
    .rule = cross_entropy, .always = READS_X | READS(1) | READS_RET(1)};

RULE(nll_loss, READS(0) | READS(1),
     ts_nll_loss_backward(g, X, ARG(1), (ts_reduction)INT(2), INT(3)))

/** Second gradient of nll_loss with respect to `grad`, for the upstream gradient u. The backward op
 *  is linear in grad and does not depend on self's values, so it is nll_loss applied to u. */
static ts_tensor *loss_of(ts_vjp_call *b, ts_tensor *u)
{
    int64_t ignore = INT(4);
    ts_loss_opts opts = {
        .size = sizeof opts, .reduction = (ts_reduction)INT(3), .ignore_index = &ignore};
    return ts_nll_loss_ex(u, ARG(2), &opts);
}
RULES(nll_loss_backward, (0, READS(2), loss_of(b, g)), (1, 0, ts_zeros_like(g)))

/** Rule of a loss whose backward op computes the gradients of self and target in one call. */
#define PAIR(name, ...)                                                                            \
    static ts_status name(ts_vjp_call *b)                                                          \
    {                                                                                              \
        ts_tensor *dt = NULL;                                                                      \
        ts_tensor *dx = ts_##name##_backward(GRAD(0), X, ARG(1), (ts_reduction)INT(2),             \
                                             ##__VA_ARGS__, NEEDS(1) ? &dt : NULL);     \
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

/* --------------------------------------------------------- second gradients of pair losses ---- */

/* A backward op has the arguments (grad, self, target, reduction, ...). Its results are
 * scale * grad * l_self and scale * grad * l_target, where l_self and l_target are the derivatives
 * of one element's loss. u and v are the upstream gradients of these results; one of them may be
 * NULL. */

/** 1 / number of elements for TS_REDUCTION_MEAN, 1 / batch for TS_REDUCTION_BATCHMEAN, else 1. */
static double scale_of(ts_vjp_call *b)
{
    ts_meta self = ts_rule_arg_meta(b, 1);
    int64_t n = 1;
    for (int d = 0; d < self.ndim; d++)
        n *= self.sizes[d];
    if (INT(3) == TS_REDUCTION_BATCHMEAN && self.ndim)
        return 1 / (double)self.sizes[0];
    return INT(3) == TS_REDUCTION_MEAN ? 1 / (double)n : 1;
}

static ts_tensor *scaled(ts_tensor *t, double scale)
{
    return scale == 1 ? t : ts_mul_scalar(t, scale);
}

/** u - v: the upstream gradient of result 0 if result 1 is the negative of result 0. */
static ts_tensor *difference_gradient(ts_vjp_call *b)
{
    ts_tensor *u = GRAD(0), *v = GRAD(1);
    return u && v ? ts_sub(u, v) : u ? u : ts_neg(v);
}

/** Keeps p where |self - target| is at most `bound`, 0 elsewhere. */
static ts_tensor *within(ts_vjp_call *b, ts_tensor *p, double bound)
{
    ts_tensor *far = ts_gt_scalar(ts_abs(ts_sub(ARG(1), ARG(2))), bound);
    return ts_masked_fill_scalar(p, far, 0);
}

/** Second gradients of a loss of self - target, so l_target = -l_self. p is
 *  scale * grad * (u - v); `bend` is p times the second derivative of one element's loss. */
#define DIFFERENCE(name, bend, ...)                                                                \
    static ts_status name##_second(ts_vjp_call *b)                                                 \
    {                                                                                              \
        ts_tensor *w = difference_gradient(b);                                                     \
        double scale = scale_of(b);                                                                \
        GIVE(0, scaled(ts_##name##_backward(w, ARG(1), ARG(2), TS_REDUCTION_NONE, ##__VA_ARGS__,   \
                                            NULL), scale));                                        \
        if (NEEDS(1) || NEEDS(2)) {                                          \
            ts_tensor *p = scaled(ts_mul(w, ARG(0)), scale), *by_self = bend;                      \
            GIVE(1, by_self);                                                                      \
            GIVE(2, ts_neg(by_self));                                                              \
        }                                                                                          \
        return TS_OK;                                                                              \
    }                                                                                              \
    const ts_vjp ts_vjp_##name##_backward = {.rule = name##_second,                                \
                                             .always = READS(0) | READS(1) | READS(2)};

DIFFERENCE(mse_loss, ts_mul_scalar(p, 2))
DIFFERENCE(l1_loss, ts_zeros_like(p))
DIFFERENCE(smooth_l1_loss,
           NUM(4) == 0 ? ts_zeros_like(p) : ts_mul_scalar(within(b, p, NUM(4)), 1 / NUM(4)), NUM(4))
DIFFERENCE(huber_loss, within(b, p, NUM(4)), NUM(4))

/* l_self = s - target and l_target = -self with s = sigmoid(self). s (1 - s) is computed with
 * sigmoid(-|self|), which gives the same product without cancellation in 1 - s. */
static ts_status logits_second(ts_vjp_call *b)
{
    ts_tensor *u = GRAD(0), *v = GRAD(1), *g = ARG(0), *x = ARG(1), *t = ARG(2);
    double scale = scale_of(b);
    if (NEEDS(0)) {
        ts_tensor *by_u = u ? ts_binary_cross_entropy_with_logits_backward(
                                  u, x, t, TS_REDUCTION_NONE, NULL)
                            : NULL,
                  *by_v = v ? ts_mul(v, x) : NULL;
        GIVE(0, scaled(by_u && by_v ? ts_sub(by_u, by_v) : by_u ? by_u : ts_neg(by_v), scale));
    }
    ts_tensor *p = u ? scaled(ts_mul(u, g), scale) : NULL,
              *q = v ? scaled(ts_mul(v, g), scale) : NULL;
    if (NEEDS(1)) {
        ts_tensor *bend = p ? ts_sigmoid_backward(p, ts_sigmoid(ts_neg(ts_abs(x)))) : NULL;
        GIVE(1, bend && q ? ts_sub(bend, q) : bend ? bend : ts_neg(q));
    }
    if (p)
        GIVE(2, ts_neg(p));
    return TS_OK;
}
const ts_vjp ts_vjp_binary_cross_entropy_with_logits_backward = {
    .rule = logits_second, .always = READS(0) | READS(1) | READS(2)};

/** Sum of a and b, of which one may be NULL. */
static ts_tensor *sum_of_any(ts_tensor *a, ts_tensor *b)
{
    return a && b ? ts_add(a, b) : a ? a : b;
}

/* With e = exp(target), l_self is -target, or -e with log_target; l_target is
 * log(target) + 1 - self, or e (1 - self + target). */
static ts_status divergence_second(ts_vjp_call *b)
{
    ts_tensor *u = GRAD(0), *v = GRAD(1), *g = ARG(0), *x = ARG(1), *t = ARG(2);
    bool log_target = INT(4);
    double scale = scale_of(b);
    ts_tensor *e = log_target ? ts_exp(t) : NULL, *by_u = NULL, *by_v = NULL, *p = NULL, *q = NULL;
    if (NEEDS(0)) {
        if (u)
            by_u = ts_kl_div_backward(u, x, t, TS_REDUCTION_NONE, log_target, NULL);
        if (v) /* the gradient of target for the upstream gradient v */
            ts_kl_div_backward(v, x, t, TS_REDUCTION_NONE, log_target, &by_v);
        GIVE(0, scaled(sum_of_any(by_u, by_v), scale));
    }
    if (u && NEEDS(2)) /* -u g times the derivative of target, or of e */
        p = scaled(ts_neg(log_target ? ts_mul(ts_mul(u, g), e) : ts_mul(u, g)), scale);
    if (v && (NEEDS(1) || NEEDS(2)))
        q = scaled(log_target ? ts_mul(ts_mul(v, g), e) : ts_mul(v, g), scale);
    if (q)
        GIVE(1, ts_neg(q));
    if (NEEDS(2)) {
        ts_tensor *bend = !q           ? NULL
                          : log_target ? ts_mul(q, ts_rsub_scalar(ts_sub(x, t), 2))
                                       : ts_div(q, t);
        GIVE(2, sum_of_any(p, bend));
    }
    return TS_OK;
}
const ts_vjp ts_vjp_kl_div_backward = {
    .rule = divergence_second, .always = READS(0) | READS(1) | READS(2)};
