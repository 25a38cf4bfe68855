/**
 * @file chunks.h
 * The parts of convolution.c that its headers share: a call's result (job), its scratch memory, and
 * the division of its positions into chunks, each of which is a product of matrices. Part of
 * convolution.c, which includes it through onednn_calls.h and columns.h.
 *
 * Terms of these files (ts_window_axis in kernel.h): a position is an element of y, or of x in the
 * gradient of x, without its channel. Its window is the part of the other image that it reads, one
 * element per tap (element of the kernel) and channel.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_CHUNKS_H
#define TS_BACKENDS_CPU_CHUNKS_H

#include "backends/cpu/onednn.h"
#include "backends/cpu/sgemm.h"
#include "backends/cpu/windows.h"

/* A chunk has at most CHUNK_ROWS positions, or as many as fit a matrix of CHUNK elements if that is
 * more. Chunks are not smaller, because each of them packs the weight again. */
#define CHUNK (1 << 18)
#define CHUNK_ROWS 512
#define SMALL_IMAGE 256 /* images with fewer positions share chunks in any layout */

/** One result of a call of convolution or convolution_backward: y, x (or its gradient), or the
 * gradient of the weight. x and y are those of ts_convolution (kernel.h). Tensors are borrowed. */
typedef struct job {
    const ts_frame *frame;
    ts_convolution c;
    image x, y;
    const ts_tensor *weight; /* the weight, or its gradient */
    const ts_tensor *bias;
    bool last; /* the result image is computed with channels innermost: the shape rule plans this
                  layout, or images are copied to it. A caller's destination may have another
                  layout */
    ts_dtype dtype;
    int item;  /* bytes of an element */
    ts_onednn_plan *plan; /* primitives of oneDNN, found in the pass that measures scratch memory;
                             NULL: the library's kernels compute the result */
} job;

/** Describes the weight of a group as a matrix. Its rows are features and its columns channels;
 *  with to_x its rows are channels and its columns features. The matrix is (rows, taps, columns)
 *  with by_window, else (rows, columns, taps). */
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

/** Scratch memory of a call. Functions with a scratch argument run twice. The first run is "without
 *  memory": it computes the size. The second run computes the result. */
typedef struct scratch {
    bool allocated; /* false: without memory */
    char *base;
    size_t used, most; /* bytes in use; largest `used` */
    ts_status status;  /* first failure; the jobs after it do nothing */
} scratch;

/** Takes `bytes` bytes, rounded up to cache lines of 64 bytes, and adds them to s->used. The caller
 *  restores s->used to give them back. NULL without memory. */
static char *take(scratch *s, int64_t bytes)
{
    char *at = s->allocated ? s->base + s->used : NULL;
    s->used += ((size_t)bytes + 63) / 64 * 64;
    s->most = s->used > s->most ? s->used : s->most;
    return at;
}

/** Computes the product g; without memory, only its scratch size. */
static void multiply(const ts_gemm *g, ts_dtype dtype, scratch *s)
{
    size_t used = s->used;
    char *at = take(s, (int64_t)TS_V(ts_product_bytes)(g, dtype));
    if (s->allocated)
        TS_V(ts_product)(g, dtype, at);
    s->used = used;
}

/** Division of the positions of a batch into chunks. It depends only on shapes and layouts, not on
 * the number of threads. */
typedef struct cuts {
    int64_t all;   /* number of positions */
    int64_t whole; /* no chunk crosses a multiple of `whole`: all positions, or those of an image */
    int64_t most;  /* most positions of a chunk */
} cuts;

/** Computes the division into chunks of at most `wanted` positions, or CHUNK_ROWS if that is more.
 *  last: channels are innermost, so the positions of all images are rows of one matrix. Otherwise
 *  each large image is a matrix, and small images are combined in scratch. */
static cuts cut(const axis *a, int64_t batch, bool last, int64_t wanted)
{
    int64_t each = a[0].count * a[1].count * a[2].count;
    cuts c = {.all = each * batch, .whole = last || each < SMALL_IMAGE ? each * batch : each};
    int64_t parts = ts_ceil_div(c.whole, ts_max64(CHUNK_ROWS, wanted));
    c.most = parts ? ts_ceil_div(c.whole, parts) : 0;
    return c;
}

/** Number of positions of the chunk that starts at position `first`. */
static int64_t chunk_at(const cuts *c, int64_t first)
{
    return ts_min64(c->most, c->whole - first % c->whole);
}

/** True if a group's channels at the positions of each chunk form a matrix in memory. Sets *step to
 *  the distance between positions. */
static bool is_matrix(const image *v, const axis *a, int64_t batch, int64_t channels, bool last,
                      const cuts *c, int64_t *step)
{
    return even_positions(v, a, batch, step) >= c->whole &&
           (last ? (v->c == 1 || channels == 1) && *step >= channels
                 : *step == 1 && v->c >= c->whole);
}

#endif
