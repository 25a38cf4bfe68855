/**
 * @file plot_cuda.c  Draws charts from a table of bench/compare.py or bench_cuda_matmul. For
 * --suite cuda: the rate of row operators, in percent of a device copy's rate, over the length of a
 * row. For --suite attention: rates over the number of rows. For bench_cuda_matmul: rates over one
 * size of a product.
 *
 *     plot_cuda TABLE.tsv FOLDER     writes FOLDER/cuda-OP-DTYPE.svg
 */
// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/tessera.h>

enum { MOST = 64, SIDES = 3 };

/** Common settings of a suite's charts. */
typedef struct suite {
    const char *sides[SIDES];
    const char *x_title, *y_title;
    double scale;          /* y = scale * column 6 / microseconds of a side */
    const char *reference; /* the name of y = 100, or NULL */
    bool linear;           /* the x axis is linear, else logarithmic */
} suite;
static const suite rows_suite = {{"Tessera", "PyTorch", "torch.compile"},
                                 "elements of a row", "% of a device copy's rate", 100, "copy",
                                 false};
static const suite attention_suite = {
    {"Tessera", "PyTorch, flash", "PyTorch, cuDNN"}, "rows", "TFLOP/s", 1e3, NULL, false};
static const suite product_rows = {{"M", "M + 8", "M + 1"}, "M", "TFLOP/s", 1e3, NULL, true};
static const suite product_columns = {
    {"N", "N + 1, padded", "N + 1, direct"}, "N", "TFLOP/s", 1e3, NULL, true};

/** The points of one chart, in the order of the table. */
typedef struct points {
    double x[MOST], y[SIDES][MOST];
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

/** Adds a point if the line is of this op and dtype. Columns: op, shape, dtype, microseconds of
 *  each side, and column 6, the roof in microseconds or the work in GFLOP. x is the last size of
 *  the shape. */
static void take(points *p, const suite *of, const char *line, const char *op, const char *dtype)
{
    char shape[64];
    snprintf(shape, sizeof shape, "%.*s", (int)strcspn(column(line, 1), "\t"), column(line, 1));
    const char *x = strrchr(shape, 'x');
    double roof = atof(column(line, 6));
    if (!is(line, op) || !is(column(line, 2), dtype) || !x || roof <= 0 || p->n == MOST)
        return;
    p->x[p->n] = atof(x + 1);
    for (int s = 0; s < SIDES; s++) {
        double us = atof(column(line, 3 + s));
        p->y[s][p->n] = us > 0 ? of->scale * roof / us : NAN;
    }
    p->n++;
}

static ts_status draw(const points *p, const suite *of, const char *op, const char *dtype,
                      const char *folder)
{
    char title[128], path[4096];
    ts_line_opts dots = {.size = sizeof dots, .markers = true};
    snprintf(title, sizeof title, "%s, %s", op, dtype);
    snprintf(path, sizeof path, "%s/cuda-%s-%s.svg", folder, op, dtype);
    ts_chart *chart =
        ts_chart_new(TS_OPTS(ts_chart_opts, .title = title, .x_title = of->x_title,
                             .log_x = !of->linear, .y_title = of->y_title, .width = 560,
                             .height = 320));
    TS_TRY(chart);
    ts_status status = TS_OK;
    for (int s = 0; s < SIDES && status == TS_OK; s++) {
        bool any = false;
        for (int i = 0; i < p->n; i++)
            any = any || !isnan(p->y[s][i]);
        if (any)
            status = ts_chart_line(chart, of->sides[s], p->x, p->y[s], p->n, &dots);
    }
    if (status == TS_OK && of->reference)
        status = ts_chart_reference(chart, of->reference, 100);
    if (status == TS_OK)
        status = ts_chart_write(chart, path);
    ts_chart_free(chart);
    return status;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        const suite *of;
    } ops[] = {{"softmax", &rows_suite}, {"softmax_backward", &rows_suite},
               {"log_softmax", &rows_suite},
               {"log_softmax_backward", &rows_suite}, {"layer_norm", &rows_suite},
               {"layer_norm_backward", &rows_suite}, {"rms_norm", &rows_suite},
               {"rms_norm_backward", &rows_suite},
               {"attention_hd64_full", &attention_suite},
               {"attention_hd64_causal", &attention_suite},
               {"attention_hd128_full", &attention_suite},
               {"attention_hd128_causal", &attention_suite},
               {"attention_backward_hd64_full", &attention_suite},
               {"attention_backward_hd64_causal", &attention_suite},
               {"attention_backward_hd128_full", &attention_suite},
               {"attention_backward_hd128_causal", &attention_suite},
               {"matmul_rows", &product_rows}, {"matmul_columns", &product_columns}};
    static const char *const dtypes[] = {"bf16", "f32"};
    const char *path = NULL, *folder = NULL;
    int fd, status;
    const ts_argument arguments[] = {
        {"TABLE.tsv", "a table of bench/compare.py or bench_cuda_matmul", .text = &path,
         .required = true},
        {"FOLDER", "folder for the charts", .text = &folder, .required = true},
    };
    if (!ts_program_begin(argc, argv, "Draws charts from a table of CUDA benchmarks.", arguments,
                          2, &status))
        return status;
    FILE *table =
        ts_open_file("plot_cuda", path, O_RDONLY, &fd) == TS_OK ? fdopen(fd, "r") : NULL;
    if (!table) {
        ts_error_print();
        return 1;
    }
    for (size_t o = 0; o < sizeof ops / sizeof *ops; o++)
        for (int d = 0; d < 2; d++) {
            char line[1024];
            points p = {.n = 0};
            rewind(table);
            while (fgets(line, sizeof line, table))
                take(&p, ops[o].of, line, ops[o].name, dtypes[d]);
            if (p.n && draw(&p, ops[o].of, ops[o].name, dtypes[d], folder) != TS_OK) {
                ts_error_print();
                fclose(table);
                return 1;
            }
        }
    fclose(table);
    return 0;
}
