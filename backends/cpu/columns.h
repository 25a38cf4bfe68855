/**
 * @file columns.h
 * The gradient of x of a convolution as columns; also the result of a transposed convolution. A
 * column is a pair of a channel and a tap. One product computes the columns of a chunk of positions
 * of y: y (positions, features) times the weight (features, columns), whose layout is that of the
 * tensor. Each column is then copied, or added, to the elements of x that its tap reads.
 *
 *   has_patches()    the kernel is as large as its stride, without padding and dilation: each
 *                    element of x has one tap, so columns are copied
 *   suits_columns()  other kernels: x starts as zeros or the bias, and columns are added in the
 *                    order of chunks and taps, which depends only on shapes and layouts
 *
 * Included by convolution.c only.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_COLUMNS_H
#define TS_BACKENDS_CPU_COLUMNS_H

#include "backends/cpu/chunks.h"

/* suits_columns() requires both numbers of channels per group, or the ratio. */
#define COLUMN_CHANNELS 4  /* most channels of x */
#define COLUMN_FEATURES 16 /* least features of y */
#define COLUMN_WASTE 2     /* least windows of y per position of y */

/** True if the windows of x cover x, do not overlap, and have more than one element. */
static bool has_patches(const ts_convolution *c)
{
    int64_t taps = 1;
    for (int d = 0; d < 3; d++) {
        taps *= c->kernel[d];
        if (c->kernel[d] != c->stride[d] || c->padding[d] ||
            (c->kernel[d] > 1 && c->dilation[d] > 1) ||
            c->size[d] != c->y_size[d] * c->stride[d])
            return false;
    }
    return taps > 1;
}

/** True if adding columns costs less than computing x from windows of y (windows.h). For each
 *  remainder modulo the stride, x needs one window of y per element with this remainder. If y has
 *  far fewer positions than that, the windows are mostly padding. If x has few channels, there are
 *  few columns. */
static bool suits_columns(const job *b)
{
    const ts_convolution *c = &b->c;
    int64_t taps = 1;
    double windows = 1, positions = 1;
    for (int d = 0; d < 3; d++) {
        taps *= c->kernel[d];
        windows *= (double)ts_ceil_div(c->size[d], c->stride[d]);
        positions *= (double)c->y_size[d];
    }
    bool few = c->channels / c->groups <= COLUMN_CHANNELS &&
               c->features / c->groups >= COLUMN_FEATURES;
    return taps > 1 && b->dtype != TS_BF16 && (few || windows >= COLUMN_WASTE * positions);
}

/** A call for one group. The product of a chunk of `count` positions is (count, columns) if
 *  `last`, else (columns, count). */
typedef struct columns {
    image x, y;        /* the result; the source */
    axis axis[3];      /* positions of y; taps of the weight */
    weights weight;    /* (features, columns) */
    int64_t batch, channels, taps, features;
    int64_t first, count; /* positions of the chunk */
    bool apart;        /* has_patches(): columns are copied */
    bool last;         /* products are (count, columns) */
    int item;          /* bytes of an element */
    char *sums, *bias; /* sums: product of a chunk. bias: one per column if apart, else one per
                          channel; NULL: no bias */
} columns;

/** Number of the column of a channel and a tap. */
static int64_t column_of(const columns *p, int64_t channel, int64_t tap)
{
    return p->weight.by_window ? tap * p->channels + channel : channel * p->taps + tap;
}

/** Copies the columns of each tap from the product to x. */
static void copy_columns(const job *b, const columns *p)
{
    int64_t all = p->channels * p->taps;
    for (int64_t tap = 0; tap < p->taps; tap++) {
        axis a[3];
        ts_kernel_windows(b->frame, tap, a);
        strips out = {.image = p->x, .axis = a, .channels = p->channels, .item = b->item,
                      .position_step = p->last ? all : 1, .channel_step = column_of(p, 1, 0),
                      .matrix = p->sums + column_of(p, 0, tap) * (p->last ? 1 : p->count) *
                                              b->item};
        copy_matrix(&out, p->first, p->count, true);
    }
}

#define ADD_STEPS(T, to_step, from_step)                                                           \
    for (int64_t i = 0; i < n; i++)                                                                \
        ((T *)to)[i * (to_step)] += ((const T *)from)[i * (from_step)];

/** Adds n elements of `item` bytes (4: f32, 8: f64) with strides in elements. */
TS_INLINE void add_run(char *to, int64_t to_step, const char *from, int64_t from_step, int64_t n,
                       int item)
{
    bool dense = to_step == 1 && from_step == 1;
    if (item == 4 && dense)
        ADD_STEPS(float, 1, 1)
    else if (item == 4)
        ADD_STEPS(float, to_step, from_step)
    else if (dense)
        ADD_STEPS(double, 1, 1)
    else
        ADD_STEPS(double, to_step, from_step)
}

/** Adds the columns of a tap (unless p->last, only the column of `channel`) for `run` positions
 *  along the last dim, starting at number `at`. x: the element that the tap reads there. */
static void add_line(const columns *p, int64_t channel, int64_t tap, int64_t at, int64_t run,
                     char *x)
{
    int64_t column = column_of(p, channel, tap), move = p->axis[2].move * p->x.at[2],
            position = at - p->first, all = p->channels * p->taps, item = p->item;
    if (!p->last) {
        add_run(x, move, p->sums + (column * p->count + position) * item, 1, run, p->item);
        return;
    }
    int64_t next = column_of(p, 1, 0);
    for (int64_t i = 0; i < run; i++)
        add_run(x + i * move * item, p->x.c, p->sums + ((position + i) * all + column) * item, next,
                p->channels, p->item);
}

/** Adds the columns of a chunk to x. Tasks begin to end - 1 are numbered by image of the chunk,
 *  then, unless last, by channel. */
static void add_columns(void *ctx, int64_t begin, int64_t end)
{
    const columns *p = ctx;
    const axis *a = p->axis;
    const windows w = {.from = p->x, .axis = {a[0], a[1], a[2]}, .item = p->item};
    int64_t each = a[0].count * a[1].count * a[2].count, rows = p->last ? 1 : p->channels;
    for (int64_t task = begin; task < end; task++) {
        int64_t n = p->first / each + task / rows, channel = task % rows, run;
        int64_t from = ts_max64(p->first, n * each),
                until = ts_min64(p->first + p->count, (n + 1) * each);
        for (int64_t tap = 0; tap < p->taps; tap++) {
            int64_t j0 = tap / a[2].taps / a[1].taps, j1 = tap / a[2].taps % a[1].taps;
            window_index q = window_index_of(a, from);
            for (int64_t at = from; at < until; at += run, advance_window(&q, a, run)) {
                run = ts_min64(a[2].count - q.i[2], until - at);
                const char *line = line_at(&w, &q, j0, j1);
                line_tap t = line_tap_of(&w, tap % a[2].taps, q.i[2], run);
                int64_t offset = channel * p->x.c + (t.offset + t.low * a[2].move) * p->x.at[2];
                if (line && t.high > t.low)
                    add_line(p, channel, tap, at + t.low, t.high - t.low,
                             (char *)line + offset * p->item);
            }
        }
    }
}

/** Sets lines begin to end - 1 of all images of x to zeros or the bias. */
static void start_lines(void *ctx, int64_t begin, int64_t end)
{
    static const char zero[sizeof(double)];
    const columns *p = ctx;
    const image *x = &p->x;
    const block value = {p->bias ? p->bias : (char *)zero, p->bias != NULL, 0};
    int64_t lines = x->size[0] * x->size[1];
    for (int64_t i = begin; i < end; i++) {
        int64_t at = pixel_of(x, i / lines, i % lines * x->size[2]);
        copy_block((block){x->data + at * p->item, x->c, x->at[2]}, value, p->channels, x->size[2],
                   p->item);
    }
}

/** Starts x, before columns are added. */
static void start_image(columns *p)
{
    int64_t lines = p->batch * p->x.size[0] * p->x.size[1];
    ts_parallel_for(lines, 1 + 16384 / (p->channels * p->x.size[2] + 1), start_lines, p);
}

/** Fills the sums (columns, count) with the bias of their rows. */
static void fill_sums(const columns *p)
{
    for (int64_t i = 0; i < p->channels * p->taps; i++)
        copy_run(p->sums + i * p->count * p->item, 1, p->bias + i * p->item, 0, p->count, p->item);
}

/** Copies or adds the columns of a chunk to x. */
static void move_columns(const job *b, columns *p)
{
    int64_t each = p->axis[0].count * p->axis[1].count * p->axis[2].count;
    int64_t images = (p->first + p->count - 1) / each - p->first / each + 1;
    int64_t rows = p->last ? 1 : p->channels, work = p->channels * p->taps * p->count;
    if (p->apart)
        copy_columns(b, p);
    else
        ts_parallel_for(images * rows, 1 + 16384 * images * rows / (work + 1), add_columns, p);
}

/** Computes x for one group; without memory (chunks.h), only its scratch size. */
static void make_columns(const job *b, int64_t group, scratch *s)
{
    const ts_convolution *c = &b->c;
    columns p = {.x = b->x, .y = b->y, .batch = c->batch, .channels = c->channels / c->groups,
                 .features = c->features / c->groups, .apart = has_patches(c), .item = b->item};
    p.taps = c->kernel[0] * c->kernel[1] * c->kernel[2];
    int64_t all = p.channels * p.taps, step;
    size_t used = s->used;
    p.last = p.apart ? b->last || p.channels == 1 : p.x.c == 1 && p.channels > 1;
    p.x.data += group * p.channels * p.x.c * b->item;
    p.y.data += group * p.features * p.y.c * b->item;
    ts_kernel_windows(b->frame, -1, p.axis);
    p.weight = weights_of(b, group, p.axis, false, b->weight->strides[1] == 1);
    bool last = p.y.c == 1 || p.features == 1, weight_in_place = weights_in_place(&p.weight);
    cuts chunks = cut(p.axis, c->batch, last, CHUNK / ts_max64(all, 1));
    if (!chunks.all || !all)
        return;
    bool y_in_place = is_matrix(&p.y, p.axis, c->batch, p.features, last, &chunks, &step);
    if (!weight_in_place)
        p.weight.matrix = take(s, p.features * all * b->item);
    strips in = {.image = p.y, .axis = p.axis, .channels = p.features, .item = b->item,
                 .position_step = last ? p.features : 1, .channel_step = 1,
                 .matrix = y_in_place ? NULL : take(s, chunks.most * p.features * b->item)};
    p.sums = take(s, chunks.most * all * b->item);
    p.bias = b->bias ? take(s, all * b->item) : NULL;
    if (s->allocated && !weight_in_place)
        move_weights(&p.weight, false);
    for (int64_t i = 0; p.bias && s->allocated && i < (p.apart ? all : p.channels); i++) {
        int64_t k = group * p.channels + (!p.apart ? i : p.weight.by_window ? i % p.channels
                                                                             : i / p.taps);
        memcpy(p.bias + i * b->item, (const char *)b->bias->data + k * b->item, (size_t)b->item);
    }
    if (s->allocated && !p.apart)
        start_image(&p);
    for (p.first = 0; p.first < chunks.all; p.first += p.count) {
        p.count = chunk_at(&chunks, p.first);
        if (s->allocated && !y_in_place)
            copy_matrix(&in, p.first, p.count, false);
        const char *y = y_in_place ? position_at(&p.y, p.axis, p.first, b->item) : in.matrix;
        const char *bias = p.apart ? p.bias : NULL;
        int64_t position = !last ? 1 : y_in_place ? step : p.features,
                feature = last ? 1 : y_in_place ? p.y.c : p.count;
        ts_gemm g = p.last ? (ts_gemm){.m = p.count, .n = all, .a = y, .a_row = position,
                                       .a_column = feature, .b = p.weight.matrix,
                                       .b_row = all, .b_column = 1, .bias = bias}
                           : (ts_gemm){.m = all, .n = p.count, .a = p.weight.matrix, .a_row = 1,
                                       .a_column = all, .b = y, .b_row = feature,
                                       .b_column = position, .add = bias != NULL};
        g.k = p.features;
        g.c = p.sums;
        g.c_row = p.last ? all : p.count;
        if (s->allocated && g.add)
            fill_sums(&p);
        multiply(&g, b->dtype, s);
        if (s->allocated)
            move_columns(b, &p);
    }
    s->used = used;
}

#endif
