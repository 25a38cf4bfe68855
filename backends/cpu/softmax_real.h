/* Softmax over one dim, and its gradient, for one real type; included by softmax.c. All tensors are
 * contiguous (outer, n, inner); n is the softmax dim. */
// SPDX-License-Identifier: MIT
#include "backends/cpu/fold_real.h"

/* ------------------------------------------------------------------ rows: inner == 1 ------ */

/** Tasks are rows of n contiguous elements. */
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

/** dx = y (g - sum(g y)); with log, dx = g - exp(y) sum(g). job->x holds y, job->y receives dx. */
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

/** Terms of each half of the first addition of sum_terms(), for rows of n elements: at least one
 * term is a pad, unless a row is a whole line, so that a sum of -0 is 0 as in fold_lanes(). */
VEC_FN int64_t S(short_width)(int64_t n)
{
    int64_t width = 1;
    while (width < n)
        width *= 2;
    return ts_min64(width, S(LINE) / 2);
}

/** Sum of the terms term[0] to term[2 w - 1], in the order in which fold_lanes() adds the elements
 * of a line. Overwrites the terms. */
VEC_FN V S(sum_terms)(V *term, int64_t w)
{
    for (; w; w /= 2)
        for (int64_t k = 0; k < w; k++)
            term[k] += term[k + w];
    return term[0];
}

/** Copies element k of row j to lane j of column[k]. Lanes without a row receive row 0. */
VEC_FN void S(load_columns)(V *column, const T *x, int64_t rows, int64_t n)
{
    for (int64_t k = 0; k < n; k++) {
        T lanes[LANES];
        for (int64_t j = 0; j < LANES; j++)
            lanes[j] = x[(j < rows ? j : 0) * n + k];
        column[k] = F(load)(lanes);
    }
}
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

/* ---------------------------------------------- columns: LANES of the inner dim at a time -- */

/** Task t is tile t % tiles of outer index t / tiles; a tile is LANES columns of the inner dim. */
static void S(softmax_columns)(void *ctx, int64_t begin, int64_t end)
{
    const softmax_job *job = ctx;
    int64_t n = job->n, step = job->inner, tiles = ts_ceil_div(step, LANES);
    for (int64_t t = begin; t < end; t++) {
        int64_t at = t / tiles * n * step + t % tiles * LANES, left = step - t % tiles * LANES;
        const T *x = (const T *)job->x + at;
        T *y = (T *)job->y + at;
        V top = F(set1)(-(T)INFINITY), sum = F(zero)();
        for (int64_t k = 0; k < n; k++)
            top = F(max_fast)(S(load_some)(x + k * step, left, F(zero)()), top);
        for (int64_t k = 0; k < n; k++) {
            V e = F(exp)(S(load_some)(x + k * step, left, F(zero)()) - top);
            sum += e;
            if (!job->log)
                S(store_some)(y + k * step, e, left);
        }
        V last = 1 / sum;
        if (job->log)
            last = F(log)(sum);
        for (int64_t k = 0; k < n; k++) {
            if (job->log)
                S(store_some)(y + k * step,
                              (S(load_some)(x + k * step, left, F(zero)()) - top) - last, left);
            else
                S(store_some)(y + k * step, S(load_some)(y + k * step, left, F(zero)()) * last,
                              left);
        }
    }
}

static void S(softmax_backward_columns)(void *ctx, int64_t begin, int64_t end)
{
    const softmax_job *job = ctx;
    int64_t n = job->n, step = job->inner, tiles = ts_ceil_div(step, LANES);
    for (int64_t t = begin; t < end; t++) {
        int64_t at = t / tiles * n * step + t % tiles * LANES, left = step - t % tiles * LANES;
        const T *g = (const T *)job->g + at, *y = (const T *)job->x + at;
        T *dx = (T *)job->y + at;
        V sum = F(zero)();
        for (int64_t k = 0; k < n; k++) {
            V gk = S(load_some)(g + k * step, left, F(zero)());
            if (job->log)
                sum += gk;
            else
                sum = F(fma)(gk, S(load_some)(y + k * step, left, F(zero)()), sum);
        }
        for (int64_t k = 0; k < n; k++) {
            V gk = S(load_some)(g + k * step, left, F(zero)()),
              yk = S(load_some)(y + k * step, left, F(zero)());
            V d = (gk - sum) * yk;
            if (job->log)
                d = gk - F(exp)(yk) * sum;
            S(store_some)(dx + k * step, d, left);
        }
    }
}
