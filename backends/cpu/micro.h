/**
 * @file micro.h  Micro-kernels: small matrix products (tiles) whose result stays in registers.
 * Matrix products (sgemm.c, hgemm.c), convolutions and attention are built from them.
 *
 * Each element of a result is one chain of multiply-adds (vf_fma()) in the order of k, whatever its
 * tile; for bf16, of dot products of pairs. So results depend neither on the division into tiles
 * nor on the number of threads.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_MICRO_H
#define TS_BACKENDS_CPU_MICRO_H

#include "backends/cpu/vec.h"
#include "core/base.h"

/* Rows of the largest tile. Its sums, two vectors per row, leave registers for two vectors of b and
 * one element of a: 28 of 32 registers of AVX-512, 12 of 16 of AVX2 and SSE2. */
#if VEC_ISA == VEC_IS_avx512
#define MICRO_ROWS 14
#else
#define MICRO_ROWS 6
#endif
#define MICRO_COLUMNS_F (2 * VF_LANES)
#define MICRO_COLUMNS_D (2 * VD_LANES)
/* Floats per step of k in a packed block of rows: MICRO_ROWS rounded up to whole vectors. */
#define MICRO_BLOCK ((MICRO_ROWS + VF_LANES - 1) / VF_LANES * VF_LANES)

/**
 * The arguments of a micro-kernel, which computes c (rows, columns) = a (rows, k) b (k, columns) +
 * bias (columns). With `add` the result is added to c instead of stored. All strides are in
 * elements. The index of the function in its table sets the number of rows and the width of the
 * tile, in vectors. `columns` is at most the width; only the last vector of a row may be partial.
 * @param a_row, a_step  strides of a along rows and along k: any
 * @param b_row          stride of b along k. Columns of b are dense and read in whole vectors, so
 *                       each row must be readable up to the full width of the tile
 * @param c_row          stride of c along rows; columns of c are dense, and only `columns` of each
 *                       row are accessed
 * @param bias           NULL, or `columns` elements, which are added to each row
 * @param fetch          address to prefetch: one cache line per step, fetch_step elements apart.
 *                       To prefetch nothing more, pass b with fetch_step 0
 */
#define MICRO_PARAMS(T)                                                                            \
    int64_t k, const T *a, int64_t a_row, int64_t a_step, const T *b, int64_t b_row, T *c,         \
            int64_t c_row,                                                                         \
        int64_t columns, const T *bias, bool add, const T *fetch, int64_t fetch_step
typedef void (*ts_micro_f32)(MICRO_PARAMS(float));
typedef void (*ts_micro_f64)(MICRO_PARAMS(double));

/** Indexed by [rows][vectors - 1]: 1 to MICRO_ROWS rows, one or two vectors of columns. */
extern const ts_micro_f32 TS_V(ts_micro_f32)[MICRO_ROWS + 1][2];
extern const ts_micro_f64 TS_V(ts_micro_f64)[MICRO_ROWS + 1][2];

/**
 * A micro-kernel that computes the same product and also packs its operands, for later products.
 * a_row must be 1; exactly `rows` elements of a are read per step of k.
 * @param a_to  NULL, or receives a as (k, MICRO_BLOCK): the vectors that hold `rows` elements, the
 *              last one padded with zeros
 * @param b_to  NULL, or receives b as (k, tile width)
 * @param sums  NULL, or receives the sums of a over k, (rows); with `add` they are added to `sums`
 */
typedef void (*ts_micro_copy_f32)(MICRO_PARAMS(float), float *a_to, float *b_to, float *sums);
extern const ts_micro_copy_f32 TS_V(ts_micro_copy_f32)[MICRO_ROWS + 1][2];

/**
 * The arguments of a micro-kernel of bf16: c (rows, columns) = a (rows, 2 pairs) b (2 pairs,
 * columns), summed in f32. c is f32 and has whole vectors of columns; its rows are c_row floats
 * apart. With `add` the result is added to c.
 * @param a_row, a_step  bytes between rows of a, and between pairs of adjacent elements of a row
 * @param b              packed as (pairs, MICRO_COLUMNS_F, 2): two rows of b, column by column
 * @param odd            1 if the last pair of a has one element, else 0
 */
#define MICRO_PARAMS_BF16                                                                          \
    int64_t pairs, const char *a, int64_t a_row, int64_t a_step, const uint16_t *b, float *c,      \
        int64_t c_row, int odd, bool add
#define MICRO_PAIR_BF16 (2 * MICRO_COLUMNS_F) /* bf16 of a pair of rows of b */
typedef void (*ts_micro_bf16)(MICRO_PARAMS_BF16);
/** Indexed as ts_micro_f32; all NULL except in the AVX-512 variant. Requires ts_cpu_has_bf16(). */
extern const ts_micro_bf16 TS_V(ts_micro_bf16)[MICRO_ROWS + 1][2];

#endif
