/** @file gemm.h  Matrix products computed by the CBLAS library. */
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_GEMM_H
#define TS_BACKENDS_CPU_GEMM_H

#include "core/base.h"

/**
 * c (m, n) = a (m, k) b (k, n) + bias (n elements, or NULL). All operands have one dtype. Steps are
 * in elements: a_row and a_column are the distances between rows and between columns of a. Rows of
 * c are dense, and c_row apart. a and b each have a step of 1 in one dim, and the other step is at
 * least the size of that dim. The step of a dim of size 1 is ignored. If `add` is set, the product
 * is added to c and the bias is ignored. alpha: NULL, or the factor of a product of integers.
 */
typedef struct ts_gemm {
    int64_t m, n, k;
    const void *a, *b, *bias;
    void *c;
    int64_t a_row, a_column, b_row, b_column, c_row;
    bool add;
    const int64_t *alpha;
} ts_gemm;

/** Computes the product of f32 (f64) operands on the calling thread, without alpha. Returns false
 *  and writes nothing if m, n, k or a step exceeds INT_MAX, or if the process is exiting. */
bool ts_blas_f32(const ts_gemm *g);
bool ts_blas_f64(const ts_gemm *g);
/** Sets the CBLAS to one thread and registers the exit and fork handlers. Called once, when the
 *  backend is installed. */
void ts_blas_install(void);

#endif
