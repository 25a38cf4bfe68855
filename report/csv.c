/**
 * @file csv.c  A CSV log of numbers. A kill at any moment leaves whole rows and at most one cut
 * row, which a resume removes; a resumed log has the same bytes as one that ran without a kill.
 */
// SPDX-License-Identifier: MIT
#include <tessera/program.h>
#include <tessera/report.h>

#include "report/text.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DIGITS = 9 }; // significant ones: enough for every f32

struct ts_csv {
    int fd;
    int ncolumns;
    char *path;
    ts_text line; // reused, so rows stop allocating after the largest one
    int64_t size; // bytes of whole rows in the file
};

static void csv_free(ts_csv *csv)
{
    if (csv->fd >= 0)
        close(csv->fd);
    free(csv->path);
    ts_text_free(&csv->line);
    free(csv);
}

static ts_status io_error(const ts_csv *csv, const char *function, const char *what)
{
    return ts_error_set(TS_ERR_IO, "%s: cannot %s '%s': %s", function, what, csv->path,
                        strerror(errno));
}

/* Creates the object, with the header in csv->line, but opens no file. NULL with an error. */
static ts_csv *csv_new(const char *path, const char *const *columns, int ncolumns,
                       const char *function)
{
    int named = 0;

    while (named < ncolumns && *columns[named] && !strpbrk(columns[named], "\r\n"))
        named++;
    if (named < ncolumns || !ncolumns) {
        ts_error_set(TS_ERR_VALUE,
                     "%s: argument 'columns': expected at least one, each with a name of one line, "
                     "got %s%s", function, ncolumns ? "the name " : "none",
                     ncolumns ? columns[named] : "");
        return NULL;
    }
    ts_csv *csv = calloc(1, sizeof *csv);
    if (!csv) {
        ts_error_memory("a log", sizeof *csv);
        return NULL;
    }
    csv->fd = -1;
    csv->ncolumns = ncolumns;
    bool ok = ts_copy_string(&csv->path, path);
    for (int i = 0; i < ncolumns; i++) {
        if (i)
            ts_text_string(&csv->line, ",");
        ts_text_csv(&csv->line, columns[i]);
    }
    ts_text_string(&csv->line, "\n");
    if (!ok || csv->line.failed) {
        csv_free(csv);
        ts_error_memory("a log", sizeof *csv);
        return NULL;
    }
    return csv;
}

/* Appends csv->line. After a failed write, the part that was written is truncated. */
static ts_status append_line(ts_csv *csv, const char *function)
{
    if (!ts_write_all(csv->fd, csv->line.data, csv->line.size)) {
        ts_status status = io_error(csv, function, "write");
        // Best effort: a resume repairs an incomplete row.
        if (ftruncate(csv->fd, csv->size) != 0)
            return status;
        return status;
    }
    csv->size += (int64_t)csv->line.size;
    return TS_OK;
}

ts_csv *ts_csv_create(const char *path, const char *const *columns, int ncolumns)
{
    TS_TRY_NULL(TS_CHECK_POINTERS(path));
    TS_TRY_NULL(TS_CHECK_STRINGS(columns, ncolumns));
    ts_csv *csv = csv_new(path, columns, ncolumns, TS_OP);

    if (!csv)
        return NULL;
    if (ts_open_file(TS_OP, path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, &csv->fd) != TS_OK ||
        append_line(csv, TS_OP) != TS_OK) {
        csv_free(csv);
        return NULL;
    }
    return csv;
}

/* Sets csv->size to the bytes of an existing log to keep: the header and the whole rows up to
   last_step. csv->line holds the expected header. */
static ts_status scan(ts_csv *csv, const char *data, size_t size, int64_t last_step)
{
    static const char function[] = "csv_resume";
    const char *end = data + size;
    size_t header = csv->line.size;
    int64_t number = 1; // lines before `line`, with the header

    csv->size = 0;
    if (size < header && memcmp(data, csv->line.data, size) == 0)
        return TS_OK; // empty, or killed within the header
    if (size < header || memcmp(data, csv->line.data, header) != 0)
        return ts_error_set(TS_ERR_FORMAT, "%s: '%s': expected the header \"%.*s\", got \"%.*s\"",
                            function, csv->path, (int)header - 1, csv->line.data,
                            (int)strcspn(data, "\r\n"), data);
    csv->size = (int64_t)header;
    for (const char *line = data + header; line < end;) {
        const char *newline = memchr(line, '\n', (size_t)(end - line));
        char *after;
        int commas = 0;

        if (!newline)
            break;
        for (const char *c = line; c < newline; c++)
            commas += *c == ',';
        errno = 0;
        long long step = strtoll(line, &after, 10);
        if (after == line || errno || (*after != ',' && *after != '\n') ||
            commas != csv->ncolumns - 1)
            return ts_error_set(
                TS_ERR_FORMAT,
                "%s: '%s' line %" PRId64 ": expected %d cells with a step first, got \"%.*s\"",
                function, csv->path, number + 1, csv->ncolumns, (int)(newline - line), line);
        if (step > last_step)
            break;
        line = newline + 1;
        csv->size = line - data;
        number++;
    }
    return TS_OK;
}

static ts_status open_resumed(ts_csv *csv, int64_t last_step)
{
    char *data = NULL;
    size_t size = 0;

    TS_TRY(ts_open_file("csv_resume", csv->path, O_WRONLY | O_CREAT | O_APPEND, &csv->fd));
    TS_TRY(ts_read_whole(csv->path, &data, &size, "csv_resume"));
    ts_status status = scan(csv, data, size, last_step);
    free(data);
    TS_TRY(status);
    // One system call: a kill leaves either the old rows or the kept ones.
    if ((size_t)csv->size < size && ftruncate(csv->fd, csv->size) != 0)
        return io_error(csv, "csv_resume", "truncate");
    return csv->size ? TS_OK : append_line(csv, "csv_resume");
}

ts_csv *ts_csv_resume(const char *path, const char *const *columns, int ncolumns, int64_t last_step)
{
    TS_TRY_NULL(TS_CHECK_POINTERS(path));
    TS_TRY_NULL(TS_CHECK_STRINGS(columns, ncolumns));
    ts_csv *csv = csv_new(path, columns, ncolumns, TS_OP);

    if (csv && open_resumed(csv, last_step) != TS_OK) {
        csv_free(csv);
        return NULL;
    }
    return csv;
}

ts_status ts_csv_row(ts_csv *csv, const double *values, int ncolumns)
{
    TS_TRY(TS_CHECK_OBJECTS(csv));
    TS_TRY(TS_CHECK_POINTERS(values));
    if (ncolumns != csv->ncolumns)
        return ts_error_set(TS_ERR_VALUE, "csv_row: '%s': expected %d values, got %d", csv->path,
                            csv->ncolumns, ncolumns);
    csv->line.size = 0;
    csv->line.failed = false;
    for (int i = 0; i < ncolumns; i++) {
        char cell[40];
        ts_format_cell(cell, values[i], DIGITS);
        if (i)
            ts_text_string(&csv->line, ",");
        ts_text_string(&csv->line, cell);
    }
    ts_text_string(&csv->line, "\n");
    TS_TRY(ts_text_status(&csv->line));
    return append_line(csv, "csv_row");
}

ts_status ts_csv_close(ts_csv *csv)
{
    ts_status status = TS_OK;

    if (!csv)
        return TS_OK;
    if (close(csv->fd) != 0)
        status = io_error(csv, "csv_close", "close");
    csv->fd = -1;
    csv_free(csv);
    return status;
}
