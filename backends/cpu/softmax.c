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

/** Runs a job by rows if the softmax dim is the last one, else by tiles of LANES columns.
 * bodies: [f64][rows, columns, short rows]. bf16 and f16 are widened by blocks of rows, or as whole
 * tensors by ts_run_widened(). TS_ERR_MEMORY. */
static ts_status run(ts_frame *f, softmax_job *job, const ts_parallel_body bodies[2][3])
{
    const ts_plan *plan = f->plan;
    bool wide = plan->compute == TS_F64, half = ts_dtype_is_half(plan->compute);
    job->n = plan->count;
    job->inner = plan->inner;
    if (half && (job->inner != 1 || job->n > TS_ROW_MOST))
        return ts_run_widened(f);
    job->half = plan->compute;
    int64_t lanes = plan->inner == 1 ? 1 : wide ? VD_LANES : VF_LANES;
    int64_t rows = plan->outer, least = wide ? VD_LANES : VF_LANES;
    bool few = job->n <= (wide ? LINE_f64 : LINE_f32) && rows >= least;
    int body = plan->inner != 1 ? 1 : few ? 2 : 0;
    job->single = bodies[0][body];
    int64_t tasks = plan->outer * ts_ceil_div(plan->inner, lanes);
    if (!job->n || !tasks)
        return TS_OK;
    ts_slots slots;
    if (half)
        TS_TRY(ts_slots_begin(f, &slots, tasks, (job->g ? 2 : 1) * rows_bytes(job->n),
                              "rows of softmax"));
    job->slots = &slots;
    ts_parallel_for(tasks, TS_CPU_GRAIN(wide ? 32 : 2) / (job->n * lanes) + 1,
                    half ? rows_of_halves : bodies[wide][body], job);
    if (half)
        ts_slots_end(f, &slots);
    return TS_OK;
}

static ts_status forward(ts_frame *f, bool log)
{
    static const ts_parallel_body bodies[2][3] = {
        {softmax_rows_f32, softmax_columns_f32, softmax_short_f32},
        {softmax_rows_f64, softmax_columns_f64, softmax_short_f64}};
    softmax_job job = {.x = f->args[0].t->data, .y = f->rets[0].t->data, .log = log};
    return run(f, &job, bodies);
}
static ts_status softmax(ts_frame *f) { return forward(f, false); }
static ts_status log_softmax(ts_frame *f) { return forward(f, true); }

static ts_status backward(ts_frame *f, bool log)
{
    static const ts_parallel_body bodies[2][3] = {
        {softmax_backward_rows_f32, softmax_backward_columns_f32, softmax_backward_short_f32},
        {softmax_backward_rows_f64, softmax_backward_columns_f64, softmax_backward_short_f64}};
    softmax_job job = {
        .g = f->args[0].t->data, .x = f->args[1].t->data, .y = f->rets[0].t->data, .log = log};
    return run(f, &job, bodies);
}
static ts_status softmax_backward(ts_frame *f) { return backward(f, false); }
static ts_status log_softmax_backward(ts_frame *f) { return backward(f, true); }

TS_CPU_FAMILY(softmax,
    {TS_OP_softmax, softmax, {TS_DT_FLOATS | TS_DT_HALVES, 0}},
    {TS_OP_log_softmax, log_softmax, {TS_DT_FLOATS | TS_DT_HALVES, 0}},
    {TS_OP_softmax_backward, softmax_backward, {TS_DT_FLOATS | TS_DT_HALVES, 0}},
    {TS_OP_log_softmax_backward, log_softmax_backward, {TS_DT_FLOATS | TS_DT_HALVES, 0}})
