/**
 * @file loader.h
 * Batches of token windows from a file, for next-token training.
 *
 * An epoch cuts the file's range into windows of T + 1 tokens that overlap by one, starting at an
 * offset of the epoch's own, and visits them in an order that is a function of (seed, epoch). Batch
 * k of epoch e is therefore a function of (seed, e, k) alone. Resuming sets two numbers, and
 * preparing batches in a thread does not change them.
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
    int64_t batch;     /**< B, sequences a batch; >= 1 */
    int64_t length;    /**< T, tokens a sequence; >= 1 */
    ts_dtype dtype;    /**< of the file's tokens, little endian: TS_U8 (bytes), TS_I32 or TS_I64 */
    double from, to;   /**< range of the file as fractions; both 0: all of it */
    uint64_t seed;
    bool in_order;     /**< windows in the file's order without an offset, for validation */
    bool no_thread;    /**< prepare batches in the caller's thread */
    /** A flag that a signal handler sets, or NULL: while it is not 0, ts_loader_next() waits at
     *  most half a second for the thread. */
    const volatile sig_atomic_t *stop;
} ts_loader_opts;

/** One batch. The tensors belong to the caller's innermost scope. */
typedef struct ts_batch {
    ts_tensor *x;      /**< (B, T) i64, tokens */
    ts_tensor *y;      /**< (B, T) i64, the token after each */
    int64_t epoch;     /**< the batch's place: epoch and */
    int64_t index;     /**< number within it */
} ts_batch;

/** Position of a loader: the next batch to be returned. */
typedef struct ts_loader_state {
    int64_t epoch, index;
} ts_loader_state;

/**
 * Opens a file. NULL on failure: TS_ERR_IO (missing, unreadable; the message names the file),
 * TS_ERR_VALUE (options), TS_ERR_SHAPE (the range is too small for one batch), TS_ERR_MEMORY.
 */
TS_API ts_loader *ts_loader_open(const char *path, const ts_loader_opts *opts);
/** The next batch. TS_ERR_IO when the file has become too short for it or cannot be read,
 * TS_ERR_STATE when opts.stop ended the wait for it; call again. */
TS_API ts_status ts_loader_next(ts_loader *loader, ts_batch *batch);
/** Batches an epoch has. */
TS_API int64_t ts_loader_batches(const ts_loader *loader);
/** Tokens in the range. */
TS_API int64_t ts_loader_tokens(const ts_loader *loader);
TS_API ts_loader_state ts_loader_get_state(const ts_loader *loader);
/** Goes on from `state`. TS_ERR_VALUE when it does not lie in an epoch. */
TS_API ts_status ts_loader_set_state(ts_loader *loader, ts_loader_state state);
/** Stops the thread and closes the file. NULL-safe. */
TS_API void ts_loader_close(ts_loader *loader);

TS_END_DECLS
#endif
