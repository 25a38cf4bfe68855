/**
 * @file tables.c  Builds, publishes and prints the tables of ops: the kernel in each slot and the
 * reason.
 *
 * Calls read a table through one acquire load; a replaced table lives until the library unloads.
 */
// SPDX-License-Identifier: MIT
#include "dispatch/entries.h"
#include "dispatch/store.h"
#include "include/tessera/check.h"

#include <string.h>

_Atomic(const ts_op_table *) ts_tables[TS_MAX_OPS];

/** Chooses the kernel of slot k by precedence: the first condition that holds decides. */
static void slot_fill(ts_op_table *t, const ts_op_entry *e, int k)
{
    const ts_op_info *info = t->info;
    const ts_registration *own = e->newest[k], *fallback = ts_fallbacks.newest[k];
    bool backend = k < 16;
    ts_kernel entry = info->kind == TS_FILL   ? ts_enter_fill
                      : info->kind == TS_VIEW ? ts_enter_view
                                              : ts_enter_whole;
    if (entry == ts_enter_whole && (info->flags & TS_OP_RUNTIME))
        entry = ts_enter_foreign;
    int rule;
    ts_kernel kernel = NULL;
    if (k == TS_KEY_ABSENT) {
        rule = TS_RULE_ABSENT;
        kernel = ts_fail_absent_tensor;
    } else if (own) {
        rule = TS_RULE_KERNEL;
        kernel = own->kernel;
    } else if (fallback && (ts_reg.prefer_fallback >> k & 1)) {
        rule = TS_RULE_FALLBACK_FIRST;
    } else if (k == TS_KEY_META && info->kind == TS_FILL) {
        rule = TS_RULE_META;
        kernel = ts_shapes_only;
    } else if (backend && info->composite) {
        rule = TS_RULE_COMPOSITE;
        kernel = info->composite;
        entry = info->kind == TS_FILL ? ts_enter_parts : ts_enter_whole;
    } else if (backend && info->kind == TS_VIEW) {
        rule = TS_RULE_VIEW;
    } else if (fallback) {
        rule = TS_RULE_FALLBACK;
    } else {
        rule = backend ? TS_RULE_MISSING : TS_RULE_NONE;
    }
    t->rule[k] = (uint8_t)rule;
    if (rule == TS_RULE_FALLBACK || rule == TS_RULE_FALLBACK_FIRST) {
        t->slot[k] = fallback->kernel;
    } else if (rule == TS_RULE_MISSING) {
        t->slot[k] = ts_missing_kernel;
    } else if (!backend) {
        t->slot[k] = kernel; /* layers need no entry */
    } else {
        /* a key with a ts_backend has its own memory: ts_enter_device() checks devices first */
        t->slot[k] = own && ts_reg.backends[k] ? ts_enter_device : entry;
        t->impl[k] = kernel;
        t->accepts[k] = (ts_accepts){TS_DT_ALL, 0};
        if (own) {
            t->accepts[k] = (ts_accepts){own->accepts.dtypes ? own->accepts.dtypes : TS_DT_ALL,
                                         own->accepts.takes & (uint16_t)~TS_STRIDES_PACKED};
            t->packed |= (uint16_t)(((own->accepts.takes & TS_STRIDES_PACKED) != 0) << k);
        }
    }
    if (rule != TS_RULE_NONE)
        t->mask |= TS_KEYSET(k);
}

/** A new snapshot for e's op, not yet visible. Lock held. */
static ts_op_table *table_build(const ts_op_entry *e)
{
    ts_op_table *t = ts_sys_calloc(sizeof *t);
    if (!t) {
        ts_error_memory("a dispatch table", sizeof *t);
        return NULL;
    }
    t->info = &ts_ops[e->op];
    t->infer = t->info->infer;
    t->op = (uint16_t)e->op;
    t->flags = t->info->flags & TS_OP_RANDOM;
    const ts_registration *rule = e->newest[TS_KEY_COUNT];
    t->vjp = rule ? rule->vjp : NULL;
    for (int i = 0; i < t->info->schema.nargs; i++)
        t->written |= (uint16_t)(t->info->schema.args[i].written << i);
    for (int k = 0; k < TS_KEY_COUNT; k++)
        slot_fill(t, e, k);
    return t;
}

static ts_op_entry *dirty; /* entries touched in the open transaction */

void ts_tables_touch(ts_op_entry *e)
{
    if (e->dirty)
        return;
    e->dirty = true;
    e->next_dirty = dirty;
    dirty = e;
    for (e = e == &ts_fallbacks ? ts_entries : NULL; e; e = e->next)
        ts_tables_touch(e);
}

void ts_tables_clear_dirty(void)
{
    for (ts_op_entry *e = dirty; e; e = e->next_dirty)
        e->dirty = false;
    dirty = NULL;
}

/**
 * Returns an older table with t's content, or t. Old tables are never freed, because a call may
 * still use them. Reusing equal tables bounds their number when kernels are registered and removed
 * repeatedly.
 */
static ts_op_table *take_equal(ts_op_table *t)
{
    for (ts_op_table *before = t, *old; (old = (ts_op_table *)before->older); before = old) {
        if (memcmp(old, t, offsetof(ts_op_table, older)) != 0)
            continue;
        if (before != t)
            before->older = old->older;
        ts_sys_free(t);
        return old;
    }
    return t;
}

ts_status ts_tables_publish(void)
{
    ts_op_table *made = NULL;
    for (ts_op_entry *e = dirty; e; e = e->next_dirty) {
        if (e->op < 0)
            continue;
        ts_op_table *t = table_build(e);
        while (!t && made) {
            ts_op_table *next = (ts_op_table *)made->older;
            ts_sys_free(made);
            made = next;
        }
        TS_TRY(t);
        t->older = made;
        made = t;
    }
    for (ts_op_table *next; made; made = next) {
        next = (ts_op_table *)made->older;
        ts_op_table *now = (ts_op_table *)atomic_load_explicit(&ts_tables[made->op],
                                                               memory_order_relaxed);
        made->older = now;
        ts_op_table *t = take_equal(made);
        if (t == now)
            continue;
        t->older = now;
        atomic_store_explicit(&ts_tables[t->op], t, memory_order_release);
        ts_epoch_ends();
    }
    ts_tables_clear_dirty();
    return TS_OK;
}

/* ------------------------------------------------------------------------------- dumps ---- */

static const char *const rules[] = {
    [TS_RULE_NONE] = "falls through",
    [TS_RULE_KERNEL] = "own kernel",
    [TS_RULE_FALLBACK_FIRST] = "fallback, preferred",
    [TS_RULE_COMPOSITE] = "composite",
    [TS_RULE_VIEW] = "view: no kernel",
    [TS_RULE_META] = "shapes only",
    [TS_RULE_FALLBACK] = "fallback",
    [TS_RULE_MISSING] = "missing: error",
    [TS_RULE_ABSENT] = "TS_NONE: error",
};

ts_status ts_op_dump(const char *name, FILE *out)
{
    const ts_check_place at = {"op_dump", __builtin_return_address(0)};
    TS_TRY(ts_check_pointers(at, "op, out", (const void *[]){name, out}, 2, false));
    int op = ts_op_by_name(name);
    if (op < 0 || op >= ts_op_count())
        return ts_fail_unknown_op("op_dump", name);
    ts_registry_begin();
    const ts_op_table *t = atomic_load(&ts_tables[op]);
    fprintf(out, "%s\n", ts_ops[op].schema_text);
    for (int k = TS_KEY_COUNT - 1; k >= 0; k--) {
        if (!(ts_reg.named >> k & 1))
            continue;
        int rule = t->rule[k];
        bool own = rule == TS_RULE_KERNEL || rule == TS_RULE_COMPOSITE;
        bool fallback = rule == TS_RULE_FALLBACK || rule == TS_RULE_FALLBACK_FIRST;
        ts_kernel kernel = own && k < 16 ? t->impl[k] : own || fallback ? t->slot[k] : NULL;
        char where[160] = "";
        if (kernel)
            ts_format_site(where, sizeof where, (const void *)kernel);
        fprintf(out, "%3d %-16s %-20s %s\n", k, ts_key_name((ts_key)k), rules[rule], where);
    }
    return ts_registry_end(TS_OK);
}
