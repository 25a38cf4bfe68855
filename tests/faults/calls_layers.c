/** @file calls_layers.c  Out-of-memory sweeps: layers that watch calls, when they are first
 * switched on and in calls. */
// SPDX-License-Identifier: MIT
#include "tests/faults/calls.h"

/* Switching the layer on for the first time allocates a table for each op. FAULT_SPARSE: these
 * allocations are all alike. */
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
