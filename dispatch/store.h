/**
 * @file store.h  What the registry holds, shared by the files that keep, build and undo it.
 *
 * One lock serialises every change. A change is a transaction: ts_registry_begin(), edits, and
 * ts_registry_end(), which publishes new tables for the changed ops or restores everything. They
 * nest, so that a plugin's whole load is one transaction around those of its registrations.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_DISPATCH_STORE_H
#define TS_DISPATCH_STORE_H

#include "dispatch/registry.h"
#include "include/tessera/backend.h"

/** In ts_registration.accepts.takes: contiguous even where the op's rule lets strides pass. */
#define TS_STRIDES_PACKED 2

typedef struct ts_op_entry ts_op_entry;

/** A kernel, a fallback or a gradient rule. */
struct ts_registration {
    ts_op_entry *entry;
    uint8_t slot;    /* of the entry */
    uint32_t handle; /* its place in the list of handles; 0: it cannot be removed */
    ts_accepts accepts;
    ts_kernel kernel;
    const ts_vjp *vjp;      /* of a gradient rule */
    const char *schema;     /* behind the struct; NULL when unchecked */
    uint64_t transaction;   /* that added it */
    ts_registration *older; /* same entry and slot */
};

/** All that is registered for one op name, whether the op is known yet or not. Entries stay. */
struct ts_op_entry {
    char name[48]; /* "": of the fallbacks, which are for all ops */
    int op;        /* -1 while undefined */
    bool dirty;    /* touched in the open transaction */
    ts_op_entry *next, *next_dirty, *next_alike; /* alike: in the hash of the name */
    ts_registration *newest[TS_KEY_COUNT + 1];   /* by key; behind them the gradient rule */
};

/** State that a failed transaction restores by value. */
typedef struct ts_registry {
    int depth;            /* of open transactions */
    uint64_t transaction; /* number of the latest */
    ts_keyset prefer_fallback, named;
    const ts_backend *backends[16]; /* that keys belong to; NULL for keys with a name alone */
    int ops;                        /* defined; those past ts_op_count() are not published yet */
} ts_registry;

extern ts_registry ts_reg;
extern _Atomic int ts_ops_published;
extern ts_op_entry ts_fallbacks, *ts_entries; /* the last of all, and the first */

/** The op is to get a new table at the end of the transaction; the fallbacks: all ops are. */
void ts_tables_touch(ts_op_entry *e);
/** New tables for the changed ops; all or nothing. */
ts_status ts_tables_publish(void);
void ts_tables_forget(void);

/** Gives r a handle for the user: a number, so that it can be told when nothing of r is left. */
ts_status ts_handle_give(ts_registration *r, ts_registration **handle);
/** The registration of a handle; NULL if it was removed. */
ts_registration *ts_handle_find(const ts_registration *handle);
/** Frees registrations that no slot uses; their handles become stale. */
void ts_registration_free(ts_registration *r);
/** Gives the first free key from `from` to `to` a name. In a transaction. */
ts_status ts_key_take(const char *what, const char *name, int from, int to, const char *full,
                      ts_key *key);
/** TS_ERR_REGISTRY for a kernel or a gradient of the open transaction whose op is not defined. */
ts_status ts_kernels_have_ops(const char *what);
/** A kernel of the library's own for a backend; in a transaction. */
ts_status ts_kernel_add(const char *op, ts_key key, ts_kernel kernel, ts_accepts accepts,
                        const char *schema, ts_registration **out);

/** Guards opening while the process forks. */
void ts_open_install(void);

#endif
