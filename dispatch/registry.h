/** @file registry.h  Internal registry functions for ops/ and autograd/. */
// SPDX-License-Identifier: MIT
#ifndef TS_DISPATCH_REGISTRY_H
#define TS_DISPATCH_REGISTRY_H

#include "dispatch/op.h"

/** Flag in ts_op_info.flags, beside TS_OP_RANDOM and others: a kernel may refuse elements of the
 *  arguments, such as an index out of range, so a call without readers still has to run. */
enum { TS_OP_CHECKED = 16 };

/** Installs the built-in rows; called once by ops/ before anything else registers. */
ts_status ts_registry_install(const ts_op_info *rows, int count);

/** TS_ERR_REGISTRY: function `what` got an unknown op name. The hint names a similar op, if there
 *  is one. */
ts_status ts_fail_unknown_op(const char *what, const char *name);
/** Begin and end a transaction (store.h). The end of the outermost transaction publishes all
 *  changes if its status is TS_OK. If that status is an error, or publishing fails, it undoes them.
 *  Returns status or the error of publishing. The end of an inner transaction only returns status,
 *  so its caller must pass errors on. */
void ts_registry_begin(void);
ts_status ts_registry_end(ts_status status);
/** Sets the gradient rule of an op, which need not be registered yet. Call it in a transaction. The
 *  rule must stay valid until the process ends. */
ts_status ts_vjp_set(const char *op, const ts_vjp *vjp);

/** The slot of an op without a kernel on the backend: TS_ERR_UNSUPPORTED with a hint;
 *  TS_ERR_DEVICE if the call names the device of an unknown backend. */
ts_status ts_missing_kernel(ts_frame *f);
/** Finds a tensor on another backend than f->key, or on another device than the tensors before it.
 *  Returns the argument's index, f->nargs for a destination, or -1 if there is none. 0-dim CPU
 *  tensors are allowed as arguments. */
int ts_find_other_device(const ts_frame *f);
/** The to_device kernel of every backend with a ts_backend. Packs a strided source on its own
 *  device, copies the bytes, and unpacks them into a strided destination. Copies only the bytes if
 *  source and destination are both dense and channels-last. */
ts_status ts_transfer(ts_frame *f);
/** Handles a call for which a backend's supports() returned false: runs it by ts_round_trip() if
 *  the backend has TS_BACKEND_CPU_FALLBACK; otherwise TS_ERR_UNSUPPORTED. */
ts_status ts_unsupported_call(ts_frame *f);
/** The CPU fallback of backends that allow it: runs the call on host copies of its tensors. */
ts_status ts_round_trip(ts_frame *f);
/** The slot of TS_KEY_ABSENT: an error for TS_NONE or a dead tensor where a tensor is required, for
 *  an invalid device, or for a number that cannot be boxed (ts_value_refused()). */
ts_status ts_fail_absent_tensor(ts_frame *f);

#endif
