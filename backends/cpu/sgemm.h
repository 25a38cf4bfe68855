/** @file sgemm.h  The own product of f32 matrices. */
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_SGEMM_H
#define TS_BACKENDS_CPU_SGEMM_H

#include "backends/cpu/gemm.h"
#include "backends/cpu/vec.h"

/** How a product is cut into tiles that pack their operands for themselves, and what that takes. */
typedef struct ts_sgemm_plan {
    const ts_gemm *g;
    float *sums;
    int64_t parts;                 /* of k: the first goes to the result, the second to `rest` */
    int64_t rows, columns, across; /* of a tile; tiles side by side */
    int64_t count;                 /* of tiles, times parts */
    float *packed, *rest;          /* rest (m, n), then the sums (m) */
    int64_t floats;                /* between what two tiles pack; 0 when one thread does all */
    int64_t packed_floats;         /* in front of the rest */
    bool small;                    /* the rest but for g, sums and bytes is unset then */
    bool a_packed, alone;
    size_t bytes;                  /* of scratch; may be 0 */
} ts_sgemm_plan;

/**
 * Plans the product g, borrowed until it has run.
 * @param sums  receives the sums of the first operand over k, (m); NULL when not wanted
 * @return false when it is left to the CBLAS
 */
bool TS_V(ts_sgemm_cut)(ts_sgemm_plan *plan, const ts_gemm *g, float *sums);
/** The whole product, on the pool, with plan->bytes of scratch. */
void TS_V(ts_sgemm_run)(ts_sgemm_plan *plan, void *scratch);

#endif
