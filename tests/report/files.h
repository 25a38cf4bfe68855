/**
 * @file files.h
 * Files of the report tests: a temporary folder, reading and writing of whole files.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_TESTS_REPORT_FILES_H
#define TS_TESTS_REPORT_FILES_H

#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char test_folder[64];

/* Path of `name` in a temporary folder of this case, in a ring of four buffers. */
static inline const char *test_path(const char *name)
{
    static char paths[4][160];
    static int next;

    if (!*test_folder) {
        strcpy(test_folder, "/tmp/tessera-report-XXXXXX");
        ck_assert_ptr_nonnull(mkdtemp(test_folder));
    }
    next = (next + 1) % 4;
    snprintf(paths[next], sizeof paths[next], "%s/%s", test_folder, name);
    return paths[next];
}

/* Teardown: removes the files in the folder of test_path(), without hidden ones, and the folder. */
static inline void test_remove_files(void)
{
    DIR *dir = opendir(test_path("."));
    struct dirent *entry;

    while (dir && (entry = readdir(dir)))
        if (entry->d_name[0] != '.')
            unlinkat(dirfd(dir), entry->d_name, 0);
    if (dir)
        closedir(dir);
    rmdir(test_folder);
    *test_folder = '\0';
}

/* Number of files in the folder of test_path(), without hidden files. */
static inline int test_count_files(void)
{
    DIR *dir = opendir(test_path("."));
    struct dirent *entry;
    int count = 0;

    ck_assert_ptr_nonnull(dir);
    while ((entry = readdir(dir)))
        count += entry->d_name[0] != '.';
    closedir(dir);
    return count;
}

/* Returns the contents of a file below 4 MiB as a string, which the caller frees. */
static inline char *test_read(const char *path)
{
    FILE *file = fopen(path, "rb");
    char *data = calloc(1, 1 << 22);

    ck_assert_msg(file && data, "cannot read %s", path);
    size_t size = fread(data, 1, (1 << 22) - 1, file);
    ck_assert_uint_lt(size, (1 << 22) - 1);
    fclose(file);
    return data;
}

static inline void test_write(const char *path, const char *data)
{
    FILE *file = fopen(path, "wb");

    ck_assert_ptr_nonnull(file);
    fputs(data, file);
    ck_assert_int_eq(fclose(file), 0);
}

#endif
