/**
 * @file chunks.h
 * A call of a convolution, its scratch memory, and the division of its positions into chunks, each
 * of which is a product of matrices. Included by convolution.c only.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_CHUNKS_H
#define TS_BACKENDS_CPU_CHUNKS_H

#include "backends/cpu/onednn.h"
#include "backends/cpu/sgemm.h"
#include "backends/cpu/windows.h"

#define CHUNK (1 << 18)     /* maximum elements of a chunk's matrix, unless CHUNK_ROWS needs more */
#define CHUNK_ROWS 512      /* positions that a chunk should have, because each packs the weight */
#define SMALL_IMAGE 256     /* images with fewer positions share chunks */

/** A call of convolution or convolution_backward. Tensors are borrowed. */
typedef struct job {
    const ts_frame *frame;
    ts_convolution c;
    image x, y;
    const ts_tensor *weight; /* the weight, or its gradient */
    const ts_tensor *bias;
    bool last; /* the result image is planned with channels innermost */
    ts_dtype dtype;
    int item;  /* bytes of an element */
    ts_onednn_plan *plan; /* oneDNN's primitives, which the first run of the functions below sets;
                             NULL: the library's kernels compute the call */
} job;

/** The weight of a group as a matrix (features, taps, channels), or with to_x (channels, taps,
 *  features); taps are the last dim unless by_window. */
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

/** Scratch memory of a call. The functions below run twice: first without memory, to compute its
 *  size, then with memory, to compute the result. */
typedef struct scratch {
    bool allocated; /* false: only compute `most` */
    char *base;
    size_t used, most; /* bytes in use; largest `used` */
    ts_status status;  /* failure of the last part that can fail */
} scratch;

/** Takes `bytes` bytes, rounded up to cache lines, and adds them to s->used. The caller restores
 *  s->used to give them back. NULL without memory. */
static char *take(scratch *s, int64_t bytes)
{
    char *at = s->allocated ? s->base + s->used : NULL;
    s->used += ((size_t)bytes + 63) / 64 * 64;
    s->most = s->used > s->most ? s->used : s->most;
    return at;
}

/** Computes a product; without memory, only its scratch size. */
static void multiply(const ts_gemm *g, ts_dtype dtype, scratch *s)
{
    size_t used = s->used;
    char *at = take(s, (int64_t)TS_V(ts_product_bytes)(g, dtype));
    if (s->allocated)
        TS_V(ts_product)(g, dtype, at);
    s->used = used;
}

/** Division of positions into chunks, which depends only on shape and planned layout. */
typedef struct cuts {
    int64_t all;   /* number of positions */
    int64_t whole; /* a chunk does not cross multiples of this: all positions, or one image's */
    int64_t most;  /* maximum positions of a chunk */
} cuts;

/** Computes the division for chunks of about `wanted` positions. last: channels are innermost, so
 *  the positions of all images are rows of one matrix. Otherwise each large image is a matrix, and
 *  small images are combined in scratch. */
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
