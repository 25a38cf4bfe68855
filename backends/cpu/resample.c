/**
 * @file resample.c
 * Average pooling, padding and resizing. For each spatial dim, a table (a sparse matrix) lists the
 * elements of the argument that an element of the result reads, and their weights; a gradient uses
 * the transposed table. A row of the result is computed in two steps: a weighted sum of rows of the
 * argument, then the product of the last dim's table and this sum. If a call has few long lines,
 * they are computed without tables, which would cost more than the sums. Ops that only copy
 * elements use lists of source indices (resample_copies.h).
 */
// SPDX-License-Identifier: MIT
#include "backends/cpu/axes.h"
#include "backends/cpu/loops.h"
#include "backends/cpu/resample_copies.h"
#include "backends/cpu/slots.h"
#include "core/convert.h"
#include "include/tessera/ops/resample.h"

/** Pattern of VF_LANES adjacent indices in `columns` of a table, which selects the load: arbitrary,
 * equal, consecutive, or, apart from missing taps, within one or two vectors that start at the
 * smallest index. */
typedef enum index_pattern {
    PATTERN_ANY,
    PATTERN_EQUAL,
    PATTERN_CONSECUTIVE,
    PATTERN_ONE_VECTOR,
    PATTERN_TWO_VECTORS
} index_pattern;

/** A sparse matrix (out, in). The taps of row o, its nonzeros, are begin[o] to begin[o + 1] - 1. */
typedef struct table {
    int64_t in, out;    /* sizes of the dim in argument and result */
    int32_t *begin, *index; /* index: element of the argument that a tap reads */
    double *weight;
    float *weight32;    /* weight as f32 */
    /* the same matrix for vectors of rows: tap k of row o is element k * step + o of the lists */
    int32_t taps;           /* largest number of taps of a row; 0: too many for these lists */
    int64_t zero;           /* index of a 0 after the argument's row, for missing taps */
    int64_t step;           /* `out` rounded up to whole vectors */
    int32_t *columns;       /* index of the tap; `zero` if row o has fewer taps */
    int32_t *first;         /* smallest index of each VF_LANES columns */
    float *weights;         /* weight of the tap; 0 if row o has fewer taps */
    uint8_t *pattern;       /* index_pattern of each VF_LANES columns */
} table;

typedef struct resample_job {
    const void *x;
    void *y;
    int64_t planes, channels; /* channels-last: samples and channels; else all planes and 1 */
    table axis[3];
    double factor;            /* ts_resampling.factor */
    bool last;                /* channels-last */
    bool large;               /* x has at least TS_LARGE_IMAGE bytes */
    ts_slots *slots;          /* scratch rows of threads */
} resample_job;

/** Planes of `size` consecutive elements that are averaged to one element each. */
typedef struct average_job {
    const void *x;
    void *y;
    int64_t size;
} average_job;

/** Lines along one dim, one per plane and channel. Elements of a line are `channels` elements
 * apart. */
typedef struct line_job {
    const void *x;
    void *y;
    int64_t planes, channels;
    const ts_axis *axis;
    int64_t in, out;          /* elements of a line of x and of a line of y */
    int64_t part;             /* elements of a line of y per task */
    double factor;            /* multiplies all weights */
    bool transposed;
    ts_slots *slots;
} line_job;
enum { LINE_PART = 512,       /* most elements of a line of y per task */
       LINE_LEAST = 1024,     /* fewest elements of a line of x and one of y */
       LINE_TASKS = 64,       /* most tasks of a short line of y */
       LINE_TAPS = 128,       /* elements of the forward op's result whose taps are buffered */
       LINES_MOST = 16 };     /* most lines that are computed without tables */

#define TS_REAL 32
#include "backends/cpu/resample_real.h"
#undef TS_REAL
#define TS_REAL 64
#include "backends/cpu/resample_real.h"
#undef TS_REAL

/* -------------------------------------------------------------------------------- tables ---- */

/** Upper bound of the number of taps of all elements of the forward op's result. */
static int64_t taps_bound(const ts_axis *axis)
{
    switch (axis->map) {
    case TS_AXIS_WINDOW: return axis->out * ts_min64(axis->kernel, axis->in);
    case TS_AXIS_ADAPTIVE: return axis->in + axis->out;
    case TS_AXIS_LINEAR: return 2 * axis->out;
    case TS_AXIS_CUBIC: return 4 * axis->out;
    default: return axis->out;
    }
}

/** Fills the sparse matrix of a table; while the arena has no memory, only adds up the bytes
 * needed. Each element of the dim becomes `channels` elements, one per channel. Returns false if an
 * index needs more than 31 bits. */
static bool tabulate(table *t, const ts_axis *axis, int64_t channels, bool transposed, arena *a)
{
    int64_t total = taps_bound(axis) * channels,
            rows = (transposed ? axis->in : axis->out) * channels;
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
            for (int64_t k = 0; k < of.count; k++) {
                int64_t i = index_of(axis, &of, k) * channels, row = transposed ? i : o * channels,
                        from = transposed ? o * channels : i;
                double weight = weight_of(axis, &of, k);
                for (int64_t c = 0; c < channels; c++) {
                    int32_t at = t->begin[row + c + 2 - pass]++;
                    if (pass == 0)
                        continue;
                    t->index[at] = (int32_t)(from + c);
                    t->weight[at] = weight;
                    t->weight32[at] = (float)weight;
                }
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

enum { MOST_TAPS = 8,    /* most taps of a row in the lists of a table */
       MOST_JOINED = LONG_TAPS - 1, /* the same for a joined table */
       LANES_MOST = 16 };    /* largest VF_LANES of a variant */

/** Fills the lists `columns`, `weights`, `first` and `pattern` of a table if its rows have at most
 * `most` taps; else sets t->taps to 0. */
static void lay_out(table *t, int32_t most, arena *a)
{
    t->step = (t->out + LANES_MOST - 1) / LANES_MOST * LANES_MOST;
    t->columns = cut(a, most * t->step, sizeof *t->columns);
    t->weights = cut(a, most * t->step, sizeof *t->weights);
    t->first = cut(a, most * t->step / VF_LANES, sizeof *t->first);
    t->pattern = cut(a, most * t->step / VF_LANES, 1);
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
            bool exists = o < t->out && tap < t->begin[o + 1];
            t->columns[k * t->step + o] = exists ? t->index[tap] : (int32_t)t->in;
            t->weights[k * t->step + o] = exists ? t->weight32[tap] : 0;
        }
    for (int64_t i = 0; i < t->taps * t->step; i += VF_LANES) {
        const int32_t *c = t->columns + i;
        bool equal = true, next = true;
        int32_t low = c[0], high = 0;
        for (int k = 0; k < VF_LANES; k++) {
            equal &= c[k] == c[0];
            next &= c[k] == c[0] + k;
            low = c[k] < low ? c[k] : low;
            high = c[k] != t->zero && c[k] > high ? c[k] : high;
        }
        t->first[i / VF_LANES] = low;
        t->pattern[i / VF_LANES] = equal                       ? PATTERN_EQUAL
                                   : next                      ? PATTERN_CONSECUTIVE
                                   : high - low < VF_LANES     ? PATTERN_ONE_VECTOR
                                   : high - low < 2 * VF_LANES ? PATTERN_TWO_VECTORS
                                                               : PATTERN_ANY;
    }
}

/** Allocates and fills the tables of all dims. The caller frees a->memory. TS_ERR_UNSUPPORTED if an
 *  index needs more than 31 bits, TS_ERR_MEMORY. */
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

enum { SHORT_ROW = 32,        /* most elements of rows whose dims are joined */
       JOINED = 2048,         /* most elements of a row that joins several planes */
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
 * Joins short rows to longer ones: the last dims become one, and several planes become one joined
 * plane. The tables of the outer dims become those of one element. The choice depends only on the
 * shape. Sets job->planes to the number of whole joined planes.
 * @param a       receives the new tables; the caller frees a->memory
 * @param rest    receives the number of planes after the last whole joined plane
 * @param copies  receives the number of planes per joined plane
 * @return TS_ERR_MEMORY if the tables cannot be allocated
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
    int64_t out = 1, taps = 1;
    for (int k = 2; k >= 0; k--) {
        out *= axis[k].out;
        taps *= most[k];
        if (!taps || taps > MOST_JOINED || out * taps > limit)
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

/* --------------------------------------------------------------------------------- lines ---- */

static bool is_one(const ts_axis *axis) { return axis->in == 1 && axis->out == 1; }

/** True if the call has few long lines, and elements have few taps or are sums over windows.
 * Depends only on the shape. */
static bool has_few_lines(const ts_resampling *r, int64_t planes, int64_t channels)
{
    const ts_axis *a = &r->axis[2];
    bool windows = a->map <= TS_AXIS_ADAPTIVE && !r->transposed && channels == 1;
    return planes * channels <= LINES_MOST && is_one(&r->axis[0]) && is_one(&r->axis[1]) &&
           a->in + a->out > LINE_LEAST && a->map < TS_AXIS_CONSTANT &&
           (windows || taps_bound(a) <= MOST_TAPS * (r->transposed ? a->in : a->out));
}

/** Computes lines without tables. TS_ERR_MEMORY. */
static ts_status run_lines(ts_frame *f, const resample_job *of, const ts_resampling *r)
{
    const ts_axis *a = &r->axis[2];
    line_job job = {.x = of->x, .y = of->y, .planes = of->planes, .channels = of->channels,
                    .axis = a, .transposed = r->transposed, .factor = r->factor,
                    .in = r->transposed ? a->out : a->in, .out = r->transposed ? a->in : a->out};
    for (int k = 0; k < 2; k++) {
        taps t = taps_of(&r->axis[k], 0);
        double weight = 0;
        for (int64_t i = 0; i < t.count; i++)
            weight += weight_of(&r->axis[k], &t, i);
        job.factor *= weight;
    }
    static const ts_parallel_body bodies[] = {[TS_F64] = resample_lines_f64,
                                              [TS_F32] = resample_lines_f32,
                                              [TS_BF16] = resample_lines_bf16,
                                              [TS_F16] = resample_lines_f16};
    int64_t lines = job.planes * job.channels;
    if (!job.out || !lines)
        return TS_OK;
    job.part = ts_min64(LINE_PART, ts_ceil_div(job.out, LINE_TASKS));
    int64_t tasks = ts_ceil_div(job.out, job.part), taps = taps_bound(a) / tasks + job.part;
    ts_slots slots;
    TS_TRY(ts_slots_begin(f, &slots, tasks, lines * job.part * 8, "parts of lines"));
    job.slots = &slots;
    ts_parallel_for(tasks, TS_CPU_GRAIN(4) / (lines * taps) + 1, bodies[f->plan->compute], &job);
    ts_slots_end(f, &slots);
    return TS_OK;
}

/* --------------------------------------------------------------------------------- calls ---- */

enum { SHORT = 1024, /* maximum elements of dims that are merged */
       FEW_CHANNELS = 16 }; /* channels-last pixels with fewer channels do not fill vectors, so the
                               channels become a part of the last dim */

/** While the width is one element with weight 1, replaces it with the next outer dim, because rows
 * are lines along the width. */
static void drop_widths_of_one(ts_resampling *r)
{
    ts_axis *axis = r->axis;
    for (int k = 0; k < 2; k++) {
        if (!is_one(&axis[2]) || (is_one(&axis[0]) && is_one(&axis[1])))
            return;
        taps t = taps_of(&axis[2], 0);
        double weight = 0;
        for (int64_t i = 0; i < t.count; i++)
            weight += weight_of(&axis[2], &t, i);
        if (weight != 1)
            return;
        axis[2] = axis[1];
        axis[1] = axis[0];
        axis[0] = (ts_axis){.map = TS_AXIS_CONSTANT, .in = 1, .out = 1};
    }
}

/** Merges adjacent dims that an adaptive pool averages to one element, and converts the gradient of
 * constant padding to a copy with negative padding. */
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
static ts_status run(ts_frame *f, resample_job *job)
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
    ts_slots slots;
    int64_t room = ts_max64(width->zero, width->in) + width->out + 32;
    TS_TRY(ts_slots_begin(f, &slots, rows, (job->last ? ts_max64(room, SUMMED_CHANNELS) : room) * 8,
                          "rows of an image"));
    job->slots = &slots;
    ts_parallel_for(rows, TS_CPU_GRAIN(1) / (cost + 1) + 1, bodies[f->plan->compute], job);
    ts_slots_end(f, &slots);
    return TS_OK;
}

/** Computes sums by tables. channels: elements of the tables' last dim per position. */
static ts_status run_tables(ts_frame *f, resample_job *job, const ts_resampling *r,
                            int64_t channels)
{
    arena a = {0}, joined = {0};
    int64_t rest = 0, copies = 1;
    TS_TRY(make_tables(f, job, r, channels, &a));
    ts_status status = join(f, job, &joined, &rest, &copies);
    if (status == TS_OK)
        status = run(f, job);
    if (status == TS_OK && rest) { /* a shorter row, which uses the first part of the tables */
        table *t = &job->axis[2];
        int64_t item = ts_dtype_sizes[f->args[0].t->dtype];
        job->x = (const char *)job->x + job->planes * t->in * item;
        job->y = (char *)job->y + job->planes * t->out * item;
        job->planes = 1;
        t->in = t->in / copies * rest;
        t->out = t->out / copies * rest;
        status = run(f, job);
    }
    if (joined.memory)
        ts_free(f->thread, joined.memory, joined.bytes);
    ts_free(f->thread, a.memory, a.bytes);
    return status;
}

/** True if an adaptive pool averages each plane of several f32 or f64 to one element, and the
 *  planes are contiguous. */
static bool averages_planes(const ts_frame *f, const ts_resampling *r, const resample_job *job)
{
    bool wide = f->plan->compute == TS_F64 || f->plan->compute == TS_F32;
    return f->op == TS_OP_adaptive_avg_pool && wide && !job->last && f->args[0].t->numel &&
           r->axis[0].out == 1 && r->axis[1].out == 1 && r->axis[2].out == 1 &&
           r->axis[0].in * r->axis[1].in * r->axis[2].in > 1;
}

static void average_planes(const ts_frame *f, const ts_resampling *r, const resample_job *of)
{
    average_job job = {of->x, of->y, r->axis[0].in * r->axis[1].in * r->axis[2].in};
    ts_parallel_for(of->planes, TS_CPU_GRAIN(1) / (job.size + 1) + 1,
                    f->plan->compute == TS_F64 ? average_planes_f64 : average_planes_f32, &job);
}

static ts_status resample(ts_frame *f)
{
    ts_resampling r = ts_cpu_resampling(f);
    const ts_tensor *x = f->args[0].t, *y = f->rets[0].t;
    resample_job job = {.x = x->data, .y = y->data, .planes = r.planes, .channels = 1,
                        .factor = r.factor,
                        .last = ts_is_last_image(&r, x) && ts_is_last_image(&r, y),
                        .large = x->numel * ts_dtype_sizes[x->dtype] >= TS_LARGE_IMAGE};
    if (!x->numel && !y->numel)
        return TS_OK;
    if (job.last) {
        job.channels = x->sizes[1];
        job.planes = x->sizes[0];
    }
    if (averages_planes(f, &r, &job)) {
        average_planes(f, &r, &job);
        return TS_OK;
    }
    simplify(&r);
    drop_widths_of_one(&r);
    bool only_copies = !r.transposed &&
                       (r.axis[2].map == TS_AXIS_NEAREST || r.axis[2].map >= TS_AXIS_CONSTANT);
    if (!only_copies && has_few_lines(&r, job.planes, job.channels))
        return run_lines(f, &job, &r);
    int64_t channels = 1;
    if (job.channels < FEW_CHANNELS) {
        channels = job.channels;
        job.channels = 1;
        job.last = false;
    }
    if (!only_copies)
        return run_tables(f, &job, &r, channels);
    char value[8] = {0};
    if (f->op == TS_OP_pad)
        ts_scalar_store(&f->args[3], (ts_dtype)x->dtype, value);
    return copy_images(f, &r, job.planes, job.channels, channels, value);
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
