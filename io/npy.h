/** @file npy.h  Reading and writing of npy data (NumPy's format of one array), for npy files
 * (npy.c) and for the members of npz archives (npz.c). */
// SPDX-License-Identifier: MIT
#ifndef TS_IO_NPY_H
#define TS_IO_NPY_H

#include "io/files.h"

/** Largest header that ts_npy_header() writes, in bytes. */
#define TS_NPY_HEADER 320

/** Reads an npy file into a new tensor of the caller's scope; errors as ts_npy_load(). */
ts_tensor *ts_npy_read(const ts_span *file);
/** Returns t if it is contiguous, else a contiguous copy in the caller's scope; NULL with
 *  TS_ERR_DEVICE (not on the CPU), TS_ERR_DTYPE (NumPy lacks the dtype), TS_ERR_MEMORY, or an error
 *  of the recorded calls that compute t. */
ts_tensor *ts_npy_writable(const char *op, ts_tensor *t);
/** Writes the npy header of t, a contiguous tensor with a dtype that NumPy has, and returns the
 *  header's length in bytes. */
int ts_npy_header(const ts_tensor *t, char text[TS_NPY_HEADER]);

#endif
