/** @file process.h  Locks and hooks for fork() and for the end of the process. Each use of a macro
 * below keeps its registration in a static variable of its own, so registrations have no limit and
 * never fail. One use registers one lock or hook: if it runs again, the call is ignored. */
// SPDX-License-Identifier: MIT
#ifndef TS_CORE_PROCESS_H
#define TS_CORE_PROCESS_H

#include <pthread.h>
#include <stdbool.h>

/** Installs the handlers of fork() and exit(). core/ calls it when the library loads. */
void ts_process_install(void);

/** A lock that fork() holds. */
typedef struct ts_guarded_lock {
    pthread_mutex_t *lock;
    pthread_mutex_t unlocked; /* copy of the free lock, which a child restores: it cannot unlock,
                                 because its thread id differs from that of the lock's owner */
    struct ts_guarded_lock *below, *above; /* registered before and after this lock */
} ts_guarded_lock;
/** A hook in one of the lists below. */
typedef struct ts_process_hook {
    void (*run)(void);
    struct ts_process_hook *next; /* registered after this hook */
} ts_process_hook;
/** Hooks run in the order of their registration. */
typedef struct ts_process_hooks {
    ts_process_hook *first, *last;
} ts_process_hooks;
extern ts_process_hooks ts_before_fork, ts_after_fork, ts_in_child, ts_at_end;

/** Adds a lock or a hook. Does nothing if `entry` is already in a list. `entry` is memory of the
 *  caller that stays valid as long as the library. Call these only while the library loads, in the
 *  thread that loads it: the lists have no lock. */
void ts_fork_add_lock(ts_guarded_lock *entry, pthread_mutex_t *lock);
void ts_process_add_hook(ts_process_hooks *list, ts_process_hook *entry, void (*hook)(void));
#define TS_ADD_HOOK(list, hook)                                                                    \
    do {                                                                                           \
        static ts_process_hook ts_entry;                                                           \
        ts_process_add_hook(list, &ts_entry, hook);                                                \
    } while (0)

/**
 * Registers a lock that fork() holds, so that its data is consistent in the child. The lock must be
 * free at registration. Lower rooms register first. fork() takes the locks in reverse order, upper
 * rooms first, which is the order in which calls take them.
 */
#define TS_FORK_GUARD(lock)                                                                        \
    do {                                                                                           \
        static ts_guarded_lock ts_entry;                                                           \
        ts_fork_add_lock(&ts_entry, lock);                                                         \
    } while (0)
/** Registers hooks for locks that come and go: fork() calls before() before it takes the guarded
 *  locks, and after(), in parent and child, when they are released. */
#define TS_FORK_AROUND(before, after)                                                              \
    do {                                                                                           \
        TS_ADD_HOOK(&ts_before_fork, before);                                                      \
        TS_ADD_HOOK(&ts_after_fork, after);                                                        \
    } while (0)
/** Waits until the lock is free, at most a second; false if it is still held. */
bool ts_process_await_lock(pthread_mutex_t *lock);
/** For a report after a crash: frees each guarded lock that no thread releases within a second. The
 *  crashed thread may hold such a lock while it waits for the report, so the lock's data may be
 *  inconsistent. */
void ts_process_break_locks(void);
/** Registers a hook that runs in each forked child after the locks are released. The child has only
 *  the forking thread. */
#define TS_FORK_IN_CHILD(hook) TS_ADD_HOOK(&ts_in_child, hook)

/**
 * Registers the exit() handler that notes the end of the process. exit() runs handlers in the
 * reverse order of their registration, so this function is called several times: when the library
 * loads, when each of the first two threads begins to use the library, and when another library may
 * have registered a handler before which this one must run. The hooks of TS_PROCESS_AT_END() run
 * once, in the first of these handlers that exit() calls.
 */
void ts_process_watch_end(void);
/** Registers a hook that runs at process end, before the destructors of other libraries. */
#define TS_PROCESS_AT_END(hook) TS_ADD_HOOK(&ts_at_end, hook)
/** True while the process exits; the library then frees nothing. False while dlclose() unloads the
 *  library. */
bool ts_process_ends(void);

#endif
