/**
 * @file offset.h  A mock backend over host memory whose addresses the host cannot access.
 *
 * An address on the device (a handle) is a host pointer plus 2^60, which no machine maps, so an
 * access that bypasses the backend crashes.
 */
// SPDX-License-Identifier: MIT
#ifndef TESTS_DISPATCH_OFFSET_H
#define TESTS_DISPATCH_OFFSET_H

#include "include/tessera/backend.h"
#include "tests/dispatch/common.h"

#define OFFSET ((uintptr_t)1 << 60)
static inline void *to_handle(void *p) { return (void *)((uintptr_t)p + OFFSET); }
static inline void *from_handle(const void *h) { return (void *)((uintptr_t)h - OFFSET); }

/** State of such a backend. */
typedef struct offset_state {
    _Atomic int64_t live; /* bytes allocated and not freed, on all devices */
    int devices;          /* number of devices */
} offset_state;

static inline int offset_devices(void *state) { return ((offset_state *)state)->devices; }
static inline void *offset_allocate(void *state, int device, int64_t bytes, ts_stream *stream)
{
    (void)device, (void)stream;
    offset_state *s = state;
    void *p = bytes > (int64_t)1 << 40 ? NULL : malloc((size_t)bytes);
    s->live += p ? bytes : 0;
    return p ? to_handle(p) : NULL;
}
static inline void offset_free(void *state, int device, void *data, int64_t bytes)
{
    (void)device;
    ((offset_state *)state)->live -= bytes;
    free(from_handle(data));
}
static inline ts_status offset_in(void *state, int device, void *to, const void *from,
                                  int64_t bytes, ts_stream *stream)
{
    (void)state, (void)device, (void)stream;
    memcpy(from_handle(to), from, (size_t)bytes);
    return TS_OK;
}
static inline ts_status offset_out(void *state, int device, void *to, const void *from,
                                   int64_t bytes, ts_stream *stream)
{
    (void)state, (void)device, (void)stream;
    memcpy(to, from_handle(from), (size_t)bytes);
    return TS_OK;
}
static inline ts_status offset_within(void *state, int device, void *to, const void *from,
                                      int64_t bytes, ts_stream *stream)
{
    (void)state, (void)device, (void)stream;
    memcpy(from_handle(to), from_handle(from), (size_t)bytes);
    return TS_OK;
}

/** Fields of a ts_backend named `title`: its devices, and the functions for memory and copies.
 *  memory: address of an offset_state. */
#define OFFSET_BACKEND(title, flag_bits, memory)                                                   \
    .struct_size = sizeof(ts_backend), .abi_version = TS_BACKEND_ABI, .name = title,               \
        .flags = flag_bits,                                                                        \
    .state = memory, .device_count = offset_devices, .allocate = offset_allocate,                  \
    .free = offset_free,                                                                           \
    .copy_in = offset_in, .copy_out = offset_out, .copy_within = offset_within

#endif
