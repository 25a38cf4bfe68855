/* The passes of a reduction for one real type; included by reduce.c, which explains them. */
// SPDX-License-Identifier: MIT
#include "backends/cpu/real.h"

VEC_FN V S(identity)(fold how)
{
    return F(set1)(how == FOLD_PROD  ? 1
                   : how == FOLD_MAX ? -(T)INFINITY
                   : how == FOLD_MIN ? (T)INFINITY
                                     : 0);
}
/** What an element contributes; p belongs to its result: a mean, or the largest element. */
VEC_FN V S(map)(fold how, V x, V p)
{
    switch (how) {
    case FOLD_SQUARES: return x * x;
    case FOLD_ABS:
    case FOLD_ABSMAX: return F(abs)(x);
    case FOLD_DEVIATIONS: return (x - p) * (x - p);
    case FOLD_EXP: return F(exp)(x - p);
    default: return x;
    }
}
VEC_FN V S(fold)(fold how, V a, V b)
{
    switch (how) {
    case FOLD_PROD: return a * b;
    case FOLD_MAX:
    case FOLD_ABSMAX: return F(max)(a, b);
    case FOLD_MIN: return F(min)(a, b);
    default: return a + b;
    }
}
VEC_FN T S(fold_lanes)(fold how, V v)
{
    if (how == FOLD_MAX || how == FOLD_ABSMAX)
        return F(hmax)(v);
    if (how == FOLD_MIN)
        return F(hmin)(v);
    if (how != FOLD_PROD)
        return F(hsum)(v);
    T lanes[LANES];
    F(store)(lanes, v);
    for (int w = LANES / 2; w; w /= 2)
        for (int i = 0; i < w; i++)
            lanes[i] *= lanes[i + w];
    return lanes[0];
}

/** n elements `step` bytes apart into four running vectors. */
VEC_FN void S(fold_run)(fold how, V acc[4], const char *x, int64_t step, int64_t n, V p)
{
    int64_t i = 0;
    if (step == sizeof(T)) {
        const T *at = (const T *)x;
        for (; i + 4 * LANES <= n; i += 4 * LANES)
            for (int k = 0; k < 4; k++)
                acc[k] = S(fold)(how, acc[k], S(map)(how, F(load)(at + i + k * LANES), p));
        for (; i + LANES <= n; i += LANES)
            acc[0] = S(fold)(how, acc[0], S(map)(how, F(load)(at + i), p));
        if (i < n) {
            V last = S(map)(how, F(load_n)(at + i, n - i), p);
            acc[1] = S(fold)(how, acc[1], F(select)(M(first_n)(n - i), last, S(identity)(how)));
        }
        return;
    }
    for (; i < n; i += LANES) {
        T lanes[LANES] = {0};
        int64_t some = n - i < LANES ? n - i : LANES;
        for (int64_t k = 0; k < some; k++)
            lanes[k] = *(const T *)(x + (i + k) * step);
        V v = S(map)(how, F(load)(lanes), p);
        int64_t k = i / LANES % 4;
        acc[k] = S(fold)(how, acc[k],
                         some == LANES ? v : F(select)(M(first_n)(some), v, S(identity)(how)));
    }
}

/** A run of at most RUN_BLOCK elements; of halves a copy in `wide`,
 * whose step is then that of T. */
VEC_FN const char *S(run_of)(const reduction *r, const char *x, int64_t *step, int64_t n, T *wide)
{
#if TS_REAL == 32
    *step = r->steps[0];
    if (r->widen) {
        TS_V(ts_cpu_copy_loop)(TS_F32, r->half)((char *[]){(char *)wide, (char *)x},
                                                (int64_t[]){sizeof(T), *step}, n, NULL);
        *step = sizeof(T);
        return (const char *)wide;
    }
#else
    (void)n, (void)wide;
    *step = r->steps[0];
#endif
    return x;
}

/** Inner pass: task = result * parts + part; a part is a piece of one run, or some whole runs. */
VEC_FN void S(inner_tasks)(fold how, const reduction *r, int64_t begin, int64_t end)
{
    walker kept = walker_at(r->kept, r->kept_sizes, r->kept_steps, begin / r->parts);
    int64_t part = begin % r->parts;
    T wide[RUN_BLOCK];
    for (int64_t task = begin; task < end; task++) {
        V p = F(set1)(r->params ? ((const T *)r->params)[task / r->parts] : 0);
        V zero = S(identity)(how), acc[4] = {zero, zero, zero, zero};
        const char *x = r->x + kept.offset;
        int64_t n = r->sizes[0], step = r->steps[0];
        if (r->pieces > 1) {
            int64_t from = part % r->pieces * RUN_BLOCK;
            walker run = walker_at(r->reduced - 1, r->sizes + 1, r->steps + 1, part / r->pieces);
            int64_t some = ts_min64(RUN_BLOCK, n - from);
            const char *at = S(run_of)(r, x + run.offset + from * step, &step, some, wide);
            S(fold_run)(how, acc, at, step, some, p);
        } else {
            int64_t first = part * r->runs, last = ts_min64(first + r->runs, r->all_runs);
            walker run = walker_at(r->reduced - 1, r->sizes + 1, r->steps + 1, first);
            for (int64_t i = first; i < last; i++) {
                const char *at = S(run_of)(r, x + run.offset, &step, n, wide);
                S(fold_run)(how, acc, at, step, n, p);
                if (i + 1 < last)
                    walker_next(&run);
            }
        }
        acc[0] = S(fold)(how, S(fold)(how, acc[0], acc[1]), S(fold)(how, acc[2], acc[3]));
        ((T *)r->out)[task] = S(fold_lanes)(how, acc[0]);
        if (++part == r->parts) {
            part = 0;
            walker_next(&kept);
        }
    }
}

/** Rows at the given offsets folded into `width` vectors of columns that begin
 * at column j, in x at column `at`. */
VEC_FN void S(fold_columns)(fold how, const char *x, const int64_t *rows, int64_t n, int64_t at,
                            int64_t j, int width, int64_t left, const T *params, T *out)
{
    V acc[8], p[8];
    for (int k = 0; k < width; k++) {
        acc[k] = S(identity)(how);
        p[k] =
            params ? S(load_some)(params + j + k * LANES, left - k * LANES, F(zero)()) : F(zero)();
    }
    for (int64_t i = 0; i < n; i++) {
        const T *row = (const T *)(x + rows[i]) + at;
        for (int k = 0; k < width; k++)
            acc[k] = S(fold)(
                how, acc[k],
                S(map)(how, S(load_some)(row + k * LANES, left - k * LANES, F(zero)()), p[k]));
    }
    for (int k = 0; k < width; k++)
        S(store_some)(out + j + k * LANES, acc[k], left - k * LANES);
}

#if TS_REAL == 32
/** Columns j .. last of rows of halves, by way of an f32 copy of a few columns. */
VEC_FN void S(fold_halves)(fold how, const reduction *r, const char *x, const int64_t *rows,
                           int64_t n, int64_t j, int64_t last, const T *params, T *out)
{
    enum { SOME = 8 * LANES };
    T wide[ROW_BLOCK * SOME];
    int64_t places[ROW_BLOCK];
    for (; j < last; j += SOME) {
        int64_t some = ts_min64(SOME, last - j), k = 0;
        for (int64_t i = 0; i < n; i++) {
            places[i] = i * SOME * (int64_t)sizeof(T);
            rows_widen(wide + i * SOME, x + rows[i] + j * 2, r->half, some);
        }
        if (some == SOME)
            S(fold_columns)(how, (const char *)wide, places, n, 0, j, 8, SOME, params, out);
        for (; some < SOME && k < some; k += LANES)
            S(fold_columns)(how, (const char *)wide, places, n, k, j + k, 1, some - k, params, out);
    }
}
#endif

/** Outer pass: task = (outer result * parts + part) * tiles + tile; a part is ROW_BLOCK rows. */
VEC_FN void S(outer_tasks)(fold how, const reduction *r, int64_t begin, int64_t end)
{
    int64_t rows[ROW_BLOCK];
    for (int64_t task = begin; task < end; task++) {
        int64_t tile = task % r->tiles, part = task / r->tiles % r->parts,
                outer = task / r->tiles / r->parts;
        int64_t first = part * ROW_BLOCK, n = ts_min64(ROW_BLOCK, r->length - first);
        walker kept = walker_at(r->kept, r->kept_sizes, r->kept_steps, outer);
        walker row = walker_at(r->reduced, r->sizes, r->steps, first);
        for (int64_t i = 0; i < n; i++) {
            rows[i] = row.offset;
            if (i + 1 < n)
                walker_next(&row);
        }
        const char *x = r->x + kept.offset;
        const T *params = r->params ? (const T *)r->params + outer * r->width : NULL;
        T *out = (T *)r->out + (outer * r->parts + part) * r->width;
        int64_t j = tile * TILE, last = ts_min64(j + TILE, r->width);
#if TS_REAL == 32
        if (r->widen) {
            S(fold_halves)(how, r, x, rows, n, j, last, params, out);
            continue;
        }
#endif
        for (; j + 8 * LANES <= last; j += 8 * LANES)
            S(fold_columns)(how, x, rows, n, j, j, 8, 8 * LANES, params, out);
        for (; j < last; j += LANES)
            S(fold_columns)(how, x, rows, n, j, j, 1, last - j, params, out);
    }
}

/* One pair of bodies a fold, so that `how` is a constant in the loops. */
#define FOLD(name)                                                                              \
    static void S(inner_##name)(void *ctx, int64_t begin, int64_t end)                          \
    {                                                                                           \
        S(inner_tasks)(FOLD_##name, ctx, begin, end);                                           \
    }                                                                                           \
    static void S(outer_##name)(void *ctx, int64_t begin, int64_t end)                          \
    {                                                                                           \
        S(outer_tasks)(FOLD_##name, ctx, begin, end);                                           \
    }
FOLDS
#undef FOLD

static const ts_parallel_body S(bodies)[FOLD_COUNT][2] = {
#define FOLD(name) [FOLD_##name] = {S(inner_##name), S(outer_##name)},
    FOLDS
#undef FOLD
};

/** The last step on the results, in place. */
static void S(finish)(finish how, void *results, const void *params, int64_t n, double length)
{
    T *y = results;
    const T *p = params;
    for (int64_t i = 0; i < n; i++) {
        switch (how) {
        case FINISH_NONE: return;
        case FINISH_DIVIDE: y[i] = (T)(y[i] / length); break;
        case FINISH_ROOT: y[i] = (T)sqrt((double)y[i]); break;
        case FINISH_DIVIDE_ROOT: y[i] = (T)sqrt((double)y[i] / length); break;
        case FINISH_LOG: y[i] = S(log_of)(y[i]) + p[i]; break;
        case FINISH_FINITE: y[i] = isinf(y[i]) ? 0 : y[i]; break;
        }
    }
}
