/**
 * @file growth.h
 * How time grows with size, told apart from how busy the machine is.
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

/** Seconds of CPU time that the calling thread took for the body:
 * time in which others ran does not count. */
static inline double ts_cpu_seconds(void (*body)(void *ctx, int n), void *ctx, int n)
{
    struct timespec from, to;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
    body(ctx, n);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
    return (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
}

/**
 * The p by which the time of the body goes as n^p between two sizes. It compares the fastest
 * of some runs of each, since neighbours on a machine also take caches away. The sizes should
 * lie 30 times apart: a disturbance that doubles one time then moves p by 0.2.
 */
static inline double ts_growth(void (*body)(void *ctx, int n), void *ctx, int less, int more)
{
    enum { TURNS = 3 };
    double small = INFINITY, large = INFINITY;
    for (int i = 0; i < TURNS; i++) {
        small = fmin(small, ts_cpu_seconds(body, ctx, less));
        large = fmin(large, ts_cpu_seconds(body, ctx, more));
    }
    return log(large / small) / log((double)more / less);
}

#endif
