/** @file factory.c  Factories: arange, linspace, eye, empty, full; and fill. */
// SPDX-License-Identifier: MIT
#include "backends/cpu/loops.h"
#include "core/parallel.h"
#include "ops/kernel.h"

static ts_status empty(ts_frame *f)
{
    (void)f;
    return TS_OK;
}

#define FILL(bits)                                                                                 \
    static void fill_##bits(char *const *d, const int64_t *s, int64_t n, const void *params)       \
    {                                                                                              \
        (void)params;                                                                              \
        /* copies of d and s, because stores of bytes may alias them, so that loops vectorize */   \
        uint##bits##_t v = *(const uint##bits##_t *)d[1], *out = (uint##bits##_t *)d[0];           \
        int64_t step = s[0];                                                                       \
        if (step == sizeof v)                                                                      \
            for (int64_t i = 0; i < n; i++)                                                        \
                out[i] = v;                                                                        \
        else                                                                                       \
            for (int64_t i = 0; i < n; i++)                                                        \
                *(uint##bits##_t *)((char *)out + i * step) = v;                                   \
    }
FILL(8)
FILL(16)
FILL(32)
FILL(64)

static const ts_loop fills[TS_DTYPE_COUNT] = {
    [TS_F64] = fill_64, [TS_F32] = fill_32, [TS_BF16] = fill_16, [TS_F16] = fill_16,
    [TS_I64] = fill_64, [TS_I32] = fill_32, [TS_U8] = fill_8,    [TS_BOOL] = fill_8,
};

static ts_status full(ts_frame *f) { return ts_cpu_pointwise(f, fills, NULL, 1); }

/** fill writes its argument and has no result, so the plan has no iteration space for it. This
 * function makes one with the argument as the result. */
static ts_status fill(ts_frame *f)
{
    ts_value args[2] = {f->args[1]}, ret = f->args[0];
    ts_frame inner = *f;
    inner.args = args;
    inner.nargs = 1;
    inner.rets = &ret;
    inner.nrets = 1;
    f->plan->operands = 1;
    ts_plan_iterate(&inner);
    return ts_cpu_pointwise(f, fills, NULL, 1);
}

/** A call of arange or linspace. */
typedef struct sequence {
    const ts_tensor *out;
    double start, end, step; /* of a floating result */
    uint64_t from, by;       /* start and step of an integer result */
} sequence;

/* Stores expr, converted to T, in elements begin to end - 1 of out. expr may use the element's
 * index: i as u64 and x as f64. x is an exact sum of two f64, which vectorizes. */
#define EACH(T, expr)                                                    \
    for (int64_t first = begin; first < end; first += SEQUENCE) {        \
        int many = (int)ts_min64(SEQUENCE, end - first);                 \
        T *to = (T *)s->out->data + first;                               \
        double base = (double)first;                                     \
        for (int k = 0; k < many; k++) {                                 \
            double x = base + k;                                         \
            uint64_t i = (uint64_t)first + (unsigned)k;                  \
            (void)x, (void)i;                                            \
            to[k] = (T)(expr);                                           \
        }                                                                \
    }
enum { SEQUENCE = 1024 }; /* elements of the inner loop of EACH() */

static void arange_some(void *ctx, int64_t begin, int64_t end)
{
    const sequence *s = ctx;
    switch (s->out->dtype) {
    case TS_F64: EACH(double, s->start + x * s->step) break;
    case TS_F32: EACH(float, s->start + x * s->step) break;
    case TS_I64: EACH(int64_t, s->from + i * s->by) break;
    case TS_I32: EACH(int32_t, s->from + i * s->by) break;
    default: EACH(uint8_t, s->from + i * s->by)
    }
}

static double number(const ts_value *v) { return v->tag == TS_TAG_FLOAT ? v->d : (double)v->i; }
static int64_t whole(const ts_value *v) { return v->tag == TS_TAG_FLOAT ? (int64_t)v->d : v->i; }

static ts_status arange(ts_frame *f)
{
    sequence s = {.out = f->rets[0].t, .start = number(&f->args[0]), .step = number(&f->args[2]),
                  .from = (uint64_t)whole(&f->args[0]), .by = (uint64_t)whole(&f->args[2])};
    ts_parallel_for(s.out->numel, TS_CPU_GRAIN(1), arange_some, &s);
    return TS_OK;
}

static void linspace_some(void *ctx, int64_t begin, int64_t end)
{
    const sequence *s = ctx;
    double last = (double)(s->out->numel - 1), middle = (double)(s->out->numel / 2);
    if (s->out->numel == 1)
        middle = 1;
    if (s->out->dtype == TS_F64)
        EACH(double, x < middle ? s->start + x * s->step : s->end - (last - x) * s->step)
    else
        EACH(float, x < middle ? s->start + x * s->step : s->end - (last - x) * s->step)
}

/** The second half counts back from the end, so the ends are exact and the middle is symmetric. */
static ts_status linspace(ts_frame *f)
{
    int64_t n = f->rets[0].t->numel;
    sequence s = {.out = f->rets[0].t, .start = f->args[0].d, .end = f->args[1].d};
    s.step = n > 1 ? (s.end - s.start) / (double)(n - 1) : 0;
    ts_parallel_for(n, TS_CPU_GRAIN(1), linspace_some, &s);
    return TS_OK;
}

/** The rows of a matrix with ones on its diagonal. */
typedef struct eye_job {
    char *out;
    int64_t columns, item;
    char one[8];
} eye_job;

static void eye_rows(void *ctx, int64_t begin, int64_t end)
{
    const eye_job *job = ctx;
    int64_t row = job->columns * job->item;
    memset(job->out + begin * row, 0, (size_t)((end - begin) * row));
    for (int64_t i = begin; i < ts_min64(end, job->columns); i++)
        memcpy(job->out + i * (row + job->item), job->one, (size_t)job->item);
}

static ts_status eye(ts_frame *f)
{
    ts_tensor *out = f->rets[0].t;
    eye_job job = {.out = out->data, .columns = out->sizes[1], .item = ts_dtype_sizes[out->dtype]};
    ts_value value = ts_value_int(1);
    ts_scalar_store(&value, (ts_dtype)out->dtype, job.one);
    if (out->numel)
        ts_parallel_for(out->sizes[0], TS_CPU_GRAIN(1) / job.columns + 1, eye_rows, &job);
    return TS_OK;
}

#define COUNTABLE (TS_DT_FLOATS | TS_DT(TS_I64) | TS_DT(TS_I32) | TS_DT(TS_U8))

TS_CPU_RECIPES(factory,
    {.op = TS_OP_full, .kernel = full, .variant = VEC_ISA, .moves = true, TS_TEXTS("a"),
     .i32 = "a", .boolean = "a"})

TS_CPU_FAMILY(factory,
    {TS_OP_arange, arange, {COUNTABLE, 0}},
    {TS_OP_linspace, linspace, {TS_DT_FLOATS, 0}},
    {TS_OP_eye, eye, {0, 0}},
    {TS_OP_empty, empty, {0, 1}},
    {TS_OP_full, full, {0, 1}},
    {TS_OP_fill, fill, {0, 1}})
