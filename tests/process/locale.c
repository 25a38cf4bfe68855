/** @file locale.c  Numbers in files of a program whose locale has a decimal comma. */
// SPDX-License-Identifier: MIT
#include "tests/io/run.h"
#include "tests/comma_locale.h"

#include <jansson.h>
#include <math.h>

static const char *const columns[] = {"step", "loss"};

static void make_report(const char *path)
{
    FILE *out = fopen(path, "w");
    ts_progress *progress =
        ts_progress_new(2, TS_OPTS(ts_progress_opts, .mode = TS_PROGRESS_PLAIN, .stream = out));
    ck_ok(ts_progress_message(progress, "%g", 1.5));
    ts_progress_free(progress);
    ts_error_set(TS_ERR_VALUE, "%.3f and %g", 0.25, 1e-9);
    fputs(ts_error_message(), out);
    ck_assert_ptr_null(ts_dropout_new(1.5));
    fputs(ts_error_message(), out);
    ck_assert_ptr_null(ts_uniform(TS_SIZES(2), 2.5, 1.5, TS_F32));
    fputs(ts_error_message(), out);
    ts_error_clear();
    fclose(out);
}

static ts_status traced(void *ctx, ts_tensor *const *inputs, int n, ts_tensor **outputs, int m)
{
    (void)ctx, (void)n, (void)m;
    outputs[0] = ts_mul_scalar(inputs[0], 0.125);
    return TS_STATUS_OF(outputs[0]);
}

/* Writes all kinds of files that contain numbers, with names that begin with `prefix`, and reads
 * them back. */
static void write_all(const char *prefix)
{
    TS_SCOPE;
    char log[400], name[400];
    ts_tensor *t = ts_full(TS_SIZES(2), TS_SCALAR(0.75), TS_F64), *result;
    ts_error_clear();
    snprintf(name, sizeof name, "%s/%s.report", test_folder, prefix);
    make_report(name);
    snprintf(log, sizeof log, "%s/%s.csv", test_folder, prefix);
    ts_csv *csv = ts_csv_create(log, columns, 2);
    for (int i = 1; i < 20; i++)
        ck_ok(ts_csv_row(csv, (double[]){i, 1 / (double)i}, 2));
    ck_ok(ts_csv_close(csv));
    ts_chart *chart = ts_chart_new(NULL);
    ck_ok(ts_chart_line_csv(chart, "loss", log, "step", "loss", NULL));
    ck_ok(ts_chart_reference(chart, "half", 0.5));
    snprintf(name, sizeof name, "%s/%s.svg", test_folder, prefix);
    ck_ok(ts_chart_write(chart, name));
    ts_chart_free(chart);
    ts_graph *graph = NULL;
    ck_ok(ts_trace(traced, NULL, &t, 1, &result, 1, &graph));
    snprintf(name, sizeof name, "%s/%s.graph", test_folder, prefix);
    FILE *out = fopen(name, "w");
    ck_ok(ts_graph_write(graph, out, TS_GRAPH_TEXT));
    ck_ok(ts_graph_write(graph, out, TS_GRAPH_JSON));
    ck_ok(ts_graph_write(graph, out, TS_GRAPH_DOT));
    fclose(out);
    ts_graph_free(graph);
    snprintf(name, sizeof name, "%s/%s.run", test_folder, prefix);
    ck_ok(run_save(name, 10, 1, 2)); /* its manifest contains 0.1 */
    ts_checkpoint *c = NULL;
    ck_ok(ts_checkpoint_find(name, &c));
    ck_assert_int_eq(run_check(c), 1);
    ts_checkpoint_close(c);
}

static void check_same(const char *name)
{
    char a[400], b[400];
    size_t size_a = 0, size_b = 0;
    snprintf(a, sizeof a, "%s/plain.%s", test_folder, name);
    snprintf(b, sizeof b, "%s/comma.%s", test_folder, name);
    unsigned char *data_a = read_file(a, &size_a), *data_b = read_file(b, &size_b);
    ck_assert_msg(data_a && data_b && size_a == size_b && memcmp(data_a, data_b, size_a) == 0,
                  "%s differs:\n%.*s\n%.*s", name, (int)size_a, (char *)data_a, (int)size_b,
                  (char *)data_b);
    free(data_a);
    free(data_b);
}

static void check_timers(void)
{
    char *text = NULL, *line, *rest;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (ts_timers_enable(true) != TS_OK) {
        ts_error_clear(); /* a build without timers */
        fclose(out);
        free(text);
        return;
    }
    {
        TS_SCOPE;
        ts_add(ts_ones(TS_SIZES(3), TS_F32), ts_ones(TS_SIZES(3), TS_F32));
    }
    ck_ok(ts_timers_write(out, TS_TIMERS_JSON));
    fclose(out);
    json_t *root = json_loads(text, 0, NULL);
    ck_assert_msg(root != NULL, "%s", text);
    json_decref(root);
    free(text);
    out = open_memstream(&text, &size);
    ck_ok(ts_timers_write(out, TS_TIMERS_CSV));
    fclose(out);
    for (line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        int commas = 0;
        for (const char *p = line; *p; p++)
            commas += *p == ',';
        ck_assert_int_eq(commas, 4);
    }
    free(text);
    out = open_memstream(&text, &size);
    ck_ok(ts_timers_write(out, TS_TIMERS_TABLE));
    fclose(out);
    ck_assert_ptr_null(strchr(text, ','));
    free(text);
}

/* _i 0: the process has a locale with a decimal comma; 1: only this thread has. */
TS_TEST(numbers_have_a_point_in_every_locale, .loop = 2, IN_FOLDER)
{
    write_all("plain");
    if (!ts_comma_locale(test_folder))
        TS_SKIP(TS_NO_COMMA_LOCALE);
    locale_t own = (locale_t)0;
    if (_i) {
        own = duplocale(LC_GLOBAL_LOCALE); /* newlocale() would leak memory */
        setlocale(LC_ALL, "C");
        uselocale(own);
    }
    char text[8];
    snprintf(text, sizeof text, "%.1f", 0.5);
    ck_assert_str_eq(text, "0,5");
    write_all("comma");
    check_timers();
    snprintf(text, sizeof text, "%.1f", 0.5);
    ck_assert_str_eq(text, "0,5"); /* the locale is unchanged */
    if (_i) {
        ck_assert_ptr_eq(uselocale(LC_GLOBAL_LOCALE), own);
        freelocale(own);
    }
    static const char *const files[] = {"report", "csv", "svg", "graph",
                                        "run/checkpoints/10/manifest.json"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        check_same(files[i]);
}
