/**
 * @file study.h  Lessons about where time goes (docs/regimes.md). A lesson is a function that
 * measures, and writes the rows of a table and the points of a chart.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_BENCH_STUDY_H
#define TS_BENCH_STUDY_H

#include <stdio.h>
#include <tessera/tessera.h>

/** The settings of a run of one lesson, and its outputs. Paths and names are borrowed. */
typedef struct study {
    ts_device device;
    bool gpu;
    const char *model;            /* train, try, cost: "small", "character" or "gpt2" */
    int64_t batch;                /* train, try, cost: the batch size; 0: the model's own */
    int64_t steps;                /* train: steps, 0: 10; try: steps per measurement, 0: the default
                                     of ts_try_opts */
    bool half;                    /* train, try, cost: autocast to bf16 */
    const char *profile, *second; /* classes: paths of one or two files profile.json */
    const char *peers;            /* path of a file that torch_rows.py wrote, or NULL */
    /* private to study.c */
    FILE *table;
    ts_progress *progress;
    struct study_series *series;
    int nseries;
} study;

/** A lesson. run() returns an error if a measurement failed. */
typedef struct lesson {
    const char *name, *about, *columns; /* columns: titles of the table, separated by tabs */
    ts_status (*run)(study *s);
    /* The chart. x_title NULL: no chart; y_title NULL: a chart of bars. */
    const char *title, *x_title, *y_title;
    bool log_x, log_y; /* logarithmic axes */
    /* Indices of the columns of a peer's row that give a line's name and a point's x and y; y 0:
     * peers are not drawn. */
    int line, x, y;
} lesson;

/** Seconds of the monotonic clock. */
double study_now(void);
/** Sets *ns to the time of a call of run(ctx) in the fastest of several batches, after a warm-up. A
 *  batch has calls for about 2 ms or more and ends with a wait for the device. Each call has a
 *  scope of its own. Errors: those of run and of the device. */
ts_status study_time(study *s, ts_status (*run)(void *ctx), void *ctx, double *ns);
/** Writes a row to stdout and to the table's file, if there is one. `format` gives the values of
 *  the lesson's columns, separated by tabs, without a newline. */
void study_row(study *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
/** Adds a point to the line of this name in the lesson's chart. TS_ERR_VALUE above 64 lines and
 *  bars, or above 128 points of a line. */
ts_status study_point(study *s, const char *line, double x, double y);
/** Adds a bar with a label, which belongs to the named series, to the lesson's chart. TS_ERR_VALUE
 *  above 64 lines and bars. */
ts_status study_bar(study *s, const char *label, const char *series, double value);
/** Random normal numbers of `ndim` sizes on s->device, drawn in f32 and converted to dtype. The
 *  innermost scope owns the tensor; NULL with an error. */
ts_tensor *study_normal(study *s, const int64_t *sizes, int ndim, ts_dtype dtype);

/* The lessons. The table `lessons` in study.c describes them; each returns the error of the first
 * measurement that failed. */
ts_status study_repeat(study *s);
ts_status study_softmax(study *s);
ts_status study_chains(study *s);
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

#endif
