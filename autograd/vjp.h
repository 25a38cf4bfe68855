/** @file vjp.h  Gradient rules of the library: the struct ts_vjp (vector-Jacobian product) and
 * internal helpers. include/tessera/gradient.h explains how to write rules. */
// SPDX-License-Identifier: MIT
#ifndef TS_AUTOGRAD_VJP_H
#define TS_AUTOGRAD_VJP_H

#include "dispatch/op.h"
#include "include/tessera/gradient.h"

struct ts_vjp {
    ts_status (*rule)(ts_vjp_call *b);
    uint32_t saves[TS_MAX_ARGS]; /* TS_SAVE_* bits that the rule reads if argument i needs a
                                    gradient */
    uint32_t always;             /* TS_SAVE_* bits that the rule always reads */
    bool view;                   /* the op is a view: the rule only maps positions */
};

/** Positions of a part's elements in a row-major tensor, in elements. */
typedef struct ts_positions {
    int64_t offset, strides[TS_MAX_DIMS]; /* >= 0; the stride of a dim of size 1 is unused */
} ts_positions;
/** True if the strides prove that no two elements share a position. A false result proves
 *  nothing. */
bool ts_positions_distinct(const int64_t *sizes, const int64_t *strides, int ndim);
/** g summed over its expanded dims (stride 0, more than one element), which become dims of size 1;
 *  g itself if there are none. NULL with an error. */
ts_tensor *ts_positions_sum_expanded(ts_tensor *g, const int64_t *strides);

/** Writes the strides of saved tensor argument i and its offset in the storage, in elements. A
 *  write to the argument since the forward call is not an error. If the argument must be
 *  recomputed, the errors are those of ts_rule_saved_arg(). TS_ERR_INTERNAL if the rule does not
 *  save the argument. */
ts_status ts_rule_saved_layout(ts_vjp_call *b, int i, int64_t *strides, int64_t *offset);
/** Sizes, dtype and device of tensor argument i, or of member k of list argument i. The tensor need
 *  not be saved. If there is none, the dtype is TS_DTYPE_NONE. */
ts_meta ts_rule_arg_meta(const ts_vjp_call *b, int i);
ts_meta ts_rule_member_meta(const ts_vjp_call *b, int i, int k);
/**
 * Gives argument 0 the gradient grad for a part of its elements and 0 elsewhere. The part is the
 * view's result `output`, or a set of distinct positions. Unless the node has hooks, the engine
 * adds the parts of a tensor into one buffer, so the time is linear in the sizes of the tensor and
 * its parts. A rule calls one of the functions once for each part.
 */
ts_status ts_rule_give_part(ts_vjp_call *b, int output, ts_tensor *grad);
ts_status ts_rule_give_positions(ts_vjp_call *b, ts_tensor *grad, const ts_positions *at);
/**
 * Takes the sum of the whole gradients that argument i has received in this run, so that one kernel
 * can compute the rule's gradient and add it to that sum. NULL without an error if the argument is
 * a leaf or needs no gradient in this run, if no whole gradient has arrived, if the sum's dtype or
 * device is not that of `like` or its sizes are not the argument's, or if the run or a hook must
 * see the rule's own gradient. The current scope owns the sum. The rule must call ts_rule_give()
 * for the argument afterwards, or fail.
 */
ts_tensor *ts_rule_take(ts_vjp_call *b, int i, const ts_tensor *like);
/** Scatters grad: a new tensor of n elements with grad at a set of distinct positions and 0
 *  elsewhere; NULL with an error. NULL-safe. */
ts_tensor *ts_rule_spread(ts_tensor *grad, const ts_positions *at, int64_t n);
/** Argument i of a pointwise call, cast to the dtype of result 0, in which the kernel computed. A
 * plain number becomes a 0-dim tensor. NULL with an error. */
ts_tensor *ts_rule_operand(ts_vjp_call *b, int i);
/** Returns gradient g in a layout that a kernel can read together with x: a channels-last copy if x
 *  is dense and channels-last and g is not, else g. NULL-safe. */
ts_tensor *ts_rule_in_layout_of(ts_tensor *g, const ts_tensor *x);
/** Returns g, the gradient of an image op's result, in the memory format of argument i
 *  (channels-last or contiguous), so that the argument's gradient gets this format, as in PyTorch.
 *  NULL-safe. */
ts_tensor *ts_rule_in_format_of(ts_vjp_call *b, int i, ts_tensor *g);
/** A new tensor like m, filled with a number (ts_rule_zeros: with 0); NULL with an error. */
ts_tensor *ts_rule_full(ts_meta m, ts_value value);
TS_INLINE ts_tensor *ts_rule_zeros(ts_meta m) { return ts_rule_full(m, ts_value_int(0)); }

#endif
