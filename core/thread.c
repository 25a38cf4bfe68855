/** @file thread.c  Creation, list and end of per-thread state. */
// SPDX-License-Identifier: MIT
#include "core/alloc.h"
#include "core/error.h"
#include "core/hooks.h"
#include "core/parallel.h"
#include "core/process.h"
#include "init.h"

#include <pthread.h>
#include <stdlib.h>

_Thread_local ts_thread ts_tls;
ts_hooks ts_above;
_Atomic uint64_t ts_epoch;
_Atomic int32_t ts_replays;

static struct {
    pthread_mutex_t lock;
    ts_thread *first;
    ts_keyset include_all; /* initial include_all and state of new threads */
    uint32_t state;
    int next_id;
    pthread_key_t key;
    bool has_key;
} threads = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Shared record for threads whose own record could not be allocated. */
static ts_error emergency;

static void thread_exit(void *arg)
{
    ts_thread *t = arg;
    ts_blocks_end(t);
    if (t->timers)
        ts_above.thread_ended(t);
    pthread_mutex_lock(&threads.lock);
    *t->link = t->next;
    if (t->next)
        t->next->link = t->link;
    pthread_mutex_unlock(&threads.lock);
    if (t->heap)
        ts_heap_abandon(t->heap);
    if (t->error != &emergency)
        ts_sys_free(t->error);
    *t = (ts_thread){0}; /* a later destructor that calls the library gets new state */
}

void ts_thread_init(ts_thread *t)
{
    if (atomic_load_explicit(&t->state, memory_order_relaxed))
        return;
    t->heap = ts_alloc_system ? NULL : ts_heap_acquire();
    t->error = ts_sys_calloc(sizeof *t->error);
    if (!t->error)
        t->error = &emergency;
    t->device = TS_DEVICE_CPU;
    pthread_mutex_lock(&threads.lock);
    if (!threads.has_key)
        threads.has_key = pthread_key_create(&threads.key, thread_exit) == 0;
    t->id = threads.next_id++;
    ts_blocks_begin(t);
    atomic_store_explicit(&t->include_all, threads.include_all, memory_order_relaxed);
    atomic_store_explicit(&t->state, TS_THREAD_READY | threads.state, memory_order_relaxed);
    t->next = threads.first;
    t->link = &threads.first;
    if (t->next)
        t->next->link = &t->next;
    threads.first = t;
    bool has_key = threads.has_key;
    pthread_mutex_unlock(&threads.lock);
    if (has_key)
        pthread_setspecific(threads.key, t);
    if (t->id <= 1) /* the first thread here may not be the one that loaded the library */
        ts_process_watch_end();
}

void ts_thread_walk(void (*visit)(ts_thread *thread, void *ctx), void *ctx)
{
    pthread_mutex_lock(&threads.lock);
    for (ts_thread *t = threads.first; t; t = t->next)
        visit(t, ctx);
    pthread_mutex_unlock(&threads.lock);
}

void ts_thread_defaults(ts_keyset include_set, ts_keyset include_clear, uint32_t state_set,
                        uint32_t state_clear)
{
    pthread_mutex_lock(&threads.lock);
    threads.include_all = (threads.include_all | include_set) & ~include_clear;
    threads.state = (threads.state | state_set) & ~state_clear;
    pthread_mutex_unlock(&threads.lock);
}

/* ----------------------------------------------------------------------- random numbers ---- */

void ts_manual_seed(uint64_t seed) { ts_rng_set_state((ts_rng_state){seed, 0}); }
ts_rng_state ts_rng_get_state(void) { return ts_thread_self()->rng; }
void ts_rng_set_state(ts_rng_state state)
{
    ts_thread_self()->rng = state;
    ts_mark_unrepeatable("a new state of the generator");
}

/* ------------------------------------------------------------------ install and remove ---- */

/** The parent's other threads do not exist in the child; their state is dropped. */
static void keep_only_this_thread(void)
{
    ts_thread *self = &ts_tls;
    threads.first = NULL;
    if (atomic_load_explicit(&self->state, memory_order_relaxed)) {
        threads.first = self;
        self->link = &threads.first;
        self->next = NULL;
    }
}

void ts_core_install(void)
{
    ts_process_install();
    ts_alloc_guard_forks();
    TS_FORK_GUARD(&threads.lock);
    TS_FORK_IN_CHILD(keep_only_this_thread);
    TS_FORK_IN_CHILD(ts_parallel_forked);
    ts_alloc_from_environment();
    ts_scopes_from_environment();
    ts_log_from_environment();
}

/* Frees the state of threads that outlive the library. */
void ts_core_remove(void)
{
    ts_parallel_stop();
    while (threads.first) /* other threads must be idle when dlclose() unloads the library */
        thread_exit(threads.first);
    if (threads.has_key)
        pthread_key_delete(threads.key);
    threads.has_key = false;
    ts_scopes_remove();
}
