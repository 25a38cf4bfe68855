/* Layer and RMS normalization of rows, and their gradients, for one real type T (real_names.h);
 * included by norm.c. Rows are n contiguous elements. fold_real.h defines the order of sums. */
// SPDX-License-Identifier: MIT
#include "backends/cpu/fold_real.h"

/** Adds the mean of x - mean to *mean, for rows with a variance so small that the rounding error of
 * the mean matters. The mean of equal elements is then exact. Returns the sum of (x - mean)^2 with
 * the new mean. */
FOLD_FN T S(close_deviations)(const T *x, int64_t n, T *mean)
{
    V m = F(set1)(*mean);
    *mean += SUM_OF(i, left, n, S(load_some)(x + i, left, m) - m) / (T)n;
    return S(row_deviations)(x, n, *mean);
}

/** y = (x - mean) * rstd * w + b for n elements; mean is 0 for an RMS norm. */
VEC_FN void S(norm_write)(const T *x, const T *w, const T *b, T *y, int64_t n, T mean, T rstd,
                          bool weighted, bool biased)
{
    V m = F(set1)(mean), s = F(set1)(rstd);
    for (int64_t i = 0; i < n; i += LANES) {
        V v = S(load_some)(x + i, n - i, F(zero)());
        v = (v - m) * s;
        if (weighted && biased)
            v = F(fma)(v, S(load_some)(w + i, n - i, F(zero)()),
                       S(load_some)(b + i, n - i, F(zero)()));
        else if (weighted)
            v = v * S(load_some)(w + i, n - i, F(zero)());
        else if (biased)
            v = v + S(load_some)(b + i, n - i, F(zero)());
        S(store_some)(y + i, v, n - i);
    }
}

/** Limit for the sum of n squared deviations: below it, the rounding error of the mean matters. */
VEC_FN T S(inexact_limit)(T mean, int64_t n)
{
    return (sizeof(T) == sizeof(float) ? (T)FLT_EPSILON : (T)DBL_EPSILON) * mean * mean * (T)n;
}

/** Normalizes rows [begin, end), without mean and bias for an RMS norm. */
VEC_FN void S(norm_rows)(const norm_job *job, bool rms, bool weighted, bool biased, int64_t begin,
                         int64_t end)
{
    int64_t n = job->n;
    const T *w = job->weight, *b = job->bias;
    for (int64_t r = begin; r < end; r++) {
        const T *x = (const T *)job->x + r * n;
        T *y = (T *)job->y + r * n;
        T mean = rms ? 0 : S(row_sum)(x, n) / (T)n;
        T squares = rms ? S(row_squares)(x, n) : S(row_deviations)(x, n, mean);
        if (!rms && squares > 0 && squares < S(inexact_limit)(mean, n))
            squares = S(close_deviations)(x, n, &mean);
        T rstd = (T)(1 / sqrt((double)(squares / (T)n) + job->eps));
        if (job->mean)
            ((T *)job->mean)[r] = mean;
        if (job->rstd)
            ((T *)job->rstd)[r] = rstd;
        S(norm_write)(x, w, b, y, n, mean, rstd, weighted, biased);
    }
}

static void S(norm_forward)(void *ctx, int64_t begin, int64_t end)
{
    const norm_job *job = ctx;
    if (job->rms)
        S(norm_rows)(job, true, job->weight, false, begin, end);
    else if (job->weight && job->bias)
        S(norm_rows)(job, false, true, true, begin, end);
    else
        S(norm_rows)(job, false, job->weight, job->bias, begin, end);
}

/* ---------------------------------------------------------------------- long rows --------- */

enum {
    S(PIECE) = S(LEAF) << PIECE_LEVEL,
    S(WIDENED) = TS_REAL == 32 ? TERMS : 1 /* most elements of bf16 or f16 widened at a time */
};

/** A fold over a long row, which gives the bits of row_fold(). */
typedef struct S(long_fold) {
    const norm_job *job;
    int64_t row;
    fold how;
    T p;           /* parameter of the terms (map() in fold_real.h): the mean */
    S(line) *lines; /* folds of the whole pieces, if several threads share the row; else NULL */
} S(long_fold);

/** Returns n contiguous elements from index i of a tensor: its memory, or bf16 or f16 widened to
 * `buffer`. */
VEC_FN const T *S(elements)(const norm_job *job, const void *x, int64_t i, int64_t n, T *buffer)
{
#if TS_REAL == 32
    if (job->halves) {
        rows_widen(buffer, (const char *)x + 2 * i, job->half, n);
        return buffer;
    }
#endif
    (void)job, (void)n, (void)buffer;
    return (const T *)x + i;
}

/** Folds n elements from index i of the tensor into a cascade. Only the last leaf of these elements
 * may be partial. */
VEC_FN void S(fold_part)(fold how, const S(long_fold) *l, S(cascade) *c, int64_t i, int64_t n)
{
    T buffer[S(WIDENED)];
    V p = F(set1)(l->p);
    for (int64_t at = 0, some; at < n; at += some) {
        some = l->job->halves ? ts_min64(n - at, TERMS) : n;
        const T *x = S(elements)(l->job, l->job->x, i + at, some, buffer);
        S(fold_run)(how, c, x, x, some, p);
    }
}
/** fold_part() with l->how as a constant. */
FOLD_FN void S(fold_any)(const S(long_fold) *l, S(cascade) *c, int64_t i, int64_t n)
{
    switch (l->how) {
    case FOLD_SQUARES: S(fold_part)(FOLD_SQUARES, l, c, i, n); break;
    case FOLD_DISTANCES: S(fold_part)(FOLD_DISTANCES, l, c, i, n); break;
    case FOLD_DEVIATIONS: S(fold_part)(FOLD_DEVIATIONS, l, c, i, n); break;
    default: S(fold_part)(FOLD_SUM, l, c, i, n);
    }
}

/** Folds pieces of a row. Tasks are its whole pieces. */
static void S(fold_pieces)(void *ctx, int64_t begin, int64_t end)
{
    const S(long_fold) *l = ctx;
    for (int64_t k = begin; k < end; k++) {
        S(cascade) c;
        c.leaves = 0;
        S(fold_any)(l, &c, l->row * l->job->n + k * S(PIECE), S(PIECE));
        l->lines[k] = c.level[PIECE_LEVEL];
    }
}

/** Returns the value of a fold over a row. lines: scratch for one line per whole piece; the threads
 * then share the row. NULL: the calling thread computes the row, with the same bits. */
static T S(fold_long)(const norm_job *job, int64_t row, fold how, T p, void *lines)
{
    S(long_fold) l = {job, row, how, p, lines};
    S(cascade) c;
    int64_t n = job->n, pieces = lines ? n / S(PIECE) : 0;
    c.leaves = 0;
    if (pieces)
        ts_parallel_for(pieces, 1, S(fold_pieces), &l);
    for (int64_t k = 0; k < pieces; k++)
        S(cascade_add)(FOLD_SUM, &c, l.lines[k], PIECE_LEVEL);
    S(fold_any)(&l, &c, row * n + pieces * S(PIECE), n - pieces * S(PIECE));
    return S(sum_value)(&c);
}

/** The results of a row that write_blocks() writes. */
typedef struct S(long_row) {
    const norm_job *job;
    int64_t row;
    T mean, rstd;
} S(long_row);

/** Writes the normalized elements of a row. Tasks are blocks of TERMS elements. */
static void S(write_blocks)(void *ctx, int64_t begin, int64_t end)
{
    const S(long_row) *l = ctx;
    const norm_job *job = l->job;
    T x_buffer[S(WIDENED)], w_buffer[S(WIDENED)], b_buffer[S(WIDENED)];
    for (int64_t i = begin * TERMS; i < ts_min64(end * TERMS, job->n); i += TERMS) {
        int64_t n = ts_min64(job->n - i, TERMS), at = l->row * job->n + i;
        const T *x = S(elements)(job, job->x, at, n, x_buffer);
        const T *w = job->weight ? S(elements)(job, job->weight, i, n, w_buffer) : NULL;
        const T *b = job->bias ? S(elements)(job, job->bias, i, n, b_buffer) : NULL;
        T *y = job->halves ? x_buffer : (T *)job->y + at;
        S(norm_write)(x, w, b, y, n, l->mean, l->rstd, w, b);
#if TS_REAL == 32
        if (job->halves)
            rows_narrow((char *)job->y + 2 * at, y, job->half, n);
#endif
    }
}

/** Normalizes one row, with the bits of norm_rows(). lines: as in fold_long(). */
static void S(norm_long_row)(const norm_job *job, int64_t r, void *lines)
{
    int64_t n = job->n, blocks = ts_ceil_div(n, TERMS);
    T mean = job->rms ? 0 : S(fold_long)(job, r, FOLD_SUM, 0, lines) / (T)n;
    T squares = S(fold_long)(job, r, job->rms ? FOLD_SQUARES : FOLD_DEVIATIONS, mean, lines);
    if (!job->rms && squares > 0 && squares < S(inexact_limit)(mean, n)) {
        mean += S(fold_long)(job, r, FOLD_DISTANCES, mean, lines) / (T)n;
        squares = S(fold_long)(job, r, FOLD_DEVIATIONS, mean, lines);
    }
    T rstd = (T)(1 / sqrt((double)(squares / (T)n) + job->eps));
    if (job->mean)
        ((T *)job->mean)[r] = mean;
    if (job->rstd)
        ((T *)job->rstd)[r] = rstd;
    S(long_row) l = {job, r, mean, rstd};
    if (lines)
        ts_parallel_for(blocks, TS_CPU_GRAIN(1) / TERMS + 1, S(write_blocks), &l);
    else
        S(write_blocks)(&l, 0, blocks);
}

/** Normalizes long rows. Tasks are rows. */
static void S(norm_long_rows)(void *ctx, int64_t begin, int64_t end)
{
    for (int64_t r = begin; r < end; r++)
        S(norm_long_row)(ctx, r, NULL);
}

enum { S(ROWS) = 4 }; /* rows whose gradients are computed together */

/** Computes for each of `rows` rows the means of h = g * w and of h * z, where z = (x - mean) *
 * rstd. w may be NULL, which means 1. Each row is summed in the lanes of one 64-byte line, so the
 * order of additions is the same in every variant. */
VEC_FN void S(gradient_means)(const T *x, const T *g, const T *w, int rows, int64_t n,
                              const V *mean, const V *rstd, V *mean_h, V *mean_hz)
{
    S(line) h_sums[S(ROWS)] = {0}, z_sums[S(ROWS)] = {0};
    for (int64_t line = 0; line < n; line += S(LINE))
        for (int part = 0; part < LINE_VECTORS; part++) {
            int64_t i = line + part * LANES, left = ts_max64(n - i, 0);
            V wi = w ? S(load_some)(w + i, left, F(zero)()) : F(set1)(1);
            for (int k = 0; k < rows; k++) {
                V h = S(load_some)(g + k * n + i, left, F(zero)()) * wi;
                V z = (S(load_some)(x + k * n + i, left, mean[k]) - mean[k]) * rstd[k];
                h_sums[k].v[part] += h;
                z_sums[k].v[part] = F(fma)(h, z, z_sums[k].v[part]);
            }
        }
    for (int k = 0; k < rows; k++) {
        mean_h[k] = F(set1)(S(fold_lanes)(FOLD_SUM, h_sums[k]) / (T)n);
        mean_hz[k] = F(set1)(S(fold_lanes)(FOLD_SUM, z_sums[k]) / (T)n);
    }
}

/**
 * Computes the gradients of rows r to r + rows - 1. With h = grad * weight and z = (x - mean) *
 * rstd (Ba et al., Layer Normalization, 2016):
 *
 *   dx = rstd * (h - mean(h) - z * mean(h z)), without mean(h) for an RMS norm
 *   dw += grad * z, db += grad, if `sums`
 *
 * dw and db are n sums each; db may be NULL.
 */
VEC_FN void S(norm_backward_rows)(const norm_job *job, bool rms, bool weighted, bool sums, int rows,
                                  int64_t r, T *dw, T *db)
{
    int64_t n = job->n;
    const T *x = (const T *)job->x + r * n, *g = (const T *)job->g + r * n, *w = job->weight;
    T *dx = (T *)job->y + r * n;
    V mean[S(ROWS)], rstd[S(ROWS)], c1[S(ROWS)], c2[S(ROWS)];
    for (int k = 0; k < rows; k++) {
        mean[k] = F(set1)(rms ? 0 : ((const T *)job->mean)[r + k]);
        rstd[k] = F(set1)(((const T *)job->rstd)[r + k]);
    }
    enum { TOGETHER = S(ROWS) / LINE_VECTORS }; /* rows whose sums fit the registers */
    for (int k = 0; k < rows; k += TOGETHER)
        S(gradient_means)(x + k * n, g + k * n, weighted ? w : NULL,
                          rows < TOGETHER ? rows : TOGETHER, n, mean + k, rstd + k, c1 + k, c2 + k);
    for (int k = 0; rms && k < rows; k++)
        c1[k] = F(zero)();
    for (int64_t i = 0; i < n; i += LANES) {
        V wi = weighted ? S(load_some)(w + i, n - i, F(zero)()) : F(set1)(1);
        V sw = F(zero)(), sb = F(zero)();
        for (int k = 0; k < rows; k++) {
            V gi = S(load_some)(g + k * n + i, n - i, F(zero)());
            V z = (S(load_some)(x + k * n + i, n - i, mean[k]) - mean[k]) * rstd[k];
            if (sums) {
                sw = F(fma)(gi, z, sw);
                sb += gi;
            }
            V h = gi * wi;
            S(store_some)(dx + k * n + i, rstd[k] * (h - c1[k] - z * c2[k]), n - i);
        }
        if (sums) {
            S(store_some)(dw + i, S(load_some)(dw + i, n - i, F(zero)()) + sw, n - i);
            if (db)
                S(store_some)(db + i, S(load_some)(db + i, n - i, F(zero)()) + sb, n - i);
        }
    }
}

/** A task is a chunk of ROWS_PER_CHUNK rows. With `sums`, it stores its sums dw and db in
 * job->parts. */
VEC_FN void S(norm_backward_chunks)(const norm_job *job, bool rms, bool weighted, bool sums,
                                    int64_t begin, int64_t end)
{
    for (int64_t chunk = begin; chunk < end; chunk++) {
        T *dw = NULL, *db = NULL;
        if (sums) {
            dw = (T *)job->parts + chunk * 2 * job->n;
            db = rms ? NULL : dw + job->n;
            memset(dw, 0, 2 * (size_t)job->n * sizeof(T));
        }
        int64_t r = chunk * ROWS_PER_CHUNK, last = ts_min64(r + ROWS_PER_CHUNK, job->rows);
        for (; r + S(ROWS) <= last; r += S(ROWS))
            S(norm_backward_rows)(job, rms, weighted, sums, S(ROWS), r, dw, db);
        for (; r < last; r++)
            S(norm_backward_rows)(job, rms, weighted, sums, 1, r, dw, db);
    }
}

static void S(norm_backward)(void *ctx, int64_t begin, int64_t end)
{
    const norm_job *job = ctx;
    if (!job->rms && job->weight && job->parts)
        S(norm_backward_chunks)(job, false, true, true, begin, end);
    else if (job->rms)
        S(norm_backward_chunks)(job, true, job->weight, job->parts, begin, end);
    else
        S(norm_backward_chunks)(job, false, job->weight, job->parts, begin, end);
}

/** Adds the chunks' sums pairwise for columns [begin, end) of (dw, db), a row of 2 n columns, and
 * stores the totals in job->dw and job->db unless they are NULL. */
static void S(norm_combine)(void *ctx, int64_t begin, int64_t end)
{
    const norm_job *job = ctx;
    int64_t n = job->n;
    T *parts = job->parts;
    for (int64_t span = 1; span < job->chunks; span *= 2)
        for (int64_t c = 0; c + span < job->chunks; c += 2 * span) {
            T *to = parts + c * 2 * n, *from = parts + (c + span) * 2 * n;
            for (int64_t i = begin; i < end; i++)
                to[i] += from[i];
        }
    for (int64_t i = begin; i < end; i++) {
        T *to = i < n ? job->dw : job->db;
        if (to)
            to[i < n ? i : i - n] = parts[i];
    }
}
