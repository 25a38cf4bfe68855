/**
 * @file table.c
 * Tables: cells are kept as given, so that one table prints in every style.
 */
// SPDX-License-Identifier: MIT
#include <tessera/program.h>
#include <tessera/report.h>

#include "report/text.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct cell {
    char *text; // NULL: a number
    double number;
    bool ruled; // a rule is above its row
} cell;

struct ts_text_table {
    int ncolumns;
    ts_column *columns; // header and unit are owned
    cell *cells;        // row-major
    size_t count;
    bool rule; // the next row has a rule above
};

static bool copy_columns(ts_text_table *table, const ts_column *columns)
{
    for (int i = 0; i < table->ncolumns; i++) {
        char *header, *unit;
        bool ok = ts_copy_shown(&header, columns[i].header ? columns[i].header : "");
        ok &= ts_copy_shown(&unit, columns[i].unit ? columns[i].unit : "");
        table->columns[i] = columns[i];
        table->columns[i].header = header;
        table->columns[i].unit = unit;
        if (!ok)
            return false;
    }
    return true;
}

ts_text_table *ts_text_table_new(const ts_column *columns, int ncolumns)
{
    TS_TRY_NULL(TS_CHECK_LIST(columns, ncolumns));
    bool valid = ncolumns >= 1;
    for (int i = 0; valid && i < ncolumns; i++)
        valid = columns[i].digits >= 0 && columns[i].digits <= 17 &&
                columns[i].align <= TS_ALIGN_RIGHT && columns[i].format <= TS_NUMBER_PERCENT;
    if (!valid) {
        ts_error_set(TS_ERR_VALUE,
                     "text_table_new: argument 'columns': expected at least one, with digits from "
                     "0 to 17 and known align and format");
        return NULL;
    }
    ts_text_table *table = calloc(1, sizeof *table);
    if (table) {
        table->ncolumns = ncolumns;
        table->columns = calloc((size_t)ncolumns, sizeof *table->columns);
    }
    if (!table || !table->columns || !copy_columns(table, columns)) {
        ts_text_table_free(table);
        ts_no_memory(TS_OP);
        return NULL;
    }
    return table;
}

void ts_text_table_free(ts_text_table *table)
{
    if (!table)
        return;
    for (int i = 0; table->columns && i < table->ncolumns; i++) {
        free((char *)table->columns[i].header);
        free((char *)table->columns[i].unit);
    }
    for (size_t i = 0; i < table->count; i++)
        free(table->cells[i].text);
    free(table->columns);
    free(table->cells);
    free(table);
}

static ts_status add_cell(ts_text_table *table, const char *text, double number,
                          const char *function)
{
    cell added = {.number = number, .ruled = table->rule};
    if (!ts_grow(&table->cells, table->count, sizeof added) || !ts_copy_shown(&added.text, text))
        return ts_no_memory(function);
    table->cells[table->count++] = added;
    table->rule = false;
    return TS_OK;
}

ts_status ts_text_table_text(ts_text_table *table, const char *text)
{
    TS_TRY(TS_CHECK_OBJECTS(table));
    TS_TRY(TS_CHECK_POINTERS(text));
    return add_cell(table, text, 0, TS_OP);
}

ts_status ts_text_table_number(ts_text_table *table, double value)
{
    TS_TRY(TS_CHECK_OBJECTS(table));
    return add_cell(table, NULL, value, TS_OP);
}

ts_status ts_text_table_rule(ts_text_table *table)
{
    TS_TRY(TS_CHECK_OBJECTS(table));
    if (table->count % (size_t)table->ncolumns)
        return ts_error_set(TS_ERR_STATE,
                            "text_table_rule: expected a full row of %d cells, got %zu",
                            table->ncolumns, table->count % (size_t)table->ncolumns);
    table->rule = true;
    return TS_OK;
}

/* ------------------------------------------------------------------------- printing ---- */

typedef struct printer {
    const ts_text_table *table;
    ts_text_table_style style;
    bool ascii;
    int *widths; // terminal columns; ncolumns
    ts_text out;
} printer;

static void format_number(char *buffer, size_t size, const ts_column *column, double value,
                          bool ascii)
{
    const char *space = *column->unit ? " " : "";

    if (isnan(value)) {
        buffer[0] = '\0';
        return;
    }
    switch (column->format) {
    case TS_NUMBER_FIXED:
        ts_format(buffer, size, "%.*f%s%s", column->digits, value, space, column->unit);
        break;
    case TS_NUMBER_SI:
        ts_format_si(buffer, size, value, column->digits ? column->digits : 3, column->unit, ascii);
        break;
    case TS_NUMBER_PERCENT:
        ts_format(buffer, size, "%.*f%%", column->digits, 100 * value);
        break;
    default:
        ts_format(buffer, size, "%.*g%s%s", column->digits ? column->digits : 6, value, space,
                  column->unit);
    }
}

/* Text of a cell, in `buffer` where it is a number; "" beyond the last cell. */
static const char *cell_text(const printer *p, size_t index, char *buffer, size_t size)
{
    if (index >= p->table->count)
        return "";
    const cell *c = &p->table->cells[index];
    if (c->text)
        return c->text;
    if (p->style == TS_TEXT_TABLE_CSV)
        ts_format_cell(buffer, c->number, 17);
    else
        format_number(buffer, size, &p->table->columns[index % (size_t)p->table->ncolumns],
                      c->number, p->ascii);
    return buffer;
}

static bool right_aligned(const ts_text_table *table, int column)
{
    ts_align align = table->columns[column].align;

    if (align == TS_ALIGN_AUTO)
        return (size_t)column < table->count && !table->cells[column].text;
    return align == TS_ALIGN_RIGHT;
}

static void print_cell(printer *p, int column, const char *text)
{
    bool last = column == p->table->ncolumns - 1;
    bool terminal = p->style == TS_TEXT_TABLE_TERMINAL;
    int padding;

    if (p->style == TS_TEXT_TABLE_CSV) {
        ts_text_csv(&p->out, text);
        ts_text_string(&p->out, last ? "\n" : ",");
        return;
    }
    padding = p->widths[column] - ts_text_width(text);
    if (!terminal)
        ts_text_string(&p->out, column ? " " : "| ");
    if (right_aligned(p->table, column))
        ts_text_repeat(&p->out, " ", padding);
    for (const char *c = text; *c; c++) {
        // A cell is one line, and in Markdown a bar would end it.
        if (!terminal && *c == '|')
            ts_text_string(&p->out, "\\");
        ts_text_append(&p->out, *c == '\n' || *c == '\r' || *c == '\t' ? " " : c, 1);
    }
    if (!right_aligned(p->table, column) && !(terminal && last))
        ts_text_repeat(&p->out, " ", padding);
    if (!terminal)
        ts_text_string(&p->out, " |");
    else if (!last)
        ts_text_string(&p->out, "  ");
    if (last)
        ts_text_string(&p->out, "\n");
}

static void print_rule(printer *p)
{
    const char *dash = p->ascii ? "-" : "\xe2\x94\x80";
    int n = p->table->ncolumns;

    for (int i = 0; i < n; i++) {
        if (p->style == TS_TEXT_TABLE_TERMINAL) {
            ts_text_repeat(&p->out, dash, p->widths[i] + (i < n - 1 ? 2 : 0));
            continue;
        }
        bool right = right_aligned(p->table, i);
        ts_text_string(&p->out, i ? "" : "|");
        ts_text_string(&p->out, right ? "-" : ":");
        ts_text_repeat(&p->out, "-", p->widths[i]);
        ts_text_string(&p->out, right ? ":|" : "-|");
    }
    ts_text_string(&p->out, "\n");
}

/* Bars are escaped in Markdown, which widens the text but not the rendered cell. */
static void measure(printer *p)
{
    const ts_text_table *table = p->table;
    char buffer[512];

    for (int i = 0; i < table->ncolumns; i++)
        p->widths[i] = ts_text_width(table->columns[i].header);
    for (size_t i = 0; i < table->count; i++) {
        int width = ts_text_width(cell_text(p, i, buffer, sizeof buffer));
        int *widest = &p->widths[i % (size_t)table->ncolumns];
        *widest = width > *widest ? width : *widest;
    }
}

static void print_all(printer *p)
{
    const ts_text_table *table = p->table;
    char buffer[512];

    for (int i = 0; i < table->ncolumns; i++)
        print_cell(p, i, table->columns[i].header);
    if (p->style != TS_TEXT_TABLE_CSV)
        print_rule(p);
    for (size_t first = 0; first < table->count; first += (size_t)table->ncolumns) {
        if (p->style == TS_TEXT_TABLE_TERMINAL && table->cells[first].ruled)
            print_rule(p);
        for (int i = 0; i < table->ncolumns; i++)
            print_cell(p, i, cell_text(p, first + (size_t)i, buffer, sizeof buffer));
    }
}

ts_status ts_text_table_print(const ts_text_table *table, FILE *stream, ts_text_table_style style)
{
    TS_TRY(TS_CHECK_OBJECTS(table));
    TS_TRY(TS_CHECK_POINTERS(stream));
    TS_TRY(TS_CHECK_VALUE(style, style <= TS_TEXT_TABLE_MARKDOWN, "a ts_text_table_style"));
    printer p = {.table = table, .style = style};
    p.ascii = style == TS_TEXT_TABLE_TERMINAL && !ts_locale_is_utf8();
    p.widths = calloc((size_t)table->ncolumns, sizeof *p.widths);
    if (!p.widths)
        return ts_no_memory(TS_OP);
    measure(&p);
    print_all(&p);
    free(p.widths);
    ts_status status = ts_text_status(&p.out, TS_OP);
    if (status == TS_OK &&
        (fwrite(p.out.data, 1, p.out.size, stream) != p.out.size || fflush(stream) != 0))
        status = ts_error_set(TS_ERR_IO, "text_table_print: cannot write the table: %s",
                              strerror(errno));
    ts_text_free(&p.out);
    return status;
}
