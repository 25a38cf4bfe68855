/**
 * @file gradient.h
 * Gradient rules for operators registered at run time.
 *
 * A rule reads gradients of results, saved tensors and plain arguments, computes with
 * ordinary ops (so it differentiates again wherever they do), and gives a gradient for each
 * argument that needs one:
 *
 *     static ts_status scaled_mul(ts_vjp_call *call)          // y = a * b * s
 *     {
 *         double s = ts_value_number(ts_rule_arg(call, 2));
 *         ts_tensor *g = ts_mul_scalar(ts_rule_grad(call, 0), s);
 *         for (int i = 0; i < 2; i++)
 *             if (ts_rule_needs(call, i))
 *                 TS_TRY(ts_rule_give(call, i, ts_mul(g, ts_rule_saved_arg(call, 1 - i))));
 *         return TS_OK;
 *     }
 *     ts_vjp_opts opts = {.size = sizeof opts, .saves = TS_SAVE_ARG(0) | TS_SAVE_ARG(1)};
 *     TS_TRY(ts_register_vjp("mine.scaled_mul", scaled_mul, &opts));
 *
 * The engine opens a scope around a rule, which releases the rule's tensors.
 * NULL travels through its calls to ts_rule_give(), which reports it.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_GRADIENT_H
#define TESSERA_GRADIENT_H

#include "autograd.h"

TS_BEGIN_DECLS

/** One run of a rule. */
typedef struct ts_vjp_call ts_vjp_call;
typedef ts_status (*ts_vjp_rule)(ts_vjp_call *call);

/** Bits of the tensors that a rule reads: argument i, result i. */
#define TS_SAVE_ARG(i) (1u << (i))
#define TS_SAVE_RET(i) (1u << (16 + (i)))

/** The tensors that a rule reads; zero is default. A result that it reads is made even
 *  when the caller does not want it. */
typedef struct ts_vjp_opts {
    size_t size;                     /**< sizeof(ts_vjp_opts) */
    uint32_t saves;                  /**< bits of the tensors that the rule always reads */
    uint32_t saves_for[TS_MAX_ARGS]; /**< bits of further tensors that it reads if argument i needs
                                          a gradient */
} ts_vjp_opts;

/**
 * Gives an op its gradient rule; the op may be registered later.
 * It holds for calls recorded from then on.
 * @param opts  NULL: the rule reads nothing but gradients and plain arguments
 * Errors: TS_ERR_NULL (no name, no rule), TS_ERR_VALUE (size), TS_ERR_REGISTRY (an odd name).
 */
TS_API ts_status ts_register_vjp(const char *op, ts_vjp_rule rule, const ts_vjp_opts *opts);

/** Gradient of result i; NULL when none arrived (only possible for ops with several results). */
TS_API ts_tensor *ts_rule_grad(ts_vjp_call *call, int i);
/** True when argument i (or a member of list i) needs a gradient. */
TS_API bool ts_rule_needs(const ts_vjp_call *call, int i);
/** True when member k of list argument i needs a gradient. */
TS_API bool ts_rule_needs_member(const ts_vjp_call *call, int i, int k);
/** Saved tensor of argument i; NULL with an error when it was written since.
 *  TS_NONE for an absent optional argument. Belongs to the engine's scope. */
TS_API ts_tensor *ts_rule_saved_arg(ts_vjp_call *call, int i);
/** Whether member k of list argument i needs a gradient. */
TS_API ts_tensor *ts_rule_saved_member(ts_vjp_call *call, int i, int k);
/** The same of result i. */
TS_API ts_tensor *ts_rule_saved_ret(ts_vjp_call *call, int i);
/** Boxed argument i as it was; for tensors only the tag and, for lists, count are valid. */
TS_API const ts_value *ts_rule_arg(const ts_vjp_call *call, int i);
/** Random counters that the forward call had. */
TS_API ts_rng_state ts_rule_rng(const ts_vjp_call *call);
/** Gradient for argument i; NULL means that computing it failed. It is summed to the argument's
 *  sizes and cast to its dtype, which undoes broadcasting and promotion. */
TS_API ts_status ts_rule_give(ts_vjp_call *call, int i, ts_tensor *grad);
/** Gradient for member k of list argument i. */
TS_API ts_status ts_rule_give_member(ts_vjp_call *call, int i, int k, ts_tensor *grad);
/** Undoes broadcasting: g summed to the sizes of argument i. The dtype is kept for further
 * computation; ts_rule_give() casts. NULL-safe. */
TS_API ts_tensor *ts_rule_reduce_to(ts_vjp_call *call, int i, ts_tensor *g);

TS_END_DECLS
#endif
