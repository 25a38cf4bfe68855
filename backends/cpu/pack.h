/** @file pack.h  Packs operands in the order in which the micro-kernels read them. */
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_PACK_H
#define TS_BACKENDS_CPU_PACK_H

#include "backends/cpu/micro.h"

/* Step s of a transpose swaps the off-diagonal s × s blocks of each 2s × 2s block:
 * lane l of the first result is lane l of the first source or lane l - s of the second, lane l of
 * the second result is lane l + s of the first source or lane l of the second. */
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
 * Packs the transpose of from (columns, k), whose rows are `row` elements apart, into
 * to (k, width). Columns from `columns` to width - 1 become zero. width is a multiple of VF_LANES.
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

/** Packs from (k, columns), whose rows are `row` elements apart, into to (k, width). Columns from
 *  `columns` to width - 1 become zero. width is a multiple of VF_LANES. */
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
/** Loads the first n <= 32 halves at p; the others are 0. */
VEC_FN vhh vhh_load_n(const uint16_t *p, int64_t n)
{
    __mmask32 m = n >= 32 ? ~(__mmask32)0 : ((__mmask32)1 << n) - 1;
    return (vhh)_mm512_maskz_loadu_epi16(m, p);
}

/** Packs `depth` rows of n <= MICRO_COLUMNS_F columns of a matrix of halves with dense columns,
 *  `column` elements apart, as (pairs, MICRO_COLUMNS_F, 2). The last row of an odd depth is paired
 *  with zeros. */
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
