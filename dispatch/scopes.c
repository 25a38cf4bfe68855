/** @file scopes.c  Numbers and names of the scopes of profiles, shared by all threads. */
// SPDX-License-Identifier: MIT
#include "core/process.h"
#include "dispatch/record.h"
#include "include/tessera/program.h"

#include <string.h>

enum { SCOPE_INDEX = 2 * TS_SCOPES_MOST };

/** Names are added under the lock and never change. An entry of the index is published after its
 *  name, so that a name is found without the lock. */
static struct {
    pthread_mutex_t lock;
    _Atomic uint32_t count; /* scope 0 has no name */
    ts_scope_name names[TS_SCOPES_MOST];
    _Atomic uint16_t index[SCOPE_INDEX]; /* open addressing by parent and name; 0: free */
} scopes = {.lock = PTHREAD_MUTEX_INITIALIZER, .count = 2,
            .names = {[TS_SCOPE_REST] = {.name = "(further scopes)"}}};

void ts_scopes_install(void) { TS_FORK_GUARD(&scopes.lock); }

/** The index entry of the scope `name` inside of `parent`, or the free entry where it belongs. */
static _Atomic uint16_t *scope_slot(uint32_t parent, const char *name)
{
    uint32_t at = parent * 0x9e3779b1u;
    for (const char *c = name; *c; c++)
        at = (at ^ (unsigned char)*c) * 0x01000193u;
    for (at ^= at >> 15;; at++) {
        _Atomic uint16_t *slot = &scopes.index[at % SCOPE_INDEX];
        const ts_scope_name *s = &scopes.names[atomic_load_explicit(slot, memory_order_acquire)];
        if (s == scopes.names || (s->parent == parent && strcmp(s->name, name) == 0))
            return slot;
    }
}

/** Adds a scope that has no number yet; `parent` if there are too many. */
static TS_COLD uint32_t add_scope(uint32_t parent, const char *name)
{
    pthread_mutex_lock(&scopes.lock);
    _Atomic uint16_t *slot = scope_slot(parent, name);
    uint32_t found = *slot, count = atomic_load_explicit(&scopes.count, memory_order_relaxed);
    if (!found && count < TS_SCOPES_MOST) {
        found = count;
        scopes.names[found].parent = parent;
        snprintf(scopes.names[found].name, sizeof scopes.names[found].name, "%s", name);
        atomic_store_explicit(&scopes.count, count + 1, memory_order_release);
        atomic_store_explicit(slot, (uint16_t)found, memory_order_release);
    }
    pthread_mutex_unlock(&scopes.lock);
    return found ? found : parent;
}

uint32_t ts_scope_named(uint32_t parent, const char *name)
{
    char cut[sizeof scopes.names[0].name];
    ts_escape_text(cut, sizeof cut, name);
    for (char *c = cut; *c; c++) /* ';' and '/' separate scopes in reports */
        *c = *c == ';' || *c == '/' ? '_' : *c;
    uint32_t found = *scope_slot(parent, cut);
    return TS_LIKELY(found) ? found : add_scope(parent, cut);
}

ts_scope_name ts_scope_get(uint32_t scope)
{
    bool known = scope < atomic_load_explicit(&scopes.count, memory_order_acquire);
    return scopes.names[known ? scope : 0];
}

int ts_scope_chain(uint32_t scope, uint32_t chain[TS_SCOPE_DEPTH])
{
    uint32_t inner[TS_SCOPE_DEPTH];
    int depth = 0;
    for (; scope && depth < TS_SCOPE_DEPTH; scope = ts_scope_get(scope).parent)
        inner[depth++] = scope;
    for (int i = 0; i < depth; i++)
        chain[i] = inner[depth - 1 - i];
    return depth;
}

uint32_t ts_scope_below(uint32_t base, uint32_t scope)
{
    uint32_t around[TS_SCOPE_DEPTH], chain[TS_SCOPE_DEPTH];
    int m = ts_scope_chain(ts_scope_get(base).parent, around), n = ts_scope_chain(scope, chain);
    int i = 0;
    while (i < m && i < n && chain[i] == around[i])
        i++;
    for (; i < n; i++)
        if (strcmp(ts_scope_get(chain[i]).name, "forward") != 0)
            base = ts_scope_named(base, ts_scope_get(chain[i]).name);
    return base;
}
