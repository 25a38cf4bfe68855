/**
 * @file reduce.c
 * Reductions over dims: sum, mean, prod, max, min, norms, variance, logsumexp.
 *
 * A reduction is a chain of passes. Each pass folds the elements into parts, whose division depends
 * only on the layout; the next pass folds the parts, until one is left. So the bits are the same
 * for any number of threads, and the error of a sum grows with the depth of the chain of passes.
 *
 *   inner pass   the elements of a result form runs; vectors run along the elements
 *   outer pass   adjacent results are contiguous (column sums); vectors run across results
 *   turned pass  results of few elements: a tile is transposed into columns of an outer pass
 */
// SPDX-License-Identifier: MIT
#include "backends/cpu/rows.h"
#include "core/parallel.h"
#include "ops/kernel.h"

#include <float.h>
#include <stdlib.h>

enum {
    RUN_BLOCK = TS_PIECE, /* elements of a part in an inner pass */
    ROW_BLOCK = 64,   /* rows of a part in an outer pass */
    ROW_LEVELS = 4,   /* levels of the cascade; a part has at most 10 leaves of 8, 4, 2 or 1 rows */
    TILE = 448,       /* columns of a task in an outer pass: their cascade is 14 KiB of f64 */
    NARROW = 128,     /* columns of halves that are widened at a time */
    SHORT = 32,       /* most elements per result in a turned pass */
    TURNED = 1024,    /* elements of a tile in a turned pass */
    ACROSS = 256      /* integer results that a task folds side by side */
};

typedef enum finish {
    FINISH_NONE,
    FINISH_DIVIDE,      /* divide by the length */
    FINISH_ROOT,
    FINISH_DIVIDE_ROOT,
    FINISH_LOG,         /* log(y) + parameter */
    FINISH_FINITE       /* infinities become 0, so that logsumexp can subtract the value */
} finish;

/** One pass: dims innermost first, steps in bytes. */
typedef struct reduction {
    const char *x;
    char *out;          /* results or parts, contiguous */
    const void *params; /* one per result, or NULL */
    int kept, reduced;
    int64_t kept_sizes[TS_MAX_DIMS], kept_steps[TS_MAX_DIMS];
    int64_t sizes[TS_MAX_DIMS], steps[TS_MAX_DIMS];
    int64_t results, length; /* products of kept_sizes and of sizes; the columns of an outer pass
                                (width) are not in results */
    int64_t parts;
    int64_t pieces, runs, all_runs; /* inner: pieces of a run, or whole runs, that make a part */
    int64_t width, tiles;           /* outer: columns, and tiles of columns; width is 0 in other
                                       passes */
    int64_t turned;                 /* turned: results per task; 0 in other passes */
    bool widen;                     /* x has the dtype `half` and is folded in f32 */
    ts_dtype half;
} reduction;

/* ---------------------------------------------------------------------- walking dims ------ */

/** An index into n dims, innermost first, and its byte offset. */
typedef struct walker {
    int n;
    const int64_t *sizes, *steps;
    int64_t at[TS_MAX_DIMS], offset;
} walker;

VEC_FN walker walker_at(int n, const int64_t *sizes, const int64_t *steps, int64_t index)
{
    walker w;
    w.n = n;
    w.sizes = sizes;
    w.steps = steps;
    w.offset = 0;
    for (int d = 0; d < n; d++) {
        w.at[d] = index;
        /* the last dim takes the rest without division; most reductions have one dim */
        if (d + 1 < n) {
            w.at[d] = index % sizes[d];
            index /= sizes[d];
        }
        w.offset += w.at[d] * steps[d];
    }
    return w;
}
/** Advances by n positions of the innermost dim, at most to its end, where it carries. */
VEC_FN void walker_move(walker *w, int64_t n)
{
    for (int d = 0; d < w->n; d++, n = 1) {
        w->offset += n * w->steps[d];
        if ((w->at[d] += n) < w->sizes[d])
            return;
        w->offset -= w->sizes[d] * w->steps[d];
        w->at[d] = 0;
    }
}
VEC_FN void walker_next(walker *w) { walker_move(w, 1); }
/** Number of positions to the end of the innermost dim, at most n. */
VEC_FN int64_t walker_run(const walker *w, int64_t n)
{
    return w->n ? ts_min64(w->sizes[0] - w->at[0], n) : n;
}
/** Step of the innermost dim in bytes; 0 without dims. */
VEC_FN int64_t walker_step(const walker *w) { return w->n ? w->steps[0] : 0; }

/** A turned pass, and the outer pass that folds its columns. */
typedef struct turned_job {
    const reduction *r;
    ts_parallel_body outer;
} turned_job;

#define TS_REAL 32
#include "backends/cpu/reduce_real.h"
#undef TS_REAL
#define TS_REAL 64
#include "backends/cpu/reduce_real.h"
#undef TS_REAL

/* ---------------------------------------------------------------------- geometry ---------- */

/** Appends a dim, innermost first, merging it with its inner neighbour where the steps allow. */
static int add_dim(int n, int64_t *sizes, int64_t *steps, int64_t size, int64_t step)
{
    if (size == 1)
        return n;
    if (n && steps[n - 1] * sizes[n - 1] == step) {
        sizes[n - 1] *= size;
        return n;
    }
    sizes[n] = size;
    steps[n] = step;
    return n + 1;
}

/** The first pass over t; bit d of mask: dim d is reduced. Every size is at least 1. */
static void plan_first(reduction *r, const ts_tensor *t, int64_t mask)
{
    int64_t item = ts_dtype_sizes[t->dtype];
    r->half = (ts_dtype)t->dtype;
    r->widen = ts_dtype_is_half(r->half);
    r->kept = r->reduced = 0;
    r->results = r->length = 1;
    r->width = 0;
    for (int d = t->ndim - 1; d >= 0; d--) {
        int64_t size = t->sizes[d], step = t->strides[d] * item;
        if (mask >> d & 1) {
            r->reduced = add_dim(r->reduced, r->sizes, r->steps, size, step);
            r->length *= size;
        } else {
            r->kept = add_dim(r->kept, r->kept_sizes, r->kept_steps, size, step);
            r->results *= size;
        }
    }
    if (!r->reduced) {
        r->sizes[0] = 1;
        r->steps[0] = item;
        r->reduced = 1;
    }
    if (r->kept && r->kept_steps[0] == item) {
        r->width = r->kept_sizes[0];
        r->results /= r->width;
        r->kept--;
        memmove(r->kept_sizes, r->kept_sizes + 1, sizeof(int64_t) * (size_t)r->kept);
        memmove(r->kept_steps, r->kept_steps + 1, sizeof(int64_t) * (size_t)r->kept);
        return;
    }
    int run = 0; /* the dim that makes the runs: the one with the smallest step */
    for (int d = 1; d < r->reduced; d++)
        if (llabs(r->steps[d]) < llabs(r->steps[run]))
            run = d;
    int64_t size = r->sizes[run], step = r->steps[run];
    for (int d = run; d > 0; d--) {
        r->sizes[d] = r->sizes[d - 1];
        r->steps[d] = r->steps[d - 1];
    }
    r->sizes[0] = size;
    r->steps[0] = step;
}

/** Divides a pass into parts, from the shape alone. */
static void plan_parts(reduction *r)
{
    r->turned = 0;
    if (r->width) {
        r->parts = ts_ceil_div(r->length, ROW_BLOCK);
        r->tiles = ts_ceil_div(r->width, TILE);
        return;
    }
    if (r->length <= SHORT && r->results >= 8) {
        r->parts = 1;
        r->turned = ts_min64(TILE, TURNED / r->length);
        return;
    }
    r->all_runs = r->length / r->sizes[0];
    r->pieces = ts_ceil_div(r->sizes[0], RUN_BLOCK);
    r->runs = ts_max64(RUN_BLOCK / r->sizes[0], 1);
    r->parts = r->pieces > 1 ? r->pieces * r->all_runs : ts_ceil_div(r->all_runs, r->runs);
}

/** Plans the next pass, which folds the results of this pass, stored at `parts`. */
static void plan_next(reduction *r, const char *parts, int64_t item)
{
    int64_t columns = r->width ? r->width : 1, n = r->parts;
    r->x = parts;
    r->params = NULL;
    r->widen = false;
    r->kept = add_dim(0, r->kept_sizes, r->kept_steps, r->results, n * columns * item);
    r->reduced = 1;
    r->sizes[0] = r->length = n;
    r->steps[0] = columns * item;
}

static void run_pass(reduction *r, fold how, bool wide)
{
    const ts_parallel_body *body = (wide ? bodies_f64 : bodies_f32)[how];
    int cost = how == FOLD_EXP ? wide ? 32 : 4 : 1;
    int64_t tasks = r->results * r->parts, work;
    if (r->turned) {
        turned_job job = {r, body[1]};
        ts_parallel_for(ts_ceil_div(r->results, r->turned),
                        TS_CPU_GRAIN(cost + 2) / (r->turned * r->length) + 1,
                        wide ? turned_tasks_f64 : turned_tasks_f32, &job);
        return;
    }
    if (r->width) {
        tasks *= r->tiles;
        work = ts_min64(ROW_BLOCK, r->length) * ts_min64(TILE, r->width);
    } else {
        work = ts_min64(RUN_BLOCK, r->length) * (r->steps[0] == (wide ? 8 : 4) ? 1 : 4);
    }
    ts_parallel_for(tasks, TS_CPU_GRAIN(cost) / work + 1, body[r->width != 0], r);
}

/** Later passes fold the mapped values of the first pass. */
static fold fold_of_parts(fold how)
{
    return how == FOLD_ABSMAX ? FOLD_MAX : how >= FOLD_SQUARES ? FOLD_SUM : how;
}

/** Folds the parts of a pass to its results, in further passes. from: the parts; to: room for the
 *  parts of the next pass. */
static void join_parts(reduction *r, fold how, bool wide, char *from, char *to, void *results)
{
    do {
        plan_next(r, from, wide ? 8 : 4);
        plan_parts(r);
        r->out = r->parts == 1 ? results : to;
        run_pass(r, fold_of_parts(how), wide);
        char *swap = from;
        from = to;
        to = swap;
    } while (r->parts > 1);
}

/**
 * Folds t over the dims of mask into results, contiguous in the order of the kept dims.
 * @param params  one value per result for FOLD_DISTANCES, FOLD_DEVIATIONS and FOLD_EXP; else NULL
 */
static ts_status reduce_into(ts_frame *f, const ts_tensor *t, int64_t mask, fold how,
                             const void *params, void *results)
{
    bool wide = t->dtype == TS_F64;
    int64_t item = wide ? 8 : 4;
    reduction r;
    plan_first(&r, t, mask);
    plan_parts(&r);
    r.x = t->data;
    r.params = params;
    r.out = results;
    if (r.parts == 1) {
        run_pass(&r, how, wide);
        return TS_OK;
    }
    /* two buffers, alternating: the first holds parts, the smaller second the parts of parts */
    int64_t columns = r.results * (r.width ? r.width : 1);
    int64_t first = columns * r.parts * item;
    int64_t second = columns * ts_ceil_div(r.parts, r.width ? ROW_BLOCK : RUN_BLOCK) * item;
    char *scratch = ts_alloc(f->thread, (size_t)(first + second));
    if (!scratch)
        return ts_error_memory("the parts of a reduction", first + second);
    char *from = scratch, *to = scratch + first;
    r.out = from;
    run_pass(&r, how, wide);
    join_parts(&r, how, wide, from, to, results);
    ts_free(f->thread, scratch, (size_t)(first + second));
    return TS_OK;
}

static void finish_results(const ts_tensor *t, finish how, void *results, const void *params,
                           int64_t n, double length)
{
    if (how != FINISH_NONE)
        (t->dtype == TS_F64 ? finish_f64 : finish_f32)(how, results, params, n, length);
}

/* ---------------------------------------------------------------------- integers ---------- */

typedef struct int_job {
    const reduction *r;
    fold how;
} int_job;

/** A pass in which each result is folded whole, by one task. */
static void plan_whole(reduction *r, const ts_tensor *t, int64_t mask, void *results)
{
    plan_first(r, t, mask);
    if (r->width) { /* the columns become an ordinary kept dim again */
        memmove(r->kept_sizes + 1, r->kept_sizes, sizeof(int64_t) * (size_t)r->kept);
        memmove(r->kept_steps + 1, r->kept_steps, sizeof(int64_t) * (size_t)r->kept);
        r->kept_sizes[0] = r->width;
        r->kept_steps[0] = ts_dtype_sizes[t->dtype];
        r->kept++;
        r->results *= r->width;
    }
    r->all_runs = r->length / r->sizes[0];
    r->x = t->data;
    r->out = results;
}

/** Whether tasks of a whole pass fold several results together: results with short or strided runs,
 * if enough are adjacent. */
static bool is_across(const reduction *r, int64_t item)
{
    return (r->steps[0] != item || r->sizes[0] * item < 128) && r->kept && r->kept_sizes[0] >= 8;
}

/*
 * The order of a fold of integers does not change the value, so a task computes whole results: one
 * after the other along its runs, or up to ACROSS of them side by side.
 */
#define ALONG(T, take)                                                                             \
    if (step == (int64_t)sizeof(T))                                                                \
        for (int64_t k = 0; k < n; k++) {                                                          \
            T v = ((const T *)x)[k];                                                               \
            take;                                                                                  \
        }                                                                                          \
    else                                                                                           \
        for (int64_t k = 0; k < n; k++) {                                                          \
            T v = *(const T *)(x + k * step);                                                      \
            take;                                                                                  \
        }
#define FOLD_INTEGERS(T, U, name)                                                                  \
    VEC_FN T name##_two(fold how, T y, T v)                                                        \
    {                                                                                              \
        return how == FOLD_MAX    ? v > y ? v : y                                                  \
               : how == FOLD_MIN  ? v < y ? v : y                                                  \
               : how == FOLD_PROD ? (T)((U)y * (U)v)                                               \
                                  : (T)((U)y + (U)v);                                              \
    }                                                                                              \
    VEC_FN void name##_along(fold how, const reduction *r, int64_t begin, int64_t end)             \
    {                                                                                              \
        int64_t n = r->sizes[0], step = r->steps[0];                                               \
        walker kept = walker_at(r->kept, r->kept_sizes, r->kept_steps, begin);                     \
        for (int64_t o = begin; o < end; o++, walker_next(&kept)) {                                \
            walker run = walker_at(r->reduced - 1, r->sizes + 1, r->steps + 1, 0);                 \
            T y = how == FOLD_SUM ? 0 : how == FOLD_PROD ? 1 : *(const T *)(r->x + kept.offset);   \
            for (int64_t i = 0; i < r->all_runs; i++, walker_next(&run)) {                         \
                const char *x = r->x + kept.offset + run.offset;                                   \
                ALONG(T, y = name##_two(how, y, v))                                                \
            }                                                                                      \
            ((T *)r->out)[o] = y;                                                                  \
        }                                                                                          \
    }                                                                                              \
    VEC_FN void name##_across(fold how, const reduction *r, int64_t begin, int64_t end)            \
    {                                                                                              \
        walker kept = walker_at(r->kept, r->kept_sizes, r->kept_steps, begin);                     \
        for (int64_t o = begin, n; o < end; o += n, walker_move(&kept, n)) {                       \
            T y[ACROSS];                                                                           \
            int64_t step = walker_step(&kept);                                                     \
            n = walker_run(&kept, ts_min64(end - o, ACROSS));                                      \
            const char *x = r->x + kept.offset;                                                    \
            ALONG(T, y[k] = v)                                                                     \
            walker one = walker_at(r->reduced, r->sizes, r->steps, 0);                             \
            for (int64_t i = 1; i < r->length; i++) {                                              \
                walker_next(&one);                                                                 \
                x = r->x + kept.offset + one.offset;                                               \
                ALONG(T, y[k] = name##_two(how, y[k], v))                                          \
            }                                                                                      \
            memcpy((T *)r->out + o, y, (size_t)n * sizeof(T));                                     \
        }                                                                                          \
    }                                                                                              \
    VEC_FN void name##_tasks(fold how, const int_job *job, int64_t begin, int64_t end)             \
    {                                                                                              \
        (is_across(job->r, sizeof(T)) ? name##_across : name##_along)(how, job->r, begin, end);    \
    }                                                                                              \
    static void name(void *ctx, int64_t begin, int64_t end)                                        \
    {                                                                                              \
        const int_job *job = ctx;                                                                  \
        switch (job->how) {                                                                        \
        case FOLD_MAX: name##_tasks(FOLD_MAX, job, begin, end); break;                             \
        case FOLD_MIN: name##_tasks(FOLD_MIN, job, begin, end); break;                             \
        case FOLD_PROD: name##_tasks(FOLD_PROD, job, begin, end); break;                           \
        default: name##_tasks(FOLD_SUM, job, begin, end);                                          \
        }                                                                                          \
    }
FOLD_INTEGERS(int64_t, uint64_t, fold_i64)
FOLD_INTEGERS(int32_t, uint32_t, fold_i32)
FOLD_INTEGERS(uint8_t, uint8_t, fold_u8)

static void reduce_integers(const ts_tensor *t, int64_t mask, fold how, void *results)
{
    reduction r;
    plan_whole(&r, t, mask, results);
    int_job job = {&r, how};
    ts_parallel_for(r.results, TS_CPU_GRAIN(1) / r.length + 1,
                    t->dtype == TS_I64 ? fold_i64 : t->dtype == TS_I32 ? fold_i32 : fold_u8, &job);
}

/* ---------------------------------------------------------------------- truth ------------- */

typedef struct truth_job {
    const reduction *r;
    uint64_t bits; /* bits of an element to test: without the sign of a float */
    bool all;      /* true: search for a zero; false: search for a nonzero element */
} truth_job;

/* Elements are tested as unsigned words of their size. A result along runs stops at the first block
 * that contains a deciding element. */
#define FOLD_TRUTH(T, name)                                                                        \
    typedef T name##_word __attribute__((may_alias));                                              \
    VEC_FN void name##_along(const truth_job *job, T bits, int64_t begin, int64_t end)             \
    {                                                                                              \
        const reduction *r = job->r;                                                               \
        int64_t size = r->sizes[0], step = r->steps[0];                                            \
        walker kept = walker_at(r->kept, r->kept_sizes, r->kept_steps, begin);                     \
        for (int64_t o = begin; o < end; o++, walker_next(&kept)) {                                \
            walker run = walker_at(r->reduced - 1, r->sizes + 1, r->steps + 1, 0);                 \
            int found = 0;                                                                         \
            for (int64_t i = 0; i < r->all_runs && !found; i++, walker_next(&run))                 \
                for (int64_t from = 0; from < size && !found; from += RUN_BLOCK) {                 \
                    const char *x = r->x + kept.offset + run.offset + from * step;                 \
                    int64_t n = ts_min64(size - from, RUN_BLOCK);                                  \
                    ALONG(name##_word, found |= ((v & bits) == 0) == job->all)                     \
                }                                                                                  \
            ((uint8_t *)r->out)[o] = (uint8_t)(found != job->all);                                 \
        }                                                                                          \
    }                                                                                              \
    VEC_FN void name##_across(const truth_job *job, T bits, int64_t begin, int64_t end)            \
    {                                                                                              \
        const reduction *r = job->r;                                                               \
        walker kept = walker_at(r->kept, r->kept_sizes, r->kept_steps, begin);                     \
        for (int64_t o = begin, n; o < end; o += n, walker_move(&kept, n)) {                       \
            uint8_t found[ACROSS] = {0};                                                           \
            int64_t step = walker_step(&kept);                                                     \
            n = walker_run(&kept, ts_min64(end - o, ACROSS));                                      \
            walker one = walker_at(r->reduced, r->sizes, r->steps, 0);                             \
            for (int64_t i = 0; i < r->length; i++, walker_next(&one)) {                           \
                const char *x = r->x + kept.offset + one.offset;                                   \
                ALONG(name##_word, found[k] |= ((v & bits) == 0) == job->all)                      \
            }                                                                                      \
            for (int64_t k = 0; k < n; k++)                                                        \
                ((uint8_t *)r->out)[o + k] = (uint8_t)(found[k] != job->all);                      \
        }                                                                                          \
    }                                                                                              \
    static void name(void *ctx, int64_t begin, int64_t end)                                        \
    {                                                                                              \
        const truth_job *job = ctx;                                                                \
        (is_across(job->r, sizeof(T)) ? name##_across : name##_along)(job, (T)job->bits, begin,    \
                                                                      end);                        \
    }
FOLD_TRUTH(uint64_t, truth_8)
FOLD_TRUTH(uint32_t, truth_4)
FOLD_TRUTH(uint16_t, truth_2)
FOLD_TRUTH(uint8_t, truth_1)

/* ---------------------------------------------------------------------- kernels ----------- */

/** Results of reductions over no elements. */
static void fill_empty(ts_tensor *out, fold how, finish last)
{
    double value = last == FINISH_DIVIDE || last == FINISH_DIVIDE_ROOT ? NAN
                   : last == FINISH_LOG                                ? -INFINITY
                                                                       : how == FOLD_PROD;
    for (int64_t i = 0; i < out->numel; i++) {
        switch (out->dtype) {
        case TS_F64: ((double *)out->data)[i] = value; break;
        case TS_F32: ((float *)out->data)[i] = (float)value; break;
        case TS_I64: ((int64_t *)out->data)[i] = (int64_t)value; break;
        case TS_I32: ((int32_t *)out->data)[i] = (int32_t)value; break;
        default: ((uint8_t *)out->data)[i] = (uint8_t)value;
        }
    }
}

/** Allocates n results or parameters in f64 if the compute dtype is f64, else in f32. NULL with
 * TS_ERR_MEMORY. */
static void *results_new(ts_frame *f, int64_t n, size_t *bytes)
{
    *bytes = (size_t)n * (f->plan->compute == TS_F64 ? 8 : 4);
    void *data = ts_alloc(f->thread, *bytes);
    if (!data)
        ts_error_memory("the results of a reduction", (int64_t)*bytes);
    return data;
}

/** Handles a reduction without results or without elements; false for any other. */
static bool is_empty(ts_frame *f, fold how, finish last, ts_status *status)
{
    *status = TS_OK;
    if (!f->rets[0].t->numel)
        return true;
    if (f->args[0].t->numel)
        return false;
    if (ts_dtype_is_half(f->args[0].t->dtype))
        *status = ts_run_widened(f);
    else
        fill_empty(f->rets[0].t, how, last);
    return true;
}

/** Computes the share f->plan->share of a reduction of all elements, in f32 or f64. */
static ts_status reduce_pieces(ts_frame *f, fold how, finish last)
{
    const ts_fold_share *share = f->plan->share;
    const ts_tensor *t = f->args[0].t;
    bool wide = t->dtype == TS_F64;
    int64_t item = wide ? 8 : 4;
    void *result = f->rets[0].t->data;
    reduction r;
    plan_first(&r, t, f->plan->reduced);
    plan_parts(&r);
    r.params = NULL;
    if (share->data) {
        r.x = (const char *)((uintptr_t)share->data - (uintptr_t)(share->first * RUN_BLOCK * item));
        r.out = share->parts;
        (wide ? bodies_f64 : bodies_f32)[how][0](&r, share->first, share->first + share->count);
        return TS_OK;
    }
    size_t bytes = (size_t)(ts_ceil_div(r.parts, RUN_BLOCK) * item);
    if (r.parts == 1) {
        memcpy(result, share->parts, (size_t)item);
    } else {
        char *room = ts_alloc(f->thread, bytes);
        if (!room)
            return ts_error_memory("the parts of a reduction", (int64_t)bytes);
        join_parts(&r, how, wide, share->parts, room, result);
        ts_free(f->thread, room, bytes);
    }
    finish_results(t, last, result, NULL, 1, (double)t->numel);
    return TS_OK;
}

/** Kernel of the reductions that need one fold, `how`, and one last step. */
static ts_status reduce(ts_frame *f, fold how, finish last)
{
    const ts_tensor *t = f->args[0].t;
    ts_tensor *out = f->rets[0].t;
    ts_status status;
    if (f->plan->share)
        return reduce_pieces(f, how, last);
    if (is_empty(f, how, last, &status))
        return status;
    if (!ts_dtype_is_float((ts_dtype)t->dtype)) {
        reduce_integers(t, f->plan->reduced, how, out->data);
        return TS_OK;
    }
    bool half = ts_dtype_is_half(t->dtype);
    size_t bytes = 0;
    void *y = half ? results_new(f, out->numel, &bytes) : out->data;
    TS_TRY(y);
    status = reduce_into(f, t, f->plan->reduced, how, NULL, y);
    if (status == TS_OK)
        finish_results(t, last, y, NULL, out->numel, (double)(t->numel / out->numel));
    if (half) {
        if (status == TS_OK)
            rows_narrow(out->data, y, (ts_dtype)t->dtype, out->numel);
        ts_free(f->thread, y, bytes);
    }
    return status;
}

static ts_status sum(ts_frame *f) { return reduce(f, FOLD_SUM, FINISH_NONE); }
static ts_status mean(ts_frame *f) { return reduce(f, FOLD_SUM, FINISH_DIVIDE); }
static ts_status prod(ts_frame *f) { return reduce(f, FOLD_PROD, FINISH_NONE); }
static ts_status amax(ts_frame *f) { return reduce(f, FOLD_MAX, FINISH_NONE); }
static ts_status amin(ts_frame *f) { return reduce(f, FOLD_MIN, FINISH_NONE); }
static ts_status norm(ts_frame *f)
{
    double p = f->args[3].d;
    if (p == 2)
        return reduce(f, FOLD_SQUARES, FINISH_ROOT);
    return reduce(f, p == 1 ? FOLD_ABS : FOLD_ABSMAX, FINISH_NONE);
}
/** Kernel of all and any. Over no elements, all is true and any is false. */
static ts_status truth(ts_frame *f, bool all)
{
    const ts_tensor *t = f->args[0].t;
    ts_tensor *out = f->rets[0].t;
    size_t item = ts_dtype_sizes[t->dtype];
    if (!out->numel)
        return TS_OK;
    if (!t->numel) {
        memset(out->data, all, (size_t)out->numel);
        return TS_OK;
    }
    reduction r;
    plan_whole(&r, t, f->plan->reduced, out->data);
    bool real = ts_dtype_is_float((ts_dtype)t->dtype);
    truth_job job = {&r, UINT64_MAX >> (64 - 8 * item + real), all};
    ts_parallel_for(r.results, TS_CPU_GRAIN(1) / r.length + 1,
                    item == 8   ? truth_8
                    : item == 4 ? truth_4
                    : item == 2 ? truth_2
                                : truth_1,
                    &job);
    return TS_OK;
}
static ts_status all(ts_frame *f) { return truth(f, true); }
static ts_status any(ts_frame *f) { return truth(f, false); }

/** Folds the deviations into y again for results whose mean was not accurate enough. distances has
 * room for one number per mean. */
static ts_status deviate_again(ts_frame *f, void *means, void *distances, void *y)
{
    const ts_tensor *t = f->args[0].t;
    int64_t n = f->rets[0].t->numel;
    double length = (double)(t->numel / n);
    bool (*close)(void *, const void *, const void *, int64_t, double) =
        t->dtype == TS_F64 ? close_means_f64 : close_means_f32;
    if (!close(means, y, NULL, n, length))
        return TS_OK;
    TS_TRY(reduce_into(f, t, f->plan->reduced, FOLD_DISTANCES, means, distances));
    close(means, y, distances, n, length);
    return reduce_into(f, t, f->plan->reduced, FOLD_DEVIATIONS, means, y);
}

/** Kernel of the reductions that need two folds: the first computes one parameter per result (mean
 * or maximum), the second uses it. length: divisor of the last step. */
static ts_status reduce_twice(ts_frame *f, fold first, finish middle, fold second, finish last,
                              double length)
{
    const ts_tensor *t = f->args[0].t;
    ts_tensor *out = f->rets[0].t;
    ts_status status;
    if (is_empty(f, second, last, &status))
        return status;
    bool half = ts_dtype_is_half(t->dtype);
    size_t bytes, more = 0;
    bool again = second == FOLD_DEVIATIONS;
    char *params = results_new(f, out->numel << again, &bytes);
    void *y = !params ? NULL : half ? results_new(f, out->numel, &more) : out->data;
    status = y ? reduce_into(f, t, f->plan->reduced, first, NULL, params) : ts_error_code();
    if (status == TS_OK) {
        finish_results(t, middle, params, NULL, out->numel, (double)(t->numel / out->numel));
        status = reduce_into(f, t, f->plan->reduced, second, params, y);
    }
    if (status == TS_OK && again)
        status = deviate_again(f, params, params + bytes / 2, y);
    if (status == TS_OK)
        finish_results(t, last, y, params, out->numel, length);
    if (status == TS_OK && half)
        rows_narrow(out->data, y, (ts_dtype)t->dtype, out->numel);
    if (y && half)
        ts_free(f->thread, y, more);
    if (params)
        ts_free(f->thread, params, bytes);
    return status;
}

/** Divisor of a variance: elements less the correction, at least 0 as in PyTorch. */
static double degrees(const ts_frame *f)
{
    int64_t results = f->rets[0].t->numel;
    double n = results ? (double)(f->args[0].t->numel / results) - f->args[3].d : 0;
    return n > 0 ? n : 0;
}
static ts_status var(ts_frame *f)
{
    return reduce_twice(f, FOLD_SUM, FINISH_DIVIDE, FOLD_DEVIATIONS, FINISH_DIVIDE, degrees(f));
}
static ts_status std(ts_frame *f)
{
    return reduce_twice(f, FOLD_SUM, FINISH_DIVIDE, FOLD_DEVIATIONS, FINISH_DIVIDE_ROOT,
                        degrees(f));
}
static ts_status logsumexp(ts_frame *f)
{
    return reduce_twice(f, FOLD_MAX, FINISH_FINITE, FOLD_EXP, FINISH_LOG, 1);
}

#define FLOATING (TS_DT_FLOATS | TS_DT_HALVES)
#define REDUCIBLE (FLOATING | TS_DT(TS_I64) | TS_DT(TS_I32) | TS_DT(TS_U8) | TS_DT(TS_BOOL))

TS_CPU_FAMILY(reduce,
    {TS_OP_sum_to_size, sum, {FLOATING | TS_DT(TS_I64), 0}},
    {TS_OP_sum, sum, {FLOATING | TS_DT(TS_I64), TS_TAKES_PIECES}},
    {TS_OP_mean, mean, {FLOATING, TS_TAKES_PIECES}},
    {TS_OP_prod, prod, {FLOATING | TS_DT(TS_I64), TS_TAKES_PIECES}},
    {TS_OP_amax, amax, {REDUCIBLE, TS_TAKES_PIECES}},
    {TS_OP_amin, amin, {REDUCIBLE, TS_TAKES_PIECES}},
    {TS_OP_all, all, {REDUCIBLE, 0}},
    {TS_OP_any, any, {REDUCIBLE, 0}},
    {TS_OP_var, var, {FLOATING, 0}},
    {TS_OP_std, std, {FLOATING, 0}},
    {TS_OP_norm, norm, {FLOATING, TS_TAKES_PIECES}},
    {TS_OP_logsumexp, logsumexp, {FLOATING, 0}})
