/**
 * @file resample.c
 * Average pooling, padding and resizing. For each spatial dim, a table (a sparse matrix) lists the
 * elements of the argument that an element of the result reads, and their weights; a gradient uses
 * the transposed table. A row of the result is computed in two steps: a weighted sum of rows of the
 * argument, then the table of the last dim within that sum.
 */
// SPDX-License-Identifier: MIT
#include "backends/cpu/axes.h"
#include "backends/cpu/loops.h"
#include "backends/cpu/slots.h"
#include "include/tessera/ops/resample.h"

#include <math.h>

/** A sparse matrix (out, in). The taps of row o, its nonzeros, are begin[o] to begin[o + 1] - 1. */
typedef struct table {
    int64_t in, out;    /* sizes of the dim in argument and result */
    int32_t *begin, *index; /* index: element of the argument that a tap reads */
    double *weight;
    float *weight32;    /* weight as f32 */
    /* the same matrix for vectors of rows */
    int32_t taps;           /* largest number of taps of a row; 0: too many for these lists */
    int64_t zero;           /* element of the argument's row that is 0, for missing taps */
    int64_t step;           /* tap k of row o is element k * step + o */
    int32_t *columns;       /* index of the tap; `zero` if row o has fewer taps */
    float *weights;         /* weight of the tap; 0 if row o has fewer taps */
} table;

typedef struct resample_job {
    const void *x;
    void *y;
    int64_t planes, channels; /* channels-last: samples and channels; else all planes and 1 */
    table axis[3];
    double factor;            /* ts_resampling.factor */
    bool last;                /* channels-last */
    int64_t item;             /* bytes of an element */
    const char *value;        /* padding with a constant: the element to store */
    ts_slots *slots;          /* scratch rows of threads */
} resample_job;

#define TS_REAL 32
#include "backends/cpu/resample_real.h"
#undef TS_REAL
#define TS_REAL 64
#include "backends/cpu/resample_real.h"
#undef TS_REAL

/* -------------------------------------------------------------------------------- tables ---- */

/** Elements that element o of the forward op's result reads: `count` from `first` on, clamped to
 * the dim. */
typedef struct taps {
    int64_t first, count;
    double weight, part[4]; /* weight: of each element; TS_AXIS_LINEAR and TS_AXIS_CUBIC have
                               part[k], the weight of element k, instead */
} taps;

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

static taps taps_of(const ts_axis *axis, int64_t o)
{
    int64_t in = axis->in, at = o - axis->padding;
    taps t = {.count = 1, .weight = 1};
    double place;
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
        place = axis->corners ? (double)o * axis->scale : ((double)o + 0.5) * axis->scale - 0.5;
        place = place < 0 ? 0 : place;
        t.first = ts_min64((int64_t)place, in - 1);
        t.count = 2;
        t.part[1] = fmin(place - (double)t.first, 1);
        t.part[0] = 1 - t.part[1];
        break;
    case TS_AXIS_CUBIC:
        place = axis->corners ? (double)o * axis->scale : ((double)o + 0.5) * axis->scale - 0.5;
        t.first = (int64_t)floor(place) - 1;
        t.count = 4;
        cubic_parts(place - floor(place), t.part);
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
static int64_t index_of(const ts_axis *axis, const taps *t, int64_t k)
{
    return ts_max64(ts_min64(t->first + k, axis->in - 1), 0);
}
static double weight_of(const ts_axis *axis, const taps *t, int64_t k)
{
    return axis->map == TS_AXIS_LINEAR || axis->map == TS_AXIS_CUBIC ? t->part[k] : t->weight;
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

/** Fills a table; while the arena has no memory, only adds up the bytes needed. Each element of the
 * dim becomes `channels` elements, one per channel. False if the table needs indices beyond 31
 * bits. */
static bool tabulate(table *t, const ts_axis *axis, int64_t channels, bool transposed, arena *a)
{
    int64_t total = 0, rows = (transposed ? axis->in : axis->out) * channels;
    for (int64_t o = 0; o < axis->out; o++)
        total += taps_of(axis, o).count * channels;
    t->in = (transposed ? axis->out : axis->in) * channels;
    t->out = rows;
    if (total > INT32_MAX || t->in > INT32_MAX || rows > INT32_MAX - 2)
        return false;
    t->begin = cut(a, rows + 2, sizeof *t->begin);
    t->index = cut(a, total, sizeof *t->index);
    t->weight = cut(a, total, sizeof *t->weight);
    t->weight32 = cut(a, total, sizeof *t->weight32);
    for (int pass = 0; a->memory && pass < 2; pass++) { /* 0: counts, then `begin`; 1: taps */
        if (pass == 0)
            memset(t->begin, 0, (size_t)(rows + 2) * sizeof *t->begin);
        for (int64_t o = 0; o < axis->out; o++) {
            taps of = taps_of(axis, o);
            for (int64_t k = 0; k < of.count * channels; k++) {
                int64_t c = k % channels, i = index_of(axis, &of, k / channels) * channels + c,
                        to = o * channels + c, row = transposed ? i : to;
                int32_t at = t->begin[row + 2 - pass]++;
                if (pass == 0)
                    continue;
                t->index[at] = (int32_t)(transposed ? to : i);
                t->weight[at] = weight_of(axis, &of, k / channels);
                t->weight32[at] = (float)t->weight[at];
            }
        }
        for (int64_t row = 2; pass == 0 && row <= rows + 1; row++)
            t->begin[row] += t->begin[row - 1];
    }
    return true;
}

/** Largest number of taps of a row. */
static int32_t most_taps(const table *t)
{
    int32_t most = 0;
    for (int64_t o = 0; o < t->out; o++)
        most = ts_max64(most, t->begin[o + 1] - t->begin[o]);
    return most;
}

enum { MOST_TAPS = 8,    /* of a row whose taps have lists */
       MOST_JOINED = LONG_TAPS - 1, /* the same in a joined table, whose taps are no runs */
       LANES_MOST = 16 };

/** Fills the lists `columns` and `weights` of a table, for rows of at most `most` taps. */
static void lay_out(table *t, int32_t most, arena *a)
{
    t->step = (t->out + LANES_MOST - 1) / LANES_MOST * LANES_MOST;
    t->columns = cut(a, most * t->step, sizeof *t->columns);
    t->weights = cut(a, most * t->step, sizeof *t->weights);
    t->zero = t->in;
    t->taps = 0;
    if (!a->memory)
        return;
    t->taps = most_taps(t);
    if (t->taps > most)
        t->taps = 0;
    for (int32_t k = 0; k < t->taps; k++)
        for (int64_t o = 0; o < t->step; o++) {
            int32_t tap = o < t->out ? t->begin[o] + k : 0;
            bool there = o < t->out && tap < t->begin[o + 1];
            t->columns[k * t->step + o] = there ? t->index[tap] : (int32_t)t->in;
            t->weights[k * t->step + o] = there ? t->weight32[tap] : 0;
        }
}

static ts_status make_tables(ts_frame *f, resample_job *job, const ts_resampling *r,
                             int64_t channels, arena *a)
{
    for (int pass = 0; pass < 2; pass++) {
        a->used = 0;
        for (int k = 0; k < 3; k++) {
            if (!tabulate(&job->axis[k], &r->axis[k], k == 2 ? channels : 1, r->transposed, a))
                return ts_fail_arg(f, 0, TS_ERR_UNSUPPORTED,
                                   "expected dims with fewer than 2^31 elements and weights");
            lay_out(&job->axis[k], MOST_TAPS, a);
        }
        if (pass == 0) {
            a->bytes = a->used;
            if (!(a->memory = ts_alloc(f->thread, a->bytes)))
                return ts_error_memory("tables of elements and weights", (int64_t)a->bytes);
        }
    }
    return TS_OK;
}

/* -------------------------------------------------------------------------------- joining ---- */

enum { SHORT_ROW = 32,        /* most elements of rows that are joined */
       JOINED = 2048,         /* most elements of rows that are joined further */
       JOINED_MOST = 1 << 15, /* most taps of a joined table */
       PER_TAP = 16 };        /* least elements of the result per tap of a joined table */

/** Fills t with the product of the tables of dims `first` to 2, repeated for `copies` planes. */
static void join_tables(table *t, const table *axis, int first, int64_t copies)
{
    int64_t taps = 0, each = t->out / copies, width = axis[2].out, height = axis[1].out;
    for (int64_t o = 0; o < each; o++) {
        const int64_t at[3] = {o / width / height, o / width % height, o % width};
        const table *d = &axis[0], *h = &axis[1], *w = &axis[2];
        int32_t zero = 0, one = 1, *begin = t->begin;
        begin[o] = (int32_t)taps;
        const int32_t *deep = first ? NULL : d->begin + at[0];
        for (int32_t i = deep ? deep[0] : zero; i < (deep ? deep[1] : one); i++)
            for (int32_t j = h->begin[at[1]]; j < h->begin[at[1] + 1]; j++)
                for (int32_t k = w->begin[at[2]]; k < w->begin[at[2] + 1]; k++, taps++) {
                    int64_t plane = deep ? d->index[i] : 0;
                    double weight = (deep ? d->weight[i] : 1) * h->weight[j] * w->weight[k];
                    t->index[taps] =
                        (int32_t)((plane * h->in + h->index[j]) * w->in + w->index[k]);
                    t->weight[taps] = weight;
                    t->weight32[taps] = (float)weight;
                }
    }
    for (int64_t o = each; o < t->out; o++)
        t->begin[o] = t->begin[o - each] + (int32_t)taps;
    t->begin[t->out] = (int32_t)(taps * copies);
    for (int64_t i = taps; i < taps * copies; i++) {
        t->index[i] = t->index[i - taps] + (int32_t)(t->in / copies);
        t->weight[i] = t->weight[i - taps];
        t->weight32[i] = t->weight32[i - taps];
    }
}

/**
 * Joins short rows to longer ones: the last dims become one, and several planes one plane. The
 * tables of the outer dims become those of one element. The choice depends only on the shape.
 * @param a     receives the new tables
 * @param rest  receives the number of planes that are left: fewer than a joined plane has
 * @param out   planes of a joined plane
 */
static ts_status join(ts_frame *f, resample_job *job, arena *a, int64_t *rest, int64_t *copies)
{
    const table *axis = job->axis;
    int64_t most[3], plane = axis[0].out * axis[1].out * axis[2].out, limit;
    *rest = 0;
    *copies = 1;
    limit = ts_min64(job->planes * plane / PER_TAP, JOINED_MOST);
    if (job->last || axis[2].out > SHORT_ROW || !limit)
        return TS_OK;
    for (int k = 0; k < 3; k++)
        most[k] = most_taps(&axis[k]);
    int first = 3;
    int64_t in = 1, out = 1, taps = 1;
    for (int k = 2; k >= 0; k--) {
        in *= axis[k].in;
        out *= axis[k].out;
        taps *= most[k];
        if (!taps || taps > MOST_JOINED || out * taps > limit || in > 4 * out)
            break;
        first = k;
    }
    if (first > 1)
        return TS_OK;
    table t = {.in = axis[1].in * axis[2].in, .out = axis[1].out * axis[2].out};
    taps = most[1] * most[2];
    if (!first) {
        t.in *= axis[0].in;
        t.out *= axis[0].out;
        taps *= most[0];
    }
    if (!first || (axis[0].in == 1 && axis[0].out == 1)) {
        *copies = ts_min64(ts_min64(job->planes, limit / (t.out * taps)), JOINED / t.out);
        *copies = ts_max64(*copies, 1);
    }
    t.in *= *copies;
    t.out *= *copies;
    table one = {.in = 1, .out = 1, .taps = 1};
    for (int pass = 0; pass < 2; pass++) {
        a->used = 0;
        one.begin = cut(a, 2, sizeof *one.begin);
        one.index = cut(a, 1, sizeof *one.index);
        one.weight = cut(a, 1, sizeof *one.weight);
        t.begin = cut(a, t.out + 1, sizeof *t.begin);
        t.index = cut(a, t.out * taps, sizeof *t.index);
        t.weight = cut(a, t.out * taps, sizeof *t.weight);
        t.weight32 = cut(a, t.out * taps, sizeof *t.weight32);
        if (pass)
            join_tables(&t, axis, first, *copies);
        lay_out(&t, MOST_JOINED, a);
        if (pass)
            break;
        a->bytes = a->used;
        if (!(a->memory = ts_alloc(f->thread, a->bytes)))
            return ts_error_memory("tables of elements and weights", (int64_t)a->bytes);
    }
    one.begin[0] = one.index[0] = 0;
    one.begin[1] = 1;
    one.weight[0] = 1;
    for (int k = first; k < 2; k++)
        job->axis[k] = one;
    job->axis[2] = t;
    *rest = job->planes % *copies;
    job->planes /= *copies;
    return TS_OK;
}

/* -------------------------------------------------------------------------------- copies ---- */

/** Element of the argument that element o of a copy reads; -1: the value of the padding. */
static int64_t source_of(const table *t, int64_t o)
{
    return t->begin[o] < t->begin[o + 1] ? t->index[t->begin[o]] : -1;
}

#define FILL(U)                                                                                    \
    {                                                                                              \
        U item_value;                                                                              \
        memcpy(&item_value, value, sizeof item_value);                                             \
        for (int64_t i = 0; i < count; i++)                                                        \
            ((U *)(void *)y)[i] = item_value;                                                      \
        break;                                                                                     \
    }

static void fill_items(char *y, const char *value, int64_t count, int64_t item)
{
    switch (item) {
    case 1: FILL(uint8_t)
    case 2: FILL(uint16_t)
    case 4: FILL(uint32_t)
    default: FILL(uint64_t)
    }
}

/* Copies elements of type U. dense: each element of the row has a source. */
#define COPY_ROW(U)                                                                                \
    {                                                                                              \
        U *to = (U *)(void *)y;                                                                    \
        const U *from = (const U *)(const void *)x;                                                \
        if (dense)                                                                                 \
            for (; o < end; o++)                                                                   \
                to[o] = from[t->index[o]];                                                         \
        for (; o < end; o++)                                                                       \
            to[o] = t->begin[o + 1] > t->begin[o] ? from[t->index[t->begin[o]]]                    \
                                                  : *(const U *)(const void *)job->value;          \
        break;                                                                                     \
    }

/** Copies elements o to end - 1 of a row y of the result from the row x. */
static void copy_some(const resample_job *job, char *y, const char *x, int64_t o, int64_t end)
{
    const table *t = &job->axis[2];
    int64_t pixel = job->item * job->channels;
    bool dense = t->begin[t->out] == t->out;
    if (t->begin[end] == t->begin[o]) { /* no element has a source */
        fill_items(y + o * pixel, job->value, (end - o) * job->channels, job->item);
        return;
    }
    if (job->channels > 1) {
        for (; o < end; o++) {
            int64_t i = source_of(t, o);
            if (i < 0)
                fill_items(y + o * pixel, job->value, job->channels, job->item);
            else
                memcpy(y + o * pixel, x + i * pixel, (size_t)pixel);
        }
        return;
    }
    switch (job->item) {
    case 1: COPY_ROW(uint8_t)
    case 2: COPY_ROW(uint16_t)
    case 4: COPY_ROW(uint32_t)
    default: COPY_ROW(uint64_t)
    }
}

/** Body of the parallel loop for ops that only copy elements: rows begin to end - 1 of (planes,
 * depth, height). The longest run of neighbouring sources in a row is one memcpy. */
static void copy_rows(void *ctx, int64_t begin, int64_t end)
{
    const resample_job *job = ctx;
    const table *depth = &job->axis[0], *height = &job->axis[1], *t = &job->axis[2];
    int64_t pixel = job->item * job->channels, run = 0, run_end = 0;
    for (int64_t o = 0, from = 0; o < t->out; o++) {
        if (o > from && (source_of(t, o) != source_of(t, o - 1) + 1 || source_of(t, o - 1) < 0))
            from = o;
        if (source_of(t, o) >= 0 && o + 1 - from > run_end - run) {
            run = from;
            run_end = o + 1;
        }
    }
    for (int64_t row = begin; row < end; row++) {
        int64_t h = source_of(height, row % height->out), rest = row / height->out,
                d = source_of(depth, rest % depth->out), plane = rest / depth->out;
        char *y = (char *)job->y + row * t->out * pixel;
        if (h < 0 || d < 0) {
            fill_items(y, job->value, t->out * job->channels, job->item);
            continue;
        }
        const char *x = (const char *)job->x +
                        ((plane * depth->in + d) * height->in + h) * t->in * pixel;
        copy_some(job, y, x, 0, run);
        if (run_end > run)
            memcpy(y + run * pixel, x + source_of(t, run) * pixel,
                   (size_t)((run_end - run) * pixel));
        copy_some(job, y, x, run_end, t->out);
    }
}

/* --------------------------------------------------------------------------------- calls ---- */

enum { SHORT = 1024, /* maximum elements of dims that are merged */
       FEW_CHANNELS = 16 }; /* below this, channels-last pixels do not fill vectors, and channels
                               become a part of the last dim */

/** Merges neighbouring dims that an adaptive pool averages to one element, and turns the gradient
 * of constant padding into a copy. */
static void simplify(ts_resampling *r)
{
    for (int k = 0; k < 2; k++) {
        ts_axis *outer = &r->axis[k], *inner = &r->axis[k + 1];
        bool one = outer->in == 1 && outer->out == 1;
        if (inner->map == TS_AXIS_ADAPTIVE && outer->map == TS_AXIS_ADAPTIVE && inner->out == 1 &&
            outer->out == 1 && !one && inner->in * outer->in <= SHORT) {
            inner->in *= outer->in;
            *outer = (ts_axis){.map = TS_AXIS_CONSTANT, .in = 1, .out = 1};
        }
    }
    if (!r->transposed || r->axis[2].map != TS_AXIS_CONSTANT)
        return;
    r->transposed = false;
    for (int k = 0; k < 3; k++) {
        ts_axis *a = &r->axis[k];
        *a = (ts_axis){.map = TS_AXIS_CONSTANT, .in = a->out, .out = a->in, .padding = -a->padding};
    }
}

/** Computes all rows of the result. */
static ts_status run(ts_frame *f, resample_job *job, bool only_copies)
{
    const table *width = &job->axis[2];
    int64_t rows = job->planes * job->axis[0].out * job->axis[1].out,
            read = job->axis[0].taps * job->axis[1].taps * width->in,
            cost = (width->out * ts_max64(width->taps, 1) + read) * job->channels;
    static const ts_parallel_body bodies[] = {[TS_F64] = resample_rows_f64,
                                              [TS_F32] = resample_rows_f32,
                                              [TS_BF16] = resample_rows_bf16,
                                              [TS_F16] = resample_rows_f16};
    if (rows <= 0)
        return TS_OK;
    if (only_copies) {
        ts_parallel_for(rows, TS_CPU_GRAIN(1) / (cost + 1) + 1, copy_rows, job);
        return TS_OK;
    }
    ts_slots slots;
    TS_TRY(ts_slots_begin(f, &slots, rows, (ts_max64(width->zero, width->in) + width->out + 32) * 8,
                          "rows of an image"));
    job->slots = &slots;
    ts_parallel_for(rows, TS_CPU_GRAIN(1) / (cost + 1) + 1, bodies[f->plan->compute], job);
    ts_slots_end(f, &slots);
    return TS_OK;
}

static ts_status resample(ts_frame *f)
{
    ts_resampling r = ts_cpu_resampling(f);
    const ts_tensor *x = f->args[0].t, *y = f->rets[0].t;
    resample_job job = {.x = x->data, .y = y->data, .planes = r.planes, .channels = 1,
                        .factor = r.factor, .item = ts_dtype_sizes[x->dtype],
                        .last = ts_is_dense_last(x) && ts_is_dense_last(y)};
    char value[8] = {0};
    if (!x->numel && !y->numel)
        return TS_OK;
    int64_t channels = 1;
    if (job.last) {
        job.channels = x->sizes[1];
        job.planes = x->sizes[0];
        if (job.channels < FEW_CHANNELS) {
            channels = job.channels;
            job.channels = 1;
            job.last = false;
        }
    }
    simplify(&r);
    if (f->op == TS_OP_pad)
        ts_scalar_store(&f->args[3], (ts_dtype)x->dtype, value);
    job.value = value;
    arena a = {0}, joined = {0};
    int64_t rest = 0, copies = 1;
    TS_TRY(make_tables(f, &job, &r, channels, &a));
    bool only_copies = !r.transposed &&
                       (r.axis[2].map == TS_AXIS_NEAREST || r.axis[2].map >= TS_AXIS_CONSTANT);
    ts_status status = join(f, &job, &joined, &rest, &copies);
    if (status == TS_OK)
        status = run(f, &job, only_copies);
    if (status == TS_OK && rest) { /* a shorter row: the first part of the joined tables */
        table *t = &job.axis[2];
        job.x = (const char *)job.x + job.planes * t->in * job.item;
        job.y = (char *)job.y + job.planes * t->out * job.item;
        job.planes = 1;
        t->in = t->in / copies * rest;
        t->out = t->out / copies * rest;
        status = run(f, &job, only_copies);
    }
    if (joined.memory)
        ts_free(f->thread, joined.memory, joined.bytes);
    ts_free(f->thread, a.memory, a.bytes);
    return status;
}

#define FLOATS {TS_DT_FLOATS | TS_DT_HALVES, 0}
TS_CPU_FAMILY(resample,
    {TS_OP_avg_pool, resample, FLOATS},
    {TS_OP_avg_pool_backward, resample, FLOATS},
    {TS_OP_adaptive_avg_pool, resample, FLOATS},
    {TS_OP_adaptive_avg_pool_backward, resample, FLOATS},
    {TS_OP_interpolate, resample, FLOATS},
    {TS_OP_interpolate_backward, resample, FLOATS},
    {TS_OP_pad, resample, {0, 0}},
    {TS_OP_pad_backward, resample, FLOATS})
