/**
 * @file windows.h  Copies images and weights of convolutions to matrices and back. Part of
 * convolution.c, which is compiled once per instruction-set variant; its other headers include this
 * file.
 *
 *   position   an element of the target image, which the windows compute, without its channel
 *   window     the part of the source image that one position reads (ts_window_axis in kernel.h)
 *   tap        an element of the kernel, and the element of a window that it multiplies
 *   line       the positions, or pixels, along the last spatial dim
 */
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_WINDOWS_H
#define TS_BACKENDS_CPU_WINDOWS_H

#include "backends/cpu/bytes.h"
#include "backends/cpu/copy.h"
#include "backends/cpu/pack.h"
#include "core/parallel.h"
#include "core/tensor.h"
#include "include/tessera/kernel.h"

#include <string.h>

/** A tensor as (batch, channels, three spatial dims). Spatial dims that the tensor lacks come first
 *  and have size 1. */
typedef struct image {
    char *data;
    int64_t n, c, at[3], /* strides of batch, channels and spatial dims, in elements */
        size[3];         /* spatial sizes */
} image;

/** Describes tensor t (N, C, and `dims` spatial dims). size: three sizes, as in `image`. Borrows
 *  t's memory. */
static image image_of(const ts_tensor *t, const int64_t *size, int dims)
{
    image v = {.data = t->data, .n = t->strides[0], .c = t->strides[1],
               .size = {size[0], size[1], size[2]}};
    for (int d = 0; d < dims; d++)
        v.at[3 - dims + d] = t->strides[2 + d];
    return v;
}

typedef ts_window_axis axis;

/** Returns the axis with its taps in reverse order if its shift is negative, so that the shift of
 *  the result is positive. */
static axis forwards(axis a)
{
    if (a.shift < 0) {
        a.base += (a.taps - 1) * a.shift;
        a.first += (a.taps - 1) * a.every;
        a.shift = -a.shift;
        a.every = -a.every;
    }
    return a;
}

/* ------------------------------------------------------------------------------ copying ---- */

#define COPY_STEPS(T)                                                                              \
    for (int64_t i = 0; i < n; i++)                                                                \
        ((T *)to)[i * to_step] = ((const T *)from)[i * from_step];

/** Copies n elements of `item` bytes (2, 4 or 8) with strides in elements. */
TS_INLINE void copy_run(char *to, int64_t to_step, const char *from, int64_t from_step, int64_t n,
                     int item)
{
    if (to_step == 1 && from_step == 1 && n > 0)
        ts_copy_bytes(to, from, n * item);
    else if (item == 4)
        COPY_STEPS(uint32_t)
    else if (item == 8)
        COPY_STEPS(uint64_t)
    else
        COPY_STEPS(uint16_t)
}

/** A matrix or a part of an image: address of its first element, strides in elements. */
typedef struct block {
    char *at;
    int64_t row, column;
} block;

/** Copies rows × columns elements. Blocks that are dense along different dims are transposed. */
static void copy_block(block to, block from, int64_t rows, int64_t columns, int item)
{
    bool along = to.column <= to.row || rows == 1; /* copy along columns */
    if (!along) {
        int64_t n = rows;
        rows = columns;
        columns = n;
        to = (block){to.at, to.column, to.row};
        from = (block){from.at, from.column, from.row};
    }
    if (to.column == 1 && from.row == 1 && from.column != 1 && rows > 1 && columns > 1)
        TS_V(ts_cpu_transpose)(to.at, to.row * item, from.at, from.column * item, rows, columns,
                               item);
    else
        for (int64_t i = 0; i < rows; i++)
            copy_run(to.at + i * to.row * item, to.column, from.at + i * from.row * item,
                     from.column, columns, item);
}

/** Windows first to first + count - 1 of one group's channels, gathered as a matrix at `to`. */
typedef struct windows {
    image from;     /* the source image */
    axis axis[3];
    int64_t channels, first, count;
    int64_t row;    /* unless by_window: stride between rows in elements, at least count */
    bool by_window; /* the matrix is (count, taps, channels), else (channels, taps, count) */
    int item;       /* bytes of an element */
    char *to;
} windows;

/** Multi-index of a window: its image n and its position i[3]. */
typedef struct window_index {
    int64_t n, i[3];
} window_index;

/** Multi-index of window number `at`. Windows are numbered by image, then by position, the last dim
 *  fastest. */
static window_index window_index_of(const axis *a, int64_t at)
{
    window_index p;
    for (int d = 2; d >= 0; d--) {
        p.i[d] = at % a[d].count;
        at /= a[d].count;
    }
    p.n = at;
    return p;
}

/** Moves p by `run` windows, at most to the first window of the next line. */
static void advance_window(window_index *p, const axis *a, int64_t run)
{
    p->i[2] += run;
    for (int d = 2; d > 0 && p->i[d] >= a[d].count; d--) {
        p->i[d] = 0;
        p->i[d - 1]++;
    }
    if (p->i[0] >= a[0].count) {
        p->i[0] = 0;
        p->n++;
    }
}

/** Sets [*low, *high) to the indices k in [0, n) for which at + k step is in [0, size). step is not
 *  0. */
static void inside_of(int64_t at, int64_t step, int64_t size, int64_t n, int64_t *low,
                      int64_t *high)
{
    if (step < 0) { /* counts k from the other end */
        inside_of(at + (n - 1) * step, -step, size, n, high, low);
        *low = n - *low;
        *high = n - *high;
        return;
    }
    *low = at < 0 ? ts_ceil_div(-at, step) : 0;
    *high = at < size ? (size - at - 1) / step + 1 : 0;
    *low = ts_min64(*low, n);
    *high = ts_min64(ts_max64(*high, *low), n);
}

/** Sets [*low, *high) to the positions of a line at which all taps along the last dim are inside
 *  the image. */
static void inner_positions(const windows *w, int64_t *low, int64_t *high)
{
    const axis *line = &w->axis[2];
    int64_t first, last, size = w->from.size[2];
    inside_of(line->base, line->move, size, line->count, low, &last);
    inside_of(line->base + (line->taps - 1) * line->shift, line->move, size, line->count, &first,
              high);
    *low = ts_max64(*low, first);
    *high = ts_max64(ts_min64(*high, last), *low);
}

/** Address of the image line (index 0 of the last dim, channel 0) that window p reads with taps j0
 *  and j1 of the first two dims; NULL if the line is outside the image. */
static const char *line_at(const windows *w, const window_index *p, int64_t j0, int64_t j1)
{
    const char *at = w->from.data + p->n * w->from.n * w->item;
    const int64_t j[2] = {j0, j1};
    for (int d = 0; d < 2; d++) {
        const axis *a = &w->axis[d];
        int64_t i = p->i[d] * a->move + a->base + j[d] * a->shift;
        if (i < 0 || i >= w->from.size[d])
            return NULL;
        at += i * w->from.at[d] * w->item;
    }
    return at;
}

/** Gathers window p as (taps, channels), with zeros for elements outside the image. */
static void gather_window(const windows *w, char *to, const window_index *p)
{
    const axis *a = w->axis, *last = &a[2];
    int64_t bytes = w->channels * w->item, line = last->taps * bytes, step = w->from.at[2];
    int64_t first = p->i[2] * last->move + last->base, low, high;
    inside_of(first, last->shift, w->from.size[2], last->taps, &low, &high);
    for (int64_t j0 = 0; j0 < a[0].taps; j0++)
        for (int64_t j1 = 0; j1 < a[1].taps; j1++, to += line) {
            const char *from = line_at(w, p, j0, j1);
            int64_t end = from ? high : 0, begin = from ? low : 0;
            memset(to, 0, (size_t)(begin * bytes));
            memset(to + end * bytes, 0, (size_t)(line - end * bytes));
            from = from ? from + (first + low * last->shift) * step * w->item : NULL;
            for (int64_t j = begin; j < end; j++, from += last->shift * step * w->item)
                copy_run(to + j * bytes, 1, from, w->from.c, w->channels, w->item);
        }
}

/** Gathers `run` windows along the last dim, starting at window p. Their taps along the last dim
 *  are all inside the image. */
static void gather_inside(const windows *w, char *to, const window_index *p, int64_t run)
{
    const axis *a = w->axis, *last = &a[2];
    int64_t step = w->from.at[2] * w->item, pixel = w->channels * w->item;
    bool dense = w->from.c == 1 && last->shift * w->from.at[2] == w->channels;
    int64_t pieces = dense ? 1 : last->taps, bytes = last->taps * pixel / pieces;
    int64_t whole = a[0].taps * a[1].taps * last->taps * pixel;
    for (int64_t j0 = 0; j0 < a[0].taps; j0++)
        for (int64_t j1 = 0; j1 < a[1].taps; j1++) {
            const char *line = line_at(w, p, j0, j1);
            for (int64_t j = 0; j < pieces; j++, to += bytes) {
                const char *from = line + (p->i[2] * last->move + last->base + j * last->shift) *
                                              step;
                for (int64_t i = 0; i < run; i++)
                    if (!line)
                        memset(to + i * whole, 0, (size_t)bytes);
                    else
                        copy_run(to + i * whole, 1, from + i * last->move * step, w->from.c,
                                 bytes / w->item, w->item);
            }
        }
}

/** Gathers windows begin to end - 1 as rows of (taps, channels). */
static void gather_by_window(void *ctx, int64_t begin, int64_t end)
{
    const windows *w = ctx;
    const axis *a = w->axis;
    int64_t whole = a[0].taps * a[1].taps * a[2].taps * w->channels * w->item, low, high;
    char *to = w->to + begin * whole;
    window_index p = window_index_of(a, w->first + begin);
    inner_positions(w, &low, &high);
    for (int64_t run; begin < end; begin += run, to += run * whole, advance_window(&p, a, run)) {
        bool inside = p.i[2] >= low && p.i[2] < high;
        run = inside ? ts_min64(high - p.i[2], end - begin) : 1;
        if (inside)
            gather_inside(w, to, &p, run);
        else
            gather_window(w, to, &p);
    }
}

/** Sets `bytes` bytes, which are whole elements, to 0. Most runs are short. */
TS_INLINE void clear_run(char *to, int64_t bytes)
{
    static const char zeros[TS_FILL_LINE];
    if (bytes > 0)
        ts_fill_bytes(to, bytes, zeros);
}

/** A tap of a line of windows along the last dim: it is inside the image at windows low to high -
 *  1, and reads element `offset` at window 0. */
typedef struct line_tap {
    int64_t low, high, offset;
} line_tap;

/** The tap j of windows first to first + run - 1 of a line. */
static line_tap line_tap_of(const windows *w, int64_t j, int64_t first, int64_t run)
{
    const axis *a = &w->axis[2];
    line_tap t = {.offset = first * a->move + a->base + j * a->shift};
    inside_of(t.offset, a->move, w->from.size[2], run, &t.low, &t.high);
    return t;
}

/** Gathers one tap of one channel for `run` windows along the last dim. */
TS_INLINE void gather_run(const windows *w, char *to, const line_tap *t, const char *channel,
                          int64_t run)
{
    int64_t item = w->item, step = w->axis[2].move * w->from.at[2];
    clear_run(to, t->low * item);
    clear_run(to + t->high * item, (run - t->high) * item);
    if (t->high > t->low)
        copy_run(to + t->low * item, 1,
                 channel + (t->offset * w->from.at[2] + t->low * step) * item, step,
                 t->high - t->low, w->item);
}

/** Gathers rows begin to end - 1 of the matrix (channels, taps, count). */
static void gather_by_tap(void *ctx, int64_t begin, int64_t end)
{
    const windows *w = ctx;
    const axis *a = w->axis;
    for (int64_t row = begin; row < end; row++) {
        int64_t j[3], left = row, run;
        for (int d = 2; d >= 0; d--) {
            j[d] = left % a[d].taps;
            left /= a[d].taps;
        }
        char *to = w->to + row * w->row * w->item;
        window_index p = window_index_of(a, w->first);
        const line_tap whole = line_tap_of(w, j[2], 0, a[2].count);
        for (int64_t done = 0; done < w->count; done += run, advance_window(&p, a, run)) {
            run = ts_min64(a[2].count - p.i[2], w->count - done);
            const char *at = line_at(w, &p, j[0], j[1]);
            line_tap t = whole;
            if (run < a[2].count)
                t = line_tap_of(w, j[2], p.i[2], run);
            if (at)
                gather_run(w, to, &t, at + left * w->from.c * w->item, run);
            else
                clear_run(to, run * w->item);
            to += run * w->item;
        }
    }
}

/** True if each window is one pixel, and the windows are all pixels of the image in its order. */
static bool windows_are_pixels(const windows *w)
{
    for (int d = 0; d < 3; d++) {
        const axis *a = &w->axis[d];
        if (a->taps != 1 || a->count != w->from.size[d] || a->base ||
            (a->move != 1 && a->count != 1) || a->step != 1)
            return false;
    }
    return true;
}

/** Gathers windows first to first + count - 1 at w->to, on the thread pool. Sets w->first, count
 *  and row. */
static void gather(windows *w, int64_t first, int64_t count)
{
    const axis *a = w->axis;
    int64_t taps = a[0].taps * a[1].taps * a[2].taps;
    w->first = first;
    w->count = w->row = count;
    if (!taps || !w->channels || !count)
        return;
    if (w->by_window)
        ts_parallel_for(count, 1 + 16384 / (taps * w->channels + 1), gather_by_window, w);
    else
        ts_parallel_for(taps * w->channels, 1 + 16384 / (count + 1), gather_by_tap, w);
}

/** A copy between an image and a matrix with one element per channel and position, for positions
 *  first to first + count - 1. */
typedef struct strips {
    image image;
    const axis *axis;
    int64_t channels, first, count;
    int64_t channel_step, position_step; /* strides of the matrix in elements; if position_step is
                                            1, channel_step is in units of `count` elements */
    int item;                            /* bytes of an element */
    char *matrix;
    bool back; /* true: from the matrix into the image */
} strips;

/** Copies positions s->first + begin to s->first + end - 1. */
static void copy_strips(void *ctx, int64_t begin, int64_t end)
{
    const strips *s = ctx;
    const axis *a = s->axis;
    const image *v = &s->image;
    int64_t run, step = a[2].step * v->at[2];
    int64_t channel = s->position_step == 1 ? s->channel_step * s->count : s->channel_step;
    window_index p = window_index_of(a, s->first + begin);
    for (int64_t q = begin; q < end; q += run, advance_window(&p, a, run)) {
        run = ts_min64(a[2].count - p.i[2], end - q);
        char *at = v->data + p.n * v->n * s->item, *m = s->matrix + q * s->position_step * s->item;
        for (int d = 0; d < 3; d++)
            at += (a[d].start + p.i[d] * a[d].step) * v->at[d] * s->item;
        block image = {at, v->c, step}, matrix = {m, channel, s->position_step};
        copy_block(s->back ? image : matrix, s->back ? matrix : image, s->channels, run, s->item);
    }
}

/** Copies positions first to first + count - 1 of `all` on the thread pool; back: as in strips. */
static void copy_matrix(const strips *all, int64_t first, int64_t count, bool back)
{
    strips s = *all;
    if (!s.channels || !count)
        return;
    s.first = first;
    s.count = count;
    s.back = back;
    ts_parallel_for(count, 1 + 16384 / (s.channels + 1), copy_strips, &s);
}

/** A copy of an image to one with other strides. */
typedef struct image_copy {
    image from, to;
    int64_t channels;
    int64_t line, parts; /* line: number of pixels at equal distances; parts: tasks per line */
    int item;            /* bytes of an element */
} image_copy;

enum { COPIED = 256 }; /* pixels of a task */

/** Offset of pixel i of image n in elements. */
static int64_t pixel_of(const image *v, int64_t n, int64_t i)
{
    return n * v->n + i / v->size[2] / v->size[1] * v->at[0] +
           i / v->size[2] % v->size[1] * v->at[1] + i % v->size[2] * v->at[2];
}

static void copy_parts(void *ctx, int64_t begin, int64_t end)
{
    const image_copy *t = ctx;
    const image *from = &t->from, *to = &t->to;
    int64_t each = from->size[0] * from->size[1] * from->size[2];
    for (int64_t q = begin; q < end; q++) {
        int64_t pixel = q % t->parts * COPIED, n = ts_min64(COPIED, t->line - pixel);
        int64_t line = q / t->parts * t->line, i = line % each + pixel;
        char *at = to->data + pixel_of(to, line / each, i) * t->item;
        copy_block((block){at, to->c, to->at[2]},
                   (block){from->data + pixel_of(from, line / each, i) * t->item, from->c,
                           from->at[2]},
                   t->channels, n, t->item);
    }
}

/** True if all pixels of the image are at equal distances. */
static bool has_even_pixels(const image *v)
{
    const int64_t *n = v->size;
    return (n[1] == 1 || v->at[1] == n[2] * v->at[2]) &&
           (n[0] == 1 || v->at[0] == n[1] * n[2] * v->at[2]);
}

/** Copies `from` to `to`, an image of the same sizes, on the thread pool. */
static void copy_image(const image *from, const image *to, int64_t batch, int64_t channels,
                       int item)
{
    int64_t pixels = from->size[0] * from->size[1] * from->size[2];
    image_copy t = {.from = *from, .to = *to, .channels = channels, .item = item,
                    .line = has_even_pixels(from) && has_even_pixels(to) ? pixels : from->size[2]};
    t.parts = ts_ceil_div(t.line, COPIED);
    if (pixels && channels)
        ts_parallel_for(batch * (pixels / t.line) * t.parts, 1 + 16384 / (COPIED * channels),
                        copy_parts, &t);
}

/** Describes dense memory at `to` for an image of v's sizes, with channels innermost (last) or
 *  before the spatial dims. */
static image dense_image(const image *v, int64_t channels, bool last, char *to)
{
    int64_t pixel = last ? channels : 1, line = v->size[2] * pixel, plane = v->size[1] * line;
    return (image){.data = to, .n = v->size[0] * v->size[1] * v->size[2] * channels,
                   .c = last ? 1 : v->size[0] * plane, .at = {plane, line, pixel},
                   .size = {v->size[0], v->size[1], v->size[2]}};
}

/** Copies the image v to memory at `to`, with channels innermost, and returns the copy. If `to` is
 *  NULL, only describes it. */
static image interleave(const image *v, int64_t batch, int64_t channels, char *to, int item)
{
    image made = dense_image(v, channels, true, to);
    if (to)
        copy_image(v, &made, batch, channels, item);
    return made;
}

/** Address of channel 0 of the image at position `first` of the batch. */
static char *position_at(const image *v, const axis *a, int64_t first, int item)
{
    window_index p = window_index_of(a, first);
    char *at = v->data + p.n * v->n * item;
    for (int d = 0; d < 3; d++)
        at += (a[d].start + p.i[d] * a[d].step) * v->at[d] * item;
    return at;
}

/** Returns the number of consecutive positions that are at equal distances in memory: all positions
 *  of the batch, those of one image, or 0. Sets *step to the distance in elements, 1 if there is
 *  one position. */
static int64_t even_positions(const image *v, const axis *a, int64_t batch, int64_t *step)
{
    const int64_t counts[4] = {batch, a[0].count, a[1].count, a[2].count};
    const int64_t steps[4] = {v->n, a[0].step * v->at[0], a[1].step * v->at[1],
                              a[2].step * v->at[2]};
    int64_t positions = 1;
    *step = 1;
    for (int d = 3; d >= 0; d--) {
        if (counts[d] == 1)
            continue;
        if (positions == 1)
            *step = steps[d];
        else if (steps[d] != *step * positions)
            return d == 0 ? positions : 0;
        positions *= counts[d];
    }
    return positions;
}

/* ------------------------------------------------------------------------------ weights ---- */

/** A part of the weight tensor or of its gradient, mostly that of one group, and its copy as a
 *  dense matrix. */
typedef struct weights {
    char *data, *matrix;
    int64_t row, column, at[3]; /* strides of the tensor in elements: row, column, spatial dims */
    int64_t rows, columns;      /* channels of the target and of the source image, per group */
    const axis *axis;
    bool by_window, /* the matrix is (rows, taps, columns), else (rows, columns, taps) */
        back;       /* copy from the matrix to the tensor, else from the tensor */
    int item;       /* bytes of an element */
} weights;

enum { WEIGHT_ROWS = 16 }; /* rows per task */

/** Offset of tap t in the tensor, in elements. */
static int64_t tap_offset(const weights *w, int64_t t)
{
    const axis *a = w->axis;
    const int64_t j[3] = {t / a[2].taps / a[1].taps, t / a[2].taps % a[1].taps, t % a[2].taps};
    int64_t offset = 0;
    for (int d = 0; d < 3; d++)
        offset += (a[d].first + j[d] * a[d].every) * w->at[d];
    return offset;
}

/* Copies the rows of tasks begin to end - 1. The inner loop runs along rows or columns, whichever
 * have the smaller stride in the tensor. */
static void copy_weights(void *ctx, int64_t begin, int64_t end)
{
    const weights *w = ctx;
    const axis *a = w->axis;
    int64_t taps = a[0].taps * a[1].taps * a[2].taps, last = ts_min64(end * WEIGHT_ROWS, w->rows);
    int64_t tap_step = w->by_window ? w->columns : 1, column_step = w->by_window ? 1 : taps;
    bool by_column = w->column > w->row;
    bool transposed = w->row == 1 && column_step == 1;
    for (int64_t first = begin * WEIGHT_ROWS; first < last; first += WEIGHT_ROWS) {
        int64_t rows = ts_min64(WEIGHT_ROWS, last - first);
        for (int64_t t = 0; transposed && t < taps; t++) {
            const block matrix = {w->matrix + (first * taps + t) * w->columns * w->item,
                                  taps * w->columns, 1},
                        part = {w->data + (first + tap_offset(w, t)) * w->item, 1,
                                w->column};
            copy_block(w->back ? part : matrix, w->back ? matrix : part, rows, w->columns,
                       w->item);
        }
        if (transposed)
            continue;
        int64_t outer = by_column ? w->columns : rows, inner = by_column ? rows : w->columns;
        int64_t step = by_column ? w->row : w->column,
                to_step = by_column ? taps * w->columns : column_step;
        for (int64_t k = 0; k < outer; k++) {
            int64_t row = by_column ? first : first + k, column = by_column ? k : 0;
            char *m = w->matrix + (row * taps * w->columns + column * column_step) * w->item;
            char *at = w->data + (row * w->row + column * w->column) * w->item;
            for (int64_t t = 0; t < taps; t++, m += tap_step * w->item) {
                int64_t offset = tap_offset(w, t);
                if (w->back)
                    copy_run(at + offset * w->item, step, m, to_step, inner, w->item);
                else
                    copy_run(m, to_step, at + offset * w->item, step, inner, w->item);
            }
        }
    }
}

/** If the tensor's memory has the layout of the matrix, sets w->matrix to this memory and returns
 *  true. */
static bool weights_in_place(weights *w)
{
    const axis *a = w->axis;
    const int64_t counts[4] = {a[2].taps, a[1].taps, a[0].taps, w->columns};
    const int64_t steps[4] = {w->at[2], w->at[1], w->at[0], w->column};
    int64_t expected = 1;
    for (int i = 0; i < 4; i++) { /* from the inner dim on */
        int k = w->by_window ? (i + 3) % 4 : i;
        if (counts[k] > 1 && steps[k] != expected)
            return false;
        expected *= counts[k];
    }
    for (int d = 0; d < 3; d++)
        if (a[d].every != 1 && a[d].taps > 1)
            return false;
    if (w->rows > 1 && w->row != expected)
        return false;
    w->matrix = w->data;
    for (int d = 0; d < 3; d++)
        w->matrix += a[d].first * w->at[d] * w->item;
    return true;
}

/** Copies the tensor to the matrix, or with `back` the matrix to the tensor, on the thread pool. */
static void move_weights(weights *w, bool back)
{
    int64_t each = w->axis[0].taps * w->axis[1].taps * w->axis[2].taps * w->columns;
    w->back = back;
    ts_parallel_for(ts_ceil_div(w->rows, WEIGHT_ROWS), 1 + 8192 / (WEIGHT_ROWS * each + 1),
                    copy_weights, w);
}

#endif
