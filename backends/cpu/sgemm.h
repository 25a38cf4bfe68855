/** @file sgemm.h  Products of f32 matrices by the library's micro-kernels (ts_sgemm_*), and
 * ts_product(), which computes f32 and f64 products for other kernel families by the method that
 * suits their shape. */
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_SGEMM_H
#define TS_BACKENDS_CPU_SGEMM_H

#include "backends/cpu/gemm.h"
#include "backends/cpu/vec.h"
#include "core/tensor.h"

/** Division of a product into tiles that each pack their own operands, and the memory needed. */
typedef struct ts_sgemm_plan {
    const ts_gemm *g;
    float *sums;
    int64_t parts;                 /* parts of k, 1 or 2: the first is written to the result, the
                                      second to `rest` */
    int64_t rows, columns, across; /* size of a tile; number of tiles per row of tiles */
    int64_t count;                 /* number of tasks: tiles times parts */
    float *packed, *rest;          /* packed operands; result (m, n) and sums (m) of the second
                                      part */
    int64_t floats;                /* floats of scratch per task; 0 if the tasks share it */
    int64_t packed_floats;         /* floats before `rest` */
    bool small;                    /* the operands fit the L1 cache: no tiles, no scratch; only g,
                                      sums and bytes are valid */
    bool a_packed, alone;          /* a_packed: both operands are packed, else at most b; alone: the
                                      calling thread runs all tasks */
    size_t bytes;                  /* bytes of scratch; may be 0 */
} ts_sgemm_plan;

/**
 * Plans the product g. The plan borrows g and sums until ts_sgemm_run() returns.
 * @param sums  receives the sums of the first operand a over k, (m); NULL if not requested.
 *              Requires dense columns of a (a_row == 1, a_column > 1) and m, k > 1
 * @return false if the caller must compute the product by another method: in the baseline variant,
 *         for empty operands, or if the sums are requested but not supported for this a
 */
bool TS_V(ts_sgemm_cut)(ts_sgemm_plan *plan, const ts_gemm *g, float *sums);
/** Computes the planned product on the thread pool. scratch has plan->bytes bytes, and may be NULL
 *  if that is 0. */
void TS_V(ts_sgemm_run)(ts_sgemm_plan *plan, void *scratch);

/** Bytes of scratch that ts_product() needs for g; may be 0. dtype: TS_F32 or TS_F64. */
size_t TS_V(ts_product_bytes)(const ts_gemm *g, ts_dtype dtype);
/** Computes the product g on the thread pool. scratch: ts_product_bytes() bytes. */
void TS_V(ts_product)(const ts_gemm *g, ts_dtype dtype, void *scratch);

#endif
