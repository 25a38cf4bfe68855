/** @file copy.h  Strided copies with dtype conversion, for kernels that copy parts of tensors. */
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_COPY_H
#define TS_BACKENDS_CPU_COPY_H

#include "backends/cpu/loops.h"

/** Returns the loop (ts_loop in loops.h) that converts elements of dtype `from` to dtype `to`: its
 *  data[0] is the result, data[1] the source, params are not used. Every pair has a loop. */
ts_loop TS_V(ts_cpu_copy_loop)(ts_dtype to, ts_dtype from);
/** Copies a matrix transposed: `to` is (rows, columns), `from` is (columns, rows). Elements of a
 *  row are adjacent and have `item` bytes: 1, 2, 4 or 8. to_row and from_row: bytes between
 *  rows. */
void TS_V(ts_cpu_transpose)(char *to, int64_t to_row, const char *from, int64_t from_row,
                            int64_t rows, int64_t columns, int item);
/**
 * Copies an array of ndim dims from `from` to `to`, converting the dtype, on the thread pool.
 * @param sizes  ndim sizes, outermost dim first; no element is copied if a size is 0
 * Strides are in elements and may differ between source and destination. The two must not overlap.
 * Allocates no memory.
 */
void TS_V(ts_cpu_copy_part)(char *to, const int64_t *to_strides, ts_dtype to_dtype,
                            const char *from, const int64_t *from_strides, ts_dtype from_dtype,
                            const int64_t *sizes, int ndim);

/** Copies src to dst, which has the same sizes, converting the dtype. Allocates no memory and does
 *  not increment dst's version. */
static inline __attribute__((unused)) void ts_cpu_copy_to(const ts_tensor *dst,
                                                          const ts_tensor *src)
{
    TS_V(ts_cpu_copy_part)(dst->data, dst->strides, (ts_dtype)dst->dtype, src->data, src->strides,
                           (ts_dtype)src->dtype, dst->sizes, dst->ndim);
}

#endif
