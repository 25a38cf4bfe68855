/** @file process.c  Forks and the end of the process. */
// SPDX-License-Identifier: MIT
#include "core/process.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

ts_process_hooks ts_before_fork, ts_after_fork, ts_in_child, ts_at_end;
static ts_guarded_lock *lowest, *highest;
static atomic_bool ends; /* exit() has begun */

void ts_process_add_hook(ts_process_hooks *list, ts_process_hook *entry, void (*hook)(void))
{
    if (entry->run)
        return;
    entry->run = hook;
    *(list->last ? &list->last->next : &list->first) = entry;
    list->last = entry;
}

static void call_hooks(const ts_process_hooks *list)
{
    for (const ts_process_hook *h = list->first; h; h = h->next)
        h->run();
}

/* -------------------------------------------------------------------------------- forks ---- */

static void before_fork(void)
{
    call_hooks(&ts_before_fork);
    for (ts_guarded_lock *g = highest; g; g = g->below)
        pthread_mutex_lock(g->lock);
}

static void after_fork_in_parent(void)
{
    for (ts_guarded_lock *g = lowest; g; g = g->above)
        pthread_mutex_unlock(g->lock);
    call_hooks(&ts_after_fork);
}

static void after_fork_in_child(void)
{
    for (ts_guarded_lock *g = lowest; g; g = g->above)
        *g->lock = g->unlocked;
    call_hooks(&ts_after_fork);
    call_hooks(&ts_in_child);
}

void ts_fork_add_lock(ts_guarded_lock *entry, pthread_mutex_t *lock)
{
    if (entry->lock)
        return;
    *entry = (ts_guarded_lock){.lock = lock, .unlocked = *lock, .below = highest};
    *(highest ? &highest->above : &lowest) = entry;
    highest = entry;
}

bool ts_process_await_lock(pthread_mutex_t *lock)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec++;
    return pthread_mutex_timedlock(lock, &until) == 0 && pthread_mutex_unlock(lock) == 0;
}

void ts_process_break_locks(void)
{
    for (ts_guarded_lock *g = lowest; g; g = g->above)
        if (!ts_process_await_lock(g->lock))
            *g->lock = g->unlocked;
}

/* ---------------------------------------------------------------------------------- end ---- */

static void note_end(void)
{
    if (!atomic_exchange(&ends, true))
        call_hooks(&ts_at_end);
}

/*
 * exit() runs the handlers that were registered after main() began, then the destructors of
 * libraries; dlclose() runs a library's destructors before its handlers. A destructor therefore
 * finds `ends` set at process exit only. A handler that is registered while the program loads runs
 * after the destructors, so the library registers it again when a second thread first uses it.
 */
void ts_process_watch_end(void)
{
    if (atexit(note_end) != 0)
        note_end(); /* exit() has begun and accepts no handler */
}

bool ts_process_ends(void) { return atomic_load(&ends); }

void ts_process_install(void)
{
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    ts_process_watch_end();
}
