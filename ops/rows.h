/** @file rows.h  Prototypes of the functions that rows of ops.def name: shape rules, composites,
 * reserve functions and cost functions. autograd/rule.h declares the gradient rules. */
// SPDX-License-Identifier: MIT
#ifndef TS_OPS_ROWS_H
#define TS_OPS_ROWS_H

#include "dispatch/op.h"

/** Work of a view: none. */
ts_work ts_cost_alias(const ts_frame *f);
/** Work of an op with ts_op_info.each operations per element of its largest tensor. */
ts_work ts_cost_each(const ts_frame *f);

/* NONE in a row declares a function without a definition; table.c replaces it by NULL. The cost
 * column of a row is ALIAS, MOVE, EACH(n) or WORK(name); only WORK names a function of its own. */
#define ALIAS
#define MOVE
#define EACH(n)
#define WORK(function) ts_work ts_cost_##function(const ts_frame *f);
#define TS_OP(name, schema, forms, kind, infer, composite, gradient, reserve, autocast, cost, doc) \
    ts_status ts_infer_##infer(ts_frame *f); \
    ts_status ts_composite_##composite(ts_frame *f); \
    uint64_t ts_reserve_##reserve(const ts_frame *f); \
    cost
#include "ops/ops.def"
#undef TS_OP
#undef ALIAS
#undef MOVE
#undef EACH
#undef WORK

#endif
