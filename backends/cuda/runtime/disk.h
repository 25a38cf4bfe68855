/**
 * @file disk.h  Results that later processes read from files: machine code of groups, choices of
 * engines.
 *
 * A file has a kind, a key and data. Its name is a hash of the key; it also contains the key, which
 * is compared when the file is read. Files are in a folder of the user: TS_CUDA_CACHE, or
 * tessera/<kind> in XDG_CACHE_HOME or ~/.cache. A folder or file that another user owns or may
 * write is ignored, and so is a damaged file.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_DISK_H
#define TS_CUDA_DISK_H

#include <stdbool.h>
#include <stddef.h>

/** The purpose of a file. topic, what: for a log that a file cannot be written. */
typedef struct ts_cuda_disk {
    const char *kind, *topic, *what;
} ts_cuda_disk;

/** Returns the data of the file with this key, which the caller frees, and their size in *bytes;
 *  NULL, without an error, if there is none. */
void *ts_cuda_disk_read(const ts_cuda_disk *disk, const void *key, size_t key_bytes, size_t *bytes);
/** Writes a file, in place of one with the same key. Logs a failure, and otherwise ignores it. */
void ts_cuda_disk_keep(const ts_cuda_disk *disk, const void *key, size_t key_bytes,
                       const void *data, size_t bytes);

#endif
