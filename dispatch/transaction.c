/** @file transaction.c  Changes to the registry come about whole or not at all. */
// SPDX-License-Identifier: MIT
#include "dispatch/store.h"
#include "core/device.h"
#include "core/hooks.h"
#include "core/process.h"
#include "dispatch/timers.h"
#include "init.h"

#include <pthread.h>

ts_registry ts_reg;
ts_op_entry *ts_reg_entries;

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static int depth;
static uint64_t transaction; /* number of the latest */
static ts_registry before;
static ts_registration *removed; /* kept, so that a stale handle is told from a live one */

void ts_dispatch_install(void)
{
    for (int k = 0; k < TS_KEY_COUNT; k++)
        ts_reg.key_names[k] = ts_key_names[k];
    ts_above.thread_ended = ts_timers_thread_ended;
    ts_fork_guard(&lock);
}

void ts_registry_begin(void)
{
    pthread_mutex_lock(&lock);
    if (depth++ == 0) {
        transaction++;
        before = ts_reg;
    }
}

bool ts_registry_nested(void) { return depth > 1; }
uint64_t ts_registry_transaction(void) { return transaction; }

void ts_registration_free(ts_registration *r)
{
    ts_sys_free(r->schema);
    ts_sys_free(r);
}

void ts_registration_bury(ts_registration *r)
{
    r->removed = true;
    r->older = removed;
    removed = r;
}

/** Takes away what the open transaction added. Nothing of it was ever visible to a call. */
static void roll_back(void)
{
    ts_op_entry *e, *next;
    ts_tables_forget();
    HASH_ITER (hh, ts_reg_entries, e, next) {
        bool empty = true;
        for (int k = 0; k < TS_KEY_COUNT; k++) {
            while (e->kernels[k] && e->kernels[k]->transaction == transaction) {
                ts_registration *r = e->kernels[k];
                e->kernels[k] = r->older;
                ts_registration_bury(r);
            }
            empty &= !e->kernels[k];
        }
        if (e->vjp_transaction == transaction) {
            e->vjp = e->vjp_before;
            e->vjp_transaction = 0;
        }
        if (e->op >= before.ops) {
            if (ts_ops[e->op].flags & TS_OP_RUNTIME)
                ts_sys_free((void *)ts_ops[e->op].schema_text);
            e->op = -1;
        }
        if (empty && e->op < 0 && !e->vjp) {
            HASH_DEL(ts_reg_entries, e);
            ts_sys_free(e);
        }
    }
    for (int k = 0; k < TS_KEY_COUNT; k++)
        if (ts_reg.fallbacks[k] != before.fallbacks[k])
            ts_registration_bury(ts_reg.fallbacks[k]);
    for (int k = 0; k < TS_KEY_COUNT; k++)
        if (ts_reg.key_names[k] != before.key_names[k])
            atomic_store_explicit(&ts_key_names[k], before.key_names[k], memory_order_release);
    ts_reg = before;
}

ts_status ts_registry_end(ts_status status)
{
    if (depth == 1) {
        if (status == TS_OK)
            status = ts_tables_publish();
        if (status == TS_OK) {
            for (int k = 0; k < 16; k++)
                if (ts_reg.backends[k] != before.backends[k])
                    atomic_store_explicit(&ts_devices[k], ts_reg.backends[k], memory_order_release);
            ts_op_count_publish(ts_reg.ops);
        } else {
            roll_back();
        }
    }
    depth--;
    pthread_mutex_unlock(&lock);
    return status;
}

void ts_dispatch_remove(void)
{
    ts_timers_reset();
    ts_op_entry *e, *next_e;
    HASH_ITER (hh, ts_reg_entries, e, next_e) {
        HASH_DEL(ts_reg_entries, e);
        for (int k = 0; k < TS_KEY_COUNT; k++)
            for (ts_registration *r = e->kernels[k], *older; r; r = older) {
                older = r->older;
                ts_registration_free(r);
            }
        ts_sys_free(e);
    }
    for (int k = 0; k < TS_KEY_COUNT; k++)
        if (ts_reg.fallbacks[k])
            ts_registration_free(ts_reg.fallbacks[k]);
    for (ts_registration *r = removed, *older; r; r = older) {
        older = r->older;
        ts_registration_free(r);
    }
    for (int op = 0; op < ts_op_count(); op++) {
        for (const ts_op_table *t = atomic_exchange(&ts_tables[op], NULL), *older; t; t = older) {
            older = t->older;
            ts_sys_free((void *)t);
        }
        if (ts_ops[op].flags & TS_OP_RUNTIME)
            ts_sys_free((void *)ts_ops[op].schema_text);
    }
}
