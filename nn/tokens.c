/** @file tokens.c  Loaders of token files: each sample is a window of the file. */
// SPDX-License-Identifier: MIT
#include "nn/nn.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/** A range of an open file. */
typedef struct tokens {
    const char *path; /* borrowed from the loader */
    int fd;
    ts_dtype dtype;
    int64_t length;        /* T */
    int64_t first, tokens; /* start and length of the range */
} tokens;

static int64_t item_size(ts_dtype dtype) { return (int64_t)ts_dtype_size(dtype); }

/** First token of window w of an epoch, from the start of the range. */
static int64_t start_of(const tokens *t, const ts_nn_draw *d, int64_t w)
{
    int64_t length = t->length;
    if (d->in_order)
        return w * length;
    /* open_file() drops a window if it can, so that offsets up to T - 1 fit */
    int64_t spare = t->tokens - 1 - d->samples * length;
    return (int64_t)(ts_nn_mix(d->key) %
                     (uint64_t)((spare < length ? spare : length - 1) + 1)) +
           w * length;
}

/**
 * Reads `bytes` bytes of the file starting at position `at`. The file is not mapped, because
 * another process may truncate it, and an access to a mapping beyond the end of the file raises
 * SIGBUS.
 */
static ts_status read_bytes(const tokens *t, int64_t at, int64_t bytes, char *data)
{
    int64_t done = 0;
    while (done < bytes) {
        ssize_t n = pread(t->fd, data + done, (size_t)(bytes - done), (off_t)(at + done));
        if (n == 0)
            return ts_error_set(TS_ERR_IO, "loader: '%s' has become shorter since it was opened",
                                t->path);
        if (n < 0 && errno != EINTR)
            return ts_error_set(TS_ERR_IO, "loader: cannot read '%s': %s", t->path,
                                strerror(errno));
        done += n > 0 ? n : 0;
    }
    return TS_OK;
}

/** Hash of the first MiB of a file of `bytes` bytes. */
static ts_status hash_head(const tokens *t, int64_t bytes, uint64_t *hash)
{
    enum { HEAD = 1 << 20, WORDS = 1024 };
    uint64_t words[WORDS];
    int64_t end = bytes < HEAD ? bytes : HEAD, n;
    *hash = 0;
    for (int64_t at = 0; at < end; at += n) {
        n = end - at < (int64_t)sizeof words ? end - at : (int64_t)sizeof words;
        memset(words, 0, sizeof words);
        TS_TRY(read_bytes(t, at, n, (char *)words));
        for (int64_t i = 0; i < (n + 7) / 8; i++)
            *hash = ts_nn_mix(*hash ^ words[i]);
    }
    return TS_OK;
}

/** Token k of a window. */
static int64_t token(const tokens *t, const char *window, int64_t k)
{
    int32_t narrow;
    int64_t wide;
    switch (t->dtype) {
    case TS_U8: return (unsigned char)window[k];
    case TS_I32: memcpy(&narrow, window + 4 * k, 4); return narrow;
    default: memcpy(&wide, window + 8 * k, 8); return wide;
    }
}

static ts_status make_batch(const void *payload, const ts_nn_draw *d, ts_tensor **fields)
{
    const tokens *t = payload;
    int64_t length = t->length, sizes[] = {d->n, length}, item = item_size(t->dtype),
            window_bytes = (length + 1) * item;
    ts_tensor *window = ts_empty_on(TS_SIZES(window_bytes), TS_U8, TS_DEVICE_CPU);
    TS_TRY(window);
    for (int f = 0; f < 2; f++)
        TS_TRY(fields[f] = ts_nn_batch_memory(d, sizes, 2, TS_I64));
    int64_t *x = ts_data_mut(fields[0]), *y = ts_data_mut(fields[1]);
    char *bytes = ts_data_mut(window);
    for (int64_t i = 0; i < d->n; i++, x += length, y += length) {
        int64_t first = t->first + start_of(t, d, ts_nn_drawn(d, i));
        TS_TRY(read_bytes(t, first * item, window_bytes, bytes));
        for (int64_t k = 0; k < length; k++) {
            x[k] = token(t, bytes, k);
            y[k] = token(t, bytes, k + 1);
        }
    }
    return TS_OK;
}

/** Opens the file; sets its range in *t, and samples, bytes and hash of *source. */
static ts_status open_file(tokens *t, const ts_loader_opts *o, ts_nn_source *source)
{
    struct stat info;
    TS_TRY(ts_open_file("loader_open", t->path, O_RDONLY, &t->fd));
    if (fstat(t->fd, &info) != 0)
        return ts_error_set(TS_ERR_IO, "loader_open: cannot examine '%s': %s", t->path,
                            strerror(errno));
    int64_t all = info.st_size / item_size(t->dtype);
    t->first = ts_nn_part(all, o->from);
    t->tokens = ts_nn_part(all, o->to == 0 ? 1 : o->to) - t->first;
    int64_t windows = (t->tokens - 1) / t->length;
    if (!o->in_order && windows > o->batch)
        windows--;
    source->samples = t->tokens > 0 ? windows / o->batch * o->batch : 0;
    if (source->samples < 1)
        return ts_error_set_hint(
            TS_ERR_SHAPE, "use a larger file, a smaller batch or shorter sequences",
            "loader_open: '%s' has %lld tokens in the range; a batch of %lld x %lld needs %lld",
            t->path, (long long)t->tokens, (long long)o->batch, (long long)o->length,
            (long long)(o->batch * o->length + 1));
    source->bytes = info.st_size;
    return hash_head(t, info.st_size, &source->hash);
}

static void close_file(void *payload)
{
    tokens *t = payload;
    if (t->fd >= 0)
        close(t->fd);
    free(t);
}

static ts_status check_sizes(const ts_loader_opts *o)
{
    int64_t n, bytes;
    if (__builtin_mul_overflow(o->batch, o->length, &n) ||
        __builtin_mul_overflow(n, (int64_t)(2 * sizeof(int64_t)), &bytes))
        return ts_error_set(TS_ERR_VALUE,
                            "loader_open: a batch of %lld x %lld tokens does not fit 63 bits",
                            (long long)o->batch, (long long)o->length);
    if (o->dtype != TS_U8 && o->dtype != TS_I32 && o->dtype != TS_I64)
        return ts_error_set(TS_ERR_DTYPE,
                            "loader_open: argument 'dtype': expected u8, i32 or i64, got %s",
                            ts_dtype_name(o->dtype));
    return TS_OK;
}

ts_loader *ts_loader_open(const char *path, const ts_loader_opts *opts)
{
    ts_loader_opts o;
    TS_TRY_NULL(TS_CHECK_POINTERS(path, opts));
    TS_TRY_NULL(TS_CHECK_OPTS(&o, opts));
    TS_TRY_NULL(ts_nn_check_loader(TS_CHECK_HERE, &o));
    TS_TRY_NULL(TS_CHECK_VALUE(o.length, o.length >= 1, "at least 1"));
    TS_TRY_NULL(check_sizes(&o));
    tokens *t = ts_nn_alloc(1, sizeof *t, "a loader");
    if (!t)
        return NULL;
    *t = (tokens){.fd = -1, .dtype = o.dtype, .length = o.length};
    ts_nn_source source = {.payload = t, .nfields = 2, .make = make_batch, .close = close_file};
    t->path = source.path = ts_nn_copy_text(path, "the path of a loader");
    if (!t->path || open_file(t, &o, &source) != TS_OK) {
        close_file(t);
        free(source.path);
        return NULL;
    }
    source.tokens = t->tokens;
    return ts_nn_loader_new(&o, &source);
}
