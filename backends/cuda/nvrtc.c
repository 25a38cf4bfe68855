/**
 * @file nvrtc.c
 * Loads NVRTC at run time, compiles sources, and caches machine code on disk.
 *
 * The name of a cache file is a hash of the source. The file also contains the source, which is
 * compared when the file is read. Files are in a folder of the user; a folder or file that another
 * user owns or may write is ignored. If a file cannot be written, the next process compiles again.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/fuse.h"
#include "tessera/program.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <nvrtc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

/* -------------------------------------------------------------------------------- files ---- */

/** Header of a file, followed by the source with its final 0, and the code. */
typedef struct head {
    char magic[8];
    uint32_t capability, major, minor, none;
    uint64_t source, bytes, digest; /* bytes of the source; bytes of the code; hash of both */
} head;
static const char magic[8] = "TSGROUP1";

static uint64_t digest_of(const char *data, size_t bytes, uint64_t hash)
{
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ (uint8_t)data[i]) * 0x100000001b3u;
    return hash;
}

/** Folder of the files: TS_CUDA_CACHE, else below XDG_CACHE_HOME or ~/.cache. False if there is
 *  none, also if TS_CUDA_CACHE is not an absolute path. */
static bool folder_of(char *folder, size_t size)
{
    const char *own = getenv("TS_CUDA_CACHE"), *cache = getenv("XDG_CACHE_HOME"),
               *home = getenv("HOME");
    int n = -1;
    if (own && *own)
        n = own[0] == '/' ? snprintf(folder, size, "%s", own) : -1;
    else if (cache && cache[0] == '/')
        n = snprintf(folder, size, "%s/tessera/groups", cache);
    else if (home && home[0] == '/')
        n = snprintf(folder, size, "%s/.cache/tessera/groups", home);
    return n > 0 && (size_t)n < size;
}

/** Whether only the current user owns and may write a file or folder. */
static bool is_own(const struct stat *status)
{
    return status->st_uid == geteuid() && !(status->st_mode & (S_IWGRP | S_IWOTH));
}

static bool read_all(int fd, void *into, size_t bytes)
{
    char *at = into;
    while (bytes) {
        ssize_t n = read(fd, at, bytes);
        if (n == 0 || (n < 0 && errno != EINTR))
            return false;
        if (n > 0) {
            at += n;
            bytes -= (size_t)n;
        }
    }
    return true;
}

/** Reads the code of a cache file into *compiled. False if the file is missing or damaged, or was
 * not compiled from `text` for the capability and by the NVRTC version in *want. */
static bool read_file(const char *path, const head *want, const char *text,
                      ts_cuda_compiled *compiled)
{
    int fd;
    head h;
    struct stat status;
    char *all = NULL;
    if (ts_open_file("group", path, O_RDONLY | O_NOFOLLOW, &fd) != TS_OK) {
        ts_error_clear();
        return false;
    }
    bool good = fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && is_own(&status) &&
                read_all(fd, &h, sizeof h) && memcmp(h.magic, magic, 8) == 0 &&
                h.capability == want->capability && h.major == want->major &&
                h.minor == want->minor && h.source == want->source && h.bytes > 0 &&
                h.bytes < (uint64_t)1 << 30 && (all = malloc(h.source + h.bytes)) &&
                read_all(fd, all, h.source + h.bytes) &&
                digest_of(all, h.source + h.bytes, 0xcbf29ce484222325u) == h.digest &&
                memcmp(all, text, h.source) == 0;
    close(fd);
    if (good && (compiled->image = malloc(h.bytes))) {
        memcpy(compiled->image, all + h.source, h.bytes);
        compiled->bytes = h.bytes;
        compiled->from_disk = true;
    }
    free(all);
    return compiled->image != NULL;
}

typedef struct contents {
    head h;
    const char *source;
    const ts_cuda_compiled *compiled;
} contents;
static ts_status write_contents(FILE *out, void *ctx)
{
    const contents *c = ctx;
    fwrite(&c->h, sizeof c->h, 1, out);
    fwrite(c->source, c->h.source, 1, out);
    fwrite(c->compiled->image, c->compiled->bytes, 1, out);
    return TS_OK;
}

/** Makes the folder and its parents, accessible to the user only. */
static void make_folder(char *folder)
{
    for (char *at = folder + 1; *at; at++)
        if (*at == '/') {
            *at = '\0';
            mkdir(folder, 0700); /* an existing folder is fine; other failures show below */
            *at = '/';
        }
    mkdir(folder, 0700);
}

static void keep_file(char *folder, const char *path, const head *want, const char *text,
                      const ts_cuda_compiled *compiled)
{
    contents c = {*want, text, compiled};
    c.h.bytes = compiled->bytes;
    c.h.digest = digest_of(compiled->image, compiled->bytes,
                           digest_of(text, c.h.source, 0xcbf29ce484222325u));
    struct stat status;
    make_folder(folder);
    if (stat(folder, &status) != 0 || !is_own(&status))
        ts_log_write("compile", "a group's kernel is not cached: other users may write %s", folder);
    else if (ts_replace_file("group", path, write_contents, &c) != TS_OK) {
        if (ts_log_on("compile"))
            ts_log_write("compile", "a group's kernel is not cached: %s", ts_error_message());
        ts_error_clear();
    } else {
        chmod(path, 0600);
    }
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
static void dump(const char *source, uint64_t hash)
{
    const char *folder = getenv("TS_DUMP");
    char path[600];
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

ts_status ts_cuda_compile(const char *source, int capability, ts_cuda_compiled *compiled)
{
    const char *why;
    char folder[512], path[600];
    if (!ts_cuda_nvrtc(&why))
        return ts_error_set(TS_ERR_UNSUPPORTED, "%s", why);
    size_t bytes = sizeof formulas + strlen(source);
    char *text = malloc(bytes);
    if (!text)
        return ts_error_set(TS_ERR_MEMORY, "no memory for a compilation");
    memcpy(text, formulas, sizeof formulas - 1);
    strcpy(text + sizeof formulas - 1, source);
    head want = {.capability = (uint32_t)capability, .major = (uint32_t)nvrtc.major,
                 .minor = (uint32_t)nvrtc.minor, .source = bytes};
    memcpy(want.magic, magic, sizeof magic);
    uint64_t hash = digest_of(text, bytes, 0xcbf29ce484222325u);
    bool keeps = folder_of(folder, sizeof folder);
    if (keeps)
        snprintf(path, sizeof path, "%s/%016llx-%d-%d.%d", folder, (unsigned long long)hash,
                 capability, nvrtc.major, nvrtc.minor);
    dump(source, hash);
    ts_status status = TS_OK;
    if (!keeps || !read_file(path, &want, text, compiled)) {
        status = compile(text, capability, compiled);
        if (status == TS_OK && keeps)
            keep_file(folder, path, &want, text, compiled);
    }
    free(text);
    return status;
}
