/**
 * @file study.h  Lessons about where time goes: each is a function that measures, writes rows of a
 * table and points of a chart (docs/regimes.md).
 */
// SPDX-License-Identifier: MIT
#ifndef TS_BENCH_STUDY_H
#define TS_BENCH_STUDY_H

#include <stdio.h>
#include <tessera/tessera.h>

/** The settings of a run, and its outputs. */
typedef struct study {
    ts_device device;
    bool gpu;
    const char *model;            /* of the lessons train, try and cost */
    int64_t batch, steps;         /* of these lessons; 0: the model's own */
    bool half;                    /* the model starts in bf16 */
    const char *profile, *second; /* of the lesson classes: paths of profile.json */
    const char *peers;            /* rows of peers.py, or NULL */
    /* private to study.c */
    FILE *table;
    ts_progress *progress;
    struct study_series *series;
    int nseries;
} study;

/** A lesson. run() returns an error if a measurement failed. */
typedef struct lesson {
    const char *name, *about, *columns; /* columns: separated by tabs */
    ts_status (*run)(study *s);
    /* of its chart; x_title NULL: it has no chart; y_title NULL: a chart of bars */
    const char *title, *x_title, *y_title;
    bool log_x, log_y;
    int line, x, y; /* columns of a line's name and of its points, for rows of --peers */
} lesson;

/** Seconds of the monotonic clock. */
double study_now(void);
/** Shortest time in ns of a call of run(ctx). A batch of calls lasts at least 2 ms and ends with a
 *  wait for the device; the first calls are a warm-up. */
ts_status study_time(study *s, ts_status (*run)(void *ctx), void *ctx, double *ns);
/** Writes a row: the values of the lesson's columns, separated by tabs. */
void study_row(study *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
/** Adds a point to a line of the lesson's chart. */
ts_status study_point(study *s, const char *line, double x, double y);
/** Adds a bar to the lesson's chart. */
ts_status study_bar(study *s, const char *label, const char *series, double value);
/** Random normal numbers on the device; NULL with an error. */
ts_tensor *study_normal(study *s, const int64_t *sizes, int ndim, ts_dtype dtype);

ts_status study_repeat(study *s);
ts_status study_softmax(study *s);
ts_status study_batch(study *s);
ts_status study_launch(study *s);
ts_status study_streams(study *s);
ts_status study_layers(study *s);
ts_status study_precision(study *s);
ts_status study_classes(study *s);
ts_status study_train(study *s);
ts_status study_try(study *s);
ts_status study_cost(study *s);
ts_status study_regimes(study *s);
ts_status study_kernels(study *s);

#endif
