/** @file open.c  Opens backends that are installed with the library, by name, and selects a
 * program's device. */
// SPDX-License-Identifier: MIT
#include "include/tessera/backend.h"
#include "include/tessera/check.h"

#include "core/device.h"
#include "core/error.h"
#include "core/process.h"
#include "dispatch/registry.h"
#include "dispatch/store.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { PATH_MOST = 4096 };

/** Backends that come with the library: name, environment variable that disables the backend or
 * names its file, file name. */
static const struct {
    const char *name, *variable, *file;
} bundled = {"CUDA", "TS_CUDA", "libtessera_cuda.so.0"};
_Static_assert(TS_BACKEND_ABI == 0, "the file's name ends in the number of the ABI");

/** The key of a loaded backend; TS_KEY_INVALID if none has this name. */
static ts_key loaded(const char *name)
{
    for (ts_key k = 0; k < 16; k++)
        if (ts_backend_of((ts_device){k, 0}) && strcasecmp(ts_key_name(k), name) == 0)
            return k;
    return TS_KEY_INVALID;
}

/**
 * Finds the backend's file, in this order: the path in `given`, the value of the environment
 * variable (NULL, "" and "1": no path); the folder of this library; its subfolder backends/cuda, as
 * in a build folder; the search path of the dynamic linker. Returns `given`, `path` or the bare
 * file name.
 */
static const char *path_of(const char *given, char path[static PATH_MOST])
{
    if (given && *given && strcmp(given, "1") != 0)
        return given;
    Dl_info self;
    const char *slash =
        dladdr((void *)(uintptr_t)ts_backend_open, &self) ? strrchr(self.dli_fname, '/') : NULL;
    int folder = slash ? (int)(slash - self.dli_fname) : 0;
    if (folder) {
        static const char *const below[] = {"", "/backends/cuda"};
        for (int i = 0; i < 2; i++) {
            int n = snprintf(path, PATH_MOST, "%.*s%s/%s", folder, self.dli_fname, below[i],
                             bundled.file);
            if (n < PATH_MOST && access(path, R_OK) == 0)
                return path;
        }
    }
    return bundled.file;
}

static ts_status load(const char *path, ts_key *key)
{
    ts_status status = ts_backend_load(path, key);
    char absent[64]; /* in the message if the file itself is missing, not a dependency of it */
    snprintf(absent, sizeof absent, "opened: %s:", bundled.file);
    if (status == TS_ERR_IO && path == bundled.file && strstr(ts_error_message(), absent))
        return ts_error_set_hint(
            status, "build the library with -Dcuda=enabled, or name the file in TS_CUDA",
            "backend_open: there is no %s", bundled.file);
    return status;
}

static ts_status open_absent(const char *name, ts_key *key)
{
    char path[PATH_MOST];
    if (strcasecmp(bundled.name, name) != 0)
        return ts_error_set_hint(
            TS_ERR_VALUE, "load others with ts_backend_load()",
            "backend_open: expected a backend that comes with the library (cuda), got '%s'", name);
    const char *given = getenv(bundled.variable);
    if (given && strcmp(given, "0") == 0)
        return ts_error_set(TS_ERR_DEVICE, "backend_open: %s=0 disables %s", bundled.variable,
                            bundled.name);
    return load(path_of(given, path), key);
}

/* Serialises threads that open the same backend. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void ts_open_install(void) { TS_FORK_GUARD(&lock); }

ts_status ts_backend_open(const char *name, ts_key *key)
{
    TS_TRY(TS_CHECK_POINTERS(name));
    pthread_mutex_lock(&lock);
    ts_key there = loaded(name);
    ts_status status = there == TS_KEY_INVALID ? open_absent(name, &there) : TS_OK;
    pthread_mutex_unlock(&lock);
    if (status == TS_OK && key)
        *key = there;
    return status;
}

static ts_status open_named(const char *name, ts_device *device)
{
    char kind[32]; /* the name without the index: "cuda" for "cuda:1" */
    ts_device found;
    snprintf(kind, sizeof kind, "%.*s", (int)strcspn(name, ":"), name);
    if (strcasecmp(bundled.name, kind) == 0)
        TS_TRY(ts_backend_open(kind, NULL));
    TS_TRY(ts_device_from_name(name, &found));
    TS_TRY(ts_device_check(found, "device_open"));
    *device = found;
    return TS_OK;
}

ts_status ts_device_open(const char *name, ts_device *device, char *why, size_t size)
{
    TS_TRY(TS_CHECK_POINTERS(name, device));
    size = why ? size : 0;
    if (strcmp(name, "auto") != 0) {
        TS_TRY(open_named(name, device));
        snprintf(why, size, "requested by name");
        return TS_OK;
    }
    ts_error_clear();
    if (open_named(bundled.name, device) == TS_OK) {
        snprintf(why, size, "the first of %d %s devices", ts_device_count(device->backend),
                 bundled.name);
        return TS_OK;
    }
    *device = TS_DEVICE_CPU;
    snprintf(why, size, "%s", ts_error_message());
    ts_error_clear();
    return TS_OK;
}
