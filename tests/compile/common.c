/** @file common.c  Calls that equal earlier calls run once. */
// SPDX-License-Identifier: MIT
#include "tests/compile/explains.h"
#include "tests/compile/stages.h"
#include "tests/tracing/net.h"

#include "include/tessera/program.h"

#include <dirent.h>
#include <unistd.h>

/** Numbers that the functions read from their context. */
typedef struct scales {
    double a, b;
} scales;

static ts_status twice(TRACED) /* exp, exp, add: 1 call dropped */
{
    return TS_STATUS_OF(out[0] = ts_add(ts_exp(in[0]), ts_exp(in[0])));
}
static ts_status chains(TRACED) /* equal calls of equal calls, through equal views: 3 */
{
    ts_tensor *a = ts_tanh(ts_transpose(ts_exp(in[0]), 0, 1)),
              *b = ts_tanh(ts_transpose(ts_exp(in[0]), 0, 1));
    return TS_STATUS_OF(out[0] = ts_mul(ts_sum_dim(a, 0, false), ts_sum_dim(b, 0, false)));
}
static ts_status products(TRACED)
{
    ts_tensor *t = ts_transpose(in[1], 0, 1);
    return TS_STATUS_OF(out[0] = ts_add(ts_relu(ts_matmul(in[0], t)),
                                        ts_neg(ts_matmul(in[0], ts_transpose(in[1], 0, 1)))));
}
static ts_status lists(TRACED)
{
    ts_tensor *a = ts_cat((ts_tensor *[]){in[0], in[1]}, 2, 0),
              *b = ts_cat((ts_tensor *[]){in[0], in[1]}, 2, 0),
              *c = ts_cat((ts_tensor *[]){in[1], in[0]}, 2, 0);
    return TS_STATUS_OF(out[0] = ts_add(ts_sub(a, b), c));
}
static ts_status held_second(TRACED) /* the program holds the result of the second call */
{
    ts_tensor *h = ts_mul(ts_exp(in[0]), in[1]);
    out[1] = ts_exp(in[0]);
    return TS_STATUS_OF(out[0] = ts_add(h, ts_select(out[1], 0, 0)));
}
static ts_status held_twice(TRACED) /* two results, two tensors */
{
    out[0] = ts_exp(in[0]);
    return TS_STATUS_OF(out[1] = ts_exp(in[0]));
}
static ts_status written_between(TRACED) /* the argument has changed */
{
    ts_tensor *a = ts_exp(in[0]);
    TS_TRY(ts_mul_(in[0], in[1]));
    return TS_STATUS_OF(out[0] = ts_sub(a, ts_exp(in[0])));
}
static ts_status view_written(TRACED) /* through a view */
{
    ts_tensor *copy = ts_clone(in[0]), *a = ts_exp(copy);
    TS_TRY(ts_zero_(ts_select(copy, 0, 1)));
    return TS_STATUS_OF(out[0] = ts_sub(a, ts_exp(copy)));
}
static ts_status first_written(TRACED) /* a result is written, the other keeps its values */
{
    ts_tensor *a = ts_exp(in[0]), *b = ts_exp(in[0]);
    TS_TRY(ts_mul_(a, in[1]));
    return TS_STATUS_OF(out[0] = ts_sub(a, b));
}
static ts_status second_written(TRACED)
{
    ts_tensor *a = ts_exp(in[0]), *b = ts_exp(in[0]);
    TS_TRY(ts_mul_(ts_select(b, 0, 0), ts_select(in[1], 0, 0)));
    return TS_STATUS_OF(out[0] = ts_sub(a, b));
}
static ts_status written_later(TRACED) /* after an equal third call */
{
    ts_tensor *a = ts_exp(in[0]), *b = ts_exp(in[0]), *c;
    TS_TRY(ts_add_(in[0], in[1]));
    c = ts_exp(in[0]);
    return TS_STATUS_OF(out[0] = ts_add(ts_add(a, b), ts_add(c, ts_exp(in[0]))));
}
static ts_status drawn(TRACED)
{
    return TS_STATUS_OF(out[0] = ts_sub(ts_dropout(in[0], 0.5, true),
                                        ts_dropout(in[0], 0.5, true)));
}
static ts_status given(TRACED)
{
    ts_tensor *a = ts_clone(in[0]);
    TS_TRY(ts_add_out(in[0], in[1], a));
    return TS_STATUS_OF(out[0] = ts_mul(a, ts_add(in[0], in[1])));
}
static ts_status other_structure(TRACED) /* dims and dtypes differ */
{
    ts_tensor *a = ts_mul(ts_softmax(in[0], 0), ts_softmax(in[0], 1)),
              *b = ts_mul(ts_to(in[0], TS_BF16), ts_to(ts_to(in[0], TS_F16), TS_F32));
    return TS_STATUS_OF(out[0] = ts_add(a, b));
}
static ts_status scaled(TRACED)
{
    const scales *s = ctx;
    return TS_STATUS_OF(out[0] = ts_add(ts_mul_scalar(in[0], s->a),
                                        ts_exp(ts_mul_scalar(in[0], s->b))));
}

TS_TEST(calls_that_equal_earlier_calls_run_once, .loop = STAGES)
{
    static const struct {
        ts_trace_fn fn;
        int outputs, merged;
    } cases[] = {
        {twice, 1, 1}, {chains, 1, 3}, {products, 1, 1}, {lists, 1, 1}, {held_second, 2, 1},
        {held_twice, 2, 0}, {written_between, 1, 0}, {view_written, 1, 0}, {first_written, 1, 0},
        {second_written, 1, 0}, {written_later, 1, 2}, {drawn, 1, 0}, {given, 1, 0},
        {other_structure, 1, 0},
    };
    set_stage(stages[_i]);
    for (int i = 0; i < TS_COUNTOF(cases); i++) {
        ts_compiled *c = ts_compile(cases[i].fn, NULL, NULL);
        for (uint64_t k = 0; k < 3; k++) {
            TS_SCOPE;
            ts_tensor *in[2][2], *got[2], *want[2];
            for (int e = 0; e < 2; e++)
                for (int j = 0; j < 2; j++)
                    in[e][j] = numbers(k * 2 + (uint64_t)j, TS_SIZES(9, 9));
            ts_manual_seed(k);
            OK(cases[i].fn(NULL, in[0], 2, want, cases[i].outputs));
            ts_manual_seed(k);
            OK(ts_compiled_call(c, in[1], 2, got, cases[i].outputs));
            for (int j = 0; j < cases[i].outputs; j++)
                ck_assert_msg(same(got[j], want[j]), "case %d, output %d", i, j);
            ck_assert_msg(same(in[0][0], in[1][0]), "case %d, input", i);
            if (cases[i].outputs == 2) { /* the outputs are two tensors */
                ts_tensor *before = ts_clone(got[1]);
                OK(ts_fill_(got[0], 7));
                ck_assert_msg(same(got[1], before), "case %d: outputs share memory", i);
            }
        }
        ck_assert_msg(ts_compiled_get_stats(c).merged == (_i ? cases[i].merged : 0),
                      "case %d: %lld calls merged", i,
                      (long long)ts_compiled_get_stats(c).merged);
        ts_compiled_free(c);
    }
    set_stage("full");
}

/* Equal numbers make equal calls. Numbers that differ in a later recording need a second plan, in
 * which nothing is merged; the first plan serves equal numbers of any size. */
TS_TEST(calls_with_equal_numbers_run_once, .loop = 2)
{
    scales s;
    ts_compile_opts opts = {.size = sizeof opts, .replay = _i};
    ts_compiled *c = ts_compile(scaled, &s, &opts);
    for (int k = 0; k < 40; k++) {
        TS_SCOPE;
        ts_tensor *in[] = {numbers((uint64_t)k, TS_SIZES(8, 8))}, *got, *want;
        s.a = s.b = 0.25 * k;
        s.b += k % 10 == 9;
        OK(ts_compiled_call(c, in, 1, &got, 1));
        OK(scaled(&s, in, 1, &want, 1));
        ck_assert(same(got, want));
        ck_assert_int_le(ts_compiled_get_stats(c).compiles, 1 + (k >= 9));
        ck_assert_int_eq(ts_compiled_get_stats(c).merged, k < 9);
    }
    ck_assert(explains(c, "numbers that were equal differ"));
    ts_compiled_free(c);
}

static ts_status scaled_by_cells(TRACED)
{
    scales *s = ctx;
    TS_TRY(ts_number_from("mul", "other", &s->a));
    ts_tensor *h = ts_mul_scalar(in[0], s->a);
    TS_TRY(ts_number_from("mul", "other", &s->b));
    return TS_STATUS_OF(out[0] = ts_add(h, ts_exp(ts_mul_scalar(in[0], s->b))));
}

/* A replay compares the numbers too: the function runs again if they are no longer equal. */
TS_TEST(replays_compare_the_numbers_of_equal_calls)
{
    scales s = {0.5, 0.5};
    ts_compiled *c = ts_compile(scaled_by_cells, &s, TS_OPTS(ts_compile_opts, .replay = true));
    for (int k = 0; k < 30; k++) {
        TS_SCOPE;
        ts_tensor *in[] = {numbers((uint64_t)k, TS_SIZES(8, 8))}, *got, *want;
        s.a = s.b = 0.125 * k;
        s.b += k % 10 == 9;
        OK(ts_compiled_call(c, in, 1, &got, 1));
        OK(scaled_by_cells(&s, in, 1, &want, 1));
        ck_assert_msg(same(got, want), "call %d", k);
    }
    ck_assert_int_ge(ts_compiled_get_stats(c).skipped, 20);
    ck_assert_int_eq(ts_compiled_get_stats(c).compiles, 2);
    ts_compiled_free(c);
}

/** Layers whose activations backward needs; by recomputed parts if `parts`. */
typedef struct layers {
    ts_tensor *weight;
    bool parts;
} layers;

static ts_status part(TRACED)
{
    const layers *own = ctx;
    ts_tensor *h = in[0];
    for (int i = 0; i < 4; i++)
        TS_TRY(h = ts_tanh(ts_cumsum(ts_mul(h, own->weight), 0)));
    return TS_STATUS_OF(out[0] = h);
}
static ts_status layered_step(TRACED)
{
    layers *own = ctx;
    TS_SCOPE;
    ts_tensor *h = in[0];
    for (int i = 0; i < 4; i++)
        TS_TRY(own->parts ? ts_recompute(part, own, &h, 1, &h, 1) : part(own, &h, 1, &h, 1));
    ts_tensor *loss = ts_sum(h);
    TS_TRY(ts_backward(loss));
    return TS_STATUS_OF(out[0] = ts_keep(ts_detach(loss)));
}

/* Backward runs recomputed parts again to save memory. To merge these calls with those of the
 * forward pass would keep all activations. */
TS_TEST(recomputed_parts_stay_recomputed)
{
    TS_SCOPE;
    int64_t peaks[2];
    ts_tensor *loss[2];
    for (int parts = 0; parts < 2; parts++) {
        ts_tensor *in[] = {numbers(1, TS_SIZES(64, 64))};
        layers own = {ts_set_requires_grad(numbers(2, TS_SIZES(64)), true), parts};
        ts_compiled *c = ts_compile(layered_step, &own, NULL);
        OK(ts_compiled_call(c, in, 1, &loss[parts], 1));
        peaks[parts] = ts_compiled_get_stats(c).peak;
        ts_compiled_free(c);
    }
    ck_assert(same(loss[0], loss[1]));
    ck_assert_int_lt(peaks[1] * 3, peaks[0] * 2);
}

TS_TEST(the_report_and_the_dump_name_merged_calls)
{
    char folder[] = "/tmp/tessera-merged-XXXXXX", path[400] = "", line[200] = "";
    TS_SCOPE;
    ts_tensor *in[] = {numbers(1, TS_SIZES(9, 9)), numbers(2, TS_SIZES(9, 9))}, *out;
    ck_assert_ptr_nonnull(mkdtemp(folder));
    setenv("TS_DUMP", folder, 1);
    ts_compiled *c = ts_compile(chains, NULL, NULL);
    OK(ts_compiled_call(c, in, 2, &out, 1));
    unsetenv("TS_DUMP");
    ck_assert(explains(c, "  3 calls equal earlier calls and were dropped: exp tanh sum\n"));
    ts_compiled_free(c);
    DIR *all = opendir(folder);
    bool found = false;
    for (struct dirent *d; (d = readdir(all)) != NULL;) {
        if (d->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, d->d_name);
        FILE *file = fopen(path, "r");
        while (strncmp(d->d_name, "common-", 7) == 0 && fgets(line, sizeof line, file))
            found |= strcmp(line, "call 2, exp, equals call 0\n") == 0;
        fclose(file);
        remove(path);
    }
    closedir(all);
    rmdir(folder);
    ck_assert(found);
}
