/**
 * @file loader.h  Batches of samples: of a dataset (dataset.h), or of token windows in a file for
 * next-token training.
 *
 * Seed and epoch determine the order of the samples. Batch k of epoch e depends only on the seed, e
 * and k, so a resumed run needs only e and k. Background threads prepare batches; the number of
 * threads does not change the batches.
 *
 * In a file of tokens the samples are windows of T + 1 tokens; neighbouring windows share one
 * token. Seed and epoch also determine the offset of the first window.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_NN_LOADER_H
#define TESSERA_NN_LOADER_H

#include <signal.h>

#include "dataset.h"

TS_BEGIN_DECLS

/** Returns batches one after the other. Only one thread at a time may use a loader. After a fork,
 *  the child's copy prepares the same batches in the caller's thread. */
typedef struct ts_loader ts_loader;

/** Options of ts_loader_open() and ts_loader_new(). */
typedef struct ts_loader_opts {
    size_t size;       /**< sizeof(ts_loader_opts) */
    int64_t batch;     /**< B, samples per batch; >= 1 */
    int64_t length;    /**< T, tokens per window; >= 1. Files of tokens only */
    ts_dtype dtype;    /**< of the file's tokens: TS_U8, TS_I32 or TS_I64, little endian. Files of
                            tokens only */
    double from, to;   /**< the range of the file or dataset that the loader reads, as fractions of
                            its length, 0 <= from <= to <= 1; both 0: all of it */
    uint64_t seed;     /**< determines, with the epoch, the order of the samples */
    bool in_order;     /**< no shuffling and no offset, for validation */
    bool no_thread;    /**< prepare batches in the caller's thread */
    /** Flag that a signal handler sets, or NULL. While the flag is not 0, ts_loader_next() waits at
     *  most half a second for the background threads. */
    const volatile sig_atomic_t *stop;
    int workers;       /**< background threads, 1 to 256; 0: 1 */
    int ahead;         /**< batches that the threads prepare ahead, 1 to 1,024; 0: two per thread */
    bool drop_last;    /**< omit the last batch of an epoch if it has fewer than B samples; loaders
                            of token files always do */
    /** Device of the batches; zero is the CPU. For another device, the threads prepare batches in
     *  pinned memory (ts_empty_pinned()), and the loader copies the next batch on a stream of its
     *  own while the caller works on the current one. */
    ts_device device;
} ts_loader_opts;

/** One batch. The tensors belong to the caller's innermost scope. */
typedef struct ts_batch {
    ts_tensor *x;      /**< fields[0]. Tokens: (B, T) i64 */
    ts_tensor *y;      /**< fields[1]; TS_NONE if there is one field. Tokens: (B, T) i64, the next
                            token of each token in x */
    int64_t epoch;     /**< epoch of the batch */
    int64_t index;     /**< number of the batch in its epoch */
    /** (B, sizes of the field) each; unused ones are TS_NONE. The last batch of an epoch may have
     *  fewer than B samples. A batch has the memory layout of its first sample, such as
     *  channels-last. */
    ts_tensor *fields[TS_SAMPLE_FIELDS];
} ts_batch;

/** Position of a loader: the next batch to be returned. */
typedef struct ts_loader_state {
    int64_t epoch, index;
} ts_loader_state;

/**
 * Opens a file of tokens. The caller frees the loader with ts_loader_close(). NULL on failure:
 * TS_ERR_NULL, TS_ERR_IO (missing, unreadable; the message names the file), TS_ERR_VALUE (options),
 * TS_ERR_DTYPE (dtype), TS_ERR_SHAPE (the range is too small for one batch), TS_ERR_DEVICE,
 * TS_ERR_MEMORY.
 */
TS_API ts_loader *ts_loader_open(const char *path, const ts_loader_opts *opts);
/**
 * Makes a loader of a dataset, whose payload must outlive the loader. The caller frees the loader
 * with ts_loader_close(). NULL on failure: TS_ERR_NULL, TS_ERR_VALUE (dataset, options),
 * TS_ERR_SHAPE (the range has no batch), TS_ERR_DEVICE, TS_ERR_MEMORY, and the failure of
 * dataset->length.
 * @param dataset  copied
 */
TS_API ts_loader *ts_loader_new(const ts_dataset *dataset, const ts_loader_opts *opts);
/**
 * Writes the next batch to *batch. After an error the next call tries the same batch again.
 * Errors: TS_ERR_NULL; TS_ERR_MEMORY; TS_ERR_STATE if opts.stop ended the wait; those of copies to
 * opts.device. File of tokens: TS_ERR_IO if the file has become too short or cannot be read.
 * Dataset: those of dataset->get, whose message ends with the number of the sample; TS_ERR_NULL if
 * a field is NULL or TS_NONE; TS_ERR_DEVICE if a field is not on the CPU; TS_ERR_SHAPE if a field
 * has more than 7 dims; TS_ERR_SHAPE or TS_ERR_DTYPE if a field differs from that of the batch's
 * first sample.
 */
TS_API ts_status ts_loader_next(ts_loader *loader, ts_batch *batch);
/** Number of batches in an epoch; 0 for NULL. */
TS_API int64_t ts_loader_batches(const ts_loader *loader);
/** File of tokens: number of tokens in the range. Dataset: number of samples in the range. 0 for
 *  NULL. */
TS_API int64_t ts_loader_tokens(const ts_loader *loader);
/** Position of the next batch; epoch 0 and index 0 for NULL. */
TS_API ts_loader_state ts_loader_get_state(const ts_loader *loader);
/** Makes `state` the position of the next batch. Errors: TS_ERR_NULL, TS_ERR_VALUE if the epoch is
 *  not from 0 to 2^53 or has no batch of this index. */
TS_API ts_status ts_loader_set_state(ts_loader *loader, ts_loader_state state);
/** Stops the threads and closes the file. NULL-safe. */
TS_API void ts_loader_close(ts_loader *loader);

TS_END_DECLS
#endif
