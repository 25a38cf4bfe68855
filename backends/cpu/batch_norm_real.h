/* The loops of batch norm and group norm for one real type T (real_names.h); included by
 * batch_norm.c, which explains pieces and the members of channel_job. A task computes one piece of
 * some channels or, in channels-last, of all channels. bf16 and f16 are converted in registers. */
// SPDX-License-Identifier: MIT
#include "backends/cpu/kinds_real.h"

/* In channels-last, a row is one position of all channels. A column_ function processes up to GROUP
 * vectors of channels over a strip of rows. */
enum { S(GROUP) = 4,                   /* vectors of channels that are summed together */
       S(BAND) = 2048 / sizeof(T),     /* most channels of a band, which keeps its sums in arrays */
       S(PAGE) = 4096, S(STRIP) = 8,   /* bytes of a page; rows of a strip of long rows */
       S(FIRST) = 8 };                 /* rows whose mean approximates that of a piece */

/** The piece of a task: `rows` rows of `length` elements. A row is one channel; in channels-last it
 * is one position of all channels. */
typedef struct S(channel_piece) {
    int64_t offset, rows, length; /* offset: first element in x */
    int64_t at;                   /* index of the first channel's coefficients */
    double *sums;                 /* sums of the first channel in this piece */
} S(channel_piece);

/** The piece of a task. Tasks are numbered by sample, then piece, then (unless channels-last) block
 * of job->together channels. */
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
 * the mean. m: an approximate mean. apart and squares: the sums of the deviations from m and of
 * their squares; both moments are computed from m and these sums. The mean of equal values is
 * exact. */
VEC_FN void S(put_moments)(double *to, T m, T apart, T squares, int64_t n)
{
    double by = (double)apart / (double)n, left = (double)squares - by * (double)apart;
    to[0] = (double)m + by;
    to[1] = left < 0 ? 0 : left;
}

/** Stores the moments (put_moments()) of the n elements starting at x[from]. */
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

/** Number of lanes to access in row r of a piece of `rows` rows of `step` channels, if a row has
 * only `left` < LANES channels. It is LANES, because whole vectors are faster, unless the vector
 * would end after the last row. The lanes after `left` belong to later rows: a sum ignores them,
 * and the later row's store overwrites them. */
VEC_FN int64_t S(lanes_of)(int64_t left, int64_t r, int64_t rows, int64_t step)
{
    return (rows - r) * step >= LANES ? LANES : left;
}

/** Rows of a channels-last piece, and some vectors of their channels. */
typedef struct S(columns) {
    int64_t from, step; /* first element; channels of a row */
    int64_t begin, end; /* rows to process */
    int64_t rows;       /* rows of the piece */
    int64_t left;       /* valid lanes of a vector; less than LANES only if a row has fewer */
} S(columns);

/** Number of rows of a strip: a column_ function processes its channels in a strip before the
 * function is called for the next channels. If one call has all channels, a strip is all rows.
 * Otherwise, if a row is shorter than a page, a strip is one row, so memory is read in order, as
 * the processor's prefetcher expects. For longer rows, sums stay in registers over STRIP rows. */
VEC_FN int64_t S(strip_of)(ts_dtype kind, int64_t channels, int64_t rows)
{
    bool one = channels == S(GROUP) * LANES || channels <= LANES; /* one call has all channels */
    return one ? rows : channels * ts_dtype_sizes[kind] < S(PAGE) ? 1 : S(STRIP);
}

/** Loads vector v of `c` in row r. */
VEC_FN V S(get_column)(ts_dtype kind, const void *x, const S(columns) *c, int64_t r, int v)
{
    return S(get)(kind, x, c->from + r * c->step + v * LANES,
                  c->left < LANES ? S(lanes_of)(c->left, r, c->rows, c->step) : LANES);
}

/** Loops over the vectors of a band of channels that starts at channel `first`, of n channels in
 * all. Runs the statement `four` for S(GROUP) vectors together, `one` for a single vector. The
 * statements use k, the first channel; slot, the place of its sums in the band's arrays; and left,
 * the number of valid lanes of a vector. A partial last vector is moved back over the vector before
 * it, so that it is whole; if n < LANES it is the only one and has n valid lanes. */
#define EACH_VECTOR(n, first, four, one)                                                           \
    for (int64_t k = (first), slot = 0, left = LANES; k < (n) && slot < S(BAND);) {                \
        if ((n) - k >= S(GROUP) * LANES) {                                                         \
            four;                                                                                  \
            k += S(GROUP) * LANES;                                                                 \
            slot += S(GROUP) * LANES;                                                              \
            continue;                                                                              \
        }                                                                                          \
        if ((n) - k < LANES) {                                                                     \
            left = ts_min64((n), LANES);                                                           \
            k = (n) - left;                                                                        \
        }                                                                                          \
        one;                                                                                       \
        k += LANES;                                                                                \
        slot += LANES;                                                                             \
    }

/** Adds the rows of `c`, times `weight`, to m, which has one element per channel. */
VEC_FN void S(column_means)(ts_dtype kind, const void *x, S(columns) c, int vectors, T *m, T weight)
{
    for (int64_t r = c.begin; r < c.end; r++)
        for (int v = 0; v < vectors; v++)
            F(store)(m + v * LANES, F(fma)(S(get_column)(kind, x, &c, r, v), F(set1)(weight),
                                           F(load)(m + v * LANES)));
}

/** Adds the deviations of the rows of `c` from m to `apart`, and their squares to `squares`. */
VEC_FN void S(column_moments)(ts_dtype kind, const void *x, S(columns) c, int vectors, const T *m,
                              T *apart, T *squares)
{
    V mean[S(GROUP)], sum[S(GROUP)], square[S(GROUP)];
    for (int v = 0; v < vectors; v++) {
        mean[v] = F(load)(m + v * LANES);
        sum[v] = F(load)(apart + v * LANES);
        square[v] = F(load)(squares + v * LANES);
    }
    for (int64_t r = c.begin; r < c.end; r++)
        for (int v = 0; v < vectors; v++) {
            V d = S(get_column)(kind, x, &c, r, v) - mean[v];
            sum[v] += d;
            square[v] = F(fma)(d, d, square[v]);
        }
    for (int v = 0; v < vectors; v++) {
        F(store)(apart + v * LANES, sum[v]);
        F(store)(squares + v * LANES, square[v]);
    }
}

/** Stores the moments of a band of channels that starts at `first`. The approximate means are those
 * of the first S(FIRST) rows. Returns the number of channels of the band. */
VEC_FN int64_t S(band_moments)(ts_dtype kind, const channel_job *job, const S(channel_piece) *at,
                               int64_t first)
{
    T m[S(BAND)] = {0}, apart[S(BAND)] = {0}, squares[S(BAND)] = {0};
    int64_t n = job->channels, sums = sums_step(job), next = n,
            strip = S(strip_of)(kind, n, at->rows);
    S(columns) c = {.step = n, .rows = at->rows};
#define SOME(many, what, ...)                                                                      \
    c.from = at->offset + k, c.left = left, S(what)(kind, job->x, c, many, m + slot, ##__VA_ARGS__)
    int64_t few = ts_min64(S(FIRST), at->rows);
    for (; c.begin < few; c.begin = c.end) {
        c.end = ts_min64(c.begin + strip, few);
        EACH_VECTOR(n, first, SOME(S(GROUP), column_means, (T)1 / (T)few),
                    SOME(1, column_means, (T)1 / (T)few))
    }
    c.begin = 0;
    for (; c.begin < at->rows; c.begin = c.end) {
        c.end = ts_min64(c.begin + strip, at->rows);
        EACH_VECTOR(n, first, SOME(S(GROUP), column_moments, apart + slot, squares + slot),
                    SOME(1, column_moments, apart + slot, squares + slot))
    }
#undef SOME
#define PUT(many)                                                                                  \
    for (int64_t i = 0; i < (many) / LANES * left; i++)                                            \
        S(put_moments)(at->sums + (k + i) * sums, m[slot + i], apart[slot + i], squares[slot + i], \
                       at->rows);                                                                  \
    next = k + (many)
    EACH_VECTOR(n, first, PUT(S(GROUP) * LANES), PUT(LANES))
#undef PUT
    return next - first;
}

/** Computes for each piece and channel the mean and the sum of squared deviations. */
VEC_FN void S(moments)(ts_dtype kind, const channel_job *job, int64_t begin, int64_t end)
{
    int64_t sums = sums_step(job);
    for (int64_t task = begin; task < end; task++) {
        S(channel_piece) at = S(piece_of)(job, task);
        for (int64_t r = 0; !job->last && r < at.rows; r++)
            S(row_moments)(kind, job->x, at.offset + r * at.length, at.length,
                           at.sums + r * sums);
        for (int64_t k = 0; job->last && k < job->channels;)
            k += S(band_moments)(kind, job, &at, k);
    }
}

/* ------------------------------------------------------------- sums for the gradients ---- */

/** Returns the gradient g. With relu, lanes are 0 if their forward result before relu, d slope +
 * base, is at most 0. d: x - shift. */
VEC_FN V S(relu_gradient)(bool relu, V g, V d, V slope, V base)
{
    return relu ? F(select)(F(le)(F(fma)(d, slope, base), F(zero)()), F(zero)(), g) : g;
}

/** Stores in to[0] and to[1] the sums of g and of g (x - shift) over n elements starting at index
 * `from`. at: index of the row's coefficients. */
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

/** Adds the sums of g over the rows of `c` to `sums`, and those of g (x - shift) to `alongs`. at:
 * index of the first channel's coefficients. */
VEC_FN void S(column_sums)(ts_dtype kind, const channel_job *job, bool relu, S(columns) c,
                           int64_t at, int vectors, T *sums, T *alongs)
{
    V m[S(GROUP)], s[S(GROUP)], b[S(GROUP)], sum[S(GROUP)], along[S(GROUP)];
    for (int v = 0; v < vectors; v++) {
        int64_t i = at + v * LANES;
        m[v] = S(load_some)((const T *)job->shift + i, c.left, F(zero)());
        s[v] = S(load_some)((const T *)job->slope + i, c.left, F(zero)());
        b[v] = S(load_some)((const T *)job->base + i, c.left, F(zero)());
        sum[v] = F(load)(sums + v * LANES);
        along[v] = F(load)(alongs + v * LANES);
    }
    for (int64_t r = c.begin; r < c.end; r++)
        for (int v = 0; v < vectors; v++) {
            V d = S(get_column)(kind, job->x, &c, r, v) - m[v],
              g = S(relu_gradient)(relu, S(get_column)(kind, job->g, &c, r, v), d, s[v], b[v]);
            sum[v] += g;
            along[v] = F(fma)(g, d, along[v]);
        }
    for (int v = 0; v < vectors; v++) {
        F(store)(sums + v * LANES, sum[v]);
        F(store)(alongs + v * LANES, along[v]);
    }
}

/** Stores the sums of column_sums() for a band of channels that starts at `first`. Returns the
 * number of channels of the band. */
VEC_FN int64_t S(band_sums)(ts_dtype kind, const channel_job *job, bool relu,
                            const S(channel_piece) *at, int64_t first)
{
    T all[S(BAND)] = {0}, along[S(BAND)] = {0};
    int64_t n = job->channels, sums = sums_step(job), next = n,
            strip = S(strip_of)(kind, n, at->rows);
    S(columns) c = {.step = n, .rows = at->rows};
#define SOME(many)                                                                                 \
    c.from = at->offset + k, c.left = left,                                                        \
    S(column_sums)(kind, job, relu, c, at->at + k, many, all + slot, along + slot)
    for (; c.begin < at->rows; c.begin = c.end) {
        c.end = ts_min64(c.begin + strip, at->rows);
        EACH_VECTOR(n, first, SOME(S(GROUP)), SOME(1))
    }
#undef SOME
#define PUT(many)                                                                                  \
    for (int64_t i = 0; i < (many) / LANES * left; i++) {                                          \
        at->sums[(k + i) * sums] = (double)all[slot + i];                                          \
        at->sums[(k + i) * sums + 1] = (double)along[slot + i];                                    \
    }                                                                                              \
    next = k + (many)
    EACH_VECTOR(n, first, PUT(S(GROUP) * LANES), PUT(LANES))
#undef PUT
    return next - first;
}

/** Computes for each piece and channel the sums of g and of g (x - shift). */
VEC_FN void S(sums)(ts_dtype kind, const channel_job *job, bool relu, int64_t begin, int64_t end)
{
    int64_t sums = sums_step(job);
    for (int64_t task = begin; task < end; task++) {
        S(channel_piece) at = S(piece_of)(job, task);
        for (int64_t r = 0; !job->last && r < at.rows; r++)
            S(row_sums)(kind, job, relu, at.offset + r * at.length, at.length, at.at + r,
                        at.sums + r * sums);
        for (int64_t k = 0; job->last && k < job->channels;)
            k += S(band_sums)(kind, job, relu, &at, k);
    }
}

/* ------------------------------------------------------------------------------- results ---- */

/** Coefficients of a vector of elements (channel_job). */
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

/** Writes the results of the rows of `c`. at: index of the first channel's coefficients. */
VEC_FN void S(column_results)(ts_dtype kind, const channel_job *job, bool gradient, bool relu,
                              S(columns) c, int64_t at, int vectors)
{
    S(factors) f[S(GROUP)];
    for (int v = 0; v < vectors; v++) {
        int64_t i = at + v * LANES;
        f[v].shift = S(load_some)((const T *)job->shift + i, c.left, F(zero)());
        f[v].scale = S(load_some)((const T *)job->scale + i, c.left, F(zero)());
        f[v].add = S(load_some)((const T *)job->add + i, c.left, F(zero)());
        f[v].slope = S(load_some)((const T *)job->slope + i, c.left, F(zero)());
        f[v].base = S(load_some)((const T *)job->base + i, c.left, F(zero)());
    }
    for (int64_t r = c.begin; r < c.end; r++)
        for (int v = 0; v < vectors; v++) {
            int64_t i = c.from + r * c.step + v * LANES,
                    some = c.left < LANES ? S(lanes_of)(c.left, r, c.rows, c.step) : LANES;
            S(set)(kind, job->y, i, S(result)(kind, job, gradient, relu, i, some, &f[v]), some);
        }
}

/** Writes the results of each piece; with `gradient`, the gradients of x. */
VEC_FN void S(results)(ts_dtype kind, const channel_job *job, bool gradient, bool relu,
                       int64_t begin, int64_t end)
{
    for (int64_t task = begin; task < end; task++) {
        S(channel_piece) at = S(piece_of)(job, task);
        int64_t n = at.length, next = n, strip = S(strip_of)(kind, n, at.rows);
        for (int64_t r = 0; !job->last && r < at.rows; r++)
            S(row_results)(kind, job, gradient, relu, at.offset + r * n, at.at + r, n);
        S(columns) c = {.step = n, .rows = at.rows};
#define SOME(many)                                                                                 \
    c.from = at.offset + k, c.left = left, next = k + (many) * LANES,                              \
    S(column_results)(kind, job, gradient, relu, c, at.at + k, many)
        for (; job->last && c.begin < at.rows; c.begin = c.end) {
            c.end = ts_min64(c.begin + strip, at.rows);
            for (int64_t first = 0; first < n; first = next)
                EACH_VECTOR(n, first, SOME(S(GROUP)), SOME(1))
        }
#undef SOME
    }
}
#undef EACH_VECTOR

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
