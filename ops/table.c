/** @file table.c  Expands ops.def into the registry's rows. */
// SPDX-License-Identifier: MIT
#include "dispatch/registry.h"
#include "ops/ops.h"

#define ts_infer_NONE NULL
#define ts_composite_NONE NULL
#define ts_reserve_NONE NULL

#define VJP(rule) 0, &ts_vjp_##rule
#define NODIFF TS_OP_NODIFF, NULL
#define BY_PARTS TS_OP_BY_PARTS, NULL

#define TS_OP(name, schema, kind, infer, composite, gradient, reserve, cost, doc) \
    ROW(name, schema, kind, infer, composite, reserve, cost, doc, gradient)
#define ROW(...) EXPANDED_ROW(__VA_ARGS__)
#define EXPANDED_ROW(op_name, schema_string, op_kind, infer_fn, composite_fn, reserve_fn, cost_fn, \
                     doc_line, gradient, rule)                                                     \
    {.name = #op_name,                                                                             \
     .schema_text = schema_string,                                                                 \
     .doc = doc_line,                                                                              \
     .kind = TS_##op_kind,                                                                         \
     .flags = gradient,                                                                            \
     .infer = ts_infer_##infer_fn,                                                                 \
     .composite = ts_composite_##composite_fn,                                                     \
     .vjp = rule,                                                                                  \
     .reserve = ts_reserve_##reserve_fn,                                                           \
     .cost = ts_cost_##cost_fn,                                                                    \
     .site = (const void *)ts_cost_##cost_fn},

static const ts_op_info rows[] = {
#include "ops/ops.def"
};
#undef TS_OP

_Static_assert(TS_COUNTOF(rows) == TS_OP_COUNT, "one row an operator");

__attribute__((constructor(110))) static void install(void)
{
    ts_status status = ts_registry_install(rows, TS_OP_COUNT);
    if (status != TS_OK)
        ts_log_write("dispatch", "installing the operators failed: %s", ts_error_message());
}
