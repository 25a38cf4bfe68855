/**
 * @file vjp.h  How a gradient rule of the library is written; gradient.h has what it calls.
 *
 * A rule is a function over a ts_vjp_call: it reads gradients of results, saved tensors and plain
 * arguments, computes with ordinary ops (so it differentiates again wherever they do), and gives a
 * gradient for each argument that needs one:
 *
 *     static ts_status mul(ts_vjp_call *b)
 *     {
 *         ts_tensor *g = ts_rule_grad(b, 0);
 *         GIVE(0, ts_mul(g, ts_rule_saved_arg(b, 1)));
 *         GIVE(1, ts_mul(g, ts_rule_saved_arg(b, 0)));
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
#include "include/tessera/gradient.h"

struct ts_vjp {
    ts_status (*rule)(ts_vjp_call *b);
    uint32_t saves[TS_MAX_ARGS]; /* what the rule reads when argument i needs a gradient */
    uint32_t always;             /* what it reads whichever argument needs one */
    uint8_t want;                /* results the rule reads: made even
                                    when the caller does not want them */
};

/** Strides and offset in the storage, in elements, of a saved argument,
 * whatever was written since. */
ts_status ts_rule_saved_layout(ts_vjp_call *b, int i, int64_t *strides, int64_t *offset);
/** Shape and dtype of tensor argument i, whether saved or not. */
ts_meta ts_rule_arg_meta(const ts_vjp_call *b, int i);
ts_meta ts_rule_member_meta(const ts_vjp_call *b, int i, int k);

#endif
