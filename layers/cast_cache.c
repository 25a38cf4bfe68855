/** @file cast_cache.c  Per-thread cache of autocast's casts of leaves: a hash table, keyed by the
 * leaf's address, with open addressing. */
// SPDX-License-Identifier: MIT
#include "layers/cast_cache.h"
#include "core/alloc.h"
#include "core/thread.h"
#include "init.h"

#include <pthread.h>
#include <string.h>

typedef struct entry {
    ts_tensor *leaf, *cast; /* owned; leaf NULL: free */
    uint32_t version;       /* version of the leaf's storage when it was cast */
} entry;

typedef struct cache {
    entry *entries;
    uint32_t capacity, count; /* capacity: a power of two, at most half full; 0: no entries */
} cache;

static _Thread_local cache casts __attribute__((tls_model("initial-exec")));

/** The leaf's entry, or the free one where it belongs. */
static entry *slot_of(const cache *c, const ts_tensor *leaf)
{
    uint32_t mask = c->capacity - 1, at = ts_hash_pointer(leaf, mask);
    while (c->entries[at].leaf && c->entries[at].leaf != leaf)
        at = (at + 1) & mask;
    return &c->entries[at];
}

static bool grow(cache *c)
{
    cache wide = {.capacity = c->capacity ? 2 * c->capacity : 32, .count = c->count};
    wide.entries = ts_alloc(ts_thread_self(), wide.capacity * sizeof(entry));
    if (!wide.entries)
        return false;
    memset(wide.entries, 0, wide.capacity * sizeof(entry));
    for (uint32_t i = 0; i < c->capacity; i++)
        if (c->entries[i].leaf)
            *slot_of(&wide, c->entries[i].leaf) = c->entries[i];
    if (c->capacity)
        ts_free(ts_thread_self(), c->entries, c->capacity * sizeof(entry));
    *c = wide;
    return true;
}

ts_tensor *ts_cast_cache_find(const ts_tensor *t, ts_dtype dtype)
{
    const entry *e = casts.count ? slot_of(&casts, t) : NULL;
    return e && e->leaf && e->version == ts_version(t) && ts_dtype_of(e->cast) == dtype ? e->cast
        : NULL;
}

void ts_cast_cache_put(ts_tensor *t, ts_tensor *cast)
{
    if (2 * casts.count >= casts.capacity && !grow(&casts))
        return;
    entry *e = slot_of(&casts, t);
    if (e->leaf) {
        ts_release(e->cast);
    } else {
        e->leaf = ts_retain(t);
        casts.count++;
    }
    e->cast = ts_retain(cast);
    e->version = ts_version(t);
}

int64_t ts_cast_cache_count(void) { return casts.count; }

void ts_cast_cache_clear(void)
{
    cache c = casts;
    casts = (cache){0}; /* first: a release may run user code, which may use the cache */
    for (uint32_t i = 0; i < c.capacity; i++) {
        ts_release(c.entries[i].cast);
        ts_release(c.entries[i].leaf);
    }
    if (c.capacity)
        ts_free(ts_thread_self(), c.entries, c.capacity * sizeof(entry));
}

/* ---------------------------------------------------------------- the end of a thread ---- */

static pthread_key_t thread_key;
static bool has_key;

static void thread_ended(void *unused)
{
    (void)unused;
    ts_cast_cache_clear();
}

void ts_cast_cache_install(void)
{
    has_key = pthread_key_create(&thread_key, thread_ended) == 0;
}

void ts_layers_remove(void)
{
    if (has_key)
        pthread_key_delete(thread_key);
    has_key = false;
}

void ts_cast_cache_watch(void)
{
    if (has_key)
        pthread_setspecific(thread_key, &casts); /* if it fails, this thread's cache leaks */
}
