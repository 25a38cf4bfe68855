/**
 * @file store.h  What the registry holds, shared by the files that keep, build and undo it.
 *
 * One lock serialises every change. A change is a transaction: ts_registry_begin(), edits, and
 * ts_registry_end(), which publishes new tables for what was touched or puts everything back. They
 * nest, so that a plugin's whole load is one transaction around those of its registrations.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_DISPATCH_STORE_H
#define TS_DISPATCH_STORE_H

#include "dispatch/registry.h"
#include "include/tessera/backend.h"

/* uthash must not exit on out of memory; a failed insert is reported through the add's result */
#define HASH_NONFATAL_OOM 1
#define uthash_malloc(size) ts_sys_alloc(size)
#define uthash_free(block, size) ts_sys_free(block)
#define uthash_nonfatal_oom(element) (ts_registry_oom = (element))
extern void *ts_registry_oom;
#include <uthash.h>

/** In ts_registration.accepts.strided: contiguous even where the op's rule lets strides pass. */
#define TS_STRIDES_PACKED 2

/** A kernel or fallback. Handles that were given out outlive their removal,
 * so a stale one is told. */
struct ts_registration {
    char op[48]; /* "" for a fallback */
    ts_key key;
    bool removed;
    ts_kernel kernel;
    ts_accepts accepts;
    char *schema; /* owned; NULL when unchecked */
    const void *site;
    uint64_t transaction;   /* that added it */
    ts_registration *older; /* same op and key; of a removed one: next of the removed */
};

/** All kernels of one op name, whether the op is known yet or not. */
typedef struct ts_op_entry {
    char name[48];
    int op;     /* -1 while undefined */
    bool dirty; /* touched in the open transaction */
    struct ts_op_entry *next_dirty;
    ts_registration *kernels[TS_KEY_COUNT];
    const ts_vjp *vjp, *vjp_before; /* of the op; before the transaction that changed it */
    uint64_t vjp_transaction;
    UT_hash_handle hh;
} ts_op_entry;

/** What a transaction that fails puts back by value. */
typedef struct ts_registry {
    ts_registration *fallbacks[TS_KEY_COUNT];
    ts_keyset prefer_fallback;
    const ts_backend *backends[16]; /* that keys belong to; NULL for keys with a name alone */
    void *libraries[16];            /* that backends were loaded from,
                                       and which stay; NULL: the program's */
    const char *key_names[TS_KEY_COUNT];   /* ts_key_names as the lock's holder knows them */
    int ops; /* defined; those past ts_op_count() are not published yet */
} ts_registry;

extern ts_registry ts_reg;
extern _Atomic(const char *) ts_key_names[TS_KEY_COUNT]; /* for readers without the lock */
extern ts_op_entry *ts_reg_entries;

/* ts_registry_begin() opens a transaction. ts_registry_end() publishes what changed,
 * or puts everything back when status is an error or memory runs out. */
/** True inside of ts_registry_begin() by another, e.g. while a plugin loads. */
bool ts_registry_nested(void);
/** Number of the open transaction. */
uint64_t ts_registry_transaction(void);
/** What ts_op_count() says from now on. */
void ts_op_count_publish(int ops);

/** The op is to get a new table at the end of the transaction; all ops are. */
void ts_tables_touch(ts_op_entry *e);
void ts_tables_touch_all(void);
/** New tables for what was touched; all or nothing. */
ts_status ts_tables_publish(void);
void ts_tables_forget(void);

void ts_registration_free(ts_registration *r);
/** Keeps a removed registration until the library unloads. */
void ts_registration_bury(ts_registration *r);
/** Gives the first free key from `from` to `to` a name. In a transaction. */
ts_status ts_key_take(const char *what, const char *name, int from, int to, const char *full,
                      ts_key *key);
/** A kernel of the library's own for a backend; in a transaction. */
ts_status ts_kernel_add(const char *op, ts_key key, ts_kernel kernel, ts_accepts accepts,
                        const char *schema, const void *site, ts_registration **out);

#endif
