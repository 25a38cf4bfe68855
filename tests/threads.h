/**
 * @file threads.h
 * Runs a function in several threads that start at the same moment.
 *
 *     static bool use(int number, void *ctx) { return ts_add(ctx, ctx) != NULL; }
 *     ck_assert_int_eq(ts_together(4, use, tensor), 4);
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_TESTS_THREADS_H
#define TESSERA_TESTS_THREADS_H

#include <pthread.h>
#include <stdbool.h>

#include "tests/harness.h"

/** Runs in thread `number`, from 0. Do not assert here; return false to fail. */
typedef bool (*ts_thread_body)(int number, void *ctx);

typedef struct ts_together_thread {
    pthread_t thread;
    pthread_barrier_t *start;
    ts_thread_body body;
    void *ctx;
    int number;
    bool good;
} ts_together_thread;

static inline void *ts_together_run(void *arg)
{
    ts_together_thread *t = arg;
    pthread_barrier_wait(t->start);
    t->good = t->body(t->number, t->ctx);
    return NULL;
}

/** Starts body in all threads at the same moment, waits for them, and returns how many returned
 * true. */
static inline int ts_together(int threads, ts_thread_body body, void *ctx)
{
    enum { MOST = 16 };
    ts_together_thread all[MOST];
    pthread_barrier_t start;
    int good = 0;
    ck_assert_int_le(threads, MOST);
    ck_assert_int_eq(pthread_barrier_init(&start, NULL, (unsigned)threads), 0);
    for (int i = 0; i < threads; i++) {
        all[i] = (ts_together_thread){.start = &start, .body = body, .ctx = ctx, .number = i};
        ck_assert_int_eq(pthread_create(&all[i].thread, NULL, ts_together_run, &all[i]), 0);
    }
    for (int i = 0; i < threads; i++) {
        pthread_join(all[i].thread, NULL);
        good += all[i].good;
    }
    pthread_barrier_destroy(&start);
    return good;
}

#endif
