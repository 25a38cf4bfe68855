/** @file run.c  Run folders: one run at a time uses a folder, and its files have the run's id. */
// SPDX-License-Identifier: MIT
#include <sys/wait.h>

#include "tests/io/folder.h"

static const char *const columns[] = {"step", "loss", "run"};

static ts_run *new_run(const char *dir) { return ts_run_open(dir, NULL); }
static ts_run *resumed(const char *dir)
{
    return ts_run_open(dir, TS_OPTS(ts_run_opts, .resume = true));
}
static ts_run *overwriting(const char *dir)
{
    static const char *const outputs[] = {"chart.svg"};
    return ts_run_open(
        dir, TS_OPTS(ts_run_opts, .overwrite = true, .outputs = outputs, .noutputs = 1));
}

static void check_refused(ts_run *run, const char *says)
{
    ck_assert_ptr_null(run);
    ck_assert_int_eq(ts_error_code(), TS_ERR_STATE);
    ck_assert_msg(strstr(ts_error_message(), says) != NULL, "%s", ts_error_message());
    ts_error_clear();
}

static void log_row(ts_run *run, int64_t last, double step)
{
    ts_csv *log = ts_run_log(run, columns, 3, last);
    ck_ok(log);
    ck_ok(ts_csv_row(log, (double[]){step, 0.5, (double)ts_run_id(run)}, 3));
    ck_ok(ts_csv_close(log));
}

TS_TEST(a_folder_has_one_run_at_a_time, IN_FOLDER)
{
    const char *dir = in_folder("run");
    char pid[32];
    snprintf(pid, sizeof pid, "process %ld", (long)getpid());
    check_refused(resumed(dir), "no run to resume");
    ck_assert_int_eq(access(dir, F_OK), -1);
    ts_run *run = new_run(dir);
    ck_ok(run);
    int64_t id = ts_run_id(run);
    ck_assert(id >= 1 && id < (int64_t)1 << 53);
    check_refused(new_run(dir), pid);
    check_refused(resumed(dir), pid);
    check_refused(overwriting(dir), pid);
    ts_run_close(run);
    check_refused(new_run(dir), "holds an earlier run");
    ck_ok(run = resumed(dir));
    ck_assert_int_eq(ts_run_id(run), id);
    ts_run_close(run);
    ck_ok(run = overwriting(dir));
    ck_assert_int_ne(ts_run_id(run), id);
    ts_run_close(run);
    ck_assert_ptr_null(
        ts_run_open(dir, TS_OPTS(ts_run_opts, .overwrite = true, .resume = true)));
    ck_assert_int_eq(ts_error_code(), TS_ERR_VALUE);
    ck_assert_int_eq(ts_run_id(NULL), 0);
    ts_run_close(NULL);
}

static ts_status set(ts_run *run, int64_t batch, int64_t width)
{
    return ts_run_settings(run, (const char *[]){"--batch", "--width"}, (int64_t[]){batch, width},
                           2);
}

TS_TEST(a_resumed_run_has_the_settings_of_the_saved_one, IN_FOLDER)
{
    const char *dir = in_folder("run"), *path = in_folder("run/settings.json");
    static const char *const broken[] = {"{\n  \"a\": \n}\n", "{\"a\": 1}\n", "{\n  \"a\": 1", "x"},
                      *const bad[] = {"", "a b", "a\"", "\\"};
    ts_run *run = new_run(dir);
    ck_ok(set(run, 8, -16));
    ck_ok(set(run, 4, -16)); /* a new run may change its mind */
    ts_run_close(run);
    run = resumed(dir);
    ck_ok(set(run, 4, -16));
    ck_assert_int_eq(set(run, 8, -16), TS_ERR_STATE);
    ck_failed(TS_ERR_STATE, "expected --batch 4, as in the saved run, got 8");
    ck_assert_int_eq(set(run, 4, 16), TS_ERR_STATE);
    ck_failed(TS_ERR_STATE, "expected --width -16, as in the saved run, got 16");
    ck_ok(ts_run_settings(run, (const char *[]){"--new"}, (int64_t[]){INT64_MIN}, 1));
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(ts_run_settings(run, &bad[i], (int64_t[]){1}, 1), TS_ERR_VALUE);
        write_file(path, broken[i], strlen(broken[i]));
        ck_assert_int_eq(set(run, 4, -16), TS_ERR_FORMAT);
        ck_failed(TS_ERR_FORMAT, "settings.json': expected a name and a number");
    }
    unlink(path);
    ck_ok(set(run, 5, 5)); /* nothing is known */
    ts_run_close(run);
    write_file(path, "x", 1);
    ck_ok(run = overwriting(dir));
    ck_assert_int_eq(access(path, F_OK), -1);
    ck_ok(ts_run_settings(run, NULL, NULL, 0));
    ts_run_close(run);
    ck_ok(run = resumed(dir));
    ck_ok(set(run, 1, 1));
    ts_run_close(run);
}

/* After a process has ended by exit or a signal, its run folder can be opened again. */
TS_TEST(the_end_of_a_process_frees_its_folder, .loop = 3, IN_FOLDER)
{
    static const int signals[] = {0, SIGKILL, SIGSEGV};
    const char *dir = in_folder("run");
    int status;
    pid_t child = fork();
    if (child == 0) {
        if (!new_run(dir))
            _exit(1);
        signal(SIGSEGV, SIG_DFL);
        if (signals[_i])
            raise(signals[_i]);
        _exit(0);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(WIFSIGNALED(status) ? WTERMSIG(status) : 0, signals[_i]);
    ts_run *run = resumed(dir);
    ck_ok(run);
    ts_run_close(run);
}

TS_TEST(a_log_of_another_run_is_refused_and_not_changed, IN_FOLDER)
{
    const char *dir = in_folder("run"), *log = in_folder("run/log.csv");
    char text[256];
    size_t bytes;
    ts_run *run = new_run(dir);
    log_row(run, 0, 1);
    int64_t id = ts_run_id(run);
    ts_run_close(run);
    ck_ok(run = resumed(dir));
    log_row(run, 1, 2); /* appends row 2 */
    log_row(run, 1, 2); /* replaces row 2 */
    char *rows = (char *)read_file(log, &bytes);
    snprintf(text, sizeof text, "step,loss,run\n1,0.5,%lld\n2,0.5,%lld\n", (long long)id,
             (long long)id);
    ck_assert_int_eq(bytes, strlen(text));
    ck_assert_int_eq(memcmp(rows, text, bytes), 0);
    free(rows);
    /* an incomplete last row, left by a kill, is ignored */
    write_file(log, text, strlen(text) - 3);
    log_row(run, 1, 2);
    static const char *const others[] = {"%lld1", "1%lld", "%lld ", " %lld", "+%lld", "0%lld", "",
                                         "-%lld", "%lld.0"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        size_t n = (size_t)sprintf(text, "step,loss,run\n1,0.5,%lld\n2,0.5,", (long long)id);
        n += (size_t)sprintf(text + n, others[i][0] ? others[i] : "\n", (long long)id);
        text[n++] = '\n';
        write_file(log, text, n);
        ck_assert_ptr_null(ts_run_log(run, columns, 3, 1));
        ck_assert_int_eq(ts_error_code(), TS_ERR_STATE);
        ck_assert_ptr_nonnull(strstr(ts_error_message(), "line 3"));
        ts_error_clear();
        rows = (char *)read_file(log, &bytes);
        ck_assert(bytes == n && memcmp(rows, text, n) == 0);
        free(rows);
    }
    ck_assert_ptr_null(ts_run_log(run, columns, 2, 1));
    ck_assert_int_eq(ts_error_code(), TS_ERR_VALUE);
    ts_run_close(run);
}

TS_TEST(overwriting_removes_only_the_old_run, IN_FOLDER)
{
    TS_SCOPE;
    const char *dir = in_folder("run");
    ts_training state = {.size = sizeof state, .model = ts_linear_new(2, 2, true)};
    ts_run *run = new_run(dir);
    state.run = run;
    for (state.step = 1; state.step < 4; state.step++)
        ck_ok(ts_training_save(&state, dir));
    log_row(run, 0, 1);
    write_file(in_folder("run/chart.svg"), "old", 3);
    write_file(in_folder("run/notes.txt"), "mine", 4);
    write_file(in_folder("run/checkpoints/notes.txt"), "mine", 4);
    ts_run_close(run);
    ck_ok(run = overwriting(dir));
    state.run = run;
    ck_assert_int_eq(access(in_folder("run/log.csv"), F_OK), -1);
    ck_assert_int_eq(access(in_folder("run/chart.svg"), F_OK), -1);
    ck_assert_int_eq(access(in_folder("run/notes.txt"), F_OK), 0);
    ck_assert_int_eq(access(in_folder("run/checkpoints/notes.txt"), F_OK), 0);
    ck_assert_int_eq(ts_training_resume(&state, dir, NULL, 0), TS_ERR_STATE);
    ck_ok(ts_checkpoint_remove_all(dir));
    ck_ok(ts_checkpoint_remove_all(in_folder("nowhere")));
    ts_run_close(run);
    ts_module_free(state.model);
}

TS_TEST(a_checkpoint_of_another_run_is_refused, IN_FOLDER)
{
    const char *dir = in_folder("run");
    ts_training state = {.size = sizeof state, .model = ts_linear_new(2, 2, true), .step = 1};
    ts_run *run = new_run(dir), *other = new_run(in_folder("other"));
    const ts_run *owners[] = {other, NULL};
    for (int i = 0; i < 2; i++) {
        state.run = owners[i];
        ck_ok(ts_training_save(&state, dir));
        state.run = run;
        ck_assert_int_eq(ts_training_resume(&state, dir, NULL, 0), TS_ERR_STATE);
        ck_assert_ptr_nonnull(strstr(ts_error_message(), "expected a checkpoint of run"));
        ts_error_clear();
    }
    ck_ok(ts_training_save(&state, dir));
    ck_ok(ts_training_resume(&state, dir, NULL, 0));
    state.run = NULL; /* without a run, the id is not checked */
    ck_ok(ts_training_resume(&state, dir, NULL, 0));
    ts_run_close(run);
    ts_run_close(other);
    ts_module_free(state.model);
}
