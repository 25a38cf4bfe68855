/**
 * @file growth.h
 * Growth of time with size, independent of the load of the machine.
 *
 *     static void sum_all(void *ctx, int n) { ... }
 *     ck_assert_double_lt(ts_growth(sum_all, NULL, 2000, 64000), TS_GROWTH_BOUND);
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_TESTS_GROWTH_H
#define TESSERA_TESTS_GROWTH_H

#include <math.h>
#include <time.h>

/** Halfway between 1, which is linear, and 2, which is quadratic. */
#define TS_GROWTH_BOUND 1.5

/** Seconds of CPU time that the calling thread spends in the body; time of other threads and
 * processes does not count. */
static inline double ts_cpu_seconds(void (*body)(void *ctx, int n), void *ctx, int n)
{
    struct timespec from, to;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
    body(ctx, n);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
    return (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
}

/**
 * Returns the exponent p if the body's CPU time grows as n^p from size `less` to size `more`. Of
 * three runs of each size (one under a sanitizer) the fastest counts, because other programs evict
 * caches. The sizes should differ by a factor of 30: a disturbance that doubles one time then
 * changes p by 0.2.
 */
static inline double ts_growth(void (*body)(void *ctx, int n), void *ctx, int less, int more)
{
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
    enum { TURNS = 1 };
#else
    enum { TURNS = 3 };
#endif
    double small = INFINITY, large = INFINITY;
    for (int i = 0; i < TURNS; i++) {
        small = fmin(small, ts_cpu_seconds(body, ctx, less));
        large = fmin(large, ts_cpu_seconds(body, ctx, more));
    }
    return log(large / small) / log((double)more / less);
}

#endif
