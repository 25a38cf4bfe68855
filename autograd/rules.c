/** @file rules.c  The rules named in ops.def, and rules registered at run time. */
// SPDX-License-Identifier: MIT
#include "autograd/node.h"
#include "autograd/rule.h"
#include "core/process.h"
#include "dispatch/registry.h"
#include "include/tessera/check.h"
#include "init.h"
#include "ops/kernel.h"

#include <string.h>

static const struct {
    const char *op;
    const ts_vjp *vjp;
} of_rows[] = {
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
    TS_FORK_IN_CHILD(ts_hooks_forked);
    for (int i = 0; i < TS_COUNTOF(of_rows); i++)
        if (of_rows[i].vjp)
            TS_TRY(ts_vjp_set(of_rows[i].op, of_rows[i].vjp));
    return ts_register_fallback(TS_KEY_AUTOGRAD, ts_record, NULL);
}

/** A registered rule in the list of all such rules. Rules live until the library unloads, because
 * nodes point to them. Registering an equal rule again reuses the entry. */
typedef struct owned_rule {
    ts_vjp vjp;
    struct owned_rule *next;
} owned_rule;

static owned_rule *rules; /* guarded by the registry's lock */

ts_status ts_register_vjp(const char *op, ts_vjp_rule rule, const ts_vjp_opts *opts)
{
    ts_vjp_opts given;
    TS_TRY(TS_CHECK_POINTERS(op, rule));
    TS_TRY(TS_CHECK_OPTS(&given, opts));
    ts_vjp wanted = {0}; /* compared as bytes */
    wanted.rule = rule;
    wanted.always = given.saves;
    memcpy(wanted.saves, given.saves_for, sizeof wanted.saves);
    ts_registry_begin();
    owned_rule *o = rules;
    while (o && memcmp(&o->vjp, &wanted, sizeof wanted) != 0)
        o = o->next;
    if (!o) {
        o = ts_sys_calloc(sizeof *o);
        if (!o)
            return ts_registry_end(ts_error_memory("a gradient rule", sizeof *o));
        memcpy(&o->vjp, &wanted, sizeof wanted);
        o->next = rules;
        rules = o;
    }
    return ts_registry_end(ts_vjp_set(op, &o->vjp));
}

void ts_autograd_remove(void)
{
    while (rules) {
        owned_rule *next = rules->next;
        ts_sys_free(rules);
        rules = next;
    }
}
