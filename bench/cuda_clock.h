/**
 * @file cuda_clock.h
 * Measures the device time of calls on a GPU, for the programs of this folder. Each batch of calls
 * is queued behind a long matrix product, so that the result contains no host time. The result is
 * the median of CLOCK_BATCHES batches.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_BENCH_CUDA_CLOCK_H
#define TS_BENCH_CUDA_CLOCK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tessera/tessera.h"

enum { CLOCK_BATCHES = 7 };

static ts_device device;
static ts_event *clock_begin, *clock_end;
static ts_tensor *clock_delay; /* (8192, 8192) bf16; its product with itself keeps the device busy
                                  while calls are queued */

/** Random normal numbers in bf16 on the device; NULL with an error. */
static ts_tensor *drawn(const int64_t *sizes, int ndim)
{
    return ts_to(ts_normal_on(sizes, ndim, 0, 1, TS_F32, device), TS_BF16);
}

static int clock_by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/** Sets *us to the median device time of one call of run(ctx, i), in microseconds. A batch makes
 *  the calls i = 0 .. calls - 1. */
static ts_status clock_median(ts_status (*run)(void *ctx, int i), void *ctx, int calls, double *us)
{
    double times[CLOCK_BATCHES];
    for (int batch = -1; batch < CLOCK_BATCHES; batch++) { /* batch -1 warms up */
        TS_SCOPE;
        double ms;
        TS_TRY(ts_mm(clock_delay, clock_delay));
        TS_TRY(ts_event_record(device, clock_begin));
        for (int i = 0; i < calls; i++)
            TS_TRY(run(ctx, i));
        TS_TRY(ts_event_record(device, clock_end));
        TS_TRY(ts_event_synchronize(device, clock_end));
        TS_TRY(ts_event_elapsed(device, clock_begin, clock_end, &ms));
        if (batch >= 0)
            times[batch] = ms * 1e3 / calls;
    }
    qsort(times, CLOCK_BATCHES, sizeof *times, clock_by_value);
    *us = times[CLOCK_BATCHES / 2];
    return TS_OK;
}

/** With --help prints `usage`. Else opens the GPU, prints the head of the table, and runs the
 *  program's measurements. Returns the exit status of main(). */
static int clock_main(const char *usage, const char *head,
                      ts_status (*measure)(int argc, char **argv), int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--help") == 0)
        return puts(usage) == EOF;
    TS_SCOPE;
    TS_NO_GRAD;
    ts_status status = ts_device_open("cuda", &device, NULL, 0);
    if (status == TS_OK)
        status = ts_event_new(device, &clock_begin);
    if (status == TS_OK)
        status = ts_event_new(device, &clock_end);
    if (status == TS_OK)
        status = ts_status_of_pointer(clock_delay = drawn(TS_SIZES(8192, 8192)));
    if (status == TS_OK) {
        puts(head);
        status = measure(argc, argv);
    }
    if (status != TS_OK)
        ts_error_print();
    ts_event_free(device, clock_begin);
    ts_event_free(device, clock_end);
    return status != TS_OK;
}

#endif
