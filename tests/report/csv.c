/**
 * @file csv.c  The CSV log: its bytes, resuming, and refused writes, which lose nothing.
 */
// SPDX-License-Identifier: MIT
#include <tessera/report.h>

#include "tests/harness.h"
#include "tests/report/files.h"

#include <math.h>
#include <signal.h>
#include <sys/resource.h>

static const char *const columns[] = {"step", "loss", "val_loss"};
enum { NCOLUMNS = 3 };

static void row(ts_csv *csv, int64_t step)
{
    double val = step % 3 == 0 ? 1.0 / (double)step : NAN;
    ck_assert_int_eq(ts_csv_row(csv, (double[]){(double)step, 5.0 / (double)(step + 2), val}, 3),
                     TS_OK);
}

/* A log of steps 1 to `last`, uninterrupted. */
static const char *whole_log(const char *name, int64_t last)
{
    const char *path = test_path(name);
    ts_csv *csv = ts_csv_create(path, columns, NCOLUMNS);

    ck_assert_ptr_nonnull(csv);
    for (int64_t step = 1; step <= last; step++)
        row(csv, step);
    ck_assert_int_eq(ts_csv_close(csv), TS_OK);
    return path;
}

static void assert_same_files(const char *a, const char *b)
{
    char *x = test_read(a), *y = test_read(b);

    ck_assert_str_eq(x, y);
    free(x);
    free(y);
}

TS_TEST(csv_writes_numbers_and_empty_cells, .teardown = test_remove_files)
{
    const char *path = test_path("log.csv");
    const char *const names[] = {"step", "a,b", "say \"x\""};
    ts_csv *csv = ts_csv_create(path, names, 3);
    const double rows[][3] = {
        {1, 0.1, NAN}, {2, 1.0f / 3, -0.0}, {1e12, INFINITY, 0.1}, {4, 0.1, 0.25}};

    ck_assert_int_eq(ts_csv_row(csv, rows[0], 3), TS_OK);
    ck_assert_int_eq(ts_csv_row(csv, rows[1], 3), TS_OK);
    ck_assert_int_eq(ts_csv_row(csv, rows[2], 3), TS_OK);
    ck_assert_int_eq(ts_csv_row(csv, rows[3], 3), TS_OK);
    ck_assert_int_eq(ts_csv_close(csv), TS_OK);
    char *data = test_read(path);
    ck_assert_str_eq(data, "step,\"a,b\",\"say \"\"x\"\"\"\n"
                           "1,0.1,\n"
                           "2,0.333333343,-0\n"
                           "1000000000000,inf,0.1\n"
                           "4,0.1,0.25\n");
    free(data);
}

TS_TEST(csv_digits_round_trip_f32, .teardown = test_remove_files)
{
    const char *path = test_path("log.csv");
    ts_csv *csv = ts_csv_create(path, columns, NCOLUMNS);
    uint64_t state = 1;
    float f32[200];

    for (int i = 0; i < 200; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        f32[i] = (float)ldexp((double)(state >> 11), (int)(state >> 3 & 63) - 80);
        ck_assert_int_eq(ts_csv_row(csv, (double[]){i, (double)f32[i], NAN}, 3), TS_OK);
    }
    ts_csv_close(csv);
    char *data = test_read(path), *at = strchr(data, '\n') + 1;
    for (int i = 0; i < 200; i++) {
        ck_assert_int_eq(strtol(at, &at, 10), i);
        ck_assert(strtof(at + 1, &at) == f32[i]);
        at += strlen(",\n");
    }
    free(data);
}

TS_TEST(csv_rows_are_on_disk_at_once, .teardown = test_remove_files)
{
    const char *path = test_path("log.csv");
    ts_csv *csv = ts_csv_create(path, columns, NCOLUMNS);

    row(csv, 1);
    char *data = test_read(path);
    ck_assert_str_eq(data, "step,loss,val_loss\n1,1.66666667,\n");
    free(data);
    ts_csv_close(csv);
}

/* However far a killed run got, and wherever in a row it was cut, the resumed log is the same. */
TS_TEST(csv_resumed_log_is_byte_equal, .teardown = test_remove_files)
{
    const char *whole = whole_log("whole.csv", 12);
    char *data = test_read(whole);
    char *after_six = strstr(data, "\n7,") + 1;

    for (size_t cut = (size_t)(after_six - data); cut <= strlen(data); cut++) {
        const char *path = test_path("resumed.csv");
        char *part = strndup(data, cut);
        test_write(path, part);
        free(part);
        ts_csv *csv = ts_csv_resume(path, columns, NCOLUMNS, 6);
        ck_assert_ptr_nonnull(csv);
        for (int64_t step = 7; step <= 12; step++)
            row(csv, step);
        ck_assert_int_eq(ts_csv_close(csv), TS_OK);
        assert_same_files(whole, path);
    }
    free(data);
}

TS_TEST(csv_partial_last_line_is_cut_even_below_the_step, .teardown = test_remove_files)
{
    const char *path = test_path("log.csv");

    test_write(path, "step,loss,val_loss\n1,2.5,\n2,2.2");
    ts_csv *csv = ts_csv_resume(path, columns, NCOLUMNS, 10);
    ts_csv_close(csv);
    char *data = test_read(path);
    ck_assert_str_eq(data, "step,loss,val_loss\n1,2.5,\n");
    free(data);
}

TS_TEST(csv_resume_without_a_log_creates_one, .loop = 3, .teardown = test_remove_files)
{
    static const char *const before[] = {NULL, "", "step,lo"};
    const char *path = test_path("log.csv");

    if (before[_i])
        test_write(path, before[_i]);
    ts_csv *csv = ts_csv_resume(path, columns, NCOLUMNS, 4);
    ck_assert_ptr_nonnull(csv);
    ts_csv_close(csv);
    char *data = test_read(path);
    ck_assert_str_eq(data, "step,loss,val_loss\n");
    free(data);
}

TS_TEST(csv_resume_refuses_other_files_unchanged, .loop = 4, .teardown = test_remove_files)
{
    static const struct {
        const char *content, *message;
    } cases[] = {
        {"step,loss\n1,2\n", "got \"step,loss\""},
        {"step,loss,val_loss\n1,2,3\nx,2,3\n", "line 3"},
        {"step,loss,val_loss\n1,2,3\n2.5,2,3\n", "line 3"},
        {"step,loss,val_loss\n1,2\n", "line 2"},
    };
    const char *path = test_path("log.csv");

    test_write(path, cases[_i].content);
    ck_assert_ptr_null(ts_csv_resume(path, columns, NCOLUMNS, 9));
    ck_assert_int_eq(ts_error_code(), TS_ERR_FORMAT);
    ck_assert_ptr_nonnull(strstr(ts_error_message(), cases[_i].message));
    ck_assert_ptr_nonnull(strstr(ts_error_message(), path));
    char *data = test_read(path);
    ck_assert_str_eq(data, cases[_i].content);
    free(data);
}

TS_TEST(csv_unwritable_path_names_file_and_reason)
{
    static const char path[] = "/nonexistent-folder/log.csv";

    ck_assert_ptr_null(ts_csv_create(path, columns, NCOLUMNS));
    ck_assert_int_eq(ts_error_code(), TS_ERR_IO);
    ck_assert_ptr_nonnull(strstr(ts_error_message(), path));
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "No such file"));
    ts_error_clear();
    ck_assert_ptr_null(ts_csv_resume(path, columns, NCOLUMNS, 0));
    ck_assert_int_eq(ts_error_code(), TS_ERR_IO);
}

TS_TEST(csv_device_is_an_error)
{
    ck_assert_ptr_null(ts_csv_create("/dev/full", columns, NCOLUMNS));
    ck_assert_int_eq(ts_error_code(), TS_ERR_IO);
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "regular file, got a character device"));
}

/* A limit on the file's size cuts a row in the middle, as a disk that fills up does. */
TS_TEST(csv_full_disk_removes_a_partial_row, .teardown = test_remove_files)
{
    const char *path = test_path("log.csv");
    ts_csv *csv = ts_csv_create(path, columns, NCOLUMNS);
    struct rlimit limit;

    row(csv, 1);
    char *before = test_read(path);
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &limit);
    rlim_t old = limit.rlim_cur;
    limit.rlim_cur = strlen(before) + 4;
    setrlimit(RLIMIT_FSIZE, &limit);
    ck_assert_int_eq(ts_csv_row(csv, (double[]){2, 0.5, 0.25}, 3), TS_ERR_IO);
    limit.rlim_cur = old;
    setrlimit(RLIMIT_FSIZE, &limit);
    char *after = test_read(path);
    ck_assert_str_eq(after, before);
    row(csv, 2);
    ck_assert_int_eq(ts_csv_close(csv), TS_OK);
    assert_same_files(path, whole_log("whole.csv", 2));
    free(before);
    free(after);
}

TS_TEST(csv_wrong_arguments_are_named, .teardown = test_remove_files)
{
    const char *path = test_path("log.csv");
    ts_csv *csv = ts_csv_create(path, columns, NCOLUMNS);

    ck_assert_int_eq(ts_csv_row(csv, (double[]){1, 2}, 2), TS_ERR_VALUE);
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "expected 3 values, got 2"));
    ts_error_clear();
    ck_assert_int_eq(ts_csv_row(NULL, (double[]){1}, 1), TS_ERR_NULL);
    ck_assert_ptr_null(ts_csv_create(NULL, columns, NCOLUMNS));
    ck_assert_ptr_null(ts_csv_create(path, columns, 0));
    ck_assert_ptr_null(ts_csv_create(path, (const char *const[]){"a\nb"}, 1));
    ck_assert_int_eq(ts_csv_close(NULL), TS_OK);
    ts_csv_close(csv);
}
