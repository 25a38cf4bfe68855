/** @file register.c  Gradient rules for ops registered at run time. */
// SPDX-License-Identifier: MIT
#include "autograd/vjp.h"
#include "dispatch/registry.h"
#include "init.h"

#include <string.h>

/** A rule with its place in the list of all, which end with the library: nodes point at them. */
typedef struct owned_rule {
    ts_vjp vjp;
    struct owned_rule *next;
} owned_rule;

static owned_rule *rules; /* guarded by the registry's lock */

ts_status ts_register_vjp(const char *op, ts_vjp_rule rule, const ts_vjp_opts *opts)
{
    if (!rule)
        return ts_error_set(TS_ERR_NULL,
                            "register_vjp: argument 'rule': expected a function, got NULL");
    if (opts && opts->size != sizeof *opts)
        return ts_error_set(TS_ERR_VALUE,
                            "register_vjp: argument 'opts': expected size %zu, got %zu",
                            sizeof *opts, opts->size);
    owned_rule *o = ts_sys_calloc(sizeof *o);
    if (!o)
        return ts_fail_memory("a gradient rule", sizeof *o);
    o->vjp.rule = rule;
    if (opts) {
        o->vjp.always = opts->saves;
        o->vjp.want = opts->want;
        memcpy(o->vjp.saves, opts->saves_for, sizeof o->vjp.saves);
    }
    ts_registry_begin();
    o->next = rules;
    rules = o;
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
