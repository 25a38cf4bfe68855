/** @file gemm.h  Products of matrices through cuBLASLt, with plans that are made once. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_GEMM_H
#define TS_CUDA_GEMM_H

#include "backends/cuda/runtime.h"

TS_BEGIN_DECLS

/** A matrix of a batch, as it stands in memory: rows and columns of the product's operand. */
typedef struct ts_cuda_matrix {
    void *data;
    int64_t rows, columns;
    int64_t row, column; /* steps in elements; one of them is 1 */
    int64_t batch;       /* step from matrix to matrix */
} ts_cuda_matrix;

/**
 * c = a b (+ bias, a row of c's columns, where not NULL), in batches. c has rows that are dense. f32
 * products are exact f32 unless `tf32`; halves accumulate in f32.
 */
ts_status ts_cuda_gemm(const ts_frame *frame, ts_dtype dtype, const ts_cuda_matrix *a, const ts_cuda_matrix *b,
                       const ts_cuda_matrix *c, int64_t batches, const void *bias);

TS_END_DECLS
#endif
