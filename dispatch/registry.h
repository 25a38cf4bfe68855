/** @file registry.h  Internal registry functions for ops/ and autograd/. */
// SPDX-License-Identifier: MIT
#ifndef TS_DISPATCH_REGISTRY_H
#define TS_DISPATCH_REGISTRY_H

#include "dispatch/op.h"

/** Installs the built-in rows; called once by ops/ before anything else registers. */
ts_status ts_registry_install(const ts_op_info *rows, int count);

/** TS_ERR_REGISTRY: function `what` got an unknown op name. The hint is a similar op name. */
ts_status ts_fail_unknown_op(const char *what, const char *name);
/** Begin and end a transaction (store.h). If status is TS_OK, ts_registry_end() publishes the
 *  changes. If status is an error, or publishing fails, it undoes them. Returns status or the error
 *  of publishing. */
void ts_registry_begin(void);
ts_status ts_registry_end(ts_status status);
/** Sets the gradient rule of an op, which need not be registered yet. The rule must live as long as
 * the process. In a transaction. */
ts_status ts_vjp_set(const char *op, const ts_vjp *vjp);

/** The slot of an op without a kernel on the backend: TS_ERR_UNSUPPORTED with a hint. */
ts_status ts_missing_kernel(ts_frame *f);
/** Index of the first argument with a tensor on another backend than f->key, or on another device
 *  than the tensors before it; f->nargs if it is a destination; -1 if there is none. 0-dim CPU
 *  tensors are allowed. */
int ts_find_far(const ts_frame *f);
/** The to_device kernel of every backend: makes the source contiguous on its own device, then
 *  copies the bytes. */
ts_status ts_transfer(ts_frame *f);
/** Handles a call that a backend's kernel does not support: runs the fallback, or records an
 *  error. */
ts_status ts_unsupported_call(ts_frame *f);
/** The CPU fallback of backends that allow it: runs the call on host copies of its tensors. */
ts_status ts_round_trip(ts_frame *f);
/** The slot of TS_KEY_ABSENT: an error for TS_NONE or a dead tensor where a tensor is required, or
 *  for an invalid device. */
ts_status ts_fail_absent_tensor(ts_frame *f);

#endif
