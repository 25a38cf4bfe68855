/** @file table.c  Expands ops.def into the registry's rows. */
// SPDX-License-Identifier: MIT
#include "dispatch/registry.h"
#include "init.h"
#include "ops/ops.h"

#define ts_infer_NONE NULL
#define ts_composite_NONE NULL
#define ts_reserve_NONE NULL

#define VJP(rule) 0 /* autograd/rules.c reads the rule */
#define NODIFF TS_OP_NODIFF
#define BY_PARTS TS_OP_BY_PARTS

/* ops.def has the kind CHECKED; the registry has FILL with a flag instead */
#define TS_CHECKED TS_FILL
#define FLAGS_FILL 0
#define FLAGS_VIEW 0
#define FLAGS_WHOLE 0
#define FLAGS_COMPOSITE 0
#define FLAGS_CHECKED TS_OP_CHECKED

#define ALIAS .cost = ts_cost_alias
#define MOVE .cost = ts_cost_each
#define EACH(n) .cost = ts_cost_each, .each = n
#define WORK(function) .cost = ts_cost_##function

#define TS_OP(op_name, schema_string, forms, op_kind, infer_fn, composite_fn, gradient,            \
              reserve_fn, autocast, cost_of, doc_line)                                             \
    {.name = #op_name,                                                                             \
     .schema_text = schema_string,                                                                 \
     .doc = doc_line,                                                                              \
     .kind = TS_##op_kind,                                                                         \
     .flags = (gradient) | FLAGS_##op_kind,                                                        \
     .infer = ts_infer_##infer_fn,                                                                 \
     .composite = ts_composite_##composite_fn,                                                     \
     .reserve = ts_reserve_##reserve_fn,                                                           \
     .site = (const void *)ts_cost_each, /* any address in this library */                         \
     cost_of},

static const ts_op_info rows[] = {
#include "ops/ops.def"
};
#undef TS_OP

_Static_assert(TS_COUNTOF(rows) == TS_OP_COUNT, "one row per operator");

ts_status ts_ops_install(void)
{
    ts_copy_install();
    return ts_registry_install(rows, TS_OP_COUNT);
}
