/* Softmax over one dim, and its gradient, for one real type T (real_names.h); included by
 * softmax.c. All tensors are contiguous (outer, n, inner); n is the softmax dim. LINE is the number
 * of elements of a 64-byte line (fold_real.h). A row is n elements if inner is 1; a column is the n
 * elements at one index of the inner dim otherwise. */
// SPDX-License-Identifier: MIT
#include "backends/cpu/fold_real.h"

/* ------------------------------------------------------------------ rows: inner == 1 ------ */

/** softmax or, with job->log, log_softmax. Tasks are rows of n contiguous elements. */
static void S(softmax_rows)(void *ctx, int64_t begin, int64_t end)
{
    const softmax_job *job = ctx;
    for (int64_t r = begin; r < end; r++) {
        const T *x = (const T *)job->x + r * job->n;
        T *y = (T *)job->y + r * job->n;
        T top = S(row_max)(x, job->n);
        if (job->log) {
            V first = F(set1)(top), rest = F(set1)(S(log_of)(S(row_exp)(NULL, x, top, job->n)));
            for (int64_t i = 0; i < job->n; i += LANES) {
                V xi = S(load_some)(x + i, job->n - i, F(zero)());
                S(store_some)(y + i, (xi - first) - rest, job->n - i);
            }
        } else {
            V scale = F(set1)(1 / S(row_exp)(y, x, top, job->n));
            for (int64_t i = 0; i < job->n; i += LANES)
                S(store_some)(y + i, S(load_some)(y + i, job->n - i, F(zero)()) * scale,
                              job->n - i);
        }
    }
}

/** Gradient dx = y (g - sum(g y)), or dx = g - exp(y) sum(g) for log_softmax. job->x holds y,
 * job->g holds g, job->y receives dx. Tasks are rows. */
static void S(softmax_backward_rows)(void *ctx, int64_t begin, int64_t end)
{
    const softmax_job *job = ctx;
    int64_t n = job->n;
    for (int64_t r = begin; r < end; r++) {
        const T *g = (const T *)job->g + r * n, *y = (const T *)job->x + r * n;
        T *dx = (T *)job->y + r * n;
        if (job->log) {
            V sum = F(set1)(S(row_sum)(g, n));
            for (int64_t i = 0; i < n; i += LANES) {
                V e = F(exp)(S(load_some)(y + i, n - i, F(zero)()));
                S(store_some)(dx + i, S(load_some)(g + i, n - i, F(zero)()) - e * sum, n - i);
            }
            continue;
        }
        V dot = F(set1)(S(row_dot)(g, y, n));
        for (int64_t i = 0; i < n; i += LANES) {
            V gi = S(load_some)(g + i, n - i, F(zero)()),
              yi = S(load_some)(y + i, n - i, F(zero)());
            S(store_some)(dx + i, (gi - dot) * yi, n - i);
        }
    }
}

/* ------------------------------------- short rows: LANES rows of at most a line at a time -- */

/** Half of the number of terms that sum_terms() adds for a row of n elements. The terms after the
 * n-th are zeros. There is at least one zero, so that a sum of -0 is 0 as in fold_lanes(), unless
 * the row is a whole line. */
VEC_FN int64_t S(short_width)(int64_t n)
{
    int64_t width = 1;
    while (width < n)
        width *= 2;
    return ts_min64(width, S(LINE) / 2);
}

/** Sum of the terms term[0] to term[2 w - 1], in the order in which fold_lanes() (fold_real.h) adds
 * the elements of a line. Overwrites the terms. */
VEC_FN V S(sum_terms)(V *term, int64_t w)
{
    for (; w; w /= 2)
        for (int64_t k = 0; k < w; k++)
            term[k] += term[k + w];
    return term[0];
}

/** Copies element k of row j to lane j of column[k], for `rows` rows. Other lanes receive row 0. */
VEC_FN void S(load_columns)(V *column, const T *x, int64_t rows, int64_t n)
{
    for (int64_t k = 0; k < n; k++) {
        T lanes[LANES];
        for (int64_t j = 0; j < LANES; j++)
            lanes[j] = x[(j < rows ? j : 0) * n + k];
        column[k] = F(load)(lanes);
    }
}
/** Copies lane j of column[k] to element k of row j. */
VEC_FN void S(store_columns)(T *y, const V *column, int64_t rows, int64_t n)
{
    for (int64_t k = 0; k < n; k++) {
        T lanes[LANES];
        F(store)(lanes, column[k]);
        for (int64_t j = 0; j < rows; j++)
            y[j * n + k] = lanes[j];
    }
}

/** softmax_rows() for rows of at most S(LINE) elements, with the same bits: each lane computes a
 * row. */
static void S(softmax_short)(void *ctx, int64_t begin, int64_t end)
{
    const softmax_job *job = ctx;
    int64_t n = job->n, width = S(short_width)(n);
    for (int64_t r = begin; r < end; r += LANES) {
        int64_t rows = ts_min64(LANES, end - r);
        V x[S(LINE)], e[S(LINE)], top = F(set1)(-(T)INFINITY);
        S(load_columns)(x, (const T *)job->x + r * n, rows, n);
        for (int64_t k = 0; k < n; k++)
            top = F(max_fast)(x[k], top);
        for (int64_t k = 0; k < 2 * width; k++)
            e[k] = F(zero)();
        for (int64_t k = 0; k < n; k++) {
            x[k] -= top;
            e[k] = F(exp)(x[k]);
            if (!job->log)
                x[k] = e[k];
        }
        V sum = S(sum_terms)(e, width), last = 1 / sum;
        if (job->log)
            last = F(log)(sum);
        for (int64_t k = 0; k < n; k++)
            x[k] = job->log ? (V)(x[k] - last) : (V)(x[k] * last);
        S(store_columns)((T *)job->y + r * n, x, rows, n);
    }
}

/** softmax_backward_rows() for rows of at most S(LINE) elements, with the same bits. */
static void S(softmax_backward_short)(void *ctx, int64_t begin, int64_t end)
{
    const softmax_job *job = ctx;
    int64_t n = job->n, width = S(short_width)(n);
    for (int64_t r = begin; r < end; r += LANES) {
        int64_t rows = ts_min64(LANES, end - r);
        V g[S(LINE)], y[S(LINE)], terms[S(LINE)];
        S(load_columns)(g, (const T *)job->g + r * n, rows, n);
        S(load_columns)(y, (const T *)job->x + r * n, rows, n);
        for (int64_t k = 0; k < 2 * width; k++)
            terms[k] = F(zero)();
        for (int64_t k = 0; k < n; k++)
            terms[k] = job->log ? g[k] : (V)(g[k] * y[k]);
        V sum = S(sum_terms)(terms, width);
        for (int64_t k = 0; k < n; k++) {
            V dx = (g[k] - sum) * y[k];
            if (job->log)
                dx = g[k] - F(exp)(y[k]) * sum;
            g[k] = dx;
        }
        S(store_columns)((T *)job->y + r * n, g, rows, n);
    }
}

/* ------------------------------------------ columns: some vectors of the inner dim at a time -- */

/* Vector v of row k of a tile. */
#define GET(p, v) S(get)(kind, p, at + k * step + (v) * LANES, left - (v) * LANES)
#define SET(p, v, y) S(set)(kind, p, at + k * step + (v) * LANES, y, left - (v) * LANES)

/** Softmax of `vectors` vectors of columns, whose first element has index `at`; `left` columns are
 * valid. kind: dtype of the tensors. */
VEC_FN void S(softmax_tile)(ts_dtype kind, const softmax_job *job, int64_t at, int64_t left,
                            int vectors)
{
    /* stored terms of halves are rounded, so these terms are computed twice */
    bool half = kind == TS_BF16 || kind == TS_F16, keep = !job->log && !half;
    int64_t n = job->n, step = job->inner;
    V top[COLUMN_VECTORS], sum[COLUMN_VECTORS];
    for (int v = 0; v < vectors; v++) {
        top[v] = F(set1)(-(T)INFINITY);
        sum[v] = F(zero)();
    }
    for (int64_t k = 0; k < n; k++)
        for (int v = 0; v < vectors; v++)
            top[v] = F(max_fast)(GET(job->x, v), top[v]);
    for (int64_t k = 0; k < n; k++)
        for (int v = 0; v < vectors; v++) {
            V e = F(exp)(GET(job->x, v) - top[v]);
            sum[v] += e;
            if (keep)
                SET(job->y, v, e);
        }
    for (int v = 0; v < vectors; v++) {
        V last = 1 / sum[v];
        if (job->log)
            last = F(log)(sum[v]);
        sum[v] = last;
    }
    for (int64_t k = 0; k < n; k++)
        for (int v = 0; v < vectors; v++) {
            V e = GET(keep ? job->y : job->x, v);
            if (!keep)
                e -= top[v];
            if (job->log)
                e -= sum[v];
            else if (half)
                e = F(exp)(e) * sum[v];
            else
                e *= sum[v];
            SET(job->y, v, e);
        }
}

/** The gradient (softmax_backward_rows()) of the columns of a tile, as in softmax_tile(). */
VEC_FN void S(softmax_backward_tile)(ts_dtype kind, const softmax_job *job, int64_t at,
                                     int64_t left, int vectors)
{
    int64_t n = job->n, step = job->inner;
    V sum[COLUMN_VECTORS];
    for (int v = 0; v < vectors; v++)
        sum[v] = F(zero)();
    for (int64_t k = 0; k < n; k++)
        for (int v = 0; v < vectors; v++) {
            V g = GET(job->g, v);
            if (job->log)
                sum[v] += g;
            else
                sum[v] = F(fma)(g, GET(job->x, v), sum[v]);
        }
    for (int64_t k = 0; k < n; k++)
        for (int v = 0; v < vectors; v++) {
            V g = GET(job->g, v), y = GET(job->x, v), d = (g - sum[v]) * y;
            if (job->log)
                d = g - F(exp)(y) * sum[v];
            SET(job->y, v, d);
        }
}
#undef GET
#undef SET

/* Tasks are tiles of COLUMN_VECTORS vectors; task t is tile t % tiles of outer index t / tiles. The
 * last columns are processed one vector at a time. */
#define COLUMNS(name, of, kind)                                                                    \
    static void name##_columns_##of(void *ctx, int64_t begin, int64_t end)                         \
    {                                                                                              \
        const softmax_job *job = ctx;                                                              \
        int64_t width = COLUMN_VECTORS * LANES, tiles = ts_ceil_div(job->inner, width);            \
        for (int64_t t = begin; t < end; t++) {                                                    \
            int64_t column = t % tiles * width, left = ts_min64(job->inner - column, width),       \
                    at = t / tiles * job->n * job->inner + column;                                 \
            if (left == width)                                                                     \
                S(name##_tile)(kind, job, at, width, COLUMN_VECTORS);                              \
            else                                                                                   \
                for (int64_t j = 0; j < left; j += LANES)                                          \
                    S(name##_tile)(kind, job, at + j, left - j, 1);                                \
        }                                                                                          \
    }
#define BODIES(of, kind) COLUMNS(softmax, of, kind) COLUMNS(softmax_backward, of, kind)
FOR_KINDS(BODIES)
#undef BODIES
#undef COLUMNS
