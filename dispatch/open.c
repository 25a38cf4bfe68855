/** @file open.c  Backends that come with the library, opened by name,
 * and the device that a program is to use. */
// SPDX-License-Identifier: MIT
#include "include/tessera/backend.h"

#include "core/device.h"
#include "core/error.h"
#include "dispatch/registry.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { PATH_MOST = 4096 };

/** What comes with the library: name, the variable that refuses it or names its file,
 * and the file's name. */
typedef struct bundled {
    const char *name, *variable, *file;
} bundled;
static const bundled all[] = {
    {"CUDA", "TS_CUDA", "libtessera_cuda.so.0"},
};
_Static_assert(TS_BACKEND_ABI == 0, "the files' names end in the number of the ABI");

static const bundled *find(const char *name)
{
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcasecmp(all[i].name, name) == 0)
            return &all[i];
    return NULL;
}

/** The key of a backend that is there already; TS_KEY_INVALID without. */
static ts_key loaded(const char *name)
{
    for (ts_key k = 0; k < 16; k++)
        if (ts_backend_of((ts_device){k, 0}) && strcasecmp(ts_key_name(k), name) == 0)
            return k;
    return TS_KEY_INVALID;
}

/**
 * Where the file is: what the variable says; beside this library; below it,
 * as the build folder has it; else its name alone, which the dynamic linker searches for.
 */
static const char *path_of(const bundled *b, char path[static PATH_MOST])
{
    const char *given = getenv(b->variable);
    if (given && *given && strcmp(given, "1") != 0)
        return given;
    Dl_info self;
    const char *slash =
        dladdr((void *)(uintptr_t)ts_backend_open, &self) ? strrchr(self.dli_fname, '/') : NULL;
    int folder = slash ? (int)(slash - self.dli_fname) : 0;
    if (folder) {
        static const char *const below[] = {"", "/backends/cuda"};
        for (int i = 0; i < 2; i++) {
            int n =
                snprintf(path, PATH_MOST, "%.*s%s/%s", folder, self.dli_fname, below[i], b->file);
            if (n < PATH_MOST && access(path, R_OK) == 0)
                return path;
        }
    }
    return b->file;
}

static ts_status load(const bundled *b, const char *path, ts_key *key)
{
    ts_status status = ts_backend_load(path, key);
    char absent[64]; /* what the linker says of the file itself, not of one that it needs */
    snprintf(absent, sizeof absent, "opened: %s:", b->file);
    if (status == TS_ERR_IO && path == b->file && strstr(ts_error_message(), absent))
        return ts_error_set_hint(
            status, "build the library with -Dcuda=enabled, or name the file in TS_CUDA",
            "backend_open: there is no %s", b->file);
    return status;
}

ts_status ts_backend_open(const char *name, ts_key *key)
{
    if (!name)
        return ts_fail_null("backend_open", __builtin_return_address(0), "name");
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* two threads that open one backend */
    char path[PATH_MOST];
    const bundled *b = find(name);
    ts_status status = TS_OK;
    pthread_mutex_lock(&lock);
    ts_key there = loaded(name);
    if (there == TS_KEY_INVALID) {
        const char *given = b ? getenv(b->variable) : NULL;
        if (!b)
            status = ts_error_set_hint(
                TS_ERR_VALUE, "load others with ts_backend_load()",
                "backend_open: expected a backend that comes with the library (cuda), got '%s'",
                name);
        else if (given && strcmp(given, "0") == 0)
            status =
                ts_error_set(TS_ERR_DEVICE, "backend_open: %s=0 refuses %s", b->variable, b->name);
        else
            status = load(b, path_of(b, path), &there);
    }
    pthread_mutex_unlock(&lock);
    if (status == TS_OK && key)
        *key = there;
    return status;
}

/** "cuda:1" as "cuda". */
static const char *kind_of(const char *name, char kind[static 32])
{
    snprintf(kind, 32, "%.*s", (int)strcspn(name, ":"), name);
    return kind;
}

static ts_status open_named(const char *name, ts_device *device)
{
    char kind[32];
    ts_device found;
    if (find(kind_of(name, kind)))
        TS_TRY(ts_backend_open(kind, NULL));
    TS_TRY(ts_device_from_name(name, &found));
    TS_TRY(ts_device_check(found, "device_open"));
    *device = found;
    return TS_OK;
}

ts_status ts_device_open(const char *name, ts_device *device, char *why, size_t size)
{
    if (!name || !device)
        return ts_fail_null("device_open", __builtin_return_address(0), name ? "device" : "name");
    if (strcmp(name, "auto") != 0) {
        TS_TRY(open_named(name, device));
        if (why)
            snprintf(why, size, "asked for");
        return TS_OK;
    }
    *device = TS_DEVICE_CPU;
    if (why)
        snprintf(why, size, "nothing else is there");
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        ts_error_clear();
        if (open_named(all[i].name, device) == TS_OK) {
            if (why)
                snprintf(why, size, "the first of %d %s devices", ts_device_count(device->backend),
                         all[i].name);
            return TS_OK;
        }
        if (why)
            snprintf(why, size, "%s", ts_error_message());
        ts_error_clear();
    }
    return TS_OK;
}
