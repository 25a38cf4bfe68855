/* The loops of direct.h for one real type T (real_names.h), with vectors V of LANES elements. */
// SPDX-License-Identifier: MIT
#include "backends/cpu/real_names.h"

/** Computes `vectors` vectors of positions of `rows` result channels. x: the slab, from the first
 *  position on; w: (rows, depth); bias: (rows), or NULL; to: results, rows to_row elements
 *  apart. */
VEC_FN void S(sum_taps)(const int rows, const int vectors, const direct *t, const T *x, const T *w,
                        const T *bias, T *to, int64_t to_row)
{
    V sum[DIRECT_ROWS][DIRECT_SUMS];
    TS_UNROLL(4) for (int r = 0; r < rows; r++)
        TS_UNROLL(16) for (int v = 0; v < vectors; v++) sum[r][v] = F(set1)(bias ? bias[r] : 0);
    for (int64_t e = 0; e < t->depth; e++) {
        const T *at = x + t->offset[e];
        V k[DIRECT_ROWS];
        TS_UNROLL(4) for (int r = 0; r < rows; r++) k[r] = F(set1)(w[r * t->depth + e]);
        TS_UNROLL(16) for (int v = 0; v < vectors; v++) {
            V in = F(load)(at + v * LANES);
            TS_UNROLL(4) for (int r = 0; r < rows; r++) sum[r][v] = F(fma)(in, k[r], sum[r][v]);
        }
    }
    TS_UNROLL(4) for (int r = 0; r < rows; r++)
        TS_UNROLL(16) for (int v = 0; v < vectors; v++)
            F(store)(to + r * to_row + v * LANES, sum[r][v]);
}

/** Computes `rows` result channels at all positions of a part. */
VEC_FN void S(sum_rows)(const int rows, const direct *t, const T *slab, const T *w, const T *bias,
                        T *to)
{
    int64_t row = t->positions + DIRECT_SLACK, all = t->positions, q = 0;
    const int many = DIRECT_VECTORS(rows), some = (many + 1) / 2; /* vectors per call */
    for (; q + (many - 1) * LANES < all; q += many * LANES)
        S(sum_taps)(rows, many, t, slab + q, w, bias, to + q, row);
    for (; q + (some - 1) * LANES < all; q += some * LANES)
        S(sum_taps)(rows, some, t, slab + q, w, bias, to + q, row);
    for (; q < all; q += LANES)
        S(sum_taps)(rows, 1, t, slab + q, w, bias, to + q, row);
}

/** Runs workers begin to end - 1. Tasks are numbered by image, then group, then part of dim
 *  `split`; each worker computes a range of them. */
static void S(sum_parts)(void *ctx, int64_t begin, int64_t end)
{
    const direct *all = ctx;
    int64_t tasks = all->batch * all->groups * all->parts;
    for (int64_t worker = begin; worker < end; worker++)
        for (int64_t i = tasks * worker / all->workers; i < tasks * (worker + 1) / all->workers;
             i++) {
            direct t = part_of(all, i / all->parts / all->groups, i / all->parts % all->groups,
                               i % all->parts);
            T *slab = (T *)all->scratch + worker * all->scratch_each, *to = slab + all->slab;
            const T *w = (const T *)t.weight, *bias = (const T *)t.bias;
            const int64_t row[2] = {t.extent[1] * t.extent[2], t.extent[2]};
            int64_t channel = t.positions + DIRECT_SLACK;
            fill_slab(&t, (char *)slab);
            for (int64_t r = 0, n; r < t.rows; r += n) {
                n = ts_min64(DIRECT_ROWS, t.rows - r);
                T *at = to + r % t.kept * channel;
                const T *k = w + r * t.depth, *b = bias ? bias + r : NULL;
                switch (n) {
                case 4: S(sum_rows)(4, &t, slab, k, b, at); break;
                case 3: S(sum_rows)(3, &t, slab, k, b, at); break;
                case 2: S(sum_rows)(2, &t, slab, k, b, at); break;
                default: S(sum_rows)(1, &t, slab, k, b, at);
                }
                if (t.kept < t.rows)
                    copy_lines(&t, (char *)at, channel, row, r, n, true);
            }
            if (t.kept == t.rows)
                copy_lines(&t, (char *)to, channel, row, 0, t.rows, true);
        }
}

/** Adds the gradients of `taps` elements of the weight, for each of `rows` channels of y, to w,
 *  whose rows are depth elements apart. x: the slab; offset: as in `direct`, for these taps; y:
 *  dense lines; its channels are y_row elements apart. */
VEC_FN void S(grad_weight_taps)(const int rows, const int taps, const direct *t, const T *x,
                                const int64_t *offset, const T *y, int64_t y_row, T *w)
{
    const axis *a = t->axis;
    int64_t n = a[2].count, whole = n / LANES * LANES;
    V sum[DIRECT_ROWS][DIRECT_TAPS];
    TS_UNROLL(4) for (int r = 0; r < rows; r++)
        TS_UNROLL(8) for (int j = 0; j < taps; j++) sum[r][j] = F(set1)(0);
    for (int64_t i0 = 0; i0 < a[0].count; i0++)
        for (int64_t i1 = 0; i1 < a[1].count; i1++, y += n) {
            const T *at = x + (i0 * t->extent[1] + i1) * t->extent[2];
            for (int64_t q = 0; q < whole; q += LANES) {
                V g[DIRECT_ROWS];
                TS_UNROLL(4) for (int r = 0; r < rows; r++) g[r] = F(load)(y + r * y_row + q);
                TS_UNROLL(8) for (int j = 0; j < taps; j++) {
                    V in = F(load)(at + offset[j] + q);
                    TS_UNROLL(4) for (int r = 0; r < rows; r++)
                        sum[r][j] = F(fma)(in, g[r], sum[r][j]);
                }
            }
            if (whole < n) {
                V g[DIRECT_ROWS];
                TS_UNROLL(4) for (int r = 0; r < rows; r++)
                    g[r] = F(load_n)(y + r * y_row + whole, n - whole);
                TS_UNROLL(8) for (int j = 0; j < taps; j++) {
                    V in = F(load_n)(at + offset[j] + whole, n - whole);
                    TS_UNROLL(4) for (int r = 0; r < rows; r++)
                        sum[r][j] = F(fma)(in, g[r], sum[r][j]);
                }
            }
        }
    TS_UNROLL(4) for (int r = 0; r < rows; r++)
        TS_UNROLL(8) for (int j = 0; j < taps; j++) w[r * t->depth + j] += F(hsum)(sum[r][j]);
}

/** grad_weight_taps() for all elements of the weight, `taps` at a time. */
VEC_FN void S(grad_weight_rows)(const int rows, const int taps, const direct *t, const T *slab,
                                const T *y, int64_t y_row, T *w)
{
    int64_t e = 0;
    for (; e + taps <= t->depth; e += taps)
        S(grad_weight_taps)(rows, taps, t, slab, t->offset + e, y, y_row, w + e);
    for (; e < t->depth; e++)
        S(grad_weight_taps)(rows, 1, t, slab, t->offset + e, y, y_row, w + e);
}

/** Runs workers begin to end - 1, each of which computes the gradients of the weights of a range of
 *  groups. */
static void S(grad_weight_parts)(void *ctx, int64_t begin, int64_t end)
{
    const direct *all = ctx;
    for (int64_t worker = begin; worker < end; worker++)
        for (int64_t g = all->groups * worker / all->workers;
             g < all->groups * (worker + 1) / all->workers; g++) {
            T *slab = (T *)all->scratch + worker * all->scratch_each, *y = slab + all->slab;
            T *w = (T *)all->weight + g * all->rows * all->depth;
            memset(w, 0, (size_t)(all->rows * all->depth) * sizeof(T));
            for (int64_t i = 0; i < all->batch * all->parts; i++) {
                direct t = part_of(all, i / all->parts, g, i % all->parts);
                int64_t row[2] = {t.axis[1].count * t.axis[2].count, t.axis[2].count}, r = 0;
                int64_t channel = t.axis[0].count * row[0];
                fill_slab(&t, (char *)slab);
                copy_lines(&t, (char *)y, channel, row, 0, t.rows, false);
                for (; r + 4 <= t.rows; r += 4)
                    S(grad_weight_rows)(4, 4, &t, slab, y + r * channel, channel, w + r * t.depth);
                for (; r < t.rows; r++)
                    S(grad_weight_rows)(1, 8, &t, slab, y + r * channel, channel, w + r * t.depth);
            }
        }
}
