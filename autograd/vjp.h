/**
 * @file vjp.h  How a gradient rule is written.
 *
 * A rule is a function over a ts_vjp_call: it reads gradients of results, saved tensors and plain
 * arguments, computes with ordinary ops (so it differentiates again wherever they do), and gives a
 * gradient for each argument that needs one:
 *
 *     static ts_status mul(ts_vjp_call *b)
 *     {
 *         ts_tensor *g = ts_grad_out(b, 0);
 *         if (ts_needs(b, 0))
 *             TS_TRY(ts_give(b, 0, ts_reduce_to(b, 0, ts_mul(g, ts_saved_arg(b, 1)))));
 *         if (ts_needs(b, 1))
 *             TS_TRY(ts_give(b, 1, ts_reduce_to(b, 1, ts_mul(g, ts_saved_arg(b, 0)))));
 *         return TS_OK;
 *     }
 *     const ts_vjp ts_vjp_mul = {mul, .saves = {[0] = TS_SAVE_ARG(1), [1] = TS_SAVE_ARG(0)}};
 *
 * The engine opens a scope around the rule; everything the rule makes is released after it.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_AUTOGRAD_VJP_H
#define TS_AUTOGRAD_VJP_H

#include "dispatch/op.h"

typedef struct ts_vjp_call ts_vjp_call;

#define TS_SAVE_ARG(i) (1u << (i))
#define TS_SAVE_RET(i) (1u << (16 + (i)))

struct ts_vjp {
    ts_status (*rule)(ts_vjp_call *b);
    uint32_t saves[TS_MAX_ARGS]; /* what the rule reads when argument i needs a gradient */
    uint32_t always;             /* what it reads whichever argument needs one */
    uint8_t want;                /* results the rule reads: made even when the caller does not want them */
};

/** Gradient of result i; NULL when none arrived (only possible for ops with several results). */
ts_tensor *ts_grad_out(ts_vjp_call *b, int i);
/** True when argument i (or a member of list i) needs a gradient. */
bool ts_needs(const ts_vjp_call *b, int i);
/** True when member k of list argument i needs a gradient. */
bool ts_needs_member(const ts_vjp_call *b, int i, int k);
/** Saved tensor of argument i or result i; NULL with an error when it was written since. TS_NONE for an
 *  absent optional argument. Belongs to the engine's scope. */
ts_tensor *ts_saved_arg(ts_vjp_call *b, int i);
ts_tensor *ts_saved_member(ts_vjp_call *b, int i, int k);
ts_tensor *ts_saved_ret(ts_vjp_call *b, int i);
/** Strides and offset in the storage, in elements, of a saved argument, whatever was written since. */
ts_status ts_saved_layout(ts_vjp_call *b, int i, int64_t *strides, int64_t *offset);
/** Boxed argument i as it was; for tensors only the tag and, for lists, count are valid. */
const ts_value *ts_arg(const ts_vjp_call *b, int i);
/** Shape and dtype of tensor argument i, whether saved or not. */
ts_meta ts_arg_meta(const ts_vjp_call *b, int i);
ts_meta ts_member_meta(const ts_vjp_call *b, int i, int k);
/** Random counters that the forward call had. */
ts_rng_state ts_vjp_rng(const ts_vjp_call *b);
/** Gradient for argument i; NULL means that computing it failed. Its sizes must be the argument's. */
ts_status ts_give(ts_vjp_call *b, int i, ts_tensor *grad);
ts_status ts_give_member(ts_vjp_call *b, int i, int k, ts_tensor *grad);
/** Undoes broadcasting and promotion: g summed to the sizes and cast to the dtype of argument i. */
ts_tensor *ts_reduce_to(ts_vjp_call *b, int i, ts_tensor *g);

#endif
