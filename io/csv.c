/** @file csv.c  Tables of numbers in text files. */
// SPDX-License-Identifier: MIT
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/tensor.h"
#include "include/tessera/io.h"
#include "include/tessera/ops.h"
#include "include/tessera/program.h"
#include "io/files.h"

static const char op[] = "csv_load";
#define BAD(...) ts_fail_op(TS_ERR_FORMAT, op, NULL, NULL, __VA_ARGS__)

typedef struct table {
    const char *path;
    char separator;
    char *at, *end;          /* the unread text; *end is 0 */
    int64_t line, next_line; /* of the row that is read, and of `at`, from 1 */
    int64_t rows, columns;
} table;

typedef struct cell {
    char *text;
    size_t length;
    bool last; /* of its row */
} cell;

static bool is_blank(const table *t, char c)
{
    return c == ' ' || (c == '\t' && t->separator != '\t');
}

/** Whether a value without quotes ends before c. */
static bool is_stop(const table *t, char c)
{
    return c == t->separator || c == '\n' || c == '\r' || c == 0;
}

static char *skip_blanks(const table *t, char *at)
{
    while (is_blank(t, *at))
        at++;
    return at;
}

/** Moves t->at behind a line end, which is LF, CR LF or CR. */
static void pass_line_end(table *t)
{
    t->next_line += t->at < t->end;
    t->at += *t->at == '\r';
    t->at += *t->at == '\n';
}

/** Passes lines of blanks. False at the end of the text, else a row begins at t->at. */
static bool find_row(table *t)
{
    for (;; pass_line_end(t)) {
        t->line = t->next_line;
        t->at = skip_blanks(t, t->at);
        if (*t->at != '\r' && *t->at != '\n')
            return t->at < t->end;
    }
}

/** The end of a quoted value that begins at `at`, its closing quote; NULL if the quotes are not
 *  those of RFC 4180: around the whole cell, and doubled inside. */
static char *closing_quote(const table *t, char *at)
{
    for (at++; (at = strchr(at, '"')) && at[1] == '"';)
        at += 2;
    return at && is_stop(t, *skip_blanks(t, at + 1)) ? at : NULL;
}

/** Reads the next cell of a row, without blanks and quotes. A quote that is not closed is a part of
 *  the value. */
static cell read_cell(table *t)
{
    cell c = {skip_blanks(t, t->at), 0, false};
    char *end = *c.text == '"' ? closing_quote(t, c.text) : NULL;
    if (end) {
        t->at = skip_blanks(t, end + 1);
        c.text = skip_blanks(t, c.text + 1);
        for (const char *k = c.text; k < end; k++)
            t->next_line += *k == '\n' || (*k == '\r' && k[1] != '\n');
    } else {
        for (end = c.text; !is_stop(t, *end); end++)
            ;
        t->at = end;
    }
    while (end > c.text && is_blank(t, end[-1]))
        end--;
    c.length = (size_t)(end - c.text);
    c.last = *t->at != t->separator;
    if (c.last)
        pass_line_end(t);
    else
        t->at++;
    return c;
}

/** Skips rows, then counts rows and columns. */
static ts_status measure(table *t, int64_t skip)
{
    if (strlen(t->at) != (size_t)(t->end - t->at))
        return BAD("'%s': expected text, got a byte 0 at %lld", t->path, (long long)strlen(t->at));
    if (!strncmp(t->at, "\xef\xbb\xbf", 3)) /* a byte order mark, which spreadsheets write */
        t->at += 3;
    for (; skip > 0; skip--) {
        if (!find_row(t))
            return BAD("'%s': expected more lines than the %lld that are skipped", t->path,
                       (long long)t->next_line - 1);
        while (!read_cell(t).last)
            ;
    }
    table rest = *t;
    while (find_row(&rest)) {
        int64_t n = 1;
        for (; !read_cell(&rest).last; n++)
            ;
        if (rest.rows && n != rest.columns)
            return BAD("'%s': line %lld: expected %lld columns, got %lld", t->path,
                       (long long)rest.line, (long long)rest.columns, (long long)n);
        rest.columns = n;
        rest.rows++;
    }
    t->rows = rest.rows, t->columns = rest.columns;
    return t->rows ? TS_OK : BAD("'%s': expected a row of numbers, got none", t->path);
}

static ts_tensor *parse(table *t)
{
    TS_C_LOCALE;
    ts_tensor *made = ts_empty_on(TS_SIZES(t->rows, t->columns), TS_F64, TS_DEVICE_CPU);
    if (!made)
        return NULL;
    double *value = (double *)(void *)made->data;
    while (find_row(t))
        for (int64_t column = 0; column < t->columns; column++, value++) {
            cell c = read_cell(t);
            char *after = c.text;
            c.text[c.length] = 0;
            if (!isspace((unsigned char)*c.text)) /* a line end in quotes */
                *value = c.length ? strtod(c.text, &after) : NAN;
            if (after == c.text + c.length)
                continue;
            BAD("'%s': line %lld, column %lld: expected a number, got '%s'", t->path,
                (long long)t->line, (long long)column + 1, ts_quote(c.text));
            return NULL;
        }
    return made;
}

ts_tensor *ts_csv_load(const char *path, const ts_csv_load_opts *opts)
{
    ts_csv_load_opts o;
    int fd;
    int64_t bytes;
    TS_SCOPE;
    TS_TRY_NULL(TS_CHECK_POINTERS(path));
    TS_TRY_NULL(TS_CHECK_OPTS(&o, opts));
    TS_TRY_NULL(TS_CHECK_VALUE(o.skip_lines, o.skip_lines >= 0, "at least 0"));
    table t = {.path = path, .separator = o.separator ? o.separator : ',', .next_line = 1};
    if (!strchr(",;|\t", t.separator)) {
        ts_error_set(TS_ERR_VALUE, "csv_load: argument 'separator': expected one of ',', ';', "
                     "'|' and tab, got %d", t.separator);
        return NULL;
    }
    TS_TRY_NULL(ts_file_open(op, path, &fd, &bytes));
    char *text = ts_sys_alloc((size_t)bytes + 1);
    ts_status status = text ? ts_file_read(op, path, fd, text, bytes, 0)
                            : ts_error_memory("the text of a file", bytes + 1);
    ts_file_close(fd);
    ts_tensor *made = NULL;
    if (status == TS_OK) {
        text[bytes] = 0;
        t.at = text;
        t.end = text + bytes;
        made = measure(&t, o.skip_lines) == TS_OK ? parse(&t) : NULL;
    }
    ts_sys_free(text);
    return ts_keep(made);
}
