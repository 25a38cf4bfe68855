/** @file padding.h  Products of halves over padded copies. cuBLASLt is slow if rows are not
 * multiples of 16 bytes. Therefore operands are copied to rows padded with zeros, and the result
 * is computed in a padded copy if its rows need one. ts_cuda_pads() decides,
 * ts_cuda_gemm_padded() computes. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_PADDING_H
#define TS_CUDA_PADDING_H

#include "backends/cuda/product/gemm.h"

TS_BEGIN_DECLS

/** Sizes, with padding, of a product a (rows, inner) b (inner, columns) = c (rows, columns), and
 * which of its matrices are copied. See docs/matmul.md. */
typedef struct ts_cuda_padding {
    int64_t rows, columns, inner;
    bool a, b, c; /* the matrix is copied */
    bool last;    /* of b, only the last columns, which do not fill a vector of 16 bytes, are
                     copied */
} ts_cuda_padding;

/** True if dtype is bf16 or f16 and some matrix has dense rows (or columns) whose length or stride,
 *  or a batch stride, is not a multiple of 16 bytes. */
bool ts_cuda_is_uneven(ts_dtype dtype, const ts_cuda_matrix *a, const ts_cuda_matrix *b,
                       const ts_cuda_matrix *c, int64_t batches);

/** True if a product is expected to be faster over padded copies; then sets *padding, which is
 * undefined otherwise. False for an epilogue with gelu. The answer depends only on dtype, sizes,
 * strides, epilogue and the environment variable TS_CUDA_MATMUL: direct pads nothing, padded pads
 * each product with uneven matrices. */
bool ts_cuda_pads(ts_dtype dtype, const ts_cuda_matrix *a, const ts_cuda_matrix *b,
                  const ts_cuda_matrix *c, int64_t batches, const ts_cuda_epilogue *then,
                  ts_cuda_padding *padding);

/** Writes a line to the log's topic `matmul` that the product is not padded, if
 *  ts_cuda_is_uneven(). */
void ts_cuda_log_direct(const ts_frame *frame, ts_dtype dtype, const ts_cuda_matrix *a,
                        const ts_cuda_matrix *b, const ts_cuda_matrix *c, int64_t batches);

/** ts_cuda_gemm_is_there() for the padded product. */
bool ts_cuda_padded_gemm_is_there(const ts_frame *frame, ts_dtype dtype, const ts_cuda_matrix *a,
                                  const ts_cuda_matrix *b, const ts_cuda_matrix *c,
                                  int64_t batches, const ts_cuda_epilogue *then,
                                  const ts_cuda_padding *padding);

/**
 * ts_cuda_gemm() over padded copies, which the call allocates as scratch memory and frees. Errors:
 * those of ts_cuda_gemm() and ts_cuda_copy_strips(). `then` has no gelu; gelu_of and wide require
 * padding->c false. A caller that has a copy of `a` by ts_cuda_pad_matrix(), with at least
 * padding->rows x padding->inner elements, sets padding->a to false and passes the copy as `a`.
 */
ts_status ts_cuda_gemm_padded(ts_frame *frame, ts_dtype dtype, const ts_cuda_matrix *a,
                              const ts_cuda_matrix *b, const ts_cuda_matrix *c, int64_t batches,
                              const ts_cuda_epilogue *then, const ts_cuda_padding *padding);

/** A padded copy in scratch memory. The caller frees `data` by ts_scratch_give(device, data,
 * bytes). */
typedef struct ts_cuda_padded {
    ts_cuda_matrix matrix;
    void *data;
    int64_t bytes;
} ts_cuda_padded;

/** Sets *to to a copy of one matrix of halves, extended by zeros to `rows` x `columns` elements.
 * The copy has dense rows if `from` has, else dense columns. Errors: TS_ERR_MEMORY, those of
 * ts_cuda_copy_strips(); to->data is then NULL. */
ts_status ts_cuda_pad_matrix(ts_frame *frame, const ts_cuda_matrix *from, int64_t rows,
                             int64_t columns, ts_cuda_padded *to);

TS_END_DECLS
#endif
