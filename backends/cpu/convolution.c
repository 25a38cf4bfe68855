/**
 * @file convolution.c  Convolutions, mostly as products of matrices.
 *
 * The result y and both gradients are products of a matrix of windows. Windows are read in place if
 * their elements form a matrix in memory, else gathered chunk by chunk.
 *
 *   y                   windows of x times the weight
 *   gradient of x       windows of y times the weight. A window holds the elements of y that an
 *                       element of x contributes to. Positions of x with the same remainder modulo
 *                       the stride have windows of the same form: one product per remainder, so no
 *                       element is written twice
 *   gradient of weight  windows of x times y, added up over chunks
 *
 * The method and the division into chunks depend on shapes, layouts, dtype and instruction set, so
 * results do not depend on the number of threads:
 *
 *   onednn_calls.h      f32 calls for which oneDNN is installed and faster
 *   one_tap.h           bf16, and gradients of bf16 and f16, with windows of one element
 *   depthwise.h         depthwise calls over channels-last images
 *   direct.h            few channels: sums without matrices
 *   columns.h           gradient of x if windows of x do not overlap, x has few channels, or
 *                       windows of y are mostly padding
 *   window_tiles.h      products of f32 or bf16 whose windows are gathered tile by tile
 *   chunks.h            other products
 */
// SPDX-License-Identifier: MIT
#include "backends/cpu/loops.h"
#include "backends/cpu/columns.h"
#include "backends/cpu/depthwise.h"
#include "backends/cpu/direct.h"
#include "backends/cpu/isa.h"
#include "backends/cpu/onednn_calls.h"
#include "backends/cpu/one_tap.h"
#include "backends/cpu/window_tiles.h"
#include "core/alloc.h"
#include "include/tessera/ops.h"
#include "ops/kernel.h"

#define WEIGHT_CHUNK (1 << 22) /* like CHUNK, for the gradient of the weight */
#define INTERLEAVED_ROWS 16 /* least channels of results whose source is copied for tiles */
#define WEIGHT_PER_IMAGE 16 /* most elements of a small weight per element of the image */
#define SHORT_LINE 4        /* most elements of an image's line per element of a window's line */
#define DIRECT_CHANNELS 16  /* most channels of a small group, which is computed without matrices */
#define DIRECT_FEW 4        /* most channels of one image in other calls without matrices */
#define DIRECT_PLANE 16     /* most elements of padded planes in slabs per pixel of both images */
#define LAST_CHANNELS 8     /* least channels of images that are copied to channels-last */
#define SMALL_PLANE 64      /* most pixels of contiguous images that depthwise calls copy */
#define BATCHED_PLANE 32    /* most pixels of images that calls without groups copy */
#define BATCHED_IMAGES 8    /* least images of a batch that calls without groups copy */

static int64_t pixels_of(const image *v) { return v->size[0] * v->size[1] * v->size[2]; }

/* ----------------------------------------------------------------------------- products ---- */

/** True if a weight of `weight` elements is at most WEIGHT_PER_IMAGE times as large as the image.
 *  For a larger weight, copying a contiguous image and reordering the weight costs more than it
 *  saves. */
static bool is_small_weight(const job *b, const image *v, int64_t channels, int64_t weight)
{
    int64_t elements = b->c.batch * channels * v->size[0] * v->size[1] * v->size[2];
    return weight <= WEIGHT_PER_IMAGE * elements;
}

/** True if the product of the weight (rows, k) and the windows of v uses window_tiles.h. Depends
 *  only on dtype, shape and planned layout. */
static bool suits_tiles(const job *b, bool last, const image *v, int64_t rows, int64_t channels,
                        int64_t k)
{
    if (VEC_ISA == VEC_IS_baseline || b->dtype != TS_F32 || k < 8)
        return false;
    return last ? rows >= 4
                : channels >= 2 && rows >= INTERLEAVED_ROWS &&
                      is_small_weight(b, v, channels, rows * k);
}

/** True if a contiguous image is copied to channels-last, because a line of a window (taps times
 *  channels) is long compared with a line of positions. */
static bool suits_windows(const job *b, const axis *a, const image *v, int64_t rows,
                          int64_t channels)
{
    int64_t taps = a[0].taps * a[1].taps * a[2].taps;
    return taps > 1 && SHORT_LINE * channels * a[2].taps >= a[2].count &&
           is_small_weight(b, v, channels, rows * channels * taps);
}

/** Returns v if its channels are innermost, else a copy in scratch whose channels are. */
static image interleaved(const job *b, const image *v, int64_t channels, scratch *s)
{
    int64_t elements = b->c.batch * channels * v->size[0] * v->size[1] * v->size[2];
    return v->c == 1 ? *v
                     : interleave(v, b->c.batch, channels, take(s, elements * b->item), b->item);
}

/** The chunks of one group of y, or of x: products of windows and weights. */
typedef struct chunk_job {
    const job *b;
    const axis *a;
    windows w;             /* matrix: memory of a chunk's windows, unless `in_place` */
    strips out;            /* matrix: memory of a chunk's results, unless `direct` */
    cuts chunks;
    const char *matrix, *bias; /* weight (rows, k); bias of the rows, or NULL */
    int64_t rows, k;       /* result channels; elements of a window */
    int64_t pixel, step;   /* distances of positions in the source (if in_place) and the result */
    bool last;             /* channels of the result are innermost: windows times weights */
    bool in_place, direct; /* windows are read from, and results written to, the image itself */
    int64_t workers, worker_bytes; /* tasks that run chunks at the same time; scratch of each */
    char *scratch;
} chunk_job;

/** Computes the chunk at position `first`; without memory, only its scratch size. */
static void make_chunk(const chunk_job *p, int64_t first, scratch *s)
{
    const job *b = p->b;
    int64_t count = chunk_at(&p->chunks, first), k = p->k, rows = p->rows, item = b->item;
    const image *from = &p->w.from, *to = &p->out.image;
    bool in_place = p->in_place, direct = p->direct, by_window = p->w.by_window;
    ts_gemm g = {.k = k, .c = direct ? position_at(to, p->a, first, b->item) : p->out.matrix};
    const char *matrix = in_place ? position_at(from, p->a, first, b->item) : p->w.to;
    int64_t window_step = !by_window ? 1 : in_place ? p->pixel : k;
    int64_t tap_step = by_window ? 1 : in_place ? from->c : count;
    if (p->last) { /* windows times weights */
        g.m = count;
        g.n = rows;
        g.a = matrix;
        g.a_row = window_step;
        g.a_column = tap_step;
        g.b = p->matrix;
        g.b_row = 1;
        g.b_column = k;
        g.c_row = direct ? p->step : rows;
        g.bias = p->bias;
    } else { /* weights times windows */
        g.m = rows;
        g.n = count;
        g.a = p->matrix;
        g.a_row = k;
        g.a_column = 1;
        g.b = matrix;
        g.b_row = tap_step;
        g.b_column = window_step;
        g.c_row = direct ? to->c : count;
        g.add = p->bias != NULL;
    }
    if (s->allocated) {
        windows w = p->w;
        if (!in_place)
            gather(&w, first, count);
        for (int64_t i = 0; g.add && i < rows; i++)
            copy_run((char *)g.c + i * g.c_row * item, 1, p->bias + i * item, 0, count, b->item);
    }
    multiply(&g, b->dtype, s);
    if (s->allocated && !direct)
        copy_matrix(&p->out, first, count, true);
}

/** Runs workers begin to end - 1, each of which computes a range of chunks. */
static void run_chunks(void *ctx, int64_t begin, int64_t end)
{
    const chunk_job *p = ctx;
    const cuts *c = &p->chunks;
    int64_t each = ts_ceil_div(c->whole, c->most), all = c->all / c->whole * each;
    for (int64_t worker = begin; worker < end; worker++)
        for (int64_t i = all * worker / p->workers; i < all * (worker + 1) / p->workers; i++) {
            scratch s = {.allocated = true, .base = p->scratch + worker * p->worker_bytes};
            make_chunk(p, i / each * c->whole + i % each * c->most, &s);
        }
}

/** Computes all chunks. If products read and write the images in place and each thread gets equally
 *  many chunks, each worker computes its own chunks. Otherwise the threads share each product, and
 *  wait for each other at its end. */
static void make_chunks(chunk_job *p, scratch *s)
{
    const cuts *c = &p->chunks;
    int64_t all = c->all / c->whole * ts_ceil_div(c->whole, c->most), threads = ts_num_threads();
    if (p->last || !p->in_place || !p->direct || threads == 1 || all % threads) {
        for (int64_t first = 0; first < c->all; first += chunk_at(c, first))
            make_chunk(p, first, s);
        return;
    }
    scratch one = {0};
    make_chunk(p, 0, &one);
    p->workers = threads;
    p->worker_bytes = (int64_t)one.most;
    p->scratch = take(s, p->workers * p->worker_bytes);
    double work = (double)c->all * (double)p->rows * (double)p->k;
    if (s->allocated)
        ts_parallel_for(p->workers, work > 1 << 18 ? 1 : p->workers, run_chunks, p);
}

/** Computes one group of y, or (to_x) the elements of x with windows of the form `a`. */
static void make_images(const job *b, int64_t group, const axis *a, bool to_x, scratch *s)
{
    const ts_convolution *c = &b->c;
    image from = to_x ? b->y : b->x, to = to_x ? b->x : b->y;
    int64_t rows = (to_x ? c->channels : c->features) / c->groups;
    int64_t channels = (to_x ? c->features : c->channels) / c->groups;
    int64_t k = a[0].taps * a[1].taps * a[2].taps * channels, step;
    size_t used = s->used;
    from.data += group * channels * from.c * b->item;
    to.data += group * rows * to.c * b->item;
    windows w = {.from = from, .axis = {a[0], a[1], a[2]}, .channels = channels,
                 .item = b->item, .by_window = from.c == 1};
    /* contiguous planes of large images are read in place, one image after the other */
    bool planes = from.c != 1 && windows_are_pixels(&w) && pixels_of(&from) >= SMALL_IMAGE;
    bool last = b->last || (rows == 1 && !planes);
    cuts chunks = cut(a, c->batch, last, CHUNK / ts_max64(k, 1));
    if (!chunks.all || !rows)
        return;
    int64_t pixel = 0;
    bool in_place = windows_are_pixels(&w) && is_matrix(&from, a, c->batch, channels, w.by_window,
                                                        &chunks, &pixel);
    bool half = b->dtype == TS_BF16; /* suits_pairs(): only tiles multiply bf16 */
    bool tiled = half || (!in_place && suits_tiles(b, last, &from, rows, channels, k));
    if ((tiled && (half || !last)) ||
        (!in_place && from.c != 1 && suits_windows(b, a, &from, rows, channels))) {
        w.from = interleaved(b, &from, channels, s);
        w.by_window = true;
    }
    weights m = weights_of(b, group, a, to_x, w.by_window);
    if (!weights_in_place(&m)) {
        m.matrix = take(s, rows * k * b->item);
        if (s->allocated)
            move_weights(&m, false);
    }
    bool direct = is_matrix(&to, a, c->batch, rows, last, &chunks, &step);
    if (tiled) {
        direct = direct && last;
        tiles t = {.w = w, .to = to, .weight = m.matrix, .rows = rows, .depth = k,
                   .bias = b->bias ? (char *)b->bias->data + group * rows * b->item : NULL,
                   .all = chunks.all, .step = step, .direct = direct, .item = b->item};
        t.packed = take(s, plan_tiles(&t));
        t.scratch = take(s, t.workers * t.worker_bytes);
        if (s->allocated)
            run_tiles(&t);
        s->used = used;
        return;
    }
    w.to = in_place ? NULL : take(s, chunks.most * k * b->item);
    chunk_job p = {
        .b = b, .a = a, .w = w, .chunks = chunks, .matrix = m.matrix, .rows = rows, .k = k,
        .bias = b->bias ? (const char *)b->bias->data + group * rows * b->item : NULL,
        .pixel = pixel, .step = step, .last = last, .in_place = in_place, .direct = direct,
        .out = {.image = to, .axis = a, .channels = rows, .item = b->item,
                .position_step = last ? rows : 1, .channel_step = 1,
                .matrix = direct ? NULL : take(s, chunks.most * rows * b->item)}};
    make_chunks(&p, s);
    s->used = used;
}

/** Computes the gradient of one group's weight: the channels of y times the windows of x. */
static void make_weight(const job *b, int64_t group, const axis *a, scratch *s)
{
    const ts_convolution *c = &b->c;
    image x = b->x, y = b->y;
    int64_t rows = c->features / c->groups, channels = c->channels / c->groups;
    int64_t k = a[0].taps * a[1].taps * a[2].taps * channels, step;
    size_t used = s->used;
    if (!k)
        return;
    x.data += group * channels * x.c * b->item;
    y.data += group * rows * y.c * b->item;
    if (k > channels && suits_tiles(b, false, &x, rows, channels, k)) {
        x = interleaved(b, &x, channels, s);
        y = interleaved(b, &y, rows, s);
    } else if (x.c != 1 && suits_windows(b, a, &x, rows, channels)) {
        x = interleaved(b, &x, channels, s);
    }
    bool last = y.c == 1 || rows == 1;
    cuts chunks = cut(a, c->batch, last, WEIGHT_CHUNK / k);
    windows w = {.from = x, .axis = {a[0], a[1], a[2]}, .channels = channels, .item = b->item,
                 .by_window = x.c == 1};
    weights m = weights_of(b, group, a, false, w.by_window);
    bool weight_in_place = weights_in_place(&m);
    int64_t pixel;
    bool in_place = windows_are_pixels(&w) && is_matrix(&x, a, c->batch, channels, w.by_window,
                                                        &chunks, &pixel);
    if (!weight_in_place)
        m.matrix = take(s, rows * k * b->item);
    bool direct = is_matrix(&y, a, c->batch, rows, last, &chunks, &step);
    w.to = in_place ? NULL : take(s, chunks.most * k * b->item);
    strips in = {.image = y, .axis = a, .channels = rows, .item = b->item,
                 .position_step = last ? rows : 1, .channel_step = 1,
                 .matrix = direct ? NULL : take(s, chunks.most * rows * b->item)};
    ts_gemm g = {.m = rows, .n = k, .c = m.matrix, .c_row = k};
    if (!chunks.all) /* k = 0: writes zeros */
        multiply(&g, b->dtype, s);
    for (int64_t first = 0; first < chunks.all; first += g.k) {
        g.k = chunk_at(&chunks, first);
        g.a = direct ? position_at(&y, a, first, b->item) : in.matrix;
        g.a_row = last ? 1 : direct ? y.c : g.k;
        g.a_column = !last ? 1 : direct ? step : rows;
        g.b = in_place ? position_at(&x, a, first, b->item) : w.to;
        g.b_row = !w.by_window ? 1 : in_place ? pixel : k;
        g.b_column = w.by_window ? 1 : in_place ? x.c : g.k;
        g.add = first > 0;
        if (s->allocated) {
            if (!in_place)
                gather(&w, first, g.k);
            if (!direct)
                copy_matrix(&in, first, g.k, false);
        }
        multiply(&g, b->dtype, s);
    }
    if (s->allocated && !weight_in_place)
        move_weights(&m, true);
    s->used = used;
}

/* ---------------------------------------------------------------------------- depthwise ---- */

/** True for a depthwise convolution: each group has one channel of x and one of y, so matrix
 *  products would have one column. */
static bool is_depthwise(const ts_convolution *c)
{
    return c->groups > 1 && c->channels == c->groups && c->features == c->groups;
}

/** True if channels are innermost in both images. */
static bool are_last(const image *a, const image *b) { return a->c == 1 && b->c == 1; }

static depthwise depthwise_of(const job *b, const axis *a, image from, image to)
{
    return (depthwise){.w = {.from = from, .item = b->item,
                             .axis = {forwards(a[0]), forwards(a[1]), forwards(a[2])}},
                       .to = to, .channels = b->c.groups, .batch = b->c.batch,
                       .taps = a[0].taps * a[1].taps * a[2].taps};
}

/** All channels of the weight, or of its gradient, as a matrix (taps, channels). */
static weights depthwise_weights(const job *b, const depthwise *d)
{
    weights w = weights_of(b, 0, d->w.axis, false, true);
    w.columns = b->c.groups;
    w.column = b->weight->strides[0];
    w.rows = 1;
    return w;
}

/** Computes y, or (to_x) the elements of x with windows of the form `a`, channel by channel. */
static void make_depthwise(const job *b, const axis *a, bool to_x, scratch *s)
{
    depthwise d = depthwise_of(b, a, to_x ? b->y : b->x, to_x ? b->x : b->y);
    weights w = depthwise_weights(b, &d);
    size_t used = s->used;
    int64_t lines = d.batch * a[0].count * a[1].count;
    d.weight = w.matrix = take(s, d.taps * d.channels * b->item);
    d.bias = b->bias ? b->bias->data : NULL;
    s->used = used;
    if (!s->allocated || !lines || !a[2].count)
        return;
    move_weights(&w, false);
    ts_parallel_for(lines, 1 + 16384 / (d.taps * d.channels * a[2].count + 1),
                    b->dtype == TS_F64 ? sum_lines_f64 : sum_lines_f32, &d);
}

/** Computes the gradient of the weight of a depthwise convolution. */
static void grad_weight_depthwise(const job *b, const axis *a, scratch *s)
{
    depthwise d = depthwise_of(b, a, b->x, b->y);
    weights w = depthwise_weights(b, &d);
    size_t used = s->used;
    d.weight = w.matrix = take(s, d.taps * d.channels * b->item);
    s->used = used;
    if (!s->allocated)
        return;
    bool wide = b->dtype == TS_F64;
    int64_t each = a[0].count * a[1].count * a[2].count * d.batch * d.taps,
            lanes = wide ? VD_LANES : VF_LANES;
    ts_parallel_for(ts_ceil_div(d.channels, lanes), 1 + 16384 / (lanes * each + 1),
                    wide ? grad_weight_channels_f64 : grad_weight_channels_f32, &d);
    move_weights(&w, true);
}

/* ------------------------------------------------------------------------------- direct ---- */

/** True if the padded planes of slabs are not much larger than the images. With a wide dilation
 *  they are. */
static bool fits_slabs(const ts_convolution *c, const axis *a)
{
    int64_t plane = 1, inputs = 1, outputs = 1;
    for (int d = 0; d < 3; d++) {
        plane *= direct_phases(&a[d]) * direct_extent(&a[d], a[d].count);
        inputs *= c->size[d];
        outputs *= c->y_size[d];
    }
    return plane <= DIRECT_PLANE * (inputs + outputs) + DIRECT_SLAB;
}

/** True if a group has too few channels for products of matrices. */
static bool has_small_groups(const ts_convolution *c, const axis *a)
{
    return c->groups > 1 && c->features / c->groups <= DIRECT_CHANNELS &&
           c->channels / c->groups <= DIRECT_CHANNELS && fits_slabs(c, a);
}

/** True if y, or (to_x) the elements of x of a form, are computed as sums over taps: for small
 *  groups, for few result channels, and for a contiguous result of few source channels. */
static bool is_direct(const job *b, const axis *a, bool to_x)
{
    const ts_convolution *c = &b->c;
    int64_t x = c->channels / c->groups, y = c->features / c->groups, from = to_x ? y : x,
            to = to_x ? x : y;
    bool few = a[0].taps * a[1].taps * a[2].taps > 1 &&
               (to <= DIRECT_FEW || (from <= DIRECT_FEW && !b->last));
    return has_small_groups(c, a) || (few && fits_slabs(c, a));
}

/** Copies the weights of all groups from or to the matrix (groups, rows, columns, taps). */
static void move_groups(const job *b, const direct *t, bool to_x, bool back)
{
    bool together = !to_x || is_depthwise(&b->c);
    for (int64_t g = 0; g < (together ? 1 : t->groups); g++) {
        weights w = weights_of(b, g, t->axis, to_x && !together, false);
        if (together)
            w.rows *= t->groups;
        w.matrix = t->weight + g * t->rows * t->depth * b->item;
        move_weights(&w, back);
    }
}

/** Computes sums for the windows `a`: y, (to_x) x, or (grad_weight) the gradient of the weight. */
static void make_direct(const job *b, const axis *a, bool to_x, bool grad_weight, scratch *s)
{
    const ts_convolution *c = &b->c;
    bool wide = b->dtype == TS_F64;
    direct t = {.from = to_x ? b->y : b->x, .to = to_x ? b->x : b->y, .batch = c->batch,
                .axis = {forwards(a[0]), forwards(a[1]), forwards(a[2])}, .groups = c->groups,
                .rows = (to_x ? c->channels : c->features) / c->groups,
                .channels = (to_x ? c->features : c->channels) / c->groups,
                .bias = b->bias ? b->bias->data : NULL, .item = b->item};
    int64_t taps = a[0].taps * a[1].taps * a[2].taps,
            positions = a[0].count * a[1].count * a[2].count;
    t.depth = t.channels * taps;
    if (!t.rows || (grad_weight ? !t.depth : !positions || !t.batch))
        return;
    size_t used = s->used;
    t.weight = take(s, t.groups * t.rows * t.depth * b->item);
    t.offset = (int64_t *)(void *)take(s, t.depth * (int64_t)sizeof(int64_t));
    if (positions) {
        plan_direct(&t, grad_weight);
        t.workers = ts_min64(ts_num_threads(), t.groups * (grad_weight ? 1 : t.batch * t.parts));
        t.scratch = take(s, t.workers * t.scratch_each * b->item);
    }
    s->used = used;
    if (!s->allocated)
        return;
    if (!positions || !t.batch) {
        memset(t.weight, 0, (size_t)(t.groups * t.rows * t.depth * b->item));
        move_groups(b, &t, to_x, true);
        return;
    }
    set_offsets(&t);
    if (!grad_weight)
        move_groups(b, &t, to_x, false);
    double work = (double)(t.batch * positions) * (double)(t.groups * t.rows * t.depth);
    ts_parallel_for(t.workers, work > 1 << 16 ? 1 : t.workers,
                    grad_weight ? wide ? grad_weight_parts_f64 : grad_weight_parts_f32
                    : wide ? sum_parts_f64 : sum_parts_f32, &t);
    if (grad_weight)
        move_groups(b, &t, to_x, true);
}

/* ------------------------------------------------------------------------------ kernels ---- */

/** Computes y, or (to_x) the elements of x of a form, without products of matrices. Returns
 *  false if the call needs products. */
static bool make_without_products(const job *b, const axis *a, bool to_x, scratch *s)
{
    bool deep = is_depthwise(&b->c) && are_last(&b->x, &b->y), plain = is_direct(b, a, to_x);
    if (deep)
        make_depthwise(b, a, to_x, s);
    else if (plain)
        make_direct(b, a, to_x, false, s);
    return deep || plain;
}

static void make_y(const job *b, scratch *s)
{
    const ts_convolution *c = &b->c;
    axis a[3];
    ts_kernel_windows(b->frame, -1, a);
    if (make_without_products(b, a, false, s))
        return;
    for (int64_t group = 0; group < c->groups; group++)
        make_images(b, group, a, false, s);
}

static void make_x(const job *b, scratch *s)
{
    const ts_convolution *c = &b->c;
    axis a[3];
    int64_t forms = ts_kernel_window_forms(b->frame);
    if ((has_patches(c) || suits_columns(b)) && !is_depthwise(c)) {
        for (int64_t group = 0; group < c->groups; group++)
            make_columns(b, group, s);
        return;
    }
    for (int64_t form = 0; form < forms; form++) {
        ts_kernel_windows(b->frame, form, a);
        if (make_without_products(b, a, true, s))
            continue;
        for (int64_t group = 0; group < c->groups; group++)
            make_images(b, group, a, true, s);
    }
}

static void make_w(const job *b, scratch *s)
{
    const ts_convolution *c = &b->c;
    axis a[3];
    ts_kernel_windows(b->frame, -1, a);
    if (is_depthwise(c) && are_last(&b->x, &b->y)) {
        grad_weight_depthwise(b, a, s);
        return;
    }
    if (has_small_groups(c, a)) {
        make_direct(b, a, false, true, s);
        return;
    }
    for (int64_t group = 0; group < c->groups; group++)
        make_weight(b, group, a, s);
}

/* ------------------------------------------------------------------------------ layouts ---- */

typedef enum conv_result { RESULT_X, RESULT_Y, RESULT_WEIGHT } conv_result;
/** Computes a result of a job; without memory, only its scratch size. */
typedef void (*maker)(const job *b, scratch *s);

/** True if images are copied to one layout. Sets *last: channels are innermost in it. Depthwise
 *  loops run along channels if an image is channels-last or has few pixels; sums of
 *  small groups read planes. Small contiguous images would be one product each. Depends only on
 *  shapes and layouts. */
static bool wants_layout(const job *b, bool *last)
{
    const ts_convolution *c = &b->c;
    axis a[3];
    bool both = are_last(&b->x, &b->y), any = b->x.c == 1 || b->y.c == 1;
    int64_t pixels = ts_max64(pixels_of(&b->x), pixels_of(&b->y));
    if (is_depthwise(c)) {
        *last = c->groups >= LAST_CHANNELS;
        return *last ? !both && (any || pixels <= SMALL_PLANE) : any && !both;
    }
    if (c->groups > 1) {
        ts_kernel_windows(b->frame, -1, a);
        *last = false;
        return any && has_small_groups(c, a);
    }
    *last = true;
    return !both && c->batch >= BATCHED_IMAGES && pixels <= BATCHED_PLANE &&
           ts_max64(c->channels, c->features) >= LAST_CHANNELS;
}

/** Returns v if it has the layout `last`; else memory in scratch for an image of v's sizes in this
 *  layout, which is filled with v's elements if `fill`. */
static image in_layout(const job *b, const image *v, int64_t channels, bool last, bool fill,
                       scratch *s)
{
    if ((v->c == 1) == last)
        return *v;
    image made = dense_image(v, channels, last,
                             take(s, b->c.batch * channels * pixels_of(v) * b->item));
    if (fill && s->allocated)
        copy_image(v, &made, b->c.batch, channels, b->item);
    return made;
}

/** Runs the maker of `result`, on copies of the images if wants_layout(), or oneDNN. */
static void make_in_layout(job *b, maker make, conv_result result, scratch *s)
{
    const ts_convolution *c = &b->c;
    if (s->status != TS_OK || (result == RESULT_WEIGHT
                                   ? make_weight_by_onednn(b, s)
                                   : make_image_by_onednn(b, result == RESULT_X, s)))
        return;
    job made = *b;
    size_t used = s->used;
    bool last;
    if (wants_layout(b, &last)) {
        made.last = last;
        made.x = in_layout(b, &b->x, c->channels, last, result != RESULT_X, s);
        made.y = in_layout(b, &b->y, c->features, last, result != RESULT_Y, s);
    }
    make(&made, s);
    if (s->allocated && result == RESULT_X && made.x.data != b->x.data)
        copy_image(&made.x, &b->x, c->batch, c->channels, b->item);
    if (s->allocated && result == RESULT_Y && made.y.data != b->y.data)
        copy_image(&made.y, &b->y, c->batch, c->features, b->item);
    s->used = used;
}

static void make_y_in_layout(job *b, scratch *s) { make_in_layout(b, make_y, RESULT_Y, s); }
static void make_x_in_layout(job *b, scratch *s) { make_in_layout(b, make_x, RESULT_X, s); }
static void make_w_in_layout(job *b, scratch *s) { make_in_layout(b, make_w, RESULT_WEIGHT, s); }
/** One of these three. */
typedef void (*job_maker)(job *b, scratch *s);

/** Decodes a call. input or output may be NULL if the maker does not use it. In a transposed
 *  convolution, input is the y of ts_convolution and output the x. */
static job job_of(const ts_frame *f, const ts_tensor *input, const ts_tensor *output,
                  const ts_tensor *weight)
{
    job b = {.frame = f, .c = ts_kernel_convolution(f), .weight = weight, .dtype = f->plan->compute,
             .last = f->plan->ordered & 1,
             .item = ts_dtype_sizes[f->plan->compute]};
    const ts_tensor *x = b.c.transposed ? output : input, *y = b.c.transposed ? input : output;
    if (x)
        b.x = image_of(x, b.c.size, b.c.dims);
    if (y)
        b.y = image_of(y, b.c.y_size, b.c.dims);
    return b;
}

/** Runs makers[i] on jobs[i], unless makers[i] is NULL, with one block of scratch for all. sums:
 *  NULL, or receives the sums of the gradient per channel. The sums are computed first, because
 *  they may fail. Returns TS_ERR_MEMORY if memory cannot be allocated. */
static ts_status run_jobs(ts_frame *f, job *jobs, const job_maker *makers, int n, ts_tensor *sums)
{
    static const int64_t dims[] = {0, 2, 3, 4};
    scratch s = {0};
    for (int i = 0; i < n; i++)
        if (makers[i])
            makers[i](&jobs[i], &s);
    size_t bytes = s.most;
    if (s.status != TS_OK)
        return s.status;
    if (bytes && !(s.base = ts_alloc(f->thread, bytes)))
        return ts_error_memory("windows of a convolution", (int64_t)bytes);
    s.allocated = true;
    ts_tensor *grad = f->args[0].t;
    if (sums)
        s.status = TS_STATUS_OF(ts_sum_out(sums, grad, dims, grad->ndim - 1, false));
    for (int i = 0; i < n && s.status == TS_OK; i++)
        if (makers[i])
            makers[i](&jobs[i], &s);
    if (bytes)
        ts_free(f->thread, s.base, bytes);
    return s.status;
}

/** run_jobs() with a fixed number of threads, on which the size of scratch depends. */
static ts_status run(ts_frame *f, job *jobs, const job_maker *makers, int n, ts_tensor *sums)
{
    ts_threads_pin();
    ts_status status = run_jobs(f, jobs, makers, n, sums);
    ts_threads_unpin();
    for (int i = 0; i < n; i++)
        if (jobs[i].plan)
            ts_onednn_release(jobs[i].plan);
    return status;
}

/** True if a call of bf16 is a product of pairs of elements (AVX512_BF16). */
static bool suits_pairs(const job *b)
{
    axis a[3];
    bool transposed = b->c.transposed;
    if (VEC_ISA != VEC_IS_avx512 || !ts_cpu_has_bf16() || is_depthwise(&b->c) ||
        (transposed && has_patches(&b->c)))
        return false;
    int64_t forms = transposed ? ts_kernel_window_forms(b->frame) : 1;
    for (int64_t form = 0; form < forms; form++) {
        ts_kernel_windows(b->frame, transposed ? form : -1, a);
        if (is_direct(b, a, transposed))
            return false;
    }
    return true;
}

static ts_status convolution(ts_frame *f)
{
    if (!f->rets[0].t->numel)
        return TS_OK;
    job b = job_of(f, f->args[0].t, f->rets[0].t, f->args[1].t);
    if (b.dtype == TS_BF16 && suits_one_tap(&b.c, f->rets[0].t))
        return make_one_tap(f, &b.c);
    if (b.dtype == TS_BF16 && !suits_pairs(&b))
        return ts_run_widened(f);
    ts_tensor *bias = f->args[2].tag == TS_TAG_TENSOR ? f->args[2].t : NULL;
    TS_SCOPE;
    if (bias && !(bias->flags & TS_TENSOR_CONTIGUOUS))
        TS_TRY(bias = ts_clone(bias));
    b.bias = bias;
    job_maker make = b.c.transposed ? make_x_in_layout : make_y_in_layout;
    return run(f, &b, &make, 1, NULL);
}

/** (grad, input, weight, ...) -> gradients of input, weight and bias */
static ts_status convolution_backward(ts_frame *f)
{
    const ts_tensor *grad = f->args[0].t;
    bool wants[3];
    for (int i = 0; i < 3; i++)
        wants[i] = f->rets[i].tag == TS_TAG_TENSOR;
    for (int i = 0; i < 3 && !grad->numel; i++)
        if (wants[i])
            TS_TRY(ts_zero_(f->rets[i].t));
    if (!grad->numel)
        return TS_OK;
    ts_convolution c = ts_kernel_convolution(f);
    if (ts_dtype_is_half(f->plan->compute))
        return has_one_tap(&c) ? grad_one_tap(f, &c) : ts_run_widened(f);
    job jobs[2] = {job_of(f, wants[0] ? f->rets[0].t : NULL, grad, f->args[2].t),
                   job_of(f, f->args[1].t, grad, f->rets[1].t)};
    job_maker for_x = jobs[0].c.transposed ? make_y_in_layout : make_x_in_layout;
    job_maker makers[2] = {wants[0] ? for_x : NULL,
                       wants[1] ? make_w_in_layout : NULL};
    return run(f, jobs, makers, 2, wants[2] ? f->rets[2].t : NULL);
}

TS_CPU_FAMILY(convolution,
    {TS_OP_convolution, convolution, {TS_DT_FLOATS | TS_DT(TS_BF16), TS_TAKES_STRIDES}},
    {TS_OP_convolution_backward, convolution_backward,
     {TS_DT_FLOATS | TS_DT_HALVES, TS_TAKES_STRIDES}})
