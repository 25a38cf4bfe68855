/* The loops of max pooling for one real type; included by pool.c. */
// SPDX-License-Identifier: MIT
#include "backends/cpu/kinds_real.h"

#ifndef TS_BACKENDS_CPU_POOL_REAL_H
#define TS_BACKENDS_CPU_POOL_REAL_H
enum { CHANNELS = 16, /* channels per task of a channels-last backward */
       PLANES = 4096 }; /* elements of small planes that a backward clears together */
#endif

/* Type of an index in a vector lane: an integer of T's width, stored in the bits of a V. */
#if TS_REAL == 32
#define PLACE int32_t
#else
#define PLACE int64_t
#endif

/** Lanes in which x becomes the new maximum: x is larger than `best`, or NaN. */
VEC_FN VM S(replaces)(V x, V best)
{
    return M(or)(F(gt)(x, best), F(ne)(x, x));
}
/** Returns a vector with the bits of `place` in every lane. Built in memory: float arithmetic may
 * change the bits. */
VEC_FN V S(place_vector)(int64_t place)
{
    PLACE lanes[LANES];
    for (int i = 0; i < LANES; i++)
        lanes[i] = (PLACE)place;
    V v;
    memcpy(&v, lanes, sizeof v);
    return v;
}

/** Writes each column's maximum over the rows of windows d and h to `best`, and the index of its
 * row in the plane to `rows`. */
VEC_FN void S(largest_of_columns)(ts_dtype kind, const pool_job *job, int64_t plane, window d,
                                  window h, T *best, PLACE *rows)
{
    const ts_axis *a = job->axis;
    int64_t n = a[2].in, all = job->planes * a[0].in * a[1].in * n;
    for (int64_t i = 0; i < n; i += LANES) {
        V most = F(set1)(-(T)INFINITY), at = S(place_vector)(d.first * a[1].in + h.first);
        for (int64_t k = 0; k < d.count; k++)
            for (int64_t r = 0; r < h.count; r++) {
                int64_t row = (d.first + k * d.step) * a[1].in + h.first + r * h.step,
                        from = (plane * a[0].in * a[1].in + row) * n + i;
                /* lanes behind the row are not used: a whole load is faster than a partial one */
                V x = S(get)(kind, job->x, from, all - from);
                VM m = S(replaces)(x, most);
                most = F(select)(m, x, most);
                at = F(select)(m, S(place_vector)(row), at);
            }
        F(store)(best + i, most);
        memcpy(rows + i, &at, sizeof at);
    }
}

/** Computes channels c to c + left - 1, at most a vector, of one pixel of the result. to: index of
 * the first in the result. */
VEC_FN void S(largest_of_pixel)(ts_dtype kind, const pool_job *job, int64_t plane, window d,
                                window h, window w, int64_t c, int64_t left, int64_t to)
{
    const ts_axis *a = job->axis;
    bool taps = job->taps;
    V most = F(set1)(-(T)INFINITY),
      at = S(place_vector)(taps ? tap_of(a, d, h, w, 0, 0, 0)
                                : (d.first * a[1].in + h.first) * a[2].in + w.first);
    for (int64_t i = 0; i < d.count; i++)
        for (int64_t j = 0; j < h.count; j++)
            for (int64_t k = 0; k < w.count; k++) {
                int64_t place = ((d.first + i * d.step) * a[1].in + h.first + j * h.step) *
                                    a[2].in + w.first + k * w.step,
                        from = (plane * a[0].in * a[1].in * a[2].in + place) * job->channels + c;
                V x = S(get)(kind, job->x, from, left);
                VM m = S(replaces)(x, most);
                most = F(select)(m, x, most);
                at = F(select)(m, S(place_vector)(taps ? tap_of(a, d, h, w, i, j, k) : place), at);
            }
    S(set)(kind, job->y, to, most, left);
    if (!job->places && !taps)
        return;
    PLACE places[LANES];
    memcpy(places, &at, sizeof at);
    for (int k = 0; k < LANES && k < left; k++)
        if (taps)
            job->taps[to + k] = (uint8_t)places[k];
        else
            job->places[to + k] = places[k];
}

/** Computes rows begin to end - 1 of the result. A row is a line along the last spatial dim; rows
 * are numbered by plane, then depth, then height. */
VEC_FN void S(pool_some)(ts_dtype kind, const pool_job *job, int64_t begin, int64_t end)
{
    const ts_axis *a = job->axis;
    T *best = ts_slot(job->slots);
    PLACE *rows = (PLACE *)(best + a[2].in + LANES);
    for (int64_t row = begin; row < end; row++) {
        int64_t rest = row / a[1].out, plane = rest / a[0].out, n = job->channels;
        window d = window_of(&a[0], rest % a[0].out), h = window_of(&a[1], row % a[1].out);
        if (!job->last)
            S(largest_of_columns)(kind, job, plane, d, h, best, rows);
        for (int64_t o = 0; o < a[2].out; o++) {
            window w = window_of(&a[2], o);
            int64_t to = (row * a[2].out + o) * n, c = 0;
            for (; job->last && c + LANES <= n; c += LANES)
                S(largest_of_pixel)(kind, job, plane, d, h, w, c, LANES, to + c);
            if (job->last && c < n)
                S(largest_of_pixel)(kind, job, plane, d, h, w, c, n - c, to + c);
            if (job->last)
                continue;
            int64_t at = w.first;
            for (int64_t k = 1, i = w.first + w.step; k < w.count; k++, i += w.step) {
                /* among equal elements the first in row-major order; among NaN the last */
                bool nan = best[i] != best[i], had = best[at] != best[at];
                if (nan ? !had || rows[i] >= rows[at]
                        : !had && (best[i] > best[at] ||
                                   (best[i] == best[at] && rows[i] < rows[at])))
                    at = i;
            }
            S(set)(kind, job->y, to,
                   w.count ? F(load_n)(best + at, 1) : F(set1)(-(T)INFINITY), 1);
            if (job->places)
                job->places[to] = (int64_t)rows[at] * a[2].in + at;
            if (job->taps)
                job->taps[to] = (uint8_t)tap_of(a, d, h, w,
                                                (rows[at] / a[1].in - d.first) / d.step,
                                                (rows[at] % a[1].in - h.first) / h.step,
                                                (at - w.first) / w.step);
        }
    }
}

/** Adds `count` gradients from element `from` on to y, gradient i at places[i] * pitch + i * step.
 * Returns false if an index is not below `size`. */
VEC_FN bool S(add_at)(ts_dtype kind, const void *grad, int64_t from, const int64_t *places,
                      int64_t count, int64_t size, T *y, int64_t pitch, int64_t step)
{
    bool inside = true;
    for (int64_t i = 0; i < count; i += LANES) {
        T lanes[LANES];
        const T *g = (const T *)grad + from + i;
        if (kind != TS_F32 && kind != TS_F64) {
            F(store)(lanes, S(get)(kind, grad, from + i, count - i));
            g = lanes;
        }
        for (int64_t k = 0; k < ts_min64(LANES, count - i); k++) {
            int64_t place = places[i + k];
            if ((uint64_t)place < (uint64_t)size)
                y[place * pitch + (i + k) * step] += g[k];
            else
                inside = false;
        }
    }
    return inside;
}

/** Adds `count` gradients from element `from` on to y, gradient i at the index of tap i, times
 *  pitch, plus i * step. d, h and w are the window of all of them; w NULL: gradient i belongs to
 *  window i of the row. Returns false if a tap is outside of its window. */
VEC_FN bool S(add_at_taps)(ts_dtype kind, const pool_job *job, int64_t from, int64_t count,
                           window d, window h, const window *w, T *y, int64_t pitch, int64_t step)
{
    bool inside = true;
    for (int64_t i = 0; i < count; i += LANES) {
        T lanes[LANES];
        F(store)(lanes, S(get)(kind, job->x, from + i, count - i));
        for (int64_t k = 0; k < ts_min64(LANES, count - i); k++) {
            window own = w ? *w : window_of(&job->axis[2], i + k);
            int64_t place = index_of(job->axis, d, h, own, job->taps[from + i + k]);
            if (place >= 0)
                y[place * pitch + (w ? i + k : 0) * step] += lanes[k];
            else
                inside = false;
        }
    }
    return inside;
}

/** add_at_taps() for the windows of a plane, of `some` channels from element `from` on. */
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

/** Writes `run` elements of the tensor to which gradients are added, from element `from` on, to y;
 *  zeros without such a tensor. */
VEC_FN void S(begin_run)(ts_dtype kind, const pool_job *job, int64_t from, int64_t run, T *y)
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

/** Begins the result with begin_run() and adds each gradient at its index or tap; halves are added
 * in f32. A task is a plane, or CHANNELS channels of a sample. Sets job->outside if an index is
 * outside its plane, or a tap outside its window. */
VEC_FN void S(scatter_planes)(ts_dtype kind, pool_job *job, int64_t begin, int64_t end)
{
    bool inside = true, halves = kind != TS_F32 && kind != TS_F64;
    int64_t n = job->channels, blocks = ts_ceil_div(n, CHANNELS), size = job->size, out = job->out;
    T *scratch = ts_slot(job->slots);
    for (int64_t task = begin, many = 1; task < end; task += many) {
        int64_t plane = task / blocks, c = task % blocks * CHANNELS,
                some = ts_min64(n - c, CHANNELS), pitch = halves ? some : n,
                at = plane * size * n + c;
        if (n == 1)
            many = ts_min64(ts_max64(PLANES / ts_max64(size, 1), 1), end - task);
        T *y = halves ? scratch : (T *)job->y + at;
        int64_t runs = some == n ? 1 : size, run = some == n ? many * size * n : some;
        for (int64_t i = 0; i < runs; i++)
            S(begin_run)(kind, job, at + i * n, run, y + i * (halves ? run : n));
        for (int64_t p = 0; p < many; p++) {
            int64_t from = (plane + p) * out * n + c;
            if (job->taps) {
                inside &= S(add_plane)(kind, job, from, some, y + (n == 1 ? p * size : 0), pitch);
                continue;
            }
            if (n == 1)
                inside &= S(add_at)(kind, job->x, from, job->places + from, out, size,
                                    y + p * size, 1, 0);
            for (int64_t o = 0; n > 1 && o < out; o++)
                inside &= S(add_at)(kind, job->x, from + o * n, job->places + from + o * n, some,
                                    size, y, pitch, 1);
        }
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
    static void pool_backward_##of(void *ctx, int64_t begin, int64_t end)                          \
    {                                                                                              \
        S(scatter_planes)(kind, ctx, begin, end);                                                  \
    }
FOR_KINDS(BODY)
#undef BODY
#undef PLACE
