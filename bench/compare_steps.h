/**
 * @file compare_steps.h  Runs and times steps of a model for bench/compare.py: calls of a function,
 * eager or compiled.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_BENCH_COMPARE_STEPS_H
#define TS_BENCH_COMPARE_STEPS_H

#include "tessera/tessera.h"

/** A step without inputs and with one output. */
typedef struct compare_steps {
    ts_trace_fn run;
    void *ctx;
    ts_compiled *compiled; // NULL: the step is called eagerly
    double host_ns;        // mean host time of a step of the last run, without reads and waiting
} compare_steps;

/** Compiles the step; the arguments are the fields of ts_compile_opts with the same names. Call it
 *  at most once. Returns 0, or -1 after an error. */
int compare_steps_compile(compare_steps *s, const char *name, bool graph, bool replay,
                          int64_t recompute);
/** One step; *out is in the caller's scope. */
ts_status compare_steps_once(const compare_steps *s, ts_tensor **out);
/** Runs `turns` steps. Without `wait_once`, reads each step's output into *value. With it, waits
 *  for the default device after the last step and reads only the last output. For an output with
 *  dims, *value is the mean absolute value. Returns the mean time of a step in ns, including the
 *  reads or the wait; -1 after an error. */
double compare_steps_run(compare_steps *s, int turns, bool wait_once, double *value);

/** Copies values, in row-major order, to a new tensor on the default device. NULL after an error,
 *  or if `values` is NULL. */
ts_tensor *compare_placed(const void *values, ts_dtype dtype, const int64_t *sizes, int ndim);

#endif
