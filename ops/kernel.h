/** @file kernel.h  The number TS_OP_<name> of each operator, for the kernels of backends. */
// SPDX-License-Identifier: MIT
#ifndef TS_OPS_KERNEL_H
#define TS_OPS_KERNEL_H

#include "dispatch/op.h"

enum {
#define TS_OP(name, ...) TS_OP_##name,
#include "ops/ops.def"
#undef TS_OP
    TS_OP_COUNT
};

#endif
