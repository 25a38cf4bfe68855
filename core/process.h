/** @file process.h  Locks and threads across forks and the end of the process. */
// SPDX-License-Identifier: MIT
#ifndef TS_CORE_PROCESS_H
#define TS_CORE_PROCESS_H

#include <pthread.h>
#include <stdbool.h>

void ts_process_install(void);

/**
 * Holds a lock while the process forks, so that its data is consistent in the child. The lock must
 * be free. Rooms announce their locks as init.c calls them, from the bottom up; a fork takes them
 * from the top down, as calls do.
 */
void ts_fork_guard(pthread_mutex_t *lock);
/** Called in every child after the locks are released. The child has only the forking thread. */
void ts_fork_in_child(void (*hook)(void));

/** Registers the handler that notes the end of the process. Call it when the library loads and when
 * a second thread begins to use the library. */
void ts_process_watch_end(void);
/** Registers a hook that runs at process end, before the destructors of other libraries. */
void ts_process_at_end(void (*hook)(void));
/** True during process exit, which frees nothing; false while the library is unloaded. */
bool ts_process_ends(void);

#endif
