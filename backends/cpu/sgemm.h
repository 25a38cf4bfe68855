/** @file sgemm.h  The own product of f32 matrices. */
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_SGEMM_H
#define TS_BACKENDS_CPU_SGEMM_H

#include "backends/cpu/gemm.h"
#include "backends/cpu/vec.h"

/** Division of a product into tiles that each pack their own operands, and the memory needed. */
typedef struct ts_sgemm_plan {
    const ts_gemm *g;
    float *sums;
    int64_t parts;                 /* parts of k: the first is written to the result, the second to
                                      `rest` */
    int64_t rows, columns, across; /* size of a tile; number of tiles per row of tiles */
    int64_t count;                 /* number of tiles, times parts */
    float *packed, *rest;          /* rest (m, n), then the sums (m) */
    int64_t floats;                /* distance between the scratch of two tiles; 0 with one
                                      thread */
    int64_t packed_floats;         /* floats before `rest` */
    bool small;                    /* if set, only g, sums and bytes are valid */
    bool a_packed, alone;
    size_t bytes;                  /* bytes of scratch; may be 0 */
} ts_sgemm_plan;

/**
 * Plans the product g, borrowed until it has run.
 * @param sums  receives the sums of the first operand over k, (m); NULL if not requested
 * @return false if the CBLAS should compute the product
 */
bool TS_V(ts_sgemm_cut)(ts_sgemm_plan *plan, const ts_gemm *g, float *sums);
/** The whole product, on the pool, with plan->bytes of scratch. */
void TS_V(ts_sgemm_run)(ts_sgemm_plan *plan, void *scratch);

#endif
