/** @file scan.c  Cumulative sums along a dim. f32 is accumulated in f64. One thread computes all
 * elements of a sum. */
// SPDX-License-Identifier: MIT
#include "backends/cpu/loops.h"
#include "core/parallel.h"
#include "ops/kernel.h"

enum { TILE = 64 }; /* adjacent sums of a task, if the dim of the sums is not the last */

/** self seen as (outer, n, inner), the dim of the sums in the middle; out may be self. */
typedef struct scan {
    const void *x;
    void *out;
    int64_t n, inner, tiles;
    int64_t first, step; /* first index along n; 1 or -1 (reverse) */
} scan;

/* Loop bodies for elements T with accumulator A. A task is one sum, or a tile of adjacent sums. */
#define SCAN(T, A, name)                                                                        \
    static void name##_runs(void *ctx, int64_t begin, int64_t end)                              \
    {                                                                                           \
        const scan *s = ctx;                                                                    \
        for (int64_t o = begin; o < end; o++) {                                                 \
            const T *x = (const T *)s->x + o * s->n + s->first;                                 \
            T *y = (T *)s->out + o * s->n + s->first;                                           \
            A sum = 0;                                                                          \
            for (int64_t k = 0; k < s->n; k++)                                                  \
                y[k * s->step] = (T)(sum += (A)x[k * s->step]);                                 \
        }                                                                                       \
    }                                                                                           \
    static void name##_columns(void *ctx, int64_t begin, int64_t end)                           \
    {                                                                                           \
        const scan *s = ctx;                                                                    \
        for (int64_t t = begin; t < end; t++) {                                                 \
            int64_t first = t % s->tiles * TILE, w = ts_min64(TILE, s->inner - first);          \
            int64_t at = (t / s->tiles * s->n + s->first) * s->inner + first;                   \
            A sums[TILE] = {0};                                                                 \
            for (int64_t k = 0; k < s->n; k++, at += s->step * s->inner) {                      \
                const T *x = (const T *)s->x + at;                                              \
                T *y = (T *)s->out + at;                                                        \
                TS_INDEPENDENT                                                                  \
                for (int64_t c = 0; c < w; c++)                                                 \
                    y[c] = (T)(sums[c] += (A)x[c]);                                             \
            }                                                                                   \
        }                                                                                       \
    }
SCAN(float, double, f32)
SCAN(double, double, f64)
SCAN(int64_t, uint64_t, i64) /* wraps, as sums do */

/** self is treated as (outer, count, inner) of the plan. */
static ts_status cumsum(ts_frame *f)
{
    const ts_tensor *t = f->args[0].t;
    const ts_plan *plan = f->plan;
    bool reverse = f->args[2].i;
    if (!t->numel)
        return TS_OK;
    scan s = {.x = t->data, .out = f->rets[0].t->data, .n = plan->count, .inner = plan->inner,
              .tiles = ts_ceil_div(plan->inner, TILE), .first = reverse ? plan->count - 1 : 0,
              .step = reverse ? -1 : 1};
    bool columns = s.inner > 1;
    ts_parallel_body body = t->dtype == TS_F32   ? columns ? f32_columns : f32_runs
                            : t->dtype == TS_F64 ? columns ? f64_columns : f64_runs
                                                 : columns ? i64_columns : i64_runs;
    int64_t work = s.n * ts_min64(s.inner, TILE);
    ts_parallel_for(plan->outer * s.tiles, TS_CPU_GRAIN(2) / work + 1, body, &s);
    return TS_OK;
}

TS_CPU_FAMILY(scan, {TS_OP_cumsum, cumsum, {TS_DT_FLOATS | TS_DT(TS_I64), 0}})
