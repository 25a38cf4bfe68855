/**
 * @file failing.c
 * Cases that pass, fail, crash, skip and hang on purpose; tests/house/test_harness.py runs them
 * and compares what the harness counted.
 */
// SPDX-License-Identifier: MIT
#include "tests/harness.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static int prepared;

static void prepare(void)
{
    prepared = 1;
}

TS_TEST(passes)
{
    ck_assert_int_eq(1 + 1, 2);
}

TS_TEST(passes_four_times, .loop = 4)
{
    ck_assert_int_lt(_i, 4);
}

TS_TEST(passes_prepared, .setup = prepare)
{
    ck_assert_int_eq(prepared, 1);
}

TS_TEST(fails_an_assertion)
{
    ck_assert_int_eq(1 + 1, 3);
}

TS_TEST(crashes)
{
    raise(SIGSEGV);
}

TS_TEST(dies_as_expected, .signal = SIGABRT)
{
    abort();
}

TS_TEST(exits_as_expected, .exit = 3)
{
    exit(3);
}

TS_TEST(hangs, .timeout = 0.2)
{
    for (;;)
        pause();
}

TS_TEST(skips_itself)
{
    TS_SKIP("no reason but number %d", 7);
}

static void *count_one(void *unused)
{
    (void)unused;
    ts_tally(1, 0, 0);
    return NULL;
}

TS_TEST(counts_in_a_thread, .threads = true)
{
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, count_one, NULL), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
}

TS_TEST(samples_that_pass)
{
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, count_one, NULL), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    pid_t child = fork();
    if (child == 0) {
        ts_tally(10, 0, 2);
        _exit(0);
    }
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
}

TS_TEST(samples_that_fail)
{
    ts_tally(5, 3, 0);
}

TS_TEST(samples_then_crash)
{
    ts_tally(2, 0, 0);
    raise(SIGSEGV);
}

TS_TEST(checks_that_pass)
{
    ts_tally_as(TS_COUNT_GRADIENTS, 4, 0, 0);
    ts_tally_as(TS_COUNT_FAULT_POINTS, 7, 0, 0);
}

TS_TEST(checks_that_fail)
{
    ts_tally_as(TS_COUNT_FAULT_POINTS, 7, 2, 0);
}
