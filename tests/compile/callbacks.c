/** @file callbacks.c  Compiled functions that are used by callbacks of their own calls, and limits
 *  and arguments at the edge of their ranges. */
// SPDX-License-Identifier: MIT
#include "tests/compile/explains.h"
#include "tests/tracing/common.h"

static ts_status scale_and_add(TRACED)
{
    return TS_STATUS_OF(out[0] = ts_add(ts_mul_scalar(in[0], 3), in[0]));
}

/* --------------------------------------------------------------------------------- logs ---- */

static int lines;
/** Reads the statistics and the report of the compiled function that logs. */
static void report(void *payload, const char *topic, const char *line)
{
    (void)topic;
    (void)line;
    ts_compiled *c = *(ts_compiled **)payload;
    lines++;
    ck_assert_int_ge(ts_compiled_get_stats(c).calls, 0);
    if (c)
        ck_assert(explains(c, "plans: "));
}

static double scale = 1;
/** Reads a value, and multiplies by a number without a declared source, so that the log names
 *  breaks, plans, and causes why there are no replays. */
static ts_status logging(TRACED)
{
    double value;
    if (ts_size(in[0], 0) == 7)
        TS_TRY(ts_item(ts_sum(in[0]), &value));
    return TS_STATUS_OF(out[0] = ts_mul_scalar(ts_exp(in[0]), scale));
}
TS_TEST(a_log_callback_can_report_on_the_function_that_logs, .timeout = 20, .loop = 2)
{
    ts_compiled *c = NULL;
    ts_log_set_callback(report, &c);
    c = ts_compile(logging, NULL, TS_OPTS(ts_compile_opts, .replay = true, .verify = _i * 2,
                                          .graph = true));
    OK(c);
    lines = 0;
    for (int i = 0; i < 40; i++) {
        TS_SCOPE;
        ts_tensor *x = numbers((uint64_t)i, TS_SIZES(i % 9 < 7 ? 5 : i % 9, 4)), *y;
        scale += i > 20;
        OK(ts_compiled_call(c, &x, 1, &y, 1));
    }
    ts_log_set_callback(NULL, NULL);
    ck_assert_int_gt(lines, 10);
    ts_compiled_free(c);
}

/* ----------------------------------------------------------------------------- deleters ---- */

static int deleted;
static void on_delete(void *payload, void *data, int64_t bytes)
{
    (void)data;
    (void)bytes;
    ck_assert_int_gt(ts_compiled_get_stats(payload).calls, 0);
    deleted++;
}

static ts_tensor *held;
static ts_status add_held(TRACED) { return TS_STATUS_OF(out[0] = ts_add(in[0], held)); }

/* A plan with replays holds the tensors that the function takes from variables. If the plan is
 * replaced, it may release the last reference to such a tensor, whose deleter runs. */
TS_TEST(a_deleter_can_use_the_function_whose_plan_held_the_tensor, .timeout = 20)
{
    float data[] = {1, 2, 3, 4};
    ts_compiled *c = ts_compile(add_held, NULL,
                                TS_OPTS(ts_compile_opts, .replay = true, .max_plans = 1));
    OK(c);
    for (int i = 0; i < 8; i++) {
        TS_SCOPE;
        ts_tensor *x = numbers((uint64_t)i, TS_SIZES(1, 4)), *y;
        if (i == 0)
            OK(held = ts_retain(ts_from_blob(data, TS_F32, TS_SIZES(4), on_delete, c)));
        if (i == 5) {
            ts_release(held);
            held = ts_retain(numbers(3, TS_SIZES(2, 4)));
        }
        OK(ts_compiled_call(c, &x, 1, &y, 1));
    }
    ck_assert_int_eq(deleted, 1);
    ts_release(held);
    ts_compiled_free(c);
}

/* --------------------------------------------------------------------------------- edges ---- */

TS_TEST(any_number_of_plans_may_be_allowed)
{
    static const int64_t limits[] = {1, 2, INT64_C(1) << 58, INT64_C(1) << 61, INT64_MAX};
    for (size_t k = 0; k < TS_COUNTOF(limits); k++) {
        ts_compiled *c = ts_compile(scale_and_add, NULL,
                                    TS_OPTS(ts_compile_opts, .max_plans = limits[k]));
        OK(c);
        for (int64_t rows = 1; rows <= 70; rows++) {
            TS_SCOPE;
            ts_tensor *x = numbers(1, TS_SIZES(rows, 3)), *y, *want;
            OK(ts_compiled_call(c, &x, 1, &y, 1));
            OK(scale_and_add(NULL, &x, 1, &want, 1));
            ck_assert(same(y, want));
        }
        ck_assert_int_eq(ts_compiled_get_stats(c).plans, limits[k] < 70 ? limits[k] : 70);
        ts_compiled_free(c);
    }
}

TS_TEST(outputs_are_null_after_wrong_arguments)
{
    TS_SCOPE;
    ts_compiled *c = ts_compile(scale_and_add, NULL, NULL);
    ts_tensor *x = numbers(1, TS_SIZES(3)), *wrong = TS_NONE, *y = x;
    FAILS(TS_ERR_NULL, ts_compiled_call(c, &wrong, 1, &y, 1));
    ck_assert_ptr_null(y);
    y = x;
    FAILS(TS_ERR_NULL, ts_compiled_call(NULL, &x, 1, &y, 1));
    ck_assert_ptr_null(y);
    y = x;
    FAILS(TS_ERR_VALUE, ts_compiled_call(c, &x, -1, &y, 1));
    ck_assert_ptr_null(y);
    FAILS(TS_ERR_VALUE, ts_compiled_call(c, &x, 1, &y, -1));
    FAILS(TS_ERR_NULL, ts_compiled_call(c, &x, 1, NULL, 1));
    ts_compiled_free(c);
}
