/** @file clock.c  A clock that does not advance, as in some virtual machines and replayed
 *  programs. */
// SPDX-License-Identifier: MIT
#include "core/parallel.h"
#include "tests/expect.h"
#include "tests/harness.h"

#include <tessera/tessera.h>

#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static bool stands;

/* Replaces the C library's function in this program. While `stands`, the time does not change. */
int clock_gettime(clockid_t clock, struct timespec *t)
{
    if (!stands)
        return (int)syscall(SYS_clock_gettime, clock, t);
    *t = (struct timespec){1000, 0};
    return 0;
}

static void touch(void *ctx, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i++)
        ((char *)ctx)[i]++;
}

TS_TEST(timers_report_a_stopped_clock)
{
#if !TS_TIMERS
    TS_SKIP("built without timers");
#endif
    TS_SCOPE;
    stands = true;
    FAILS(TS_ERR_STATE, ts_timers_enable(true));
    SAYS("clock does not advance");
    ck_assert(!ts_timers_enabled());
    ts_tensor *x = ts_full(TS_SIZES(4), TS_SCALAR(1), TS_F32);
    OK(ts_add(x, x));
    stands = false;
    OK(ts_timers_enable(true));
    OK(ts_add(x, x));
    ck_assert_uint_eq(ts_timers_get("add", "CPU").calls, 1);
}

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

TS_TEST(workers_sleep_while_the_clock_is_stopped)
{
    static char seen[1 << 16];
    OK(ts_set_num_threads(2)); /* workers spin only if there is a core for each */
    stands = true;
    for (int i = 0; i < 20; i++)
        ts_parallel_for(sizeof seen, 1, touch, seen);
    for (size_t i = 0; i < sizeof seen; i++)
        ck_assert_int_eq(seen[i], 20);
    nanosleep(&(struct timespec){0, 200000000}, NULL); /* workers spin for a while, then sleep */
    double before = cpu_seconds();
    nanosleep(&(struct timespec){0, 300000000}, NULL);
    stands = false; /* the check library needs the clock */
    ck_assert_double_lt(cpu_seconds() - before, 0.05);
}

TS_TEST(progress_is_shown_while_the_clock_is_stopped)
{
    TS_SCOPE;
    stands = true;
    char *text;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    ts_progress_opts opts = {.size = sizeof opts, .stream = out, .mode = TS_PROGRESS_PLAIN};
    ts_progress *p = ts_progress_new(1000, &opts);
    OK(p);
    int64_t before = 0;
    for (int i = 1; i <= 1000; i++) {
        TS_SCOPE;
        OK(ts_progress_step(p, ts_full(TS_SIZES(1), TS_SCALAR(1.0 / i), TS_F32)));
        if (i == 100)
            before = ts_memory_get_stats().in_use;
    }
    ck_assert_int_eq(ts_memory_get_stats().in_use, before);
    OK(ts_progress_end(p));
    ts_progress_free(p);
    fclose(out);
    stands = false;
    ck_assert_msg(!strstr(text, "nan") && !strstr(text, "inf"), "%s", text);
    free(text);
}
