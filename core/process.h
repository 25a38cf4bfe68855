/** @file process.h  Locks and threads across forks and the end of the process. At most 16 locks and
 * 16 hooks of each kind can be registered; the functions ignore further ones. */
// SPDX-License-Identifier: MIT
#ifndef TS_CORE_PROCESS_H
#define TS_CORE_PROCESS_H

#include <pthread.h>
#include <stdbool.h>

/** Installs the handlers of fork() and exit(). core/ calls it when the library loads. */
void ts_process_install(void);

/**
 * Registers a lock that fork() holds, so that its data is consistent in the child. The lock must be
 * free at registration. Lower rooms register first. fork() takes the locks in reverse order, upper
 * rooms first, which is the order in which calls take them.
 */
void ts_fork_guard(pthread_mutex_t *lock);
/** Registers hooks for locks that come and go: fork() calls before() before it takes the guarded
 *  locks, and after(), in parent and child, when they are released. */
void ts_fork_around(void (*before)(void), void (*after)(void));
/** Waits until the lock is free, at most a second; false if it is still held. */
bool ts_process_await_lock(pthread_mutex_t *lock);
/** For a report after a crash: frees each guarded lock that no thread releases within a second. The
 *  crashed thread holds it while it waits for the report, so the data may be inconsistent. */
void ts_process_break_locks(void);
/** Registers a hook that runs in each forked child after the locks are released. The child has only
 *  the forking thread. */
void ts_fork_in_child(void (*hook)(void));

/** Registers the exit() handler that notes the end of the process. Call it when the library loads
 * and when a second thread begins to use the library; also after other libraries have registered
 * exit() handlers before which this one must run (handlers run in reverse order). */
void ts_process_watch_end(void);
/** Registers a hook that runs at process end, before the destructors of other libraries. */
void ts_process_at_end(void (*hook)(void));
/** True while the process exits; the library then frees nothing. False while dlclose() unloads the
 *  library. */
bool ts_process_ends(void);

#endif
