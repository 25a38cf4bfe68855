/** @file compile.c  Results, writes and errors of compiled functions, and reasons for new plans. */
// SPDX-License-Identifier: MIT
#include "tests/compile/explains.h"
#include "tests/compile/stages.h"
#include "tests/tracing/net.h"

/* -------------------------------------------------------------------------------- stages ---- */

/** Three calls; the second has a result that nothing reads. */
static ts_status with_a_dead_call(TRACED)
{
    ts_tensor *h = ts_exp(in[0]);
    TS_TRY(ts_tanh(h));
    return TS_STATUS_OF(out[0] = ts_mul(h, in[0]));
}

TS_TEST(stages_drop_calls_and_make_groups)
{
    static const int64_t calls[] = {3, 2, 2, 2}, groups[] = {0, 0, 1, 1};
    TS_SCOPE;
    ts_tensor *in[] = {numbers(1, TS_SIZES(40, 40))}, *got, *want;
    OK(with_a_dead_call(NULL, in, 1, &want, 1));
    for (int k = 0; k < STAGES; k++) {
        ts_compiled *c = ts_compile(with_a_dead_call, NULL, NULL);
        set_stage(stages[k]);
        OK(ts_compiled_call(c, in, 1, &got, 1));
        ck_assert(same(got, want));
        ck_assert_int_eq(ts_compiled_get_stats(c).nodes, calls[k]);
        ck_assert_int_eq(ts_compiled_get_stats(c).groups, groups[k]);
        ts_compiled_free(c);
    }
    ts_compiled *c = ts_compile(with_a_dead_call, NULL, NULL);
    set_stage("off");
    OK(ts_compiled_call(c, in, 1, &got, 1));
    ck_assert(same(got, want));
    ck_assert_int_eq(ts_compiled_get_stats(c).segments, 0);
    ts_compiled_free(c);
    set_stage("full");
}

/** Four groups, which cumulative sums separate. */
static ts_status four_groups(TRACED)
{
    ts_tensor *t = in[0];
    for (int i = 0; i < 4; i++)
        t = ts_cumsum(ts_tanh(ts_mul_scalar(t, 0.5 + i)), 0);
    return TS_STATUS_OF(out[0] = t);
}

TS_TEST(a_variable_limits_the_groups_of_each_plan)
{
    static const struct {
        const char *variable;
        int64_t option, groups;
    } cases[] = {{"", 0, 4}, {"0", 0, 4}, {"1", 0, 1}, {"2", 0, 2}, {"3", 0, 3}, {"9", 0, 4},
                 {"-1", 0, 0}, {"3", 2, 2}, {"2", 3, 2}, {"-1", 2, 0}, {"2", -1, 0}, {"x", 0, 4}};
    TS_SCOPE;
    ts_tensor *x = numbers(1, TS_SIZES(40, 40)), *got, *want;
    OK(four_groups(NULL, &x, 1, &want, 1));
    for (int k = 0; k < TS_COUNTOF(cases); k++) {
        setenv("TS_COMPILE_MAX_GROUPS", cases[k].variable, 1);
        ts_compiled_from_environment();
        ts_compiled *c = ts_compile(four_groups, NULL,
                                    TS_OPTS(ts_compile_opts, .max_groups = cases[k].option));
        OK(ts_compiled_call(c, &x, 1, &got, 1));
        ck_assert(same(got, want));
        ck_assert_int_eq(ts_compiled_get_stats(c).groups, cases[k].groups);
        ts_compiled_free(c);
    }
    unsetenv("TS_COMPILE_MAX_GROUPS");
    ts_compiled_from_environment();
}

static ts_status in_a_region(TRACED)
{
    const ts_dtype *dtype = ctx;
    TS_AUTOCAST(TS_DEVICE_CPU, *dtype);
    out[0] = ts_linear(in[0], in[1], in[2]);
    out[1] = ts_softmax(ts_gelu(out[0]), -1);
    ts_tensor *h = ts_layer_norm(out[1], TS_NONE, TS_NONE);
    return TS_STATUS_OF(out[2] = ts_linear(h, in[3], TS_NONE));
}

TS_TEST(a_region_of_autocast_makes_the_casts_of_eager_calls, .loop = 2)
{
    TS_SCOPE;
    ts_dtype dtype = _i ? TS_F16 : TS_BF16;
    ts_compiled *c = ts_compile(in_a_region, &dtype, NULL);
    ts_tensor *in[] = {numbers(1, TS_SIZES(5, 40)), numbers(2, TS_SIZES(16, 40)),
                       numbers(3, TS_SIZES(16)), numbers(4, TS_SIZES(3, 16))}, *got[3], *want[3];
    for (int k = 0; k < 3; k++) {
        OK(ts_compiled_call(c, in, 4, got, 3));
        OK(in_a_region(&dtype, in, 4, want, 3));
        ck_assert_int_eq(ts_dtype_of(got[0]), dtype);
        for (int i = 0; i < 3; i++)
            ck_assert_msg(same(got[i], want[i]), "output %d differs", i);
    }
    ts_compiled_free(c);
}

/* --------------------------------------------------------------------------------- plans ---- */

typedef struct numbers_of {
    double factor;
    int branch, turns;
} numbers_of;

static ts_status scaled(TRACED)
{
    const numbers_of *c = ctx;
    ts_tensor *t = in[0];
    for (int i = 0; i < c->turns; i++)
        t = ts_add_scalar(ts_mul_scalar(t, c->factor), 1.0);
    return TS_STATUS_OF(out[0] = c->branch ? ts_relu(t) : ts_neg(t));
}

TS_TEST(a_thousand_numbers_are_one_plan_and_a_branch_or_loop_another)
{
    TS_SCOPE;
    numbers_of what = {0, 0, 2}; /* with fullgraph, small calls are recorded too */
    ts_compiled *c = ts_compile(scaled, &what, TS_OPTS(ts_compile_opts, .fullgraph = true));
    ts_tensor *x = numbers(1, TS_SIZES(3, 50)), *y, *want;
    for (int i = 0; i < 1000; i++) {
        TS_SCOPE;
        what.factor = i * 0.001;
        OK(ts_compiled_call(c, &x, 1, &y, 1));
        OK(scaled(&what, &x, 1, &want, 1));
        ck_assert(same(y, want));
    }
    ck_assert_int_eq(ts_compiled_get_stats(c).compiles, 1);
    ck_assert_int_eq(ts_compiled_get_stats(c).groups, 1);
    ck_assert_int_eq(ts_compiled_get_stats(c).fused, 5);
    for (int k = 0; k < 2; k++) { /* both plans are kept */
        what = (numbers_of){2, 1, 2};
        OK(ts_compiled_call(c, &x, 1, &y, 1));
        OK(scaled(&what, &x, 1, &want, 1));
        ck_assert(same(y, want));
        what = (numbers_of){2, 1, 5};
        OK(ts_compiled_call(c, &x, 1, &y, 1));
        OK(scaled(&what, &x, 1, &want, 1));
        ck_assert(same(y, want));
    }
    ck_assert_int_eq(ts_compiled_get_stats(c).compiles, 3);
    ts_tensor *other = numbers(2, TS_SIZES(3, 51));
    OK(ts_compiled_call(c, &other, 1, &y, 1));
    ck_assert_int_eq(ts_compiled_get_stats(c).compiles, 4);
    ts_compiled_free(c);
}

/** Two large calls without a group. */
static ts_status sums_along(TRACED)
{
    return TS_STATUS_OF(out[0] = ts_cumsum(ts_cumsum(in[0], 0), 1));
}

TS_TEST(functions_without_savings_are_recorded_rarely, .loop = 2)
{
    TS_SCOPE;
    ts_tensor *in[] = {numbers(1, TS_SIZES(400, 500))}, *got, *want;
    ts_trace_fn fn = _i ? with_a_dead_call : sums_along;
    OK(fn(NULL, in, 1, &want, 1));
    int64_t recorded = 0;
    bool right = false;
    for (int tries = 0; tries < 8 && !right; tries++) { /* other programs disturb some trials */
        ts_compiled *c = ts_compile(fn, NULL, NULL);
        for (int i = 0; i < 200; i++) {
            TS_SCOPE;
            OK(ts_compiled_call(c, in, 1, &got, 1));
            ck_assert(same(got, want));
        }
        recorded = ts_compiled_get_stats(c).segments; /* a trial may leave out 16 */
        right = _i ? recorded == 184 || recorded == 200 : recorded == 64;
        ts_compiled_free(c);
    }
    ck_assert_msg(right, "%lld recordings", (long long)recorded);
}

/* After 64 recorded calls on few elements, one is recorded after 256 calls, the next after 512.
 * Calls on many elements are always recorded, and they restart the count. */
TS_TEST(small_functions_are_recorded_rarely)
{
    TS_SCOPE;
    numbers_of what = {0, 0, 2};
    ts_compiled *c = ts_compile(scaled, &what, NULL);
    ts_tensor *small = numbers(1, TS_SIZES(3, 50)), *large = numbers(2, TS_SIZES(400, 500));
    int64_t last = 0;
    for (int i = 1; i <= 1600; i++) {
        TS_SCOPE;
        ts_tensor *x = i > 1000 && i < 1010 ? large : small, *y, *want;
        what.factor = i * 0.001;
        what.branch = i % 3 == 0;
        OK(ts_compiled_call(c, &x, 1, &y, 1));
        OK(scaled(&what, &x, 1, &want, 1));
        ck_assert(same(y, want));
        int64_t recorded = ts_compiled_get_stats(c).segments;
        if (i <= 64 || i == 64 + 257 || i == 64 + 257 + 513 || x == large ||
            (i >= 1010 && i < 1074) || i == 1073 + 257)
            ck_assert_int_eq(recorded, last + 1);
        else
            ck_assert_int_eq(recorded, last);
        last = recorded;
    }
    ck_assert(explains(c, "calls ran without a recording"));
    ts_compiled_free(c);
}

TS_TEST(the_least_recently_used_plan_is_freed)
{
    TS_SCOPE;
    numbers_of what = {2, 0, 1};
    ts_compile_opts opts = {.size = sizeof opts, .max_plans = 2, .name = "scaled"};
    ts_compiled *c = ts_compile(scaled, &what, &opts);
    ts_tensor *x = numbers(1, TS_SIZES(4)), *y, *want;
    for (int i = 0; i < 12; i++) {
        what.turns = 1 + i % 3;
        OK(ts_compiled_call(c, &x, 1, &y, 1));
        OK(scaled(&what, &x, 1, &want, 1));
        ck_assert(same(y, want));
        ck_assert_int_le(ts_compiled_get_stats(c).plans, 2);
    }
    ck_assert_int_eq(ts_compiled_get_stats(c).compiles, 12);
    ts_compiled_free(c);
}

/* -------------------------------------------------------------------------------- breaks ---- */

static ts_status by_value(TRACED)
{
    double sum;
    ts_tensor *t = ts_exp(in[0]);
    TS_TRY(ts_item(ts_sum(t), &sum));
    return TS_STATUS_OF(out[0] = ts_mul_scalar(t, sum > 10 ? 2.0 : 3.0));
}

TS_TEST(a_read_breaks_the_recording_and_is_right)
{
    TS_SCOPE;
    ts_compiled *c = ts_compile(by_value, NULL, NULL);
    ts_tensor *got, *want;
    for (int i = 0; i < 2; i++) {
        ts_tensor *x = ts_zeros(TS_SIZES(i ? 3 : 300), TS_F32);
        OK(ts_compiled_call(c, &x, 1, &got, 1));
        OK(by_value(NULL, &x, 1, &want, 1));
        ck_assert(same(got, want));
    }
    ck_assert_int_eq(ts_compiled_get_stats(c).breaks, 2);
    ck_assert_int_eq(ts_compiled_get_stats(c).segments, 4);
    char *text = NULL;
    size_t size;
    FILE *file = open_memstream(&text, &size);
    OK(ts_explain(c, file));
    fclose(file);
    ck_assert_ptr_nonnull(strstr(text, "a read of values"));
    free(text);
    ts_compiled_free(c);
}

TS_TEST(with_fullgraph_a_read_is_an_error)
{
    TS_SCOPE;
    ts_compile_opts opts = {.size = sizeof opts, .fullgraph = true, .name = "by_value"};
    ts_compiled *c = ts_compile(by_value, NULL, &opts);
    ts_tensor *x = ts_zeros(TS_SIZES(5), TS_F32), *out;
    FAILS(TS_ERR_STATE, ts_compiled_call(c, &x, 1, &out, 1));
    SAYS("a read of values breaks the recording");
    ck_assert_str_eq(ts_error_op(), "by_value");
    ts_compiled_free(c);
}

static ts_status select_some(TRACED)
{
    ts_tensor *t = ts_relu(in[0]);
    return TS_STATUS_OF(out[0] = ts_neg(ts_masked_select(t, ts_gt_scalar(t, 0.5))));
}

TS_TEST(sizes_that_depend_on_values_break_the_recording)
{
    TS_SCOPE;
    ts_compiled *c = ts_compile(select_some, NULL, NULL);
    ts_tensor *x = numbers(3, TS_SIZES(20, 20)), *got, *want;
    OK(ts_compiled_call(c, &x, 1, &got, 1));
    OK(select_some(NULL, &x, 1, &want, 1));
    ck_assert(same(got, want));
    ck_assert_int_eq(ts_compiled_get_stats(c).breaks, 1);
    ts_compiled_free(c);
}

/* -------------------------------------------------------------------------------- errors ---- */

static ts_status bad_index(TRACED)
{
    ts_tensor *t = ts_relu(in[0]);
    TS_TRY(ts_add_scalar_(in[0], 1));
    ts_tensor *index = ts_add_scalar(ts_zeros(TS_SIZES(1), TS_I64), 99);
    return TS_STATUS_OF(out[0] = ts_index_select(t, 0, index));
}
static ts_status bad_shape(TRACED)
{
    TS_TRY(ts_add_scalar_(in[0], 1));
    return TS_STATUS_OF(out[0] = ts_add(in[0], ts_zeros(TS_SIZES(7), TS_F32)));
}

TS_TEST(errors_are_those_of_eager_calls_and_leak_nothing)
{
    TS_SCOPE;
    ts_tensor *x = ts_zeros(TS_SIZES(5), TS_F32), *out;
    ts_compiled *c = ts_compile(bad_index, NULL, NULL), *d = ts_compile(bad_shape, NULL, NULL);
    for (int i = 0; i < 2; i++) {
        FAILS(TS_ERR_INDEX, ts_compiled_call(c, &x, 1, &out, 1));
        ck_assert_str_eq(ts_error_op(), "index_select");
        ck_assert_ptr_null(out);
        FAILS(TS_ERR_SHAPE, ts_compiled_call(d, &x, 1, &out, 1));
        ck_assert_str_eq(ts_error_op(), "add");
    }
    double value;
    OK(ts_item(ts_select(x, 0, 0), &value)); /* calls before the error have run */
    ck_assert_double_eq(value, 4);
    ts_compiled_free(c);
    ts_compiled_free(d);
    FAILS(TS_ERR_NULL, ts_compile(NULL, NULL, NULL));
    ts_compile_opts opts = {.size = sizeof opts, .max_plans = -1};
    FAILS(TS_ERR_VALUE, ts_compile(bad_shape, NULL, &opts));
}

/** The kernel of neg refuses bools, when the group runs. */
static ts_status bad_dtype(TRACED)
{
    return TS_STATUS_OF(out[0] = ts_to(ts_neg(ts_gt(in[0], in[1])), TS_F32));
}

TS_TEST(an_error_in_a_group_is_that_of_the_eager_call, .loop = 2, .threads = true)
{
    TS_SCOPE;
    ts_set_num_threads(_i ? 4 : 1);
    ts_tensor *in[] = {numbers(1, TS_SIZES(512, 1024)), numbers(2, TS_SIZES(512, 1024))}, *out;
    char want[500];
    FAILS(TS_ERR_DTYPE, bad_dtype(NULL, in, 2, &out, 1));
    snprintf(want, sizeof want, "%s", ts_error_message());
    ts_error_clear();
    ts_compiled *c = ts_compile(bad_dtype, NULL, NULL);
    for (int k = 0; k < 3; k++) {
        FAILS(TS_ERR_DTYPE, ts_compiled_call(c, in, 2, &out, 1));
        ck_assert_str_eq(ts_error_message(), want);
        ck_assert_str_eq(ts_error_op(), "neg");
        ck_assert_ptr_nonnull(ts_error_site());
        ts_error_clear();
    }
    ts_compiled_free(c);
}

static ts_status inner(TRACED) { return TS_STATUS_OF(out[0] = ts_relu(ts_neg(in[0]))); }
static ts_status outer(TRACED)
{
    TS_TRY(ts_compiled_call(ctx, in, 1, out, 1));
    return TS_STATUS_OF(out[0] = ts_add_scalar(out[0], 1));
}

TS_TEST(a_compiled_call_inside_another_or_a_trace_is_a_part_of_it)
{
    TS_SCOPE;
    ts_compiled *c = ts_compile(inner, NULL, NULL), *d = ts_compile(outer, c, NULL);
    ts_tensor *x = numbers(1, TS_SIZES(50)), *got, *want, *traced;
    ts_graph *graph;
    OK(ts_compiled_call(d, &x, 1, &got, 1));
    OK(outer(c, &x, 1, &want, 1));
    ck_assert(same(got, want));
    ck_assert_int_eq(ts_compiled_get_stats(d).nodes, 3);
    OK(ts_trace(outer, c, &x, 1, &traced, 1, &graph));
    ck_assert(same(traced, want));
    ck_assert_int_eq(ts_graph_get_info(graph).calls, 3);
    ts_graph_free(graph);
    ts_compiled_free(c);
    ts_compiled_free(d);
}
