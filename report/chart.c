/**
 * @file chart.c  Collects the data of a chart; svg.c draws it.
 */
// SPDX-License-Identifier: MIT
#include "report/chart.h"

#include <tessera/program.h>

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

ts_chart *ts_chart_new(const ts_chart_opts *opts)
{
    ts_chart_opts o;
    TS_TRY_NULL(TS_CHECK_OPTS(&o, opts));
    TS_TRY_NULL(TS_CHECK_VALUE(o.width, !o.width || (o.width >= 200 && o.width <= 10000),
                               "200 to 10000 pixels"));
    TS_TRY_NULL(TS_CHECK_VALUE(o.height, !o.height || (o.height >= 150 && o.height <= 10000),
                               "150 to 10000 pixels"));
    ts_chart *chart = calloc(1, sizeof *chart);
    if (chart) {
        char *title = NULL, *x_title = NULL, *y_title = NULL;
        bool ok = ts_copy_string(&title, o.title ? o.title : "") &&
                  ts_copy_string(&x_title, o.x_title ? o.x_title : "") &&
                  ts_copy_string(&y_title, o.y_title ? o.y_title : "");
        chart->opts = o;
        chart->opts.title = title;
        chart->opts.x_title = x_title;
        chart->opts.y_title = y_title;
        if (ok)
            return chart;
    }
    ts_chart_free(chart);
    ts_error_memory("a chart", sizeof *chart);
    return NULL;
}

static void free_series(ts_chart_series *series)
{
    free(series->name);
    free(series->x);
    free(series->y);
    free(series->smooth);
}

void ts_chart_free(ts_chart *chart)
{
    if (!chart)
        return;
    free((char *)chart->opts.title);
    free((char *)chart->opts.x_title);
    free((char *)chart->opts.y_title);
    for (int i = 0; i < chart->nseries; i++)
        free_series(&chart->series[i]);
    for (int i = 0; i < chart->nreferences; i++)
        free(chart->references[i].name);
    for (int i = 0; i < chart->nlabels; i++)
        free(chart->labels[i]);
    free(chart->series);
    free(chart->references);
    free(chart->labels);
    free(chart->bars);
    free(chart);
}

/* Exponential moving average with bias correction (Adam, arXiv:1412.6980, section 3). */
static void smooth_line(ts_chart_series *s, double decay)
{
    double mean = 0, mass = 0;

    for (int64_t i = 0; i < s->n; i++) {
        if (isfinite(s->y[i])) {
            mean = decay * mean + (1 - decay) * s->y[i];
            mass = decay * mass + (1 - decay);
        }
        s->smooth[i] = isfinite(s->y[i]) ? mean / mass : NAN;
    }
}

static ts_status add_line(ts_chart *chart, const char *name, const double *x, const double *y,
                          int64_t n, const ts_line_opts *opts, const char *function)
{
    size_t bytes = 0;

    if (chart->nbars)
        return ts_error_set(TS_ERR_STATE, "%s: the chart already has bars", function);
    if (!(opts->smoothing >= 0 && opts->smoothing < 1))
        return ts_error_set(TS_ERR_VALUE,
                            "%s: argument 'smoothing': expected at least 0 and less than 1, got %g",
                            function, opts->smoothing);
    if (__builtin_mul_overflow((size_t)n, sizeof(double), &bytes) ||
        !ts_grow(&chart->series, chart->nseries, sizeof *chart->series))
        return ts_error_memory("a series of a chart", INT64_MAX);
    ts_chart_series *s = &chart->series[chart->nseries];
    *s = (ts_chart_series){.n = n, .bridge_gaps = opts->bridge_gaps, .markers = opts->markers};
    s->x = malloc(bytes + 1);
    s->y = malloc(bytes + 1);
    s->smooth = opts->smoothing > 0 ? malloc(bytes + 1) : NULL;
    if (!s->x || !s->y || (opts->smoothing > 0 && !s->smooth) || !ts_copy_string(&s->name, name)) {
        free_series(s);
        return ts_error_memory("a series of a chart", 2 * (int64_t)bytes);
    }
    for (int64_t i = 0; i < n; i++) {
        s->x[i] = x ? x[i] : (double)i;
        s->y[i] = y[i];
    }
    if (s->smooth)
        smooth_line(s, opts->smoothing);
    chart->nseries++;
    return TS_OK;
}

ts_status ts_chart_line(ts_chart *chart, const char *name, const double *x, const double *y,
                        int64_t n, const ts_line_opts *opts)
{
    ts_line_opts o;
    TS_TRY(TS_CHECK_OBJECTS(chart));
    TS_TRY(TS_CHECK_POINTERS(name));
    TS_TRY(TS_CHECK_LIST(y, n));
    TS_TRY(TS_CHECK_OPTS(&o, opts));
    return add_line(chart, name, x, y, n, &o, TS_OP);
}

/* ------------------------------------------------------------------- lines from CSV ---- */

/* Unquotes the CSV field at *cursor in place, terminates it, and returns it. *cursor moves to after
   the field; *more is true if another field follows. */
static char *next_field(char **cursor, bool *more)
{
    char *field = *cursor, *from = field, *to = field;
    bool quoted = *from == '"';

    if (quoted)
        from++;
    while (*from && (quoted || *from != ',')) {
        if (quoted && *from == '"') {
            if (from[1] != '"') {
                quoted = false;
                from++;
                continue;
            }
            from++;
        }
        *to++ = *from++;
    }
    *more = *from == ',';
    *cursor = from + *more;
    *to = '\0';
    return field;
}

/* Writes the indices of the columns x_name and y_name in a header line, -1 for a missing column.
   Changes the line. */
static void find_columns(char *line, const char *x_name, const char *y_name, int *x, int *y)
{
    bool more = true;

    *x = *y = -1;
    for (int i = 0; more; i++) {
        const char *name = next_field(&line, &more);
        if (strcmp(name, x_name) == 0)
            *x = i;
        if (strcmp(name, y_name) == 0)
            *y = i;
    }
}

/* Parses the number in a cell; an empty cell gives NaN. False if the cell is not a number. */
static bool parse_cell(const char *cell, double *value)
{
    char *end;

    *value = NAN;
    if (!*cell)
        return true;
    *value = ts_parse_double(cell, &end);
    return *end == '\0';
}

typedef struct points {
    double *x, *y;
    int64_t n;
} points;

static ts_status parse_rows(char *data, const char *path, const char *x_name, const char *y_name,
                            points *out)
{
    static const char function[] = "chart_line_csv";
    char *line = data;
    int64_t row = 0;
    int x = -1, y = -1;

    while (*line) {
        char *next = line + strcspn(line, "\n");
        bool whole = *next == '\n';
        *next = '\0';
        line[strcspn(line, "\r")] = '\0';
        if (row == 0)
            find_columns(line, x_name, y_name, &x, &y);
        if (x < 0 || y < 0)
            break;
        // Skip a last line without a newline: it is still being written, or was cut off.
        if (row > 0 && whole) {
            bool more = true;
            out->x[out->n] = out->y[out->n] = NAN;
            for (int i = 0; more; i++) {
                const char *cell = next_field(&line, &more);
                double *value = i == x ? &out->x[out->n] : i == y ? &out->y[out->n] : NULL;
                if (value && !parse_cell(cell, value))
                    return ts_error_set(TS_ERR_FORMAT,
                                        "%s: '%s' line %" PRId64 ": expected a number, got \"%s\"",
                                        function, path, row + 1, cell);
            }
            if (x == y)
                out->y[out->n] = out->x[out->n];
            out->n++;
        }
        row++;
        line = next + whole;
    }
    if (x < 0 || y < 0)
        return ts_error_set(TS_ERR_FORMAT, "%s: '%s': expected a column '%s', got none", function,
                            path, x < 0 ? x_name : y_name);
    return TS_OK;
}

ts_status ts_chart_line_csv(ts_chart *chart, const char *name, const char *path,
                            const char *x_column, const char *y_column, const ts_line_opts *opts)
{
    char *data = NULL;
    size_t size = 0, lines = 1;
    ts_line_opts o;

    TS_TRY(TS_CHECK_OBJECTS(chart));
    TS_TRY(TS_CHECK_POINTERS(name, path, x_column, y_column));
    TS_TRY(TS_CHECK_OPTS(&o, opts));
    TS_TRY(ts_read_whole(path, &data, &size, TS_OP));
    for (size_t i = 0; i < size; i++)
        lines += data[i] == '\n';
    points p = {calloc(lines, sizeof(double)), calloc(lines, sizeof(double)), 0};
    ts_status status =
        p.x && p.y ? parse_rows(data, path, x_column, y_column, &p)
                   : ts_error_memory("the points of a log", (int64_t)(2 * lines * sizeof(double)));
    if (status == TS_OK)
        status = add_line(chart, name, p.x, p.y, p.n, &o, TS_OP);
    free(p.x);
    free(p.y);
    free(data);
    return status;
}

/* -------------------------------------------------------------- references and bars ---- */

ts_status ts_chart_reference(ts_chart *chart, const char *name, double y)
{
    TS_TRY(TS_CHECK_OBJECTS(chart));
    TS_TRY(TS_CHECK_POINTERS(name));
    if (chart->nbars)
        return ts_error_set(TS_ERR_STATE, "chart_reference: the chart already has bars");
    TS_TRY(TS_CHECK_VALUE(y, isfinite(y), "a finite number"));
    if (!ts_grow(&chart->references, chart->nreferences, sizeof *chart->references))
        return ts_error_memory("a line of a chart", sizeof *chart->references);
    ts_chart_reference_line *added = &chart->references[chart->nreferences];
    if (!ts_copy_string(&added->name, name))
        return ts_error_memory("a line of a chart", sizeof *chart->references);
    added->y = y;
    chart->nreferences++;
    return TS_OK;
}

/* label_index() and series_index() return the index of a label or of a series of bars, which they
   add if it is new; -1 if out of memory. */
static int label_index(ts_chart *chart, const char *label)
{
    for (int i = 0; i < chart->nlabels; i++)
        if (strcmp(chart->labels[i], label) == 0)
            return i;
    if (!ts_grow(&chart->labels, chart->nlabels, sizeof *chart->labels) ||
        !ts_copy_string(&chart->labels[chart->nlabels], label))
        return -1;
    return chart->nlabels++;
}

static int series_index(ts_chart *chart, const char *name)
{
    for (int i = 0; i < chart->nseries; i++)
        if (strcmp(chart->series[i].name, name) == 0)
            return i;
    if (!ts_grow(&chart->series, chart->nseries, sizeof *chart->series))
        return -1;
    chart->series[chart->nseries] = (ts_chart_series){0};
    if (!ts_copy_string(&chart->series[chart->nseries].name, name))
        return -1;
    return chart->nseries++;
}

ts_status ts_chart_bar(ts_chart *chart, const char *label, const char *series, double value)
{
    TS_TRY(TS_CHECK_OBJECTS(chart));
    TS_TRY(TS_CHECK_POINTERS(label));
    if (chart->nreferences || (chart->nseries && !chart->nbars))
        return ts_error_set(TS_ERR_STATE, "chart_bar: the chart already has lines");
    TS_TRY(TS_CHECK_VALUE(value, isfinite(value) && value >= 0, "a finite number of at least 0"));
    // Reserve memory first: a label or series must not appear without its bar.
    if (!ts_grow(&chart->bars, chart->nbars, sizeof *chart->bars))
        return ts_error_memory("a bar of a chart", sizeof *chart->bars);
    int before = chart->nlabels;
    int at = label_index(chart, label);
    int s = at < 0 ? -1 : series_index(chart, series ? series : "");
    if (s < 0) {
        if (chart->nlabels > before)
            free(chart->labels[--chart->nlabels]);
        return ts_error_memory("a bar of a chart", sizeof *chart->bars);
    }
    chart->bars[chart->nbars++] = (ts_chart_bar_value){at, s, value};
    return TS_OK;
}

static ts_status print_svg(FILE *out, void *ctx)
{
    const ts_text *svg = ctx;
    fwrite(svg->data, 1, svg->size, out); // the stream remembers a failure
    return TS_OK;
}

ts_status ts_chart_write(const ts_chart *chart, const char *path)
{
    ts_text svg = {0};

    TS_TRY(TS_CHECK_OBJECTS(chart));
    TS_TRY(TS_CHECK_POINTERS(path));
    ts_chart_draw(chart, &svg);
    ts_status status = ts_text_status(&svg);
    if (status == TS_OK)
        status = ts_replace_file(TS_OP, path, print_svg, &svg);
    ts_text_free(&svg);
    return status;
}
