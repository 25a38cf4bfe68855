/**
 * @file loader.h  Batches of token windows from a file, for next-token training.
 *
 * An epoch divides a range of the file into windows of T + 1 tokens; neighbouring windows share one
 * token. Seed and epoch determine the offset of the first window and the order of the windows.
 * Batch k of epoch e depends only on the seed, e and k, so a resumed run needs only e and k. A
 * background thread prepares batches; it does not change their content.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_NN_LOADER_H
#define TESSERA_NN_LOADER_H

#include <signal.h>

#include "../core.h"

TS_BEGIN_DECLS

typedef struct ts_loader ts_loader;

/** Options of ts_loader_open(). */
typedef struct ts_loader_opts {
    size_t size;       /**< sizeof(ts_loader_opts) */
    int64_t batch;     /**< B, sequences per batch; >= 1 */
    int64_t length;    /**< T, tokens per sequence; >= 1 */
    ts_dtype dtype;    /**< dtype of the file's tokens: TS_U8, TS_I32 or TS_I64, little endian */
    double from, to;   /**< range as fractions of the file, 0 <= from <= to <= 1; both 0: the
                            whole file */
    uint64_t seed;
    bool in_order;     /**< windows in the file's order without an offset, for validation */
    bool no_thread;    /**< prepare batches in the caller's thread */
    /** Flag that a signal handler sets, or NULL. While the flag is not 0, ts_loader_next() waits at
     *  most half a second for the background thread. */
    const volatile sig_atomic_t *stop;
} ts_loader_opts;

/** One batch. The tensors belong to the caller's innermost scope. */
typedef struct ts_batch {
    ts_tensor *x;      /**< (B, T) i64, tokens */
    ts_tensor *y;      /**< (B, T) i64, the next token of each token in x */
    int64_t epoch;     /**< epoch of the batch */
    int64_t index;     /**< number of the batch in its epoch */
} ts_batch;

/** Position of a loader: the next batch to be returned. */
typedef struct ts_loader_state {
    int64_t epoch, index;
} ts_loader_state;

/**
 * Opens a file. The caller frees the loader with ts_loader_close(). NULL on failure: TS_ERR_NULL,
 * TS_ERR_IO (missing, unreadable; the message names the file), TS_ERR_VALUE (options), TS_ERR_DTYPE
 * (dtype), TS_ERR_SHAPE (the range is too small for one batch), TS_ERR_MEMORY.
 */
TS_API ts_loader *ts_loader_open(const char *path, const ts_loader_opts *opts);
/** Returns the next batch in *batch. Errors: TS_ERR_NULL, TS_ERR_MEMORY, TS_ERR_IO if the file has
 * become too short or cannot be read, TS_ERR_STATE if opts.stop ended the wait (the caller may call
 * again). */
TS_API ts_status ts_loader_next(ts_loader *loader, ts_batch *batch);
/** Number of batches in an epoch. */
TS_API int64_t ts_loader_batches(const ts_loader *loader);
/** Number of tokens in the range. */
TS_API int64_t ts_loader_tokens(const ts_loader *loader);
/** Position of the next batch. */
TS_API ts_loader_state ts_loader_get_state(const ts_loader *loader);
/** Continues at batch `state`. Errors: TS_ERR_NULL, TS_ERR_VALUE if the epoch is negative or has no
 * batch of this index. */
TS_API ts_status ts_loader_set_state(ts_loader *loader, ts_loader_state state);
/** Stops the thread and closes the file. NULL-safe. */
TS_API void ts_loader_close(ts_loader *loader);

TS_END_DECLS
#endif
