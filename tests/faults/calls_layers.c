/** @file calls_layers.c  The layers that watch calls run out of memory,
 * at their first switch and at work. */
// SPDX-License-Identifier: MIT
#include "tests/faults/calls.h"

/* The first switch puts the layer into the table of each op, one allocation like the other. */
#define WATCHING(name)                                                                             \
    CALLS_WITH(name, FAULT_FRESH | FAULT_KEEPS | FAULT_SPARSE, .loop = 0)                          \
    {                                                                                              \
        TS_SCOPE;                                                                                  \
        ts_tensor *a = ts_arange(0, 4, 1, TS_F32);                                                 \
        fault_watch(f, a);                                                                         \
        QUIET(f, ts_layers_report_to(NULL, NULL, NULL));                                           \
        FAULTY(f, ts_##name(TS_THIS_THREAD, true));                                                \
        FAULTY(f, ts_##name(TS_ALL_THREADS, true));                                                \
        QUIET(f, ts_nan_finder_reset());                                                           \
        NEW(ts_exp(a));                                                                            \
        INPLACE(a, ts_add_(x, a));                                                                 \
        FAULTY(f, ts_##name(TS_ALL_THREADS, false));                                               \
        FAULTY(f, ts_##name(TS_THIS_THREAD, false));                                               \
        NEW(ts_exp(a));                                                                            \
    }

WATCHING(nan_finder)
WATCHING(shape_logger)
WATCHING(determinism_checker)

CALLS_WITH(work_counter, FAULT_FRESH | FAULT_KEEPS | FAULT_SPARSE, .loop = 0)
{
    TS_SCOPE;
    ts_tensor *a = ts_arange(0, 4, 1, TS_F32);
    fault_watch(f, a);
    FAULTY(f, ts_work_counter(true));
    NEW(ts_exp(a));
    QUIET(f, ts_work_counted());
    FAULTY(f, ts_work_counter(false));
}
