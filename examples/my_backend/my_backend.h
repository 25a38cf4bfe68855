/** @file my_backend.h  Common declarations: addresses of the device, and the kernels. */
// SPDX-License-Identifier: MIT
#ifndef MY_BACKEND_H
#define MY_BACKEND_H

#include <tessera/backend.h>
#include <tessera/kernel.h>

/*
 * The device's memory is host memory at addresses that are 2^60 too high, where nothing is mapped.
 * Code that accesses a tensor of this device without the backend crashes at once, as it would with
 * a real accelerator.
 */
#define MY_OFFSET ((uintptr_t)1 << 60)
static inline void *my_address(const void *real) { return (void *)((uintptr_t)real + MY_OFFSET); }
static inline void *my_real(const void *address)
{
    return (void *)((uintptr_t)address - MY_OFFSET);
}

/** kernels.c: registers the kernels for key. */
ts_status my_kernels_install(ts_key key);
/** kernels.c: true if the kernel of the frame's op supports this call. */
bool my_kernels_support(const ts_frame *frame);

#endif
