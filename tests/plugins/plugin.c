/**
 * @file plugin.c  Library of a test backend. Macros select its fault; without one it is valid.
 *
 * Built against the public headers alone.
 */
// SPDX-License-Identifier: MIT
#include <tessera/backend.h>
#include <tessera/kernel.h>

#include <stdlib.h>
#include <string.h>

#ifndef NAME
#define NAME "PLUGIN"
#endif
#ifndef ABI
#define ABI TS_BACKEND_ABI
#endif
#ifndef BYTES
#define BYTES sizeof(ts_backend)
#endif

static void *allocate(void *state, int device, int64_t bytes, ts_stream *stream)
{
    (void)state, (void)device, (void)stream;
    return malloc((size_t)bytes);
}
static void release(void *state, int device, void *data, int64_t bytes)
{
    (void)state, (void)device, (void)bytes;
    free(data);
}
static ts_status copy(void *state, int device, void *to, const void *from, int64_t bytes,
                      ts_stream *stream)
{
    (void)state, (void)device, (void)stream;
    memcpy(to, from, (size_t)bytes);
    return TS_OK;
}

#ifdef NO_DEVICE
static int device_count(void *state)
{
    (void)state;
    ts_error_set_hint(TS_ERR_DEVICE, "plug it in", "the cable hangs loose");
    return 0;
}
#endif

/** relu of contiguous f32, plus 10, which shows that this kernel ran. */
static ts_status relu(ts_frame *f)
{
    const float *x = ts_kernel_data(f->args[0].t);
    float *y = ts_kernel_data(f->rets[0].t);
    for (int64_t i = 0; i < ts_numel(f->rets[0].t); i++)
        y[i] = (x[i] > 0 ? x[i] : 0) + 10;
    return TS_OK;
}

static ts_status install(void *state, ts_key key)
{
    (void)state, (void)key;
    TS_TRY(ts_register_op(NAME ".own(Tensor self) -> Tensor", NULL));
    TS_TRY(ts_register_kernel("relu", key, relu, "relu(Tensor self) -> Tensor", NULL));
#ifdef WRONG_SCHEMA
    TS_TRY(ts_register_kernel("add", key, relu, "add(Tensor self) -> Tensor", NULL));
#endif
#ifdef SILENT_FAILURE
    return TS_ERR_STATE;
#endif
    return TS_OK;
}

static const ts_backend backend = {
    .struct_size = BYTES, .abi_version = ABI, .name = NAME, .flags = TS_BACKEND_CPU_FALLBACK,
    .install = install,
    .allocate = allocate, .free = release, .copy_in = copy, .copy_out = copy, .copy_within = copy,
#ifdef NO_DEVICE
    .device_count = device_count,
#endif
};

#ifdef NO_SYMBOL
__attribute__((visibility("default"))) const ts_backend *another_name(void);
const ts_backend *another_name(void) { return &backend; }
#else
TS_BACKEND_ENTRY(&backend)
#endif
