/** @file rule.h  Macros for the library's gradient rules. */
// SPDX-License-Identifier: MIT
#ifndef TS_AUTOGRAD_RULE_H
#define TS_AUTOGRAD_RULE_H

#include "autograd/engine.h"
#include "autograd/vjp.h"
#include "include/tessera/ops.h"

/* Declares the rules that rows of ops.def name. NODIFF and BY_PARTS rows have no rule. */
#define VJP(rule) extern const ts_vjp ts_vjp_##rule;
#define NODIFF
#define BY_PARTS
#define TS_OP(name, schema, forms, kind, infer, composite, gradient, ...) gradient
#include "ops/ops.def"
#undef TS_OP
#undef VJP
#undef NODIFF
#undef BY_PARTS

/** Bits of the arguments and results that a rule reads. */
#define READS(i) TS_SAVE_ARG(i)
#define READS_RET(i) TS_SAVE_RET(i)
#define READS_X READS(0)
#define READS_Y READS_RET(0)

/* Values in a rule whose parameter is ts_vjp_call *b; tensors are borrowed.
 * NEEDS(i)        1 if argument i needs a gradient, else 0
 * GRAD(i)         gradient of result i; NULL if none arrived
 * ARG(i), RET(i)  saved argument i, saved result i; TS_NONE if absent, NULL with an error
 * INT, DIM, NUM   argument `at`, not a tensor, as int64_t, int, double
 * SIZES(i)        sizes and ndim of tensor argument i, separated by a comma */
#define NEEDS(i) (b->node->needs >> (i) & 1)
#define GRAD(i) (b->grads[i])
#define ARG(i) ts_rule_saved_arg(b, i)
#define RET(i) ts_rule_saved_ret(b, i)
#define X ARG(0)
#define Y RET(0)
#define INT(at) (b->node->args[at].i)
#define DIM(at) ((int)INT(at))
#define NUM(at) (b->node->args[at].d)
#define SIZES(i) ts_rule_arg_meta(b, i).sizes, ts_rule_arg_meta(b, i).ndim

/** If argument i of call b needs a gradient, evaluates `gradient` and passes it to ts_rule_give(),
 *  which undoes broadcasting and promotion. Returns from the rule on an error. */
#define GIVE(i, gradient)                                                                          \
    do {                                                                                           \
        if (NEEDS(i))                                                                              \
            TS_TRY(ts_rule_give(b, i, gradient));                                                  \
    } while (0)

/** A rule for argument 0 alone. reads: READS bits of the tensors in `expr`, which computes the
 *  argument's gradient from g, the gradient of result 0. Example:
 *      RULE(tanh, READS_Y, ts_tanh_backward(g, Y)) */
#define RULE(name, reads, expr) RULE_WITH(name, expr, .saves = {[0] = reads})
/** A rule of a view, whose gradient has the same elements as g in other positions. */
#define VIEW_RULE(name, expr) RULE_WITH(name, expr, .view = true)
#define RULE_WITH(name, expr, ...)                                                                 \
    static ts_status name##_rule(ts_vjp_call *b)                                                   \
    {                                                                                              \
        ts_tensor *g = GRAD(0);                                                                    \
        return ts_rule_give(b, 0, expr);                                                           \
    }                                                                                              \
    const ts_vjp ts_vjp_##name = {.rule = name##_rule, __VA_ARGS__};

/** A rule for two or three arguments: a triple (argument, READS bits, expression of g) for each. */
#define RULES(name, ...) RULES_OF(name, GRAD(0), __VA_ARGS__)
/** Like RULES(), with the expression `shared` as g in all gradients. */
#define RULES_OF(name, shared, ...)                                                                \
    static ts_status name##_rule(ts_vjp_call *b)                                                   \
    {                                                                                              \
        ts_tensor *g = shared;                                                                     \
        EACH(GIVE_PART, __VA_ARGS__)                                                               \
        return TS_OK;                                                                              \
    }                                                                                              \
    const ts_vjp ts_vjp_##name = {.rule = name##_rule, .saves = {EACH(SAVE_PART, __VA_ARGS__)}};
/* Helpers of RULES_OF(): EACH(part, ...) applies the macro `part` to two or three triples. */
#define GIVE_PART(i, reads, expr) GIVE(i, expr);
#define SAVE_PART(i, reads, expr) [i] = (reads),

#define EACH(part, ...) EACH_OF(__VA_ARGS__, EACH_3, EACH_2, )(part, __VA_ARGS__)
#define EACH_OF(first, second, third, each, ...) each
#define EACH_2(part, first, second) part first part second
#define EACH_3(part, first, second, third) part first part second part third

#endif
