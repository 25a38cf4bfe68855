/** @file memory_log.c  Records allocations and releases of storages. See memory_log.h. */
// SPDX-License-Identifier: MIT
#include "dispatch/memory_log.h"
#include "core/hooks.h"
#include "core/process.h"
#include "dispatch/timers_state.h"

#include <string.h>

enum { LIVES_MOST = 1 << 20 /* later storages are counted as lost */, LISTS = 1 << 14 };

static struct {
    pthread_mutex_t lock;
    ts_memory_life *all;
    int64_t count, capacity; /* of `all` */
    int64_t lost, begun;     /* storages not recorded; tick at which the recording began */
    uint32_t lists[LISTS]; /* hash table of live storages by address: index in `all` of a list's
                              first life, plus 1; 0: empty list */
    uint8_t session; /* number of the recording, from 1 */
    atomic_bool on;
} history = {.lock = PTHREAD_MUTEX_INITIALIZER};

bool ts_memory_log_is_on(void) { return atomic_load(&history.on); }

static ts_memory_life *next_life(void)
{
    if (history.count == history.capacity) {
        int64_t wanted = ts_min64(history.capacity ? 2 * history.capacity : 4096, LIVES_MOST);
        void *grown = wanted > history.capacity
                          ? ts_sys_realloc(history.all, (size_t)wanted * sizeof *history.all)
                          : NULL;
        if (!grown) {
            history.lost++;
            return NULL;
        }
        history.all = grown;
        history.capacity = wanted;
    }
    return &history.all[history.count++];
}

static uint32_t *list_of(const ts_storage *s)
{
    return &history.lists[ts_hash_pointer(s, LISTS - 1)];
}

static void log_allocated(ts_thread *thread, ts_storage *s)
{
    ts_timers *t = thread->timers;
    if (!atomic_load_explicit(&history.on, memory_order_relaxed) || !t || !t->running)
        return;
    const ts_tally_row *row = row_of(t, t->running);
    pthread_mutex_lock(&history.lock);
    ts_memory_life *l = atomic_load(&history.on) ? next_life() : NULL;
    if (l) {
        *l = (ts_memory_life){.allocated = ticks(), .bytes = s->bytes, .alive = s,
                              .scope = t->record.scope, .op = row ? row->op : TS_ROW_OUTSIDE,
                              .device = s->device.backend};
        l->next = *list_of(s);
        *list_of(s) = (uint32_t)history.count;
        s->logged = history.session;
    }
    pthread_mutex_unlock(&history.lock);
}

static void log_freed(ts_storage *s)
{
    pthread_mutex_lock(&history.lock);
    uint32_t *at = s->logged == history.session && atomic_load(&history.on) ? list_of(s) : NULL;
    while (at && *at && history.all[*at - 1].alive != s)
        at = &history.all[*at - 1].next;
    if (at && *at) {
        ts_memory_life *l = &history.all[*at - 1];
        *at = l->next;
        l->freed = ticks();
        l->alive = NULL;
        l->owner = ts_storage_owner(s);
    }
    pthread_mutex_unlock(&history.lock);
}

void ts_memory_log_install(void)
{
    ts_above.storage_allocated = log_allocated;
    ts_above.storage_freed = log_freed;
    TS_FORK_GUARD(&history.lock);
}

void ts_memory_log_begin(bool on)
{
    pthread_mutex_lock(&history.lock);
    history.count = history.lost = 0;
    memset(history.lists, 0, sizeof history.lists);
    history.session = history.session == UINT8_MAX ? 1 : history.session + 1;
    history.begun = ticks();
    atomic_store(&history.on, on);
    pthread_mutex_unlock(&history.lock);
}

void ts_memory_log_abandon(void)
{
    if (!ts_process_await_lock(&history.lock)) {
        atomic_store(&history.on, false);
        history.count = 0;
    }
}

void ts_memory_log_end(void)
{
    pthread_mutex_lock(&history.lock);
    for (int64_t i = 0; i < history.count && atomic_load(&history.on); i++)
        if (history.all[i].alive) {
            history.all[i].owner = ts_storage_owner(history.all[i].alive);
            history.all[i].alive = NULL;
        }
    atomic_store(&history.on, false);
    pthread_mutex_unlock(&history.lock);
}

const ts_memory_life *ts_memory_lives(int64_t *count, int64_t *lost, int64_t *begun)
{
    *count = history.count;
    *lost = history.lost;
    *begun = history.begun;
    return history.all;
}
