/** @file transaction.c  Transactions of the registry. */
// SPDX-License-Identifier: MIT
#include "dispatch/store.h"
#include "core/device.h"
#include "core/process.h"
#include "dispatch/timers.h"
#include "init.h"

#include <pthread.h>

ts_registry ts_reg;

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static ts_registry before; /* state before the open transaction */

/* A handle holds an index into this table in its INDEX_BITS lowest bits and, above them, the serial
   number of its registration. */
enum { INDEX_BITS = 20 };
static struct {
    struct holder {
        ts_registration *r; /* NULL: free */
        uint64_t serial;
        uint32_t next_free;
    } *at; /* entry 0 is unused, because handle 0 means none */
    uint32_t count, capacity, first_free;
    uint64_t serial;
} holders = {.count = 1};

void ts_dispatch_install(void)
{
    for (int k = 0; k < TS_KEY_COUNT; k++)
        ts_reg.named |= (ts_keyset)(ts_key_names[k] != NULL) << k;
    TS_FORK_GUARD(&lock);
    ts_scopes_install();
    ts_timers_install();
    ts_open_install();
}

void ts_registry_begin(void)
{
    pthread_mutex_lock(&lock);
    if (ts_reg.depth++ == 0) {
        ts_reg.transaction++;
        before = ts_reg;
    }
}

ts_status ts_handle_give(ts_registration *r, ts_registration **handle)
{
    uint32_t index = holders.first_free;
    if (!index && holders.count >= holders.capacity) {
        uint32_t capacity = holders.capacity ? 2 * holders.capacity : 64;
        struct holder *grown =
            capacity >> INDEX_BITS ? NULL : ts_sys_realloc(holders.at, capacity * sizeof *grown);
        if (!grown)
            return ts_error_memory("a registration's handle", (int64_t)(capacity * sizeof *grown));
        holders.at = grown;
        holders.capacity = capacity;
    }
    if (index)
        holders.first_free = holders.at[index].next_free;
    else
        index = holders.count++;
    r->handle = index;
    holders.at[index] = (struct holder){.r = r, .serial = ++holders.serial};
    *handle = (ts_registration *)(uintptr_t)(holders.serial << INDEX_BITS | index);
    return TS_OK;
}

ts_registration *ts_handle_find(const ts_registration *handle)
{
    uint32_t index = (uintptr_t)handle & ((1u << INDEX_BITS) - 1);
    bool live = index && index < holders.count &&
                holders.at[index].serial == (uintptr_t)handle >> INDEX_BITS;
    return live ? holders.at[index].r : NULL;
}

void ts_registration_free(ts_registration *r)
{
    if (r->handle) {
        holders.at[r->handle] = (struct holder){.next_free = holders.first_free};
        holders.first_free = r->handle;
    }
    ts_sys_free(r);
}

/** Undoes the open transaction: removes its registrations, ops and keys. No call has used them. */
static void roll_back(void)
{
    ts_tables_clear_dirty();
    for (ts_op_entry *e = ts_entries; e; e = e->next) {
        for (int k = 0; k <= TS_KEY_COUNT; k++)
            for (ts_registration *r; (r = e->newest[k]) && r->transaction == before.transaction;) {
                e->newest[k] = r->older;
                ts_registration_free(r);
            }
        if (e->op >= before.ops) {
            if (ts_ops[e->op].flags & TS_OP_RUNTIME)
                ts_sys_free((void *)ts_ops[e->op].schema_text);
            e->op = -1;
        }
    }
    for (ts_keyset named = ts_reg.named & ~before.named; named; named &= named - 1)
        atomic_store_explicit(&ts_key_names[__builtin_ctzll(named)], NULL, memory_order_release);
    ts_reg = before;
}

ts_status ts_registry_end(ts_status status)
{
    if (ts_reg.depth == 1) {
        if (status == TS_OK)
            status = ts_tables_publish();
        if (status == TS_OK) {
            for (int k = 0; k < 16; k++)
                if (ts_reg.backends[k] != before.backends[k])
                    atomic_store_explicit(&ts_devices[k], ts_reg.backends[k], memory_order_release);
            atomic_store(&ts_ops_published, ts_reg.ops);
        } else {
            roll_back();
        }
    }
    ts_reg.depth--;
    pthread_mutex_unlock(&lock);
    return status;
}

static void free_all(ts_registration *r)
{
    for (ts_registration *older; r; r = older) {
        older = r->older;
        ts_sys_free(r);
    }
}

void ts_dispatch_remove(void)
{
    ts_timers_reset();
    for (ts_op_entry *e = ts_entries, *next; e; e = next) {
        next = e->next;
        for (int k = 0; k <= TS_KEY_COUNT; k++)
            free_all(e->newest[k]);
        if (e != &ts_fallbacks)
            ts_sys_free(e);
    }
    ts_sys_free(holders.at);
    for (int op = 0; op < ts_op_count(); op++) {
        for (const ts_op_table *t = atomic_exchange(&ts_tables[op], NULL), *older; t; t = older) {
            older = t->older;
            ts_sys_free((void *)t);
        }
        if (ts_ops[op].flags & TS_OP_RUNTIME)
            ts_sys_free((void *)ts_ops[op].schema_text);
    }
}
