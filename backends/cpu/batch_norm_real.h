/* The loops of batch norm and group norm for one real type; included by batch_norm.c, which defines
 * pieces. A task computes one piece of some channels or, in channels-last, of all channels. bf16
 * and f16 are converted in registers. */
// SPDX-License-Identifier: MIT
#include "backends/cpu/kinds_real.h"

enum { S(GROUP) = 4 }; /* vectors of columns that are summed together */

/** The piece of a task: `rows` rows of `length` elements. A row is one channel; in channels-last it
 * is one position of all channels. */
typedef struct S(channel_piece) {
    int64_t offset, rows, length; /* offset: first element in x */
    int64_t at;                   /* index of the first channel's coefficients */
    double *sums;                 /* sums of the first channel in this piece */
} S(channel_piece);

VEC_FN S(channel_piece) S(piece_of)(const channel_job *job, int64_t task)
{
    int64_t channels = job->channels, k = 0, i = task;
    if (!job->last) {
        int64_t blocks = ts_ceil_div(channels, job->together);
        k = task % blocks * job->together;
        i = task / blocks;
    }
    int64_t p = i % job->pieces, n = piece_length(job, p);
    i /= job->pieces;
    S(channel_piece) at;
    at.rows = job->last ? n : ts_min64(job->together, channels - k);
    at.length = job->last ? channels : n;
    at.offset = job->last ? (i * job->positions + p * job->length) * channels
                          : (i * channels + k) * job->positions + p * job->length;
    at.at = (job->sets > 1 ? i * channels : 0) + k;
    at.sums = sums_of(job, k, i, p);
    return at;
}

/* ------------------------------------------------------------------------------- moments ---- */

/** Stores the moments of n values: in to[0] the mean, in to[1] the sum of squared deviations from
 * the mean. m: an approximate mean; apart, squares: sums of the deviations from m and of their
 * squares, which correct m. The mean of equal values is exact. */
VEC_FN void S(put_moments)(double *to, T m, T apart, T squares, int64_t n)
{
    double by = (double)apart / (double)n, left = (double)squares - by * (double)apart;
    to[0] = (double)m + by;
    to[1] = left < 0 ? 0 : left;
}

/** Stores the moments of the n elements starting at x[from]: mean, and sum of squared deviations.
 */
VEC_FN void S(row_moments)(ts_dtype kind, const void *x, int64_t from, int64_t n, double *to)
{
    V sum[4] = {{0}}, apart[2] = {{0}}, squares[2] = {{0}};
    int64_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES)
        for (int u = 0; u < 4; u++)
            sum[u] += S(get)(kind, x, from + i + u * LANES, LANES);
    for (; i + LANES <= n; i += LANES)
        sum[0] += S(get)(kind, x, from + i, LANES);
    if (i < n)
        sum[1] += S(get_last)(kind, x, from, n, n - i, F(zero)());
    T mean = F(hsum)((sum[0] + sum[1]) + (sum[2] + sum[3])) / (T)n;
    V m = F(set1)(mean);
    i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES)
        for (int u = 0; u < 2; u++) {
            V d = S(get)(kind, x, from + i + u * LANES, LANES) - m;
            apart[u] += d;
            squares[u] = F(fma)(d, d, squares[u]);
        }
    for (; i < n; i += LANES) {
        V d = (n - i < LANES ? S(get_last)(kind, x, from, n, n - i, m)
                             : S(get)(kind, x, from + i, LANES)) - m;
        apart[0] += d;
        squares[0] = F(fma)(d, d, squares[0]);
    }
    S(put_moments)(to, mean, F(hsum)(apart[0] + apart[1]), F(hsum)(squares[0] + squares[1]), n);
}

/** Number of lanes to access in row r of `rows` rows of `step` channels, of which `left` are valid.
 * It is LANES, because whole vectors are faster, unless the vector would end after the last row.
 * The other lanes belong to later rows: a sum ignores them, and the later row's store overwrites
 * them. */
VEC_FN int64_t S(lanes_of)(int64_t left, int64_t r, int64_t rows, int64_t step)
{
    return (rows - r) * step >= LANES ? LANES : left;
}

/** Stores the moments of the columns of `vectors` vectors, over rows `step` elements apart. left:
 * number of valid lanes of a vector, less than LANES only if a row has fewer channels. to_step:
 * distance in `to` from one column to the next. */
VEC_FN void S(column_moments)(ts_dtype kind, const void *x, int64_t from, int64_t rows,
                              int64_t step, int vectors, int64_t left, double *to, int64_t to_step)
{
    V sum[S(GROUP)], apart[S(GROUP)], squares[S(GROUP)];
    for (int v = 0; v < vectors; v++)
        sum[v] = apart[v] = squares[v] = F(zero)();
    for (int64_t r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++)
            sum[v] += S(get)(kind, x, from + r * step + v * LANES,
                             left < LANES ? S(lanes_of)(left, r, rows, step) : LANES);
    for (int v = 0; v < vectors; v++)
        sum[v] = sum[v] / F(set1)((T)rows);
    for (int64_t r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) {
            V d = S(get)(kind, x, from + r * step + v * LANES,
                         left < LANES ? S(lanes_of)(left, r, rows, step) : LANES) - sum[v];
            apart[v] += d;
            squares[v] = F(fma)(d, d, squares[v]);
        }
    for (int v = 0; v < vectors; v++) {
        T m[LANES], a[LANES], s[LANES];
        F(store)(m, sum[v]);
        F(store)(a, apart[v]);
        F(store)(s, squares[v]);
        for (int k = 0; k < LANES && k < left; k++)
            S(put_moments)(to + (v * LANES + k) * to_step, m[k], a[k], s[k], rows);
    }
}

/** Returns the number of vectors of channels, starting at channel *k, that are processed together.
 * The last vector of n channels is moved back over the vector before it, so that it is whole. Sets
 * *left to the number of valid lanes. */
VEC_FN int S(vectors_at)(int64_t n, int64_t *k, int64_t *left)
{
    *left = LANES;
    if (n - *k >= S(GROUP) * LANES)
        return S(GROUP);
    if (n - *k < LANES) {
        *left = ts_min64(n, LANES);
        *k = n - *left;
    }
    return 1;
}

/** Computes for each piece and channel the mean and the sum of squared deviations. */
VEC_FN void S(moments)(ts_dtype kind, const channel_job *job, int64_t begin, int64_t end)
{
    int64_t n = job->channels, sums = sums_step(job);
    for (int64_t task = begin; task < end; task++) {
        S(channel_piece) at = S(piece_of)(job, task);
        for (int64_t r = 0; !job->last && r < at.rows; r++)
            S(row_moments)(kind, job->x, at.offset + r * at.length, at.length,
                           at.sums + r * sums);
        for (int64_t k = 0, many, left; job->last && k < n; k += many * LANES) {
            many = S(vectors_at)(n, &k, &left);
            if (many == S(GROUP))
                S(column_moments)(kind, job->x, at.offset + k, at.rows, n, S(GROUP), LANES,
                                  at.sums + k * sums, sums);
            else
                S(column_moments)(kind, job->x, at.offset + k, at.rows, n, 1, left,
                                  at.sums + k * sums, sums);
        }
    }
}

/* ------------------------------------------------------------- sums for the gradients ---- */

/** Returns the gradient g; with relu, 0 in lanes whose forward result before relu, d slope + base,
 * is at most 0. */
VEC_FN V S(relu_gradient)(bool relu, V g, V d, V slope, V base)
{
    return relu ? F(select)(F(le)(F(fma)(d, slope, base), F(zero)()), F(zero)(), g) : g;
}

/** Stores in to[0] and to[1] the sums of g and of g (x - shift) over n elements starting at index
 * `from`. at: index of the row's coefficients. column_sums() stores these sums for each column; its
 * other parameters are those of column_moments(). */
VEC_FN void S(row_sums)(ts_dtype kind, const channel_job *job, bool relu, int64_t from, int64_t n,
                        int64_t at, double *to)
{
    V m = F(set1)(((const T *)job->shift)[at]), sum[2] = {{0}}, along[2] = {{0}},
      s = F(set1)(((const T *)job->slope)[at]), b = F(set1)(((const T *)job->base)[at]);
    int64_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES)
        for (int u = 0; u < 2; u++) {
            V d = S(get)(kind, job->x, from + i + u * LANES, LANES) - m,
              g = S(get)(kind, job->g, from + i + u * LANES, LANES);
            g = S(relu_gradient)(relu, g, d, s, b);
            sum[u] += g;
            along[u] = F(fma)(g, d, along[u]);
        }
    for (; i < n; i += LANES) {
        bool last = n - i < LANES;
        V g = last ? S(get_last)(kind, job->g, from, n, n - i, F(zero)())
                   : S(get)(kind, job->g, from + i, LANES),
          d = (last ? S(get_last)(kind, job->x, from, n, n - i, m)
                    : S(get)(kind, job->x, from + i, LANES)) - m;
        g = S(relu_gradient)(relu, g, d, s, b);
        sum[0] += g;
        along[0] = F(fma)(g, d, along[0]);
    }
    to[0] = (double)F(hsum)(sum[0] + sum[1]);
    to[1] = (double)F(hsum)(along[0] + along[1]);
}

VEC_FN void S(column_sums)(ts_dtype kind, const channel_job *job, bool relu, int64_t from,
                           int64_t at, int64_t rows, int64_t step, int vectors, int64_t left,
                           double *to, int64_t to_step)
{
    V m[S(GROUP)], s[S(GROUP)], b[S(GROUP)], sum[S(GROUP)], along[S(GROUP)];
    for (int v = 0; v < vectors; v++) {
        int64_t i = at + v * LANES;
        m[v] = S(load_some)((const T *)job->shift + i, left, F(zero)());
        s[v] = S(load_some)((const T *)job->slope + i, left, F(zero)());
        b[v] = S(load_some)((const T *)job->base + i, left, F(zero)());
        sum[v] = along[v] = F(zero)();
    }
    for (int64_t r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) {
            int64_t i = from + r * step + v * LANES,
                    some = left < LANES ? S(lanes_of)(left, r, rows, step) : LANES;
            V d = S(get)(kind, job->x, i, some) - m[v],
              g = S(relu_gradient)(relu, S(get)(kind, job->g, i, some), d, s[v], b[v]);
            sum[v] += g;
            along[v] = F(fma)(g, d, along[v]);
        }
    for (int v = 0; v < vectors; v++) {
        T all[LANES], a[LANES];
        F(store)(all, sum[v]);
        F(store)(a, along[v]);
        for (int k = 0; k < LANES && k < left; k++) {
            to[(v * LANES + k) * to_step] = (double)all[k];
            to[(v * LANES + k) * to_step + 1] = (double)a[k];
        }
    }
}

/** Computes for each piece and channel the sums of g and of g (x - shift). */
VEC_FN void S(sums)(ts_dtype kind, const channel_job *job, bool relu, int64_t begin, int64_t end)
{
    int64_t n = job->channels, sums = sums_step(job);
    for (int64_t task = begin; task < end; task++) {
        S(channel_piece) at = S(piece_of)(job, task);
        for (int64_t r = 0; !job->last && r < at.rows; r++)
            S(row_sums)(kind, job, relu, at.offset + r * at.length, at.length, at.at + r,
                        at.sums + r * sums);
        for (int64_t k = 0, many, left; job->last && k < n; k += many * LANES) {
            many = S(vectors_at)(n, &k, &left);
            if (many == S(GROUP))
                S(column_sums)(kind, job, relu, at.offset + k, at.at + k, at.rows, n, S(GROUP),
                               LANES, at.sums + k * sums, sums);
            else
                S(column_sums)(kind, job, relu, at.offset + k, at.at + k, at.rows, n, 1, left,
                               at.sums + k * sums, sums);
        }
    }
}

/* ------------------------------------------------------------------------------- results ---- */

/** Coefficients of a vector of elements. */
typedef struct S(factors) {
    V shift, scale, add, slope, base;
} S(factors);

/** Returns the result (x - shift) scale + add, with relu at least 0; with `gradient`, returns
 * (x - shift) scale + add + h slope, where h = S(relu_gradient)(g). */
VEC_FN V S(result)(ts_dtype kind, const channel_job *job, bool gradient, bool relu, int64_t i,
                   int64_t left, const S(factors) *f)
{
    V d = S(get)(kind, job->x, i, left) - f->shift, v = F(fma)(d, f->scale, f->add);
    if (!gradient)
        return relu ? F(select)(F(lt)(v, F(zero)()), F(zero)(), v) : v;
    V g = S(relu_gradient)(relu, S(get)(kind, job->g, i, left), d, f->slope, f->base);
    return F(fma)(g, f->slope, v);
}

/** Writes the results of a row of n elements of one channel, whose coefficients have index `at`. */
VEC_FN void S(row_results)(ts_dtype kind, const channel_job *job, bool gradient, bool relu,
                           int64_t from, int64_t at, int64_t n)
{
    S(factors) f = {F(set1)(((const T *)job->shift)[at]), F(set1)(((const T *)job->scale)[at]),
                    F(set1)(((const T *)job->add)[at]), F(set1)(((const T *)job->slope)[at]),
                    F(set1)(((const T *)job->base)[at])};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        S(set)(kind, job->y, from + i,
               S(result)(kind, job, gradient, relu, from + i, LANES, &f), LANES);
    if (i < n && n >= LANES) /* the last vector overlaps the one before it */
        S(set)(kind, job->y, from + n - LANES,
               S(result)(kind, job, gradient, relu, from + n - LANES, LANES, &f), LANES);
    else if (i < n)
        S(set)(kind, job->y, from, S(result)(kind, job, gradient, relu, from, n, &f), n);
}

/** Writes the results of `vectors` vectors of channels for rows `step` elements apart. at: index of
 * the first channel's coefficients; left: as in column_moments(). */
VEC_FN void S(column_results)(ts_dtype kind, const channel_job *job, bool gradient, bool relu,
                              int64_t from, int64_t at, int64_t rows, int64_t step, int vectors,
                              int64_t left)
{
    S(factors) f[S(GROUP)];
    for (int v = 0; v < vectors; v++) {
        int64_t i = at + v * LANES;
        f[v].shift = S(load_some)((const T *)job->shift + i, left, F(zero)());
        f[v].scale = S(load_some)((const T *)job->scale + i, left, F(zero)());
        f[v].add = S(load_some)((const T *)job->add + i, left, F(zero)());
        f[v].slope = S(load_some)((const T *)job->slope + i, left, F(zero)());
        f[v].base = S(load_some)((const T *)job->base + i, left, F(zero)());
    }
    for (int64_t r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) {
            int64_t i = from + r * step + v * LANES,
                    some = left < LANES ? S(lanes_of)(left, r, rows, step) : LANES;
            S(set)(kind, job->y, i, S(result)(kind, job, gradient, relu, i, some, &f[v]), some);
        }
}

/** Writes the results of each piece; with `gradient`, the gradients of x. */
VEC_FN void S(results)(ts_dtype kind, const channel_job *job, bool gradient, bool relu,
                       int64_t begin, int64_t end)
{
    for (int64_t task = begin; task < end; task++) {
        S(channel_piece) at = S(piece_of)(job, task);
        int64_t n = at.length;
        for (int64_t r = 0; !job->last && r < at.rows; r++)
            S(row_results)(kind, job, gradient, relu, at.offset + r * n, at.at + r, n);
        for (int64_t k = 0, many, left; job->last && k < n; k += many * LANES) {
            many = S(vectors_at)(n, &k, &left);
            if (many == S(GROUP))
                S(column_results)(kind, job, gradient, relu, at.offset + k, at.at + k, at.rows, n,
                                  S(GROUP), LANES);
            else
                S(column_results)(kind, job, gradient, relu, at.offset + k, at.at + k, at.rows, n,
                                  1, left);
        }
    }
}

/* Bodies of loops, for each dtype that T computes. */
#define BODY(name, what, kind, ...)                                                                \
    static void name(void *ctx, int64_t begin, int64_t end)                                        \
    {                                                                                              \
        S(what)(kind, ctx, ##__VA_ARGS__, begin, end);                                             \
    }
#define BODIES(of, kind)                                                                           \
    BODY(channel_moments_##of, moments, kind)                                                      \
    BODY(channel_sums_##of, sums, kind, false)                                                     \
    BODY(channel_apply_##of, results, kind, false, false)                                          \
    BODY(channel_gradient_##of, results, kind, true, false)                                        \
    BODY(channel_sums_relu_##of, sums, kind, true)                                                 \
    BODY(channel_apply_relu_##of, results, kind, false, true)                                      \
    BODY(channel_gradient_relu_##of, results, kind, true, true)
FOR_KINDS(BODIES)
#undef BODY
#undef BODIES
