/** @file hgemm.h  Products of bf16 and f16 matrices (halves) without f32 copies of whole operands.
 * matmul.c calls ts_half_suits() first, and widens the whole call if it is false. */
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_HGEMM_H
#define TS_BACKENDS_CPU_HGEMM_H

#include "backends/cpu/gemm.h"
#include "backends/cpu/vec.h"
#include "ops/kernel.h"

/** True if ts_half_product() can compute g. That is so if g is not empty and c has at most two rows
 *  or two columns. For bf16 it is also so if k > 1 and the AVX-512 variant runs on a processor with
 *  AVX512_BF16. `add` and `alpha` of g are not supported. */
bool TS_V(ts_half_suits)(const ts_gemm *g, ts_dtype half);
/** Computes `count` products of bf16 or f16, summed in f32 and rounded once, on the thread pool.
 *  The bias has dtype `half` too. Operands of successive products are a_step, b_step and c_step
 *  elements apart. Requires ts_half_suits(). Returns TS_ERR_MEMORY if scratch memory cannot be
 *  allocated; nothing is written then. */
ts_status TS_V(ts_half_product)(ts_frame *f, const ts_gemm *g, ts_dtype half, int64_t count,
                                int64_t a_step, int64_t b_step, int64_t c_step);
/** Computes the products `first` and `second`, for both of which ts_half_suits() is true. Returns
 *  TS_ERR_MEMORY if scratch memory cannot be allocated; neither result is written then. */
ts_status TS_V(ts_half_products)(ts_frame *f, const ts_gemm *first, const ts_gemm *second,
                                 ts_dtype half);

#endif
