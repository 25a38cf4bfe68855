/** @file driver.h  Launches kernels of the tests through the CUDA driver API, for work that no
 *  operator does. */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_TESTS_CUDA_DRIVER_H
#define TESSERA_TESTS_CUDA_DRIVER_H

#include "tests/cuda/cuda.h"

#include <dlfcn.h>

/** A function of libcuda, which a machine with a GPU has. */
static inline void *driver_function(const char *name)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW),
         *function = library ? dlsym(library, name) : NULL;
    ck_assert_msg(function, "libcuda has no %s", name);
    return function;
}

/** Launches one thread of the kernel `name` of a PTX module in the calling thread's current
 * context. The module stays loaded until the process ends. */
static inline void launch_ptx(const char *ptx, const char *name, ts_stream *stream,
                              void **arguments)
{
    int (*load)(void **module, const void *image) = driver_function("cuModuleLoadData");
    int (*get)(void **function, void *module, const char *name) =
        driver_function("cuModuleGetFunction");
    int (*launch)(void *function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                  unsigned shared, void *stream, void **arguments, void **extra) =
        driver_function("cuLaunchKernel");
    void *module, *function;
    ck_assert_int_eq(load(&module, ptx), 0);
    ck_assert_int_eq(get(&function, module, name), 0);
    ck_assert_int_eq(launch(function, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL), 0);
}

/* A kernel that blocks its stream until the host sets *flag. After 20 s it sets *flag to 2 and
 * ends, so that no test hangs. */
static const char gate_ptx[] =
    ".version 7.0\n.target sm_80\n.address_size 64\n"
    ".visible .entry gate(.param .u64 flag)\n{\n"
    "    .reg .b64 %at, %start, %now, %passed;\n    .reg .b32 %x;\n    .reg .pred %p;\n"
    "    ld.param.u64 %at, [flag];\n    mov.u64 %start, %globaltimer;\n"
    "again:\n    ld.volatile.global.u32 %x, [%at];\n    setp.ne.u32 %p, %x, 0;\n    @%p bra done;\n"
    "    mov.u64 %now, %globaltimer;\n    sub.u64 %passed, %now, %start;\n"
    "    setp.lt.u64 %p, %passed, 20000000000;\n    @%p bra again;\n"
    "    mov.u32 %x, 2;\n    st.volatile.global.u32 [%at], %x;\n"
    "done:\n    ret;\n}\n";

/** Clears *flag, which is in pinned memory, and blocks the stream until the host sets it. */
static inline void stop_stream(ts_stream *stream, volatile int32_t *flag)
{
    *flag = 0;
    launch_ptx(gate_ptx, "gate", stream, (void *[]){&flag});
}

#endif
