/**
 * @file folder.h  Common functions of the io tests: a temporary folder per case, reading and
 * writing of whole files.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_TESTS_IO_FOLDER_H
#define TS_TESTS_IO_FOLDER_H

#include <check.h>
#include <ftw.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/files.h"
#include "tessera/tessera.h"
#include "tests/harness.h"

static char test_folder[64];

/* Replaces fsync(): the tests flush thousands of files and do not need them on disk. */
static int no_fsync(int fd)
{
    (void)fd;
    return 0;
}

static inline void folder_setup(void)
{
    ts_files.fsync = no_fsync;
    /* in memory if possible: on a disk the tests take minutes */
    const char *place = access("/dev/shm", W_OK | X_OK) == 0 ? "/dev/shm" : "/tmp";
    snprintf(test_folder, sizeof test_folder, "%s/tessera-io-XXXXXX", place);
    ck_assert_ptr_nonnull(mkdtemp(test_folder));
}

static inline int folder_remove_one(const char *path, const struct stat *status, int kind,
                                    struct FTW *walk)
{
    (void)status;
    (void)kind;
    (void)walk;
    return remove(path);
}

/* Empties and removes a folder. */
static inline void folder_remove(const char *path)
{
    nftw(path, folder_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static inline void folder_teardown(void) { folder_remove(test_folder); }

/* Cases that use files. */
#define IN_FOLDER .setup = folder_setup, .teardown = folder_teardown

/* Path of name in the temporary folder, in a ring of four buffers. */
static inline const char *in_folder(const char *name)
{
    static char ring[4][320];
    static unsigned next;
    char *path = ring[next++ & 3];
    snprintf(path, sizeof ring[0], "%s/%s", test_folder, name);
    return path;
}

static inline void write_file(const char *path, const void *data, size_t bytes)
{
    FILE *file = fopen(path, "wb");
    ck_assert_msg(file != NULL, "cannot write %s", path);
    ck_assert_uint_eq(fwrite(data, 1, bytes, file), bytes);
    ck_assert_int_eq(fclose(file), 0);
}

/* Contents of a file, owned by the caller; NULL if the file does not exist. */
static inline unsigned char *read_file(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return NULL;
    ck_assert_int_eq(fseek(file, 0, SEEK_END), 0);
    long size = ftell(file);
    rewind(file);
    unsigned char *data = malloc((size_t)size + 1);
    ck_assert_ptr_nonnull(data);
    ck_assert_uint_eq(fread(data, 1, (size_t)size, file), (size_t)size);
    fclose(file);
    *bytes = (size_t)size;
    return data;
}

static int counted;
static inline int count_one(const char *path, const struct stat *status, int kind, struct FTW *walk)
{
    (void)path;
    (void)status;
    (void)kind;
    counted += walk->level > 0;
    return 0;
}

/* Number of files and folders below a folder. */
static inline int count_files(const char *path)
{
    counted = 0;
    nftw(path, count_one, 16, FTW_PHYS);
    return counted;
}

/* Checks that the recorded error has this code and that its message contains text; clears it. */
#define ck_failed(code, text)                                                                      \
    do {                                                                                           \
        ck_assert_str_eq(ts_status_name(ts_error_code()), ts_status_name(code));                   \
        ck_assert_msg(strstr(ts_error_message(), (text)) != NULL, "expected \"%s\" in \"%s\"",     \
                      (text),                                                                      \
                      ts_error_message());                                                         \
        ts_error_clear();                                                                          \
    } while (0)

#define ck_ok(expr)                                                                                \
    do {                                                                                           \
        if (TS_STATUS_OF(expr) != TS_OK)                                                           \
            ck_abort_msg("%s: %s: %s", #expr, ts_status_name(ts_error_code()),                     \
                         ts_error_message());                                                      \
    } while (0)

#endif
