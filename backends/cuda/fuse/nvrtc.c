/**
 * @file nvrtc.c
 * Loads NVRTC at run time, compiles sources, and caches machine code on disk (runtime/disk.h). If a
 * file cannot be written, the next process compiles again.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/runtime/disk.h"
#include "backends/cuda/fuse/fuse.h"
#include "tessera/program.h"

#include <dlfcn.h>
#include <nvrtc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/** Headers of formulas, as C text (meson.build). */
static const char formulas[] =
#include "backends/cuda/formulas.inc"
    ;

/* ------------------------------------------------------------------------------ library ---- */

static struct {
    nvrtcResult (*version)(int *major, int *minor);
    nvrtcResult (*create)(nvrtcProgram *, const char *, const char *, int, const char *const *,
                          const char *const *);
    nvrtcResult (*compile)(nvrtcProgram, int, const char *const *);
    nvrtcResult (*destroy)(nvrtcProgram *);
    nvrtcResult (*log_size)(nvrtcProgram, size_t *);
    nvrtcResult (*log)(nvrtcProgram, char *);
    nvrtcResult (*cubin_size)(nvrtcProgram, size_t *);
    nvrtcResult (*cubin)(nvrtcProgram, char *);
    int major, minor;
    char why[256]; /* reason why NVRTC cannot be used; empty if it can */
} nvrtc;

static void *open_library(void)
{
    /* same major version as the eager kernels' compiler; other versions may round some functions
     * differently */
    static const char *const names[] = {"libnvrtc.so.13", "/usr/local/cuda/lib64/libnvrtc.so.13"};
    const char *named = getenv("TS_CUDA_NVRTC");
    void *library = NULL;
    if (named && strcmp(named, "0") == 0) {
        snprintf(nvrtc.why, sizeof nvrtc.why, "TS_CUDA_NVRTC=0");
        return NULL;
    }
    if (named && *named)
        library = dlopen(named, RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; i < sizeof names / sizeof *names && !library && !(named && *named); i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!library)
        snprintf(nvrtc.why, sizeof nvrtc.why, "NVRTC cannot be opened: %s", dlerror());
    return library;
}

static void open_nvrtc(void)
{
    static const struct {
        const char *name;
        void *into;
    } functions[] = {
        {"nvrtcVersion", &nvrtc.version},           {"nvrtcCreateProgram", &nvrtc.create},
        {"nvrtcCompileProgram", &nvrtc.compile},    {"nvrtcDestroyProgram", &nvrtc.destroy},
        {"nvrtcGetProgramLogSize", &nvrtc.log_size}, {"nvrtcGetProgramLog", &nvrtc.log},
        {"nvrtcGetCUBINSize", &nvrtc.cubin_size},   {"nvrtcGetCUBIN", &nvrtc.cubin},
    };
    void *library = open_library();
    for (size_t i = 0; library && i < sizeof functions / sizeof *functions; i++) {
        void *found = dlsym(library, functions[i].name);
        memcpy(functions[i].into, &found, sizeof found);
        if (!found)
            snprintf(nvrtc.why, sizeof nvrtc.why, "NVRTC has no %s", functions[i].name);
    }
    if (library && !nvrtc.why[0] && nvrtc.version(&nvrtc.major, &nvrtc.minor) != NVRTC_SUCCESS)
        snprintf(nvrtc.why, sizeof nvrtc.why, "nvrtcVersion() failed");
    if (nvrtc.why[0] && ts_log_on("compile"))
        ts_log_write("compile", "no groups on CUDA: %s", nvrtc.why);
}

bool ts_cuda_nvrtc(const char **why)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_nvrtc);
    *why = nvrtc.why;
    return !nvrtc.why[0];
}

/* ------------------------------------------------------------------------------ compile ---- */

/** The first line of NVRTC's log. */
static void first_line(nvrtcProgram program, char *line, size_t size)
{
    size_t bytes = 0;
    char *log = NULL;
    line[0] = '\0';
    if (nvrtc.log_size(program, &bytes) == NVRTC_SUCCESS && bytes && (log = malloc(bytes)) &&
        nvrtc.log(program, log) == NVRTC_SUCCESS)
        snprintf(line, size, "%.*s", (int)strcspn(log, "\n"), log);
    free(log);
}

static ts_status compile(const char *text, int capability, ts_cuda_compiled *compiled)
{
    char arch[40], line[200];
    /* --fmad=false: products and sums are rounded separately, as in the eager kernels */
    const char *options[] = {arch, "--std=c++20", "--fmad=false",
                             "--device-as-default-execution-space", "--minimal"};
    nvrtcProgram program;
    snprintf(arch, sizeof arch, "--gpu-architecture=sm_%d", capability);
    if (nvrtc.create(&program, text, "group.cu", 0, NULL, NULL) != NVRTC_SUCCESS)
        return ts_error_set(TS_ERR_MEMORY, "no memory for a compilation");
    nvrtcResult result = nvrtc.compile(program, sizeof options / sizeof *options, options);
    ts_status status = TS_OK;
    if (result != NVRTC_SUCCESS) {
        first_line(program, line, sizeof line);
        status = ts_error_set(result == NVRTC_ERROR_OUT_OF_MEMORY ? TS_ERR_MEMORY
                                                                  : TS_ERR_UNSUPPORTED,
                              "NVRTC %d.%d for sm_%d: error %d: %s",
                              nvrtc.major, nvrtc.minor, capability, (int)result, line);
    } else if (nvrtc.cubin_size(program, &compiled->bytes) != NVRTC_SUCCESS || !compiled->bytes ||
               !(compiled->image = malloc(compiled->bytes)) ||
               nvrtc.cubin(program, compiled->image) != NVRTC_SUCCESS) {
        free(compiled->image);
        compiled->image = NULL;
        status = ts_error_set(TS_ERR_MEMORY, "no memory for a kernel");
    }
    nvrtc.destroy(&program);
    return status;
}

/** Writes a source to the folder that TS_DUMP names, for readers. */
static void dump(const char *source)
{
    const char *folder = getenv("TS_DUMP");
    char path[600];
    uint64_t hash = 0xcbf29ce484222325u;
    for (const char *c = source; folder && *c; c++)
        hash = (hash ^ (uint8_t)*c) * 0x100000001b3u;
    if (!folder || !*folder ||
        snprintf(path, sizeof path, "%s/group-%016llx.cu", folder, (unsigned long long)hash) >=
            (int)sizeof path)
        return;
    FILE *out = fopen(path, "w");
    if (out) {
        fputs(source, out);
        fclose(out);
    }
}

/** Key of a cache file, followed by the text. */
typedef struct compiler {
    uint32_t capability, major, minor, none;
} compiler;

ts_status ts_cuda_compile(const char *source, int capability, ts_cuda_compiled *compiled)
{
    static const ts_cuda_disk disk = {"groups", "compile", "a group's kernel"};
    const char *why;
    if (!ts_cuda_nvrtc(&why))
        return ts_error_set(TS_ERR_UNSUPPORTED, "%s", why);
    size_t bytes = sizeof(compiler) + sizeof formulas + strlen(source);
    char *key = malloc(bytes), *text = key + sizeof(compiler);
    if (!key)
        return ts_error_set(TS_ERR_MEMORY, "no memory for a compilation");
    memcpy(key, &(compiler){(uint32_t)capability, (uint32_t)nvrtc.major, (uint32_t)nvrtc.minor, 0},
           sizeof(compiler));
    memcpy(text, formulas, sizeof formulas - 1);
    strcpy(text + sizeof formulas - 1, source);
    dump(source);
    compiled->image = ts_cuda_disk_read(&disk, key, bytes, &compiled->bytes);
    compiled->from_disk = compiled->image != NULL;
    ts_status status = compiled->image ? TS_OK : compile(text, capability, compiled);
    if (status == TS_OK && !compiled->from_disk)
        ts_cuda_disk_keep(&disk, key, bytes, compiled->image, compiled->bytes);
    free(key);
    return status;
}
