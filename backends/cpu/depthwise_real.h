/* The loops of depthwise.h for one real type T (real_names.h), with vectors V of LANES channels. */
// SPDX-License-Identifier: MIT
#include "backends/cpu/real_names.h"

/** Taps that are summed together. For each tap, x points to channel 0 of the element that it
 *  multiplies at the next position, and k to channel 0 of its weight. */
typedef struct S(taps) {
    const T *x[DEPTHWISE_TAPS], *k[DEPTHWISE_TAPS];
    int64_t count;
    bool more; /* true: add to the stored results */
} S(taps);

/** Computes channels c to c + n - 1, n <= LANES, of `positions` consecutive positions. x_step and
 *  to_step: distances of positions in elements. */
VEC_FN void S(sum_channels)(const int positions, const S(taps) *t, const T *bias, T *to,
                            int64_t x_step, int64_t to_step, int64_t c, int64_t n)
{
    V sum[DEPTHWISE_POSITIONS];
    TS_UNROLL(4) for (int p = 0; p < positions; p++)
        sum[p] = t->more ? F(load_n)(to + p * to_step + c, n)
                 : bias  ? F(load_n)(bias + c, n)
                         : F(set1)(0);
    for (int64_t j = 0; j < t->count; j++) {
        V k = F(load_n)(t->k[j] + c, n);
        TS_UNROLL(4) for (int p = 0; p < positions; p++)
            sum[p] = F(fma)(F(load_n)(t->x[j] + p * x_step + c, n), k, sum[p]);
    }
    TS_UNROLL(4) for (int p = 0; p < positions; p++) F(store_n)(to + p * to_step + c, sum[p], n);
}

/** sum_channels() for all channels. */
VEC_FN void S(sum_positions)(const int positions, const S(taps) *t, const depthwise *d, T *to,
                             int64_t x_step, int64_t to_step)
{
    const T *bias = (const T *)d->bias;
    int64_t c = 0;
    for (; c + LANES <= d->channels; c += LANES)
        S(sum_channels)(positions, t, bias, to, x_step, to_step, c, LANES);
    if (c < d->channels)
        S(sum_channels)(positions, t, bias, to, x_step, to_step, c, d->channels - c);
}

/** Computes positions low to high - 1 of a line from the taps collected in t, and empties t. */
static void S(sum_collected)(S(taps) *t, const depthwise *d, T *to, int64_t x_step, int64_t to_step,
                             int64_t low, int64_t high)
{
    for (int64_t i = low, n; i < high; i += n) {
        n = i + DEPTHWISE_POSITIONS <= high ? DEPTHWISE_POSITIONS : 1;
        if (n > 1)
            S(sum_positions)(DEPTHWISE_POSITIONS, t, d, to + i * to_step, x_step, to_step);
        else
            S(sum_positions)(1, t, d, to + i * to_step, x_step, to_step);
        for (int64_t j = 0; j < t->count; j++)
            t->x[j] += n * x_step;
    }
    t->count = 0;
    t->more = true;
}

/** Computes positions low to high - 1 of the line that starts at window p. Along the last dim, taps
 *  first to last - 1 are inside the image at all of these positions, and the other taps at none. */
static void S(sum_line)(const depthwise *d, const window_index *p, T *to, int64_t to_step,
                        int64_t low, int64_t high, int64_t first, int64_t last)
{
    const axis *a = d->w.axis, *line = &a[2];
    int64_t step = d->w.from.at[2], x_step = line->move * step;
    const T *weight = (const T *)d->weight;
    S(taps) t = {.count = 0};
    for (int64_t j0 = 0; j0 < a[0].taps; j0++)
        for (int64_t j1 = 0; j1 < a[1].taps; j1++, weight += line->taps * d->channels) {
            const T *from = (const T *)line_at(&d->w, p, j0, j1);
            for (int64_t j = first; j < last && from; j++) {
                if (t.count == DEPTHWISE_TAPS)
                    S(sum_collected)(&t, d, to, x_step, to_step, low, high);
                t.x[t.count] = from + (line->base + low * line->move + j * line->shift) * step;
                t.k[t.count++] = weight + j * d->channels;
            }
        }
    S(sum_collected)(&t, d, to, x_step, to_step, low, high);
}

/** Computes lines begin to end - 1 of the result. */
static void S(sum_lines)(void *ctx, int64_t begin, int64_t end)
{
    const depthwise *d = ctx;
    const axis *line = &d->w.axis[2];
    int64_t to_step = line->step * d->to.at[2], low, high;
    inner_positions(&d->w, &low, &high);
    for (int64_t q = begin; q < end; q++) {
        window_index p = window_index_of(d->w.axis, q * line->count);
        T *to = (T *)(void *)position_at(&d->to, d->w.axis, q * line->count, sizeof(T));
        for (int64_t i = 0; i < line->count; i++)
            if (i == low && low < high) {
                S(sum_line)(d, &p, to, to_step, low, high, 0, line->taps);
                i = high - 1;
            } else {
                int64_t first, last;
                inside_of(line->base + i * line->move, line->shift, d->w.from.size[2], line->taps,
                          &first, &last);
                S(sum_line)(d, &p, to, to_step, i, i + 1, first, last);
            }
    }
}

/** A tap whose gradient is computed: its indices j0 and j1 along the first two dims; offset, the
 *  index in an image line of the element that it multiplies at position 0; and the positions [low,
 *  high) of a line at which it is inside the image. */
typedef struct S(grad_tap) {
    int64_t j0, j1, offset, low, high;
    const T *x; /* the tap's element at the line's first position; NULL if the line is outside */
} S(grad_tap);

/** Adds to sums (taps, LANES) the products of n channels of y with the elements of x that `taps`
 *  taps multiply, over positions low to high - 1 of a line. */
VEC_FN void S(grad_weight_line)(const int taps, const S(grad_tap) *tap, const T *y, int64_t x_step,
                                int64_t y_step, int64_t low, int64_t high, int64_t n, T *sums)
{
    V sum[DEPTHWISE_GRADIENTS];
    const T *x[DEPTHWISE_GRADIENTS];
    TS_UNROLL(9) for (int j = 0; j < taps; j++) {
        sum[j] = F(set1)(0);
        x[j] = tap[j].x + low * x_step;
    }
    y += low * y_step;
    for (int64_t i = 0; i < high - low; i++) {
        V g = F(load_n)(y + i * y_step, n);
        TS_UNROLL(9) for (int j = 0; j < taps; j++)
            sum[j] = F(fma)(F(load_n)(x[j] + i * x_step, n), g, sum[j]);
    }
    TS_UNROLL(9) for (int j = 0; j < taps; j++)
        F(store)(sums + j * LANES, F(load)(sums + j * LANES) + sum[j]);
}

/** Computes the gradients of taps first to first + count - 1 for channels c to c + n - 1. */
VEC_FN void S(grad_weight_block)(const int count, const depthwise *d, int64_t first, int64_t c,
                                 int64_t n)
{
    const axis *a = d->w.axis, *line = &a[2];
    int64_t step = d->w.from.at[2], x_step = line->move * step, y_step = d->to.at[2];
    S(grad_tap) tap[DEPTHWISE_GRADIENTS];
    T sums[DEPTHWISE_GRADIENTS * LANES] = {0};
    for (int j = 0; j < count; j++) {
        int64_t t = first + j;
        tap[j].j0 = t / line->taps / a[1].taps;
        tap[j].j1 = t / line->taps % a[1].taps;
        tap[j].offset = line->base + t % line->taps * line->shift;
        inside_of(tap[j].offset, line->move, d->w.from.size[2], line->count, &tap[j].low,
                  &tap[j].high);
    }
    for (int64_t q = 0; q < d->batch * a[0].count * a[1].count; q++) {
        window_index p = window_index_of(a, q * line->count);
        const T *y = (const T *)position_at(&d->to, a, q * line->count, sizeof(T)) + c;
        int64_t low = 0, high = line->count;
        bool all = true;
        for (int j = 0; j < count; j++) {
            const T *x = (const T *)line_at(&d->w, &p, tap[j].j0, tap[j].j1);
            tap[j].x = x ? x + c + tap[j].offset * step : NULL;
            all = all && x;
            low = ts_max64(low, tap[j].low);
            high = ts_min64(high, tap[j].high);
        }
        all = all && low < high;
        if (all)
            S(grad_weight_line)(count, tap, y, x_step, y_step, low, high, n, sums);
        for (int j = 0; j < count; j++) {
            if (!tap[j].x)
                continue;
            if (all)
                S(grad_weight_line)(1, tap + j, y, x_step, y_step, high, tap[j].high, n,
                                    sums + j * LANES);
            S(grad_weight_line)(1, tap + j, y, x_step, y_step, tap[j].low,
                                all ? low : tap[j].high, n, sums + j * LANES);
        }
    }
    for (int j = 0; j < count; j++)
        F(store_n)((T *)d->weight + (first + j) * d->channels + c, F(load)(sums + j * LANES), n);
}

/** Computes the gradients of the weights of LANES-channel blocks begin to end - 1, `count` taps at
 *  a time. The last taps may overlap those before them. */
VEC_FN void S(grad_weight_in_blocks)(const int count, const depthwise *d, int64_t begin,
                                     int64_t end)
{
    for (int64_t c = begin * LANES; c < ts_min64(end * LANES, d->channels); c += LANES)
        for (int64_t t = 0; t < d->taps; t += count) {
            int64_t first = ts_min64(t, d->taps - count);
            if (c + LANES <= d->channels)
                S(grad_weight_block)(count, d, first, c, LANES);
            else
                S(grad_weight_block)(count, d, first, c, d->channels - c);
        }
}

/** Body of the parallel loop for the gradient of the weight: blocks of LANES channels. */
static void S(grad_weight_channels)(void *ctx, int64_t begin, int64_t end)
{
    const depthwise *d = ctx;
    if (d->taps >= DEPTHWISE_GRADIENTS)
        S(grad_weight_in_blocks)(DEPTHWISE_GRADIENTS, d, begin, end);
    else if (d->taps >= 3)
        S(grad_weight_in_blocks)(3, d, begin, end);
    else
        S(grad_weight_in_blocks)(1, d, begin, end);
}
