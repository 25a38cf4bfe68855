/** @file random.c  Gradient rules of dropout: the mask is drawn again from the random state of the
 * forward call. */
// SPDX-License-Identifier: MIT
#include "autograd/rule.h"

RULE(dropout, 0, ts_dropout_backward(g, NUM(1), ts_rule_rng(b)))
/** dropout_backward is linear in grad, so its rule is the same op with the same random state. */
RULE(dropout_backward, 0,
     ts_dropout_backward(g, NUM(1), (ts_rng_state){(uint64_t)INT(2), (uint64_t)INT(3)}))
