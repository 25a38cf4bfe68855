/**
 * @file arg.c
 * Indices (and values) of the largest or smallest elements along a dim. Among equal elements the
 * first is chosen; the first NaN is chosen over all other elements. A long run is compared in
 * chunks; only a chunk with an element better than the best so far is searched.
 */
// SPDX-License-Identifier: MIT
#include "backends/cpu/loops.h"
#include "core/parallel.h"
#include "ops/kernel.h"

enum {
    CHUNK = 64,          /* elements compared at once */
    TILE = 64,           /* results that a task searches side by side */
    FEW = 8,             /* most adjacent results that do not fill vectors */
    SHORT = 24,          /* most elements of a run that is searched side by side with others */
    PARTS = 64,          /* most parts of a single run */
    PART_LENGTH = 16384  /* shortest part */
};

/** self seen as (outer, n, inner), the searched dim in the middle. */
typedef struct search {
    const void *x;
    void *values;     /* (outer, inner), or NULL */
    int64_t *indices; /* (outer, inner), or NULL */
    int64_t n, inner;
    int64_t parts, tiles;
    int64_t part_indices[PARTS]; /* for outer = inner = 1: index of the best element of each part */
} search;

/*
 * The loop bodies for element type T. !(x WORSE best) is true for a better x and for NaN.
 *   _runs     a task is a result whose elements are contiguous
 *   _parts    a task is a part of the only run
 *   _columns  a task is a tile of adjacent results
 *   _short    a task is `inner` results of few elements; those of several tasks are searched
 *             together
 */
#define SEARCH(T, name, WORSE)                                                                     \
    VEC_FN int64_t name##_in(const T *x, int64_t from, int64_t to)                                 \
    {                                                                                              \
        T best = x[from];                                                                          \
        int64_t index = from;                                                                      \
        for (int64_t k = from; k < to && best == best; k += CHUNK) {                               \
            int64_t n = ts_min64(CHUNK, to - k);                                                   \
            int better = 0;                                                                        \
            for (int64_t i = 0; i < n; i++)                                                        \
                better |= !(x[k + i] WORSE best);                                                  \
            for (int64_t i = 0; better && i < n && best == best; i++)                              \
                if (!(x[k + i] WORSE best)) {                                                      \
                    best = x[k + i];                                                               \
                    index = k + i;                                                                 \
                }                                                                                  \
        }                                                                                          \
        return index;                                                                              \
    }                                                                                              \
    VEC_FN void name##_store(const search *s, int64_t result, T value, int64_t index)              \
    {                                                                                              \
        if (s->values)                                                                             \
            ((T *)s->values)[result] = value;                                                      \
        if (s->indices)                                                                            \
            s->indices[result] = index;                                                            \
    }                                                                                              \
    static void name##_runs(void *ctx, int64_t begin, int64_t end)                                 \
    {                                                                                              \
        const search *s = ctx;                                                                     \
        for (int64_t o = begin; o < end; o++) {                                                    \
            const T *x = (const T *)s->x + o * s->n;                                               \
            int64_t index = name##_in(x, 0, s->n);                                                 \
            name##_store(s, o, x[index], index);                                                   \
        }                                                                                          \
    }                                                                                              \
    static void name##_parts(void *ctx, int64_t begin, int64_t end)                                \
    {                                                                                              \
        search *s = ctx;                                                                           \
        int64_t length = ts_ceil_div(s->n, s->parts);                                              \
        for (int64_t p = begin; p < end; p++)                                                      \
            s->part_indices[p] =                                                                   \
                name##_in(s->x, ts_min64(p * length, s->n - 1), ts_min64((p + 1) * length, s->n)); \
    }                                                                                              \
    static void name##_join(search *s)                                                             \
    {                                                                                              \
        const T *x = s->x;                                                                         \
        int64_t index = s->part_indices[0];                                                        \
        for (int64_t p = 1; p < s->parts && x[index] == x[index]; p++)                             \
            if (!(x[s->part_indices[p]] WORSE x[index]))                                           \
                index = s->part_indices[p];                                                        \
        name##_store(s, 0, x[index], index);                                                       \
    }                                                                                              \
    /* w results at `result`, `step` apart; strides: `across` between results, `down` along n */   \
    VEC_FN void name##_tile(const search *s, const T *x, int64_t across, int64_t down, int64_t w,  \
                            int64_t result, int64_t step)                                          \
    {                                                                                              \
        T best[TILE];                                                                              \
        int64_t index[TILE];                                                                       \
        for (int64_t c = 0; c < w; c++) {                                                          \
            best[c] = x[c * across];                                                               \
            index[c] = 0;                                                                          \
        }                                                                                          \
        for (int64_t k = 1; k < s->n; k++) {                                                       \
            x += down;                                                                             \
            for (int64_t c = 0; c < w; c++) {                                                      \
                T y = x[c * across];                                                               \
                bool better = !(y WORSE best[c]) & (best[c] == best[c]);                           \
                best[c] = better ? y : best[c];                                                    \
                index[c] = better ? k : index[c];                                                  \
            }                                                                                      \
        }                                                                                          \
        if (step > 1) {                                                                            \
            for (int64_t c = 0; c < w; c++)                                                        \
                name##_store(s, result + c * step, best[c], index[c]);                             \
            return;                                                                                \
        }                                                                                          \
        if (s->values)                                                                             \
            memcpy((T *)s->values + result, best, (size_t)w * sizeof(T));                          \
        if (s->indices)                                                                            \
            memcpy(s->indices + result, index, (size_t)w * sizeof(int64_t));                       \
    }                                                                                              \
    static void name##_columns(void *ctx, int64_t begin, int64_t end)                              \
    {                                                                                              \
        const search *s = ctx;                                                                     \
        for (int64_t t = begin; t < end; t++) {                                                    \
            int64_t o = t / s->tiles, first = t % s->tiles * TILE,                                 \
                    w = ts_min64(TILE, s->inner - first);                                          \
            name##_tile(s, (const T *)s->x + o * s->n * s->inner + first, 1, s->inner, w,          \
                        o * s->inner + first, 1);                                                  \
        }                                                                                          \
    }                                                                                              \
    static void name##_short(void *ctx, int64_t begin, int64_t end)                                \
    {                                                                                              \
        const search *s = ctx;                                                                     \
        for (int64_t o = begin; o < end; o += TILE)                                                \
            for (int64_t k = 0; k < s->inner; k++)                                                 \
                name##_tile(s, (const T *)s->x + o * s->n * s->inner + k, s->n * s->inner,         \
                            s->inner, ts_min64(TILE, end - o), o * s->inner + k, s->inner);        \
    }
#define SEARCHES(T, name) SEARCH(T, max_##name, <=) SEARCH(T, min_##name, >=)
SEARCHES(float, f32)
SEARCHES(double, f64)
SEARCHES(int64_t, i64)
SEARCHES(int32_t, i32)
SEARCHES(uint8_t, u8)

typedef struct bodies {
    ts_parallel_body runs, parts, columns, few;
    void (*join)(search *s);
} bodies;

#define BODIES(name) {name##_runs, name##_parts, name##_columns, name##_short, name##_join}
static const bodies all[TS_DTYPE_COUNT][2] = {
    [TS_F32] = {BODIES(max_f32), BODIES(min_f32)}, [TS_F64] = {BODIES(max_f64), BODIES(min_f64)},
    [TS_I64] = {BODIES(max_i64), BODIES(min_i64)}, [TS_I32] = {BODIES(max_i32), BODIES(min_i32)},
    [TS_U8] = {BODIES(max_u8), BODIES(min_u8)},    [TS_BOOL] = {BODIES(max_u8), BODIES(min_u8)},
};

/** Searches self, as (outer, count, inner) of the plan. values and indices may be NULL. */
static void find(const ts_frame *f, bool smallest, ts_tensor *values, ts_tensor *indices)
{
    const ts_tensor *t = f->args[0].t;
    const ts_plan *plan = f->plan;
    const bodies *b = &all[t->dtype][smallest];
    search s = {.x = t->data, .values = values ? values->data : NULL,
                .indices = indices ? (int64_t *)indices->data : NULL,
                .n = plan->count, .inner = plan->inner};
    if (!t->numel)
        return;
    if (s.n == 1) { /* each element is the result of its own search */
        if (values)
            memcpy(s.values, s.x, (size_t)t->numel * ts_dtype_sizes[t->dtype]);
        if (indices)
            memset(s.indices, 0, (size_t)t->numel * sizeof *s.indices);
    } else if (s.inner > 1 && s.inner <= FEW && s.n <= SHORT && plan->outer >= 8) {
        ts_parallel_for(plan->outer, TS_CPU_GRAIN(1) / (s.n * s.inner) + 1, b->few, &s);
    } else if (s.inner > 1) {
        s.tiles = ts_ceil_div(s.inner, TILE);
        ts_parallel_for(plan->outer * s.tiles,
                        TS_CPU_GRAIN(1) / (s.n * ts_min64(TILE, s.inner)) + 1, b->columns, &s);
    } else if (plan->outer > 1 || s.n < 2 * PART_LENGTH) {
        ts_parallel_for(plan->outer, TS_CPU_GRAIN(1) / s.n + 1,
                        s.n <= SHORT && plan->outer >= 8 ? b->few : b->runs, &s);
    } else {
        s.parts = ts_min64(s.n / PART_LENGTH, PARTS);
        ts_parallel_for(s.parts, TS_CPU_GRAIN(1) / (s.n / s.parts) + 1, b->parts, &s);
        b->join(&s);
    }
}

static ts_status argmax(ts_frame *f)
{
    find(f, false, NULL, f->rets[0].t);
    return TS_OK;
}
static ts_status argmin(ts_frame *f)
{
    find(f, true, NULL, f->rets[0].t);
    return TS_OK;
}
static ts_status both(ts_frame *f, bool smallest)
{
    find(f, smallest, f->rets[0].tag == TS_TAG_TENSOR ? f->rets[0].t : NULL,
         f->rets[1].tag == TS_TAG_TENSOR ? f->rets[1].t : NULL);
    return TS_OK;
}
static ts_status max_dim(ts_frame *f) { return both(f, false); }
static ts_status min_dim(ts_frame *f) { return both(f, true); }

#define COMPARABLE (TS_DT_FLOATS | TS_DT(TS_I64) | TS_DT(TS_I32) | TS_DT(TS_U8) | TS_DT(TS_BOOL))

TS_CPU_FAMILY(arg,
    {TS_OP_argmax, argmax, {COMPARABLE, 0}},
    {TS_OP_argmin, argmin, {COMPARABLE, 0}},
    {TS_OP_max_dim, max_dim, {COMPARABLE, 0}},
    {TS_OP_min_dim, min_dim, {COMPARABLE, 0}})
