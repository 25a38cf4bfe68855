/** @file calls_files.c  Out-of-memory sweeps: files and reports. */
// SPDX-License-Identifier: MIT
#include "tests/faults/calls.h"
#include "tests/io/run.h"

#include <fcntl.h>

CALLS_WITH(safetensors, 0, IN_FOLDER)
{
    TS_SCOPE;
    static const char *const names[] = {"a", "b"}, *const keys[] = {"key"},
                             *const values[] = {"value"};
    ts_tensor *tensors[] = {ts_ones(TS_SIZES(2, 3), TS_F32), ts_t(ts_eye(3, 2, TS_F64))},
              *loaded[2] = {NULL};
    const char *path = in_folder("weights");
    WATCH(tensors[0], tensors[1]);
    FAULTY(f, ts_safetensors_save(path, names, tensors, 2, keys, values, 1));
    size_t size = 0;
    unsigned char *bytes = read_file(path, &size);
    fault_see_bytes(f, bytes, size);
    free(bytes);
    ts_safetensors *st = NULL;
    FAULTY(f, st = ts_safetensors_open(path, NULL));
    QUIET(f, ts_safetensors_count(st));
    QUIET(f, ts_safetensors_find(st, "a"));
    QUIET(f, ts_safetensors_name(st, 0));
    QUIET(f, ts_safetensors_dtype(st, 0));
    QUIET(f, ts_safetensors_ndim(st, 0));
    QUIET(f, ts_safetensors_sizes(st, 0));
    QUIET(f, ts_safetensors_metadata_count(st));
    QUIET(f, ts_safetensors_metadata_key(st, 0));
    QUIET(f, ts_safetensors_metadata_value(st, 0));
    QUIET(f, ts_safetensors_metadata(st, "key"));
    NEW(ts_safetensors_load(st, "a"));
    NEW(ts_safetensors_load_at(st, 1));
    FAULTY(f, ts_safetensors_load_all(st, loaded));
    fault_see(f, loaded[1]);
    ts_tensor *into = ts_zeros(TS_SIZES(2, 3), TS_F32);
    fault_watch_written(f, into);
    FAULTY(f, ts_safetensors_read_into(st, "a", into));
    fault_unwatch_one(f, into);
    fault_see(f, into);
    QUIET(f, ts_safetensors_close(st));
}

CALLS_WITH(npy, 0, IN_FOLDER)
{
    TS_SCOPE;
    ts_tensor *t = ts_t(ts_eye(3, 2, TS_F64));
    WATCH(t);
    FAULTY(f, ts_npy_save(in_folder("t.npy"), t));
    NEW(ts_npy_load(in_folder("t.npy")));
}

CALLS_WITH(checkpoints, 0, IN_FOLDER)
{
    const char *dir = in_folder("run");
    ts_checkpoint *c = NULL;
    char at[400];
    TS_SCOPE;
    ts_tensor *t = ts_ones(TS_SIZES(4), TS_F32);
    static const char *const names[] = {"t"};
    const ts_checkpoint_section section = {"part", names, &t, 1};
    WATCH(t);
    FAULTY(f, ts_checkpoint_save(dir, 10, &section, 1, "{\"x\": 1}", NULL));
    FAULTY(f, run_save(dir, 20, 1, 2));
    FAULTY(f, ts_checkpoint_find(dir, &c));
    ck_assert_int_eq(run_check(c), 1);
    QUIET(f, ts_checkpoint_step(c));
    QUIET(f, ts_checkpoint_path(c));
    QUIET(f, ts_checkpoint_json(c));
    QUIET(f, ts_checkpoint_report(c));
    QUIET(f, ts_checkpoint_section_of(c, "model"));
    ts_scalar life;
    char text[8];
    FAULTY(f, ts_checkpoint_number(c, (const char *[]){"life"}, 1, &life));
    fault_see_number(f, (double)life.i);
    FAULTY(f, ts_checkpoint_text(c, (const char *[]){"who"}, 1, text, sizeof text));
    ck_assert_str_eq(text, "run");
    snprintf(at, sizeof at, "%s", ts_checkpoint_path(c));
    QUIET(f, ts_checkpoint_close(c));
    FAULTY(f, c = ts_checkpoint_open(at));
    ck_assert_int_eq(run_check(c), 1);
    ts_checkpoint_close(c);
    folder_remove(dir);
}

/* ---------------------------------------------------------------------------- reports ---- */

static void see_file(fault_try *f, const char *path)
{
    size_t size = 0;
    unsigned char *bytes = read_file(path, &size);
    ck_assert_ptr_nonnull(bytes);
    fault_see_bytes(f, bytes, size);
    free(bytes);
}

CALLS_WITH(csv, 0, IN_FOLDER)
{
    static const char *const columns[] = {"step", "loss"};
    char path[320];
    snprintf(path, sizeof path, "%s", in_folder("log.csv"));
    ts_csv *csv = NULL;
    FAULTY(f, csv = ts_csv_create(path, columns, 2));
    FAULTY(f, ts_csv_row(csv, (double[]){1, 0.5}, 2));
    FAULTY(f, ts_csv_row(csv, (double[]){2, 0.25}, 2));
    FAULTY(f, ts_csv_close(csv));
    FAULTY(f, csv = ts_csv_resume(path, columns, 2, 1));
    FAULTY(f, ts_csv_row(csv, (double[]){2, 0.125}, 2));
    ck_assert_int_eq(ts_csv_close(csv), TS_OK);
    see_file(f, path);
    FAULTY(f, ts_make_folders(in_folder("some/folder")));
    folder_remove(in_folder("some"));
}

CALLS_WITH(charts, 0, IN_FOLDER)
{
    static const double x[] = {1, 2, 3}, y[] = {3, 1, 2};
    char log[320], path[320];
    snprintf(log, sizeof log, "%s", in_folder("log.csv"));
    snprintf(path, sizeof path, "%s", in_folder("chart.svg"));
    write_file(log, "step,loss\n1,3\n2,2\n", 18);
    ts_chart *lines = NULL, *bars = NULL;
    ts_chart_opts opts = {.size = sizeof opts, .title = "title", .x_title = "x", .y_title = "y"};
    ts_line_opts smooth = {.size = sizeof smooth, .smoothing = 0.5, .markers = true};
    FAULTY(f, lines = ts_chart_new(&opts));
    FAULTY(f, ts_chart_line(lines, "line", x, y, 3, &smooth));
    FAULTY(f, ts_chart_line_csv(lines, "log", log, "step", "loss", NULL));
    FAULTY(f, ts_chart_reference(lines, "reference", 2));
    FAULTY(f, ts_chart_write(lines, path));
    see_file(f, path);
    FAULTY(f, bars = ts_chart_new(NULL));
    FAULTY(f, ts_chart_bar(bars, "label", "series", 1));
    FAULTY(f, ts_chart_bar(bars, "other", "series", 2));
    FAULTY(f, ts_chart_write(bars, path));
    see_file(f, path);
    QUIET(f, ts_chart_free(lines));
    ts_chart_free(bars);
}

static ts_status print_words(FILE *out, void *ctx)
{
    fprintf(out, "%s and more", (const char *)ctx);
    return TS_OK;
}

CALLS_WITH(programs, 0, IN_FOLDER)
{
    const char *path = in_folder("words");
    char words[] = "words";
    int fd = -1;
    FAULTY(f, ts_replace_file("calls", path, print_words, words));
    see_file(f, path);
    void *locale = ts_c_locale_enter();
    QUIET(f, ts_c_locale_leave(&locale));
    FAULTY(f, ts_open_file("calls", path, O_RDONLY, &fd));
    close(fd);
}

static double at_zero(void) { return 0; }

CALLS(progress)
{
    TS_SCOPE;
    static char text[8192];
    FILE *out = fmemopen(text, sizeof text, "w");
    ck_assert_ptr_nonnull(out);
    ts_progress_opts opts = {.size = sizeof opts,
                             .label = "run",
                             .mode = TS_PROGRESS_PLAIN,
                             .stream = out,
                             .clock = at_zero,
                             .interval = 1e-9};
    ts_tensor *loss = ts_full(TS_SIZES(1), TS_SCALAR(2), TS_F32);
    ts_progress *p = NULL;
    fault_watch(f, loss);
    FAULTY(f, p = ts_progress_new(10, &opts));
    FAULTY(f, ts_progress_add_items(p, 100));
    FAULTY(f, ts_progress_step(p, loss));
    FAULTY(f, ts_progress_message(p, "%s", "a message"));
    QUIET(f, ts_progress_items_per_second(p));
    FAULTY(f, ts_progress_end(p));
    QUIET(f, ts_progress_free(p));
    fclose(out);
}
