/** @file files.c  Files and folders: exact reads, hashed writes. */
// SPDX-License-Identifier: MIT
#include "io/files.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "core/alloc.h"

/* Bytes per read or write; small enough that the hash finds the data in the cache. */
#define CHUNK ((int64_t)1 << 20)

const char *ts_quote(const char *text)
{
    static _Thread_local char ring[4][100]; /* 80 characters, and room for an escape or "..." */
    static _Thread_local unsigned next;
    char *out = ring[next++ & 3];
    ts_escape(out, sizeof ring[0], text, false);
    return strlen(out) <= 80 ? out : strcat((char *)ts_escape(out, 81, text, false), "...");
}

/* -------------------------------------------------------------------------- reading ---- */

ts_status ts_file_read(const char *op, const char *path, int fd, void *data, int64_t bytes,
                       int64_t at)
{
    for (int64_t done = 0; done < bytes;) {
        ssize_t n = ts_files.pread(fd, (char *)data + done, (size_t)ts_min64(bytes - done, 1 << 30),
                                   at + done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return ts_file_refused(op, "read", path);
        if (n == 0)
            return ts_fail_op(TS_ERR_FORMAT, op, NULL, NULL,
                              "'%s': expected %lld bytes from position %lld, got %lld", path,
                              (long long)bytes, (long long)at, (long long)done);
        done += n;
    }
    return TS_OK;
}

ts_status ts_span_read(const ts_span *span, void *data, int64_t bytes, int64_t at)
{
    if (at < 0 || bytes < 0 || bytes > span->bytes - at)
        return ts_fail_op(TS_ERR_FORMAT, span->op, NULL, NULL,
                          "'%s': expected %lld bytes from position %lld, got %lld", span->path,
                          (long long)bytes, (long long)at, (long long)(span->bytes - at));
    if (!span->memory)
        return ts_file_read(span->op, span->path, span->fd, data, bytes, span->at + at);
    if (bytes)
        memcpy(data, span->memory + at, (size_t)bytes);
    return TS_OK;
}

/* -------------------------------------------------------------------------- hashing ---- */

static void hash_text(XXH128_hash_t hash, char text[TS_HASH_TEXT])
{
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, hash);
    for (int i = 0; i < 16; i++)
        snprintf(text + 2 * i, 3, "%02x", canonical.digest[i]);
}

void ts_memory_hash(const void *data, size_t bytes, char text[TS_HASH_TEXT])
{
    hash_text(XXH3_128bits(data, bytes), text);
}

ts_status ts_file_hash(const char *op, const char *path, int fd, int64_t bytes,
                       char text[TS_HASH_TEXT])
{
    char *data = ts_sys_alloc(CHUNK);
    XXH3_state_t *state = data ? XXH3_createState() : NULL;
    ts_status status = state ? TS_OK : ts_error_memory("reading a file", CHUNK);
    if (status == TS_OK)
        XXH3_128bits_reset(state);
    for (int64_t at = 0; status == TS_OK && at < bytes; at += CHUNK) {
        int64_t n = ts_min64(CHUNK, bytes - at);
        status = ts_file_read(op, path, fd, data, n, at);
        if (status == TS_OK)
            XXH3_128bits_update(state, data, (size_t)n);
    }
    if (status == TS_OK)
        hash_text(XXH3_128bits_digest(state), text);
    if (state)
        XXH3_freeState(state);
    ts_sys_free(data);
    return status;
}

/* -------------------------------------------------------------------------- writing ---- */

ts_status ts_writer_open(ts_writer *w, const char *op, const char *path)
{
    *w = (ts_writer){.op = op, .path = path, .fd = -1};
    w->hash = XXH3_createState();
    if (!w->hash)
        return ts_error_memory("the hash of a file", 1);
    XXH3_128bits_reset(w->hash);
    ts_status status = ts_file_create(op, path, 0666, &w->fd);
    if (status != TS_OK)
        ts_writer_abandon(w);
    return status;
}

ts_status ts_writer_write(ts_writer *w, const void *data, int64_t bytes)
{
    for (int64_t done = 0; done < bytes; done += CHUNK) {
        const char *piece = (const char *)data + done;
        int64_t n = ts_min64(bytes - done, CHUNK);
        TS_TRY(ts_file_write(w->op, w->path, w->fd, piece, n));
        if (w->hash)
            XXH3_128bits_update(w->hash, piece, (size_t)n);
        w->bytes += n;
    }
    return TS_OK;
}

ts_status ts_writer_finish(ts_writer *w, char text[TS_HASH_TEXT])
{
    ts_status status = TS_OK;
    /* fsync() is not retried after a failure: the kernel may have dropped the dirty pages, and a
       second call would then succeed. */
    if (ts_files.fsync(w->fd) != 0)
        status = ts_file_refused(w->op, "flush", w->path);
    int closed = ts_files.close(w->fd);
    w->fd = -1;
    /* On Linux, close() frees the descriptor even with EINTR; the flush already wrote the data. */
    if (closed != 0 && errno != EINTR && status == TS_OK)
        status = ts_file_refused(w->op, "close", w->path);
    if (text && status == TS_OK)
        hash_text(XXH3_128bits_digest(w->hash), text);
    ts_writer_abandon(w);
    return status;
}

void ts_writer_abandon(ts_writer *w)
{
    ts_file_close(w->fd);
    w->fd = -1;
    if (w->hash)
        XXH3_freeState(w->hash);
    w->hash = NULL;
}

/** Arguments of ts_writer_replace(). */
typedef struct replacing {
    const char *op;
    ts_status (*write)(ts_writer *w, void *ctx);
    void *ctx;
} replacing;

static ts_status write_new(int fd, const char *temporary, void *ctx)
{
    const replacing *r = ctx;
    return r->write(&(ts_writer){.op = r->op, .path = temporary, .fd = fd}, r->ctx);
}

ts_status ts_writer_replace(const char *op, const char *path,
                            ts_status (*write)(ts_writer *w, void *ctx), void *ctx)
{
    return ts_file_replace(op, path, write_new, &(replacing){op, write, ctx});
}

/* -------------------------------------------------------------------------- folders ---- */

static ts_status sync_parent(const char *op, const char *path)
{
    int fd = -1;
    char *parent = ts_folder_of(path);
    ts_status status = parent ? ts_folder_open(op, parent, &fd) : ts_error_code();
    if (status == TS_OK)
        status = ts_folder_sync(op, parent, fd);
    ts_file_close(fd);
    ts_sys_free(parent);
    return status;
}

ts_status ts_folder_make(const char *op, const char *path)
{
    struct stat status;
    if (ts_files.mkdir(path, 0777) == 0)
        return sync_parent(op, path);
    if (errno == EEXIST && ts_files.stat(path, &status) == 0) {
        if (S_ISDIR(status.st_mode))
            return TS_OK;
        errno = ENOTDIR;
    }
    return ts_file_refused(op, "make the folder", path);
}

ts_status ts_folder_each(const char *op, const char *path,
                         ts_status (*visit)(const char *name, void *ctx), void *ctx)
{
    DIR *dir = ts_files.opendir(path);
    if (!dir)
        return errno == ENOENT ? TS_OK : ts_file_refused(op, "list the folder", path);
    ts_status status = TS_OK;
    while (status == TS_OK) {
        errno = 0;
        struct dirent *entry = ts_files.readdir(dir);
        if (!entry) {
            if (errno)
                status = ts_file_refused(op, "list the folder", path);
            break;
        }
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            status = visit(entry->d_name, ctx);
    }
    ts_files.closedir(dir);
    return status;
}

bool ts_folder_remove(const char *path)
{
    /* a link to a folder is removed as a file; its target is not emptied */
    if (ts_files.unlink(path) == 0)
        return true;
    DIR *dir = ts_files.opendir(path);
    struct dirent *entry;
    char file[4096];
    if (!dir)
        return errno == ENOENT;
    while ((entry = ts_files.readdir(dir))) {
        int length = snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
        if (length < (int)sizeof file && strcmp(entry->d_name, ".") != 0 &&
            strcmp(entry->d_name, "..") != 0)
            ts_files.unlink(file);
    }
    ts_files.closedir(dir);
    return ts_files.rmdir(path) == 0;
}
