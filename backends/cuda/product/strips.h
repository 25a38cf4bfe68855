/** @file strips.h  Copies of matrices of halves whose rows may begin at any element's address, for
 * padding.c. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_STRIPS_H
#define TS_CUDA_STRIPS_H

#include "backends/cuda/runtime/runtime.h"

TS_BEGIN_DECLS

enum { TS_CUDA_STRIPS = 3 /* maximum batches of matrices that one launch copies */ };

/** A copy of a batch of matrices. Strides are in elements; the column stride of both sides is 1. */
typedef struct ts_cuda_strip {
    const void *from;
    void *to;
    int64_t rows, columns;        /* sizes of a source matrix */
    int64_t to_rows, to_columns;  /* sizes of a destination matrix; elements past the source become
                                     0 */
    int64_t from_row, to_row;     /* strides from row to row */
    int64_t from_batch, to_batch; /* strides from matrix to matrix */
    int64_t batches;
} ts_cuda_strip;

/** Copies up to TS_CUDA_STRIPS batches of matrices in one launch. Elements have 2 bytes. The
 * kernel reads only elements of the source and writes only elements of the destination. Errors:
 * TS_ERR_UNSUPPORTED for 2^31 blocks or more, TS_ERR_DEVICE. */
ts_status ts_cuda_copy_strips(ts_frame *frame, const ts_cuda_strip *strips, int count);

TS_END_DECLS
#endif
