/** @file gemm.h  A product of matrices as the kernels see it. */
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_GEMM_H
#define TS_BACKENDS_CPU_GEMM_H

#include "core/base.h"

/**
 * c (m, n) = a (m, k) b (k, n) + bias (n). Steps are in elements; rows of c are dense. Of each
 * operand one step is 1, or irrelevant because there is one row or column only, and the other steps
 * over a whole row or column.
 */
typedef struct ts_gemm {
    int64_t m, n, k;
    const void *a, *b, *bias; /* bias may be NULL */
    void *c;
    int64_t a_row, a_column, b_row, b_column, c_row;
} ts_gemm;

/** One tile or the whole, by the CBLAS, on the calling thread. False, with nothing written, when
 * that cannot be: it counts in int, and it comes down while the process ends. */
bool ts_blas_f32(const ts_gemm *g);
bool ts_blas_f64(const ts_gemm *g);
/** Takes the CBLAS its threads: the pool is ours. */
void ts_blas_install(void);

#endif
