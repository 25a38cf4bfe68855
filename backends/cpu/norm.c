/**
 * @file norm.c
 * Layer and RMS normalization over the last dims. Forward and backward process one row, or a few
 * rows, at a time, so a short row stays in cache between its sums and its results. Gradients of
 * weight and bias are summed per chunk of ROWS_PER_CHUNK rows; the chunks are added pairwise, so
 * the result does not depend on the number of threads.
 */
// SPDX-License-Identifier: MIT
#include "backends/cpu/rows.h"
#include "ops/kernel.h"

#include <float.h>

enum { ROWS_PER_CHUNK = 64,
       PIECE_LEVEL = 7, /* a piece of a long row is 2^7 leaves, one line of its cascade */
       FEW_ROWS = 16 }; /* the threads share each long row if there are fewer rows */

typedef struct norm_job {
    const void *x, *g, *weight, *bias; /* weight and bias may be NULL */
    void *y;                           /* result, or gradient of x */
    void *mean, *rstd;                 /* one per row; as results they may be NULL */
    void *dw, *db;                     /* may be NULL */
    void *parts;                       /* (chunks, 2, n): sums of dw and db; NULL if neither is
                                          requested */
    int64_t rows, n, chunks;
    double eps;
    bool rms;
    bool halves;                       /* long rows: x, y, weight and bias have the dtype `half` */
    ts_dtype half;                     /* dtype of x and y, for forward_of_halves(); the other
                                          operands are f32 there */
    ts_slots *slots;                   /* buffers for forward_of_halves() */
} norm_job;

#define TS_REAL 32
#include "backends/cpu/norm_real.h"
#undef TS_REAL
#define TS_REAL 64
#include "backends/cpu/norm_real.h"
#undef TS_REAL

static void *data_of(const ts_value *v) { return v->tag == TS_TAG_TENSOR ? v->t->data : NULL; }

/** Normalizes rows begin to end - 1 of bf16 or f16 through f32 buffers. */
static void forward_of_halves(void *ctx, int64_t begin, int64_t end)
{
    const norm_job *job = ctx;
    float *x = ts_slot(job->slots);
    norm_job part = *job;
    part.x = part.y = x;
    for (int64_t many = rows_together(job->n); begin < end; begin += many) {
        int64_t rows = ts_min64(many, end - begin), first = begin * job->n * 2, n = rows * job->n;
        part.mean = job->mean ? (float *)job->mean + begin : NULL;
        part.rstd = job->rstd ? (float *)job->rstd + begin : NULL;
        rows_widen(x, (const char *)job->x + first, job->half, n);
        norm_forward_f32(&part, 0, rows);
        rows_narrow((char *)job->y + first, x, job->half, n);
    }
}

/** Forward of long rows. If there are fewer than FEW_ROWS, the threads share each row. */
static ts_status forward_long(ts_frame *f, norm_job *job, bool wide)
{
    int64_t pieces = job->n / (wide ? PIECE_f64 : PIECE_f32);
    if (job->rows >= FEW_ROWS || pieces < 2) {
        ts_parallel_for(job->rows, TS_CPU_GRAIN(1) / job->n + 1,
                        wide ? norm_long_rows_f64 : norm_long_rows_f32, job);
        return TS_OK;
    }
    size_t bytes = (size_t)pieces * LINE_BYTES;
    void *lines = ts_alloc(f->thread, bytes);
    if (!lines)
        return ts_error_memory("parts of a row", (int64_t)bytes);
    for (int64_t r = 0; r < job->rows; r++)
        (wide ? norm_long_row_f64 : norm_long_row_f32)(job, r, lines);
    ts_free(f->thread, lines, bytes);
    return TS_OK;
}

/** Forward for bf16 and f16. Widens weight and bias once; mean and rstd are f32. */
static ts_status forward_half(ts_frame *f, norm_job *job)
{
    if (!job->rows)
        return TS_OK;
    ts_slots rows, weights;
    TS_TRY(ts_slots_begin(f, &weights, 1, 2 * job->n * 4, "weights of a norm"));
    ts_status status = ts_slots_begin(f, &rows, job->rows, rows_bytes(job->n), "rows of a norm");
    if (status == TS_OK) {
        float *weight = ts_slot(&weights), *bias = weight + job->n;
        job->slots = &rows;
        if (job->weight)
            rows_widen(weight, job->weight, job->half, job->n);
        if (job->bias)
            rows_widen(bias, job->bias, job->half, job->n);
        job->weight = job->weight ? weight : NULL;
        job->bias = job->bias ? bias : NULL;
        ts_parallel_for(job->rows, TS_CPU_GRAIN(1) / ts_max64(job->n, 1) + 1, forward_of_halves,
                        job);
        ts_slots_end(f, &rows);
    }
    ts_slots_end(f, &weights);
    return status;
}

static ts_status forward(ts_frame *f, norm_job *job)
{
    job->x = data_of(&f->args[0]);
    job->weight = data_of(&f->args[2]);
    job->y = data_of(&f->rets[0]);
    job->rows = f->plan->outer;
    job->n = f->plan->count;
    job->half = f->plan->compute;
    job->halves = ts_dtype_is_half(job->half) && job->n > TS_ROW_MOST;
    if (job->halves || (job->rows < FEW_ROWS && job->n >= 4 * PIECE_f32))
        return forward_long(f, job, job->half == TS_F64);
    if (ts_dtype_is_half(job->half))
        return forward_half(f, job);
    ts_parallel_for(job->rows, TS_CPU_GRAIN(1) / ts_max64(job->n, 1) + 1,
                    f->plan->compute == TS_F64 ? norm_forward_f64 : norm_forward_f32, job);
    return TS_OK;
}

/** layer_norm(self, dims, weight, bias, eps) -> (result, mean, rstd) */
static ts_status layer_norm(ts_frame *f)
{
    norm_job job = {.bias = data_of(&f->args[3]), .eps = f->args[4].d, .mean = data_of(&f->rets[1]),
                    .rstd = data_of(&f->rets[2])};
    return forward(f, &job);
}

/** rms_norm(self, dims, weight, eps) -> (result, rstd) */
static ts_status rms_norm(ts_frame *f)
{
    norm_job job = {.eps = f->args[3].d, .rstd = data_of(&f->rets[1]), .rms = true};
    return forward(f, &job);
}

static ts_status backward(ts_frame *f, norm_job *job)
{
    bool wide = f->plan->compute == TS_F64;
    size_t item = wide ? 8 : 4;
    job->g = data_of(&f->args[0]);
    job->x = data_of(&f->args[1]);
    job->y = data_of(&f->rets[0]);
    job->dw = data_of(&f->rets[1]);
    job->rows = f->plan->outer;
    job->n = f->plan->count;
    job->chunks = ts_ceil_div(job->rows, ROWS_PER_CHUNK);
    size_t bytes = (job->dw || job->db) ? (size_t)job->chunks * 2 * (size_t)job->n * item : 0;
    if (bytes && !(job->parts = ts_alloc(f->thread, bytes)))
        return ts_error_memory("the parts of a norm's gradient", (int64_t)bytes);
    ts_parallel_for(job->chunks, TS_CPU_GRAIN(1) / ts_max64(job->n * ROWS_PER_CHUNK, 1) + 1,
                    wide ? norm_backward_f64 : norm_backward_f32, job);
    if (bytes) {
        ts_parallel_for(2 * job->n, TS_CPU_GRAIN(1) / job->chunks + 1,
                        wide ? norm_combine_f64 : norm_combine_f32, job);
        ts_free(f->thread, job->parts, bytes);
    } else { /* no rows: the sums are 0 */
        if (job->dw)
            memset(job->dw, 0, (size_t)job->n * item);
        if (job->db)
            memset(job->db, 0, (size_t)job->n * item);
    }
    return TS_OK;
}

/** layer_norm_backward(grad, self, mean, rstd, weight) -> (dx, dw, db) */
static ts_status layer_norm_backward(ts_frame *f)
{
    norm_job job = {.mean = data_of(&f->args[2]), .rstd = data_of(&f->args[3]),
                    .weight = data_of(&f->args[4]),
                    .db = data_of(&f->rets[2])};
    return backward(f, &job);
}

/** rms_norm_backward(grad, self, rstd, weight) -> (dx, dw) */
static ts_status rms_norm_backward(ts_frame *f)
{
    norm_job job = {.rstd = data_of(&f->args[2]), .weight = data_of(&f->args[3]), .rms = true};
    return backward(f, &job);
}

TS_CPU_FAMILY(norm,
    {TS_OP_layer_norm, layer_norm, {TS_DT_FLOATS | TS_DT_HALVES, 0}},
    {TS_OP_layer_norm_backward, layer_norm_backward, {TS_DT_FLOATS, 0}},
    {TS_OP_rms_norm, rms_norm, {TS_DT_FLOATS | TS_DT_HALVES, 0}},
    {TS_OP_rms_norm_backward, rms_norm_backward, {TS_DT_FLOATS, 0}})
