/**
 * @file stuck.c  A library to preload into a trainer, which simulates a disk that hangs or is full.
 *
 * STUCK_FILE, STUCK_AFTER: of the reads of files whose path ends with STUCK_FILE, only the first
 * STUCK_AFTER return. FULL_AFTER: all but the first FULL_AFTER writes to log.csv fail.
 */
// SPDX-License-Identifier: MIT
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

ssize_t pread(int fd, void *data, size_t bytes, off_t at);
ssize_t write(int fd, const void *data, size_t bytes);

/** Counts a call on a file whose path ends with `end`. True if the count exceeds the number in an
 *  environment variable; false if the variable is not set. */
static int beyond(int fd, const char *end, const char *variable, atomic_int *count)
{
    const char *limit = getenv(variable);
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = limit && end ? readlink(link, path, sizeof path - 1) : -1;
    if (n < (ssize_t)(end ? strlen(end) : 0) || n < 0)
        return 0;
    path[n] = 0;
    return strcmp(path + n - strlen(end), end) == 0 && atomic_fetch_add(count, 1) >= atoi(limit);
}

/* meson asks for large files, which names this pread64() */
ssize_t pread(int fd, void *data, size_t bytes, off_t at)
{
    static atomic_int count;
    ssize_t (*next)(int, void *, size_t, off_t) = dlsym(RTLD_NEXT, "pread64");
    while (beyond(fd, getenv("STUCK_FILE"), "STUCK_AFTER", &count))
        sleep(1000);
    return next(fd, data, bytes, at);
}

ssize_t write(int fd, const void *data, size_t bytes)
{
    static atomic_int count;
    ssize_t (*next)(int, const void *, size_t) = dlsym(RTLD_NEXT, "write");
    if (beyond(fd, "/log.csv", "FULL_AFTER", &count)) {
        errno = ENOSPC;
        return -1;
    }
    return next(fd, data, bytes);
}
