/**
 * @file resample_copies.h
 * Included by resample.c only. First part: taps, which are the elements that average pooling,
 * padding and resizing read, with their weights. Second part: the ops that only copy elements
 * (padding, resizing to the nearest element), by lists of source indices.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_RESAMPLE_COPIES_H
#define TS_BACKENDS_CPU_RESAMPLE_COPIES_H

#include "backends/cpu/bytes.h"
#include "backends/cpu/copy.h"
#include "backends/cpu/loops.h"
#include "core/alloc.h"
#include "core/parallel.h"
#include "ops/kernel.h"

#include <math.h>

/* ---------------------------------------------------------------------------------- taps ---- */

/** The taps of one element of the forward op's result along a dim: `count` elements of the argument
 * starting at index `first`; index_of() clamps the indices to the dim. */
typedef struct taps {
    int64_t first, count;
    double weight, part[4]; /* weight of each element; for TS_AXIS_LINEAR and TS_AXIS_CUBIC, part[k]
                               is the weight of element k instead */
} taps;

/** Index i, mirrored at the ends of a dim of n elements if it is outside. */
static int64_t mirrored(int64_t i, int64_t n)
{
    i = i < 0 ? -i : i;
    return i < n ? i : 2 * (n - 1) - i;
}

/** Cubic weights of the elements -1, 0, 1 and 2 for position t, 0 <= t < 1. The factored form has
 * no cancellation near the zeros. */
static void cubic_parts(double t, double *part)
{
    const double a = -0.75, u = 1 - t;
    part[0] = a * t * u * u;
    part[1] = u * (1 + t - (a + 2) * t * t);
    part[2] = t * (1 + u - (a + 2) * u * u);
    part[3] = a * u * t * t;
}

/** Taps of element o of the forward op's result along a dim, as ts_axis_map (kernel.h) defines
 * them. */
static taps taps_of(const ts_axis *axis, int64_t o)
{
    int64_t in = axis->in, at = o - axis->padding;
    taps t = {.count = 1, .weight = 1};
    double x; /* coordinate in the argument */
    switch (axis->map) {
    case TS_AXIS_WINDOW: {
        int64_t begin = o * axis->stride - axis->padding,
                end = ts_min64(begin + axis->kernel, in + axis->padding);
        int64_t whole = end - begin;
        t.first = ts_max64(begin, 0);
        t.count = ts_max64(ts_min64(end, in) - t.first, 0);
        t.weight = axis->sum ? 1 : 1 / (double)(axis->padded ? whole : t.count);
        break;
    }
    case TS_AXIS_ADAPTIVE:
        t.first = o * in / axis->out;
        t.count = ts_ceil_div((o + 1) * in, axis->out) - t.first;
        t.weight = 1 / (double)t.count;
        break;
    case TS_AXIS_NEAREST:
        t.first = ts_min64((int64_t)floorf((float)o * (float)axis->scale), in - 1);
        break;
    case TS_AXIS_LINEAR:
        x = axis->corners ? (double)o * axis->scale : ((double)o + 0.5) * axis->scale - 0.5;
        x = x < 0 ? 0 : x;
        t.first = ts_min64((int64_t)x, in - 1);
        t.count = 2;
        t.part[1] = fmin(x - (double)t.first, 1);
        t.part[0] = 1 - t.part[1];
        break;
    case TS_AXIS_CUBIC:
        x = axis->corners ? (double)o * axis->scale : ((double)o + 0.5) * axis->scale - 0.5;
        t.first = (int64_t)floor(x) - 1;
        t.count = 4;
        cubic_parts(x - floor(x), t.part);
        break;
    case TS_AXIS_CONSTANT:
        t.first = at;
        t.count = at >= 0 && at < in;
        break;
    case TS_AXIS_REFLECT: t.first = mirrored(at, in); break;
    case TS_AXIS_REPLICATE: t.first = ts_max64(ts_min64(at, in - 1), 0); break;
    case TS_AXIS_CIRCULAR: t.first = at < 0 ? at + in : at >= in ? at - in : at; break;
    }
    return t;
}
/** Index of tap k. */
static int64_t index_of(const ts_axis *axis, const taps *t, int64_t k)
{
    return ts_max64(ts_min64(t->first + k, axis->in - 1), 0);
}
/** Weight of tap k. */
static double weight_of(const ts_axis *axis, const taps *t, int64_t k)
{
    return axis->map == TS_AXIS_LINEAR || axis->map == TS_AXIS_CUBIC ? t->part[k] : t->weight;
}

/** Returns the first element of the forward op's result whose first tap (or with `last`, whose last
 * tap) has index i or more; axis->out if there is none. The map must be monotonic. */
static int64_t first_reader(const ts_axis *axis, int64_t i, bool last)
{
    int64_t low = 0, high = axis->out;
    while (low < high) {
        int64_t o = low + (high - low) / 2;
        taps t = taps_of(axis, o);
        if (index_of(axis, &t, last ? t.count - 1 : 0) >= i)
            high = o;
        else
            low = o + 1;
    }
    return low;
}

/** One block of memory for all tables of a call; cut() takes parts from its front. */
typedef struct arena {
    char *memory;
    size_t bytes, used;
} arena;
/** Takes `count` items of `item` bytes. Before `memory` is allocated, it only adds to `used`. */
static void *cut(arena *a, int64_t count, size_t item)
{
    void *p = a->memory ? a->memory + a->used : NULL;
    a->used += ((size_t)(count ? count : 1) * item + 63) & ~(size_t)63;
    return p;
}

/* -------------------------------------------------------------------------------- copies ---- */

/** Source indices of a copy along one dim: the element of the argument that each element of the
 * result reads, or -1 for the padding's value. */
typedef struct sources {
    int64_t in, out;        /* sizes of the argument and of the result */
    int64_t run, end, from; /* elements run to end - 1 read elements from, from + 1, ... */
    int64_t *index;         /* source indices of the other elements */
} sources;

typedef struct copy_job {
    const char *x;
    char *y;
    sources axis[3];
    int64_t pixel;       /* bytes of the channels of a position */
    const char *value;   /* constant padding: a line for ts_fill_bytes(); else NULL */
} copy_job;

/** Source index of element o; -1: the padding's value. */
static int64_t source_of(const sources *s, int64_t o)
{
    return o < s->run ? s->index[o] : o < s->end ? o - s->run + s->from
                                                 : s->index[o - s->end + s->run];
}

/** Lists the sources of a dim, each element of which becomes `channels` elements, one per channel.
 * While the arena has no memory, only adds up the bytes needed. */
static void list_sources(sources *s, const ts_axis *axis, int64_t channels, arena *a)
{
    int64_t run = 0, end = 0;
    if (axis->map >= TS_AXIS_CONSTANT) { /* padding: elements of the argument form one run */
        run = ts_min64(ts_max64(axis->padding, 0), axis->out);
        end = ts_max64(ts_min64(axis->padding + axis->in, axis->out), run);
    }
    *s = (sources){.in = axis->in * channels, .out = axis->out * channels, .run = run * channels,
                   .end = end * channels, .from = (run - axis->padding) * channels};
    s->index = cut(a, s->out - (s->end - s->run), sizeof *s->index);
    int64_t *to = s->index;
    for (int64_t o = 0; a->memory && o < axis->out; o++) {
        if (o == run)
            o = end;
        if (o == axis->out)
            break;
        taps t = taps_of(axis, o);
        for (int64_t c = 0; c < channels; c++)
            *to++ = t.count ? index_of(axis, &t, 0) * channels + c : -1;
    }
}

#define COPY_ITEMS(T)                                                                              \
    {                                                                                              \
        for (int64_t i = 0; i < count; i++)                                                        \
            ((T *)(void *)y)[i] = ((const T *)(const void *)x)[index[i]];                          \
        break;                                                                                     \
    }

/** Copies positions index[0] to index[count - 1] of the row x to consecutive positions of y. A
 * position has job->pixel bytes. */
static void copy_positions(const copy_job *job, char *y, const char *x, const int64_t *index,
                           int64_t count)
{
    switch (job->pixel) {
    case 1: COPY_ITEMS(uint8_t)
    case 2: COPY_ITEMS(uint16_t)
    case 4: COPY_ITEMS(uint32_t)
    case 8: COPY_ITEMS(uint64_t)
    default:
        for (int64_t i = 0; i < count; i++)
            ts_copy_bytes(y + i * job->pixel, x + index[i] * job->pixel, job->pixel);
    }
}

/** Body of the parallel loop for ops that only copy elements: rows begin to end - 1 of (planes,
 * depth, height). Adjacent elements with the padding's value, even of several rows, are filled
 * together. */
static void copy_rows(void *ctx, int64_t begin, int64_t end)
{
    const copy_job *job = ctx;
    const sources *depth = &job->axis[0], *height = &job->axis[1], *t = &job->axis[2];
    int64_t h = begin % height->out, rest = begin / height->out, d = rest % depth->out,
            plane = rest / depth->out, pixel = job->pixel, bytes = t->out * pixel;
    char *y = job->y + begin * bytes, *open = y; /* open: first byte that is not written yet */
    const char *last = NULL;                     /* source of the previous row */
    for (int64_t row = begin; row < end; row++, y += bytes) {
        int64_t from_h = source_of(height, h), from_d = source_of(depth, d);
        int64_t line = (plane * depth->in + from_d) * height->in + from_h;
        if (++h == height->out) {
            h = 0;
            if (++d == depth->out) {
                d = 0;
                plane++;
            }
        }
        if (job->value && (from_h < 0 || from_d < 0 || t->run == t->end))
            continue;
        const char *x = job->x + line * t->in * pixel;
        char *run = y + t->run * pixel;
        if (job->value) {
            ts_fill_bytes(open, run - open, job->value);
            open = y + t->end * pixel;
        } else if (x == last) {
            ts_copy_bytes(y, y - bytes, bytes);
            continue;
        } else {
            copy_positions(job, y, x, t->index, t->run);
            copy_positions(job, y + t->end * pixel, x, t->index + t->run, t->out - t->end);
            last = x;
        }
        ts_copy_bytes(run, x + t->from * pixel, (t->end - t->run) * pixel);
    }
    if (job->value)
        ts_fill_bytes(open, y - open, job->value);
}

enum { SMALL_PLANE = 256 /* most positions of a plane that is copied by one table */ };

/** The source position of each position of a plane of the result, or -1: the padding's value. */
typedef struct plane_job {
    const copy_job *job;
    int64_t in, out; /* positions of a plane of the argument and of the result */
    int64_t index[SMALL_PLANE];
} plane_job;

/* Copies elements of planes begin to end - 1. */
#define COPY_PLANES(T)                                                                             \
    for (int64_t k = begin; k < end; k++) {                                                        \
        const T *x = (const T *)(const void *)p->job->x + k * p->in;                               \
        T *y = (T *)(void *)p->job->y + k * p->out;                                                \
        for (int64_t i = 0; i < p->out; i++)                                                       \
            y[i] = *(p->index[i] < 0 ? (const T *)(const void *)p->job->value : x + p->index[i]);  \
    }                                                                                              \
    break;

static void copy_planes(void *ctx, int64_t begin, int64_t end)
{
    const plane_job *p = ctx;
    switch (p->job->pixel) {
    case 1: COPY_PLANES(uint8_t)
    case 2: COPY_PLANES(uint16_t)
    case 4: COPY_PLANES(uint32_t)
    default: COPY_PLANES(uint64_t)
    }
}

/** Copies many small planes, whose rows are too short for copy_rows(). Returns false, and copies
 *  nothing, if there are few planes, large planes, long rows, or pixels that are not of 1, 2, 4 or
 *  8 bytes. */
static bool copy_small_planes(const copy_job *job, int64_t planes)
{
    const sources *a = job->axis;
    plane_job p = {.job = job, .in = a[0].in * a[1].in * a[2].in,
                   .out = a[0].out * a[1].out * a[2].out};
    if (planes < 8 || p.out > SMALL_PLANE || a[2].out > 32 || job->pixel > 8 ||
        (job->pixel & (job->pixel - 1)))
        return false;
    for (int64_t i = 0; i < p.out; i++) {
        int64_t w = source_of(&a[2], i % a[2].out),
                h = source_of(&a[1], i / a[2].out % a[1].out),
                d = source_of(&a[0], i / a[2].out / a[1].out);
        p.index[i] = (w | h | d) < 0 ? -1 : (d * a[1].in + h) * a[2].in + w;
    }
    ts_parallel_for(planes, TS_CPU_GRAIN(2) / (p.out + 1) + 1, copy_planes, &p);
    return true;
}

/** True if the result is a box of the argument: no position has the padding's value, and the
 * sources of each dim are one run. */
static bool is_crop(const copy_job *job)
{
    for (int k = 0; k < 3; k++)
        if (job->axis[k].run || job->axis[k].end != job->axis[k].out)
            return false;
    return true;
}

/** Copies the result if is_crop(), as a strided copy. pixel: elements of a position. */
static void copy_crop(const copy_job *job, int64_t planes, ts_dtype dtype, int64_t pixel)
{
    const sources *a = job->axis;
    const int64_t sizes[] = {planes, a[0].out, a[1].out, a[2].out, pixel};
    int64_t from[5], to[5], first = 0;
    from[4] = to[4] = 1;
    for (int k = 3; k >= 0; k--) {
        from[k] = from[k + 1] * (k == 3 ? pixel : a[k].in);
        to[k] = to[k + 1] * sizes[k + 1];
        first += k ? a[k - 1].from * from[k] : 0;
    }
    TS_V(ts_cpu_copy_part)(job->y, to, dtype, job->x + first * ts_dtype_sizes[dtype], from, dtype,
                           sizes, 5);
}

/** Runs an op that only copies elements. Each index of the last dim stands for `channels` positions
 * of `pixel` elements: channels-last images have their channels in one of the two, and 1 in the
 * other. value: the element of constant padding. Returns TS_ERR_MEMORY if the lists cannot be
 * allocated. */
static ts_status copy_images(ts_frame *f, const ts_resampling *r, int64_t planes, int64_t pixel,
                             int64_t channels, const char *value)
{
    int64_t item = ts_dtype_sizes[f->args[0].t->dtype];
    char line[TS_FILL_LINE] __attribute__((aligned(8)));
    copy_job job = {.x = f->args[0].t->data, .y = f->rets[0].t->data, .pixel = item * pixel};
    if (r->axis[2].map == TS_AXIS_CONSTANT) {
        for (int64_t i = 0; i < TS_FILL_LINE; i += item)
            memcpy(line + i, value, (size_t)item);
        job.value = line;
    }
    arena a = {0};
    for (int pass = 0; pass < 2; pass++) {
        a.used = 0;
        for (int k = 0; k < 3; k++)
            list_sources(&job.axis[k], &r->axis[k], k == 2 ? channels : 1, &a);
        if (!pass && !(a.memory = ts_alloc(f->thread, a.bytes = a.used)))
            return ts_error_memory("tables of elements and weights", (int64_t)a.bytes);
    }
    int64_t rows = planes * job.axis[0].out * job.axis[1].out,
            cost = 2 * job.axis[2].out * pixel;
    if (is_crop(&job))
        copy_crop(&job, planes, (ts_dtype)f->args[0].t->dtype, pixel);
    else if (!copy_small_planes(&job, planes))
        ts_parallel_for(rows, TS_CPU_GRAIN(1) / (cost + 1) + 1, copy_rows, &job);
    ts_free(f->thread, a.memory, a.bytes);
    return TS_OK;
}

#endif
