/* The passes of a reduction for one real type T (real_names.h); included by reduce.c, which
 * explains the kinds of passes: inner, outer and transposed. bf16 and f16 are widened to f32. An
 * outer result is a group of r->width adjacent results, the columns of an outer pass. */
// SPDX-License-Identifier: MIT
#include "backends/cpu/fold_real.h"

/** Copies n elements of x, `step` bytes apart, to contiguous elements of T; widens halves. */
VEC_FN void S(gather)(const reduction *r, T *to, const char *x, int64_t step, int64_t n)
{
#if TS_REAL == 32
    if (r->widen) {
        TS_V(ts_cpu_copy_loop)(TS_F32, r->half)((char *[]){(char *)to, (char *)x},
                                                (int64_t[]){sizeof(T), step}, n, NULL);
        return;
    }
#else
    (void)r;
#endif
    if (step == sizeof(T) && n >= S(LINE))
        memcpy(to, x, (size_t)n * sizeof(T));
    else if (step == 2 * sizeof(T)) /* a constant, so that compilers shuffle vectors */
        for (int64_t k = 0; k < n; k++)
            to[k] = ((const T *)x)[2 * k];
    else
        for (int64_t k = 0; k < n; k++)
            to[k] = *(const T *)(x + k * step);
}

/** Copies `runs` runs as gather() copies one run, at most TERMS elements together. Runs have n
 * elements, `step` bytes apart, and begin `apart` bytes apart. */
VEC_FN void S(gather_runs)(const reduction *r, T *to, const char *x, int64_t apart, int64_t runs,
                           int64_t step, int64_t n)
{
#if TS_REAL == 32
    if (r->widen) {
        uint16_t buffer[TERMS];
        for (int64_t i = 0; i < runs; i++)
            for (int64_t k = 0; k < n; k++)
                buffer[i * n + k] = *(const uint16_t *)(x + i * apart + k * step);
        rows_widen(to, buffer, r->half, runs * n);
        return;
    }
#else
    (void)r;
#endif
    for (int64_t i = 0; i < runs; i++)
        for (int64_t k = 0; k < n; k++)
            to[i * n + k] = *(const T *)(x + i * apart + k * step);
}

/** Folds n contiguous elements. Exponentials are stored in `block` (TERMS elements), which may
 * alias x. */
VEC_FN void S(fold_block)(fold how, S(cascade) *c, T *block, const T *x, int64_t n, T p)
{
    if (how != FOLD_EXP) {
        S(fold_run)(how, c, x, x, n, F(set1)(p));
        return;
    }
    for (int64_t i = 0; i < n; i += TERMS)
        S(exp_run)(c, block, x + i, p, ts_min64(TERMS, n - i));
}

/** Inner pass: task = result * parts + part; a part is a piece of one run, or some whole runs. */
VEC_FN void S(inner_tasks)(fold how, const reduction *r, int64_t begin, int64_t end)
{
    walker kept = walker_at(r->kept, r->kept_sizes, r->kept_steps, begin / r->parts);
    int64_t part = begin % r->parts, step = r->steps[0];
    /* halves, strided runs and short runs are gathered; several short runs fold as one */
    bool gather = r->widen || step != sizeof(T) ||
                  (r->all_runs > 1 && r->sizes[0] < S(LINE) * LEAF_LINES);
    T block[TERMS]; /* a whole number of leaves, so that blocks do not change the order of a fold */
    if (!gather && how != FOLD_EXP && r->parts == 1 && r->all_runs == 1) {
        for (int64_t task = begin; task < end; task++, walker_next(&kept)) {
            const T *x = (const T *)(r->x + kept.offset);
            ((T *)r->out)[task] = S(row_fold)(how, x, x, r->sizes[0],
                                              r->params ? ((const T *)r->params)[task] : 0);
        }
        return;
    }
    for (int64_t task = begin; task < end; task++) {
        T p = r->params ? ((const T *)r->params)[task / r->parts] : 0;
        int64_t from = part % r->pieces * RUN_BLOCK, n = ts_min64(RUN_BLOCK, r->sizes[0] - from);
        int64_t first = part / r->pieces * r->runs, last = ts_min64(first + r->runs, r->all_runs);
        walker run = walker_at(r->reduced - 1, r->sizes + 1, r->steps + 1, first);
        const char *x = r->x + kept.offset + from * step;
        int64_t held = 0;
        S(cascade) c;
        c.leaves = 0;
        for (int64_t i = first, together; i < last; i += together, walker_move(&run, together)) {
            together = gather && n <= SHORT_RUN ? walker_run(&run, (TERMS - held) / n) : 1;
            together = ts_min64(together, last - i);
            if (together > 1) {
                S(gather_runs)(r, block + held, x + run.offset, walker_step(&run), together, step,
                               n);
                held += together * n;
                if (held < TERMS)
                    continue;
                S(fold_block)(how, &c, block, block, TERMS, p);
                held = 0;
                continue;
            }
            together = 1;
            if (!gather)
                S(fold_block)(how, &c, block, (const T *)(x + run.offset), n, p);
            for (int64_t k = 0, some; gather && k < n; k += some) {
                some = ts_min64(n - k, TERMS - held);
                S(gather)(r, block + held, x + run.offset + k * step, step, some);
                held += some;
                if (held == TERMS) {
                    S(fold_block)(how, &c, block, block, TERMS, p);
                    held = 0;
                }
            }
        }
        if (held)
            S(fold_block)(how, &c, block, block, held, p);
        ((T *)r->out)[task] = S(cascade_value)(how, &c);
        if (++part == r->parts) {
            part = 0;
            walker_next(&kept);
        }
    }
}

/** Folds n rows of dtype `kind`, for the vector of columns that starts at j, and then folds in each
 * level of the cascade whose bit is set in `carry`. Stores min(left, LANES) results at out + j. */
VEC_FN void S(column_vector)(fold how, ts_dtype kind, const char *const *rows, int n, int64_t j,
                             int64_t left, const T *params, const T (*level)[TILE], unsigned carry,
                             T *out)
{
    V p = params ? S(load_some)(params + j, left, F(zero)()) : F(zero)();
#define TERM(k) S(map)(how, S(get)(kind, rows[k], j, left), p)
    V y = FOLD_TREE(how, n, TERM);
#undef TERM
    for (int k = 0; carry >> k; k++)
        if (carry >> k & 1)
            y = S(fold)(how, F(load)(level[k] + j), y);
    S(store_some)(out + j, y, left);
}

/** Calls column_vector() for all columns of a tile and n rows: 8, 4, 2 or 1. */
VEC_FN void S(column_leaf)(fold how, ts_dtype kind, const char *const *rows, int n, int64_t columns,
                           const T *params, const T (*level)[TILE], unsigned carry, T *out)
{
#define LEAF_OF(n)                                                                                 \
    case n:                                                                                        \
        /* exponentials are large inlined code, so they have no separate loop for whole vectors */ \
        for (; how != FOLD_EXP && j + LANES <= columns; j += LANES)                                \
            S(column_vector)(how, kind, rows, n, j, LANES, params, level, carry, out);             \
        for (; j < columns; j += LANES)                                                            \
            S(column_vector)(how, kind, rows, n, j, columns - j, params, level, carry, out);       \
        break;
    int64_t j = 0;
    switch (n) {
        LEAF_OF(LEAF_LINES) LEAF_OF(4) LEAF_OF(2) LEAF_OF(1)
    }
#undef LEAF_OF
}

/** Folds n <= ROW_BLOCK rows of at most TILE columns, starting at column `from`, into out, with a
 * cascade per column. Plain folds of bf16 and f16 (sum, maximum, minimum) widen vectors in
 * registers. Other folds of bf16 and f16 have at most NARROW columns, which are widened one leaf at
 * a time. */
VEC_FN void S(fold_columns)(fold how, const reduction *r, const char *const *rows, int64_t from,
                            int64_t n, int64_t columns, const T *params, T *out)
{
    T level[ROW_LEVELS][TILE];
    const char *leaf[LEAF_LINES];
    const ts_dtype real = sizeof(T) == 4 ? TS_F32 : TS_F64;
#if TS_REAL == 32
    T wide[LEAF_LINES][NARROW];
#endif
    for (unsigned leaves = 0; n > 0; leaves++) {
        int some = n >= LEAF_LINES ? LEAF_LINES : n >= 4 ? 4 : n >= 2 ? 2 : 1;
        bool last = some == n;
        unsigned carry = last ? leaves : leaves & ~(leaves + 1);
        T *to = last ? out : level[__builtin_ctz(leaves + 1)];
        for (int i = 0; i < some; i++)
            leaf[i] = rows[i] + from * (r->widen ? 2 : (int64_t)sizeof(T));
        rows += some;
        n -= some;
#if TS_REAL == 32
        if (r->widen && is_plain(how)) {
            if (r->half == TS_BF16)
                S(column_leaf)(how, TS_BF16, leaf, some, columns, params, level, carry, to);
            else
                S(column_leaf)(how, TS_F16, leaf, some, columns, params, level, carry, to);
            continue;
        }
        for (int i = 0; r->widen && i < some; i++) {
            rows_widen(wide[i], leaf[i], r->half, columns);
            leaf[i] = (const char *)wide[i];
        }
#endif
        S(column_leaf)(how, real, leaf, some, columns, params, level, carry, to);
    }
}

enum { S(BESIDE) = 8192 / sizeof(T) }; /* most elements of parts that are copied side by side */

/** Number of parts, from task `begin` on, that fold_beside() folds together: whole parts of the
 * same outer result that fit a block. 1 if a part has more than FEW columns. outer_tasks() itself
 * folds a single part. */
VEC_FN int64_t S(parts_beside)(const reduction *r, int64_t begin, int64_t end)
{
    int64_t left = r->length / ROW_BLOCK - begin % r->parts;
    if (r->width > FEW)
        return 1;
    return ts_max64(1, ts_min64(ts_min64(left, end - begin), S(BESIDE) / ROW_BLOCK / r->width));
}

/** Copies n rows of r->width <= FEW elements, `step` bytes apart, to rows `columns` elements
 * apart. */
VEC_FN void S(copy_rows)(const reduction *r, T *to, int64_t columns, const char *x, int64_t step,
                         int64_t n)
{
#if TS_REAL == 32
    float wide[ROW_BLOCK];
    for (int64_t j = 0; r->widen && j < r->width; j++) {
        S(gather)(r, wide, x + 2 * j, step, n);
        for (int64_t k = 0; k < n; k++)
            to[k * columns + j] = wide[k];
    }
    if (r->widen)
        return;
#endif
#define ROWS(width)                                                         \
    case width:                                                             \
        for (int64_t k = 0; k < n; k++)                                     \
            memcpy(to + k * columns, x + k * step, (width) * sizeof(T));    \
        break;
    switch (r->width) {
        ROWS(1) ROWS(2) ROWS(3) ROWS(4) ROWS(5) ROWS(6) ROWS(FEW)
    }
#undef ROWS
}

/** Copies n parts of one outer result, starting with the part of `task`, side
 * by side as columns of one block, and folds them with `body`. */
static __attribute__((noinline)) void S(fold_beside)(const reduction *r, ts_parallel_body body,
                                                     int64_t task, int64_t n)
{
    T block[S(BESIDE)], params[S(BESIDE) / ROW_BLOCK];
    int64_t outer = task / r->parts, width = r->width, columns = n * width;
    walker kept = walker_at(r->kept, r->kept_sizes, r->kept_steps, outer);
    walker row = walker_at(r->reduced, r->sizes, r->steps, task % r->parts * ROW_BLOCK);
    for (int64_t p = 0; p < n; p++) {
        for (int64_t i = 0, some; i < ROW_BLOCK; i += some, walker_move(&row, some)) {
            some = walker_run(&row, ROW_BLOCK - i);
            S(copy_rows)(r, block + i * columns + p * width, columns,
                         r->x + kept.offset + row.offset, r->steps[0], some);
        }
        for (int64_t j = 0; r->params && j < width; j++)
            params[p * width + j] = ((const T *)r->params)[outer * width + j];
    }
    reduction beside = {.x = (const char *)block,
                        .params = r->params ? params : NULL,
                        .out = r->out + task * width * (int64_t)sizeof(T),
                        .reduced = 1,
                        .sizes = {ROW_BLOCK},
                        .steps = {columns * (int64_t)sizeof(T)},
                        .length = ROW_BLOCK,
                        .results = 1,
                        .parts = 1,
                        .width = columns,
                        .tiles = 1};
    body(&beside, 0, 1);
}

/** Outer pass. A task is a tile of columns of one part (at most ROW_BLOCK rows) of an outer result,
 * numbered (outer result * parts + part) * tiles + tile. body: the body that calls this function
 * for the same fold. */
VEC_FN void S(outer_tasks)(fold how, ts_parallel_body body, const reduction *r, int64_t begin,
                           int64_t end)
{
    const char *rows[ROW_BLOCK];
    int64_t item = r->widen ? 2 : sizeof(T);
    for (int64_t task = begin, beside; task < end; task += beside) {
        beside = S(parts_beside)(r, task, end);
        if (beside > 1) {
            S(fold_beside)(r, body, task, beside);
            continue;
        }
        int64_t tile = task % r->tiles, part = task / r->tiles % r->parts,
                outer = task / r->tiles / r->parts;
        int64_t first = part * ROW_BLOCK, n = ts_min64(ROW_BLOCK, r->length - first);
        int64_t j = tile * TILE, columns = ts_min64(TILE, r->width - j);
        walker kept = walker_at(r->kept, r->kept_sizes, r->kept_steps, outer);
        walker row = walker_at(r->reduced, r->sizes, r->steps, first);
        for (int64_t i = 0, some; i < n; i += some, walker_move(&row, some)) {
            const char *x = r->x + kept.offset + row.offset + j * item;
            some = walker_run(&row, n - i);
            for (int64_t k = 0; k < some; k++)
                rows[i + k] = x + k * r->steps[0];
        }
        const T *params = r->params ? (const T *)r->params + outer * r->width + j : NULL;
        T *out = (T *)r->out + (outer * r->parts + part) * r->width + j;
        int64_t most = r->widen && !is_plain(how) ? NARROW : TILE;
        for (int64_t from = 0; from < columns; from += most)
            S(fold_columns)(how, r, rows, from, n, ts_min64(most, columns - from),
                            params ? params + from : NULL, out + from);
    }
}

/** Transposed pass: a task is a tile of results. Gathers element k of result j to row k, column j
 * of a block, then folds the columns. */
static void S(transposed_tasks)(void *ctx, int64_t begin, int64_t end)
{
    const transposed_job *job = ctx;
    const reduction *r = job->r;
    T block[TRANSPOSED];
    uint16_t halves[TRANSPOSED];
    for (int64_t task = begin; task < end; task++) {
        int64_t first = task * r->transposed, width = ts_min64(r->transposed, r->results - first);
        walker kept = walker_at(r->kept, r->kept_sizes, r->kept_steps, first);
        for (int64_t j = 0, n; j < width; j += n, walker_move(&kept, n)) {
            walker row = walker_at(r->reduced, r->sizes, r->steps, 0);
            n = walker_run(&kept, width - j);
            for (int64_t k = 0; k < r->length; k++, walker_next(&row)) {
                const char *x = r->x + kept.offset + row.offset;
                int64_t at = k * width + j, step = walker_step(&kept);
                if (!r->widen)
                    S(gather)(r, block + at, x, step, n);
                for (int64_t i = 0; r->widen && i < n; i++)
                    halves[at + i] = *(const uint16_t *)(x + i * step);
            }
        }
#if TS_REAL == 32
        if (r->widen)
            rows_widen(block, halves, r->half, r->length * width);
#else
        (void)halves;
#endif
        reduction columns = {.x = (const char *)block,
                             .params = r->params ? (const T *)r->params + first : NULL,
                             .out = r->out + first * (int64_t)sizeof(T),
                             .reduced = 1,
                             .sizes = {r->length},
                             .steps = {width * (int64_t)sizeof(T)},
                             .length = r->length,
                             .results = 1,
                             .parts = 1,
                             .width = width,
                             .tiles = 1};
        job->outer(&columns, 0, 1);
    }
}

/* Each fold has its own inner and outer body, so that `how` is a constant in the loops. */
#define FOLD(name)                                                                              \
    static void S(inner_##name)(void *ctx, int64_t begin, int64_t end)                          \
    {                                                                                           \
        S(inner_tasks)(FOLD_##name, ctx, begin, end);                                           \
    }                                                                                           \
    static void S(outer_##name)(void *ctx, int64_t begin, int64_t end)                          \
    {                                                                                           \
        S(outer_tasks)(FOLD_##name, S(outer_##name), ctx, begin, end);                          \
    }
FOLDS
#undef FOLD

static const ts_parallel_body S(bodies)[FOLD_COUNT][2] = {
#define FOLD(name) [FOLD_##name] = {S(inner_##name), S(outer_##name)},
    FOLDS
#undef FOLD
};

#if TS_REAL == 32
/** Inner pass for rows of bf16 or f16 that fit a block (has_short_halves()). Adjacent rows are
 * widened together, because a call per row costs more than its fold. */
VEC_FN void fold_halves(fold how, const reduction *r, int64_t begin, int64_t end)
{
    walker kept = walker_at(r->kept, r->kept_sizes, r->kept_steps, begin);
    int64_t n = r->sizes[0];
    float block[TERMS];
    for (int64_t task = begin, some; task < end; task += some, walker_move(&kept, some)) {
        some = walker_step(&kept) == 2 * n ? walker_run(&kept, ts_min64(end - task, TERMS / n)) : 1;
        rows_widen(block, r->x + kept.offset, r->half, some * n);
        for (int64_t i = 0; i < some; i++) {
            float p = r->params ? ((const float *)r->params)[task + i] : 0;
            ((float *)r->out)[task + i] = S(row_fold)(how, block + i * n, block + i * n, n, p);
        }
    }
}
#define FOLD(name)                                                                              \
    static void halves_##name(void *ctx, int64_t begin, int64_t end)                            \
    {                                                                                           \
        fold_halves(FOLD_##name, ctx, begin, end);                                              \
    }
FOLDS
#undef FOLD

static const ts_parallel_body halves_bodies[FOLD_COUNT] = {
#define FOLD(name) [FOLD_##name] = halves_##name,
    FOLDS
#undef FOLD
};
#endif

/** Applies the last step to n results, in place. length: elements per result; params (only
 * FINISH_LOG): per result, the number that was subtracted from the exponents. */
static void S(finish)(finish how, void *results, const void *params, int64_t n, double length)
{
    T *y = results;
    const T *p = params;
#define EACH(value)                                                                             \
    for (int64_t i = 0; i < n; i++)                                                             \
        y[i] = (T)(value);                                                                      \
    break
    switch (how) {
    case FINISH_NONE: return;
    case FINISH_DIVIDE: EACH((double)y[i] / length);
    case FINISH_ROOT: EACH(sqrt((double)y[i]));
    case FINISH_DIVIDE_ROOT: EACH(sqrt((double)y[i] / length));
    case FINISH_LOG: EACH(S(log_of)(y[i]) + p[i]);
    case FINISH_FINITE: EACH(isinf(y[i]) ? 0 : y[i]);
    }
#undef EACH
}

/** Finds means whose rounding error matters because the squared deviations are small. Unless
 * `distances` (sums of deviations) is NULL, adds the mean of the deviations to these means; the
 * mean of equal elements is then exact. Returns true if a mean was found. */
static bool S(close_means)(void *means, const void *squares, const void *distances, int64_t n,
                           double length)
{
    bool found = false;
    for (int64_t i = 0; i < n; i++) {
        T *m = (T *)means + i, limit = (sizeof(T) == 4 ? (T)FLT_EPSILON : (T)DBL_EPSILON) * *m * *m;
        if (!(((const T *)squares)[i] < limit * (T)length))
            continue;
        found = true;
        if (distances)
            *m += ((const T *)distances)[i] / (T)length;
    }
    return found;
}
