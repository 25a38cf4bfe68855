/**
 * @file backend.c  A backend outside the library: memory, copies, and the struct that describes
 * them.
 *
 * Every function is synchronous, so the backend needs no streams and events; those members stay
 * NULL. docs/add-a-backend.md explains the steps.
 */
// SPDX-License-Identifier: MIT
#include "my_backend.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static _Atomic int64_t in_use, peak;

static void *allocate(void *state, int device, int64_t bytes, ts_stream *stream)
{
    (void)state, (void)device, (void)stream;
    void *real = aligned_alloc(64, (size_t)(bytes + 63) / 64 * 64);
    if (!real)
        return NULL; /* the library makes the error */
    int64_t now = atomic_fetch_add(&in_use, bytes) + bytes, most = atomic_load(&peak);
    while (now > most && !atomic_compare_exchange_weak(&peak, &most, now))
        ;
    return my_address(real);
}

static void release(void *state, int device, void *data, int64_t bytes)
{
    (void)state, (void)device;
    atomic_fetch_sub(&in_use, bytes);
    free(my_real(data));
}

static ts_status copy_in(void *state, int device, void *to, const void *from, int64_t bytes,
                         ts_stream *stream)
{
    (void)state, (void)device, (void)stream;
    memcpy(my_real(to), from, (size_t)bytes);
    return TS_OK;
}

static ts_status copy_out(void *state, int device, void *to, const void *from, int64_t bytes,
                          ts_stream *stream)
{
    (void)state, (void)device, (void)stream;
    memcpy(to, my_real(from), (size_t)bytes);
    return TS_OK;
}

static ts_status copy_within(void *state, int device, void *to, const void *from, int64_t bytes,
                             ts_stream *stream)
{
    (void)state, (void)device, (void)stream;
    memcpy(my_real(to), my_real(from), (size_t)bytes);
    return TS_OK;
}

static ts_status memory_stats(void *state, int device, ts_memory_stats *stats)
{
    (void)state, (void)device;
    *stats = (ts_memory_stats){.in_use = atomic_load(&in_use),
                               .peak = atomic_load(&peak),
                               .reserved = atomic_load(&in_use)};
    return TS_OK;
}

static ts_status memory_reset_peak(void *state, int device)
{
    (void)state, (void)device;
    atomic_store(&peak, atomic_load(&in_use));
    return TS_OK;
}

static ts_status install(void *state, ts_key key)
{
    (void)state;
    return my_kernels_install(key);
}

static bool supports(void *state, const ts_frame *frame)
{
    (void)state;
    return my_kernels_support(frame);
}

static const ts_backend backend = {
    .struct_size = sizeof backend,
    .abi_version = TS_BACKEND_ABI,
    .name = "MINE",                      /* devices are called mine:0 */
    .flags = TS_BACKEND_CPU_FALLBACK,    /* ops without a kernel here run on the CPU */
    .install = install,
    .allocate = allocate,
    .free = release,
    .copy_in = copy_in,
    .copy_out = copy_out,
    .copy_within = copy_within,
    .supports = supports,
    .memory_stats = memory_stats,
    .memory_reset_peak = memory_reset_peak,
};

TS_BACKEND_ENTRY(&backend)
