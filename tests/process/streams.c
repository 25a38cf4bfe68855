/** @file streams.c  Files of a process whose standard streams are closed. */
// SPDX-License-Identifier: MIT
#include "tests/io/run.h"
#include "tests/process/children.h"

#include <dirent.h>
#include <fcntl.h>

enum { MASKS = 8 }; /* which of the descriptors 0, 1 and 2 are closed */

/* Writes to descriptors 0 to 2, as other code of the program may do while the library has a file
 * open. */
static void print_to_streams(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (write(fd, "chatter\n", 8) < 0)
            continue;
}

static ts_file_table plain;
static ssize_t print_then_write(int fd, const void *data, size_t bytes)
{
    print_to_streams();
    ssize_t n = plain.write(fd, data, bytes);
    print_to_streams();
    return n;
}

static ts_status print_words(FILE *out, void *ctx)
{
    print_to_streams();
    fputs(ctx, out);
    return TS_OK;
}

/* Asserts that of descriptors 0 to 2 those in `mask` are closed, and that open files of the test
 * folder are closed on exec. */
static void check_descriptors(int mask)
{
    int fds[64], n = 0;
    DIR *dir = opendir("/proc/self/fd");
    if (!dir)
        _exit(90);
    for (struct dirent *entry; (entry = readdir(dir)) && n < 64;)
        if (entry->d_name[0] != '.' && atoi(entry->d_name) != dirfd(dir))
            fds[n++] = atoi(entry->d_name);
    closedir(dir);
    for (int fd = 0; fd <= 2; fd++) {
        bool closed = fcntl(fd, F_GETFD) == -1; /* gcc 12 drops "< 0" beside a bit of the mask */
        if (closed != ((mask & 1 << fd) != 0))
            _exit(91 + fd);
    }
    for (int i = 0; i < n; i++) {
        char link[32], path[512] = "";
        snprintf(link, sizeof link, "/proc/self/fd/%d", fds[i]);
        if (readlink(link, path, sizeof path - 1) > 0 && strstr(path, test_folder) &&
            !(fcntl(fds[i], F_GETFD) & FD_CLOEXEC))
            _exit(94);
    }
}

static void write_all(const char *prefix, int mask)
{
    char path[6][400];
    static const char *const names[] = {"npy", "st", "run", "csv", "svg", "words"};
    static const char *const columns[] = {"step", "loss"};
    for (int i = 0; i < 6; i++)
        snprintf(path[i], sizeof path[i], "%s/%s.%s", test_folder, prefix, names[i]);
    char words[] = "words";
    plain = ts_files;
    ts_files.write = print_then_write;
    TS_SCOPE;
    ts_tensor *t = ts_arange(0, 1000, 1, TS_F32);
    const char *name = "t";
    ts_csv *csv = ts_csv_create(path[3], columns, 2);
    ts_loader *loader = ts_loader_open("/proc/self/exe", &(ts_loader_opts){
                                           .size = sizeof(ts_loader_opts), .batch = 1, .length = 8,
                                           .dtype = TS_U8, .to = 1});
    ts_chart *chart = ts_chart_new(NULL);
    check_descriptors(mask);
    print_to_streams();
    bool good = csv && loader && ts_csv_row(csv, (double[]){1, 0.5}, 2) == TS_OK &&
                ts_npy_save(path[0], t) == TS_OK &&
                ts_safetensors_save(path[1], &name, &t, 1, NULL, NULL, 0) == TS_OK &&
                run_save(path[2], 10, 1, 2) == TS_OK && ts_chart_write(chart, path[4]) == TS_OK &&
                ts_replace_file("test", path[5], print_words, words) == TS_OK;
    ts_csv_close(csv);
    csv = ts_csv_resume(path[3], columns, 2, 1);
    print_to_streams();
    good = good && csv && ts_csv_row(csv, (double[]){2, 0.25}, 2) == TS_OK;
    check_descriptors(mask);
    ts_csv_close(csv);
    ts_chart_free(chart);
    ts_loader_close(loader);
    ts_checkpoint *c = NULL;
    if (!good || ts_checkpoint_find(path[2], &c) != TS_OK || !c)
        _exit(95);
    ts_checkpoint_close(c);
}

static void write_with_closed(int mask)
{
    char prefix[16];
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = 0; fd <= 2; fd++)
        if (mask >> fd & 1)
            close(fd);
        else
            dup2(null, fd);
    close(null);
    snprintf(prefix, sizeof prefix, "closed%d", mask);
    write_all(prefix, mask);
}

static void check_same(const char *a, const char *b)
{
    size_t size_a = 0, size_b = 0;
    unsigned char *data_a = read_file(a, &size_a), *data_b = read_file(b, &size_b);
    ck_assert_msg(data_a && data_b && size_a == size_b && memcmp(data_a, data_b, size_a) == 0,
                  "%s and %s differ", a, b);
    free(data_a);
    free(data_b);
}

TS_TEST(files_are_whole_whichever_standard_streams_are_closed, .loop = MASKS, IN_FOLDER)
{
    static const char *const files[] = {"npy", "st", "csv", "svg", "words",
                                        "run/checkpoints/10/model.safetensors",
                                        "run/checkpoints/10/manifest.json"};
    ck_assert_int_eq(run_in_child(write_with_closed, 0), 0);
    ck_assert_int_eq(run_in_child(write_with_closed, _i), 0);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char a[400], b[400];
        snprintf(a, sizeof a, "%s/closed0.%s", test_folder, files[i]);
        snprintf(b, sizeof b, "%s/closed%d.%s", test_folder, _i, files[i]);
        check_same(a, b);
    }
}
