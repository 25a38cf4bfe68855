/** @file work.c  The work counter: the sum of the costs of a thread's calls. */
// SPDX-License-Identifier: MIT
#include <math.h>

#include "layers/watch.h"

static _Thread_local ts_work counted;

static void add(double *sum, double x) { *sum += isnan(x) ? 0 : x; }

/** Counts the work of a call. If its cost is known, the work of its inner calls is not added. */
static ts_status count_work(ts_frame *f)
{
    ts_work before = counted, work = {NAN, NAN};
    ts_status status = ts_redispatch(f);
    if (status == TS_OK && ts_op_cost(f, &work) == TS_OK && !isnan(work.flops)) {
        counted = before;
        add(&counted.flops, work.flops);
        add(&counted.bytes, work.bytes);
    }
    return status;
}

static ts_watcher watcher = {.name = "work", .layer = "WORK", .kernel = count_work};

ts_status ts_work_counter(bool on)
{
    if (on)
        counted = (ts_work){0, 0};
    return ts_watcher_switch(&watcher, TS_THIS_THREAD, on);
}

ts_work ts_work_counted(void) { return counted; }
