/**
 * @file files.h
 * Operations on files beyond core/files.h: whole reads, hashed writes, folders.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_IO_FILES_H
#define TS_IO_FILES_H

#include "core/files.h"
#include "include/tessera/check.h"

/** At most 80 bytes of a text from a file, escaped for a message; in a per-thread ring of four. */
const char *ts_quote(const char *text);

/* -------------------------------------------------------------------------- reading ---- */

/** Reads exactly `bytes` from position `at`. */
ts_status ts_file_read(const char *op, const char *path, int fd, void *data, int64_t bytes,
                       int64_t at);

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
    void *hash; /* XXH3_state_t; NULL: none is wanted */
} ts_writer;

/** Makes the file; it must not be there yet. */
ts_status ts_writer_open(ts_writer *w, const char *op, const char *path);
ts_status ts_writer_write(ts_writer *w, const void *data, int64_t bytes);
/** Flushes to disk and closes; text may be NULL. Whatever happens w is at its end. */
ts_status ts_writer_finish(ts_writer *w, char text[TS_HASH_TEXT]);
/** Ends w after a failure; the file stays for the caller to remove. */
void ts_writer_abandon(ts_writer *w);

/** ts_file_replace() with a writer; its hash is NULL. */
ts_status ts_writer_replace(const char *op, const char *path,
                            ts_status (*write)(ts_writer *w, void *ctx), void *ctx);

/* -------------------------------------------------------------------------- folders ---- */

/** Makes a folder and flushes its name. An existing folder is no error. */
ts_status ts_folder_make(const char *op, const char *path);
/** Removes a folder and the files in it as far as possible; records no error. True if it no longer
 * exists. */
bool ts_folder_remove(const char *path);
/**
 * Calls visit with each name in a folder, except "." and "..", until it returns a failure.
 * A folder that is not there has no names.
 */
ts_status ts_folder_each(const char *op, const char *path,
                         ts_status (*visit)(const char *name, void *ctx), void *ctx);

#endif
