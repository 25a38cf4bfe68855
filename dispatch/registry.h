/** @file registry.h  Internal registry functions for ops/ and autograd/. */
// SPDX-License-Identifier: MIT
#ifndef TS_DISPATCH_REGISTRY_H
#define TS_DISPATCH_REGISTRY_H

#include "dispatch/op.h"

/** Installs the built-in rows; called once by ops/ before anything else registers. */
ts_status ts_registry_install(const ts_op_info *rows, int count);

/** TS_ERR_REGISTRY for an argument 'op' that names no op, with the name that is near. */
ts_status ts_fail_unknown_op(const char *what, const char *name);
/** Brackets several registrations; see store.h. */
void ts_registry_begin(void);
ts_status ts_registry_end(ts_status status);
/** Sets the gradient rule of an op, which need not be registered yet. The rule must live as long as
 * the process. In a transaction. */
ts_status ts_vjp_set(const char *op, const ts_vjp *vjp);

/** Slot content of an op that a backend lacks: at most ten lines, with the remedy. */
ts_status ts_missing_kernel(ts_frame *f);
/** First argument (nargs: a given result) that is on another backend than the running key, or on
 *  another device of it than the tensors before; -1 if none is. */
int ts_find_far(const ts_frame *f);
/** to_device for every backend: packs where the source is, moves bytes. */
ts_status ts_transfer(ts_frame *f);
/** Handles a call that a backend's kernel does not support: runs the fallback, or records an
 *  error. */
ts_status ts_unsupported_call(ts_frame *f);
/** The fallback of backends that allow it: runs the call on the CPU, over copies of its tensors. */
ts_status ts_round_trip(ts_frame *f);
/** The kernel of the slot TS_KEY_ABSENT: TS_NONE was given where a tensor is required,
 *  or a device that no backend can have. */
ts_status ts_fail_absent_tensor(ts_frame *f);

#endif
