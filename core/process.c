/** @file process.c  Forks and the end of the process. */
// SPDX-License-Identifier: MIT
#include "core/process.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#define MOST 16 /* capacity for locks, and for hooks of each kind */

static struct {
    pthread_mutex_t *lock;
    pthread_mutex_t unlocked; /* the lock when it was free; a child restores this state, because its
                                 thread id differs from that of the lock's owner */
} guards[MOST];
typedef struct hook_list {
    void (*hooks[MOST])(void);
    int count;
} hook_list;
static int guard_count;
static hook_list before_locks, after_locks, in_child, at_end;
static atomic_bool ends; /* exit() has begun */

static void add_hook(hook_list *l, void (*hook)(void))
{
    if (l->count < MOST)
        l->hooks[l->count++] = hook;
}

static void call_hooks(const hook_list *l)
{
    for (int i = 0; i < l->count; i++)
        l->hooks[i]();
}

/* -------------------------------------------------------------------------------- forks ---- */

static void before_fork(void)
{
    call_hooks(&before_locks);
    for (int i = guard_count - 1; i >= 0; i--)
        pthread_mutex_lock(guards[i].lock);
}

static void after_fork_in_parent(void)
{
    for (int i = 0; i < guard_count; i++)
        pthread_mutex_unlock(guards[i].lock);
    call_hooks(&after_locks);
}

static void after_fork_in_child(void)
{
    for (int i = 0; i < guard_count; i++)
        *guards[i].lock = guards[i].unlocked;
    call_hooks(&after_locks);
    call_hooks(&in_child);
}

void ts_fork_guard(pthread_mutex_t *lock)
{
    if (guard_count < MOST) {
        guards[guard_count].lock = lock;
        guards[guard_count++].unlocked = *lock;
    }
}

void ts_fork_around(void (*before)(void), void (*after)(void))
{
    add_hook(&before_locks, before);
    add_hook(&after_locks, after);
}

void ts_fork_in_child(void (*hook)(void)) { add_hook(&in_child, hook); }

bool ts_process_await_lock(pthread_mutex_t *lock)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec++;
    return pthread_mutex_timedlock(lock, &until) == 0 && pthread_mutex_unlock(lock) == 0;
}

void ts_process_break_locks(void)
{
    for (int i = 0; i < guard_count; i++)
        if (!ts_process_await_lock(guards[i].lock))
            *guards[i].lock = guards[i].unlocked;
}

/* ---------------------------------------------------------------------------------- end ---- */

static void note_end(void)
{
    if (!atomic_exchange(&ends, true))
        call_hooks(&at_end);
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

void ts_process_at_end(void (*hook)(void)) { add_hook(&at_end, hook); }
bool ts_process_ends(void) { return atomic_load(&ends); }

void ts_process_install(void)
{
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    ts_process_watch_end();
}
