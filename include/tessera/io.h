/**
 * @file io.h
 * Tensors in files: safetensors, npy.
 *
 * Files are untrusted: everything is checked before a tensor is allocated, and what is wrong is an
 * error that names the file, what was expected and what came (TS_ERR_FORMAT). Files are replaced,
 * never rewritten in place: a failed or killed save leaves what was there before, and somebody who
 * still reads the old file goes on reading the old file. Formats and guarantees: docs/files.md.
 *
 * An opened file may be read by several threads at once; closing it, and saving, belong to one.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_IO_H
#define TESSERA_IO_H

#include "core.h"

TS_BEGIN_DECLS

/* ------------------------------------------------------------------------ safetensors ---- */

/** A validated safetensors file: its index in memory, its data in the file. */
typedef struct ts_safetensors ts_safetensors;

/** Limits of ts_safetensors_open(); zero is the default everywhere. */
typedef struct ts_safetensors_opts {
    size_t size;              /**< sizeof(ts_safetensors_opts) */
    int64_t max_header_bytes; /**< default 16 MiB, at most 100,000,000 */
    int64_t max_tensors;      /**< default and at most 1,000,000 */
} ts_safetensors_opts;

/**
 * Opens a file and checks its whole index; reads no tensor.
 * @param opts  NULL for the defaults
 * @return owned by the caller; NULL with TS_ERR_IO, TS_ERR_FORMAT, TS_ERR_DTYPE (an element type
 *         that Tessera does not have), TS_ERR_VALUE (limits) or TS_ERR_MEMORY
 */
TS_API ts_safetensors *ts_safetensors_open(const char *path, const ts_safetensors_opts *opts);
/** Closes the file; tensors that were loaded stay. NULL-safe. */
TS_API void ts_safetensors_close(ts_safetensors *st);

/** Number of tensors; they are numbered in the order of their data in the file. */
TS_API int64_t ts_safetensors_count(const ts_safetensors *st);
/** Number of the tensor of that name; -1 (and no error) when there is none. */
TS_API int64_t ts_safetensors_find(const ts_safetensors *st, const char *name);
/** What the file says about tensor `index`; NULL, TS_DTYPE_NONE or -1 when out of range. Borrowed. */
TS_API const char *ts_safetensors_name(const ts_safetensors *st, int64_t index);
TS_API ts_dtype ts_safetensors_dtype(const ts_safetensors *st, int64_t index);
TS_API int ts_safetensors_ndim(const ts_safetensors *st, int64_t index);
TS_API const int64_t *ts_safetensors_sizes(const ts_safetensors *st, int64_t index);
/** Number of metadata entries. */
TS_API int64_t ts_safetensors_metadata_count(const ts_safetensors *st);
/** Key and value of a metadata entry, in the order of the keys' bytes; NULL when out of range. */
TS_API const char *ts_safetensors_metadata_key(const ts_safetensors *st, int64_t index);
TS_API const char *ts_safetensors_metadata_value(const ts_safetensors *st, int64_t index);
/** Metadata by key; NULL (and no error) when there is none. Borrowed. */
TS_API const char *ts_safetensors_metadata(const ts_safetensors *st, const char *key);

/** Reads a tensor to the CPU. TS_ERR_INDEX when there is none of that name; TS_ERR_FORMAT for a bool
 *  that is neither 0 nor 1. */
TS_API ts_tensor *ts_safetensors_load(const ts_safetensors *st, const char *name);
/** Reads tensor `index` to the CPU. */
TS_API ts_tensor *ts_safetensors_load_at(const ts_safetensors *st, int64_t index);
/**
 * Reads all tensors to the CPU, or none.
 * @param tensors  receives ts_safetensors_count() tensors, in the order of the index
 */
TS_API ts_status ts_safetensors_load_all(const ts_safetensors *st, ts_tensor **tensors);
/**
 * Reads a tensor into one that is there, of the same sizes and dtype, on the CPU, of any strides.
 * Leaves no history, also where dst requires grad. Its elements are unspecified after TS_ERR_IO.
 */
TS_API ts_status ts_safetensors_read_into(const ts_safetensors *st, const char *name, ts_tensor *dst);

/**
 * Writes tensors on the CPU, contiguous or not. The bytes depend on names, values and metadata
 * alone, not on the order in which they are given: data is ordered by dtype (i64, f64, f32, i32,
 * bf16, f16, u8, bool), then by name; metadata by key.
 * @param names    n distinct names in UTF-8 of at most 1,024 bytes, none "__metadata__"
 * @param tensors  n tensors (borrowed)
 * @param keys, values  nmetadata texts in UTF-8; may be NULL when nmetadata is 0
 * @return TS_OK when the new file is in place and on disk. After an error the old one stands,
 *         except that a failure to flush the folder itself may come after the rename.
 */
TS_API ts_status ts_safetensors_save(const char *path, const char *const *names,
                                     ts_tensor *const *tensors, int64_t n, const char *const *keys,
                                     const char *const *values, int64_t nmetadata);

/* -------------------------------------------------------------------------------- npy ---- */

/**
 * Reads a NumPy file of version 1.0, 2.0 or 3.0 to the CPU, as a contiguous tensor whatever the
 * order in the file. Little-endian f8, f4, f2, i8, i4 and u1, b1; objects (pickles) are refused.
 */
TS_API ts_tensor *ts_npy_load(const char *path);
/** Writes a tensor on the CPU as version 1.0, C order. bf16 is TS_ERR_DTYPE: NumPy has none. */
TS_API ts_status ts_npy_save(const char *path, ts_tensor *t);

TS_END_DECLS
#endif
