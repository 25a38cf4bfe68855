/**
 * @file sgemm.h
 * Products of f32 matrices by the library's micro-kernels: ts_sgemm_cut() plans a product, the
 * caller allocates plan->bytes bytes of scratch, and ts_sgemm_run() computes the product.
 *
 * ts_product(), in matmul.c, computes f32 and f64 products for convolutions (chunks.h) by the
 * method that suits their shape: as a product with a vector, by ts_sgemm_run() or by the CBLAS.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_SGEMM_H
#define TS_BACKENDS_CPU_SGEMM_H

#include "backends/cpu/gemm.h"
#include "backends/cpu/vec.h"
#include "core/tensor.h"

/** How a product is divided, and the scratch memory that it needs. A member whose comment begins
 *  with "a_packed:" is used only if a_packed is set. */
typedef struct ts_sgemm_plan {
    const ts_gemm *g;
    float *sums;                   /* the argument of ts_sgemm_cut() */
    int64_t parts;                 /* a_packed: parts of k, 1 or 2. The first part is written to the
                                      result, the second to `rest`, which is then added */
    int64_t rows, columns, across; /* a_packed: size of a tile; tiles per row of tiles */
    int64_t count;                 /* a_packed: number of tasks: tiles times parts */
    float *packed, *rest;          /* in scratch: packed operands; result (m, n) and sums (m) of the
                                      second part */
    int64_t floats;                /* packed floats per task; 0 if the tasks share them */
    int64_t packed_floats;         /* floats before `rest` */
    bool small;                    /* a product of little work: no tiles, no scratch; only g, sums
                                      and bytes are valid */
    bool a_packed, alone;          /* a_packed: each task packs its parts of both operands; if it is
                                      false, the threads share a packed b, or read b in place. alone
                                      (used only if a_packed): the calling thread runs all tasks */
    size_t bytes;                  /* bytes of scratch; may be 0 */
} ts_sgemm_plan;

/**
 * Plans the product g. The plan borrows g and sums until ts_sgemm_run() returns.
 * @param sums  receives the m sums of a's rows over k; NULL if not requested. Requires dense
 *              columns of a (a_row == 1, a_column > 1) and m, k > 1
 * @return false if the caller must compute the product by another method: in the baseline variant,
 *         for empty operands, or if the sums are requested but not supported for this a
 */
bool TS_V(ts_sgemm_cut)(ts_sgemm_plan *plan, const ts_gemm *g, float *sums);
/** Computes the planned product: on the thread pool, or on the calling thread if plan->small or
 *  plan->alone. scratch has plan->bytes bytes, and may be NULL if that is 0. */
void TS_V(ts_sgemm_run)(ts_sgemm_plan *plan, void *scratch);

/** Bytes of scratch that ts_product() needs for g; may be 0. dtype: TS_F32 or TS_F64. */
size_t TS_V(ts_product_bytes)(const ts_gemm *g, ts_dtype dtype);
/** Computes the product g on the thread pool. dtype: TS_F32 or TS_F64. scratch: the bytes that
 *  ts_product_bytes() returned for g, with the same number of threads. */
void TS_V(ts_product)(const ts_gemm *g, ts_dtype dtype, void *scratch);

#endif
