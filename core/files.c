/** @file files.c  Opening files and replacing them by rename. */
// SPDX-License-Identifier: MIT
#include "core/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "core/alloc.h"
#include "include/tessera/check.h"
#include "include/tessera/program.h"

/** open() with a descriptor above 2 as the result; -1 and errno on failure. */
static int system_open(const char *path, int flags, mode_t mode)
{
    /* without O_NONBLOCK a FIFO would wait for its writer */
    int fd = open(path, flags | O_CLOEXEC | O_NONBLOCK, mode);
    if (fd < 0 || fd > STDERR_FILENO)
        return fd;
    int high = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1), error = errno;
    close(fd);
    errno = error;
    return high;
}

static DIR *system_opendir(const char *path)
{
    int fd = system_open(path, O_RDONLY | O_DIRECTORY, 0);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (fd >= 0 && !dir)
        ts_file_close(fd);
    return dir;
}

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
    .opendir = system_opendir,
    .readdir = readdir,
    .closedir = closedir,
    .fchmod = fchmod,
};

ts_status ts_file_refused(const char *op, const char *what, const char *path)
{
    const char *hint = errno == ENOSPC || errno == EDQUOT ? "free some space on this disk" : NULL;
    return ts_fail_op(errno == ENOMEM ? TS_ERR_MEMORY : TS_ERR_IO, op, NULL, hint,
                      "cannot %s '%s': %s", what, path, strerror(errno));
}

static ts_status not_regular(const char *op, const char *path, mode_t mode)
{
    const char *kind = S_ISDIR(mode)    ? "a folder"
                       : S_ISFIFO(mode) ? "a FIFO"
                       : S_ISSOCK(mode) ? "a socket"
                       : S_ISBLK(mode)  ? "a block device"
                                        : "a character device";
    return ts_fail_op(TS_ERR_IO, op, NULL, NULL, "'%s': expected a regular file, got %s", path,
                      kind);
}

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
        ts_error_memory("a path", length);
    va_end(again);
    va_end(args);
    return path;
}

char *ts_folder_of(const char *path)
{
    int length = (int)strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    while (length > 0 && path[length - 1] != '/')
        length--;
    return length ? ts_path("%.*s", length, path) : ts_path(".");
}

/* -------------------------------------------------------------------------- opening ---- */

/** Opens a regular file, or with O_DIRECTORY a folder; other kinds are errors. */
static ts_status open_checked(const char *op, const char *what, const char *path, int flags,
                              mode_t mode, int *fd, struct stat *status)
{
    do
        *fd = ts_files.open(path, flags, mode);
    while (*fd < 0 && errno == EINTR);
    if (*fd < 0) {
        int error = errno;
        /* ENXIO: a FIFO without a reader, or a socket; EISDIR: a folder; ENODEV: no driver */
        if ((error == ENXIO || error == EISDIR || error == ENODEV) &&
            ts_files.stat(path, status) == 0 && !S_ISREG(status->st_mode))
            return not_regular(op, path, status->st_mode);
        errno = error;
        return ts_file_refused(op, what, path);
    }
    if (flags & (O_EXCL | O_DIRECTORY))
        return TS_OK; /* the flags guarantee the kind of file */
    ts_status result = TS_OK;
    if (ts_files.fstat(*fd, status) != 0)
        result = ts_file_refused(op, "examine", path);
    else if (!S_ISREG(status->st_mode))
        result = not_regular(op, path, status->st_mode);
    if (result != TS_OK) {
        ts_file_close(*fd);
        *fd = -1;
    }
    return result;
}

ts_status ts_open_file(const char *function, const char *path, int flags, int *fd)
{
    struct stat status;
    TS_TRY(TS_CHECK_POINTERS(function, path, fd));
    return open_checked(function, flags & O_TRUNC ? "create" : "open", path, flags, 0666, fd,
                        &status);
}

ts_status ts_file_create(const char *op, const char *path, mode_t mode, int *fd)
{
    struct stat unused;
    return open_checked(op, "create", path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, mode, fd,
                        &unused);
}

ts_status ts_file_open(const char *op, const char *path, int *fd, int64_t *bytes)
{
    struct stat status;
    TS_TRY(open_checked(op, "open", path, O_RDONLY, 0, fd, &status));
    *bytes = status.st_size;
    return TS_OK;
}

ts_status ts_file_write(const char *op, const char *path, int fd, const void *data, int64_t bytes)
{
    for (int64_t done = 0; done < bytes;) {
        ssize_t n = ts_files.write(fd, (const char *)data + done,
                                   (size_t)ts_min64(bytes - done, 1 << 30));
        if (n < 0 && errno == EINTR)
            continue;
        if (n == 0)
            errno = ENOSPC; /* no progress and no error: treated as a full disk */
        if (n <= 0)
            return ts_file_refused(op, "write", path);
        done += n;
    }
    return TS_OK;
}

void ts_file_close(int fd)
{
    int keep = errno;
    if (fd >= 0)
        ts_files.close(fd);
    errno = keep;
}

ts_status ts_folder_open(const char *op, const char *path, int *fd)
{
    struct stat status;
    return open_checked(op, "open the folder", path, O_RDONLY | O_DIRECTORY, 0, fd, &status);
}

ts_status ts_folder_sync(const char *op, const char *path, int fd)
{
    if (ts_files.fsync(fd) == 0 || errno == EINVAL || errno == ENOTSUP)
        return TS_OK;
    return ts_file_refused(op, "flush the folder", path);
}

/* ------------------------------------------------------------------------ replacing ---- */

/** Writes the new file under its temporary name, flushes it and closes it. */
static ts_status write_temporary(const char *op, const char *temporary, const struct stat *old,
                              ts_status (*write)(int fd, const char *temporary, void *ctx),
                              void *ctx)
{
    int fd;
    mode_t mode = old ? old->st_mode & 07777 : 0666;
    /* The new file never has more permissions than the old one. */
    TS_TRY(ts_file_create(op, temporary, mode & 0777, &fd));
    ts_status status = TS_OK;
    if (old && ts_files.fchmod(fd, mode) != 0)
        status = ts_file_refused(op, "set the mode of", temporary);
    if (status == TS_OK)
        status = write(fd, temporary, ctx);
    /* A failed flush is not repeated: the system may have dropped the pages and the error. */
    if (status == TS_OK && ts_files.fsync(fd) != 0)
        status = ts_file_refused(op, "flush", temporary);
    /* On Linux, close() frees the descriptor even with EINTR; the flush already wrote the data. */
    if (ts_files.close(fd) != 0 && errno != EINTR && status == TS_OK)
        status = ts_file_refused(op, "close", temporary);
    return status;
}

ts_status ts_file_replace(const char *op, const char *path,
                          ts_status (*write)(int fd, const char *temporary, void *ctx), void *ctx)
{
    static atomic_uint counter; /* threads that write to one folder need different names */
    struct stat old;
    bool there = ts_files.stat(path, &old) == 0;
    /* rename() would replace a device, a FIFO or a socket. */
    if (there && !S_ISREG(old.st_mode))
        return not_regular(op, path, old.st_mode);
    if (!there && (errno != ENOENT || !*path)) /* ENOENT: a new file, unless the path is empty */
        return ts_file_refused(op, "examine", path);
    char *folder = ts_folder_of(path);
    char *temporary =
        folder ? ts_path("%s.tmp-%ld-%u", path, (long)getpid(), atomic_fetch_add(&counter, 1))
               : NULL;
    int fd = -1;
    ts_status status = temporary ? ts_folder_open(op, folder, &fd) : TS_ERR_MEMORY;
    if (status == TS_OK) {
        status = write_temporary(op, temporary, there ? &old : NULL, write, ctx);
        if (status == TS_OK && ts_files.rename(temporary, path) != 0)
            status = ts_file_refused(op, "rename the new file to", path);
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

/** A text that is written to a memory stream first, and to the file when it is complete. */
typedef struct buffered {
    const char *op;
    char *data;
    size_t size;
} buffered;

static ts_status write_data(int fd, const char *temporary, void *ctx)
{
    const buffered *w = ctx;
    return ts_file_write(w->op, temporary, fd, w->data, (int64_t)w->size);
}

ts_status ts_replace_file(const char *function, const char *path,
                          ts_status (*write)(FILE *out, void *ctx), void *ctx)
{
    TS_TRY(TS_CHECK_POINTERS(function, path, write));
    buffered w = {.op = function};
    /* A stream in memory: a stream on the file would lose the errno of an earlier write. */
    FILE *out = open_memstream(&w.data, &w.size);
    ts_status status = out ? ts_fail_callback(write(out, ctx), function, NULL, "write") : TS_OK;
    bool failed = !out || ferror(out);
    failed |= out && fclose(out) != 0; /* glibc may also leave data NULL without an error */
    if (status == TS_OK && (failed || !w.data))
        status = ts_error_memory("the contents of a file", (int64_t)w.size);
    if (status == TS_OK)
        status = ts_file_replace(function, path, write_data, &w);
    free(w.data);
    return status;
}
