/** @file csv.c  Tables of numbers in text files. */
// SPDX-License-Identifier: MIT
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
    char *text, *end; /* *end is 0 */
    int64_t line;     /* number of the last line read, from 1 */
    int64_t rows, columns;
} table;

/** Returns the next line that is not empty, and its length without the line end; NULL at the end
 *  of the text. Moves *at to after the line. */
static char *next_line(table *t, char **at, size_t *length)
{
    while (*at < t->end) {
        char *line = *at, *end = memchr(line, '\n', (size_t)(t->end - line));
        end = end ? end : t->end;
        *at = end + 1;
        t->line++;
        if (end > line && end[-1] == '\r')
            end--;
        *length = (size_t)(end - line);
        if (*length)
            return line;
    }
    return NULL;
}

/** Reads the cell that begins at *at and ends before a separator or the line's end. */
static ts_status read_cell(const table *t, char **at, int64_t column, double *value)
{
    char *cell = *at + strspn(*at, " "), *end = strchr(cell, t->separator), *after = cell;
    char *last = end ? end : cell + strlen(cell);
    *at = last + (end != NULL);
    *value = last > cell ? strtod(cell, &after) : NAN;
    after += strspn(after, " ");
    if (last > cell && after != last) {
        *last = 0;
        return BAD("'%s': line %lld, column %lld: expected a number, got '%s'", t->path,
                   (long long)t->line, (long long)column + 1, ts_quote(cell));
    }
    return TS_OK;
}

static int64_t cells_of(const char *line, size_t length, char separator)
{
    int64_t n = 1;
    for (size_t i = 0; i < length; i++)
        n += line[i] == separator;
    return n;
}

/** Skips lines, then counts rows and columns. */
static ts_status measure(table *t, int64_t skip)
{
    char *at, *line;
    size_t length;
    if (strlen(t->text) != (size_t)(t->end - t->text))
        return BAD("'%s': expected text, got a byte 0 at %lld", t->path,
                   (long long)strlen(t->text));
    if (!strncmp(t->text, "\xef\xbb\xbf", 3)) /* a byte order mark, which spreadsheets write */
        t->text += 3;
    at = t->text;
    for (; skip > 0; skip--)
        if (!next_line(t, &at, &length))
            return BAD("'%s': expected more lines than the %lld that are skipped", t->path,
                       (long long)t->line);
    t->text = at < t->end ? at : t->end;
    int64_t before = t->line;
    while ((line = next_line(t, &at, &length))) {
        int64_t n = cells_of(line, length, t->separator);
        if (t->rows && n != t->columns)
            return BAD("'%s': line %lld: expected %lld columns, got %lld", t->path,
                       (long long)t->line, (long long)t->columns, (long long)n);
        t->columns = n;
        t->rows++;
    }
    t->line = before;
    return t->rows ? TS_OK : BAD("'%s': expected a row of numbers, got none", t->path);
}

static ts_tensor *parse(table *t)
{
    TS_C_LOCALE;
    ts_tensor *made = ts_empty_on(TS_SIZES(t->rows, t->columns), TS_F64, TS_DEVICE_CPU);
    if (!made)
        return NULL;
    char *at = t->text, *line;
    double *value = (double *)(void *)made->data;
    size_t length;
    while ((line = next_line(t, &at, &length))) {
        line[length] = 0;
        for (int64_t column = 0; column < t->columns; column++, value++)
            if (read_cell(t, &line, column, value) != TS_OK)
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
    table t = {.path = path, .separator = o.separator ? o.separator : ','};
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
        t.text = text;
        t.end = text + bytes;
        made = measure(&t, o.skip_lines) == TS_OK ? parse(&t) : NULL;
    }
    ts_sys_free(text);
    return ts_keep(made);
}
