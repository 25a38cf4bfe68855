/**
 * @file rows.h
 * Rows of bf16 or f16 for kernels of f32: blocks of rows are widened into a buffer of the first
 * caches, the kernel's body for f32 runs over the buffer in place, and the results are narrowed.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_ROWS_H
#define TS_BACKENDS_CPU_ROWS_H

#include "backends/cpu/copy.h"
#include "backends/cpu/slots.h"

enum { TS_ROW_MOST = 4096 /* elements of the longest row that is worth a buffer */ };

/** Elements of a half dtype to f32, contiguous on both sides; and back. */
VEC_FN void rows_widen(float *to, const void *from, ts_dtype half, int64_t n)
{
    TS_V(ts_cpu_copy_loop)(TS_F32, half)((char *[]){(char *)to, (char *)from}, (int64_t[]){4, 2}, n,
                                         NULL);
}
VEC_FN void rows_narrow(void *to, const float *from, ts_dtype half, int64_t n)
{
    TS_V(ts_cpu_copy_loop)(half, TS_F32)((char *[]){to, (char *)from}, (int64_t[]){2, 4}, n, NULL);
}
/** Rows that fill a buffer and stay in the first cache. */
VEC_FN int64_t rows_together(int64_t n) { return n < 1024 ? 1024 / ts_max64(n, 1) : 1; }
/** Bytes of a buffer. */
VEC_FN int64_t rows_bytes(int64_t n) { return n * rows_together(n) * (int64_t)sizeof(float); }

#endif
