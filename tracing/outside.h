/** @file outside.h  A table of the tensors and storages that a trace uses and did not make. The
 * recorder uses the table instead of writing ids to them, because other threads may use them. */
// SPDX-License-Identifier: MIT
#ifndef TS_TRACING_OUTSIDE_H
#define TS_TRACING_OUTSIDE_H

#include "core/alloc.h"

#include <string.h>

/** Handle or storage -> index of its value or storage in the graph. */
typedef struct ts_outside_entry {
    const void *key; /* NULL: free */
    uint32_t index;
} ts_outside_entry;

/** Open addressing; zero is the empty table. */
typedef struct ts_outside {
    ts_outside_entry *entries;
    uint32_t used, capacity; /* entries in use; capacity, a power of two */
} ts_outside;

TS_INLINE ts_outside_entry *ts_outside_slot(const ts_outside *t, const void *key)
{
    uint32_t at = ts_hash_pointer(key, t->capacity - 1);
    while (t->entries[at].key && t->entries[at].key != key)
        at = (at + 1) & (t->capacity - 1);
    return &t->entries[at];
}

/** The entry of a key, valid until the next insertion; NULL if there is none. */
TS_INLINE const ts_outside_entry *ts_outside_find(const ts_outside *t, const void *key)
{
    const ts_outside_entry *e = t->capacity ? ts_outside_slot(t, key) : NULL;
    return e && e->key ? e : NULL;
}

TS_INLINE void ts_outside_free(ts_outside *t, ts_thread *thread)
{
    if (t->capacity)
        ts_free(thread, t->entries, t->capacity * sizeof *t->entries);
}

/** Adds or replaces an entry; false, without an error, if out of memory. */
static inline bool ts_outside_insert(ts_outside *t, ts_thread *thread, const void *key,
                                     uint32_t index)
{
    if (2 * t->used >= t->capacity) {
        ts_outside more = {.capacity = t->capacity ? 2 * t->capacity : 64, .used = t->used};
        more.entries = ts_alloc(thread, more.capacity * sizeof *more.entries);
        if (!more.entries)
            return false;
        memset(more.entries, 0, more.capacity * sizeof *more.entries);
        for (uint32_t i = 0; i < t->capacity; i++)
            if (t->entries[i].key)
                *ts_outside_slot(&more, t->entries[i].key) = t->entries[i];
        ts_outside_free(t, thread);
        *t = more;
    }
    ts_outside_entry *e = ts_outside_slot(t, key);
    t->used += !e->key;
    *e = (ts_outside_entry){key, index};
    return true;
}

#endif
