/**
 * @file batch_norm.c
 * Batch norm and group norm, and their gradients.
 *
 * A tensor is (samples, channels, positions), contiguous or channels-last. Positions are divided
 * into pieces whose length depends on sizes and layout only. A kernel sums each piece while it is
 * in the cache; the piece sums are then added in f64 in a fixed order, so results do not depend on
 * the number of threads.
 */
// SPDX-License-Identifier: MIT
#include "backends/cpu/loops.h"
#include "core/parallel.h"
#include "core/convert.h"
#include "ops/kernel.h"

#include <math.h>

enum {
    PIECE = 4096, /* maximum positions of a contiguous piece; fits the L2 cache */
    ROWS_LEAST = 128, ROWS_MOST = 1024, /* least and most positions of a channels-last piece */
    PIECES = 32,     /* pieces of channels-last positions, unless ROWS_MOST needs more */
    PIECE_SUMS = 2 /* sums per piece and channel */
};

/** The passes over the pieces of a call. Arrays are borrowed. */
typedef struct channel_job {
    const void *x, *g; /* argument; upstream gradient */
    void *y;           /* result, or gradient of x */
    int64_t samples, channels, positions;
    int64_t pieces, length;    /* pieces per sample, positions per piece */
    int64_t together;          /* channels per task, unless channels-last */
    bool last;                 /* channels-last */
    int64_t sets;              /* sets of coefficients: `samples` (group norm) or 1 (batch norm) */
    bool relu;                 /* the result passes through relu */
    /* coefficients (sets, channels). The result is (x - shift) scale + add. A gradient is
     * g slope + (x - shift) scale + add; with relu, g is 0 unless (x - shift) slope + base > 0 */
    void *shift, *scale, *add, *slope, *base;
    double *sums;              /* (channels, samples, pieces, PIECE_SUMS): mean and sum of squared
                                  deviations, or sums of g and of g (x - shift) */
} channel_job;

/** Number of positions of piece p; the last piece may have fewer than the others. */
TS_INLINE int64_t piece_length(const channel_job *job, int64_t p)
{
    return ts_min64(job->length, job->positions - p * job->length);
}
/** Distance in `sums` from one channel to the next. */
TS_INLINE int64_t sums_step(const channel_job *job)
{
    return job->samples * job->pieces * PIECE_SUMS;
}
/** The sums of channel k in piece p of sample i. */
TS_INLINE double *sums_of(const channel_job *job, int64_t k, int64_t i, int64_t p)
{
    return job->sums + k * sums_step(job) + (i * job->pieces + p) * PIECE_SUMS;
}

#define TS_REAL 32
#include "backends/cpu/batch_norm_real.h"
#undef TS_REAL
#define TS_REAL 64
#include "backends/cpu/batch_norm_real.h"
#undef TS_REAL

/* -------------------------------------------------------------------------------- calls ---- */

/** Element i of a contiguous tensor of any floating dtype; `absent` if v is not a tensor. */
static double parameter(const ts_value *v, int64_t i, double absent)
{
    if (v->tag != TS_TAG_TENSOR)
        return absent;
    const char *data = v->t->data;
    switch (v->t->dtype) {
    case TS_F64: return ((const double *)data)[i];
    case TS_F32: return (double)((const float *)data)[i];
    case TS_BF16: return (double)ts_bf16_to_f32(((const uint16_t *)data)[i]);
    default: return (double)ts_f16_to_f32(((const uint16_t *)data)[i]);
    }
}
/** Stores x as element i of a contiguous tensor of any floating dtype, rounded once; does nothing
 *  if v is not a tensor. */
static void put(const ts_value *v, int64_t i, double x)
{
    if (v->tag != TS_TAG_TENSOR)
        return;
    char *data = v->t->data;
    switch (v->t->dtype) {
    case TS_F64: ((double *)data)[i] = x; break;
    case TS_F32: ((float *)data)[i] = (float)x; break;
    case TS_BF16: ((uint16_t *)data)[i] = ts_f32_to_bf16(ts_odd_f32(x)); break;
    default: ((uint16_t *)data)[i] = ts_f32_to_f16(ts_odd_f32(x));
    }
}

/** A decoded call: a job, and the parameters and statistics from which its coefficients are
 * computed. */
typedef struct channel_call {
    channel_job job;
    const ts_value *mean, *var, *weight, *bias; /* mean, var: arguments, or results to be written */
    const ts_value *dw, *db;
    double eps;
    int64_t groups;   /* groups of channels; statistics are (sets, groups) */
    double *rstd;     /* backward: 1 / sqrt(var + eps) per statistic */
    const channel_job *summed; /* forward: the job of the MOMENTS pass; a channel of it may be a
                                  whole group */
    bool given;       /* the statistics are arguments, which the gradient treats as constants */
    bool wide;        /* coefficients are f64, else f32 */
    void *memory;     /* coefficients and piece sums; owned until the end of the call */
    size_t bytes;
} channel_call;

/** Stores coefficient i in the dtype of the arithmetic. */
static void set(const channel_call *c, void *list, int64_t i, double x)
{
    if (c->wide)
        ((double *)list)[i] = x;
    else
        ((float *)list)[i] = (float)x;
}

/** Sets *apart to the sum of deviations from m, and *squares to the sum of their squares, over the
 * elements of channels first to first + width - 1 in samples `from` to `to` - 1. A piece of n
 * elements adds to *squares the squared deviations from its own mean plus n (its mean - m)^2.
 * Returns the number of elements. */
static double add_pieces(const channel_job *job, int64_t from, int64_t to, int64_t first,
                         int64_t width, double m, double *apart, double *squares)
{
    double count = 0;
    *apart = *squares = 0;
    for (int64_t i = from; i < to; i++)
        for (int64_t k = first; k < first + width; k++)
            for (int64_t p = 0; p < job->pieces; p++) {
                const double *s = sums_of(job, k, i, p);
                double n = (double)piece_length(job, p);
                count += n;
                *apart += n * (s[0] - m);
                *squares += s[1] + n * (s[0] - m) * (s[0] - m);
            }
    return count;
}

/** Computes the means, variances and coefficients of groups begin to end - 1 of (sets, groups). */
static void combine_forward(void *ctx, int64_t begin, int64_t end)
{
    const channel_call *c = ctx;
    const channel_job *job = &c->job;
    int64_t width = job->channels / c->groups, samples = job->samples / ts_max64(job->sets, 1);
    for (int64_t at = begin; at < end; at++) {
        int64_t first = at % c->groups * width, set_at = at / c->groups;
        int64_t from = set_at * samples;
        double mean = 0, var = 0;
        if (c->given) {
            mean = parameter(c->mean, at, 0);
            var = parameter(c->var, at, 0);
        } else {
            const channel_job *summed = c->summed;
            int64_t many = summed->channels / c->groups, begins = at % c->groups * many;
            int64_t to = from + samples;
            double apart, n = add_pieces(summed, from, to, begins, many, 0, &apart, &var);
            mean = apart / n; /* NaN without elements */
            add_pieces(summed, from, to, begins, many, mean, &apart, &var);
            if (isfinite(mean))
                mean += apart / n; /* makes the mean of equal values exact */
            add_pieces(summed, from, to, begins, many, mean, &apart, &var);
            var = n > 0 ? var / n : (double)NAN;
        }
        double rstd = 1 / sqrt(var + c->eps);
        for (int64_t k = first; k < first + width; k++) {
            int64_t i = set_at * job->channels + k;
            set(c, job->shift, i, mean);
            set(c, job->scale, i, rstd * parameter(c->weight, k, 1));
            set(c, job->add, i, parameter(c->bias, k, 0));
        }
        if (!c->given) {
            put(c->mean, at, mean);
            put(c->var, at, var);
        }
    }
}

/**
 * Computes the coefficients of dx. With z = (x - mean) rstd, h = grad weight and m elements per
 * group: dx = rstd (h - sum(h) / m - z sum(h z) / m), or rstd h if the statistics are given.
 */
static void combine_backward(void *ctx, int64_t begin, int64_t end)
{
    const channel_call *c = ctx;
    const channel_job *job = &c->job;
    int64_t width = job->channels / c->groups, samples = job->samples / ts_max64(job->sets, 1);
    for (int64_t at = begin; at < end; at++) {
        int64_t first = at % c->groups * width, set_at = at / c->groups;
        double rstd = c->rstd[at], along = 0, shift = 0;
        for (int64_t i = set_at * samples; i < (set_at + 1) * samples && !c->given; i++)
            for (int64_t k = first; k < first + width; k++) {
                double w = parameter(c->weight, k, 1);
                for (int64_t p = 0; p < job->pieces; p++) {
                    const double *s = sums_of(job, k, i, p);
                    shift += w * s[0];
                    along += w * s[1];
                }
            }
        double m = (double)(samples * width * job->positions);
        for (int64_t k = first; k < first + width; k++) {
            int64_t i = set_at * job->channels + k;
            bool alone = c->given && !job->relu; /* backward() then runs APPLY with grad as x */
            set(c, alone ? job->scale : job->slope, i, rstd * parameter(c->weight, k, 1));
            set(c, job->add, i, c->given ? 0 : -rstd * shift / m);
            if (alone)
                set(c, job->shift, i, 0);
            else
                set(c, job->scale, i, c->given ? 0 : -rstd * rstd * rstd * along / m);
        }
    }
}

/** Computes the gradients of weight and bias for channels begin to end - 1. */
static void combine_parameters(void *ctx, int64_t begin, int64_t end)
{
    const channel_call *c = ctx;
    const channel_job *job = &c->job;
    int64_t width = job->channels / c->groups, samples = job->samples / ts_max64(job->sets, 1);
    for (int64_t k = begin; k < end; k++) {
        double dw = 0, db = 0;
        for (int64_t i = 0; i < job->samples; i++) {
            double along = 0;
            for (int64_t p = 0; p < job->pieces; p++) {
                const double *s = sums_of(job, k, i, p);
                db += s[0];
                along += s[1];
            }
            dw += along * c->rstd[i / samples * c->groups + k / width];
        }
        put(c->dw, k, dw);
        put(c->db, k, db);
    }
}

/** Divides positions into pieces, by sizes and layout alone. */
static void divide(channel_job *job)
{
    int64_t rows = ts_ceil_div(job->positions, PIECES),
            length = job->last ? ts_max64(ts_min64(rows, ROWS_MOST), ROWS_LEAST) : PIECE;
    job->length = ts_max64(ts_min64(length, job->positions), 1);
    job->pieces = ts_ceil_div(job->positions, job->length);
    job->together = job->last || job->pieces > 1
                        ? 1
                        : ts_max64(ts_min64(PIECE / job->length, job->channels), 1);
}

/** Decodes the tensors of a call. x: (N, C, ...); batch: all samples share the statistics. */
static void describe(channel_call *c, const ts_frame *f, const ts_tensor *x, int64_t groups,
                     bool batch)
{
    channel_job *job = &c->job;
    c->wide = f->plan->compute == TS_F64;
    c->groups = batch ? x->sizes[1] : groups;
    job->x = x->data;
    job->samples = x->sizes[0];
    job->channels = x->sizes[1];
    job->positions = 1;
    for (int d = 2; d < x->ndim; d++)
        job->positions *= x->sizes[d];
    const ts_tensor *g = f->args[0].t, *y = f->rets[0].tag == TS_TAG_TENSOR ? f->rets[0].t : x;
    job->last = job->positions == 1 || (ts_is_dense_last(x) && ts_is_dense_last(g) &&
                                        ts_is_dense_last(y));
    if (batch && (job->last || job->channels == 1)) { /* N and the positions are one dim */
        job->positions *= job->samples;
        job->samples = 1;
    }
    job->sets = batch ? 1 : job->samples;
    divide(job);
}

/** Allocates the coefficients and, unless `summed` is NULL, the piece sums of that job. The
 *  caller frees c->memory. TS_ERR_MEMORY. */
static ts_status allocate(ts_frame *f, channel_call *c, const channel_job *summed)
{
    channel_job *job = &c->job;
    size_t item = c->wide ? 8 : 4, list = (size_t)(job->sets * job->channels) * item,
           parts = summed ? (size_t)(sums_step(summed) * summed->channels) * sizeof(double) : 0,
           statistics = (size_t)(job->sets * c->groups) * sizeof(double);
    list = (list + 63) & ~(size_t)63;
    c->bytes = 5 * list + parts + statistics + 64;
    if (!(c->memory = ts_alloc(f->thread, c->bytes)))
        return ts_error_memory("the coefficients of a norm", (int64_t)c->bytes);
    char *at = c->memory;
    job->shift = at;
    job->scale = at + list;
    job->add = at + 2 * list;
    job->slope = at + 3 * list;
    job->base = at + 4 * list;
    job->sums = (double *)(void *)(at + 5 * list);
    c->rstd = (double *)(void *)(at + 5 * list + parts);
    return TS_OK;
}

/** The passes over the pieces. The body of pass p > MOMENTS with relu has index p + RELU. */
typedef enum pass { MOMENTS, SUMS, APPLY, GRADIENT } pass;
enum { RELU = 3 };

/** Runs a pass. A task is one piece of `together` channels, or of all channels in channels-last. */
static void run(const ts_frame *f, channel_job *job, pass what)
{
#define OF(dtype, name)                                                                            \
    [dtype] = {channel_moments_##name, channel_sums_##name, channel_apply_##name,                  \
               channel_gradient_##name, channel_sums_relu_##name, channel_apply_relu_##name,       \
               channel_gradient_relu_##name}
    static const ts_parallel_body bodies[][GRADIENT + RELU + 1] = {OF(TS_F64, f64), OF(TS_F32, f32),
                                                 OF(TS_BF16, bf16), OF(TS_F16, f16)};
#undef OF
    int64_t elements = job->length * (job->last ? job->channels : job->together),
            tasks = job->samples * job->pieces *
                    (job->last ? 1 : ts_ceil_div(job->channels, job->together));
    if (tasks > 0 && elements)
        ts_parallel_for(tasks, TS_CPU_GRAIN(1) / elements + 1,
                        bodies[f->plan->compute][what + (job->relu && what != MOMENTS ? RELU : 0)],
                        job);
}

static ts_status forward(ts_frame *f, channel_call *c)
{
    channel_job *job = &c->job, whole = *job;
    job->y = f->rets[0].t->data;
    if (!job->last && c->groups && c->groups < job->channels) { /* a group is one run of memory */
        whole.positions *= job->channels / c->groups;
        whole.channels = c->groups;
        divide(&whole);
    }
    TS_TRY(allocate(f, c, !c->given ? &whole : NULL));
    whole.sums = job->sums;
    c->summed = &whole;
    int64_t n = job->sets * c->groups;
    if (!c->given)
        run(f, &whole, MOMENTS);
    ts_parallel_for(n, TS_CPU_GRAIN(16) / (job->samples * job->channels / ts_max64(n, 1) + 1) + 1,
                    combine_forward, c);
    run(f, job, APPLY);
    ts_free(f->thread, c->memory, c->bytes);
    return TS_OK;
}

/** batch_norm(self, mean, var, weight, bias, eps) -> (result, mean, var); also batch_norm_relu() */
static ts_status batch_norm(ts_frame *f)
{
    channel_call c = {.job.relu = f->op == TS_OP_batch_norm_relu, .weight = &f->args[3],
                      .bias = &f->args[4], .eps = f->args[5].d,
                      .given = f->args[1].tag == TS_TAG_TENSOR};
    c.mean = c.given ? &f->args[1] : &f->rets[1];
    c.var = c.given ? &f->args[2] : &f->rets[2];
    describe(&c, f, f->args[0].t, 0, true);
    TS_TRY(forward(f, &c));
    for (int64_t k = 0; c.given && k < c.job.channels; k++) {
        put(&f->rets[1], k, parameter(c.mean, k, 0));
        put(&f->rets[2], k, parameter(c.var, k, 0));
    }
    return TS_OK;
}

/** group_norm(self, groups, weight, bias, eps) -> (result, mean, var) */
static ts_status group_norm(ts_frame *f)
{
    channel_call c = {.weight = &f->args[2], .bias = &f->args[3], .eps = f->args[4].d,
                      .mean = &f->rets[1], .var = &f->rets[2]};
    describe(&c, f, f->args[0].t, f->args[1].i, false);
    return forward(f, &c);
}

/** (grad, self, mean, var, weight, ...) -> (dx, dw, db) */
static ts_status backward(ts_frame *f, channel_call *c)
{
    channel_job *job = &c->job;
    c->mean = &f->args[2];
    c->var = &f->args[3];
    c->weight = &f->args[4];
    c->dw = &f->rets[1];
    c->db = &f->rets[2];
    job->g = f->args[0].t->data;
    bool dx = f->rets[0].tag == TS_TAG_TENSOR,
         sums = (dx && !c->given) || c->dw->tag == TS_TAG_TENSOR || c->db->tag == TS_TAG_TENSOR;
    job->y = dx ? f->rets[0].t->data : NULL;
    TS_TRY(allocate(f, c, sums ? job : NULL));
    int64_t width = job->channels / ts_max64(c->groups, 1);
    for (int64_t at = 0, i = 0; at < job->sets * c->groups; at++) {
        double mean = parameter(c->mean, at, 0);
        c->rstd[at] = 1 / sqrt(parameter(c->var, at, 0) + c->eps);
        for (int64_t end = i + width; i < end; i++) {
            set(c, job->shift, i, mean);
            if (!job->relu)
                continue;
            int64_t k = i % job->channels;
            set(c, job->slope, i, c->rstd[at] * parameter(c->weight, k, 1));
            set(c, job->base, i, parameter(c->bias, k, 0));
        }
    }
    if (sums) {
        run(f, job, SUMS);
        ts_parallel_for(job->channels, TS_CPU_GRAIN(4) / (job->samples * job->pieces + 1) + 1,
                        combine_parameters, c);
    }
    if (dx) {
        int64_t n = job->sets * c->groups;
        int64_t work = job->samples * job->channels / ts_max64(n, 1) + 1;
        ts_parallel_for(n, TS_CPU_GRAIN(4) / work + 1, combine_backward, c);
        bool alone = c->given && !job->relu;
        if (alone)
            job->x = job->g;
        run(f, job, alone ? APPLY : GRADIENT);
    }
    ts_free(f->thread, c->memory, c->bytes);
    return TS_OK;
}

/** batch_norm_backward(grad, self, mean, var, weight, eps, constant) -> (dx, dw, db) */
static ts_status batch_norm_backward(ts_frame *f)
{
    channel_call c = {.eps = f->args[5].d, .given = f->args[6].i};
    describe(&c, f, f->args[1].t, 0, true);
    return backward(f, &c);
}

/** batch_norm_relu_backward(grad, self, mean, var, weight, bias, eps, constant) -> (dx, dw, db) */
static ts_status batch_norm_relu_backward(ts_frame *f)
{
    channel_call c = {.job.relu = true, .bias = &f->args[5], .eps = f->args[6].d,
                      .given = f->args[7].i};
    describe(&c, f, f->args[1].t, 0, true);
    return backward(f, &c);
}

/** group_norm_backward(grad, self, mean, var, weight, groups, eps) -> (dx, dw, db) */
static ts_status group_norm_backward(ts_frame *f)
{
    channel_call c = {.eps = f->args[6].d};
    describe(&c, f, f->args[1].t, f->args[5].i, false);
    return backward(f, &c);
}

/* The loop for tensors of one type T. The loop for other dtypes computes the same values. */
#define UPDATE(T)                                                                                  \
    {                                                                                              \
        T *running = (T *)(void *)to->data;                                                        \
        const T *now = (const T *)(const void *)from->data;                                        \
        for (int64_t i = 0; i < to->numel; i++)                                                    \
            running[i] = (T)((double)running[i] * (1 - rate) + factor * (double)now[i]);           \
        break;                                                                                     \
    }

/** batch_norm_update(running_mean, running_var, mean, var, count, momentum) */
static ts_status batch_norm_update(ts_frame *f)
{
    double n = (double)f->args[4].i, rate = f->args[5].d;
    for (int q = 0; q < 2; q++) {
        ts_tensor *to = f->args[q].t, *from = f->args[2 + q].t;
        double factor = q ? rate * (n / (n - 1)) : rate;
        switch (to->dtype == from->dtype ? to->dtype : TS_BF16) {
        case TS_F32: UPDATE(float)
        case TS_F64: UPDATE(double)
        default:
            for (int64_t i = 0; i < to->numel; i++)
                put(&f->args[q], i,
                    parameter(&f->args[q], i, 0) * (1 - rate) +
                        factor * parameter(&f->args[2 + q], i, 0));
        }
    }
    return TS_OK;
}
#undef UPDATE

#define ALL {TS_DT_FLOATS | TS_DT_HALVES, 0}
TS_CPU_FAMILY(batch_norm,
    {TS_OP_batch_norm, batch_norm, ALL},
    {TS_OP_batch_norm_backward, batch_norm_backward, ALL},
    {TS_OP_batch_norm_relu, batch_norm, ALL},
    {TS_OP_batch_norm_relu_backward, batch_norm_relu_backward, ALL},
    {TS_OP_batch_norm_update, batch_norm_update, ALL},
    {TS_OP_group_norm, group_norm, ALL},
    {TS_OP_group_norm_backward, group_norm_backward, ALL})
