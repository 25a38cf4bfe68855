/**
 * @file patches.h
 * The gradient of x of a convolution whose kernel is as large as its stride, without padding and
 * dilation; also the result of such a transposed convolution. Each element of x then depends on one
 * tap and one position of y, so one product computes all elements: y (positions, features) times
 * the weight (features, channels and taps), whose layout is that of the tensor. Included by
 * convolution.c only.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_PATCHES_H
#define TS_BACKENDS_CPU_PATCHES_H

#include "backends/cpu/chunks.h"

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

/** A call for one group. Columns are the pairs of a channel and a tap. The product of a chunk of
 *  `count` positions is (count, columns) if `last`, else (columns, count). */
typedef struct patches {
    image x, y;        /* the result; the source */
    axis axis[3];      /* positions of y; taps of the weight */
    weights weight;    /* (features, columns) */
    int64_t channels, taps, features;
    bool last;         /* x is planned with channels innermost */
    char *sums, *bias; /* product of a chunk; bias of each column, or NULL */
} patches;

/** Copies the product of positions first to first + count - 1 to x, tap by tap. */
static void spread_patches(const job *b, const patches *p, int64_t first, int64_t count)
{
    int64_t columns = p->channels * p->taps, each = p->weight.by_window ? 1 : p->taps;
    for (int64_t tap = 0; tap < p->taps; tap++) {
        axis a[3];
        ts_kernel_windows(b->frame, tap, a);
        int64_t column = p->weight.by_window ? tap * p->channels : tap;
        strips out = {.image = p->x, .axis = a, .channels = p->channels, .item = b->item,
                      .position_step = p->last ? columns : 1, .channel_step = each,
                      .matrix = p->sums + column * (p->last ? 1 : count) * b->item};
        copy_matrix(&out, first, count, true);
    }
}

/** Fills the sums (columns, count) with the bias of their rows. */
static void fill_sums(const job *b, const patches *p, int64_t count)
{
    for (int64_t i = 0; i < p->channels * p->taps; i++)
        copy_run(p->sums + i * count * b->item, 1, p->bias + i * b->item, 0, count, b->item);
}

/** Computes x for one group; without memory (chunks.h), only its scratch size. */
static void make_patches(const job *b, int64_t group, scratch *s)
{
    const ts_convolution *c = &b->c;
    patches p = {.x = b->x, .y = b->y, .channels = c->channels / c->groups,
                 .features = c->features / c->groups, .taps = ts_kernel_window_forms(b->frame)};
    int64_t columns = p.channels * p.taps, step;
    size_t used = s->used;
    p.last = b->last || p.channels == 1;
    p.x.data += group * p.channels * p.x.c * b->item;
    p.y.data += group * p.features * p.y.c * b->item;
    ts_kernel_windows(b->frame, -1, p.axis);
    p.weight = weights_of(b, group, p.axis, false, b->weight->strides[1] == 1);
    bool last = p.y.c == 1 || p.features == 1, weight_in_place = weights_in_place(&p.weight);
    cuts chunks = cut(p.axis, c->batch, last, CHUNK / ts_max64(columns, 1));
    if (!chunks.all || !columns)
        return;
    bool y_in_place = is_matrix(&p.y, p.axis, c->batch, p.features, last, &chunks, &step);
    if (!weight_in_place)
        p.weight.matrix = take(s, p.features * columns * b->item);
    strips in = {.image = p.y, .axis = p.axis, .channels = p.features, .item = b->item,
                 .position_step = last ? p.features : 1, .channel_step = 1,
                 .matrix = y_in_place ? NULL : take(s, chunks.most * p.features * b->item)};
    p.sums = take(s, chunks.most * columns * b->item);
    p.bias = b->bias ? take(s, columns * b->item) : NULL;
    if (s->allocated && !weight_in_place)
        move_weights(&p.weight, false);
    for (int64_t i = 0; p.bias && s->allocated && i < columns; i++) {
        int64_t k = group * p.channels +
                    (p.weight.by_window ? i % p.channels : i / p.taps);
        memcpy(p.bias + i * b->item, (const char *)b->bias->data + k * b->item, (size_t)b->item);
    }
    for (int64_t first = 0, count; first < chunks.all; first += count) {
        count = chunk_at(&chunks, first);
        if (s->allocated && !y_in_place)
            copy_matrix(&in, first, count, false);
        const char *y = y_in_place ? position_at(&p.y, p.axis, first, b->item) : in.matrix;
        int64_t position = !last ? 1 : y_in_place ? step : p.features,
                feature = last ? 1 : y_in_place ? p.y.c : count;
        ts_gemm g = p.last ? (ts_gemm){.m = count, .n = columns, .a = y, .a_row = position,
                                       .a_column = feature, .b = p.weight.matrix,
                                       .b_row = columns, .b_column = 1, .bias = p.bias}
                           : (ts_gemm){.m = columns, .n = count, .a = p.weight.matrix, .a_row = 1,
                                       .a_column = columns, .b = y, .b_row = feature,
                                       .b_column = position, .add = p.bias != NULL};
        g.k = p.features;
        g.c = p.sums;
        g.c_row = p.last ? columns : count;
        if (s->allocated && g.add)
            fill_sums(b, &p, count);
        multiply(&g, b->dtype, s);
        if (s->allocated)
            spread_patches(b, &p, first, count);
    }
    s->used = used;
}

#endif
