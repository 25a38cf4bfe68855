/** @file activation.c  Gradient rules of the activation functions; each is one fused op. */
// SPDX-License-Identifier: MIT
#include <math.h>

#include "autograd/rule.h"

RULE(relu, READS_Y, ts_threshold_backward(g, Y, 0))
RULE(leaky_relu, READS_X, ts_leaky_relu_backward(g, X, NUM(1)))
RULE(elu, READS_X, ts_elu_backward(g, X, NUM(1)))
RULE(sigmoid, READS_Y, ts_sigmoid_backward(g, Y))
RULE(tanh, READS_Y, ts_tanh_backward(g, Y))
RULE(log_sigmoid, READS_X, ts_softplus_backward(g, X, -1, INFINITY)) /* g sigmoid(-x) */
RULE(gelu, READS_X, ts_gelu_backward(g, X, INT(1)))
RULE(silu, READS_X, ts_silu_backward(g, X))
RULE(softplus, READS_X, ts_softplus_backward(g, X, NUM(1), NUM(2)))
RULE(mish, READS_X, ts_mish_backward(g, X))

/* Second gradients: rules of the backward ops. Argument 0 of each op is the upstream gradient of
 * the activation; argument 1 is its saved input or result. Where the derivative is piecewise
 * constant, the gradient of argument 1 is 0. */
RULES(threshold_backward, (0, READS(1), ts_threshold_backward(g, ARG(1), NUM(2))),
      (1, 0, ts_zeros_like(g)))
RULES(leaky_relu_backward, (0, READS(1), ts_leaky_relu_backward(g, ARG(1), NUM(2))),
      (1, 0, ts_zeros_like(g)))
RULES(tanh_backward, (0, READS(1), ts_tanh_backward(g, ARG(1))), /* d(1 - y^2) = -2 y */
      (1, READS(0) | READS(1), ts_mul(ts_mul_scalar(ts_mul(g, X), -2), ARG(1))))
RULES(sigmoid_backward, (0, READS(1), ts_sigmoid_backward(g, ARG(1))), /* d(y (1 - y)) = 1 - 2 y */
      (1, READS(0) | READS(1), ts_mul(ts_mul(g, X), ts_rsub_scalar(ts_mul_scalar(ARG(1), 2), 1))))

/* Below, g is the upstream gradient of the backward op's result, X its argument 0, and P their
 * product. Each NAME_second() returns p f''(x), the gradient of the saved input x, with p = P and
 * the activation f; comments give f''. */
#define P ts_mul(g, X)

/** p s (1 - s) with s = sigmoid(x). sigmoid(-|x|) gives the same product, without cancellation in
 * 1 - s. */
static ts_tensor *by_sigmoid_slope(ts_tensor *p, ts_tensor *x)
{
    return ts_sigmoid_backward(p, ts_sigmoid(ts_neg(ts_abs(x))));
}

/* f'' = s (1 - s) (2 - x tanh(x / 2)) with s = sigmoid(x) */
static ts_tensor *silu_second(ts_tensor *p, ts_tensor *x)
{
    ts_tensor *bend = ts_mul(x, ts_tanh(ts_mul_scalar(x, 0.5)));
    return ts_mul(by_sigmoid_slope(p, x), ts_rsub_scalar(bend, 2));
}
RULES(silu_backward, (0, READS(1), ts_silu_backward(g, ARG(1))),
      (1, READS(0) | READS(1), silu_second(P, ARG(1))))

/* f'' = phi(x) (2 - x^2) with the standard normal density phi. For the tanh form 0.5 x (1 + t) with
 * t = tanh(k x + k c x^3) and r = k + 3 k c x^2, f'' = (1 - t^2) (k + 6 k c x^2 - x t r^2) */
static ts_tensor *gelu_second(ts_tensor *p, ts_tensor *x, bool tanh_form)
{
    const double k = 0.79788456080286535588, c = 0.044715, density = 0.39894228040143267794;
    ts_tensor *xx = ts_square(x);
    if (!tanh_form) {
        ts_tensor *bell = ts_exp(ts_mul_scalar(xx, -0.5));
        return ts_mul(p, ts_mul(bell, ts_rsub_scalar(ts_mul_scalar(xx, density), 2 * density)));
    }
    ts_tensor *t = ts_tanh(ts_mul(x, ts_add_scalar(ts_mul_scalar(xx, k * c), k)));
    ts_tensor *r = ts_add_scalar(ts_mul_scalar(xx, 3 * k * c), k);
    ts_tensor *bend = ts_mul(ts_mul(x, t), ts_square(r));
    return ts_mul(ts_tanh_backward(p, t),
                  ts_sub(ts_add_scalar(ts_mul_scalar(xx, 6 * k * c), k), bend));
}
RULES(gelu_backward, (0, READS(1), ts_gelu_backward(g, ARG(1), INT(2))),
      (1, READS(0) | READS(1), gelu_second(P, ARG(1), INT(2))))

/* f'' = alpha e^x = f' where x <= 0, and 0 elsewhere */
RULES(elu_backward, (0, READS(1), ts_elu_backward(g, ARG(1), NUM(2))),
      (1, READS(0) | READS(1),
       ts_masked_fill_scalar(ts_elu_backward(P, ARG(1), NUM(2)), ts_gt_scalar(ARG(1), 0), 0)))

/* f'' = beta s (1 - s) with s = sigmoid(beta x), and 0 where beta x > threshold */
static ts_tensor *softplus_second(ts_tensor *p, ts_tensor *x, double beta, double threshold)
{
    ts_tensor *bx = beta == 1 ? x : ts_mul_scalar(x, beta);
    ts_tensor *slope = by_sigmoid_slope(p, bx);
    slope = beta == 1 ? slope : ts_mul_scalar(slope, beta);
    return isinf(threshold) ? slope : ts_masked_fill_scalar(slope, ts_gt_scalar(bx, threshold), 0);
}
RULES(softplus_backward, (0, READS(1), ts_softplus_backward(g, ARG(1), NUM(2), NUM(3))),
      (1, READS(0) | READS(1), softplus_second(P, ARG(1), NUM(2), NUM(3))))

/* f'' = s (1 - t^2) (2 + x (1 - s - 2 s t)) with s = sigmoid(x), t = tanh(softplus(x)) */
static ts_tensor *mish_second(ts_tensor *p, ts_tensor *x)
{
    ts_tensor *s = ts_sigmoid(x), *t = ts_tanh(ts_softplus(x, 1, 20));
    ts_tensor *rest = ts_sub(ts_sigmoid(ts_neg(x)), ts_mul_scalar(ts_mul(s, t), 2));
    ts_tensor *bend = ts_add_scalar(ts_mul(x, rest), 2);
    return ts_mul(ts_tanh_backward(ts_mul(p, s), t), bend);
}
RULES(mish_backward, (0, READS(1), ts_mish_backward(g, ARG(1))),
      (1, READS(0) | READS(1), mish_second(P, ARG(1))))
