/**
 * @file store.h  Data of the registry, for the files that change, build and restore it.
 *
 * One lock serialises every change. A change is a transaction: ts_registry_begin(), edits, and
 * ts_registry_end(), which publishes new tables for the changed ops or restores everything.
 * Transactions nest: loading a plugin is one transaction around those of its registrations.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_DISPATCH_STORE_H
#define TS_DISPATCH_STORE_H

#include "dispatch/registry.h"
#include "include/tessera/backend.h"

/** Bit in ts_registration.accepts.takes, beside ts_takes: the kernel needs contiguous tensors even
 *  if the op's rule accepts strides. */
#define TS_STRIDES_PACKED 2

typedef struct ts_op_entry ts_op_entry;

/** A kernel, a fallback or a gradient rule. */
struct ts_registration {
    ts_op_entry *entry;
    uint8_t slot;    /* index in entry->newest */
    uint32_t handle; /* index in the table of handles; 0: cannot be removed */
    ts_accepts accepts;
    ts_kernel kernel;
    const ts_vjp *vjp;      /* gradient rules only */
    const char *schema;     /* stored after the struct; NULL: not checked */
    uint64_t transaction;   /* transaction that added it */
    ts_registration *older; /* next registration of the same entry and slot */
};

/** The registrations for one op name; the op itself may be defined later. Entries are freed only
 *  when the library unloads. */
struct ts_op_entry {
    char name[48]; /* "": the entry of fallbacks, which apply to all ops */
    int op;        /* -1 while undefined */
    bool dirty;    /* touched in the open transaction */
    /* next in ts_entries, next touched entry, next entry with the same hash */
    ts_op_entry *next, *next_dirty, *next_alike;
    ts_registration *newest[TS_KEY_COUNT + 1];   /* per key; the last slot is the gradient rule */
};

/** State that a failed transaction restores by value. */
typedef struct ts_registry {
    int depth;            /* nesting depth of transactions */
    uint64_t transaction; /* number of the latest transaction */
    /* keys of ts_key_prefer_fallback(); keys with a name */
    ts_keyset prefer_fallback, named;
    const ts_backend *backends[16]; /* backend of each key; NULL for keys without a struct */
    int ops;                        /* defined ops; ops starting at ts_op_count() are not published
                                       yet */
} ts_registry;

extern ts_registry ts_reg;
extern _Atomic int ts_ops_published;
/* ts_fallbacks: the entry of fallbacks. ts_entries: the list of all entries, newest first; its last
 * entry is ts_fallbacks */
extern ts_op_entry ts_fallbacks, *ts_entries;

/** Marks the op for a new table at the end of the transaction; for the fallbacks, marks all ops. */
void ts_tables_touch(ts_op_entry *e);
/** Publishes new tables for all changed ops; on an error, publishes none. */
ts_status ts_tables_publish(void);
/** Clears the marks of ts_tables_touch() without publishing. */
void ts_tables_clear_dirty(void);

/** Gives r a handle for the user. The handle is a number, so that a stale one is detected.
 *  TS_ERR_MEMORY. */
ts_status ts_handle_give(ts_registration *r, ts_registration **handle);
/** The registration of a handle; NULL if it was removed. */
ts_registration *ts_handle_find(const ts_registration *handle);
/** Frees r, which must have been removed from its entry. Its handle becomes stale. */
void ts_registration_free(ts_registration *r);
/** Names the first free key in [from, to] and stores it in *key, unless `key` is NULL. Call it in
 *  a transaction. TS_ERR_REGISTRY if the name is taken or no key is free; TS_ERR_VALUE or
 *  TS_ERR_NULL for an invalid name.
 *  @param full  description of the range for that error, such as "the gap above CPU" */
ts_status ts_key_take(const char *what, const char *name, int from, int to, const char *full,
                      ts_key *key);
/** TS_ERR_REGISTRY if the open transaction added a kernel or a gradient for an undefined op. */
ts_status ts_kernels_have_ops(const char *what);
/** Registers a kernel. Call it in a transaction. If `out` is NULL and the newest registration is
 *  the same and has no handle, does nothing. Errors: TS_ERR_NULL (kernel, op), TS_ERR_REGISTRY
 *  (name, key, schema), TS_ERR_FORMAT (text of the schema), TS_ERR_MEMORY.
 *  @param schema  checked against the op's schema; NULL: not checked
 *  @param out     receives a handle; may be NULL */
ts_status ts_kernel_add(const char *op, ts_key key, ts_kernel kernel, ts_accepts accepts,
                        const char *schema, ts_registration **out);

/** Installs fork handlers for the lock of ts_backend_open(). */
void ts_open_install(void);

#endif
