/** @file element.h  Elements of arrays in files, whose types and byte orders tensors may lack. */
// SPDX-License-Identifier: MIT
#ifndef TS_IO_ELEMENT_H
#define TS_IO_ELEMENT_H

#include "core/tensor.h"
#include "io/files.h"

/** A type of elements. */
typedef struct ts_element {
    ts_dtype dtype; /* of the tensor; TS_DTYPE_NONE: no such type */
    int bytes;      /* in the file, at most those of dtype */
    bool is_signed; /* for integers that have fewer bytes than dtype */
    bool big_endian;
} ts_element;

/** *bytes: bytes of `ndim` sizes in the file. False if these bytes, or the bytes of a tensor of
 *  these sizes, do not fit 63 bits. */
bool ts_element_bytes(const ts_element *type, const int64_t *sizes, int ndim, int64_t *bytes);

/** Reads the elements that begin at byte `at` of a file into a new tensor of the caller's scope.
 *  NULL with an error: those of ts_span_read(), TS_ERR_SHAPE, TS_ERR_MEMORY. */
ts_tensor *ts_element_read(const ts_element *type, const ts_span *file, int64_t at,
                           const int64_t *sizes, int ndim);

#endif
