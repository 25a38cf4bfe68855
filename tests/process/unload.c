/**
 * @file unload.c  Loads the library, uses it in two threads and unloads it, many times: the
 * process's address space and number of threads do not grow.
 *
 *     unload LIBRARY
 */
// SPDX-License-Identifier: MIT
#include <tessera/tessera.h>

#include <dlfcn.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FIRST = 20, LIVES = 100 };
static void *library;

#define FIND(name) ((__typeof__(&name))find(#name))
static void *find(const char *name)
{
    void *symbol = dlsym(library, name);
    if (!symbol) {
        fprintf(stderr, "%s\n", dlerror());
        _Exit(2);
    }
    return symbol;
}

/** Uses the thread pool, large and small blocks, a graph, an error and JSON. */
static void *use(void *unused)
{
    (void)unused;
    char path[] = "/tmp/tessera-unload-XXXXXX";
    ts_tensor *ones = FIND(ts_ones)((int64_t[]){500, 500}, 2, TS_F32);
    ts_tensor *leaf = FIND(ts_set_requires_grad)(FIND(ts_clone)(ones), true);
    ts_status status = FIND(ts_backward)(FIND(ts_sum)(FIND(ts_mm)(leaf, ones)));
    int fd = mkstemp(path);
    ts_safetensors *read = NULL;
    const char *name = "ones";
    if (fd < 0 || status != TS_OK ||
        FIND(ts_safetensors_save)(path, &name, &ones, 1, NULL, NULL, 0) != TS_OK ||
        !(read = FIND(ts_safetensors_open)(path, NULL)) || FIND(ts_add)(ones, NULL)) {
        fprintf(stderr, "the library does not work: %s\n", FIND(ts_error_message)());
        _Exit(3);
    }
    FIND(ts_safetensors_close)(read);
    close(fd);
    unlink(path);
    return NULL;
}

/** Reads the process's address space, in KiB (*kib), and its number of threads. */
static void measure(long *kib, long *threads)
{
    char line[256];
    FILE *file = fopen("/proc/self/status", "r");
    *kib = *threads = 0;
    while (file && fgets(line, sizeof line, file)) {
        sscanf(line, "VmSize: %ld", kib);
        sscanf(line, "Threads: %ld", threads);
    }
    if (file)
        fclose(file);
}

int main(int argc, char **argv)
{
    long before = 0, after, threads;
    json_malloc_t allocate;
    json_free_t release;
    json_decref(json_object()); /* initialises jansson, which the program uses too */
    for (int life = 0; life < LIVES && argc == 2; life++) {
        pthread_t thread;
        library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
        if (!library || pthread_create(&thread, NULL, use, NULL) != 0)
            return 4;
        pthread_join(thread, NULL);
        use(NULL);
        if (dlclose(library) != 0)
            return 5;
        json_get_alloc_funcs(&allocate, &release);
        measure(&after, &threads);
        if (life == FIRST)
            before = after;
        if (allocate != malloc || release != free || threads != 1 ||
            (life > FIRST && after > before + 1024)) {
            fprintf(stderr, "life %d left %ld KiB more, %ld threads, %s allocator of jansson's\n",
                    life, after - before, threads, allocate == malloc ? "the" : "its own");
            return 1;
        }
    }
    return argc == 2 && before ? 0 : 6;
}
