/** @file gemm.h  Products of matrices through cuBLASLt, with plans that are made once. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_GEMM_H
#define TS_CUDA_GEMM_H

#include "backends/cuda/runtime.h"

TS_BEGIN_DECLS

/** A batch of matrices in memory, with rows and columns of the product's operand. */
typedef struct ts_cuda_matrix {
    void *data;
    int64_t rows, columns;
    int64_t row, column; /* steps in elements; one of them is 1 */
    int64_t batch;       /* step from matrix to matrix */
} ts_cuda_matrix;

/** The epilogue of a product, applied before it is rounded and stored; zero is none. */
typedef struct ts_cuda_epilogue {
    const void *bias; /* a row of c's columns, which is added; NULL: none */
    bool gelu;        /* followed by gelu in its tanh form; requires one batch and a multiple of 8
                         columns of c */
    void *linear;     /* receives gelu's argument, laid out as c; NULL: not wanted */
    void *sums;       /* without the others: receives the sums of a's rows; NULL: not wanted */
} ts_cuda_epilogue;

/**
 * c = a b with an epilogue, in batches. Rows of c are dense. All data must be at multiples of 16
 * bytes, so that each shape has one algorithm. Halves and f32 accumulate in f32; with
 * TS_CUDA_TF32=1, f32 is rounded to TF32 first.
 */
ts_status ts_cuda_gemm(const ts_frame *frame, ts_dtype dtype, const ts_cuda_matrix *a,
                       const ts_cuda_matrix *b, const ts_cuda_matrix *c, int64_t batches,
                       const ts_cuda_epilogue *then);
/** Whether cuBLASLt has an algorithm for that; true, too, when the question fails,
 * which the product will then say. */
bool ts_cuda_gemm_is_there(const ts_frame *frame, ts_dtype dtype, const ts_cuda_matrix *a,
                           const ts_cuda_matrix *b, const ts_cuda_matrix *c, int64_t batches,
                           const ts_cuda_epilogue *then);

/**
 * c = a b + bias in integers, which wrap around, in batches. Operands may have any steps; c has
 * rows that are dense.
 * @param bias  a row of c's columns; NULL: none
 */
ts_status ts_cuda_gemm_integers(ts_frame *frame, ts_dtype dtype, const ts_cuda_matrix *a,
                                const ts_cuda_matrix *b, const ts_cuda_matrix *c, int64_t batches,
                                const void *bias);

TS_END_DECLS
#endif
