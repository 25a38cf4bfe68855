/** @file gemm.h  Description of a matrix product (ts_gemm), and products by the CBLAS library. */
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_GEMM_H
#define TS_BACKENDS_CPU_GEMM_H

#include "core/base.h"

/**
 * A matrix product: c (m, n) = a (m, k) b (k, n) + bias (n elements, or NULL), where the bias is
 * added to each row. If `add` is set, the product is added to c, and bias must be NULL. All
 * operands have one dtype. alpha: NULL, or the factor of a product of integers.
 *
 * Steps are in elements: a_row and a_column are the distances between rows and between columns of
 * a. Rows of c are dense and c_row apart. a and b each have a step of 1 in one dim, and their other
 * step is at least the size of that dim. The step of a dim of size 1 is ignored.
 */
typedef struct ts_gemm {
    int64_t m, n, k;
    const void *a, *b, *bias;
    void *c;
    int64_t a_row, a_column, b_row, b_column, c_row;
    bool add;
    const int64_t *alpha;
} ts_gemm;

/** ts_blas_f32() and ts_blas_f64() compute the product of f32 and of f64 operands, and ignore
 *  alpha. They return false and write nothing if m, n, k or a step exceeds INT_MAX, or if the
 *  process is exiting; the caller then computes the product without the CBLAS. */
bool ts_blas_f32(const ts_gemm *g);
bool ts_blas_f64(const ts_gemm *g);
/** Sets OpenBLAS to one thread (another CBLAS keeps its number) and registers the exit and fork
 *  handlers. Called once, when the backend is installed. */
void ts_blas_install(void);

#endif
