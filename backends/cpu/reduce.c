/**
 * @file reduce.c
 * Reductions over dims: sum, mean, prod, amax, amin, norm, var, std, logsumexp; all, any and folds
 * of integers call reduce_whole.c.
 *
 * A reduction is a chain of passes. Each pass folds the elements into parts, whose division depends
 * only on the layout; the next pass folds the parts, until one is left. So the bits are the same
 * for any number of threads, and the error of a sum grows with the depth of the chain of passes.
 *
 *   inner pass   the elements of a result form runs; vectors run along the elements
 *   outer pass   adjacent results are contiguous (column sums); vectors run across results; narrow
 *                parts are first copied side by side
 *   transposed   results of few elements that form no lines: a tile is transposed into columns of
 *                an outer pass
 */
// SPDX-License-Identifier: MIT
#include "backends/cpu/reduction.h"

#include <float.h>

enum {
    ROW_BLOCK = 64,   /* rows of a part in an outer pass */
    FEW = 7,          /* most columns of a narrow part in an outer pass */
    ROW_LEVELS = 4,   /* levels of the cascade; a part has at most 10 leaves of 8, 4, 2 or 1 rows */
    TILE = 448,       /* columns of a task in an outer pass: their cascade is 14 KiB of f64 */
    NARROW = 128,     /* columns of halves that are widened at a time */
    TRANSPOSED = 1024, /* elements of a tile in a transposed pass */
    NARROW_TRANSPOSED = 16, /* most adjacent results that a transposed pass gathers */
    SHORT_RUN = 16    /* most elements of runs that an inner pass gathers together */
};

/** The last step of a reduction, applied to each result y. */
typedef enum finish {
    FINISH_NONE,
    FINISH_DIVIDE,      /* divide by the length */
    FINISH_ROOT,
    FINISH_DIVIDE_ROOT,
    FINISH_LOG,         /* log(y) + parameter */
    FINISH_FINITE       /* infinities become 0, so that logsumexp can subtract the value */
} finish;

/** A transposed pass, and the body of the outer pass that folds its columns. */
typedef struct transposed_job {
    const reduction *r;
    ts_parallel_body outer;
} transposed_job;

/** True for folds of the elements themselves, whose loops over columns convert halves. */
#define is_plain(how) ((how) == FOLD_SUM || (how) == FOLD_MAX || (how) == FOLD_MIN)

#define TS_REAL 32
#include "backends/cpu/reduce_real.h"
#undef TS_REAL
#define TS_REAL 64
#include "backends/cpu/reduce_real.h"
#undef TS_REAL

/* ---------------------------------------------------------------------- passes ------------ */

/** True if each result of a pass is the fold of one dense row of at least a line, which an inner
 *  pass folds faster than a transposed one. An inner pass of short rows of
 *  exponentials is slow. */
static bool has_lines(const reduction *r, fold how, bool wide)
{
    int64_t item = wide ? 8 : 4;
    return how != FOLD_EXP && r->reduced == 1 && r->steps[0] == (r->widen ? 2 : item) &&
           r->length >= LINE_BYTES / item;
}

/** Divides a pass into parts, which depend on the shape, the dtype and the fold alone. */
static void plan_parts(reduction *r, fold how, bool wide)
{
    r->transposed = 0;
    if (r->width) {
        r->parts = ts_ceil_div(r->length, ROW_BLOCK);
        r->tiles = ts_ceil_div(r->width, TILE);
        return;
    }
    if (r->length <= TS_SHORT_ROW && r->results >= TS_FEW_ROWS && !has_lines(r, how, wide)) {
        r->parts = 1;
        r->transposed = ts_min64(TILE, TRANSPOSED / r->length);
        return;
    }
    r->all_runs = r->length / r->sizes[0];
    r->pieces = ts_ceil_div(r->sizes[0], RUN_BLOCK);
    r->runs = ts_max64(RUN_BLOCK / r->sizes[0], 1);
    r->parts = r->pieces > 1 ? r->pieces * r->all_runs : ts_ceil_div(r->all_runs, r->runs);
}

/** Makes a pass of few columns a transposed pass, if each result is the fold of few rows. */
static void transpose_narrow(reduction *r, int64_t item)
{
    if (!r->width || r->width > NARROW_TRANSPOSED || r->length > TS_SHORT_ROW || r->results < 8)
        return;
    memmove(r->kept_sizes + 1, r->kept_sizes, sizeof(int64_t) * (size_t)r->kept);
    memmove(r->kept_steps + 1, r->kept_steps, sizeof(int64_t) * (size_t)r->kept);
    r->kept_sizes[0] = r->width;
    r->kept_steps[0] = item;
    r->kept++;
    r->results *= r->width;
    r->width = 0;
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

/** True if each result is the fold of one dense row of halves that fits a block. */
static bool has_short_halves(const reduction *r)
{
    return r->widen && r->steps[0] == 2 && r->parts == 1 && r->all_runs == 1 &&
           r->sizes[0] <= TERMS;
}

/** Runs a pass on the thread pool: folds r->x into r->out. wide: f64, else f32. */
static void run_pass(reduction *r, fold how, bool wide)
{
    const ts_parallel_body *body = (wide ? bodies_f64 : bodies_f32)[how];
    int cost = how == FOLD_EXP ? wide ? 32 : 4 : 1;
    int64_t tasks = r->results * r->parts, work;
    if (r->transposed) {
        transposed_job job = {r, body[1]};
        ts_parallel_for(ts_ceil_div(r->results, r->transposed),
                        TS_CPU_GRAIN(cost + 2) / (r->transposed * r->length) + 1,
                        wide ? transposed_tasks_f64 : transposed_tasks_f32, &job);
        return;
    }
    if (r->width) {
        tasks *= r->tiles;
        work = ts_min64(ROW_BLOCK, r->length) * ts_min64(TILE, r->width);
    } else {
        work = ts_min64(RUN_BLOCK, r->length) * (r->steps[0] == (wide ? 8 : 4) ? 1 : 4);
    }
    bool halves = !r->width && how != FOLD_EXP && has_short_halves(r);
    ts_parallel_for(tasks, TS_CPU_GRAIN(cost) / work + 1,
                    halves ? halves_bodies[how] : body[r->width != 0], r);
}

/** The fold of the later passes, which fold results of the first pass. */
static fold fold_of_parts(fold how)
{
    return how == FOLD_ABSMAX ? FOLD_MAX : how >= FOLD_SQUARES ? FOLD_SUM : how;
}

/** Folds the parts of a pass to its results, in further passes. from: the parts; to: a buffer for
 *  the parts of the next pass. */
static void join_parts(reduction *r, fold how, bool wide, char *from, char *to, void *results)
{
    do {
        plan_next(r, from, wide ? 8 : 4);
        plan_parts(r, fold_of_parts(how), wide);
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
 * @return TS_ERR_MEMORY if scratch cannot be allocated
 */
static ts_status reduce_into(ts_frame *f, const ts_tensor *t, int64_t mask, fold how,
                             const void *params, void *results)
{
    bool wide = t->dtype == TS_F64;
    int64_t item = wide ? 8 : 4;
    reduction r;
    plan_first(&r, t, mask);
    transpose_narrow(&r, ts_dtype_sizes[t->dtype]);
    plan_parts(&r, how, wide);
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

/** Applies the last step to n results, in place; see finish() in reduce_real.h. */
static void finish_results(const ts_tensor *t, finish how, void *results, const void *params,
                           int64_t n, double length)
{
    if (how != FINISH_NONE)
        (t->dtype == TS_F64 ? finish_f64 : finish_f32)(how, results, params, n, length);
}

/* ---------------------------------------------------------------------- kernels ----------- */

/** Fills the results of a reduction over no elements, as in PyTorch. */
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

/** Computes the share f->plan->share of a reduction of all elements, in f32 or f64: with
 *  share->data its parts, else the result from all parts. */
static ts_status reduce_pieces(ts_frame *f, fold how, finish last)
{
    const ts_fold_share *share = f->plan->share;
    const ts_tensor *t = f->args[0].t;
    bool wide = t->dtype == TS_F64;
    int64_t item = wide ? 8 : 4;
    void *result = f->rets[0].t->data;
    reduction r;
    plan_first(&r, t, f->plan->reduced);
    plan_parts(&r, how, wide);
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
        static const whole_fold folds[FOLD_COUNT] = {
            [FOLD_SUM] = WHOLE_SUM, [FOLD_PROD] = WHOLE_PROD, [FOLD_MAX] = WHOLE_MAX,
            [FOLD_MIN] = WHOLE_MIN};
        TS_V(ts_reduce_integers)(t, f->plan->reduced, folds[how], out->data);
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
static ts_status all_or_any(ts_frame *f, bool all)
{
    const ts_tensor *t = f->args[0].t;
    ts_tensor *out = f->rets[0].t;
    if (!out->numel)
        return TS_OK;
    if (!t->numel) {
        memset(out->data, all, (size_t)out->numel);
        return TS_OK;
    }
    TS_V(ts_reduce_truth)(t, f->plan->reduced, all, (uint8_t *)out->data);
    return TS_OK;
}
static ts_status all(ts_frame *f) { return all_or_any(f, true); }
static ts_status any(ts_frame *f) { return all_or_any(f, false); }

/** If the mean of a result is not accurate enough, corrects the means and folds the deviations into
 * y again. distances: scratch for one number per mean. */
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

/** Divisor of a variance: number of elements minus the correction, at least 0 as in PyTorch. */
static double degrees_of_freedom(const ts_frame *f)
{
    int64_t results = f->rets[0].t->numel;
    double n = results ? (double)(f->args[0].t->numel / results) - f->args[3].d : 0;
    return n > 0 ? n : 0;
}
static ts_status var(ts_frame *f)
{
    return reduce_twice(f, FOLD_SUM, FINISH_DIVIDE, FOLD_DEVIATIONS, FINISH_DIVIDE,
                        degrees_of_freedom(f));
}
static ts_status std(ts_frame *f)
{
    return reduce_twice(f, FOLD_SUM, FINISH_DIVIDE, FOLD_DEVIATIONS, FINISH_DIVIDE_ROOT,
                        degrees_of_freedom(f));
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
