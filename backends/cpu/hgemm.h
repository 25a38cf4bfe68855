/** @file hgemm.h  Products of bf16 and f16 matrices that need no f32 copies of their operands. */
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_HGEMM_H
#define TS_BACKENDS_CPU_HGEMM_H

#include "backends/cpu/gemm.h"
#include "backends/cpu/vec.h"
#include "ops/kernel.h"

/** True if ts_half_product() computes products of the shape of g; depends on shape, strides, dtype
 *  and processor. `add` and `alpha` of g are not supported. */
bool TS_V(ts_half_suits)(const ts_gemm *g, ts_dtype half);
/** Computes `count` products of bf16 or f16, summed in f32 and rounded once, on the thread pool.
 *  Operands of successive products are a_step, b_step and c_step elements apart. Requires
 *  ts_half_suits(). Returns TS_ERR_MEMORY if scratch memory cannot be allocated. */
ts_status TS_V(ts_half_product)(ts_frame *f, const ts_gemm *g, ts_dtype half, int64_t count,
                                int64_t a_step, int64_t b_step, int64_t c_step);
/** Computes two such products. If scratch memory cannot be allocated, neither result is written. */
ts_status TS_V(ts_half_products)(ts_frame *f, const ts_gemm *first, const ts_gemm *second,
                                 ts_dtype half);

#endif
