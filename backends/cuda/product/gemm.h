/** @file gemm.h  Matrix products (GEMM), for matmul.c and padding.c: of floating dtypes by
 * cuBLASLt, with cached plans, or by the library's kernels where these are faster; of integers by
 * the library's kernels. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_GEMM_H
#define TS_CUDA_GEMM_H

#include "backends/cuda/runtime/runtime.h"

TS_BEGIN_DECLS

/** A batch of matrices: an operand or the result of a product. Strides are in elements. */
typedef struct ts_cuda_matrix {
    void *data;
    int64_t rows, columns;
    int64_t row, column; /* strides from row to row and from column to column; one of them is 1,
                            except for ts_cuda_gemm_integers() */
    int64_t batch;       /* stride from matrix to matrix; 0: one operand for all products */
} ts_cuda_matrix;

/** The epilogue of a product, applied before the result is rounded and stored. All zero: none. The
 * comments say which fields exclude each other: "not beside x" means that x must be zero. gelu is
 * the tanh form. */
typedef struct ts_cuda_epilogue {
    const void *bias; /* added to each row of c, one element per column; NULL: none */
    bool gelu;        /* then apply gelu; requires one batch and a multiple of 8 columns in c */
    bool relu;        /* then apply relu, to the product with bias and added matrix; not beside
                         gelu, gelu_of, wide and sums */
    void *linear;     /* receives gelu's argument in the layout of c; NULL: not requested */
    const void *gelu_of; /* then multiply by the derivative of gelu at these arguments, which have
                            the layout of c; NULL: no. Conditions as for gelu; not beside other
                            fields except columns and curve */
    void *curve;   /* receives gelu of gelu_of, in the layout of c; NULL: not wanted. Requires
                      gelu_of and ts_cuda_takes_slope() */
    void *columns; /* receives the sums of c's columns, in c's dtype; NULL: not wanted. Requires
                      gelu_of and ts_cuda_takes_slope() */
    bool wide; /* c is f32 where a and b are halves; not beside bias, gelu and gelu_of */
    void *sums;       /* receives the sum of each row of a, in a's dtype; NULL: not wanted. Requires
                         one batch, and that the other fields except `beside` are zero */
    const double *factors; /* alpha and beta: c = alpha a b + beta added; NULL: 1 and 0 */
    const void *added;     /* matrix with the layout of c; NULL: c itself */
    bool beside; /* ts_cuda_gemm_f32() only: may run beside the launch of ts_cuda_gemm_f32() just
                    before it, because neither reads or writes what the other writes */
} ts_cuda_epilogue;

/**
 * Queues c = a b (or alpha a b + beta added) with an epilogue, for `batches` matrices, on the
 * frame's device and stream. dtype: f64, f32, bf16 or f16, the same for all matrices, except that c
 * is f32 with then->wide. Rows of c are dense. All data must be 16-byte aligned, so that each shape
 * has one algorithm. Halves and f32 accumulate in f32; with TS_CUDA_TF32=1, f32 operands are
 * rounded to TF32 first.
 * Errors: TS_ERR_UNSUPPORTED for more than INT32_MAX matrices; TS_ERR_MEMORY; TS_ERR_DEVICE for
 * other errors of cuBLASLt and CUDA, also if cuBLASLt has no algorithm.
 */
ts_status ts_cuda_gemm(const ts_frame *frame, ts_dtype dtype, const ts_cuda_matrix *a,
                       const ts_cuda_matrix *b, const ts_cuda_matrix *c, int64_t batches,
                       const ts_cuda_epilogue *then);
/** True if cuBLASLt has an algorithm for this product. Also true if the query fails; ts_cuda_gemm()
 * then reports the error. */
bool ts_cuda_gemm_is_there(const ts_frame *frame, ts_dtype dtype, const ts_cuda_matrix *a,
                           const ts_cuda_matrix *b, const ts_cuda_matrix *c, int64_t batches,
                           const ts_cuda_epilogue *then);

/** True if ts_cuda_gemm() computes an f32 product by ts_cuda_gemm_f32() unless TS_CUDA_TF32=1. It
 * requires sm_90 or later, sizes of at least 16, at most 2^30 multiplications, 2^20 rows of c and
 * 65,535 matrices, dense rows (or columns) of a and b that are multiples of 16 bytes apart, no gelu
 * or gelu_of, and either many tiles of c or a short inner dim. `sums` requires one matrix. The
 * answer depends on the device, sizes, strides and epilogue only. */
bool ts_cuda_takes_f32(const ts_cuda_device *device, const ts_cuda_matrix *a,
                       const ts_cuda_matrix *b, const ts_cuda_matrix *c, int64_t batches,
                       const ts_cuda_epilogue *then);
/** ts_cuda_gemm() for an f32 product for which ts_cuda_takes_f32() is true: three TF32 products on
 * tensor cores, with about the accuracy of f32 (f32.cu). */
ts_status ts_cuda_gemm_f32(const ts_frame *frame, const ts_cuda_matrix *a, const ts_cuda_matrix *b,
                           const ts_cuda_matrix *c, int64_t batches, const ts_cuda_epilogue *then);

/** True if ts_cuda_gemm() computes a product with then->gelu_of by ts_cuda_gemm_slope(): halves on
 * Hopper, one matrix, dense rows at multiples of 16 bytes, an inner size of 1 to 2,048, and enough
 * tiles of c. The answer depends on the device, dtype, sizes, strides and epilogue only. */
bool ts_cuda_takes_slope(const ts_cuda_device *device, ts_dtype dtype, const ts_cuda_matrix *a,
                         const ts_cuda_matrix *b, const ts_cuda_matrix *c, int64_t batches,
                         const ts_cuda_epilogue *then);
/** ts_cuda_gemm() for one product for which ts_cuda_takes_slope() is true (product/wgmma.cuh). */
ts_status ts_cuda_gemm_slope(const ts_frame *frame, ts_dtype dtype, const ts_cuda_matrix *a,
                             const ts_cuda_matrix *b, const ts_cuda_matrix *c,
                             const ts_cuda_epilogue *then);

/**
 * Queues c = a b + bias for integers, which wrap around, for `batches` matrices. dtype: i64, i32 or
 * u8, the same for all operands. a and b may have any strides; rows of c are dense. Error:
 * TS_ERR_DEVICE.
 * @param bias  one element per column of c; NULL: none
 */
ts_status ts_cuda_gemm_integers(ts_frame *frame, ts_dtype dtype, const ts_cuda_matrix *a,
                                const ts_cuda_matrix *b, const ts_cuda_matrix *c, int64_t batches,
                                const void *bias);

/** True if TS_CUDA_TF32=1: f32 products use tensor cores, which round operands to TF32 (10-bit
 *  mantissa). */
bool ts_cuda_tf32(void);

TS_END_DECLS
#endif
