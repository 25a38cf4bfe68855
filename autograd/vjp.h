/** @file vjp.h  A gradient rule of the library; gradient.h says how one is written. */
// SPDX-License-Identifier: MIT
#ifndef TS_AUTOGRAD_VJP_H
#define TS_AUTOGRAD_VJP_H

#include "dispatch/op.h"
#include "include/tessera/gradient.h"

struct ts_vjp {
    ts_status (*rule)(ts_vjp_call *b);
    uint32_t saves[TS_MAX_ARGS]; /* what the rule reads when argument i needs a gradient */
    uint32_t always;             /* what it reads whichever argument needs one */
};

/** Strides and offset in the storage, in elements, of a saved argument,
 * whatever was written since. */
ts_status ts_rule_saved_layout(ts_vjp_call *b, int i, int64_t *strides, int64_t *offset);
/** Shape, dtype and device of tensor argument i, whether saved or not. */
ts_meta ts_rule_arg_meta(const ts_vjp_call *b, int i);
ts_meta ts_rule_member_meta(const ts_vjp_call *b, int i, int k);
/**
 * Gives argument 0 of a call with one tensor a gradient that is 0 outside of the slice `grad`,
 * as ts_slice() takes it (start and end may be negative or beyond the end): many slices of one
 * tensor cost no more than the tensor. */
ts_status ts_rule_give_slice(ts_vjp_call *b, ts_tensor *grad, int dim, int64_t start, int64_t end,
                             int64_t step);
/** Argument i of a pointwise call as its kernel had it: a tensor of the dtype of result 0, which is
 * what its gradient has; a plain number is a tensor without dims. */
ts_tensor *ts_rule_operand(ts_vjp_call *b, int i);
/** A new tensor that is filled with a number, or with zeros. */
ts_tensor *ts_rule_full(ts_meta m, ts_value value);
TS_INLINE ts_tensor *ts_rule_zeros(ts_meta m) { return ts_rule_full(m, ts_value_int(0)); }

#endif
