/** @file random.c  Rules of dropout: the mask is drawn again
 * from the counters of the forward call. */
// SPDX-License-Identifier: MIT
#include "autograd/vjp.h"
#include "include/tessera/ops.h"
#include "ops/rows.h"

static ts_status dropout(ts_vjp_call *b)
{
    return ts_rule_give(
        b, 0, ts_dropout_backward(ts_rule_grad(b, 0), ts_rule_arg(b, 1)->d, ts_rule_rng(b)));
}
const ts_vjp ts_vjp_dropout = {.rule = dropout};

/** Linear in grad, so its gradient is itself. */
static ts_status dropout_backward(ts_vjp_call *b)
{
    ts_rng_state at = {(uint64_t)ts_rule_arg(b, 2)->i, (uint64_t)ts_rule_arg(b, 3)->i};
    return ts_rule_give(b, 0, ts_dropout_backward(ts_rule_grad(b, 0), ts_rule_arg(b, 1)->d, at));
}
const ts_vjp ts_vjp_dropout_backward = {.rule = dropout_backward};
