/** @file driver.h  Kernels of a test's own, by the driver's interface: what no operator does. */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_TESTS_CUDA_DRIVER_H
#define TESSERA_TESTS_CUDA_DRIVER_H

#include "tests/cuda/cuda.h"

#include <dlfcn.h>

/** A function of libcuda, which a machine with a GPU has. */
static inline void *driver_function(const char *name)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *function = library ? dlsym(library, name) : NULL;
    ck_assert_msg(function, "libcuda has no %s", name);
    return function;
}

/** Launches one thread of the kernel `name` of a module in PTX, on the context that the calling thread uses. */
static inline void launch_ptx(const char *ptx, const char *name, ts_stream *stream, void **arguments)
{
    int (*load)(void **module, const void *image) = driver_function("cuModuleLoadData");
    int (*get)(void **function, void *module, const char *name) = driver_function("cuModuleGetFunction");
    int (*launch)(void *function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned shared, void *stream,
                  void **arguments, void **extra) = driver_function("cuLaunchKernel");
    void *module, *function;
    ck_assert_int_eq(load(&module, ptx), 0);
    ck_assert_int_eq(get(&function, module, name), 0);
    ck_assert_int_eq(launch(function, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL), 0);
}

#endif
