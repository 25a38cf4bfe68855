/**
 * @file io.h
 * Tensors in files: safetensors, npy and npz, images (PNG), data sets (IDX, CIFAR, CSV),
 * checkpoints of a training run.
 *
 * Files are untrusted: the library checks sizes and types before it allocates a tensor. An invalid
 * file is TS_ERR_FORMAT; the message has the file's name and the expected and actual value. A save
 * replaces the file and never writes to the old one: a failed or killed save leaves the old file as
 * it was, and programs that have the old file open can still read it. docs/files.md describes the
 * formats.
 *
 * Several threads may read an opened file at once. Only one thread may close it, after the others
 * have finished, and only one may save to a path at a time.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_IO_H
#define TESSERA_IO_H

#include "core.h"

TS_BEGIN_DECLS

/* ------------------------------------------------------------------------ safetensors ---- */

/** A validated safetensors file: its index in memory, its data in the file. */
typedef struct ts_safetensors ts_safetensors;

/** Limits of ts_safetensors_open(); zero is default. A file beyond a limit is TS_ERR_FORMAT. */
typedef struct ts_safetensors_opts {
    size_t size;              /**< sizeof(ts_safetensors_opts) */
    int64_t max_header_bytes; /**< 2 to 100,000,000; 0: 16 MiB */
    int64_t max_tensors;      /**< 1 to 1,000,000; 0: 1,000,000 */
} ts_safetensors_opts;

/**
 * Opens a file and checks its whole index; reads no tensor.
 * @param opts  NULL for the defaults
 * @return owned by the caller; NULL with TS_ERR_NULL, TS_ERR_IO, TS_ERR_FORMAT, TS_ERR_DTYPE (an
 *         element type that Tessera does not have), TS_ERR_VALUE (limits) or TS_ERR_MEMORY
 */
TS_API ts_safetensors *ts_safetensors_open(const char *path, const ts_safetensors_opts *opts);
/** Closes the file; tensors that were loaded stay. NULL-safe. */
TS_API void ts_safetensors_close(ts_safetensors *st);

/* If st is NULL, these functions return the same as for an empty file, without an error. */
/** Number of tensors. Their indices follow the order of their data in the file. */
TS_API int64_t ts_safetensors_count(const ts_safetensors *st);
/** Index of the tensor of that name; -1, without an error, if there is none. */
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
/** Key and value of metadata entry `index`, borrowed from st; NULL when out of range. Entries are
 *  in the order of the keys' bytes. */
TS_API const char *ts_safetensors_metadata_key(const ts_safetensors *st, int64_t index);
TS_API const char *ts_safetensors_metadata_value(const ts_safetensors *st, int64_t index);
/** Metadata by key; NULL (and no error) if absent. Borrowed. */
TS_API const char *ts_safetensors_metadata(const ts_safetensors *st, const char *key);

/* Errors of the functions that read tensors: TS_ERR_INDEX (unknown name, index out of range),
 * TS_ERR_FORMAT (a bool that is neither 0 nor 1), TS_ERR_IO, TS_ERR_NULL, TS_ERR_MEMORY. */
/** Reads the tensor of that name into a new CPU tensor. */
TS_API ts_tensor *ts_safetensors_load(const ts_safetensors *st, const char *name);
/** Reads tensor `index` into a new CPU tensor. */
TS_API ts_tensor *ts_safetensors_load_at(const ts_safetensors *st, int64_t index);
/**
 * Reads all tensors into new CPU tensors; after an error it returns none.
 * @param tensors  receives ts_safetensors_count() tensors, by index
 */
TS_API ts_status ts_safetensors_load_all(const ts_safetensors *st, ts_tensor **tensors);
/**
 * Reads a tensor into dst, a CPU tensor of the same sizes and dtype with any strides. Autograd does
 * not record the write, even if dst requires grad. After TS_ERR_IO and TS_ERR_FORMAT, dst's
 * elements are unspecified.
 * Further errors: TS_ERR_SHAPE, TS_ERR_DTYPE, TS_ERR_DEVICE.
 */
TS_API ts_status ts_safetensors_read_into(const ts_safetensors *st, const char *name,
                                          ts_tensor *dst);

/**
 * Writes tensors of any dtype, strides and device except META; tensors of other devices are copied
 * to the CPU one at a time. The file depends on names, values and metadata only, not on the order
 * of the arguments: data is sorted by dtype (i64, f64, f32, i32, bf16, f16, u8, bool), then by
 * name; metadata is sorted by key.
 * @param names    n <= 1,000,000 distinct names in UTF-8 of at most 1,024 bytes, none
 *                 "__metadata__"
 * @param tensors  n tensors, borrowed
 * @param keys, values  nmetadata <= 1,000,000 texts in UTF-8, keys distinct; may be NULL if
 *                      nmetadata is 0
 * @return TS_OK once the new file is in place and on disk. After an error the old file is
 *         unchanged, except if the flush of the folder fails, which comes after the rename.
 *         Errors: TS_ERR_VALUE (n, nmetadata, a name or text, a header of more than 100,000,000
 *         bytes), TS_ERR_DEVICE, TS_ERR_NULL, TS_ERR_IO, TS_ERR_MEMORY, and those of the copies
 */
TS_API ts_status ts_safetensors_save(const char *path, const char *const *names,
                                     ts_tensor *const *tensors, int64_t n, const char *const *keys,
                                     const char *const *values, int64_t nmetadata);

/* -------------------------------------------------------------------------------- npy ---- */

/**
 * Reads a NumPy file of version 1.0, 2.0 or 3.0, in C or Fortran order, into a contiguous CPU
 * tensor. Accepts the NumPy types (a letter and the number of bytes) f8, f4, f2, i8, i4, i2, u4 and
 * u2 in both byte orders, and i1, u1 and b1. i1, i2 and u2 become i32, u4 becomes i64. Other types,
 * and objects (pickles), are TS_ERR_DTYPE. Further errors: TS_ERR_IO, TS_ERR_FORMAT, TS_ERR_NULL,
 * TS_ERR_MEMORY.
 */
TS_API ts_tensor *ts_npy_load(const char *path);
/** Writes a CPU tensor as version 1.0 in C order. Errors: TS_ERR_DEVICE (not on the CPU),
 *  TS_ERR_DTYPE (bf16, which NumPy does not have), TS_ERR_NULL, TS_ERR_IO, TS_ERR_MEMORY. */
TS_API ts_status ts_npy_save(const char *path, ts_tensor *t);

/** An npz file, a zip archive of npy files: its directory in memory, its data in the file. */
typedef struct ts_npz ts_npz;

/** Opens an archive and checks its directory; reads no tensor. Members are stored
 *  (numpy.savez) or deflated (numpy.savez_compressed), and their names end with ".npy". Owned by
 *  the caller; NULL with TS_ERR_NULL, TS_ERR_IO, TS_ERR_FORMAT or TS_ERR_MEMORY. */
TS_API ts_npz *ts_npz_open(const char *path);
/** Closes the file; tensors that were loaded stay. NULL-safe. */
TS_API void ts_npz_close(ts_npz *npz);
/** Number of tensors. */
TS_API int64_t ts_npz_count(const ts_npz *npz);
/** Index of the tensor of that name; -1, without an error, if there is none. */
TS_API int64_t ts_npz_find(const ts_npz *npz, const char *name);
/** Name of tensor `index`, without ".npy", borrowed from npz; NULL when out of range. */
TS_API const char *ts_npz_name(const ts_npz *npz, int64_t index);
/** Reads the tensor of that name into a new CPU tensor and checks its CRC. Errors: TS_ERR_INDEX
 *  (unknown name), those of ts_npy_load(), and TS_ERR_UNSUPPORTED if the member is deflated and the
 *  library cannot open zlib, which it does at first use. */
TS_API ts_tensor *ts_npz_load(const ts_npz *npz, const char *name);
/** Writes CPU tensors to an uncompressed npz file for numpy.load(). The bytes of the file depend
 *  only on the names, their order, and the tensors' dtypes, sizes and values.
 *  @param names    n distinct names of 1 to 1,020 printable ASCII characters without blanks, '/'
 *                  and '\\', none "__metadata__"
 *  @param tensors  n tensors, borrowed
 *  @param n        at most 65,534; the file must stay below 4 GB
 *  Errors: those of ts_npy_save() and TS_ERR_VALUE (names, n, size of the file). */
TS_API ts_status ts_npz_save(const char *path, const char *const *names, ts_tensor *const *tensors,
                             int64_t n);

/* ----------------------------------------------------------------------------- images ---- */

/** Options of ts_png_load(); zero is default. */
typedef struct ts_png_opts {
    size_t size;        /**< sizeof(ts_png_opts) */
    int channels;       /**< C: 1 grey, 2 grey and alpha, 3 RGB, 4 RGB and alpha; 0: as in the file,
                             where a palette is RGB and transparent colours (tRNS) add alpha */
    bool indices;       /**< for a palette or grey image, return the integers that the file stores,
                             such as the classes of a mask: palette indices, or grey values without
                             alpha and without scaling. The result is (1, H, W), i32 if the values
                             have 16 bits, else u8; `channels` is ignored. No effect on RGB
                             images */
    int64_t max_pixels; /**< limit of H * W, up to 2^40; larger images are TS_ERR_FORMAT; 0: 2^26 */
} ts_png_opts;
/**
 * Reads a PNG image into a new CPU tensor (C, H, W), u8, whose channels are adjacent in memory
 * (channels-last). A value v of b bits becomes v * 255 / (2^b - 1), rounded; gamma and colour
 * profiles of the file are ignored. Conversion to grey is 0.299 R + 0.587 G + 0.114 B; added alpha
 * is 255; removed alpha does not change the colours. Opens libpng at first use.
 * @param opts  NULL: defaults
 * Errors: TS_ERR_NULL, TS_ERR_VALUE, TS_ERR_IO, TS_ERR_FORMAT, TS_ERR_UNSUPPORTED (no libpng),
 * TS_ERR_MEMORY.
 */
TS_API ts_tensor *ts_png_load(const char *path, const ts_png_opts *opts);
/** Writes a u8 CPU tensor as a PNG image: (H, W), grey, or (C, H, W) with C as in ts_png_opts.
 *  Errors: TS_ERR_NULL, TS_ERR_SHAPE, TS_ERR_DTYPE, TS_ERR_DEVICE, TS_ERR_IO, TS_ERR_UNSUPPORTED
 *  (no libpng), TS_ERR_FORMAT (libpng refuses the image), TS_ERR_MEMORY. */
TS_API ts_status ts_png_save(const char *path, ts_tensor *t);

/* -------------------------------------------------------------------------- data sets ---- */

/**
 * Reads an IDX file, the format of MNIST, into a new CPU tensor of the file's sizes (at most 8
 * dims). u8, f32 and f64 keep their dtype; signed integers of 8, 16 and 32 bits become i32. A file
 * that is still compressed with gzip is TS_ERR_FORMAT. Errors: TS_ERR_NULL, TS_ERR_IO,
 * TS_ERR_FORMAT, TS_ERR_MEMORY.
 */
TS_API ts_tensor *ts_idx_load(const char *path);
/**
 * Reads the four files of MNIST, or of a data set with the same names such as Fashion-MNIST, into
 * new CPU tensors: train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and
 * t10k-labels-idx1-ubyte, decompressed. The names may have a '.' before "idx" instead of the '-'.
 * @param dir      folder of the files
 * @param classes  1 to 256; each label must be below it (TS_ERR_FORMAT)
 * @param images, labels  receive the training set, (N, H, W) u8 and (N) i64, N >= 1
 * @param test_images, test_labels  receive the test set, (M, H, W) u8 and (M) i64, M >= 1
 * Errors as ts_idx_load(), and TS_ERR_VALUE (classes); TS_ERR_FORMAT if a set is empty or has not
 * one label per image, or if the images of the two sets have different sizes.
 */
TS_API ts_status ts_mnist_load(const char *dir, int classes, ts_tensor **images, ts_tensor **labels,
                               ts_tensor **test_images, ts_tensor **test_labels);
/**
 * Reads one file of the binary version of CIFAR-10 or CIFAR-100 into new CPU tensors.
 * @param classes  10, or 100, for which the fine labels are read
 * @param images   receives (N, 3, 32, 32) u8
 * @param labels   receives (N) i64
 * Errors as ts_idx_load(), and TS_ERR_VALUE (classes).
 */
TS_API ts_status ts_cifar_load(const char *path, int classes, ts_tensor **images,
                               ts_tensor **labels);

/** Options of ts_csv_load(); zero is default. */
typedef struct ts_csv_load_opts {
    size_t size;        /**< sizeof(ts_csv_load_opts) */
    char separator;     /**< ',', ';', '|' or a tab; 0: ',' */
    int64_t skip_lines; /**< lines to skip at the start, such as column names; lines of blanks do
                             not count; a quoted cell may contain line ends */
} ts_csv_load_opts;
/**
 * Reads a table of numbers into a new CPU tensor, (rows, columns) f64. All rows have the same
 * number of cells. Lines end with LF, CR LF or CR. Cells may be quoted (RFC 4180) and have spaces
 * and tabs around them. Numbers have a decimal point in every locale. An empty cell is NaN; lines
 * of blanks, and a UTF-8 byte order mark at the start, are skipped.
 * @param opts  NULL: defaults
 * Errors as ts_idx_load(), and TS_ERR_VALUE (options); a message names line and column.
 */
TS_API ts_tensor *ts_csv_load(const char *path, const ts_csv_load_opts *opts);

/* ------------------------------------------------------------------------ checkpoints ---- */

/** A group of named tensors, written as one file NAME.safetensors. */
typedef struct ts_checkpoint_section {
    const char *name;          /**< 1 to 64 of a-z A-Z 0-9 _ -, beginning with a letter */
    const char *const *names;  /**< `count` names, as for ts_safetensors_save() */
    ts_tensor *const *tensors; /**< `count` tensors on any device except META */
    int64_t count;             /**< 0 to 1,000,000 */
} ts_checkpoint_section;

/** Options of ts_checkpoint_save(); zero is default. */
typedef struct ts_checkpoint_opts {
    size_t size; /**< sizeof(ts_checkpoint_opts) */
    int keep;    /**< number of checkpoints to keep, the new one included, >= 1; 0: 2 */
} ts_checkpoint_opts;

/** An open checkpoint, verified: its files have the sizes and hashes of its manifest. */
typedef struct ts_checkpoint ts_checkpoint;

/**
 * Writes the folder dir/checkpoints/STEP/ with manifest.json and one safetensors file per section.
 * The write is atomic even if the process is killed or the machine loses power. Creates dir if its
 * parent exists. Reads the new checkpoint back and compares its hashes, then removes older
 * checkpoints beyond `keep`. Replaces a checkpoint of the same step and keeps those of later steps.
 * @param step       >= 0
 * @param sections   nsections sections with distinct names; nsections <= 64
 * @param json_text  a JSON object with data of the caller, or NULL; integers must fit int64_t
 * Errors: TS_ERR_STATE while another thread or process saves or removes checkpoints under dir;
 * TS_ERR_VALUE (dir, step, opts, a section, a name), TS_ERR_DEVICE, TS_ERR_NULL, TS_ERR_IO,
 * TS_ERR_FORMAT (json_text is not a JSON object, or the files read back differ), TS_ERR_MEMORY.
 */
TS_API ts_status ts_checkpoint_save(const char *dir, int64_t step,
                                    const ts_checkpoint_section *sections, int nsections,
                                    const char *json_text, const ts_checkpoint_opts *opts);
/** Removes all checkpoints under dir and leftovers of killed saves. It is not an error if there are
 *  none. Errors: TS_ERR_STATE while a save is running; TS_ERR_NULL, TS_ERR_IO, TS_ERR_MEMORY. */
TS_API ts_status ts_checkpoint_remove_all(const char *dir);
/**
 * Opens the valid checkpoint with the highest step under dir, whenever it was saved. A checkpoint
 * is valid if sizes and hashes of all its files, which the function reads, match the manifest.
 * @param checkpoint  receives the checkpoint, owned by the caller (ts_checkpoint_close()); NULL,
 *                    with TS_OK, if there is none
 * Errors: TS_ERR_FORMAT if checkpoints exist but none is valid; TS_ERR_NULL, TS_ERR_IO,
 * TS_ERR_MEMORY.
 */
TS_API ts_status ts_checkpoint_find(const char *dir, ts_checkpoint **checkpoint);
/** Opens the checkpoint in the folder `path` (…/STEP) after verifying it. Owned by the caller; NULL
 *  with TS_ERR_FORMAT, TS_ERR_IO, TS_ERR_NULL or TS_ERR_MEMORY. */
TS_API ts_checkpoint *ts_checkpoint_open(const char *path);
/** Frees a checkpoint, with its sections; loaded tensors stay. NULL-safe. */
TS_API void ts_checkpoint_close(ts_checkpoint *checkpoint);

/* Results of the functions below are borrowed from the checkpoint. */
/** The `step` of ts_checkpoint_save(); -1 for NULL. */
TS_API int64_t ts_checkpoint_step(const ts_checkpoint *checkpoint);
/** Folder of the checkpoint; NULL for NULL. */
TS_API const char *ts_checkpoint_path(const ts_checkpoint *checkpoint);
/** The JSON object that the caller saved, as newly formatted text; "{}" if there was none. NULL for
 *  NULL. */
TS_API const char *ts_checkpoint_json(const ts_checkpoint *checkpoint);
/**
 * Reads a number of the JSON object by its path of keys, outermost first: with the keys "loader"
 * and "epoch", *value is 3 for {"loader": {"epoch": 3}}.
 * @param keys   nkeys names
 * @param value  receives an integer, or a float if the number is written with a point or an
 *               exponent
 * Errors: TS_ERR_INDEX (no such value; the message names the key), TS_ERR_FORMAT (the value is not
 * a number), TS_ERR_NULL, TS_ERR_VALUE (nkeys), TS_ERR_MEMORY.
 */
TS_API ts_status ts_checkpoint_number(const ts_checkpoint *checkpoint, const char *const *keys,
                                      int nkeys, ts_scalar *value);
/** Reads a string of the JSON object, as ts_checkpoint_number(). text receives at most `size`
 *  bytes, the final NUL included; TS_ERR_VALUE, and text is unchanged, if `size` is too small. */
TS_API ts_status ts_checkpoint_text(const ts_checkpoint *checkpoint, const char *const *keys,
                                    int nkeys, char *text, size_t size);
/** Text with the reasons why ts_checkpoint_find() skipped checkpoints of higher steps, one line
 *  each, escaped as by ts_escape_text(); "" if it skipped none. */
TS_API const char *ts_checkpoint_report(const ts_checkpoint *checkpoint);
/** The tensors of a section; NULL with TS_ERR_INDEX if the name is unknown, or TS_ERR_NULL. */
TS_API const ts_safetensors *ts_checkpoint_section_of(const ts_checkpoint *checkpoint,
                                                      const char *name);

TS_END_DECLS
#endif
