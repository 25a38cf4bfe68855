/** @file small.c  Trials choose between calls with and without a recording. */
// SPDX-License-Identifier: MIT
#include "compile/compile.h"
#include "tests/compile/explains.h"
#include "tests/tracing/common.h"

#include <time.h>

/** A function of a group, which also waits if it is recorded, or if it is not. */
typedef struct waits {
    bool recorded, eager;
    int ms; /* 0: 20 */
} waits;

static ts_status slow_when(TRACED)
{
    const waits *w = ctx;
    bool recorded = ts_tls.lazy && !ts_tls.lazy->running;
    if (recorded ? w->recorded : w->eager)
        nanosleep(&(struct timespec){.tv_nsec = (w->ms ? w->ms : 20) * 1000000}, NULL);
    return TS_STATUS_OF(out[0] = ts_mul(ts_relu(ts_add(ts_neg(in[0]), in[0])), in[0]));
}

/* After 64 recordings a trial times 16 calls of each kind. A function that is slower when recorded
 * then runs eagerly for 256 calls; one that is slower otherwise is recorded. */
TS_TEST(a_trial_chooses_the_faster_kind_of_call, .loop = 2)
{
    TS_SCOPE;
    waits w = {.recorded = _i, .eager = !_i};
    ts_tensor *x = numbers(1, TS_SIZES(300, 400)), *y, *want;
    ts_compiled *c = ts_compile(slow_when, &w, NULL);
    OK(slow_when(&w, &x, 1, &want, 1));
    for (int i = 0; i < 200; i++) {
        TS_SCOPE;
        OK(ts_compiled_call(c, &x, 1, &y, 1));
        ck_assert(same(y, want));
    }
    ts_compile_stats stats = ts_compiled_get_stats(c);
    ck_assert_int_eq(stats.calls, 200);
    ck_assert_int_eq(stats.segments, _i ? 81 : 184);
    ck_assert(explains(c, "calls ran without a recording"));
    ts_tensor *larger = numbers(2, TS_SIZES(301, 400)); /* another plan: recorded */
    OK(ts_compiled_call(c, &larger, 1, &y, 1));
    ck_assert_int_eq(ts_compiled_get_stats(c).segments, stats.segments + 1);
    w = (waits){.recorded = !_i, .eager = _i};
    for (int i = 0; i < 450; i++) { /* the next trials choose again */
        TS_SCOPE;
        OK(ts_compiled_call(c, &larger, 1, &y, 1));
    }
    ck_assert_int_eq(ts_compiled_get_stats(c).segments - stats.segments,
                     _i ? 450 + 1 - 16 : 81 + 18);
    ts_compiled_free(c);
}

/** A chain of calls that move 16 to 64 KiB each and whose group saves most of the bytes. */
static ts_status slow_chain(TRACED)
{
    ts_tensor *t = in[0];
    for (int k = 0; k < 12; k++)
        t = ts_add_scalar(ts_mul(t, in[0]), 0.5);
    TS_TRY(slow_when(ctx, &t, 1, out, m));
    return TS_STATUS_OF(out[0]);
}

TS_TEST(a_trial_decides_for_calls_of_medium_size, .loop = 2)
{
    TS_SCOPE;
    ts_manual_seed(50 + (uint64_t)_i);
    int64_t columns;
    OK(ts_item_int(ts_randint(NULL, 0, 30, 50), &columns));
    waits w = {.recorded = _i == 1, .eager = _i == 0};
    ts_tensor *x = numbers(1, TS_SIZES(100, columns));
    ts_compiled *c = ts_compile(slow_chain, &w, NULL);
    for (int i = 0; i < 200; i++) {
        TS_SCOPE;
        ts_tensor *y, *want;
        waits none = {0};
        OK(ts_compiled_call(c, &x, 1, &y, 1));
        OK(slow_chain(&none, &x, 1, &want, 1));
        ck_assert(same(y, want));
    }
    static const int segments[] = {184, 81};
    ck_assert_int_eq(ts_compiled_get_stats(c).segments, segments[_i]);
    ts_compiled_free(c);
}

/** A function whose calls have several plans: by the inputs, and in turn. */
typedef struct turns {
    waits w;
    int plans, turn;
} turns;
static ts_status slow_in_turn(TRACED)
{
    turns *t = ctx;
    ts_tensor *x = in[0];
    for (int k = t->turn++ % t->plans; k > 0; k--)
        TS_TRY(x = ts_add_scalar(ts_mul(x, x), -0.25));
    return slow_when(&t->w, &x, 1, out, m);
}

/* Plans follow one another in a cycle of the function's own, and in the order of the drawn inputs'
 * sizes. A trial then times 16 calls for each of them, with a recording and without. */
TS_TEST(plans_that_alternate_have_a_trial, .loop = 8)
{
    TS_SCOPE;
    ts_manual_seed(70 + (uint64_t)_i);
    int cycle = 1 + _i / 2 % 2 * 2, sizes = 1 + _i / 4 * 2;
    turns a = {{.recorded = _i % 2, .eager = !(_i % 2), .ms = 2}, cycle, 0}, b = {{0}, cycle, 0};
    ts_tensor *x[] = {numbers(1, TS_SIZES(300, 400)), numbers(2, TS_SIZES(310, 400)),
                      numbers(3, TS_SIZES(320, 400))};
    ts_compiled *c = ts_compile(slow_in_turn, &a, NULL);
    int plans = cycle * sizes, end = 75 + 32 * (plans < 8 ? plans : 8) + 30; /* of the trial */
    int64_t recorded = 0;
    for (int i = 0; i < end + 150; i++) {
        TS_SCOPE;
        int64_t size;
        ts_tensor *y, *want;
        OK(ts_item_int(ts_randint(NULL, 0, 0, sizes), &size));
        OK(ts_compiled_call(c, &x[size], 1, &y, 1));
        OK(slow_in_turn(&b, &x[size], 1, &want, 1));
        ck_assert(same(y, want));
        if (i == end)
            recorded = ts_compiled_get_stats(c).segments;
    }
    recorded = ts_compiled_get_stats(c).segments - recorded;
    ck_assert_int_eq(ts_compiled_get_stats(c).plans, plans);
    if (_i % 2)
        ck_assert_int_le(recorded, 2);
    else
        ck_assert_int_eq(recorded, 149);
    ts_compiled_free(c);
}

static ts_status inner_calls(TRACED)
{
    return ts_compiled_call(ctx, in, n, out, m);
}
TS_TEST(calls_inside_another_are_not_timed)
{
    TS_SCOPE;
    waits w = {0};
    ts_tensor *x = numbers(1, TS_SIZES(300, 400)), *y, *want;
    ts_compiled *c = ts_compile(slow_when, &w, NULL), *outer = ts_compile(inner_calls, c, NULL);
    OK(slow_when(&w, &x, 1, &want, 1));
    for (int i = 0; i < 300; i++) {
        TS_SCOPE;
        OK(ts_compiled_call(i % 2 ? outer : c, &x, 1, &y, 1));
        ck_assert(same(y, want));
    }
    ts_compiled_free(outer);
    ts_compiled_free(c);
}
