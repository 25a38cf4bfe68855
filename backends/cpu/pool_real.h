/* The loops of max pooling for one real type T (real_names.h); included by pool.c, which explains
 * the three methods, window and pool_job.
 *
 *   line    the positions along the last spatial dim; in channels-last, with all their channels
 *   row     the index of a line in its plane
 *   column  one channel at one position of a line
 *   index   the index of an element in its plane
 *   tap     the index of an element in its window
 *
 * d, h and w are the windows of a result along depth, height and width. */
// SPDX-License-Identifier: MIT
#include "backends/cpu/kinds_real.h"

#ifndef TS_BACKENDS_CPU_POOL_REAL_H
#define TS_BACKENDS_CPU_POOL_REAL_H
enum { PIXEL_VECTORS = 4, /* vectors of channels whose maxima are kept in registers */
       CHANNELS = 16, /* channels per task of a channels-last backward, unless a task has all of
                         them (block_of()) */
       FEW_CHANNELS = 8, /* with fewer channels, a backward with indices adds the gradients of a
                            plane in one loop, not pixel by pixel */
       PLANES = 4096,    /* elements of small planes that a backward computes together */
       SPARSE = 64 };    /* least elements per gradient of a plane that is mostly 0 */
#endif

/* Type of an index in a vector lane: an integer of T's width, stored in the bits of a V. */
#if TS_REAL == 32
#define INDEX int32_t
#define INDEX_MOST INT32_MAX
#define INDICES vi
#else
#define INDEX int64_t
#define INDEX_MOST INT64_MAX
#define INDICES vl
#endif

/** Lanes in which x replaces the maximum `best`: x is larger, or NaN. */
VEC_FN VM S(replaces)(V x, V best)
{
    return M(or)(F(gt)(x, best), F(ne)(x, x));
}
/** Returns a vector with the bits of `index` in every lane. It is built in memory, because float
 * arithmetic may change the bits. */
VEC_FN V S(index_vector)(int64_t index)
{
    INDEX lanes[LANES];
    for (int i = 0; i < LANES; i++)
        lanes[i] = (INDEX)index;
    V v;
    memcpy(&v, lanes, sizeof v);
    return v;
}

/** Lanes in which index a is smaller than index b. */
VEC_FN VM S(below)(V a, V b)
{
#if TS_REAL == 32
    return vi_lt((vi)a, (vi)b);
#else
    return vd_lt(__builtin_convertvector((vl)a, vd), __builtin_convertvector((vl)b, vd));
#endif
}
/** Lanes in which x, a column's maximum in row `row`, replaces `best`, the maximum of earlier
 * columns in row `at`. Among equal elements the first in row-major order is kept, among NaN the
 * last. */
VEC_FN VM S(column_replaces)(V x, V row, V best, V at)
{
    VM less = S(below)(row, at), nan = F(ne)(x, x), had = F(ne)(best, best);
    VM first = M(or)(F(gt)(x, best), M(and)(F(eq)(x, best), less));
    return M(or)(first, M(and)(nan, M(not)(M(and)(had, less))));
}

/** Writes each column's maximum over the rows of windows d and h to `best`, and its row to
 * `rows`. */
VEC_FN void S(largest_of_columns)(ts_dtype kind, const pool_job *job, int64_t plane, window d,
                                  window h, T *best, INDEX *rows)
{
    const ts_axis *a = job->axis;
    int64_t n = a[2].in * job->channels, all = job->planes * a[0].in * a[1].in * n;
    for (int64_t i = 0; i < n; i += LANES) {
        V most = F(set1)(-(T)INFINITY), at = S(index_vector)(d.first * a[1].in + h.first);
        for (int64_t k = 0; k < d.count; k++)
            for (int64_t r = 0; r < h.count; r++) {
                int64_t row = (d.first + k * d.step) * a[1].in + h.first + r * h.step,
                        from = (plane * a[0].in * a[1].in + row) * n + i;
                /* loads whole vectors, which is faster; lanes past the line are not used */
                V x = S(get)(kind, job->x, from, all - from);
                VM m = S(replaces)(x, most);
                most = F(select)(m, x, most);
                at = F(select)(m, S(index_vector)(row), at);
            }
        F(store)(best + i, most);
        memcpy(rows + i, &at, sizeof at);
    }
}

/** The largest element of a channel in a window: its value, its row, and its position in the line
 * (column). */
typedef struct S(maximum) {
    T value;
    int64_t row, column;
} S(maximum);

/** True if column x replaces `best`: it is larger, or equal and earlier in row-major order. NaN
 * replaces every number; of two NaN the later one is kept. */
TS_INLINE bool S(comes_first)(S(maximum) x, S(maximum) best)
{
    bool later = x.row > best.row || (x.row == best.row && x.column > best.column);
    bool nan = x.value != x.value, had = best.value != best.value;
    return nan ? !had || later
               : !had && (x.value > best.value || (x.value == best.value && !later));
}

/** Columns of a line: the maximum of each column, and its row. If rows is NULL, each column has one
 * element, in row `row`. */
typedef struct S(line_columns) {
    const T *best;
    const INDEX *rows;
    INDEX row;
} S(line_columns);

/** The largest of the columns of window w, for channel `channel`. */
VEC_FN S(maximum) S(largest_of_few)(S(line_columns) l, window w, int64_t channels, int64_t channel)
{
    int64_t i = w.first * channels + channel;
    S(maximum) y = {l.best[i], l.rows ? l.rows[i] : l.row, w.first};
    for (int64_t k = 1; k < w.count; k++) {
        i = (w.first + k * w.step) * channels + channel;
        S(maximum) x = {l.best[i], l.rows ? l.rows[i] : l.row, w.first + k * w.step};
        if (S(comes_first)(x, y))
            y = x;
    }
    return y;
}

/** Writes to y, for each of at most LANES channels, the largest of the columns of window w. The
 * window has step 1 and at least LANES positions. A lane keeps the maximum of the
 * positions that are multiples of LANES / channels apart; the lanes are compared last. */
VEC_FN void S(largest_of_many)(S(line_columns) l, window w, int64_t channels, S(maximum) *y)
{
    int64_t apart = LANES / channels, all = w.count * channels;
    INDEX own[LANES], row_lanes[LANES], column_lanes[LANES];
    T lanes[LANES];
    for (int i = 0; i < LANES; i++)
        own[i] = (INDEX)(w.first + i / channels);
    const T *best = l.best + w.first * channels;
    const INDEX *rows = l.rows ? l.rows + w.first * channels : NULL;
    V most = F(load)(best), row = S(index_vector)(l.row), column;
    if (rows)
        memcpy(&row, rows, sizeof row);
    memcpy(&column, own, sizeof column);
    V next = column;
    for (int64_t i = apart * channels; i < all; i += apart * channels) {
        V x = S(load_some)(best + i, all - i, most), r = row;
        if (rows)
            memcpy(&r, rows + i, sizeof r); /* `rows` ends with whole vectors */
        next = (V)((INDICES)next + (INDEX)apart);
        VM m = M(and)(rows ? S(column_replaces)(x, r, most, row) : S(replaces)(x, most),
                      M(first_n)(ts_min64(all - i, LANES)));
        most = F(select)(m, x, most);
        row = F(select)(m, r, row);
        column = F(select)(m, next, column);
    }
    F(store)(lanes, most);
    memcpy(row_lanes, &row, sizeof row);
    memcpy(column_lanes, &column, sizeof column);
    if (channels == 1 && !M(any)(F(ne)(most, most))) { /* loops without branches */
        T top = F(hmax_fast)(most);
        INDEX r = INDEX_MOST, c = INDEX_MOST;
        for (int i = 0; i < LANES; i++)
            r = lanes[i] == top && row_lanes[i] < r ? row_lanes[i] : r;
        for (int i = 0; i < LANES; i++)
            c = lanes[i] == top && row_lanes[i] == r && column_lanes[i] < c ? column_lanes[i] : c;
        *y = (S(maximum)){best[c - w.first], r, c};
        return;
    }
    for (int64_t i = 0; i < apart * channels; i++) {
        S(maximum) x = {lanes[i], row_lanes[i], column_lanes[i]};
        if (i < channels || S(comes_first)(x, y[i % channels]))
            y[i % channels] = x;
    }
}

/** Returns the elements of `from` at the indices starts[0] to starts[LANES - 1]. */
VEC_FN V S(lookup)(const T *from, const int32_t *starts)
{
#if TS_REAL == 32
    return vf_gather(from, vi_load(starts));
#else
    T lanes[LANES];
    for (int i = 0; i < LANES; i++)
        lanes[i] = from[starts[i]];
    return F(load)(lanes);
#endif
}

/** The columns of a line, in scratch memory. The first padding_of() positions are padding. */
typedef struct S(columns) {
    T *best;         /* maximum of each column; -Inf in padding */
    INDEX *rows;     /* row of the maximum; INDEX_MOST in padding */
    int32_t *starts; /* first column of each result's window */
} S(columns);

/** Computes a line of the result, one window per lane. to: index of the line's first element. */
VEC_FN void S(line_of_windows)(ts_dtype kind, const pool_job *job, const S(columns) *c, window d,
                               window h, int64_t to)
{
    const ts_axis *a = &job->axis[2];
    int64_t n = a->out * job->channels, pad = padding_of(a) * job->channels,
            taps = a->map == TS_AXIS_WINDOW ? a->kernel : 1, stride = stride_of(a),
            apart = a->map == TS_AXIS_WINDOW ? a->dilation * job->channels : 1;
    for (int64_t j = 0; j < n; j += LANES) {
        V most = F(zero)(), row = most, tap = most;
        for (int64_t k = 0; k < taps; k++) {
            const T *best = c->best + k * apart;
            const T *rows = (const T *)c->rows + k * apart; /* indices, loaded as bits of T */
            V x = stride == 1 ? F(load)(best + j) : S(lookup)(best, c->starts + j),
              r = stride == 1 ? F(load)(rows + j) : S(lookup)(rows, c->starts + j);
            VM m = k ? S(column_replaces)(x, r, most, row) : M(first_n)(LANES);
            most = F(select)(m, x, most);
            row = F(select)(m, r, row);
            tap = F(select)(m, S(index_vector)(k), tap);
        }
        S(set)(kind, job->y, to + j, most, n - j);
        if (!job->indices && !job->taps)
            continue;
        INDEX row_lanes[LANES], tap_lanes[LANES];
        memcpy(row_lanes, &row, sizeof row);
        memcpy(tap_lanes, &tap, sizeof tap);
        for (int64_t i = 0; i < LANES && j + i < n; i++) {
            int64_t column = (stride == 1 ? j + i : c->starts[j + i]) + tap_lanes[i] * apart - pad;
            /* a window without columns stores the row of the line's first column */
            bool none = row_lanes[i] == INDEX_MOST;
            store_maximum(job, to + j + i, d, h,
                          none ? c->rows[pad + (j + i) % job->channels] : row_lanes[i],
                          none ? 0 : column / job->channels, none ? 0 : tap_lanes[i]);
        }
    }
}

/** Computes a line of the result, window by window. to: as in line_of_windows(). */
VEC_FN void S(line_by_window)(ts_dtype kind, const pool_job *job, S(line_columns) l, window d,
                              window h, int64_t to)
{
    const ts_axis *a = &job->axis[2];
    int64_t channels = job->channels;
    for (int64_t o = 0; o < a->out; o++) {
        S(maximum) y[LANES];
        window w = window_of(a, o);
        if (w.step == 1 && w.count >= LANES)
            S(largest_of_many)(l, w, channels, y);
        for (int64_t i = 0; i < channels; i++, to++) {
            if (w.step != 1 || w.count < LANES)
                y[i] = S(largest_of_few)(l, w, channels, i);
            T value = w.count ? y[i].value : -(T)INFINITY;
            S(set)(kind, job->y, to, F(set1)(value), 1);
            store_maximum(job, to, d, h, y[i].row, y[i].column,
                          w.skipped + (y[i].column - w.first) / w.step);
        }
    }
}

/** Stores min(left, LANES) channels of a pixel of the result: the maxima `most`, and the indices or
 * taps `at`. to: index of the first channel in the result. */
VEC_FN void S(store_largest)(ts_dtype kind, const pool_job *job, V most, V at, int64_t left,
                             int64_t to)
{
    INDEX indices[LANES];
    S(set)(kind, job->y, to, most, left);
    memcpy(indices, &at, sizeof at);
    for (int k = 0; job->indices && k < LANES && k < left; k++)
        job->indices[to + k] = indices[k];
    for (int k = 0; job->taps && k < LANES && k < left; k++)
        job->taps[to + k] = (uint8_t)indices[k];
}

/** Computes `vectors` vectors of channels, starting at channel c, of one pixel of the result. A
 * single vector may have `left` < LANES channels. to: index of channel c in the result. */
VEC_FN void S(largest_of_channels)(ts_dtype kind, const pool_job *job, int64_t plane, window d,
                                   window h, window w, int64_t c, int vectors, int64_t left,
                                   int64_t to)
{
    const ts_axis *a = job->axis;
    bool taps = job->taps;
    V most[PIXEL_VECTORS], at[PIXEL_VECTORS];
    for (int v = 0; v < vectors; v++) {
        most[v] = F(set1)(-(T)INFINITY);
        at[v] = S(index_vector)(taps ? tap_of(a, d, h, w, 0, 0, 0)
                                     : (d.first * a[1].in + h.first) * a[2].in + w.first);
    }
    for (int64_t i = 0; i < d.count; i++)
        for (int64_t j = 0; j < h.count; j++)
            for (int64_t k = 0; k < w.count; k++) {
                int64_t index = ((d.first + i * d.step) * a[1].in + h.first + j * h.step) *
                                    a[2].in + w.first + k * w.step,
                        from = (plane * a[0].in * a[1].in * a[2].in + index) * job->channels + c;
                V here = S(index_vector)(taps ? tap_of(a, d, h, w, i, j, k) : index);
                for (int v = 0; v < vectors; v++) {
                    V x = S(get)(kind, job->x, from + v * LANES, left);
                    VM m = S(replaces)(x, most[v]);
                    most[v] = F(select)(m, x, most[v]);
                    at[v] = F(select)(m, here, at[v]);
                }
            }
    for (int v = 0; v < vectors; v++)
        S(store_largest)(kind, job, most[v], at[v], left, to + v * LANES);
}

/** Computes all channels of one pixel of the result as largest_of_channels() does, but reads the
 * pixels of the argument in the order of memory. best and rows: room for the maxima of all channels
 * and for the bits of their indices or taps. */
VEC_FN void S(largest_in_order)(ts_dtype kind, const pool_job *job, int64_t plane, window d,
                                window h, window w, T *best, T *rows, int64_t to)
{
    const ts_axis *a = job->axis;
    int64_t n = job->channels, first = (d.first * a[1].in + h.first) * a[2].in + w.first;
    V at = S(index_vector)(job->taps ? tap_of(a, d, h, w, 0, 0, 0) : first);
    for (int64_t c = 0; c < n; c += LANES) {
        F(store)(best + c, F(set1)(-(T)INFINITY));
        F(store)(rows + c, at);
    }
    for (int64_t i = 0; i < d.count; i++)
        for (int64_t j = 0; j < h.count; j++)
            for (int64_t k = 0; k < w.count; k++) {
                int64_t index = first + (i * d.step * a[1].in + j * h.step) * a[2].in + k * w.step,
                        from = (plane * job->size + index) * n;
                V here = S(index_vector)(job->taps ? tap_of(a, d, h, w, i, j, k) : index);
                for (int64_t c = 0; c < n; c += LANES) {
                    V x = S(get)(kind, job->x, from + c, n - c), most = F(load)(best + c);
                    VM m = S(replaces)(x, most);
                    F(store)(best + c, F(select)(m, x, most));
                    F(store)(rows + c, F(select)(m, here, F(load)(rows + c)));
                }
            }
    for (int64_t c = 0; c < n; c += LANES)
        S(store_largest)(kind, job, F(load)(best + c), F(load)(rows + c), n - c, to + c);
}

/** Computes all channels of one pixel of the result. to: index of its first channel. */
VEC_FN void S(largest_of_pixel)(ts_dtype kind, const pool_job *job, int64_t plane, window d,
                                window h, window w, int64_t to)
{
    int64_t n = job->channels, i = 0;
    for (; i + PIXEL_VECTORS * LANES <= n; i += PIXEL_VECTORS * LANES)
        S(largest_of_channels)(kind, job, plane, d, h, w, i, PIXEL_VECTORS, LANES, to + i);
    for (; i + LANES <= n; i += LANES)
        S(largest_of_channels)(kind, job, plane, d, h, w, i, 1, LANES, to + i);
    if (i < n)
        S(largest_of_channels)(kind, job, plane, d, h, w, i, 1, n - i, to + i);
}

/** Fills columns `from` to `to` - 1 with padding. */
VEC_FN void S(pad_columns)(const S(columns) *c, int64_t from, int64_t to)
{
    for (int64_t i = from; i < to; i++) {
        c->best[i] = -(T)INFINITY;
        c->rows[i] = INDEX_MOST;
    }
}

/** Computes lines begin to end - 1 of the result, which are numbered by plane, then depth, then
 * height. */
VEC_FN void S(pool_some)(ts_dtype kind, const pool_job *job, int64_t begin, int64_t end)
{
    const ts_axis *a = job->axis;
    int64_t n = job->channels, pad = padding_of(&a[2]) * n, line = a[2].in * n,
            capacity = columns_of(&a[2]) * n + 2 * LANES;
    bool pixels = n >= LANES, by_window = is_by_window(&a[2], n, LANES);
    T *memory = ts_slot(job->slots);
    S(columns) c = {memory, (INDEX *)(memory + capacity),
                    (int32_t *)(void *)(memory + 2 * capacity)};
    if (!pixels) {
        S(pad_columns)(&c, 0, pad);
        for (int64_t j = 0; !by_window && j < a[2].out * n + LANES; j++)
            c.starts[j] = j < a[2].out * n ? (int32_t)(j / n * stride_of(&a[2]) * n + j % n) : 0;
    }
    for (int64_t row = begin; row < end; row++) {
        int64_t rest = row / a[1].out, plane = rest / a[0].out;
        window d = window_of(&a[0], rest % a[0].out), h = window_of(&a[1], row % a[1].out);
        if (!pixels) {
            bool direct = by_window && d.count * h.count == 1 && sizeof(T) == ts_dtype_sizes[kind];
            if (direct) {
                INDEX at = (INDEX)(d.first * a[1].in + h.first);
                const T *x = (const T *)job->x + (plane * a[0].in * a[1].in + at) * line;
                S(line_by_window)(kind, job, (S(line_columns)){x, NULL, at}, d, h,
                                  row * a[2].out * n);
                continue;
            }
            S(largest_of_columns)(kind, job, plane, d, h, c.best + pad, c.rows + pad);
            S(pad_columns)(&c, pad + line, capacity);
            if (by_window)
                S(line_by_window)(kind, job, (S(line_columns)){c.best + pad, c.rows + pad, 0}, d, h,
                                  row * a[2].out * n);
            else
                S(line_of_windows)(kind, job, &c, d, h, row * a[2].out * n);
            continue;
        }
        for (int64_t o = 0; job->in_order && o < a[2].out; o++)
            S(largest_in_order)(kind, job, plane, d, h, window_of(&a[2], o), c.best, (T *)c.rows,
                                (row * a[2].out + o) * n);
        for (int64_t o = 0; !job->in_order && o < a[2].out; o++)
            S(largest_of_pixel)(kind, job, plane, d, h, window_of(&a[2], o),
                                (row * a[2].out + o) * n);
    }
}

/** to[j * to_row + i] = from[i * from_row + j] for i < rows, j < columns. */
VEC_FN void S(transpose)(T *to, int64_t to_row, const T *from, int64_t from_row, int64_t rows,
                         int64_t columns)
{
#if TS_REAL == 32
    vf_transpose_matrix(to, to_row, from, from_row, rows, columns);
#else
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            to[j * to_row + i] = from[i * from_row + j];
#endif
}

/** Computes small planes with short lines. A task is up to LANES planes, which are transposed to
 * the channels of one image in scratch memory. */
VEC_FN void S(pool_planes)(ts_dtype kind, const pool_job *job, int64_t begin, int64_t end)
{
    const ts_axis *a = job->axis;
    int64_t size = job->size, out = job->out;
    bool halves = kind != TS_F32 && kind != TS_F64;
    T *x = ts_slot(job->slots), *y = x + size * LANES, *wide = y + out * LANES;
    int64_t *indices = (int64_t *)(void *)(wide + ts_max64(size, out) * LANES);
    pool_job inner = *job;
    inner.x = x;
    inner.y = y;
    inner.indices = job->indices ? indices : NULL;
    inner.taps = job->taps ? (uint8_t *)indices : NULL;
    inner.planes = 1;
    inner.channels = LANES;
    memset(x, 0, (size_t)(size * LANES) * sizeof(T));
    for (int64_t task = begin; task < end; task++) {
        int64_t plane = task * LANES, some = ts_min64(LANES, job->planes - plane), o = 0;
        const T *from = halves ? wide : (const T *)job->x + plane * size;
        for (int64_t i = 0; halves && i < some * size; i += LANES)
            S(store_some)(wide + i, S(get)(kind, job->x, plane * size + i, some * size - i),
                          some * size - i);
        S(transpose)(x, LANES, from, size, some, size);
        for (int64_t i = 0; i < a[0].out; i++)
            for (int64_t j = 0; j < a[1].out; j++)
                for (int64_t k = 0; k < a[2].out; k++, o++)
                    S(largest_of_channels)(TS_REAL == 32 ? TS_F32 : TS_F64, &inner, 0,
                                           window_of(&a[0], i), window_of(&a[1], j),
                                           window_of(&a[2], k), 0, 1, LANES, o * LANES);
        T *to = halves ? wide : (T *)job->y + plane * out;
        S(transpose)(to, out, y, LANES, out, some);
        for (int64_t i = 0; halves && i < some * out; i += LANES)
            S(set)(kind, job->y, plane * out + i, F(load)(wide + i), some * out - i);
        for (int64_t p = 0; p < some; p++)
            for (int64_t i = 0; i < out; i++) {
                int64_t to = (plane + p) * out + i;
                if (job->indices)
                    job->indices[to] = inner.indices[i * LANES + p];
                if (job->taps)
                    job->taps[to] = inner.taps[i * LANES + p];
            }
    }
}

/** Returns min(left, LANES) elements of `from` starting at index i: in place, or bf16 and f16
 * widened in `lanes`. */
VEC_FN const T *S(read)(ts_dtype kind, const void *from, int64_t i, int64_t left, T *lanes)
{
    if (kind == TS_F32 || kind == TS_F64)
        return (const T *)from + i;
    F(store)(lanes, S(get)(kind, from, i, left));
    return lanes;
}

/** Adds gradients from + i, for i from 0 to count - 1, to y[indices[i] * pitch + i * step]. Skips
 * indices outside [0, size), and returns false if there is one. */
VEC_FN bool S(add_at)(ts_dtype kind, const void *grad, int64_t from, const int64_t *indices,
                      int64_t count, int64_t size, T *y, int64_t pitch, int64_t step)
{
    bool inside = true;
    for (int64_t i = 0; i < count; i += LANES) {
        T lanes[LANES];
        const T *g = S(read)(kind, grad, from + i, count - i, lanes);
        for (int64_t k = 0; k < ts_min64(LANES, count - i); k++) {
            int64_t index = indices[i + k];
            if ((uint64_t)index < (uint64_t)size)
                y[index * pitch + (i + k) * step] += g[k];
            else
                inside = false;
        }
    }
    return inside;
}

/** add_at() with the gradients job->x, each at the index that its tap in job->taps gives. Tap
 *  from + i is in the window of d, h and w; if w is NULL, it is in window i of the line, and step
 *  is not used. Skips taps of empty windows, and taps outside their windows; returns false if there
 *  is one of the latter. */
VEC_FN bool S(add_at_taps)(ts_dtype kind, const pool_job *job, int64_t from, int64_t count,
                           window d, window h, const window *w, T *y, int64_t pitch, int64_t step)
{
    bool inside = true;
    for (int64_t i = 0; i < count; i += LANES) {
        T lanes[LANES];
        F(store)(lanes, S(get)(kind, job->x, from + i, count - i));
        for (int64_t k = 0; k < ts_min64(LANES, count - i); k++) {
            window own = w ? *w : window_of(&job->axis[2], i + k);
            int64_t index = index_of(job->axis, d, h, own, job->taps[from + i + k]);
            if (!d.count || !h.count || !own.count)
                continue; /* no element of the image */
            if (index >= 0)
                y[index * pitch + (w ? i + k : 0) * step] += lanes[k];
            else
                inside = false;
        }
    }
    return inside;
}

/** Adds gradients `from` to from + count - 1 to y. With channels = 1 they belong to consecutive
 * planes, each with `out` gradients and `size` elements; else to one plane, with channels
 * innermost. Skips indices outside [0, size), and returns false if there is one. */
VEC_FN bool S(add_planes)(ts_dtype kind, const void *grad, int64_t from, const int64_t *indices,
                          int64_t count, int64_t out, int64_t channels, int64_t size, T *y)
{
    bool inside = true;
    int64_t base = 0, period = channels == 1 ? out : channels, at = 0;
    for (int64_t i = 0; i < count; i += LANES) {
        T lanes[LANES];
        const T *g = S(read)(kind, grad, from + i, count - i, lanes);
        for (int64_t k = 0; k < ts_min64(LANES, count - i); k++) {
            int64_t index = indices[i + k];
            if ((uint64_t)index < (uint64_t)size)
                y[index * channels + base] += g[k];
            else
                inside = false;
            bool wraps = ++at == period;
            at = wraps ? 0 : at;
            base = channels > 1 ? at : wraps ? base + size : base;
        }
    }
    return inside;
}

/** add_at_taps() for all windows of a plane, for `some` channels. from: index of the first
 * gradient. */
VEC_FN bool S(add_plane)(ts_dtype kind, const pool_job *job, int64_t from, int64_t some, T *y,
                         int64_t pitch)
{
    const ts_axis *a = job->axis;
    int64_t n = job->channels;
    bool inside = true;
    for (int64_t row = 0; row < a[0].out * a[1].out; row++) {
        window d = window_of(&a[0], row / a[1].out), h = window_of(&a[1], row % a[1].out);
        int64_t first = from + row * a[2].out * n;
        if (n == 1)
            inside &= S(add_at_taps)(kind, job, first, a[2].out, d, h, NULL, y, 1, 0);
        for (int64_t o = 0; n > 1 && o < a[2].out; o++) {
            window w = window_of(&a[2], o);
            inside &= S(add_at_taps)(kind, job, first + o * n, some, d, h, &w, y, pitch, 1);
        }
    }
    return inside;
}

/** Writes elements `from` to from + run - 1 of job->added to y; zeros if job->added is NULL. */
VEC_FN void S(start_run)(ts_dtype kind, const pool_job *job, int64_t from, int64_t run, T *y)
{
    if (!job->added)
        memset(y, 0, (size_t)run * sizeof *y);
    else if (kind == TS_F32 || kind == TS_F64)
        memcpy(y, (const T *)job->added + from, (size_t)run * sizeof *y);
    for (int64_t k = 0; job->added && kind != TS_F32 && kind != TS_F64 && k < run; k += LANES) {
        T lanes[LANES];
        F(store)(lanes, S(get)(kind, job->added, from + k, run - k));
        memcpy(y + k, lanes, (size_t)ts_min64(LANES, run - k) * sizeof *y);
    }
}

/** Computes a plane of bf16 or f16 that has few gradients: clears the plane and stores the sums.
 * sums: an f32 buffer of the plane's size, all 0 before and after the call. Returns false if an
 * index is outside the plane; `sums` is then not cleared. */
VEC_FN bool S(store_sparse)(ts_dtype kind, const pool_job *job, int64_t plane, T *sums)
{
    int64_t size = job->size, count = job->out;
    const int64_t *indices = job->indices + plane * count;
    bool inside = S(add_at)(kind, job->x, plane * count, indices, count, size, sums, 1, 0);
    memset((uint16_t *)job->y + plane * size, 0, (size_t)size * sizeof(uint16_t));
    for (int64_t i = 0; inside && i < count; i++)
        if (sums[indices[i]] != 0) { /* 0: the sum is 0, or an equal index stored it before */
            S(set)(kind, job->y, plane * size + indices[i], F(set1)(sums[indices[i]]), 1);
            sums[indices[i]] = 0;
        }
    return inside;
}

/** Initializes the result with start_run() and adds each gradient at its index or tap; bf16 and f16
 * are added in f32. A task is a plane, or job->block channels of a sample. Sets job->outside if an
 * index is outside its plane, or a tap outside its window. */
VEC_FN void S(scatter_planes)(ts_dtype kind, pool_job *job, int64_t begin, int64_t end)
{
    bool inside = true, halves = kind != TS_F32 && kind != TS_F64;
    int64_t n = job->channels, block = job->block, blocks = ts_ceil_div(n, block), size = job->size,
            out = job->out;
    bool sparse = halves && n == 1 && job->indices && !job->added && out * SPARSE <= size;
    T *scratch = ts_slot(job->slots);
    if (sparse)
        memset(scratch, 0, (size_t)size * sizeof *scratch);
    for (int64_t task = begin, many = 1; task < end && (inside || !sparse); task += many) {
        int64_t plane = task / blocks, c = task % blocks * block,
                some = ts_min64(n - c, block), pitch = halves ? some : n,
                at = plane * size * n + c;
        if (sparse) {
            inside = S(store_sparse)(kind, job, plane, scratch);
            continue;
        }
        if (n == 1)
            many = ts_min64(ts_max64(PLANES / ts_max64(size, 1), 1), end - task);
        T *y = halves ? scratch : (T *)job->y + at;
        int64_t runs = some == n ? 1 : size, run = some == n ? many * size * n : some,
                from = plane * out * n + c;
        for (int64_t i = 0; i < runs; i++)
            S(start_run)(kind, job, at + i * n, run, y + i * (halves ? run : n));
        if (job->taps)
            for (int64_t p = 0; p < many; p++)
                inside &= S(add_plane)(kind, job, from + p * out * n, some,
                                       y + (n == 1 ? p * size : 0), pitch);
        else if (many > 1 || (n > 1 && n < FEW_CHANNELS))
            inside &= S(add_planes)(kind, job->x, from, job->indices + from, many * out * n, out, n,
                                    size, y);
        else if (n == 1)
            inside &= S(add_at)(kind, job->x, from, job->indices + from, out, size, y, 1, 0);
        else
            for (int64_t o = 0; o < out; o++)
                inside &= S(add_at)(kind, job->x, from + o * n, job->indices + from + o * n, some,
                                    size, y, pitch, 1);
        for (int64_t i = 0; halves && i < runs; i++)
            for (int64_t k = 0; k < run; k += LANES)
                S(set)(kind, job->y, at + i * n + k, S(load_some)(y + i * run + k, run - k,
                                                                  F(zero)()), run - k);
    }
    if (!inside)
        atomic_store_explicit(&job->outside, true, memory_order_relaxed);
}

#define BODY(of, kind)                                                                             \
    static void pool_rows_##of(void *ctx, int64_t begin, int64_t end)                              \
    {                                                                                              \
        S(pool_some)(kind, ctx, begin, end);                                                       \
    }                                                                                              \
    static void pool_small_##of(void *ctx, int64_t begin, int64_t end)                            \
    {                                                                                              \
        S(pool_planes)(kind, ctx, begin, end);                                                     \
    }                                                                                              \
    static void pool_backward_##of(void *ctx, int64_t begin, int64_t end)                          \
    {                                                                                              \
        S(scatter_planes)(kind, ctx, begin, end);                                                  \
    }
FOR_KINDS(BODY)
#undef BODY
#undef INDEX
#undef INDEX_MOST
#undef INDICES
