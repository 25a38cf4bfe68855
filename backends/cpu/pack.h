/** @file pack.h  Packs operands of matrix products in the order in which the micro-kernels
 * (micro.h) read them. pool.c uses the transposes too. vf is a vector of VF_LANES floats
 * (vec.h). */
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_PACK_H
#define TS_BACKENDS_CPU_PACK_H

#include "backends/cpu/micro.h"

/* Step s of a transpose swaps the off-diagonal s × s blocks of each 2s × 2s block. For rows a and
 * b, which are s rows apart, lanes l of the results are
 *
 *             lanes with bit s of l clear    lanes with it set
 *   new a     a[l]                           b[l - s]              PACK_LOW
 *   new b     a[l + s]                       b[l]                  PACK_HIGH
 *
 * The macros number the lanes of a, then those of b, as __builtin_shufflevector() does. */
#define PACK_LOW(l, s) ((l) & (s) ? (l) - (s) + VF_LANES : (l))
#define PACK_HIGH(l, s) ((l) & (s) ? (l) + VF_LANES : (l) + (s))
#define PACK_STEP(r, s)                                                                            \
    TS_UNROLL(16) for (int i = 0; i < VF_LANES; i++) if (!(i & (s))) {                             \
        vf a = r[i], b = r[i + (s)];                                                               \
        r[i] = __builtin_shufflevector(a, b, VEC_INDICES(VF_LANES, PACK_LOW, s));                  \
        r[i + (s)] = __builtin_shufflevector(a, b, VEC_INDICES(VF_LANES, PACK_HIGH, s));           \
    }

/** Transposes a VF_LANES × VF_LANES matrix in registers, in place: row i of r becomes column i. */
VEC_FN void vf_transpose(vf r[VF_LANES])
{
    PACK_STEP(r, 1)
    PACK_STEP(r, 2)
#if VF_LANES > 4
    PACK_STEP(r, 4)
#endif
#if VF_LANES > 8
    PACK_STEP(r, 8)
#endif
}

/** to[j * to_row + i] = from[i * from_row + j] for i < rows, j < columns. */
static __attribute__((noinline, unused)) void vf_transpose_matrix(float *to, int64_t to_row,
                                                                  const float *from,
                                                                  int64_t from_row, int64_t rows,
                                                                  int64_t columns)
{
    for (int64_t i = 0; i < rows; i += VF_LANES)
        for (int64_t j = 0; j < columns; j += VF_LANES) {
            int64_t m = rows - i < VF_LANES ? rows - i : VF_LANES,
                    n = columns - j < VF_LANES ? columns - j : VF_LANES;
            const float *at = from + i * from_row + j;
            float *back = to + j * to_row + i;
            vf r[VF_LANES];
            if (m == VF_LANES && n == VF_LANES) {
                TS_UNROLL(16) for (int k = 0; k < VF_LANES; k++) r[k] = vf_load(at + k * from_row);
                vf_transpose(r);
                TS_UNROLL(16) for (int k = 0; k < VF_LANES; k++) vf_store(back + k * to_row, r[k]);
                continue;
            }
            for (int k = 0; k < VF_LANES; k++)
                r[k] = k < m ? vf_load_n(at + k * from_row, n) : vf_zero();
            vf_transpose(r);
            for (int k = 0; k < n; k++)
                vf_store_n(back + k * to_row, r[k], m);
        }
}

/**
 * Packs the transpose of `from`, a matrix (columns, k) whose rows are `row` elements apart, into
 * `to` (k, width). Columns `columns` to width - 1 of `to` become zero. width is a multiple of
 * VF_LANES.
 */
VEC_FN void vf_pack_transposed(float *to, int64_t width, const float *from, int64_t row,
                               int64_t columns, int64_t k)
{
    for (int64_t j = 0; j < width; j += VF_LANES) {
        int64_t lanes = columns - j < VF_LANES ? columns - j : VF_LANES;
        int64_t p = 0;
        for (; p + VF_LANES <= k; p += VF_LANES) {
            vf r[VF_LANES];
            TS_UNROLL(16)
            for (int i = 0; i < VF_LANES; i++)
                r[i] = i < lanes ? vf_load(from + (j + i) * row + p) : vf_zero();
            vf_transpose(r);
            TS_UNROLL(16)
            for (int i = 0; i < VF_LANES; i++) vf_store(to + (p + i) * width + j, r[i]);
        }
        for (; p < k; p += VF_LANES) {
            int64_t depth = k - p < VF_LANES ? k - p : VF_LANES;
            vf r[VF_LANES];
            for (int i = 0; i < VF_LANES; i++)
                r[i] = i < lanes ? vf_load_n(from + (j + i) * row + p, depth) : vf_zero();
            vf_transpose(r);
            for (int i = 0; i < depth; i++)
                vf_store(to + (p + i) * width + j, r[i]);
        }
    }
}

/** Packs `from`, a matrix (k, columns) whose rows are `row` elements apart, into `to` (k, width).
 *  Columns `columns` to width - 1 of `to` become zero. width is a multiple of VF_LANES. */
VEC_FN void vf_pack_rows(float *to, int64_t width, const float *from, int64_t row, int64_t columns,
                         int64_t k)
{
    for (int64_t p = 0; p < k; p++)
        for (int64_t j = 0; j < width; j += VF_LANES) {
            int64_t lanes = columns - j < VF_LANES ? columns - j : VF_LANES;
            const float *at = from + p * row + j;
            vf_store(to + p * width + j, lanes == VF_LANES ? vf_load(at)
                                         : lanes > 0       ? vf_load_n(at, lanes)
                                                           : vf_zero());
        }
}

#if VEC_ISA == VEC_IS_avx512
/** Loads the first n <= 32 halves (bf16 or f16) at p; the other lanes are 0. */
VEC_FN vhh vhh_load_n(const uint16_t *p, int64_t n)
{
    __mmask32 m = n >= 32 ? ~(__mmask32)0 : ((__mmask32)1 << n) - 1;
    return (vhh)_mm512_maskz_loadu_epi16(m, p);
}

/**
 * Packs n <= MICRO_COLUMNS_F columns of `depth` halves for ts_micro_bf16. Each column is dense in
 * memory; columns start `column` elements apart. `to` is (pairs, MICRO_COLUMNS_F, 2), where pairs
 * is depth / 2, rounded up:
 *
 *     to[p / 2][j][p % 2] = from[j * column + p]    for p < depth and j < n, else 0
 */
VEC_FN void vhh_pack_columns(uint16_t *to, const uint16_t *from, int64_t column, int64_t depth,
                             int64_t n)
{
    for (int64_t j = 0; j < MICRO_COLUMNS_F; j += VF_LANES)
        for (int64_t p = 0; p < depth; p += 2 * VF_LANES) {
            int64_t left = depth - p < 2 * VF_LANES ? depth - p : 2 * VF_LANES;
            vf r[VF_LANES]; /* a pair of halves has the bits of a float */
            for (int i = 0; i < VF_LANES; i++)
                r[i] = j + i < n ? (vf)vhh_load_n(from + (j + i) * column + p, left) : vf_zero();
            vf_transpose(r);
            for (int64_t i = 0; i < (left + 1) / 2; i++)
                vf_store((float *)(void *)(to + (p / 2 + i) * MICRO_PAIR_BF16 + 2 * j), r[i]);
        }
}
#endif

#endif
