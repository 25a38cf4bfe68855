/** @file rows.h  Prototypes of every function that a row of ops.def names. */
// SPDX-License-Identifier: MIT
#ifndef TS_OPS_ROWS_H
#define TS_OPS_ROWS_H

#include "dispatch/op.h"

/* a row's NONE declares a function that nobody defines or calls; table.c replaces it by NULL */
#define TS_OP(name, schema, forms, kind, infer, composite, gradient, reserve, autocast, cost, doc) \
    ts_status ts_infer_##infer(ts_frame *f); \
    ts_status ts_composite_##composite(ts_frame *f); \
    uint64_t ts_reserve_##reserve(const ts_frame *f); \
    double ts_cost_##cost(const ts_frame *f);
#include "ops/ops.def"
#undef TS_OP

#endif
