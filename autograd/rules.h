/** @file rules.h  The rule of each operator that has one, as ops.def names it. */
// SPDX-License-Identifier: MIT
#ifndef TS_AUTOGRAD_RULES_H
#define TS_AUTOGRAD_RULES_H

#include "autograd/vjp.h"

#define VJP(rule) extern const ts_vjp ts_vjp_##rule;
#define NODIFF
#define BY_PARTS
#define TS_OP(name, schema, forms, kind, infer, composite, gradient, ...) gradient
#include "ops/ops.def"
#undef TS_OP
#undef VJP
#undef NODIFF
#undef BY_PARTS

#endif
