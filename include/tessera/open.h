/** @file open.h  Opening the backends that come with the library,
 * and choosing the device to use. */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPEN_H
#define TESSERA_OPEN_H

#include "backend.h"

TS_BEGIN_DECLS

/**
 * Opens a backend that comes with the library ("cuda") unless it is there already. Its file
 * (libtessera_cuda.so.0) is looked for beside this library, then by the dynamic linker's own rules.
 * The variable TS_CUDA refuses it (0) or names the file. Nothing is opened unless a program asks.
 * @param key  receives the backend's key; may be NULL
 *
 * Errors: TS_ERR_VALUE (no such backend comes with the library), TS_ERR_DEVICE (refused),
 * and those of ts_backend_load(). That the backend opens does not say that it has a device.
 */
TS_API ts_status ts_backend_open(const char *name, ts_key *key);

/**
 * The device that a program is to use, by what its user wrote: "auto" is the first device
 * of the backends that come with the library, else the CPU, and never an error; "cpu", "cuda",
 * "cuda:1" are these, opened as by ts_backend_open(), and must exist.
 * @param why   receives a line that says why it is this one, cut to `size` bytes; may be NULL
 *
 * Errors: TS_ERR_VALUE (no such name), TS_ERR_DEVICE (no such device, no driver, a driver too old),
 * and those of ts_backend_open().
 */
TS_API ts_status ts_device_open(const char *name, ts_device *device, char *why, size_t size);

TS_END_DECLS
#endif
