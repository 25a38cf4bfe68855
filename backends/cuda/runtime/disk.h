/**
 * @file disk.h  Results that later processes read from files: machine code of groups, choices of
 * engines.
 *
 * A file has a kind, a key and data. Its name is the kind and a hash of the key. The file contains
 * the whole key, which is compared when the file is read. The folder is the first absolute path of
 * $TS_CUDA_CACHE, $XDG_CACHE_HOME/tessera/<kind> and $HOME/.cache/tessera/<kind>; a TS_CUDA_CACHE
 * that is neither absolute nor empty disables the files. A file that another user owns or has
 * permission to write is not read. Nothing is written into a folder that another user owns or has
 * permission to write. Damaged files are ignored.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_DISK_H
#define TS_CUDA_DISK_H

#include <stdbool.h>
#include <stddef.h>

/** The purpose of a file: its kind, and the log's topic that gets a message "<what> is not cached"
 *  if the file cannot be written. */
typedef struct ts_cuda_disk {
    const char *kind, *topic, *what;
} ts_cuda_disk;

/** Returns the data of the file with this key, which the caller frees, and sets *bytes to their
 *  size. Returns NULL, without an error, if there is no such file or no memory. */
void *ts_cuda_disk_read(const ts_cuda_disk *disk, const void *key, size_t key_bytes, size_t *bytes);
/** Writes a file; replaces a file of the same kind whose key has the same hash. Data must have 1
 *  byte to 2^30 - 1 bytes, or ts_cuda_disk_read() ignores the file. Failures are logged only. */
void ts_cuda_disk_keep(const ts_cuda_disk *disk, const void *key, size_t key_bytes,
                       const void *data, size_t bytes);

#endif
