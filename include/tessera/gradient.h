/**
 * @file gradient.h
 * Gradient rules for operators registered at run time.
 *
 * A gradient rule (vector-Jacobian product) reads the gradients of an op's results, saved tensors
 * and arguments that are not tensors, and sets the gradient of each argument that needs one. A rule
 * consists of ordinary ops, so it can be differentiated again if these ops can be:
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
 * The engine opens a scope around a rule and releases the rule's tensors when it returns. If an op
 * of the rule fails, its NULL result propagates to ts_rule_give(), which returns the error.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_GRADIENT_H
#define TESSERA_GRADIENT_H

#include "autograd.h"

TS_BEGIN_DECLS

/** One run of a rule, for one recorded call of the op. */
typedef struct ts_vjp_call ts_vjp_call;
typedef ts_status (*ts_vjp_rule)(ts_vjp_call *call); /**< a gradient rule */

/** Bits of ts_vjp_opts that name a tensor to save: argument i of the op (0 to 15), result i (0 to
 *  3). */
#define TS_SAVE_ARG(i) (1u << (i))
#define TS_SAVE_RET(i) (1u << (16 + (i)))

/** The tensors that autograd saves when it records a call, for the rule to read; zero is default.
 *  If a bit names a result that the caller of the op did not request, the op computes this
 *  result too. */
typedef struct ts_vjp_opts {
    size_t size;                     /**< sizeof(ts_vjp_opts) */
    uint32_t saves;                  /**< TS_SAVE_ bits of tensors that each run reads; 0: none */
    uint32_t saves_for[TS_MAX_ARGS]; /**< entry i: TS_SAVE_ bits of further tensors, which a run
                                          reads only if argument i needs a gradient */
} ts_vjp_opts;

/**
 * Registers an op's gradient rule, for calls that are recorded from now on; replaces an earlier
 * rule. The op itself may be registered later.
 * @param opts  NULL: the rule reads no saved tensors
 * Errors: TS_ERR_NULL (no name, no rule), TS_ERR_VALUE (size), TS_ERR_REGISTRY (invalid name),
 * TS_ERR_MEMORY.
 */
TS_API ts_status ts_register_vjp(const char *op, ts_vjp_rule rule, const ts_vjp_opts *opts);

/* For rules only: `call` is the rule's argument, valid until the rule returns. If call is NULL, a
 * function records TS_ERR_NULL and returns it, or NULL, false or zeros. For an index that the op
 * does not have, ts_rule_needs() and ts_rule_needs_member() return false; the other functions
 * record TS_ERR_INTERNAL and return it or NULL. */
/** Gradient of result i, borrowed until the rule returns; NULL, without an error, if none arrived
 *  (only possible for ops with several results). */
TS_API ts_tensor *ts_rule_grad(ts_vjp_call *call, int i);
/** True if argument i, or a member of list argument i, needs a gradient. */
TS_API bool ts_rule_needs(const ts_vjp_call *call, int i);
/** True if member k of list argument i needs a gradient. */
TS_API bool ts_rule_needs_member(const ts_vjp_call *call, int i, int k);
/** Saved tensor of argument i, borrowed until the rule returns. TS_NONE for an absent optional
 *  argument. NULL with TS_ERR_AUTOGRAD if the tensor was written after the forward call, with
 *  TS_ERR_INTERNAL if the rule's options do not save it, or with an error of ts_recompute(). */
TS_API ts_tensor *ts_rule_saved_arg(ts_vjp_call *call, int i);
/** Saved tensor of member k of list argument i, as ts_rule_saved_arg(). */
TS_API ts_tensor *ts_rule_saved_member(ts_vjp_call *call, int i, int k);
/** Saved tensor of result i, as ts_rule_saved_arg(). */
TS_API ts_tensor *ts_rule_saved_ret(ts_vjp_call *call, int i);
/** Boxed argument i of the forward call, borrowed until the rule returns. If it is a tensor, only
 *  its tag is valid; if it is a list of tensors, only tag and count. */
TS_API const ts_value *ts_rule_arg(const ts_vjp_call *call, int i);
/** The state of the generator (seed and first counter) with which the forward call of a random op
 *  drew its numbers. */
TS_API ts_rng_state ts_rule_rng(const ts_vjp_call *call);
/** Sets the gradient of argument i. grad is borrowed, must live until the rule returns, and must be
 *  on the argument's device, which is not checked. The engine sums grad to the argument's sizes and
 *  casts it to the argument's dtype, which undoes broadcasting and promotion. If grad is NULL, an
 *  op of the rule failed, and its recorded error is returned. Errors: TS_ERR_NULL (TS_NONE),
 *  TS_ERR_STATE (released); TS_ERR_SHAPE if the argument's sizes do not broadcast to grad's;
 *  TS_ERR_INTERNAL if grad has fewer dims than the argument, or if argument i is not a tensor;
 *  TS_ERR_MEMORY. */
TS_API ts_status ts_rule_give(ts_vjp_call *call, int i, ts_tensor *grad);
/** Sets the gradient of member k of list argument i, as ts_rule_give(). */
TS_API ts_status ts_rule_give_member(ts_vjp_call *call, int i, int k, ts_tensor *grad);
/** Undoes broadcasting: returns g summed to the sizes of argument i, in g's dtype; returns g itself
 *  if argument i is not a tensor. ts_rule_give() casts the sum to the argument's dtype. If g is
 *  NULL, returns NULL without an error. Errors: those of ts_sum_to_size(). */
TS_API ts_tensor *ts_rule_reduce_to(ts_vjp_call *call, int i, ts_tensor *g);

TS_END_DECLS
#endif
