/**
 * @file micro.h  Small products that keep their whole result in registers:
 * the core of GEMM and attention.
 *
 * Every element of a result is one chain of fused multiply-adds in the order of k, independent of
 * its tile. So results depend neither on the division into tiles nor on the thread.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_MICRO_H
#define TS_BACKENDS_CPU_MICRO_H

#include "backends/cpu/vec.h"
#include "core/base.h"

/* Rows of the largest tile: it fills the registers with two vectors a row. */
#if VEC_ISA == VEC_IS_avx512
#define MICRO_ROWS 14
#else
#define MICRO_ROWS 6
#endif
#define MICRO_COLUMNS_F (2 * VF_LANES)
#define MICRO_COLUMNS_D (2 * VD_LANES)
/* floats of a step of a packed block of rows */
#define MICRO_BLOCK ((MICRO_ROWS + VF_LANES - 1) / VF_LANES * VF_LANES)

/**
 * c (rows, columns) = a (rows, k) b (k, columns) [+ bias (columns)], or added to c.
 * @param a_row, a_step  elements from row to row and along k: any
 * @param b_row          elements from row to row; whole vectors are read,
 *                       also behind the last column
 * @param bias           NULL, or `columns` elements
 * @param fetch          address to prefetch: one cache line per step, fetch_step elements apart.
 *                       Pass b with fetch_step 0 to prefetch nothing new
 */
#define MICRO_PARAMS(T)                                                                            \
    int64_t k, const T *a, int64_t a_row, int64_t a_step, const T *b, int64_t b_row, T *c,         \
            int64_t c_row,                                                                         \
        int64_t columns, const T *bias, bool add, const T *fetch, int64_t fetch_step
typedef void (*ts_micro_f32)(MICRO_PARAMS(float));
typedef void (*ts_micro_f64)(MICRO_PARAMS(double));

/** [rows][vectors - 1]: kernels for 1 to MICRO_ROWS rows and one or two vectors of columns. */
extern const ts_micro_f32 TS_V(ts_micro_f32)[MICRO_ROWS + 1][2];
extern const ts_micro_f64 TS_V(ts_micro_f64)[MICRO_ROWS + 1][2];

/**
 * The same product, which also packs its operands for later products. The copies overlap with the
 * multiplications. a_row is 1; exactly `rows` elements of a step are read.
 * @param a_to  NULL, or receives a: (k, MICRO_BLOCK), zeros behind the rows
 * @param b_to  NULL, or receives b: (k, vectors)
 * @param sums  NULL, or receives the sums of a over k, (rows); with `add` they are added to it
 */
typedef void (*ts_micro_copy_f32)(MICRO_PARAMS(float), float *a_to, float *b_to, float *sums);
extern const ts_micro_copy_f32 TS_V(ts_micro_copy_f32)[MICRO_ROWS + 1][2];

#endif
