/** @file safetensors.h  Limits of the safetensors format, and the parts of the reader and writer
 * that checkpoints use. */
// SPDX-License-Identifier: MIT
#ifndef TS_IO_SAFETENSORS_H
#define TS_IO_SAFETENSORS_H

#include "include/tessera/io.h"
#include "io/files.h"

#define TS_ST_MAX_HEADER 100000000      /* bytes; the format's own limit */
#define TS_ST_DEFAULT_HEADER (16 << 20) /* bytes; limit of a reader without options */
#define TS_ST_MAX_TENSORS 1000000
#define TS_ST_MAX_NAME 1024 /* bytes */
#define TS_ST_METADATA "__metadata__"

/** The format's name of each dtype, by ts_dtype: "F32", ... */
extern const char *const ts_safetensors_dtypes[TS_DTYPE_COUNT];

/** One tensor of an opened file. */
typedef struct ts_st_entry {
    int64_t begin, bytes; /* offset from the start of the file's data, and length */
    int64_t sizes[TS_MAX_DIMS];
    uint32_t name; /* offset of the name in ts_safetensors.text */
    uint8_t dtype, ndim;
} ts_st_entry;

/** One metadata entry. */
typedef struct ts_st_pair {
    uint32_t key, value; /* their offsets in ts_safetensors.text */
} ts_st_pair;

struct ts_safetensors {
    int fd;
    char *path;
    int64_t data;         /* offset of the data in the file */
    char *text;           /* the header, with names and metadata decoded in place */
    ts_st_entry *entries; // count, in the order of the data
    uint32_t *by_name;    // count indices into entries, sorted by name
    ts_st_pair *metadata; // nmetadata, sorted by key
    int64_t count, nmetadata;
};

/**
 * Like ts_safetensors_open() for an open file of `bytes` bytes. Takes ownership of fd, also after a
 * failure.
 * @param op, path  named in errors
 * @param opts      a full ts_safetensors_opts; its size field is not checked
 * @return to be closed with ts_safetensors_close(); NULL with an error
 */
ts_safetensors *ts_safetensors_open_fd(const char *op, const char *path, int fd, int64_t bytes,
                                       const ts_safetensors_opts *opts);

/** A file to be written: its tensors are checked and its header is complete. */
typedef struct ts_st_plan {
    const char *op;
    ts_tensor *const *tensors; /* count, borrowed */
    int64_t count;
    int64_t *order; /* count indices into tensors, in the order of the data */
    char *header;   /* the file's bytes before the data: length, JSON, padding */
    size_t header_bytes;
} ts_st_plan;

/**
 * Checks the tensors and builds the header. Borrows op and tensors until ts_st_plan_free(); the
 * other arguments are only read during the call. After a failure there is nothing to free.
 * @param where           file or section, for messages
 * @param names, tensors  n each; names must be distinct UTF-8
 * @param keys, values    metadata in UTF-8, nmetadata each; keys must be distinct
 * @return TS_ERR_VALUE for a bad name, key or value or too large a header, TS_ERR_DEVICE for a meta
 *         tensor, TS_ERR_SHAPE if the bytes exceed 63 bits, TS_ERR_MEMORY
 */
ts_status ts_st_plan_make(ts_st_plan *plan, const char *op, const char *where,
                          const char *const *names, ts_tensor *const *tensors, int64_t n,
                          const char *const *keys, const char *const *values, int64_t nmetadata);
void ts_st_plan_free(ts_st_plan *plan);
/** Writes header and data; ctx is a ts_st_plan, for ts_writer_replace(). */
ts_status ts_st_plan_write(ts_writer *w, void *ctx);

#endif
