/** @file kinds.c  Functions that open files, called with folders, FIFOs, devices and links, and the
 * modes of files that they write. */
// SPDX-License-Identifier: MIT
#include <errno.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "tests/io/run.h"

static const char *const columns[] = {"step", "loss"};
static const char *const tensor_name = "t";

static ts_status print_words(FILE *out, void *ctx)
{
    (void)ctx;
    fputs("words\n", out);
    return TS_OK;
}

/* Calls of each public function that opens a file, with its path. */
static ts_status save_npy(const char *path)
{
    return ts_npy_save(path, ts_ones(TS_SIZES(2), TS_F32));
}
static ts_status save_st(const char *path)
{
    ts_tensor *t = ts_ones(TS_SIZES(2), TS_F32);
    return ts_safetensors_save(path, &tensor_name, &t, 1, NULL, NULL, 0);
}
static ts_status write_chart(const char *path)
{
    ts_chart *chart = ts_chart_new(NULL);
    ts_status status = ts_chart_write(chart, path);
    ts_chart_free(chart);
    return status;
}
static ts_status replace(const char *path)
{
    return ts_replace_file("test", path, print_words, NULL);
}
static ts_status close_log(ts_csv *csv)
{
    ts_status status = TS_STATUS_OF(csv);
    ts_csv_close(csv);
    return status;
}
static ts_status create_log(const char *path) { return close_log(ts_csv_create(path, columns, 2)); }
static ts_status resume_log(const char *path)
{
    return close_log(ts_csv_resume(path, columns, 2, 1));
}
static ts_status load_npy(const char *path) { return TS_STATUS_OF(ts_npy_load(path)); }
static ts_status open_st(const char *path)
{
    ts_safetensors *st = ts_safetensors_open(path, NULL);
    ts_status status = TS_STATUS_OF(st);
    ts_safetensors_close(st);
    return status;
}
static ts_status open_loader(const char *path)
{
    ts_loader *loader =
        ts_loader_open(path, TS_OPTS(ts_loader_opts, .batch = 1, .length = 1, .dtype = TS_U8));
    ts_status status = TS_STATUS_OF(loader);
    ts_loader_close(loader);
    return status;
}
static ts_status read_log(const char *path)
{
    ts_chart *chart = ts_chart_new(NULL);
    ts_status status = ts_chart_line_csv(chart, "line", path, "step", "loss", NULL);
    ts_chart_free(chart);
    return status;
}

/* The first four replace the file, the next two write into it, the others read. */
static const struct {
    const char *name;
    ts_status (*call)(const char *path);
} calls[] = {
    {"npy_save", save_npy},     {"safetensors_save", save_st},
    {"chart_write", write_chart}, {"replace_file", replace},
    {"csv_create", create_log}, {"csv_resume", resume_log},
    {"npy_load", load_npy},     {"safetensors_open", open_st},
    {"loader_open", open_loader}, {"chart_line_csv", read_log},
};
enum { NCALLS = sizeof calls / sizeof *calls, REPLACE = 4, WRITE = 6 };

static void check_refused(int call, const char *path, const char *kind)
{
    TS_SCOPE;
    struct stat before, after;
    ck_assert_int_eq(stat(path, &before), 0);
    ts_error_clear();
    ts_status status = calls[call].call(path);
    ck_assert_msg(status == TS_ERR_IO && strstr(ts_error_message(), kind) &&
                      strstr(ts_error_message(), path),
                  "%s of %s, '%s': %s", calls[call].name, kind, path, ts_error_message());
    ck_assert_int_eq(stat(path, &after), 0);
    ck_assert_uint_eq(before.st_mode, after.st_mode);
    ck_assert_uint_eq(before.st_ino, after.st_ino);
}

TS_TEST(paths_of_other_kinds_than_files_are_refused, .loop = NCALLS, .timeout = 20, IN_FOLDER)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", in_folder("socket"));
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(listener, (const void *)&address, sizeof address), 0);
    ck_assert_int_eq(mkfifo(in_folder("pipe"), 0600), 0);
    ck_assert_int_eq(mkdir(in_folder("folder"), 0700), 0);
    ck_assert_int_eq(symlink("pipe", in_folder("link")), 0);
    check_refused(_i, in_folder("socket"), "got a socket");
    check_refused(_i, in_folder("pipe"), "got a FIFO");
    check_refused(_i, in_folder("link"), "got a FIFO");
    check_refused(_i, in_folder("folder"), "got a folder");
    check_refused(_i, "/dev/null", "got a character device");
    check_refused(_i, "/dev/zero", "got a character device");
    check_refused(_i, "/dev/full", "got a character device");
    close(listener);
}

static mode_t mode_of(const char *path)
{
    struct stat status;
    ck_assert_int_eq(stat(path, &status), 0);
    return status.st_mode & 07777;
}

/* Modes of an existing file, under several umasks. */
TS_TEST(a_file_keeps_its_mode_and_a_new_one_obeys_the_umask, .loop = WRITE, IN_FOLDER)
{
    static const mode_t masks[] = {0, 022, 027, 077};
    for (size_t m = 0; m < sizeof masks / sizeof *masks; m++)
        for (mode_t mode = 0200; mode <= 0777; mode += 013) {
            TS_SCOPE;
            char path[320];
            snprintf(path, sizeof path, "%s", in_folder("file"));
            umask(masks[m]);
            unlink(path);
            ck_ok(calls[_i].call(path));
            ck_assert_uint_eq(mode_of(path), 0666 & ~masks[m]);
            mode |= 0600; /* the owner must be able to open the file */
            ck_assert_int_eq(chmod(path, mode), 0);
            ck_ok(calls[_i].call(path));
            ck_assert_msg(mode_of(path) == mode, "%s: mode %o became %o with umask %o",
                          calls[_i].name, mode, mode_of(path), masks[m]);
        }
}

/* Functions that replace a file replace a link to it; logs are written to the link's target. */
TS_TEST(links_are_replaced_and_logs_go_through_them, .loop = WRITE, IN_FOLDER)
{
    TS_SCOPE;
    struct stat status;
    char link[320], target[320];
    snprintf(link, sizeof link, "%s", in_folder("link"));
    snprintf(target, sizeof target, "%s", in_folder("target"));
    write_file(target, "", 0);
    ck_assert_int_eq(symlink("target", link), 0);
    ck_ok(calls[_i].call(link));
    ck_assert_int_eq(lstat(link, &status), 0);
    ck_assert_int_eq(S_ISLNK(status.st_mode), _i >= REPLACE);
    ck_assert_int_eq(stat(target, &status), 0);
    ck_assert_int_eq(status.st_size > 0, _i >= REPLACE);
}
