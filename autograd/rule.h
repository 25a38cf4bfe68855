/** @file rule.h  The short form of a rule for one argument: an expression of g, X and Y. */
// SPDX-License-Identifier: MIT
#ifndef TS_AUTOGRAD_RULE_H
#define TS_AUTOGRAD_RULE_H

#include "autograd/vjp.h"
#include "include/tessera/ops.h"
#include "ops/rows.h"

/** A rule in one expression of g, the result's gradient; `saved` is what it reads, X or Y. */
#define RULE(name, saved, expr)                               \
    static ts_status name##_rule(ts_vjp_call *b)              \
    {                                                         \
        ts_tensor *g = ts_rule_grad(b, 0);                     \
        return ts_rule_give(b, 0, expr);                           \
    }                                                         \
    const ts_vjp ts_vjp_##name = {.rule = name##_rule, .saves = {[0] = saved}};

#define READS_X TS_SAVE_ARG(0)
#define READS_Y TS_SAVE_RET(0)
#define X ts_rule_saved_arg(b, 0)
#define Y ts_rule_saved_ret(b, 0)

#endif
