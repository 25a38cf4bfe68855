/**
 * @file files.h
 * All that the library asks of the file system, through one table in which tests plant faults.
 *
 * `op` is the public function on whose behalf a helper works; errors begin with it. Only regular
 * files are opened, and folders where a helper says so; no descriptor is 0, 1 or 2, which belong to
 * the program's standard streams even while they are closed; all are closed on exec.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CORE_FILES_H
#define TS_CORE_FILES_H

#include <dirent.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "core/error.h"

/** As the system calls of these names: a negative value or NULL is a failure with errno. */
typedef struct ts_file_table {
    int (*open)(const char *path, int flags, mode_t mode);
    int (*close)(int fd);
    int (*stat)(const char *path, struct stat *status);
    int (*fstat)(int fd, struct stat *status);
    ssize_t (*pread)(int fd, void *data, size_t bytes, off_t at);
    ssize_t (*write)(int fd, const void *data, size_t bytes);
    int (*fsync)(int fd);
    int (*flock)(int fd, int operation);
    int (*rename)(const char *from, const char *to);
    int (*unlink)(const char *path);
    int (*mkdir)(const char *path, mode_t mode);
    int (*rmdir)(const char *path);
    DIR *(*opendir)(const char *path);
    struct dirent *(*readdir)(DIR *dir);
    int (*closedir)(DIR *dir);
    int (*fchmod)(int fd, mode_t mode);
} ts_file_table;

extern ts_file_table ts_files;

/** A path from a format, to be freed by ts_sys_free(); NULL with TS_ERR_MEMORY. */
char *ts_path(const char *format, ...) __attribute__((format(printf, 1, 2)));
/** "cannot WHAT 'path': " and the reason that errno has. */
ts_status ts_file_refused(const char *op, const char *what, const char *path);

/** Opens a regular file for reading. */
ts_status ts_file_open(const char *op, const char *path, int *fd, int64_t *bytes);
/** Makes a file for writing; it must not be there yet. */
ts_status ts_file_create(const char *op, const char *path, mode_t mode, int *fd);
/** Writes all of the data; `path` is for the error. */
ts_status ts_file_write(const char *op, const char *path, int fd, const void *data, int64_t bytes);
/** Keeps errno. A negative fd is nothing. */
void ts_file_close(int fd);

/**
 * Puts a new file in the place of path: written beside it, flushed, renamed, folder flushed. The
 * file has the mode of the one that it replaces, else 0666 less the umask. A link is replaced
 * itself. After an error before the rename, path is as it was and the new file is gone.
 * @param write  fills the file; `temporary` is its path meanwhile
 */
ts_status ts_file_replace(const char *op, const char *path,
                          ts_status (*write)(int fd, const char *temporary, void *ctx), void *ctx);

/** A descriptor for ts_folder_sync(). */
ts_status ts_folder_open(const char *op, const char *path, int *fd);
/** Flushes the names in a folder; a file system that knows no such thing is no error. */
ts_status ts_folder_sync(const char *op, const char *path, int fd);
/** The folder of a path, for ts_sys_free(). */
char *ts_folder_of(const char *path);

#endif
