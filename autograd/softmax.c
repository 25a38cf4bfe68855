/** @file softmax.c  Gradient rules of softmax and log_softmax. */
// SPDX-License-Identifier: MIT
#include "autograd/rule.h"

#define SUM(t, dim) ts_sum_dim(t, dim, true)

RULE(softmax, READS_Y, ts_softmax_backward(g, Y, DIM(1)))
RULE(log_softmax, READS_Y, ts_log_softmax_backward(g, Y, DIM(1)))

/** Second gradient. For dx = y (g - s), s = sum(g y), with upstream gradient u and q = sum(u y):
 *  dy = u (g - s) - g q. */
static ts_tensor *softmax_by_result(ts_tensor *u, ts_tensor *g, ts_tensor *y, int dim)
{
    ts_tensor *s = SUM(ts_mul(g, y), dim), *q = SUM(ts_mul(u, y), dim);
    return ts_sub(ts_mul(u, ts_sub(g, s)), ts_mul(g, q));
}
/* dg = y (u - q), which is the rule of softmax itself */
RULES(softmax_backward, (0, READS(1), ts_softmax_backward(g, ARG(1), DIM(2))),
      (1, READS(0) | READS(1), softmax_by_result(g, X, ARG(1), DIM(2))))

/* Second gradient. For dx = g - p s, p = exp(y), s = sum(g), with q = sum(u p):
 * dg = u - q, dy = -u p s. */
RULES_OF(log_softmax_backward, ts_mul(GRAD(0), ts_exp(ARG(1))), /* u p */
         (0, READS(1), ts_sub(GRAD(0), SUM(g, DIM(2)))),
         (1, READS(0) | READS(1), ts_neg(ts_mul(g, SUM(X, DIM(2))))))
