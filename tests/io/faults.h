/**
 * @file faults.h  Replaces the table of system calls (ts_files, core/files.h) by functions that
 * fail at the n-th call (fault_plant()) and append each call to a trace.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_TESTS_IO_FAULTS_H
#define TS_TESTS_IO_FAULTS_H

#include <errno.h>

#include "io/files.h"
#include "tests/io/folder.h"

typedef enum fault_kind {
    FAULT_NONE,
    FAULT_ONCE,    /* the n-th call fails with fault.error */
    FAULT_FOREVER, /* the n-th call and all later calls fail with fault.error */
    FAULT_SHORT,   /* reads and writes from the n-th call on transfer at most one byte */
    FAULT_PART,    /* full disk: the n-th call, if a write, writes half; later writes fail
                      with ENOSPC */
    FAULT_KILL     /* the process ends before the n-th call */
} fault_kind;

static struct {
    fault_kind kind;
    int at, error;
    int calls; /* number of calls so far */
    bool met;  /* the fault happened */
    char trace[1 << 16];
    size_t traced;
} fault;
static ts_file_table real_files;

/* Counts and traces a call. Returns true, with errno set, if the call must fail. */
static bool fault_here(const char *call, const char *path)
{
    fault.calls++;
    const char *name = path && strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    if (fault.traced < sizeof fault.trace - 300)
        fault.traced +=
            (size_t)sprintf(fault.trace + fault.traced, "%s(%s) ", call, name ? name : "");
    bool hit = fault.calls == fault.at || (fault.calls > fault.at && fault.kind == FAULT_FOREVER);
    if (hit && fault.kind == FAULT_KILL)
        _exit(77);
    if (!hit || (fault.kind != FAULT_ONCE && fault.kind != FAULT_FOREVER))
        return false;
    fault.met = true;
    errno = fault.error;
    return true;
}

static int fault_open(const char *path, int flags, mode_t mode)
{
    return fault_here("open", path) ? -1 : real_files.open(path, flags, mode);
}
static int fault_close(int fd)
{
    /* as on Linux, close() frees the descriptor even on failure */
    bool fails = fault_here("close", NULL);
    int error = errno, result = real_files.close(fd);
    errno = fails ? error : errno;
    return fails ? -1 : result;
}
static int fault_stat(const char *path, struct stat *s)
{
    return fault_here("stat", path) ? -1 : real_files.stat(path, s);
}
static int fault_fstat(int fd, struct stat *s)
{
    return fault_here("fstat", NULL) ? -1 : real_files.fstat(fd, s);
}
static ssize_t fault_pread(int fd, void *data, size_t bytes, off_t at)
{
    if (fault_here("pread", NULL))
        return -1;
    if (fault.kind == FAULT_SHORT && fault.calls >= fault.at && bytes > 1) {
        fault.met = true;
        bytes = 1;
    }
    return real_files.pread(fd, data, bytes, at);
}
static ssize_t fault_write(int fd, const void *data, size_t bytes)
{
    if (fault_here("write", NULL))
        return -1;
    if (fault.kind == FAULT_SHORT && fault.calls >= fault.at && bytes > 1) {
        fault.met = true;
        bytes = 1;
    }
    if (fault.kind == FAULT_PART && fault.calls >= fault.at) {
        fault.met = true;
        errno = ENOSPC;
        return fault.calls == fault.at ? real_files.write(fd, data, bytes / 2) : -1;
    }
    return real_files.write(fd, data, bytes);
}
static int fault_fsync(int fd) { return fault_here("fsync", NULL) ? -1 : real_files.fsync(fd); }
static int fault_flock(int fd, int how)
{
    return fault_here("flock", NULL) ? -1 : real_files.flock(fd, how);
}
static int fault_rename(const char *from, const char *to)
{
    return fault_here("rename", to) ? -1 : real_files.rename(from, to);
}
static int fault_unlink(const char *path)
{
    return fault_here("unlink", path) ? -1 : real_files.unlink(path);
}
static int fault_mkdir(const char *path, mode_t mode)
{
    return fault_here("mkdir", path) ? -1 : real_files.mkdir(path, mode);
}
static int fault_rmdir(const char *path)
{
    return fault_here("rmdir", path) ? -1 : real_files.rmdir(path);
}
static DIR *fault_opendir(const char *path)
{
    return fault_here("opendir", path) ? NULL : real_files.opendir(path);
}
static struct dirent *fault_readdir(DIR *dir)
{
    return fault_here("readdir", NULL) ? NULL : real_files.readdir(dir);
}
static int fault_closedir(DIR *dir)
{
    bool fails = fault_here("closedir", NULL);
    int result = real_files.closedir(dir);
    return fails ? -1 : result;
}

static int fault_fchmod(int fd, mode_t mode)
{
    return fault_here("fchmod", NULL) ? -1 : real_files.fchmod(fd, mode);
}

/* Plants a fault; FAULT_NONE only counts and traces. */
static inline void fault_plant(fault_kind kind, int at, int error)
{
    if (!real_files.open)
        real_files = ts_files;
    fault.kind = kind;
    fault.at = at;
    fault.error = error;
    fault.calls = 0;
    fault.met = false;
    fault.traced = 0;
    fault.trace[0] = 0;
    ts_files = (ts_file_table){
        fault_open,  fault_close, fault_stat,    fault_fstat,   fault_pread,
        fault_write, fault_fsync, fault_flock,   fault_rename,  fault_unlink,
        fault_mkdir, fault_rmdir, fault_opendir, fault_readdir, fault_closedir,
        fault_fchmod,
    };
}

static inline void fault_lift(void) { ts_files = real_files; }

#endif
