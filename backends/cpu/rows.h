/**
 * @file rows.h
 * Conversions for kernels that compute rows of bf16 or f16 in f32. A kernel widens a block of rows
 * into an f32 buffer that fits the L1 or L2 cache, runs its f32 body on the buffer in place, and
 * narrows the results to the half dtype.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_ROWS_H
#define TS_BACKENDS_CPU_ROWS_H

#include "backends/cpu/copy.h"
#include "backends/cpu/slots.h"

enum { TS_ROW_MOST = 4096 /* most elements of a row that is widened as a whole: 16 KiB of f32 */ };

/** Converts n contiguous elements of a half dtype (bf16 or f16) to f32. rows_narrow() converts n
 *  contiguous f32 elements to the half dtype. */
VEC_FN void rows_widen(float *to, const void *from, ts_dtype half, int64_t n)
{
    TS_V(ts_cpu_copy_loop)(TS_F32, half)((char *[]){(char *)to, (char *)from}, (int64_t[]){4, 2}, n,
                                         NULL);
}
VEC_FN void rows_narrow(void *to, const float *from, ts_dtype half, int64_t n)
{
    TS_V(ts_cpu_copy_loop)(half, TS_F32)((char *[]){to, (char *)from}, (int64_t[]){2, 4}, n, NULL);
}
/** Number of rows of n elements that a buffer holds: at most 1024 elements, but at least one
 * row. */
VEC_FN int64_t rows_together(int64_t n) { return n < 1024 ? 1024 / ts_max64(n, 1) : 1; }
/** Bytes of an f32 buffer for rows_together(n) rows of n elements. */
VEC_FN int64_t rows_bytes(int64_t n) { return n * rows_together(n) * (int64_t)sizeof(float); }

#endif
