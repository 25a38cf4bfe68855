/** @file exit.c  The process ends while other threads compute. */
// SPDX-License-Identifier: MIT
#include "tests/harness.h"
#include "tests/process/children.h"

#include <pthread.h>
#include <stdlib.h>

#include <tessera/tessera.h>

static atomic_int turns;

static ts_tensor *filled(int64_t n, ts_dtype dtype) { return ts_ones(TS_SIZES(n, n), dtype); }

static void add(ts_tensor *x) { ts_add(x, x); }
static void multiply(ts_tensor *x) { ts_mm(x, x); }
static void differentiate(ts_tensor *x)
{
    ts_tensor *w = ts_clone(x);
    ts_set_requires_grad(w, true);
    ts_backward(ts_sum(ts_mul(w, w)));
}
static void convert(ts_tensor *x) { ts_sum(ts_to(x, TS_BF16)); }

static const struct {
    void (*work)(ts_tensor *x);
    int64_t n;
    ts_dtype dtype;
} kinds[] = {
    {add, 4, TS_F32},           /* dispatch */
    {add, 300, TS_F32},         /* the pool */
    {multiply, 150, TS_F64},    /* the CBLAS */
    {multiply, 150, TS_F32},
    {differentiate, 20, TS_F32},
    {convert, 50, TS_F32},
};

static void *compute(void *kind)
{
    int k = *(const int *)kind;
    for (;;) {
        TS_SCOPE;
        kinds[k].work(filled(kinds[k].n, kinds[k].dtype));
        atomic_fetch_add(&turns, 1);
    }
    return NULL;
}

static void end_while_others_compute(int kind)
{
    pthread_t thread;
    for (int i = 0; i < 3; i++)
        pthread_create(&thread, NULL, compute, &kind);
    while (atomic_load(&turns) < 30)
        ;
    exit(7);
}

TS_TEST(exit_frees_nothing_that_other_threads_use, .loop = sizeof kinds / sizeof *kinds)
{
    TS_NO_THREADS_AFTER_FORK;
    for (int turn = 0; turn < 25; turn++)
        ck_assert_int_eq(run_in_child(end_while_others_compute, _i), 7);
}

static void *end(void *unused)
{
    (void)unused;
    while (atomic_load(&turns) < 30)
        ;
    exit(7);
}

/* A thread that never used the library ends the process, while the main thread computes. */
static void end_in_another_thread(int kind)
{
    pthread_t thread;
    pthread_create(&thread, NULL, end, NULL);
    compute(&kind);
}

TS_TEST(exit_in_another_thread_frees_nothing_that_the_first_uses,
        .loop = sizeof kinds / sizeof *kinds)
{
    TS_NO_THREADS_AFTER_FORK;
    for (int turn = 0; turn < 25; turn++)
        ck_assert_int_eq(run_in_child(end_in_another_thread, _i), 7);
}
