/**
 * @file plot_cuda.c  Charts of a table that bench/compare.py --suite cuda wrote: how much of the device's
 * copy rate the row operators reach, over the length of a row.
 *
 *     plot_cuda TABLE.tsv FOLDER     writes FOLDER/cuda-OP-DTYPE.svg
 */
// SPDX-License-Identifier: MIT
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/tessera.h>

enum { MOST = 64, SIDES = 3 };
static const char *const names[SIDES] = {"Tessera", "PyTorch", "torch.compile"};

/** The points of one chart, in the order of the table. */
typedef struct points {
    double columns[MOST], share[SIDES][MOST];
    int n;
} points;

/** Column `index` of a line of tab separated text. */
static const char *column(const char *line, int index)
{
    for (; index > 0 && line; index--)
        line = (line = strchr(line, '\t')) ? line + 1 : NULL;
    return line ? line : "";
}

static bool is(const char *text, const char *word)
{
    size_t n = strlen(word);
    return strncmp(text, word, n) == 0 && text[n] == '\t';
}

/** Takes the line when it is one of op and dtype: op, shape, dtype, ours, eager, compiled, roof. */
static void take(points *p, const char *line, const char *op, const char *dtype)
{
    const char *x = strchr(column(line, 1), 'x');
    double roof = atof(column(line, 6));
    if (!is(line, op) || !is(column(line, 2), dtype) || !x || roof <= 0 || p->n == MOST)
        return;
    p->columns[p->n] = atof(x + 1);
    for (int s = 0; s < SIDES; s++) {
        double us = atof(column(line, 3 + s));
        p->share[s][p->n] = us > 0 ? 100 * roof / us : NAN;
    }
    p->n++;
}

static ts_status draw(const points *p, const char *op, const char *dtype, const char *folder)
{
    char title[128], path[4096];
    ts_line_opts dots = {.markers = true};
    snprintf(title, sizeof title, "%s, %s", op, dtype);
    snprintf(path, sizeof path, "%s/cuda-%s-%s.svg", folder, op, dtype);
    ts_chart *chart = ts_chart_new(&(ts_chart_opts){.title = title, .x_title = "elements of a row", .log_x = true,
                                                    .y_title = "% of a device copy's rate", .width = 560, .height = 320});
    TS_TRY(chart);
    ts_status status = TS_OK;
    for (int s = 0; s < SIDES && status == TS_OK; s++) {
        bool any = false;
        for (int i = 0; i < p->n; i++)
            any = any || !isnan(p->share[s][i]);
        if (any)
            status = ts_chart_line(chart, names[s], p->columns, p->share[s], p->n, &dots);
    }
    if (status == TS_OK)
        status = ts_chart_reference(chart, "copy", 100);
    if (status == TS_OK)
        status = ts_chart_write(chart, path);
    ts_chart_free(chart);
    return status;
}

int main(int argc, char **argv)
{
    static const char *const ops[] = {"softmax", "softmax_backward", "log_softmax", "log_softmax_backward",
                                      "layer_norm", "layer_norm_backward", "rms_norm", "rms_norm_backward"};
    static const char *const dtypes[] = {"bf16", "f32"};
    FILE *table = argc == 3 ? fopen(argv[1], "r") : NULL;
    if (!table) {
        fprintf(stderr, "usage: plot_cuda TABLE.tsv FOLDER; the table must be there\n");
        return 2;
    }
    for (size_t o = 0; o < sizeof ops / sizeof *ops; o++)
        for (int d = 0; d < 2; d++) {
            char line[1024];
            points p = {.n = 0};
            rewind(table);
            while (fgets(line, sizeof line, table))
                take(&p, line, ops[o], dtypes[d]);
            if (p.n && draw(&p, ops[o], dtypes[d], argv[2]) != TS_OK) {
                ts_error_print();
                fclose(table);
                return 1;
            }
        }
    fclose(table);
    return 0;
}
