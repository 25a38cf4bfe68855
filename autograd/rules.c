/** @file rules.c  Gives each operator the rule that its row names, and installs the room. */
// SPDX-License-Identifier: MIT
#include "autograd/node.h"
#include "autograd/rules.h"
#include "dispatch/registry.h"
#include "init.h"
#include "ops/kernel.h"

static const struct {
    const char *op;
    const ts_vjp *vjp;
} rules[] = {
#define VJP(rule) &ts_vjp_##rule
#define NODIFF NULL
#define BY_PARTS NULL
#define TS_OP(name, schema, forms, kind, infer, composite, gradient, ...) {#name, gradient},
#include "ops/ops.def"
#undef TS_OP
};

ts_status ts_autograd_install(void)
{
    ts_above.release_history = ts_node_release_history;
    for (int i = 0; i < TS_COUNTOF(rules); i++)
        if (rules[i].vjp)
            TS_TRY(ts_vjp_set(rules[i].op, rules[i].vjp));
    return ts_register_fallback(TS_KEY_AUTOGRAD, ts_record, NULL);
}
