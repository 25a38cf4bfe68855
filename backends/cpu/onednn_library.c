/** @file onednn_library.c  Opens oneDNN and looks up the functions that onednn_library.h
 * declares. */
// SPDX-License-Identifier: MIT
#include "backends/cpu/onednn_library.h"
#include "tessera/program.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_NAME "libdnnl.so.2"

ts_dnnl_library ts_dnnl;

static void load(void)
{
    const struct {
        void *address;
        const char *name;
    } functions[] = {
        {&ts_dnnl.get_version, "dnnl_version"},
        {&ts_dnnl.set_max_isa, "dnnl_set_max_cpu_isa"},
        {&ts_dnnl.engine_create, "dnnl_engine_create"},
        {&ts_dnnl.stream_create, "dnnl_stream_create"},
        {&ts_dnnl.stream_destroy, "dnnl_stream_destroy"},
        {&ts_dnnl.attr_create, "dnnl_primitive_attr_create"},
        {&ts_dnnl.attr_set_scratchpad, "dnnl_primitive_attr_set_scratchpad_mode"},
        {&ts_dnnl.by_strides, "dnnl_memory_desc_init_by_strides"},
        {&ts_dnnl.by_tag, "dnnl_memory_desc_init_by_tag"},
        {&ts_dnnl.submemory, "dnnl_memory_desc_init_submemory"},
        {&ts_dnnl.equal, "dnnl_memory_desc_equal"},
        {&ts_dnnl.size, "dnnl_memory_desc_get_size"},
        {&ts_dnnl.forward, "dnnl_dilated_convolution_forward_desc_init"},
        {&ts_dnnl.backward_weight, "dnnl_dilated_convolution_backward_weights_desc_init"},
        {&ts_dnnl.describe, "dnnl_primitive_desc_create"},
        {&ts_dnnl.describe_reorder, "dnnl_reorder_primitive_desc_create"},
        {&ts_dnnl.desc_destroy, "dnnl_primitive_desc_destroy"},
        {&ts_dnnl.query_layout, "dnnl_primitive_desc_query_md"},
        {&ts_dnnl.query, "dnnl_primitive_desc_query"},
        {&ts_dnnl.create, "dnnl_primitive_create"},
        {&ts_dnnl.destroy, "dnnl_primitive_destroy"},
        {&ts_dnnl.execute, "dnnl_primitive_execute"},
        {&ts_dnnl.memory_create, "dnnl_memory_create"},
        {&ts_dnnl.memory_destroy, "dnnl_memory_destroy"},
        {&ts_dnnl.get_threads, "omp_get_max_threads"},
        {&ts_dnnl.set_threads, "omp_set_num_threads"},
    };
    const char *named = getenv("TS_ONEDNN"), *file = named && *named ? named : FILE_NAME;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    if (file != named) /* LeakSanitizer crashes once OpenMP's library is open */
        file = "0";
#endif
    void *library = strcmp(file, "0") == 0 ? NULL : dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        snprintf(ts_dnnl.why, sizeof ts_dnnl.why, "%.100s is not opened", file);
    for (size_t i = 0; library && !ts_dnnl.why[0] && i < sizeof functions / sizeof *functions;
         i++) {
        void *function = dlsym(library, functions[i].name);
        if (!function)
            snprintf(ts_dnnl.why, sizeof ts_dnnl.why, "it has no function %s", functions[i].name);
        memcpy(functions[i].address, &function, sizeof function);
    }
    if (!ts_dnnl.why[0] && ts_dnnl.get_version()->major != 2)
        snprintf(ts_dnnl.why, sizeof ts_dnnl.why, "expected version 2, got %d",
                 ts_dnnl.get_version()->major);
    if (!ts_dnnl.why[0] && ts_cpu_isa() < ts_cpu_isa_supported())
        ts_dnnl.set_max_isa(MAX_AVX2);
    if (!ts_dnnl.why[0] &&
        (ts_dnnl.engine_create(&ts_dnnl.engine, CPU, 0) || ts_dnnl.attr_create(&ts_dnnl.attr) ||
         ts_dnnl.attr_set_scratchpad(ts_dnnl.attr, USER_SCRATCHPAD)))
        snprintf(ts_dnnl.why, sizeof ts_dnnl.why, "it cannot be initialised");
    if (!ts_log_on("convolution"))
        return;
    if (ts_dnnl.why[0])
        ts_log_write("convolution", "cpu, no oneDNN: %s", ts_dnnl.why);
    else
        ts_log_write("convolution", "cpu, oneDNN %d.%d.%d", ts_dnnl.get_version()->major,
                     ts_dnnl.get_version()->minor, ts_dnnl.get_version()->patch);
}

bool ts_dnnl_is_available(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    return !ts_dnnl.why[0];
}
