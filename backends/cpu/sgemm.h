/** @file sgemm.h  The own product of f32 matrices. */
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_SGEMM_H
#define TS_BACKENDS_CPU_SGEMM_H

#include "backends/cpu/gemm.h"
#include "backends/cpu/vec.h"
#include "core/thread.h"

/**
 * The whole product, on the pool; scratch comes from the calling thread's allocator.
 * @param sums  receives the sums of the first operand over k, (m); NULL when not wanted
 * @return false when it leaves the product to the CBLAS or has no memory; nothing is written then
 */
bool TS_V(ts_sgemm)(ts_thread *thread, const ts_gemm *g, float *sums);

#endif
