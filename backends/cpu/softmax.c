/** @file softmax.c  softmax and log_softmax over one dim, and their gradients. */
// SPDX-License-Identifier: MIT
#include "backends/cpu/loops.h"
#include "core/parallel.h"
#include "ops/kernel.h"

typedef struct softmax_job {
    const void *x, *g;
    void *y;
    int64_t n, inner;
    bool log;
} softmax_job;

#define TS_REAL 32
#include "backends/cpu/softmax_real.h"
#undef TS_REAL
#define TS_REAL 64
#include "backends/cpu/softmax_real.h"
#undef TS_REAL

/** Rows where the dim is the last one, else tiles of columns; f64 calls libm, so it is dearer. */
static ts_status run(ts_frame *f, softmax_job *job, const ts_parallel_body bodies[2][2])
{
    const ts_plan *plan = f->plan;
    bool wide = plan->compute == TS_F64;
    job->n = plan->count;
    job->inner = plan->inner;
    int64_t lanes = plan->inner == 1 ? 1 : wide ? VD_LANES : VF_LANES;
    int64_t tasks = plan->outer * ts_ceil_div(plan->inner, lanes);
    if (job->n)
        ts_parallel_for(tasks, TS_CPU_GRAIN(wide ? 32 : 2) / (job->n * lanes) + 1, bodies[wide][plan->inner != 1], job);
    return TS_OK;
}

static ts_status forward(ts_frame *f, bool log)
{
    static const ts_parallel_body bodies[2][2] = {{softmax_rows_f32, softmax_columns_f32},
                                                  {softmax_rows_f64, softmax_columns_f64}};
    softmax_job job = {.x = f->args[0].t->data, .y = f->rets[0].t->data, .log = log};
    return run(f, &job, bodies);
}
static ts_status softmax(ts_frame *f) { return forward(f, false); }
static ts_status log_softmax(ts_frame *f) { return forward(f, true); }

static ts_status backward(ts_frame *f, bool log)
{
    static const ts_parallel_body bodies[2][2] = {{softmax_backward_rows_f32, softmax_backward_columns_f32},
                                                  {softmax_backward_rows_f64, softmax_backward_columns_f64}};
    softmax_job job = {.g = f->args[0].t->data, .x = f->args[1].t->data, .y = f->rets[0].t->data, .log = log};
    return run(f, &job, bodies);
}
static ts_status softmax_backward(ts_frame *f) { return backward(f, false); }
static ts_status log_softmax_backward(ts_frame *f) { return backward(f, true); }

TS_CPU_FAMILY(softmax,
    {TS_OP_softmax, softmax, {TS_DT_FLOATS, 0}},
    {TS_OP_log_softmax, log_softmax, {TS_DT_FLOATS, 0}},
    {TS_OP_softmax_backward, softmax_backward, {TS_DT_FLOATS, 0}},
    {TS_OP_log_softmax_backward, log_softmax_backward, {TS_DT_FLOATS, 0}})
