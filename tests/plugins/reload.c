/**
 * @file reload.c  Loads and unloads the library many times (default 1000), and computes each time.
 *
 *     reload LIBRARY PLUGIN [times]
 *
 * The last time it also loads a backend, which keeps the library loaded, and computes in an exit
 * handler.
 */
// SPDX-License-Identifier: MIT
#include <tessera/tessera.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

typedef ts_tensor *(*ones_fn)(const int64_t *, int, ts_dtype);
typedef ts_tensor *(*add_fn)(ts_tensor *, ts_tensor *);
typedef ts_status (*item_fn)(ts_tensor *, double *);
typedef ts_tensor *(*move_fn)(ts_tensor *, ts_device);
typedef ts_status (*load_fn)(const char *, ts_key *);

static void *library;

static void *find(const char *name)
{
    void *symbol = dlsym(library, name);
    if (!symbol) {
        fprintf(stderr, "%s\n", dlerror());
        exit(2);
    }
    return symbol;
}

/** 1 + 1 on a device. */
static void compute(ts_device device)
{
    double two = 0;
    ts_tensor *one = ((ones_fn)find("ts_ones"))((int64_t[]){1}, 1, TS_F32);
    one = ((move_fn)find("ts_to_device"))(one, device);
    ts_tensor *sum = ((add_fn)find("ts_add"))(one, one);
    if (!sum || ((item_fn)find("ts_item"))(sum, &two) != TS_OK || two != 2) {
        fprintf(stderr, "1 + 1 gave %g\n", two);
        _Exit(3);
    }
}

static ts_device plugged = {0, 0};
static void at_exit(void) { compute(plugged); }

int main(int argc, char **argv)
{
    int times = argc > 3 ? atoi(argv[3]) : 1000;
    if (argc < 3)
        return 2;
    for (int i = 0; i <= times; i++) {
        library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
        if (!library) {
            fprintf(stderr, "load %d: %s\n", i, dlerror());
            return 4;
        }
        compute(TS_DEVICE_CPU);
        if (i < times && dlclose(library) != 0)
            return 5;
    }
    /* the last time: a tensor of the backend stays in the thread's root scope until exit */
    if (((load_fn)find("ts_backend_load"))(argv[2], &plugged.backend) != TS_OK)
        return 6;
    compute(plugged);
    atexit(at_exit);
    return 0;
}
