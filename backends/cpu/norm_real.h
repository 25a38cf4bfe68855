/* Row normalisation for one real type; included by norm.c. Rows are n contiguous elements. */
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

/** y = (x - mean) * rstd * weight + bias, without mean and bias for an RMS norm. */
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
        T near = (sizeof(T) == sizeof(float) ? (T)FLT_EPSILON : (T)DBL_EPSILON) * mean * mean;
        if (!rms && squares > 0 && squares < near * (T)n)
            squares = S(close_deviations)(x, n, &mean);
        T rstd = (T)(1 / sqrt((double)(squares / (T)n) + job->eps));
        if (job->mean)
            ((T *)job->mean)[r] = mean;
        if (job->rstd)
            ((T *)job->rstd)[r] = rstd;
        V m = F(set1)(mean), s = F(set1)(rstd);
        for (int64_t i = 0; i < n; i += LANES) {
            V v = S(load_some)(x + i, n - i, F(zero)());
            v = (v - m) * s; /* m is 0 for an RMS norm */
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

enum { S(ABREAST) = 4 }; /* rows that share one pass over the columns */

/** Computes for each of `rows` rows the means of h = g * w and of h * z, z = (x - mean) * rstd. w
 * may be NULL, which means 1. Each row is summed in the lanes of one 64-byte line, so the order of
 * additions is the same in every variant. */
VEC_FN void S(gradient_means)(const T *x, const T *g, const T *w, int rows, int64_t n,
                              const V *mean, const V *rstd, V *mean_h, V *mean_hz)
{
    S(line) h_sums[S(ABREAST)] = {0}, z_sums[S(ABREAST)] = {0};
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
 * Gradients of rows r .. r+rows-1. With h = grad * weight and z = (x - mean) * rstd,
 *   dx = rstd * (h - mean(h) - z * mean(h z)), without mean(h) for an RMS norm (Ba et al. 2016),
 *   dw += grad * z, db += grad.
 */
VEC_FN void S(norm_backward_rows)(const norm_job *job, bool rms, bool weighted, bool sums, int rows,
                                  int64_t r, T *dw, T *db)
{
    int64_t n = job->n;
    const T *x = (const T *)job->x + r * n, *g = (const T *)job->g + r * n, *w = job->weight;
    T *dx = (T *)job->y + r * n;
    V mean[S(ABREAST)], rstd[S(ABREAST)], c1[S(ABREAST)], c2[S(ABREAST)];
    for (int k = 0; k < rows; k++) {
        mean[k] = F(set1)(rms ? 0 : ((const T *)job->mean)[r + k]);
        rstd[k] = F(set1)(((const T *)job->rstd)[r + k]);
    }
    enum { TOGETHER = S(ABREAST) / LINE_VECTORS }; /* rows whose sums fit the registers */
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

/** A task is a chunk of ROWS_PER_CHUNK rows. With `sums`, its sums dw and db are in job->parts. */
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
        for (; r + S(ABREAST) <= last; r += S(ABREAST))
            S(norm_backward_rows)(job, rms, weighted, sums, S(ABREAST), r, dw, db);
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
