/** @file graphs.h  Kernels of a mock device that captures graphs, and a program's weights. */
// SPDX-License-Identifier: MIT
#ifndef TESTS_COMPILE_GRAPHS_H
#define TESTS_COMPILE_GRAPHS_H

#include "tests/compile/explains.h"
#include "tests/compile/tape.h"

static int flavour;   /* which of two kernels mul launches: 0 or 1 */
static bool keeps;    /* the first call of neg does not give its scratch memory back */
static void *kept;    /* that memory; NULL: none */

/* ------------------------------------------------------------------------------- kernels ---- */

FORMULA(add, x + y)
FORMULA(mul, x * y)
FORMULA(mul_again, y * x)
FORMULA(relu, x > 0 ? x : 0)

static ts_status add(ts_frame *f) { return pointwise(f, run_add); }
static ts_status relu(ts_frame *f) { return pointwise(f, run_relu); }
static ts_status mul(ts_frame *f) { return pointwise(f, flavour ? run_mul_again : run_mul); }

static void run_negate(const task *t)
{
    const float *x = from_handle(t->from);
    for (int64_t i = 0; i < t->n; i++)
        ((float *)from_handle(t->to))[i] = -x[i];
}
/** Negation by two launches, with the intermediate result in scratch memory. */
static ts_status neg(ts_frame *f)
{
    int64_t bytes = ts_numel(f->args[0].t) * 4;
    void *scratch = ts_scratch_take(ts_kernel_device(f), bytes);
    if (!scratch)
        return ts_error_code();
    queue(ts_kernel_stream(f), (task){.run = run_negate, .to = scratch, .n = bytes / 4,
                                      .from = ts_kernel_data(f->args[0].t)});
    queue(ts_kernel_stream(f), (task){.run = run_copy, .from = scratch, .n = bytes,
                                      .to = ts_kernel_data(f->rets[0].t)});
    if (keeps && !kept)
        kept = scratch;
    else
        ts_scratch_give(ts_kernel_device(f), scratch, bytes);
    return TS_OK;
}

static void run_draw(const task *t)
{
    for (int64_t i = 0; i < t->n; i++)
        ((float *)from_handle(t->to))[i] = (float)((t->rng.offset + (uint64_t)i) * 7 % 1009);
}
/** The kernel of uniform: whole numbers that depend on the offset of the random state. */
static ts_status draw(ts_frame *f)
{
    return queue(ts_kernel_stream(f),
                 (task){.run = run_draw, .to = ts_kernel_data(f->rets[0].t),
                        .n = ts_numel(f->rets[0].t), .rng = f->rng});
}

static ts_status install(void *state, ts_key key)
{
    (void)state;
    static const struct {
        const char *op;
        ts_kernel kernel;
        bool strided;
    } kernels[] = {{"add", add, true}, {"mul", mul, true}, {"relu", relu, true},
                   {"neg", neg, false}, {"uniform", draw, false}};
    for (int i = 0; i < 5; i++) {
        ts_kernel_opts opts = {.size = sizeof opts, .dtypes = TS_DTYPE_BIT(TS_F32),
                               .strided = kernels[i].strided};
        TS_TRY(ts_register_kernel_ex(kernels[i].op, key, kernels[i].kernel, &opts, NULL));
    }
    return TS_OK;
}

static void set_up(void) { set_up_with(install); }
#define MOCK .setup = set_up, .teardown = tear_down

static ts_compiled *graph_of(ts_trace_fn fn, void *ctx)
{
    return ts_compile(fn, ctx, TS_OPTS(ts_compile_opts, .graph = true));
}

/** State of a program under test. */
typedef struct weights {
    ts_tensor *w, *moment; /* (5, 7), on the device */
    double rate;           /* a number among the arguments */
    bool draws;            /* the program draws random numbers */
} weights;

static inline weights weights_new(void)
{
    return (weights){remote(1, TS_SIZES(5, 7)), remote(2, TS_SIZES(5, 7)), 0.25, true};
}

#endif
