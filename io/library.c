/** @file library.c  Opens shared libraries on first use. */
// SPDX-License-Identifier: MIT
#include "io/library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static ts_status open_locked(ts_library *l, const char *op)
{
    const char *named = getenv(l->variable), *file = named && *named ? named : l->file;
    if (strcmp(file, "0") == 0)
        return ts_fail_op(TS_ERR_UNSUPPORTED, op, NULL, NULL,
                          "cannot open the library %s: %s=0 disables it", l->file, l->variable);
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return ts_fail_op(TS_ERR_UNSUPPORTED, op, NULL, "install it, or set its environment "
                          "variable (docs/environment.md) to the library's file",
                          "cannot open the library %s: %s", l->file, dlerror());
    for (int i = 0; i < l->n; i++)
        if (!(l->functions[i] = dlsym(library, l->names[i]))) {
            dlclose(library);
            return ts_fail_op(TS_ERR_UNSUPPORTED, op, NULL, NULL, "the library %s has no %s", file,
                              l->names[i]);
        }
    return TS_OK;
}

ts_status ts_library_open(ts_library *l, const char *op)
{
    ts_status status = TS_OK;
    if (atomic_load_explicit(&l->opened, memory_order_acquire))
        return TS_OK;
    pthread_mutex_lock(&lock);
    if (!l->opened && (status = open_locked(l, op)) == TS_OK)
        atomic_store_explicit(&l->opened, 1, memory_order_release);
    pthread_mutex_unlock(&lock);
    return status;
}
