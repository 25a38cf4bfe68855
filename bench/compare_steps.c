/** @file compare_steps.c  Runs and times steps of a model for bench/compare.py. */
// SPDX-License-Identifier: MIT
#include "compare_steps.h"

#include <time.h>

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

int compare_steps_compile(compare_steps *s, const char *name, bool graph, bool replay,
                          int64_t recompute)
{
    s->compiled = ts_compile(s->run, s->ctx,
                             TS_OPTS(ts_compile_opts, .name = name, .graph = graph,
                                     .replay = replay, .recompute = recompute));
    return s->compiled ? 0 : -1;
}

ts_status compare_steps_once(const compare_steps *s, ts_tensor **out)
{
    return s->compiled ? ts_compiled_call(s->compiled, NULL, 0, out, 1)
                       : s->run(s->ctx, NULL, 0, out, 1);
}

double compare_steps_run(compare_steps *s, int turns, bool wait_once, double *value)
{
    double begin = now_ns(), host = 0, end = begin;
    for (int t = 0; t < turns; t++) {
        TS_SCOPE;
        ts_tensor *out;
        double called = now_ns();
        if (compare_steps_once(s, &out) != TS_OK)
            return -1;
        host += now_ns() - called;
        if (wait_once && t + 1 < turns)
            continue;
        if (wait_once) {
            if (ts_synchronize(ts_default_device()) != TS_OK)
                return -1;
            end = now_ns();
        }
        if (ts_item(ts_ndim(out) ? ts_mean(ts_abs(out)) : out, value) != TS_OK)
            return -1;
    }
    s->host_ns = host / turns;
    return ((wait_once ? end : now_ns()) - begin) / turns;
}

ts_tensor *compare_placed(const void *values, ts_dtype dtype, const int64_t *sizes, int ndim)
{
    ts_tensor *t = ts_from_array(values, dtype, sizes, ndim);
    return ts_default_device().backend == TS_DEVICE_CPU.backend
               ? t
               : ts_to_device(t, ts_default_device());
}
