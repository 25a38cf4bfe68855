/** @file fold.c  Folded calls: results that are their argument's elements, and constants. */
// SPDX-License-Identifier: MIT
#include "tests/compile/explains.h"
#include "tests/compile/stages.h"
#include "tests/tracing/net.h"

#include "include/tessera/program.h"

static ts_status copies(TRACED) /* a clone and a cast to the same dtype; neither is an output */
{
    return TS_STATUS_OF(out[0] = ts_add(ts_clone(in[0]), ts_exp(ts_to(in[1], TS_F32))));
}
static ts_status there_and_back(TRACED) /* wider and back: 1. Narrower and back loses bits */
{
    ts_tensor *half = ts_to(in[0], TS_BF16), *a = ts_to(ts_to(half, TS_F32), TS_BF16),
              *b = ts_to(ts_to(in[1], TS_F16), TS_F32);
    return TS_STATUS_OF(out[0] = ts_add(ts_exp(a), ts_exp(b)));
}
static ts_status views(TRACED) /* views of a copy of a view */
{
    ts_tensor *copy = ts_clone(ts_slice(in[0], 0, 2, 8, 1));
    return TS_STATUS_OF(out[0] = ts_mul(ts_slice(copy, 0, 1, 4, 1),
                                        ts_exp(ts_slice(copy, 0, 3, 6, 1))));
}
static ts_status neutral(TRACED) /* x * 1, x / 1, x - 0, x + -0; but x + 0 makes -0 to 0 */
{
    ts_tensor *h = ts_div_scalar(ts_mul_scalar(in[0], 1.0), 1.0);
    h = ts_add_scalar(ts_sub_scalar(h, 0.0), -0.0);
    return TS_STATUS_OF(out[0] = ts_div(in[1], ts_add_scalar(h, 0.0)));
}
static ts_status promoted(TRACED) /* the product has another dtype */
{
    return TS_STATUS_OF(out[0] = ts_exp(ts_mul_scalar(ts_gt(in[0], in[1]), (int64_t)1)));
}
static ts_status held(TRACED) /* outputs are tensors of their own */
{
    out[0] = ts_mul_scalar(in[0], 1.0);
    return TS_STATUS_OF(out[1] = ts_clone(in[0]));
}
static ts_status copy_written(TRACED)
{
    ts_tensor *copy = ts_clone(in[0]);
    TS_TRY(ts_mul_(copy, in[1]));
    return TS_STATUS_OF(out[0] = ts_add(copy, in[0]));
}
static ts_status source_written(TRACED) /* the copy has the old elements */
{
    ts_tensor *copy = ts_clone(in[0]);
    TS_TRY(ts_mul_(ts_select(in[0], 0, 1), ts_select(in[1], 0, 1)));
    return TS_STATUS_OF(out[0] = ts_add(copy, in[0]));
}
static ts_status source_written_by_reader(TRACED) /* by the call that reads the second copy */
{
    TS_TRY(ts_sub_(in[0], ts_cumsum(ts_clone(in[0]), 0)));
    TS_TRY(ts_mul_(in[0], ts_clone(in[0])));
    return TS_STATUS_OF(out[0] = ts_exp(in[0]));
}
static ts_status source_written_after(TRACED) /* after the last read: 1 dropped */
{
    ts_tensor *h = ts_exp(ts_clone(in[0]));
    TS_TRY(ts_mul_(in[0], in[1]));
    return TS_STATUS_OF(out[0] = ts_add(h, in[1]));
}
static ts_status wide_written(TRACED) /* the wide copy is written before the cast back */
{
    ts_tensor *half = ts_to(in[0], TS_F16), *wide = ts_to(half, TS_F32);
    TS_TRY(ts_mul_scalar_(wide, 3));
    return TS_STATUS_OF(out[0] = ts_add(ts_to(wide, TS_F16), half));
}
static ts_status half_written(TRACED) /* the narrow source is written before the cast back */
{
    ts_tensor *half = ts_to(in[0], TS_F16), *wide = ts_to(half, TS_F32);
    TS_TRY(ts_mul_scalar_(half, 3));
    return TS_STATUS_OF(out[0] = ts_add(ts_to(wide, TS_F16), half));
}
static ts_status strides(TRACED) /* the copy has other strides */
{
    return TS_STATUS_OF(out[0] = ts_matmul(ts_contiguous(ts_transpose(in[0], 0, 1)), in[1]));
}
static ts_status mask(TRACED) /* ones, tril, a comparison: 3 constant calls */
{
    ts_tensor *lower = ts_eq_scalar(ts_tril(ts_ones(TS_SIZES(9, 9), TS_F32), 0), 0.0);
    return TS_STATUS_OF(out[0] = ts_masked_fill_scalar(in[0], lower, ts_scalar_float(-1)));
}
static ts_status positions(TRACED) /* an index, and a constant that is written and thus none */
{
    ts_tensor *h = ts_index_select(in[0], 0, ts_arange(0, 4, 1, TS_I64)),
              *sum = ts_zeros(TS_SIZES(4, 9), TS_F32);
    TS_TRY(ts_add_(sum, h));
    return TS_STATUS_OF(out[0] = sum);
}
static ts_status random_constant(TRACED)
{
    ts_tensor *u = ts_uniform(TS_SIZES(9, 9), 0, 1, TS_F32);
    return TS_STATUS_OF(out[0] = ts_add(ts_dropout(ts_ones(TS_SIZES(9, 9), TS_F32), 0.5, true),
                                        ts_mul(u, in[0])));
}
static ts_status held_constant(TRACED) /* the program may write to it */
{
    out[1] = ts_eye(9, 9, TS_F32);
    return TS_STATUS_OF(out[0] = ts_matmul(out[1], in[0]));
}

static ts_status filled(TRACED) /* a group computes ones without a load; a product reads memory */
{
    ts_tensor *ones = ts_neg(ts_ones(TS_SIZES(9, 9), TS_F32));
    return TS_STATUS_OF(out[0] = ts_matmul(ts_exp(ts_add(in[0], ones)),
                                           ts_full(TS_SIZES(9, 9), ts_scalar_float(2), TS_F32)));
}

TS_TEST(calls_without_an_effect_on_values_are_folded, .loop = STAGES)
{
    static const struct {
        ts_trace_fn fn;
        int outputs, dropped, constant;
    } cases[] = {
        {copies, 1, 2, 0}, {there_and_back, 1, 1, 0}, {views, 1, 1, 0}, {neutral, 1, 4, 0},
        {promoted, 1, 0, 0}, {held, 2, 0, 0}, {copy_written, 1, 0, 0}, {source_written, 1, 0, 0},
        {source_written_by_reader, 1, 1, 0}, {source_written_after, 1, 1, 0},
        {wide_written, 1, 0, 0}, {half_written, 1, 0, 0}, {strides, 1, 0, 0}, {mask, 1, 0, 3},
        {positions, 1, 0, 1}, {random_constant, 1, 0, 1}, {held_constant, 2, 0, 0},
        {filled, 1, 0, 1},
    };
    set_stage(stages[_i]);
    for (int i = 0; i < TS_COUNTOF(cases); i++) {
        ts_compiled *c = ts_compile(cases[i].fn, NULL, NULL);
        for (uint64_t k = 0; k < 3; k++) {
            TS_SCOPE;
            ts_tensor *in[2][2], *got[2], *want[2];
            for (int e = 0; e < 2; e++)
                for (int j = 0; j < 2; j++)
                    in[e][j] = ts_mul(numbers(k * 2 + (uint64_t)j, TS_SIZES(9, 9)),
                                      ts_full(TS_SIZES(9, 1), ts_scalar_float(k ? 1 : -0.0),
                                              TS_F32));
            ts_manual_seed(k);
            OK(cases[i].fn(NULL, in[0], 2, want, cases[i].outputs));
            ts_manual_seed(k);
            OK(ts_compiled_call(c, in[1], 2, got, cases[i].outputs));
            for (int j = 0; j < cases[i].outputs; j++)
                ck_assert_msg(same(got[j], want[j]), "case %d, output %d", i, j);
            ck_assert_msg(same(in[0][0], in[1][0]), "case %d, input", i);
            for (int j = 0; j < cases[i].outputs; j++) /* no other value changes with an output */
                OK(ts_fill_(got[j], 7));
            ck_assert_msg(same(in[0][0], in[1][0]), "case %d: an output is an input", i);
            if (cases[i].outputs == 2) {
                OK(ts_fill_(got[0], 5));
                ts_tensor *sevens = ts_full_like(got[1], ts_scalar_int(7));
                ck_assert_msg(same(got[1], sevens), "case %d: outputs share memory", i);
            }
        }
        int counts[2] = {0};
        const ts_folded *f = c->newest->folded.data;
        for (uint32_t k = 0; k < c->newest->folded.count; k++)
            counts[f[k].constant]++;
        int groupless = cases[i].fn == filled && strcmp(stages[_i], "lower") == 0 ? 2 : 0;
        ck_assert_msg(counts[0] == (_i ? cases[i].dropped : 0) &&
                          counts[1] == (_i ? cases[i].constant + groupless : 0),
                      "case %d: %d dropped, %d constant", i, counts[0], counts[1]);
        ts_compiled_free(c);
    }
    set_stage("full");
}

static ts_status scaled(TRACED)
{
    const double *scale = ctx;
    ts_tensor *h = ts_mul(ts_mul_scalar(in[0], *scale),
                          ts_index_select(ts_full(TS_SIZES(9, 9), ts_scalar_float(*scale), TS_F32),
                                          0, ts_arange(0, 9, 1, TS_I64)));
    return TS_STATUS_OF(out[0] = ts_exp(h));
}
static ts_status scaled_by_cell(TRACED)
{
    double *scale = ctx;
    TS_TRY(ts_number_from("mul", "other", scale));
    return TS_STATUS_OF(out[0] = ts_exp(ts_mul_scalar(ts_neg(in[0]), *scale)));
}

/* A folded number is a guard: other numbers need a second plan, which folds no numbers and serves
 * them all. */
TS_TEST(folded_numbers_are_compared, .loop = 3)
{
    double scale = 1;
    ts_trace_fn fn = _i ? scaled_by_cell : scaled;
    ts_compiled *c = ts_compile(fn, &scale, TS_OPTS(ts_compile_opts, .replay = _i == 2));
    for (int k = 0; k < 60; k++) {
        TS_SCOPE;
        ts_tensor *in[] = {numbers((uint64_t)k, TS_SIZES(9, 9))}, *got, *want;
        scale = k % 20 < 8 ? 1 : 1 + k * 0.125;
        OK(ts_compiled_call(c, in, 1, &got, 1));
        OK(fn(&scale, in, 1, &want, 1));
        ck_assert_msg(same(got, want), "call %d", k);
        ck_assert_int_eq(ts_compiled_get_stats(c).compiles, 1 + (k >= 8));
    }
    ck_assert(explains(c, "numbers that were folded differ"));
    ck_assert(_i != 2 || ts_compiled_get_stats(c).skipped >= 40);
    ts_compiled_free(c);
}

/* Threads that run a plan for the first time at once make its constants once or several times, and
 * each gets the same values. */
typedef struct together {
    ts_compiled *c;
    bool ok;
} together;

static void *run_together(void *arg)
{
    together *t = arg;
    for (int k = 0; k < 20; k++) {
        TS_SCOPE;
        ts_tensor *in[] = {numbers((uint64_t)k, TS_SIZES(9, 9))}, *got, *want;
        t->ok &= ts_compiled_call(t->c, in, 1, &got, 1) == TS_OK &&
                 mask(NULL, in, 1, &want, 1) == TS_OK && same(got, want);
    }
    return NULL;
}
TS_TEST(threads_share_the_constants_of_a_plan)
{
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    together each[THREADS];
    ts_compiled *c = ts_compile(mask, NULL, NULL);
    for (int i = 0; i < THREADS; i++) {
        each[i] = (together){c, true};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, run_together, &each[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++)
        ck_assert(each[i].ok);
    ts_compiled_free(c);
}
