/** @file files.c  Files and folders: whole reads, hashed writes, replacement by rename. */
// SPDX-License-Identifier: MIT
#include "io/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>
#include <xxhash.h>

#include "core/alloc.h"

/* The kernel moves at most 2 GiB - 4 KiB a call; smaller pieces keep the hash near the data. */
#define CHUNK ((int64_t)1 << 20)

static int system_open(const char *path, int flags, mode_t mode) { return open(path, flags, mode); }

ts_file_table ts_files = {
    .open = system_open,
    .close = close,
    .stat = stat,
    .fstat = fstat,
    .pread = pread,
    .write = write,
    .fsync = fsync,
    .flock = flock,
    .rename = rename,
    .unlink = unlink,
    .mkdir = mkdir,
    .rmdir = rmdir,
    .opendir = opendir,
    .readdir = readdir,
    .closedir = closedir,
};

static ts_status refused(const char *op, const char *what, const char *path)
{
    const char *hint = errno == ENOSPC || errno == EDQUOT ? "free some space on this disk" : NULL;
    return ts_fail_op(errno == ENOMEM ? TS_ERR_MEMORY : TS_ERR_IO, op, NULL, hint,
                      "cannot %s '%s': %s", what, path, strerror(errno));
}

/* --------------------------------------------------------------------------- texts ---- */

char *ts_path(const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, args);
    char *path = length < 0 ? NULL : ts_sys_alloc((size_t)length + 1);
    if (path)
        vsnprintf(path, (size_t)length + 1, format, again);
    else
        ts_fail_memory("a path", length);
    va_end(again);
    va_end(args);
    return path;
}

const char *ts_quote(const char *text)
{
    static _Thread_local char ring[4][84];
    static _Thread_local unsigned next;
    char *out = ring[next++ & 3];
    int n = 0;
    for (; text[n] && n < 80; n++)
        out[n] = (unsigned char)text[n] < 0x20 || text[n] == 0x7f ? '?' : text[n];
    if (text[n]) {
        /* not in the middle of a character */
        while (n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80)
            n--;
        memcpy(out + n, "...", 3);
        n += 3;
    }
    out[n] = 0;
    return out;
}

/* -------------------------------------------------------------------------- reading ---- */

static int open_retrying(const char *path, int flags)
{
    int fd;
    do
        fd = ts_files.open(path, flags | O_CLOEXEC, 0666);
    while (fd < 0 && errno == EINTR);
    return fd;
}

void ts_file_close(int fd)
{
    int keep = errno;
    if (fd >= 0)
        ts_files.close(fd);
    errno = keep;
}

ts_status ts_file_open(const char *op, const char *path, int *fd, int64_t *bytes)
{
    struct stat status;
    *fd = open_retrying(path, O_RDONLY | O_NONBLOCK);
    if (*fd < 0)
        return refused(op, "open", path);
    ts_status result = TS_OK;
    if (ts_files.fstat(*fd, &status) != 0)
        result = refused(op, "examine", path);
    else if (!S_ISREG(status.st_mode))
        result = ts_fail_op(TS_ERR_IO, op, NULL, NULL, "'%s': expected a regular file", path);
    if (result != TS_OK) {
        ts_file_close(*fd);
        *fd = -1;
        return result;
    }
    *bytes = status.st_size;
    return TS_OK;
}

ts_status ts_file_read(const char *op, const char *path, int fd, void *data, int64_t bytes,
                       int64_t at)
{
    for (int64_t done = 0; done < bytes;) {
        ssize_t n = ts_files.pread(fd, (char *)data + done, (size_t)ts_min64(bytes - done, 1 << 30),
                                   at + done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return refused(op, "read", path);
        if (n == 0)
            return ts_fail_op(TS_ERR_FORMAT, op, NULL, NULL,
                              "'%s': expected %lld bytes from position %lld, got %lld", path,
                              (long long)bytes, (long long)at, (long long)done);
        done += n;
    }
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
    ts_status status = state ? TS_OK : ts_fail_memory("reading a file", CHUNK);
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
        return ts_fail_memory("the hash of a file", 1);
    XXH3_128bits_reset(w->hash);
    w->fd = open_retrying(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW);
    if (w->fd < 0) {
        ts_status status = refused(op, "create", path);
        ts_writer_abandon(w);
        return status;
    }
    return TS_OK;
}

ts_status ts_writer_write(ts_writer *w, const void *data, int64_t bytes)
{
    for (int64_t done = 0; done < bytes;) {
        const char *piece = (const char *)data + done;
        ssize_t n = ts_files.write(w->fd, piece, (size_t)ts_min64(bytes - done, CHUNK));
        if (n < 0 && errno == EINTR)
            continue;
        if (n == 0)
            errno = ENOSPC; /* no progress and no reason given: there is no more room */
        if (n <= 0)
            return refused(w->op, "write", w->path);
        XXH3_128bits_update(w->hash, piece, (size_t)n);
        done += n;
        w->bytes += n;
    }
    return TS_OK;
}

ts_status ts_writer_finish(ts_writer *w, char text[TS_HASH_TEXT])
{
    ts_status status = TS_OK;
    /* A failed flush is never repeated: the system may have dropped the pages and forgotten it. */
    if (ts_files.fsync(w->fd) != 0)
        status = refused(w->op, "flush", w->path);
    int closed = ts_files.close(w->fd);
    w->fd = -1;
    /* After EINTR the descriptor is gone on Linux, and the data is on disk by the flush. */
    if (closed != 0 && errno != EINTR && status == TS_OK)
        status = refused(w->op, "close", w->path);
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

/* The folder of a path, for ts_sys_free(). */
static char *parent_of(const char *path)
{
    int length = (int)strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    while (length > 0 && path[length - 1] != '/')
        length--;
    return length ? ts_path("%.*s", length, path) : ts_path(".");
}

static ts_status write_beside(const char *op, const char *temporary, ts_write_fn write, void *ctx)
{
    ts_writer w;
    TS_TRY(ts_writer_open(&w, op, temporary));
    ts_status status = write(&w, ctx);
    if (status == TS_OK)
        return ts_writer_finish(&w, NULL);
    ts_writer_abandon(&w);
    return status;
}

ts_status ts_file_replace(const char *op, const char *path, ts_write_fn write, void *ctx)
{
    static atomic_uint counter; /* threads that write to one folder need names of their own */
    struct stat old;
    /* Renaming over a device or a folder would lose it. */
    if (ts_files.stat(path, &old) == 0) {
        if (!S_ISREG(old.st_mode))
            return ts_fail_op(TS_ERR_IO, op, NULL, NULL,
                              "'%s': expected a regular file or nothing in its place", path);
    } else if (errno != ENOENT) {
        return refused(op, "examine", path);
    }
    char *folder = parent_of(path);
    char *temporary =
        folder ? ts_path("%s.tmp-%ld-%u", path, (long)getpid(), atomic_fetch_add(&counter, 1))
               : NULL;
    int fd = -1;
    ts_status status = temporary ? ts_folder_open(op, folder, &fd) : TS_ERR_MEMORY;
    if (status == TS_OK) {
        status = write_beside(op, temporary, write, ctx);
        if (status == TS_OK && ts_files.rename(temporary, path) != 0)
            status = refused(op, "put the new file in the place of", path);
        if (status == TS_OK)
            status = ts_folder_sync(op, folder, fd);
        else
            ts_files.unlink(temporary);
    }
    ts_file_close(fd);
    ts_sys_free(temporary);
    ts_sys_free(folder);
    return status;
}

/* -------------------------------------------------------------------------- folders ---- */

static ts_status sync_parent(const char *op, const char *path)
{
    int fd = -1;
    char *parent = parent_of(path);
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
    return refused(op, "make the folder", path);
}

ts_status ts_folder_open(const char *op, const char *path, int *fd)
{
    *fd = open_retrying(path, O_RDONLY | O_DIRECTORY);
    return *fd < 0 ? refused(op, "open the folder", path) : TS_OK;
}

ts_status ts_folder_sync(const char *op, const char *path, int fd)
{
    if (ts_files.fsync(fd) == 0 || errno == EINVAL || errno == ENOTSUP)
        return TS_OK;
    return refused(op, "flush the folder", path);
}

ts_status ts_folder_each(const char *op, const char *path,
                         ts_status (*visit)(const char *name, void *ctx), void *ctx)
{
    DIR *dir = ts_files.opendir(path);
    if (!dir)
        return errno == ENOENT ? TS_OK : refused(op, "list the folder", path);
    ts_status status = TS_OK;
    while (status == TS_OK) {
        errno = 0;
        struct dirent *entry = ts_files.readdir(dir);
        if (!entry) {
            if (errno)
                status = refused(op, "list the folder", path);
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
    /* a link to a folder is a file of its own here: what it leads to is not ours to empty */
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
