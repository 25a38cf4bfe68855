/**
 * @file direct.h
 * Convolutions with few channels as sums over taps, without a matrix of windows. Included by
 * convolution.c only.
 *
 * A task copies a part of one group's image, with zeros for padding, into scratch memory (a slab).
 * With a stride, a channel has one plane per phase, that is, per remainder of the index modulo the
 * stride. In a slab, the elements that a tap multiplies at consecutive positions are adjacent, for
 * any stride and dilation. Vectors run along positions: across the ends of lines for results, along
 * each line for gradients of the weight.
 *
 * Each result is one chain of multiply-adds (vf_fma()), and each gradient of a weight is summed
 * image by image by one thread. So results do not depend on the number of threads.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_DIRECT_H
#define TS_BACKENDS_CPU_DIRECT_H

#include "backends/cpu/vec.h"
#include "backends/cpu/windows.h"

/* Vectors of sums that a loop keeps in registers: enough to hide the latency of multiply-adds. */
#if VEC_ISA == VEC_IS_avx512 || defined(__aarch64__)
#define DIRECT_SUMS 16
#else
#define DIRECT_SUMS 8
#endif
/* Vectors of positions that are summed together for `rows` result channels. */
#define DIRECT_VECTORS(rows) ((DIRECT_SUMS + (rows) - 1) / (rows))
enum {
    DIRECT_ROWS = 4,        /* result channels that are summed together */
    DIRECT_TAPS = 8,        /* most taps of a result channel whose gradients are summed together */
    DIRECT_SLACK = 4 * 16,  /* elements after a slab, and after a channel of its results, that whole
                               vectors may access */
    DIRECT_SLAB = 1 << 16   /* elements that a slab, and likewise its results, should not exceed;
                               they do if a part of one position along dim `split` has more */
};

/** A call for all groups, or the part of it that a task computes (part_of()). */
typedef struct direct {
    image from, to;   /* from: the source; to: the result, or y for the gradient of the weight */
    axis axis[3];     /* shifts are positive */
    int64_t batch, groups;
    int64_t rows, channels; /* channels per group of `to` and `from` */
    int64_t depth;    /* products of a result: channels times taps */
    char *weight;     /* (groups, rows, depth), or its gradient */
    const char *bias; /* (groups * rows), or NULL */
    int64_t *offset;  /* (depth): index in the slab of the element that a channel's tap multiplies
                         at position 0 */
    int64_t phases[3], extent[3]; /* phases per dim, whose product is the number of planes of a
                                     channel in the slab; sizes of a plane */
    int64_t split, parts; /* the dim whose positions are divided among tasks; number of parts */
    int64_t slab;     /* elements of a slab */
    int64_t positions; /* elements of a result channel in scratch: its lines are as far apart as in
                          the slab, or for the gradient of the weight adjacent */
    int64_t kept;     /* result channels in scratch before they are copied to the image */
    int64_t workers;  /* number of scratch areas: one per task that may run at the same time */
    char *scratch;
    int64_t scratch_each; /* elements of a scratch area */
    int item;         /* bytes of an element */
} direct;

/** Size of a slab's planes along a dim with `count` positions. */
static int64_t direct_extent(const axis *a, int64_t count)
{
    return count + (a->taps ? (a->taps - 1) * a->shift / a->move : 0);
}

/** Number of phases of a dim: at most its stride (a->move), fewer if the window is shorter. */
static int64_t direct_phases(const axis *a)
{
    return a->taps ? ts_min64(a->move, (a->taps - 1) * a->shift + 1) : 1;
}

/** Sets the members from phases to scratch_each, except workers and scratch. grad_weight: a copy of
 *  y follows the slab of x in scratch memory. The number of parts then changes the results, so it
 *  does not depend on the number of threads. */
static void plan_direct(direct *t, bool grad_weight)
{
    int64_t channel = 1;
    for (int d = 0; d < 3; d++) {
        const axis *a = &t->axis[d];
        t->phases[d] = direct_phases(a);
        t->extent[d] = direct_extent(a, a->count);
        channel *= t->phases[d] * t->extent[d];
    }
    t->split = t->axis[0].count > 1 ? 0 : t->axis[1].count > 1 ? 1 : 2;
    int64_t count = t->axis[t->split].count, extra = t->extent[t->split] - count,
            line = t->channels * (channel / t->extent[t->split]) + 1;
    int64_t most = ts_max64(DIRECT_SLAB / line - extra, ts_max64(1, extra));
    t->kept = grad_weight || t->to.c == 1 ? t->rows : ts_min64(t->rows, DIRECT_ROWS);
    if (!grad_weight) {
        most = ts_min64(most, DIRECT_SLAB / (t->kept * (channel / t->extent[t->split])) + 1);
        most = ts_min64(most, ts_ceil_div(count * t->batch * t->groups, ts_num_threads()));
    }
    t->parts = ts_ceil_div(count, most);
    most = ts_ceil_div(count, t->parts);
    t->extent[t->split] = most + extra;
    t->slab = t->channels;
    for (int d = 0; d < 3; d++)
        t->slab *= t->phases[d] * t->extent[d];
    t->slab += DIRECT_SLACK;
    int64_t counts[3] = {t->axis[0].count, t->axis[1].count, t->axis[2].count};
    counts[t->split] = most;
    t->positions = ((counts[0] - 1) * t->extent[1] + counts[1] - 1) * t->extent[2] + counts[2];
    if (grad_weight) /* lines of y without gaps */
        t->positions = counts[0] * counts[1] * counts[2];
    t->scratch_each = t->slab + t->kept * (t->positions + DIRECT_SLACK);
    t->scratch_each = ts_ceil_div(t->scratch_each, 16) * 16;
}

/** Sets t->offset, in the order (channels, taps). */
static void set_offsets(direct *t)
{
    const axis *a = t->axis;
    const int64_t *e = t->extent;
    int64_t taps[3] = {a[0].taps, a[1].taps, a[2].taps}, *to = t->offset;
    int64_t plane = e[0] * e[1] * e[2];
    for (int64_t c = 0; c < t->channels; c++)
        for (int64_t j0 = 0; j0 < taps[0]; j0++)
            for (int64_t j1 = 0; j1 < taps[1]; j1++)
                for (int64_t j2 = 0; j2 < taps[2]; j2++) {
                    const int64_t j[3] = {j0, j1, j2};
                    int64_t phase = c, at = 0;
                    for (int d = 0; d < 3; d++) {
                        phase = phase * t->phases[d] + j[d] * a[d].shift % a[d].move;
                        at = at * e[d] + j[d] * a[d].shift / a[d].move;
                    }
                    *to++ = phase * plane + at;
                }
}

/** The part of `t` that a task computes: image n, group g, and a part of dim `split`. */
static direct part_of(const direct *t, int64_t n, int64_t g, int64_t part)
{
    direct p = *t;
    axis *a = &p.axis[t->split];
    int64_t first = a->count * part / t->parts;
    a->count = a->count * (part + 1) / t->parts - first;
    a->base += first * a->move;
    a->start += first * a->step;
    p.from.data += (n * t->from.n + g * t->channels * t->from.c) * t->item;
    p.to.data += (n * t->to.n + g * t->rows * t->to.c) * t->item;
    p.weight += g * t->rows * t->depth * t->item;
    p.bias = t->bias ? t->bias + g * t->rows * t->item : NULL;
    return p;
}

/** Sets bytes to 0. Often there is one f32, for which memset() is not called. */
TS_INLINE void clear(char *to, int64_t bytes)
{
    if (bytes == 4)
        memset(to, 0, 4);
    else if (bytes)
        memset(to, 0, (size_t)bytes);
}

/** Fills one phase's plane of each channel. The planes of adjacent channels are `channel` elements
 * apart in the slab. */
static void fill_phase(const direct *t, char *to, int64_t channel, const int64_t *phase)
{
    const axis *a = t->axis;
    const int64_t *e = t->extent, *size = t->from.size;
    int64_t n = e[2], low, high, step = t->from.at[2], item = t->item;
    int64_t first = a[2].base + phase[2];
    inside_of(first, a[2].move, size[2], n, &low, &high);
    for (int64_t u0 = 0; u0 < e[0]; u0++)
        for (int64_t u1 = 0; u1 < e[1]; u1++, to += n * item) {
            int64_t i0 = a[0].base + phase[0] + u0 * a[0].move,
                    i1 = a[1].base + phase[1] + u1 * a[1].move;
            bool outside = i0 < 0 || i0 >= size[0] || i1 < 0 || i1 >= size[1] || low == high;
            for (int64_t c = 0; c < t->channels; c++) {
                clear(to + c * channel * item, (outside ? n : low) * item);
                clear(to + (c * channel + high) * item, outside ? 0 : (n - high) * item);
            }
            if (outside)
                continue;
            int64_t at = i0 * t->from.at[0] + i1 * t->from.at[1] +
                         (first + low * a[2].move) * step;
            block from = {t->from.data + at * item, t->from.c, a[2].move * step};
            copy_block((block){to + low * item, channel, 1}, from, t->channels, high - low,
                       t->item);
        }
}

/** Fills the slab `to` with the part of the image that t reads, and with zeros for padding. */
static void fill_slab(const direct *t, char *to)
{
    const int64_t *f = t->phases, *e = t->extent;
    int64_t plane = e[0] * e[1] * e[2], channel = f[0] * f[1] * f[2] * plane;
    memset(to + t->channels * channel * t->item, 0, (size_t)(DIRECT_SLACK * t->item));
    for (int64_t q = 0; q < f[0] * f[1] * f[2]; q++) {
        int64_t phase[3] = {q / f[2] / f[1], q / f[2] % f[1], q % f[2]};
        fill_phase(t, to + q * plane * t->item, channel, phase);
    }
}

/** Copies lines of `rows` channels of the image `to`, starting at channel `first`, to the matrix,
 *  or with `back` from it. In the matrix, lines are row[0] and row[1] elements apart along the
 *  first two dims, and channels are `channel` elements apart. */
static void copy_lines(const direct *t, char *matrix, int64_t channel, const int64_t *row,
                       int64_t first, int64_t rows, bool back)
{
    const axis *a = t->axis;
    const image *v = &t->to;
    for (int64_t i0 = 0; i0 < a[0].count; i0++)
        for (int64_t i1 = 0; i1 < a[1].count; i1++) {
            int64_t at = (a[0].start + i0 * a[0].step) * v->at[0] +
                         (a[1].start + i1 * a[1].step) * v->at[1] + a[2].start * v->at[2] +
                         first * v->c;
            block image = {v->data + at * t->item, v->c, a[2].step * v->at[2]},
                  lines = {matrix + (i0 * row[0] + i1 * row[1]) * t->item, channel, 1};
            copy_block(back ? image : lines, back ? lines : image, rows, a[2].count, t->item);
        }
}

#define REAL_BITS 32
#include "backends/cpu/direct_real.h"
#undef REAL_BITS
#define REAL_BITS 64
#include "backends/cpu/direct_real.h"
#undef REAL_BITS

#endif
