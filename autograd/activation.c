/** @file activation.c  Rules of the activation functions: one fused call each. */
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

/* Gradients of gradients: argument 0 is the upstream gradient, argument 1 the point of the
 * derivative. Piecewise constant derivatives have the gradient 0. */
RULES(threshold_backward, (0, READS(1), ts_threshold_backward(g, ARG(1), NUM(2))),
      (1, 0, ts_zeros_like(g)))
RULES(leaky_relu_backward, (0, READS(1), ts_leaky_relu_backward(g, ARG(1), NUM(2))),
      (1, 0, ts_zeros_like(g)))
RULES(tanh_backward, (0, READS(1), ts_tanh_backward(g, ARG(1))), /* d(1 - y^2) = -2 y */
      (1, READS(0) | READS(1), ts_mul(ts_mul_scalar(ts_mul(g, X), -2), ARG(1))))
RULES(sigmoid_backward, (0, READS(1), ts_sigmoid_backward(g, ARG(1))), /* d(y (1 - y)) = 1 - 2 y */
      (1, READS(0) | READS(1), ts_mul(ts_mul(g, X), ts_rsub_scalar(ts_mul_scalar(ARG(1), 2), 1))))
