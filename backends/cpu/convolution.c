/**
 * @file convolution.c  Convolutions as products of matrices.
 *
 * All three directions gather windows of a tensor into the rows of a matrix, chunk by chunk, and
 * multiply it. The result y gathers windows of x. The gradient of x gathers from y what each
 * element of x went to: elements whose positions have one remainder by the stride have windows of
 * one form, so there is one product for each remainder, and nothing is added up in memory. The
 * gradient of the weight multiplies the windows of x with y. Chunks are cut by shape alone, so
 * results do not depend on the number of threads.
 */
// SPDX-License-Identifier: MIT
#include "backends/cpu/loops.h"
#include "backends/cpu/sgemm.h"
#include "backends/cpu/windows.h"
#include "core/alloc.h"
#include "include/tessera/ops.h"
#include "ops/kernel.h"

#define CHUNK (1 << 18)     /* most elements of a matrix of windows, if there are enough rows */
#define CHUNK_ROWS 64       /* least windows of a chunk */
#define SMALL_IMAGE 256     /* images of fewer positions share chunks */
#define WEIGHT_CHUNK (1 << 20) /* the same of the gradient of the weight, which is added up */

/* ----------------------------------------------------------------------------- products ---- */

/** What a call of either op needs. */
typedef struct job {
    const ts_frame *frame;
    ts_convolution c;
    image x, y;
    const ts_tensor *weight; /* or its gradient */
    const ts_tensor *bias;
    bool last; /* the image that is made is planned with its channels innermost */
    ts_dtype dtype;
    int item;
} job;

static weights weights_of(const job *b, int64_t group, const axis *a, bool to_x, bool by_window)
{
    const ts_convolution *c = &b->c;
    const ts_tensor *t = b->weight;
    int64_t features = c->features / c->groups, channels = c->channels / c->groups;
    weights w = {.data = (char *)t->data + group * features * t->strides[0] * b->item,
                 .row = to_x ? t->strides[1] : t->strides[0],
                 .column = to_x ? t->strides[0] : t->strides[1],
                 .rows = to_x ? channels : features, .columns = to_x ? features : channels,
                 .axis = a, .by_window = by_window, .item = b->item};
    for (int d = 0; d < c->dims; d++)
        w.at[3 - c->dims + d] = t->strides[2 + d];
    return w;
}

/** Scratch of a product. Functions run twice: for its size, and for the work. */
typedef struct scratch {
    bool there; /* else only `most` is wanted */
    char *base;
    size_t used, most;
} scratch;

static char *take(scratch *s, int64_t bytes)
{
    char *at = s->there ? s->base + s->used : NULL;
    s->used += ((size_t)bytes + 63) / 64 * 64;
    s->most = s->used > s->most ? s->used : s->most;
    return at;
}

/** A product; only its scratch if there is none yet. */
static void multiply(const ts_gemm *g, ts_dtype dtype, scratch *s)
{
    size_t used = s->used;
    char *at = take(s, (int64_t)TS_V(ts_product_bytes)(g, dtype));
    if (s->there)
        TS_V(ts_product)(g, dtype, at);
    s->used = used;
}

/** Address of the first position of a chunk. */
static char *position_at(const image *v, const axis *a, int64_t first, int item)
{
    place p = place_of(a, first);
    char *at = v->data + p.n * v->n * item;
    for (int d = 0; d < 3; d++)
        at += (a[d].start + p.i[d] * a[d].step) * v->at[d] * item;
    return at;
}

/** How positions are cut into chunks, by shape and planned layout alone. */
typedef struct cuts {
    int64_t all;   /* positions */
    int64_t whole; /* positions that no chunk reaches beyond: all, or those of an image */
    int64_t most;  /* of a chunk */
} cuts;

/** last: channels are innermost, so positions of all images are rows of one matrix. Other images
 *  are matrices by themselves if they are large enough, else they are put together in scratch. */
static cuts cut(const axis *a, int64_t batch, bool last, int64_t wanted)
{
    int64_t each = a[0].count * a[1].count * a[2].count;
    cuts c = {.all = each * batch, .whole = last || each < SMALL_IMAGE ? each * batch : each};
    int64_t parts = ts_ceil_div(c.whole, ts_max64(CHUNK_ROWS, wanted));
    c.most = parts ? ts_ceil_div(c.whole, parts) : 0;
    return c;
}

static int64_t chunk_at(const cuts *c, int64_t first)
{
    return ts_min64(c->most, c->whole - first % c->whole);
}

/** Whether a group's channels at the positions of each chunk are a matrix in memory. */
static bool is_matrix(const image *v, const axis *a, int64_t batch, int64_t channels, bool last,
                      const cuts *c, int64_t *step)
{
    return even_positions(v, a, batch, step) >= c->whole &&
           (last ? (v->c == 1 || channels == 1) && *step >= channels
                 : *step == 1 && v->c >= c->whole);
}

/** The elements of one group of y, or of x, whose windows are those of `axis`. */
static void make_images(const job *b, int64_t group, const axis *a, bool to_x, scratch *s)
{
    const ts_convolution *c = &b->c;
    image from = to_x ? b->y : b->x, to = to_x ? b->x : b->y;
    int64_t rows = (to_x ? c->channels : c->features) / c->groups;
    int64_t channels = (to_x ? c->features : c->channels) / c->groups;
    int64_t k = a[0].taps * a[1].taps * a[2].taps * channels, step;
    bool last = b->last || rows == 1;
    cuts chunks = cut(a, c->batch, last, CHUNK / ts_max64(k, 1));
    size_t used = s->used;
    if (!chunks.all || !rows)
        return;
    from.data += group * channels * from.c * b->item;
    to.data += group * rows * to.c * b->item;
    windows w = {.from = from, .axis = {a[0], a[1], a[2]}, .channels = channels,
                 .item = b->item, .by_window = from.c == 1};
    weights m = weights_of(b, group, a, to_x, w.by_window);
    if (!weights_in_place(&m)) {
        m.matrix = take(s, rows * k * b->item);
        if (s->there)
            move_weights(&m, false);
    }
    bool direct = is_matrix(&to, a, c->batch, rows, last, &chunks, &step);
    w.to = take(s, chunks.most * k * b->item);
    strips out = {.image = to, .axis = a, .channels = rows, .item = b->item,
                  .position_step = last ? rows : 1, .channel_step = 1,
                  .matrix = direct ? NULL : take(s, chunks.most * rows * b->item)};
    const char *bias = b->bias ? (const char *)b->bias->data + group * rows * b->item : NULL;
    for (int64_t first = 0, count; first < chunks.all; first += count) {
        count = chunk_at(&chunks, first);
        ts_gemm g = {.k = k, .c = direct ? position_at(&to, a, first, b->item) : out.matrix};
        if (last) { /* windows times weights */
            g.m = count;
            g.n = rows;
            g.a = w.to;
            g.a_row = w.by_window ? k : 1;
            g.a_column = w.by_window ? 1 : count;
            g.b = m.matrix;
            g.b_row = 1;
            g.b_column = k;
            g.c_row = direct ? step : rows;
            g.bias = bias;
        } else { /* weights times windows */
            g.m = rows;
            g.n = count;
            g.a = m.matrix;
            g.a_row = k;
            g.a_column = 1;
            g.b = w.to;
            g.b_row = w.by_window ? 1 : count;
            g.b_column = w.by_window ? k : 1;
            g.c_row = direct ? to.c : count;
            g.add = bias != NULL;
        }
        if (s->there) {
            gather(&w, first, count);
            for (int64_t i = 0; g.add && i < rows; i++)
                copy_run((char *)g.c + i * g.c_row * b->item, 1, bias + i * b->item, 0, count,
                         b->item);
        }
        multiply(&g, b->dtype, s);
        if (s->there && !direct)
            copy_matrix(&out, first, count, true);
    }
    s->used = used;
}

/** The gradient of one group's weight: y's channels times x's windows. */
static void make_weight(const job *b, int64_t group, const axis *a, scratch *s)
{
    const ts_convolution *c = &b->c;
    image x = b->x, y = b->y;
    int64_t rows = c->features / c->groups, channels = c->channels / c->groups;
    int64_t k = a[0].taps * a[1].taps * a[2].taps * channels, step;
    bool last = y.c == 1 || rows == 1;
    size_t used = s->used;
    if (!k)
        return;
    cuts chunks = cut(a, c->batch, last, WEIGHT_CHUNK / k);
    x.data += group * channels * x.c * b->item;
    y.data += group * rows * y.c * b->item;
    windows w = {.from = x, .axis = {a[0], a[1], a[2]}, .channels = channels, .item = b->item,
                 .by_window = x.c == 1};
    weights m = weights_of(b, group, a, false, w.by_window);
    bool in_place = weights_in_place(&m);
    if (!in_place)
        m.matrix = take(s, rows * k * b->item);
    bool direct = is_matrix(&y, a, c->batch, rows, last, &chunks, &step);
    w.to = take(s, chunks.most * k * b->item);
    strips in = {.image = y, .axis = a, .channels = rows, .item = b->item,
                 .position_step = last ? rows : 1, .channel_step = 1,
                 .matrix = direct ? NULL : take(s, chunks.most * rows * b->item)};
    ts_gemm g = {.m = rows, .n = k, .c = m.matrix, .c_row = k};
    if (!chunks.all) /* zeros */
        multiply(&g, b->dtype, s);
    for (int64_t first = 0; first < chunks.all; first += g.k) {
        g.k = chunk_at(&chunks, first);
        g.a = direct ? position_at(&y, a, first, b->item) : in.matrix;
        g.a_row = last ? 1 : direct ? y.c : g.k;
        g.a_column = !last ? 1 : direct ? step : rows;
        g.b = w.to;
        g.b_row = w.by_window ? k : 1;
        g.b_column = w.by_window ? 1 : g.k;
        g.add = first > 0;
        if (s->there) {
            gather(&w, first, g.k);
            if (!direct)
                copy_matrix(&in, first, g.k, false);
        }
        multiply(&g, b->dtype, s);
    }
    if (s->there && !in_place)
        move_weights(&m, true);
    s->used = used;
}

/* ------------------------------------------------------------------------------ kernels ---- */

static void make_y(const job *b, scratch *s)
{
    const ts_convolution *c = &b->c;
    axis a[3];
    ts_kernel_windows(b->frame, -1, a);
    for (int64_t group = 0; group < c->groups; group++)
        make_images(b, group, a, false, s);
}

static void make_x(const job *b, scratch *s)
{
    const ts_convolution *c = &b->c;
    axis a[3];
    int64_t forms = ts_kernel_window_forms(b->frame);
    for (int64_t form = 0; form < forms; form++) {
        ts_kernel_windows(b->frame, form, a);
        for (int64_t group = 0; group < c->groups; group++)
            make_images(b, group, a, true, s);
    }
}

static void make_w(const job *b, scratch *s)
{
    const ts_convolution *c = &b->c;
    axis a[3];
    ts_kernel_windows(b->frame, -1, a);
    for (int64_t group = 0; group < c->groups; group++)
        make_weight(b, group, a, s);
}

/** A job between input and output; either may be absent. */
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
        b.y = image_of(y, b.c.places, b.c.dims);
    return b;
}

typedef void (*maker)(const job *b, scratch *s);

/** Runs the makers that are not NULL, of one scratch. sums: of the gradient, which come first,
 *  since only they may fail. */
static ts_status run(ts_frame *f, const job *jobs, const maker *makers, int n, ts_tensor *sums)
{
    static const int64_t dims[] = {0, 2, 3, 4};
    scratch s = {0};
    for (int i = 0; i < n; i++)
        if (makers[i])
            makers[i](&jobs[i], &s);
    size_t bytes = s.most;
    if (bytes && !(s.base = ts_alloc(f->thread, bytes)))
        return ts_fail_memory("windows of a convolution", (int64_t)bytes);
    s.there = true;
    ts_tensor *grad = f->args[0].t;
    ts_status status = TS_OK;
    if (sums)
        status = TS_STATUS_OF(ts_sum_out(sums, grad, dims, grad->ndim - 1, false));
    for (int i = 0; i < n && status == TS_OK; i++)
        if (makers[i])
            makers[i](&jobs[i], &s);
    if (bytes)
        ts_free(f->thread, s.base, bytes);
    return status;
}

static ts_status convolution(ts_frame *f)
{
    job b = job_of(f, f->args[0].t, f->rets[0].t, f->args[1].t);
    ts_tensor *bias = f->args[2].tag == TS_TAG_TENSOR ? f->args[2].t : NULL;
    TS_SCOPE;
    if (bias && !(bias->flags & TS_TENSOR_CONTIGUOUS))
        TS_TRY(bias = ts_clone(bias));
    b.bias = bias;
    return run(f, &b, (const maker[]){b.c.transposed ? make_x : make_y}, 1, NULL);
}

/* grad, input, weight, ... -> gradients of input, weight and bias */
static ts_status convolution_backward(ts_frame *f)
{
    const ts_tensor *grad = f->args[0].t;
    bool wants[3];
    for (int i = 0; i < 3; i++)
        wants[i] = f->rets[i].tag == TS_TAG_TENSOR;
    job jobs[2] = {job_of(f, wants[0] ? f->rets[0].t : NULL, grad, f->args[2].t),
                   job_of(f, f->args[1].t, grad, f->rets[1].t)};
    maker makers[2] = {wants[0] ? jobs[0].c.transposed ? make_y : make_x : NULL,
                       wants[1] ? make_w : NULL};
    return run(f, jobs, makers, 2, wants[2] ? f->rets[2].t : NULL);
}

TS_CPU_FAMILY(convolution,
    {TS_OP_convolution, convolution, {TS_DT_FLOATS, TS_TAKES_STRIDES}},
    {TS_OP_convolution_backward, convolution_backward, {TS_DT_FLOATS, TS_TAKES_STRIDES}})
