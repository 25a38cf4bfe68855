/** @file registry.h  Inside the registry: what ops/ and autograd/ install. */
// SPDX-License-Identifier: MIT
#ifndef TS_DISPATCH_REGISTRY_H
#define TS_DISPATCH_REGISTRY_H

#include "dispatch/op.h"

/** Installs the built-in rows; called once by ops/ before anything else registers. */
ts_status ts_registry_install(const ts_op_info *rows, int count);

/** Slot content of an op that a backend lacks: at most ten lines, with the remedy (F37). */
ts_status ts_missing_kernel(ts_frame *f);
/** What stands in the slot of TS_KEY_ABSENT: TS_NONE was given where a tensor is required. */
ts_status ts_absent_tensor(ts_frame *f);

#endif
