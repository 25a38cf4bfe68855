/** @file process.h  What becomes of threads and locks when the process forks or ends. */
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
/** Called in every child, after the locks are free again; it has the forking thread alone. */
void ts_fork_in_child(void (*hook)(void));

/** To be called when the library is loaded, and when a second thread begins to use it: threads that
 * run on while the process ends are others than the one that ends it. */
void ts_process_watch_end(void);
/** Called once the process ends, before libraries that this one uses come down. */
void ts_process_at_end(void (*hook)(void));
/** Whether the process ends, which frees nothing, rather than the library being unloaded. */
bool ts_process_ends(void);

#endif
