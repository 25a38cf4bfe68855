/** @file library.h  Shared libraries that are opened when a function first needs them. */
// SPDX-License-Identifier: MIT
#ifndef TS_IO_LIBRARY_H
#define TS_IO_LIBRARY_H

#include "core/error.h"

/** A library and its functions. */
typedef struct ts_library {
    const char *file;         /* name for dlopen() */
    const char *variable;     /* environment variable; its value: another file, or 0: no library */
    const char *const *names; /* names of n functions */
    void **functions;         /* receives the addresses of these functions */
    int n;
    _Atomic int opened;       /* 1 after all functions have been found */
} ts_library;

/** Opens the library unless it is open, and fills `functions`. TS_ERR_UNSUPPORTED if the variable
 *  is 0, or if the library or one of its functions is missing; `op` begins the message. The library
 *  stays open. Several threads may call it. */
ts_status ts_library_open(ts_library *library, const char *op);

#endif
