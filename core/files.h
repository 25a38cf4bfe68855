/**
 * @file files.h  The file system calls that load and save users' files, through one table in which
 * tests inject faults.
 *
 * `op` names the public function that calls a helper; error messages begin with this name. Errors
 * are TS_ERR_IO, or TS_ERR_MEMORY if memory ran out. Helpers open regular files only, and folders
 * where stated. Descriptors are never 0, 1 or 2, which belong to the program's standard streams
 * even while these are closed. All are closed on exec.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CORE_FILES_H
#define TS_CORE_FILES_H

#include <dirent.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "core/error.h"

/** Like the system calls of these names: a negative value or NULL is a failure that sets errno. */
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

/** Formats a path; the caller frees it with ts_sys_free(). NULL with TS_ERR_MEMORY. */
char *ts_path(const char *format, ...) __attribute__((format(printf, 1, 2)));
/** Records "cannot WHAT 'PATH': " and the reason in errno. Returns TS_ERR_IO, or TS_ERR_MEMORY for
 *  ENOMEM. */
ts_status ts_file_refused(const char *op, const char *what, const char *path);

/** Opens a regular file for reading. *fd receives the descriptor, owned by the caller, and *bytes
 *  the file's size. */
ts_status ts_file_open(const char *op, const char *path, int *fd, int64_t *bytes);
/** Creates a file for writing. An existing file is an error. */
ts_status ts_file_create(const char *op, const char *path, mode_t mode, int *fd);
/** Writes all of the data; `path` is for the error. */
ts_status ts_file_write(const char *op, const char *path, int fd, const void *data, int64_t bytes);
/** Closes fd and keeps errno. A negative fd is ignored. */
void ts_file_close(int fd);

/**
 * Replaces path by a new file: writes a temporary file in the same folder, flushes it, renames it
 * and flushes the folder. The new file has the mode of the old one; without an old file, 0666 less
 * the umask. A symbolic link is replaced, not followed. If the error comes from the rename or from
 * an earlier step, path is unchanged and the temporary file is removed.
 * @param write  writes the file's data; `temporary` is the path of the temporary file. Its error is
 *               returned
 */
ts_status ts_file_replace(const char *op, const char *path,
                          ts_status (*write)(int fd, const char *temporary, void *ctx), void *ctx);

/** Opens a folder for ts_folder_sync(). *fd receives the descriptor, owned by the caller. */
ts_status ts_folder_open(const char *op, const char *path, int *fd);
/** Flushes a folder's entries to disk; no error if the file system does not support it. */
ts_status ts_folder_sync(const char *op, const char *path, int fd);
/** Path of the folder that contains `path`; the caller frees it with ts_sys_free(). NULL with
 *  TS_ERR_MEMORY. */
char *ts_folder_of(const char *path);

#endif
