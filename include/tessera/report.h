/**
 * @file report.h
 * Reports of a run: a progress line, a CSV log, SVG charts.
 *
 * Every object belongs to the thread that uses it; calls on one object from several threads need
 * a lock of the caller's. Strings given to these functions are copied. Numbers are written with a
 * decimal point whatever the locale.
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

/** How ts_progress draws. */
typedef enum ts_progress_mode {
    TS_PROGRESS_AUTO, /**< BAR on a terminal, unless TERM is dumb or unset; else PLAIN */
    TS_PROGRESS_BAR,  /**< one line, redrawn in place */
    TS_PROGRESS_PLAIN, /**< whole lines for logs: each interval, and each 5 % if not too soon */
    TS_PROGRESS_QUIET  /**< prints nothing; rates are still counted */
} ts_progress_mode;

/** Options of ts_progress_new(); zero is the default everywhere. */
typedef struct ts_progress_opts {
    size_t size;           /**< sizeof(ts_progress_opts) */
    const char *label;     /**< first word of the line; none by default */
    const char *item_unit; /**< plural noun of ts_progress_add_items(); "items" */
    int64_t start_step;    /**< steps done before (a resumed run), so that the ETA is right */
    ts_progress_mode mode; /**< TS_PROGRESS_AUTO */
    double interval;       /**< least seconds between lines; 0.1 redrawn, 5 plain */
    double smoothing;      /**< decay of the shown loss per step in [0, 1); 0 means 0.95 */
    FILE *stream;          /**< borrowed; NULL: stderr */
    double (*clock)(void); /**< returns seconds that never decrease; NULL: the monotonic clock */
} ts_progress_opts;

/**
 * Makes a progress line. Honours NO_COLOR, TERM=dumb, COLUMNS and the terminal's width.
 * @param total_steps  steps of the whole run, including those before start_step; 0: unknown
 *                     (neither bar nor ETA)
 * @return owned by the caller; NULL with TS_ERR_VALUE or TS_ERR_MEMORY
 */
TS_API ts_progress *ts_progress_new(int64_t total_steps, const ts_progress_opts *opts);
/**
 * Counts one step. Holds a reference to the loss until the next step and reads it with ts_item()
 * only when a line is due, so other steps do not wait for the device. The reference keeps the
 * loss's graph alive; pass ts_detach() of the loss to free the graph earlier.
 * @param loss  one element; TS_NONE in a loop without a loss; NULL: the step failed, and the
 *              recorded failure is returned
 * @return TS_OK also if writing to the stream failed
 */
TS_API ts_status ts_progress_step(ts_progress *progress, ts_tensor *loss);
/** Counts items (tokens, images) for the rate; before ts_progress_step() of the same step. */
TS_API ts_status ts_progress_add_items(ts_progress *progress, int64_t items);
/** Prints one line (without newline in `format`) above the progress line, escaped as by
 *  ts_escape_text(). Prints nothing in mode TS_PROGRESS_QUIET. */
TS_API ts_status ts_progress_message(ts_progress *progress, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/** Items per second over about the last fifteen seconds; 0 before there is a measurement. */
TS_API double ts_progress_items_per_second(const ts_progress *progress);
/**
 * Replaces the line by a summary of the run: steps of this run, time, rate, last loss.
 * Later steps are TS_ERR_STATE; a second end is TS_OK and does nothing.
 */
TS_API ts_status ts_progress_end(ts_progress *progress);
/** Frees the object; a line that was not ended stays on the terminal, with a newline. NULL-safe. */
TS_API void ts_progress_free(ts_progress *progress);

/* ------------------------------------------------------------------------- folders ---- */

/** Makes a folder and those above it that are missing.
 * TS_ERR_IO names the one that cannot be made. */
TS_API ts_status ts_make_folders(const char *path);

/* --------------------------------------------------------------------------- CSV log ---- */

/** A log of rows of numbers, one file, appended to. */
typedef struct ts_csv ts_csv;

/**
 * Creates (or empties) a file and writes the header. Names are quoted as RFC 4180 where needed.
 * @return owned by the caller; NULL with TS_ERR_VALUE, TS_ERR_IO (file name and reason) or
 *         TS_ERR_MEMORY
 */
TS_API ts_csv *ts_csv_create(const char *path, const char *const *columns, int ncolumns);
/**
 * Opens a log to continue after `last_step`: removes all rows from the first whose first column
 * exceeds last_step, and an incomplete last line, as left by a kill. A log resumed this way is
 * byte-equal to one that was never interrupted. A missing or empty file is created. The file is
 * checked completely before it is changed.
 * @return NULL with TS_ERR_FORMAT when the header differs or a first column is no integer
 */
TS_API ts_csv *ts_csv_resume(const char *path, const char *const *columns, int ncolumns,
                             int64_t last_step);
/**
 * Appends a row with one write(). Numbers have nine significant digits, which restore every f32;
 * whole numbers below 2^53 are written in full, and NaN is an empty cell. If the write fails (a
 * full disk), the part of the row that was written is removed.
 * @param values  ncolumns numbers
 */
TS_API ts_status ts_csv_row(ts_csv *csv, const double *values, int ncolumns);
/** Closes and frees; TS_ERR_IO when the system reports a late error. NULL-safe. */
TS_API ts_status ts_csv_close(ts_csv *csv);

/* ------------------------------------------------------------------------ SVG charts ---- */

/** A line chart or a horizontal bar chart, collected in memory and written as one SVG file. */
typedef struct ts_chart ts_chart;

/** Options of ts_chart_new(); zero is the default everywhere. */
typedef struct ts_chart_opts {
    size_t size;         /**< sizeof(ts_chart_opts) */
    const char *title;   /**< none */
    const char *x_title; /**< axis title with unit; in a bar chart, the quantity of the bars */
    const char *y_title; /**< axis title, with its unit */
    int width;           /**< pixels, 200 to 10,000; 860 */
    int height;          /**< pixels, 150 to 10,000; 480, and for bars whatever they need */
    bool log_x;          /**< logarithmic; values that are not positive become gaps */
    bool log_y;          /**< as log_x */
} ts_chart_opts;

/** Options of a line; zero is the default everywhere. */
typedef struct ts_line_opts {
    size_t size; /**< sizeof(ts_line_opts) */
    /** Decay in [0, 1) of an exponential moving average (bias corrected) that is drawn bold over
     *  the faint raw line; 0 draws the raw line alone. */
    double smoothing;
    bool bridge_gaps; /**< connect over points without a value instead of leaving a gap */
    bool markers;     /**< a dot at every point */
} ts_line_opts;

/** Makes an empty chart. @return owned by the caller; NULL with TS_ERR_VALUE or TS_ERR_MEMORY */
TS_API ts_chart *ts_chart_new(const ts_chart_opts *opts);
/**
 * Adds a line. A NaN or infinite y, or x, is a gap. Many points are thinned when drawn, to the
 * first, smallest, largest and last of each pixel column, which looks the same.
 * @param x  n numbers in order; NULL counts 0, 1, 2, ...
 * @param y  n numbers
 */
TS_API ts_status ts_chart_line(ts_chart *chart, const char *name, const double *x,
                               const double *y, int64_t n, const ts_line_opts *opts);
/**
 * Adds a line from two columns of a CSV file, such as a ts_csv log; empty cells are gaps.
 * @return TS_ERR_IO, or TS_ERR_FORMAT when a column is missing or a cell is no number
 */
TS_API ts_status ts_chart_line_csv(ts_chart *chart, const char *name, const char *path,
                                   const char *x_column, const char *y_column,
                                   const ts_line_opts *opts);
/** Adds a dashed horizontal line at y with its name, e.g. "unigram entropy". */
TS_API ts_status ts_chart_reference(ts_chart *chart, const char *name, double y);
/**
 * Adds a horizontal bar from 0 to `value`. Bars of one label are grouped, one per series; labels
 * and series appear in the order of their first bar. A chart has lines or bars.
 * @param label   text left of the bar
 * @param series  name in the legend, deciding the colour; NULL when there is only one
 * @param value   finite and not negative
 */
TS_API ts_status ts_chart_bar(ts_chart *chart, const char *label, const char *series,
                              double value);
/**
 * Writes the SVG as ts_replace_file() does, so that a viewer never sees half a chart. May be called
 * again after more points. Colours follow the viewer's light or dark scheme. A chart without data
 * says so in its middle.
 */
TS_API ts_status ts_chart_write(const ts_chart *chart, const char *path);
/** Frees a chart. NULL-safe. */
TS_API void ts_chart_free(ts_chart *chart);

TS_END_DECLS
#endif
