/**
 * @file plugin.c
 * A test backend over host memory with one kernel, relu in f32. TS_TEST_PLUGIN selects the fault
 * that it has: tail, layout, spill, crash, exit, hang, lacking, late or install; empty: none.
 */
// SPDX-License-Identifier: MIT
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tessera/backend.h>

static const char *mode(void)
{
    const char *value = getenv("TS_TEST_PLUGIN");
    return value ? value : "";
}

static bool is(const char *name) { return strcmp(mode(), name) == 0; }

/* Device addresses are invalid on the host: an access crashes. */
static void *device_address(char *p) { return (void *)((uintptr_t)p ^ (uintptr_t)1 << 60); }
static char *host_address(const void *p) { return (char *)((uintptr_t)p ^ (uintptr_t)1 << 60); }

/** True if the kernel shall ignore strides (fault "layout"); never for expanded dims, where that
 *  would access other memory. */
static bool ignores_strides(const ts_tensor *t)
{
    for (int d = 0; d < ts_ndim(t); d++)
        if (ts_strides(t)[d] == 0)
            return false;
    return is("layout");
}

/** Bytes from a tensor's first element to the one at row-major index i. */
static int64_t place(const ts_tensor *t, int64_t i)
{
    int64_t at = 0;
    for (int d = ts_ndim(t) - 1; d >= 0; d--) {
        at += i % ts_sizes(t)[d] * ts_strides(t)[d];
        i /= ts_sizes(t)[d];
    }
    return at * (int64_t)sizeof(float);
}

static ts_status relu(ts_frame *frame)
{
    const ts_tensor *x = frame->args[0].t, *y = frame->rets[0].t;
    int64_t n = ts_numel(x);
    if (n == 65 * 3 && is("crash"))
        raise(SIGSEGV);
    if (is("exit"))
        _exit(0);
    if (is("hang"))
        sleep(100);
    if (is("late"))
        return ts_error_set(TS_ERR_MEMORY, "relu: no room");
    for (int64_t i = 0; i < n; i++) {
        char *from = host_address(ts_data(x)) +
                     (ignores_strides(x) ? i * (int64_t)sizeof(float) : place(x, i));
        char *to = host_address(ts_data(y)) + place(y, i);
        float value;
        memcpy(&value, from, sizeof value);
        value = value < 0 ? 0 : value;
        if (is("tail") && n > 100 && i == n - 1)
            value += 1;
        memcpy(to, &value, sizeof value);
        if (is("spill") && i == n - 1)
            memcpy(to + sizeof value, &value, sizeof value);
    }
    return TS_OK;
}

static ts_status install(void *state, ts_key key)
{
    (void)state;
    if (is("install"))
        return ts_error_set(TS_ERR_STATE, "no device answers");
    return ts_register_kernel("relu", key, relu, "relu(Tensor self) -> Tensor", NULL);
}

static bool supports(void *state, const ts_frame *frame)
{
    (void)state;
    return strcmp(ts_op_name(frame->op), "relu") != 0 || ts_dtype_of(frame->args[0].t) == TS_F32;
}

enum { GUARD = 64 }; /* bytes after each block, so that a spill stays in the process */

static void *allocate(void *state, int device, int64_t bytes, ts_stream *stream)
{
    (void)state, (void)device, (void)stream;
    char *p = bytes < (int64_t)1 << 40 ? malloc((size_t)bytes + GUARD) : NULL;
    return p ? device_address(p) : NULL;
}

static void release(void *state, int device, void *data, int64_t bytes)
{
    (void)state, (void)device, (void)bytes;
    free(host_address(data));
}

static ts_status copy_in(void *state, int device, void *to, const void *from, int64_t bytes,
                         ts_stream *stream)
{
    (void)state, (void)device, (void)stream;
    memcpy(host_address(to), from, (size_t)bytes);
    return TS_OK;
}

static ts_status copy_out(void *state, int device, void *to, const void *from, int64_t bytes,
                          ts_stream *stream)
{
    (void)state, (void)device, (void)stream;
    memcpy(to, host_address(from), (size_t)bytes);
    return TS_OK;
}

static ts_status copy_within(void *state, int device, void *to, const void *from, int64_t bytes,
                             ts_stream *stream)
{
    (void)state, (void)device, (void)stream;
    memcpy(host_address(to), host_address(from), (size_t)bytes);
    return TS_OK;
}

static ts_backend backend = {
    .struct_size = sizeof backend, .abi_version = TS_BACKEND_ABI, .name = "PLANTED",
    .install = install, .supports = supports,
    .allocate = allocate, .free = release, .copy_in = copy_in, .copy_out = copy_out,
    .copy_within = copy_within,
};

static const ts_backend *chosen(void)
{
    backend.flags = is("lacking") ? 0 : TS_BACKEND_CPU_FALLBACK;
    return &backend;
}

TS_BACKEND_ENTRY(chosen())
