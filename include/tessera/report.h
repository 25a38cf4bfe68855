/**
 * @file report.h
 * Reports of a run: a progress line, a CSV log, SVG charts.
 *
 * Only one thread at a time may use an object; a program with several threads needs a lock. The
 * functions copy their string arguments, and write numbers with a decimal point in every locale.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_REPORT_H
#define TESSERA_REPORT_H

#include <stdio.h>

#include <tessera/core.h>

TS_BEGIN_DECLS

/* --------------------------------------------------------------------- progress line ---- */

/** A line that shows the progress of a loop. */
typedef struct ts_progress ts_progress;

/** How ts_progress prints. */
typedef enum ts_progress_mode {
    TS_PROGRESS_AUTO, /**< BAR on a terminal, unless TERM is dumb or unset; else PLAIN */
    TS_PROGRESS_BAR,  /**< one line, redrawn in place */
    TS_PROGRESS_PLAIN, /**< new lines, for logs: one per interval, and one per 5 % of the steps if
                            the last line is at least a fifth of an interval old */
    TS_PROGRESS_QUIET  /**< prints nothing; rates are still measured */
} ts_progress_mode;

/** Options of ts_progress_new(); zero is default. */
typedef struct ts_progress_opts {
    size_t size;           /**< sizeof(ts_progress_opts) */
    const char *label;     /**< first word of the line; NULL: none */
    const char *item_unit; /**< plural noun for ts_progress_add_items(); NULL: "items" */
    int64_t start_step;    /**< steps done before a resumed run; the estimate of the remaining
                                time (ETA) ignores them */
    ts_progress_mode mode;
    double interval;       /**< time between lines, s; 0: 0.1 for BAR, 5 for PLAIN */
    double smoothing;      /**< decay per step, in [0, 1), of the moving average that is shown as
                                the loss; 0: 0.95. A NaN or infinite loss is shown itself */
    FILE *stream;          /**< borrowed; NULL: stderr */
    double (*clock)(void); /**< returns seconds that never decrease; NULL: the monotonic clock */
} ts_progress_opts;

/**
 * Makes a progress line. It has no colours if NO_COLOR is set. Its width is the terminal's, or
 * COLUMNS if that is unknown.
 * @param total_steps  steps of the whole run, including those before start_step; 0: unknown, so
 *                     the line has neither bar nor ETA
 * @return owned by the caller; NULL with TS_ERR_VALUE or TS_ERR_MEMORY
 */
TS_API ts_progress *ts_progress_new(int64_t total_steps, const ts_progress_opts *opts);
/**
 * Counts one step. Holds a reference to the loss until the next step and reads it with ts_item()
 * only when a line is due, so other steps do not wait for the device. The reference keeps the
 * loss's graph alive; pass ts_detach() of the loss to free the graph earlier.
 * @param loss  one element; TS_NONE in a loop without a loss; NULL: the step failed, and the
 *              recorded failure is returned
 * Errors: TS_ERR_NULL, TS_ERR_STATE after ts_progress_end(), TS_ERR_SHAPE if the loss does not have
 * one element, and those of ts_item(). It is not an error if writing to the stream fails.
 */
TS_API ts_status ts_progress_step(ts_progress *progress, ts_tensor *loss);
/** Counts items (tokens, images) for the rate. Call it before ts_progress_step() of the same step.
 *  TS_ERR_VALUE if items is negative or the sum does not fit int64_t; TS_ERR_NULL. */
TS_API ts_status ts_progress_add_items(ts_progress *progress, int64_t items);
/** Prints one line (without newline in `format`) above the progress line, escaped as by
 *  ts_escape_text(). Prints nothing in mode TS_PROGRESS_QUIET. Errors: TS_ERR_NULL, TS_ERR_MEMORY,
 *  and those of ts_item() if the progress line is redrawn. */
TS_API ts_status ts_progress_message(ts_progress *progress, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/** Items per second over about the last fifteen seconds; 0 before there is a measurement, and for
 *  NULL. */
TS_API double ts_progress_items_per_second(const ts_progress *progress);
/**
 * Replaces the progress line by a summary: steps of this run, time, items per second, and the
 * average loss that the line showed. ts_progress_step() then fails with TS_ERR_STATE; a second
 * ts_progress_end() does nothing. Errors: those of ts_item(), for the last loss.
 */
TS_API ts_status ts_progress_end(ts_progress *progress);
/** Frees the object; a line that was not ended stays on the terminal, with a newline. NULL-safe. */
TS_API void ts_progress_free(ts_progress *progress);

/* ------------------------------------------------------------------------- folders ---- */

/** Makes a folder and its missing parents. Errors: TS_ERR_IO, which names the folder that cannot be
 *  made; TS_ERR_VALUE for an empty or too long path; TS_ERR_NULL. */
TS_API ts_status ts_make_folders(const char *path);

/* --------------------------------------------------------------------------- CSV log ---- */

/** A CSV file to which rows of numbers are appended. */
typedef struct ts_csv ts_csv;

/**
 * Creates (or empties) a file and writes the header. Names are quoted as RFC 4180 where needed.
 * @param columns  ncolumns >= 1 names, not empty, without line breaks
 * @return owned by the caller; NULL with TS_ERR_VALUE, TS_ERR_NULL, TS_ERR_IO (file name and
 *         reason) or TS_ERR_MEMORY
 */
TS_API ts_csv *ts_csv_create(const char *path, const char *const *columns, int ncolumns);
/**
 * Opens a log to continue after step `last_step`; the first column has the step of each row.
 * Removes the first row with a step above last_step and all rows after it, and an incomplete last
 * line. The resumed log has the same bytes as one that was never interrupted. If the file is
 * missing, empty or ends within the header, the log begins anew. The function checks the rows that
 * it keeps before it changes the file.
 * @return as ts_csv_create(); also NULL with TS_ERR_FORMAT if the header differs, or if a kept
 *         row or the first removed row has another number of cells or no integer in its first cell
 */
TS_API ts_csv *ts_csv_resume(const char *path, const char *const *columns, int ncolumns,
                             int64_t last_step);
/**
 * Appends a row, with one write() unless the system writes less. Numbers have nine significant
 * digits, which restore every f32; whole numbers below 2^53 are written in full, and NaN is an
 * empty cell. If the write fails (a full disk), the part of the row that was written is removed, if
 * the system allows that.
 * @param values    ncolumns numbers
 * @param ncolumns  as in ts_csv_create(), else TS_ERR_VALUE
 * Errors: also TS_ERR_IO, TS_ERR_NULL, TS_ERR_MEMORY.
 */
TS_API ts_status ts_csv_row(ts_csv *csv, const double *values, int ncolumns);
/** Closes and frees; TS_ERR_IO when the system reports a late error. NULL-safe. */
TS_API ts_status ts_csv_close(ts_csv *csv);

/* ------------------------------------------------------------------------ SVG charts ---- */

/** A line chart or a horizontal bar chart, collected in memory and written as one SVG file. */
typedef struct ts_chart ts_chart;

/** Options of ts_chart_new(); zero is default. */
typedef struct ts_chart_opts {
    size_t size;         /**< sizeof(ts_chart_opts) */
    const char *title;   /**< title of the chart; NULL: none */
    const char *x_title; /**< title of the x axis, with unit; in a bar chart, the quantity that the
                              bars show; NULL: none */
    const char *y_title; /**< title of the y axis, with unit; NULL: none */
    int width;           /**< pixels, 200 to 10,000; 0: 860 */
    int height;          /**< pixels, 150 to 10,000; 0: 480, or as many as the bars need */
    bool log_x;          /**< logarithmic x axis; values that are not positive become gaps */
    bool log_y;          /**< logarithmic y axis, likewise */
} ts_chart_opts;

/** Options of a line of a chart; zero is default. */
typedef struct ts_line_opts {
    size_t size; /**< sizeof(ts_line_opts) */
    /** Decay in [0, 1) of an exponential moving average (bias corrected) that is drawn bold over
     *  the faint raw line; 0 draws the raw line alone. */
    double smoothing;
    bool bridge_gaps; /**< connect the neighbours of points without a value; false: leave a gap */
    bool markers;     /**< draw a dot at every point */
} ts_line_opts;

/** Makes an empty chart. @return owned by the caller; NULL with TS_ERR_VALUE or TS_ERR_MEMORY */
TS_API ts_chart *ts_chart_new(const ts_chart_opts *opts);
/**
 * Adds a line; x and y are copied. A point with a NaN or infinite coordinate is a gap. If there are
 * many points, each pixel column shows only its first, smallest, largest and last y.
 * @param x  n ascending numbers; NULL: 0, 1, 2, ...
 * @param y  n numbers
 * Errors: TS_ERR_STATE (a chart with bars), TS_ERR_VALUE, TS_ERR_NULL, TS_ERR_MEMORY.
 */
TS_API ts_status ts_chart_line(ts_chart *chart, const char *name, const double *x,
                               const double *y, int64_t n, const ts_line_opts *opts);
/**
 * Adds a line from two columns of a CSV file, such as a ts_csv log; empty cells are gaps. Ignores a
 * last row without a line end, which a program may still be writing.
 * Errors: as ts_chart_line(); TS_ERR_IO; TS_ERR_FORMAT if a column is missing or a cell is not a
 * number.
 */
TS_API ts_status ts_chart_line_csv(ts_chart *chart, const char *name, const char *path,
                                   const char *x_column, const char *y_column,
                                   const ts_line_opts *opts);
/** Adds a dashed horizontal line at y with a name, such as "unigram entropy". Errors: TS_ERR_VALUE
 *  if y is not finite, TS_ERR_STATE in a chart with bars, TS_ERR_NULL, TS_ERR_MEMORY. */
TS_API ts_status ts_chart_reference(ts_chart *chart, const char *name, double y);
/**
 * Adds a horizontal bar from 0 to `value`. Bars of one label form a group, with one bar per series.
 * Labels and series appear in the order of their first bar.
 * @param label   text left of the bar
 * @param series  name in the legend; each series has a colour. NULL if there is only one series
 * @param value   finite and not negative, else TS_ERR_VALUE
 * Errors: also TS_ERR_STATE in a chart with lines, TS_ERR_NULL, TS_ERR_MEMORY.
 */
TS_API ts_status ts_chart_bar(ts_chart *chart, const char *label, const char *series,
                              double value);
/**
 * Writes the SVG with ts_replace_file(), so that a viewer never sees a partly written file. May be
 * called again after further data was added. Colours follow the viewer's light or dark scheme. A
 * chart without data shows a text that says so.
 * Errors: those of ts_replace_file(), TS_ERR_NULL, TS_ERR_MEMORY.
 */
TS_API ts_status ts_chart_write(const ts_chart *chart, const char *path);
/** Frees a chart. NULL-safe. */
TS_API void ts_chart_free(ts_chart *chart);

TS_END_DECLS
#endif
