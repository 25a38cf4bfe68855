/**
 * @file io.h
 * Tensors in files: safetensors, npy, checkpoints of a training run.
 *
 * Files are untrusted: everything is checked before a tensor is allocated. An invalid file is
 * TS_ERR_FORMAT, with the file and the expected and actual value. Files are replaced, never
 * rewritten in place: a failed or killed save leaves the old file, and a reader of the old file is
 * not disturbed. Formats and guarantees: docs/files.md.
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
/** Number of the tensor of that name; -1 (and no error) if absent. */
TS_API int64_t ts_safetensors_find(const ts_safetensors *st, const char *name);
/** Name of tensor `index`, borrowed from st; NULL when out of range. */
TS_API const char *ts_safetensors_name(const ts_safetensors *st, int64_t index);
/** dtype of tensor `index`; TS_DTYPE_NONE when out of range. */
TS_API ts_dtype ts_safetensors_dtype(const ts_safetensors *st, int64_t index);
/** Number of dims of tensor `index`; -1 when out of range. */
TS_API int ts_safetensors_ndim(const ts_safetensors *st, int64_t index);
/** Sizes of tensor `index`, borrowed from st; NULL when out of range. */
TS_API const int64_t *ts_safetensors_sizes(const ts_safetensors *st, int64_t index);
/** Number of metadata entries. */
TS_API int64_t ts_safetensors_metadata_count(const ts_safetensors *st);
/** Key and value of a metadata entry, in the order of the keys' bytes; NULL when out of range. */
TS_API const char *ts_safetensors_metadata_key(const ts_safetensors *st, int64_t index);
TS_API const char *ts_safetensors_metadata_value(const ts_safetensors *st, int64_t index);
/** Metadata by key; NULL (and no error) if absent. Borrowed. */
TS_API const char *ts_safetensors_metadata(const ts_safetensors *st, const char *key);

/** Reads a tensor to the CPU. TS_ERR_INDEX if the name is unknown; TS_ERR_FORMAT for a bool that is
 *  neither 0 nor 1. */
TS_API ts_tensor *ts_safetensors_load(const ts_safetensors *st, const char *name);
/** Reads tensor `index` to the CPU. */
TS_API ts_tensor *ts_safetensors_load_at(const ts_safetensors *st, int64_t index);
/**
 * Reads all tensors to the CPU, or none.
 * @param tensors  receives ts_safetensors_count() tensors, in the order of the index
 */
TS_API ts_status ts_safetensors_load_all(const ts_safetensors *st, ts_tensor **tensors);
/**
 * Reads a tensor into dst, a CPU tensor of the same sizes and dtype with any strides. Autograd does
 * not record the write, also if dst requires grad. After TS_ERR_IO, dst's elements are unspecified.
 */
TS_API ts_status ts_safetensors_read_into(const ts_safetensors *st, const char *name,
                                          ts_tensor *dst);

/**
 * Writes tensors of any dtype, strides and device but META; each is copied to the CPU in turn. The
 * bytes depend on names, values and metadata alone, not on the order
 * in which they are given: data is ordered by dtype (i64, f64, f32, i32, bf16, f16, u8, bool),
 * then by name; metadata by key.
 * @param names    n distinct names in UTF-8 of at most 1,024 bytes, none "__metadata__"
 * @param tensors  n tensors (borrowed)
 * @param keys, values  nmetadata texts in UTF-8; may be NULL when nmetadata is 0
 * @return TS_OK when the new file is in place and on disk. After an error the old file is
 *         unchanged, except that a failure to flush the folder itself may come after the rename.
 */
TS_API ts_status ts_safetensors_save(const char *path, const char *const *names,
                                     ts_tensor *const *tensors, int64_t n, const char *const *keys,
                                     const char *const *values, int64_t nmetadata);

/* -------------------------------------------------------------------------------- npy ---- */

/**
 * Reads a NumPy file of version 1.0, 2.0 or 3.0 into a contiguous CPU tensor, from C or Fortran
 * order. Accepts little-endian f8, f4, f2, i8 and i4, and u1 and b1. Other types and objects
 * (pickles) are an error.
 */
TS_API ts_tensor *ts_npy_load(const char *path);
/** Writes a tensor on the CPU as version 1.0, C order. bf16 is TS_ERR_DTYPE: NumPy has none. */
TS_API ts_status ts_npy_save(const char *path, ts_tensor *t);

/* ------------------------------------------------------------------------ checkpoints ---- */

/** A group of named tensors, written as one file NAME.safetensors. */
typedef struct ts_checkpoint_section {
    const char *name;          /**< 1 to 64 of a-z A-Z 0-9 _ -, beginning with a letter */
    const char *const *names;  /**< count names */
    ts_tensor *const *tensors; /**< count tensors of any device but META */
    int64_t count;
} ts_checkpoint_section;

/** Options of ts_checkpoint_save(); zero is the default. */
typedef struct ts_checkpoint_opts {
    size_t size; /**< sizeof(ts_checkpoint_opts) */
    int keep;    /**< checkpoints left, the new one included: default 2, at least 1 */
} ts_checkpoint_opts;

/** A checkpoint whose files were read and have the sizes and hashes that its manifest states. */
typedef struct ts_checkpoint ts_checkpoint;

/**
 * Writes the folder dir/checkpoints/STEP/ with manifest.json and one safetensors file per section,
 * atomically, also if the process is killed or the machine loses power. Creates dir if its parent
 * exists. Reads the new checkpoint back and compares its hashes, then removes older checkpoints
 * beyond `keep`. Replaces a checkpoint of the same step and keeps those of later steps. Only one
 * process at a time may save under dir; others get TS_ERR_STATE.
 * @param step       >= 0
 * @param json_text  a JSON object with data of the caller, or NULL; integers must fit int64_t
 */
TS_API ts_status ts_checkpoint_save(const char *dir, int64_t step,
                                    const ts_checkpoint_section *sections, int nsections,
                                    const char *json_text, const ts_checkpoint_opts *opts);
/** Removes all checkpoints under dir, and remains of killed saves. An empty dir is no error.
 * TS_ERR_STATE while a save is running. */
TS_API ts_status ts_checkpoint_remove_all(const char *dir);
/**
 * Opens the newest checkpoint under dir that verifies.
 * @param checkpoint  receives it, owned by the caller; NULL (with TS_OK) if there is no checkpoint
 * @return TS_ERR_FORMAT if checkpoints exist and none verifies
 */
TS_API ts_status ts_checkpoint_find(const char *dir, ts_checkpoint **checkpoint);
/** Opens the checkpoint in the folder `path` (…/STEP) after reading all
 * of it and checking hashes. */
TS_API ts_checkpoint *ts_checkpoint_open(const char *path);
/** Frees a checkpoint, with its sections; loaded tensors stay. NULL-safe. */
TS_API void ts_checkpoint_close(ts_checkpoint *checkpoint);

/** The step that it was saved under. */
TS_API int64_t ts_checkpoint_step(const ts_checkpoint *checkpoint);
/** Folder of the checkpoint. Borrowed, as all below. */
TS_API const char *ts_checkpoint_path(const ts_checkpoint *checkpoint);
/** The JSON object that the caller saved, as newly formatted text; "{}" if there was none. */
TS_API const char *ts_checkpoint_json(const ts_checkpoint *checkpoint);
/**
 * Reads a number of the JSON object by its path of keys, outermost first: the keys "loader",
 * "epoch" lead to 3 in {"loader": {"epoch": 3}}.
 * @param keys   nkeys names
 * @param value  receives an integer, or a float when the number is written
 *               with a point or an exponent
 * Errors: TS_ERR_INDEX (no such value; the message names the key), TS_ERR_FORMAT (of another kind).
 */
TS_API ts_status ts_checkpoint_number(const ts_checkpoint *checkpoint, const char *const *keys,
                                      int nkeys, ts_scalar *value);
/** Reads a string of the JSON object, as ts_checkpoint_number(). text receives at most `size`
 *  bytes, the final NUL included; TS_ERR_VALUE if `size` is too small. */
TS_API ts_status ts_checkpoint_text(const ts_checkpoint *checkpoint, const char *const *keys,
                                    int nkeys, char *text, size_t size);
/** The reasons why ts_checkpoint_find() skipped newer checkpoints, one line each, escaped as by
 *  ts_escape_text(); "" if it skipped none. */
TS_API const char *ts_checkpoint_report(const ts_checkpoint *checkpoint);
/** The tensors of a section; NULL with TS_ERR_INDEX if the name is unknown. */
TS_API const ts_safetensors *ts_checkpoint_section_of(const ts_checkpoint *checkpoint,
                                                      const char *name);

TS_END_DECLS
#endif
