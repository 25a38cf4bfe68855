/** @file rule.h  Short forms in which the rules of the library are written. */
// SPDX-License-Identifier: MIT
#ifndef TS_AUTOGRAD_RULE_H
#define TS_AUTOGRAD_RULE_H

#include "autograd/rules.h"
#include "include/tessera/ops.h"

/** Gives argument i of call b its gradient, if it needs one; broadcasting and promotion are undone.
 *  Leaves the rule when that fails. */
#define GIVE(i, gradient)                                \
    do {                                                 \
        if (ts_rule_needs(b, i))                         \
            TS_TRY(ts_rule_give(b, i, gradient));        \
    } while (0)

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
