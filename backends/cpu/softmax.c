/** @file softmax.c  softmax and log_softmax over one dim, and their gradients. */
// SPDX-License-Identifier: MIT
#include "backends/cpu/rows.h"
#include "ops/kernel.h"

typedef struct softmax_job {
    const void *x, *g;          /* argument; in backward the saved result, and its gradient */
    void *y;
    int64_t n, inner;
    bool log;
    ts_dtype half;              /* dtype of the tensors, for rows_of_halves() */
    ts_parallel_body single;    /* the f32 body for rows */
    ts_slots *slots;            /* buffers for rows_of_halves() */
} softmax_job;

enum { COLUMN_VECTORS = 4 }; /* vectors of columns that are processed together */

#define TS_REAL 32
#include "backends/cpu/softmax_real.h"
#undef TS_REAL
#define TS_REAL 64
#include "backends/cpu/softmax_real.h"
#undef TS_REAL

/** Rows of bf16 or f16: widens blocks of rows to f32, runs job->single on them, and narrows. */
static void rows_of_halves(void *ctx, int64_t begin, int64_t end)
{
    const softmax_job *job = ctx;
    int64_t many = rows_together(job->n);
    float *x = ts_slot(job->slots), *g = x + many * job->n;
    softmax_job part = *job;
    part.x = part.y = x;
    part.g = g;
    for (; begin < end; begin += many) {
        int64_t rows = ts_min64(many, end - begin), first = begin * job->n * 2, n = rows * job->n;
        rows_widen(x, (const char *)job->x + first, job->half, n);
        if (job->g)
            rows_widen(g, (const char *)job->g + first, job->half, n);
        job->single(&part, 0, rows);
        rows_narrow((char *)job->y + first, x, job->half, n);
    }
}

/** Runs a job by rows if the softmax dim is the last one, else by tiles of columns. bodies: [f64]
 * [rows, short rows]; columns: by dtype. Rows of bf16 and f16 are widened by blocks, or as whole
 * tensors by ts_run_widened() if they are long. TS_ERR_MEMORY. */
static ts_status run(ts_frame *f, softmax_job *job, const ts_parallel_body bodies[2][2],
                     const ts_parallel_body *columns)
{
    const ts_plan *plan = f->plan;
    bool wide = plan->compute == TS_F64, half = ts_dtype_is_half(plan->compute);
    job->n = plan->count;
    job->inner = plan->inner;
    int64_t least = wide ? VD_LANES : VF_LANES, grain = TS_CPU_GRAIN(wide ? 32 : 2);
    if (job->inner != 1) {
        int64_t width = COLUMN_VECTORS * least,
                tasks = plan->outer * ts_ceil_div(job->inner, width);
        if (job->n && tasks)
            ts_parallel_for(tasks, grain / (job->n * ts_min64(width, job->inner)) + 1,
                            columns[plan->compute], job);
        return TS_OK;
    }
    if (half && job->n > TS_ROW_MOST)
        return ts_run_widened(f);
    job->half = plan->compute;
    bool few = job->n <= (wide ? LINE_f64 : LINE_f32) && plan->outer >= least;
    job->single = bodies[0][few];
    if (!job->n || !plan->outer)
        return TS_OK;
    ts_slots slots;
    if (half)
        TS_TRY(ts_slots_begin(f, &slots, plan->outer, (job->g ? 2 : 1) * rows_bytes(job->n),
                              "rows of softmax"));
    job->slots = &slots;
    ts_parallel_for(plan->outer, grain / job->n + 1, half ? rows_of_halves : bodies[wide][few],
                    job);
    if (half)
        ts_slots_end(f, &slots);
    return TS_OK;
}

#define COLUMNS(name)                                                                              \
    {[TS_F64] = name##_columns_f64, [TS_F32] = name##_columns_f32,                                 \
     [TS_BF16] = name##_columns_bf16, [TS_F16] = name##_columns_f16}

static ts_status forward(ts_frame *f, bool log)
{
    static const ts_parallel_body bodies[2][2] = {{softmax_rows_f32, softmax_short_f32},
                                                  {softmax_rows_f64, softmax_short_f64}};
    static const ts_parallel_body columns[TS_DTYPE_COUNT] = COLUMNS(softmax);
    softmax_job job = {.x = f->args[0].t->data, .y = f->rets[0].t->data, .log = log};
    return run(f, &job, bodies, columns);
}
static ts_status softmax(ts_frame *f) { return forward(f, false); }
static ts_status log_softmax(ts_frame *f) { return forward(f, true); }

static ts_status backward(ts_frame *f, bool log)
{
    static const ts_parallel_body bodies[2][2] = {
        {softmax_backward_rows_f32, softmax_backward_short_f32},
        {softmax_backward_rows_f64, softmax_backward_short_f64}};
    static const ts_parallel_body columns[TS_DTYPE_COUNT] = COLUMNS(softmax_backward);
    softmax_job job = {
        .g = f->args[0].t->data, .x = f->args[1].t->data, .y = f->rets[0].t->data, .log = log};
    return run(f, &job, bodies, columns);
}
static ts_status softmax_backward(ts_frame *f) { return backward(f, false); }
static ts_status log_softmax_backward(ts_frame *f) { return backward(f, true); }

TS_CPU_FAMILY(softmax,
    {TS_OP_softmax, softmax, {TS_DT_FLOATS | TS_DT_HALVES, 0}},
    {TS_OP_log_softmax, log_softmax, {TS_DT_FLOATS | TS_DT_HALVES, 0}},
    {TS_OP_softmax_backward, softmax_backward, {TS_DT_FLOATS | TS_DT_HALVES, 0}},
    {TS_OP_log_softmax_backward, log_softmax_backward, {TS_DT_FLOATS | TS_DT_HALVES, 0}})
