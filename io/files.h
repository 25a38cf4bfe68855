/**
 * @file files.h
 * Operations on files beyond core/files.h: whole reads, hashed writes, folders.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_IO_FILES_H
#define TS_IO_FILES_H

#include "core/files.h"
#include "include/tessera/check.h"

/** Escapes a text from a file for a message and cuts it to 80 bytes (then "..." follows). The
 *  result is in a per-thread ring: it stays valid for the next three calls. */
const char *ts_quote(const char *text);

/* -------------------------------------------------------------------------- reading ---- */

/** Reads exactly `bytes` bytes from position `at`. Errors: TS_ERR_IO, TS_ERR_MEMORY; TS_ERR_FORMAT
 *  if the file ends before. */
ts_status ts_file_read(const char *op, const char *path, int fd, void *data, int64_t bytes,
                       int64_t at);

/** A part of an open file, or a block of memory, that is read as a file. Borrows all members. */
typedef struct ts_span {
    const char *op, *path; /* for error messages */
    int fd;
    int64_t at, bytes;     /* offset in the file, and length */
    const char *memory;    /* `bytes` bytes to read instead of the file; NULL: the file */
} ts_span;
/** Reads exactly `bytes` bytes from position `at` of the span. Errors: those of ts_file_read();
 *  TS_ERR_FORMAT if they are not within the span. */
ts_status ts_span_read(const ts_span *span, void *data, int64_t bytes, int64_t at);

/* -------------------------------------------------------------------------- hashing ---- */

/** Size of an XXH3-128 hash as text: 32 hexadecimal digits and the terminating NUL. */
#define TS_HASH_TEXT 33

/** Hash of the first `bytes` bytes of a file, in the form that xxh128sum prints. Errors: those of
 *  ts_file_read(), TS_ERR_MEMORY. */
ts_status ts_file_hash(const char *op, const char *path, int fd, int64_t bytes,
                       char text[TS_HASH_TEXT]);
/** Hash of a block of memory. */
void ts_memory_hash(const void *data, size_t bytes, char text[TS_HASH_TEXT]);

/* -------------------------------------------------------------------------- writing ---- */

/** A file that is being written, with an optional hash of the bytes so far. A writer ends when its
 *  file is closed and its hash is freed; after that it must not be used. */
typedef struct ts_writer {
    const char *op;
    const char *path; /* borrowed */
    int fd;
    int64_t bytes; /* written so far */
    void *hash;    /* owned XXH3_state_t; NULL: no hash is computed */
} ts_writer;

/** Creates the file, which must not exist. Borrows op and path until w ends. After a failure w has
 *  ended. Errors: TS_ERR_IO, TS_ERR_MEMORY. */
ts_status ts_writer_open(ts_writer *w, const char *op, const char *path);
/** Appends `bytes` bytes to the file. Does not end w. Errors: TS_ERR_IO, TS_ERR_MEMORY. */
ts_status ts_writer_write(ts_writer *w, const void *data, int64_t bytes);
/** Flushes the file to disk and closes it. text, if not NULL, receives the hash. w ends, also after
 *  a failure; the file then stays for the caller to remove. */
ts_status ts_writer_finish(ts_writer *w, char text[TS_HASH_TEXT]);
/** Ends w after a failure; the file stays for the caller to remove. */
void ts_writer_abandon(ts_writer *w);

/** ts_file_replace() whose callback receives a writer. The writer computes no hash, and write()
 *  must not end it. */
ts_status ts_writer_replace(const char *op, const char *path,
                            ts_status (*write)(ts_writer *w, void *ctx), void *ctx);

/* -------------------------------------------------------------------------- folders ---- */

/** Creates a folder and flushes its parent to disk. An existing folder is not an error. */
ts_status ts_folder_make(const char *op, const char *path);
/** Removes a file, a symbolic link (not its target), or a folder and the files in it, but no
 *  subfolders. True if the path no longer exists; otherwise errno is set. Records no error. */
bool ts_folder_remove(const char *path);
/**
 * Calls visit with each name in a folder, except "." and "..", until visit fails, and returns that
 * failure. The order of names is unspecified. A missing folder counts as empty.
 */
ts_status ts_folder_each(const char *op, const char *path,
                         ts_status (*visit)(const char *name, void *ctx), void *ctx);

#endif
