/** @file rival.h  A second thread that never sleeps, on the calling thread's processor: each of the
 * two threads waits for the processor about half of the time. */
// SPDX-License-Identifier: MIT
#ifndef TESTS_PROFILE_RIVAL_H
#define TESTS_PROFILE_RIVAL_H

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>

#include "tests/harness.h"

/** The second thread. */
typedef struct rival {
    pthread_t thread;
    atomic_bool stop;
    cpu_set_t before; /* the calling thread's processors */
} rival;

static void *compete(void *stop)
{
    while (!atomic_load((atomic_bool *)stop))
        ;
    return NULL;
}

/** True if the system counts the time in which a thread is ready and does not run. */
static inline bool waits_are_counted(void)
{
    FILE *counts = fopen("/proc/thread-self/schedstat", "r");
    if (counts)
        fclose(counts);
    return counts != NULL;
}

/** Binds the calling thread to one processor and starts the other thread on it. */
static inline void rival_start(rival *r)
{
    cpu_set_t first;
    ck_assert_int_eq(sched_getaffinity(0, sizeof r->before, &r->before), 0);
    CPU_ZERO(&first);
    for (int i = 0; !CPU_COUNT(&first); i++)
        if (CPU_ISSET(i, &r->before))
            CPU_SET(i, &first);
    ck_assert_int_eq(sched_setaffinity(0, sizeof first, &first), 0);
    atomic_store(&r->stop, false);
    ck_assert_int_eq(pthread_create(&r->thread, NULL, compete, &r->stop), 0);
}

/** Ends the other thread and gives the calling thread its processors again. */
static inline void rival_stop(rival *r)
{
    atomic_store(&r->stop, true);
    ck_assert_int_eq(pthread_join(r->thread, NULL), 0);
    ck_assert_int_eq(sched_setaffinity(0, sizeof r->before, &r->before), 0);
}

#endif
