/**
 * @file files.h
 * All that this room asks of the file system, through one table in which tests plant faults.
 *
 * `op` is the public function on whose behalf a helper works; errors begin with it.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_IO_FILES_H
#define TS_IO_FILES_H

#include <dirent.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "core/error.h"
#include "include/tessera/check.h"

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
} ts_file_table;

extern ts_file_table ts_files;

/* --------------------------------------------------------------------------- texts ---- */

/** A path from a format, to be freed by ts_sys_free(); NULL with TS_ERR_MEMORY. */
char *ts_path(const char *format, ...) __attribute__((format(printf, 1, 2)));
/** At most 80 bytes of a text from a file, fit for a message; in a per-thread ring of four. */
const char *ts_quote(const char *text);

/* -------------------------------------------------------------------------- reading ---- */

/** Opens a regular file for reading; never waits (as a FIFO would). */
ts_status ts_file_open(const char *op, const char *path, int *fd, int64_t *bytes);
/** Reads exactly `bytes` from position `at`. */
ts_status ts_file_read(const char *op, const char *path, int fd, void *data, int64_t bytes,
                       int64_t at);
/** Keeps errno. A negative fd is nothing. */
void ts_file_close(int fd);

/* -------------------------------------------------------------------------- hashing ---- */

/** Hexadecimal digits of an XXH3-128 hash and the end of the string. */
#define TS_HASH_TEXT 33

/** Hash of the first `bytes` of a file as xxh128sum prints it. */
ts_status ts_file_hash(const char *op, const char *path, int fd, int64_t bytes,
                       char text[TS_HASH_TEXT]);
/** Hash of a block of memory. */
void ts_memory_hash(const void *data, size_t bytes, char text[TS_HASH_TEXT]);

/* -------------------------------------------------------------------------- writing ---- */

/** A new file that is hashed while it is written. */
typedef struct ts_writer {
    const char *op;
    const char *path; /* borrowed */
    int fd;
    int64_t bytes;
    void *hash; /* XXH3_state_t */
} ts_writer;

/** Makes the file; it must not be there yet. */
ts_status ts_writer_open(ts_writer *w, const char *op, const char *path);
ts_status ts_writer_write(ts_writer *w, const void *data, int64_t bytes);
/** Flushes to disk and closes; text may be NULL. Whatever happens w is at its end. */
ts_status ts_writer_finish(ts_writer *w, char text[TS_HASH_TEXT]);
/** Ends w after a failure; the file stays for the caller to remove. */
void ts_writer_abandon(ts_writer *w);

/** Writes what goes into a file of ts_file_replace(). */
typedef ts_status (*ts_write_fn)(ts_writer *w, void *ctx);
/**
 * Puts a new file in the place of path: written beside it, flushed, renamed, folder flushed.
 * After an error before the rename, path is as it was and the new file is gone.
 */
ts_status ts_file_replace(const char *op, const char *path, ts_write_fn write, void *ctx);

/* -------------------------------------------------------------------------- folders ---- */

/** Makes a folder and flushes its name; one that is there already is no error. */
ts_status ts_folder_make(const char *op, const char *path);
/** A descriptor for ts_folder_sync(). */
ts_status ts_folder_open(const char *op, const char *path, int *fd);
/** Flushes the names in a folder; a file system that knows no such thing is no error. */
ts_status ts_folder_sync(const char *op, const char *path, int fd);
/** Removes a folder and the files in it as far as possible;
 * records no error. True when it is gone. */
bool ts_folder_remove(const char *path);
/**
 * Calls visit with each name in a folder, except "." and "..", until it returns a failure.
 * A folder that is not there has no names.
 */
ts_status ts_folder_each(const char *op, const char *path,
                         ts_status (*visit)(const char *name, void *ctx), void *ctx);

#endif
