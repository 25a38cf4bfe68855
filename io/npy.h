/** @file npy.h  Parts of npy files that npz archives share. */
// SPDX-License-Identifier: MIT
#ifndef TS_IO_NPY_H
#define TS_IO_NPY_H

#include "io/files.h"

/** Size of a header as this library writes it, at most. */
#define TS_NPY_HEADER 320

/** Reads an npy file into a new tensor of the caller's scope; errors as ts_npy_load(). */
ts_tensor *ts_npy_read(const ts_span *file);
/** t, or a contiguous copy in the caller's scope; NULL with an error if NumPy has none such. */
ts_tensor *ts_npy_writable(const char *op, ts_tensor *t);
/** Writes what precedes the data of t, contiguous, and returns its length. */
int ts_npy_header(const ts_tensor *t, char text[TS_NPY_HEADER]);

#endif
