/** @file step_graphs.c  Graphs of whole steps, and graphs whose steps run at the same time, on a
 *  mock device. */
// SPDX-License-Identifier: MIT
#include "tests/compile/graphs.h"

/* ---------------------------------------------------------------------------- step graphs ---- */

static int step_runs;
static ts_status a_step(TRACED)
{
    const weights *p = ctx;
    step_runs++;
    TS_TRY(ts_number_from("mul", "other", &p->rate));
    ts_tensor *g = ts_mul_scalar(ts_relu(ts_mul(in[0], p->w)), p->rate);
    TS_TRY(ts_add_(p->w, ts_add(g, ts_uniform_on(ts_sizes(g), 2, 0, 1, TS_F32, device))));
    return TS_STATUS_OF(out[0] = ts_neg(g));
}

TS_TEST(a_step_graph_is_one_launch_without_the_function, MOCK)
{
    TS_SCOPE;
    weights a = weights_new(), b = weights_new();
    ts_compiled *c = ts_step_graph(a_step, &a);
    OK(c);
    step_runs = 0;
    for (int k = 0; k < 20; k++) {
        TS_SCOPE;
        ts_tensor *x = remote(10 + (uint64_t)k, TS_SIZES(5, 7)), *got, *want;
        a.rate = b.rate = 0.01 * k;
        ts_rng_state begin = ts_rng_get_state();
        OK(ts_compiled_call(c, &x, 1, &got, 1));
        ts_rng_state end = ts_rng_get_state();
        ts_rng_set_state(begin);
        int before = step_runs;
        OK(a_step(&b, &x, 1, &want, 1));
        step_runs = before;
        ck_assert_uint_eq(ts_rng_get_state().offset, end.offset);
        ck_assert(same_values(a.w, b.w) && same_values(got, want));
        ck_assert_uint_eq(ts_version(a.w), ts_version(b.w));
    }
    ck_assert_int_eq(step_runs, 2);
    ck_assert_int_eq(ts_compiled_get_stats(c).captures, 1);
    ck_assert_int_eq(ts_compiled_get_stats(c).replays, 18);
    ck_assert_int_eq(ts_compiled_get_stats(c).groups, 0);
    ts_compiled_free(c);
}

static ts_status reads_in_step(TRACED)
{
    double x;
    TS_TRY(ts_item(ts_select(ts_select(in[0], 0, 0), 0, 0), &x));
    return TS_STATUS_OF(out[0] = ts_neg(in[0]));
}
static ts_status keeps_in_step(TRACED)
{
    weights *p = ctx;
    ts_release(p->moment);
    TS_TRY(p->moment = ts_retain(ts_relu(in[0])));
    return TS_STATUS_OF(out[0] = ts_neg(p->moment));
}
static ts_status varies_in_step(TRACED)
{
    weights *p = ctx;
    return TS_STATUS_OF(out[0] = ts_mul_scalar(in[0], p->rate += 1));
}

TS_TEST(a_step_graph_names_the_call_that_it_cannot_capture, .loop = 4, MOCK)
{
    static const struct {
        ts_trace_fn fn;
        int calls; /* number of calls that succeed */
        const char *why, *call;
    } cases[] = {
        {reads_in_step, 0, "fullgraph: no replay: a read of values, called from ", ""},
        {keeps_in_step, 0,
         "the function keeps a tensor that is not an output, of relu, called from ", ""},
        {varies_in_step, 1, "number 'other' of mul, called from ", "is 2"},
        {a_step, 2, "no graph: ", "cpu cannot capture"},
    };
    TS_SCOPE;
    weights a = {.rate = 0};
    ts_tensor *x = _i == 3 ? numbers(1, TS_SIZES(5, 7)) : remote(1, TS_SIZES(5, 7)), *y;
    if (_i == 3)
        a.w = numbers(2, TS_SIZES(5, 7));
    ts_compiled *c = ts_step_graph(cases[_i].fn, &a);
    ts_device before = device;
    if (_i == 3)
        device = TS_DEVICE_CPU;
    for (int k = 0; k < cases[_i].calls && _i < 3; k++)
        OK(ts_compiled_call(c, &x, 1, &y, 1));
    FAILS(_i == 3 ? TS_ERR_UNSUPPORTED : TS_ERR_STATE, ts_compiled_call(c, &x, 1, &y, 1));
    SAYS(cases[_i].why);
    SAYS(cases[_i].call);
    device = before;
    ts_compiled_free(c);
    ts_release(a.moment);
}

/** Calls whose numbers in the next run are known are captured after the launch, so the next run
 *  captures nothing before its launch. */
static ts_status draws_in_place(TRACED)
{
    const weights *p = ctx;
    step_runs++;
    return TS_STATUS_OF(
        ts_add_(p->w, ts_uniform_on(ts_sizes(p->w), 2, 0, 1, TS_F32, device)));
}

TS_TEST(a_replay_captures_ahead_and_follows_a_generator_that_is_set, MOCK)
{
    TS_SCOPE;
    weights a = weights_new(), b = weights_new();
    ts_compiled *c = ts_step_graph(draws_in_place, &a);
    for (int k = 0; k < 24; k++) {
        TS_SCOPE;
        if (k == 12)
            ts_manual_seed(99); /* the calls captured ahead have the wrong seed */
        ts_rng_state begin = ts_rng_get_state();
        int before = begun;
        OK(ts_compiled_call(c, NULL, 0, NULL, 0));
        if (k > 3)
            ck_assert_int_eq(begun - before, k == 12 ? 2 : 1);
        ts_rng_set_state(begin);
        OK(draws_in_place(&b, NULL, 0, NULL, 0));
        ck_assert(same_values(a.w, b.w));
    }
    ck_assert_int_eq(ts_compiled_get_stats(c).captures, 1);
    ts_compiled_free(c);
}

/* -------------------------------------------------------------------------------- branches ---- */

enum { POOL = 6, DRAWN_CALLS = 40 };
/** Tensors of a drawn program and its number. */
typedef struct drawn_program {
    ts_tensor *w[2];
    uint64_t seed;
} drawn_program;

/** A program of calls on a pool of tensors, some in place, some with scratch memory. */
static ts_status run_drawn(TRACED)
{
    const drawn_program *p = ctx;
    ts_tensor *pool[POOL] = {p->w[0], p->w[1], in[0], in[0], in[0], in[0]};
    uint64_t draw = p->seed * 2 + 1;
    for (int k = 0; k < DRAWN_CALLS; k++) {
        draw = draw * 6364136223846793005u + 1442695040888963407u;
        int a = (int)(draw >> 33) % POOL, b = (int)(draw >> 43) % POOL,
            to = 2 + (int)(draw >> 53) % (POOL - 2);
        ts_tensor *x = pool[a], *y = pool[b];
        switch ((draw >> 60) % 6) {
        case 0: TS_TRY(pool[to] = ts_add(x, y)); break;
        case 1: TS_TRY(pool[to] = ts_mul_scalar(x, 0.5)); break;
        case 2: TS_TRY(pool[to] = ts_relu(x)); break;
        case 3: TS_TRY(ts_add_(pool[a % 2], y)); break;
        case 4: TS_TRY(pool[to] = ts_mul_scalar(ts_neg(y), 0.25)); break;
        default: TS_TRY(pool[to] = ts_neg(x));
        }
    }
    TS_TRY(out[0] = ts_add(pool[2], pool[3]));
    return TS_STATUS_OF(out[1] = ts_add(pool[4], pool[5]));
}

TS_TEST(branches_run_in_any_order_that_the_pairs_allow, MOCK, .loop = 60)
{
    int before = ordered, exchanged = swapped;
    for (uint64_t seed = 0; seed < 5; seed++) {
        TS_SCOPE;
        drawn_program a = {{remote(1, TS_SIZES(4, 5)), remote(2, TS_SIZES(4, 5))}, 0}, b = a;
        a.seed = b.seed = (uint64_t)_i * 5 + seed;
        for (int i = 0; i < 2; i++)
            ck_assert_ptr_nonnull(b.w[i] = ts_clone(a.w[i]));
        ts_compiled *c = graph_of(run_drawn, &a);
        for (int k = 0; k < 10; k++) {
            TS_SCOPE;
            ts_tensor *x = remote(10 + (uint64_t)k, TS_SIZES(4, 5)), *got[2], *want[2];
            OK(ts_compiled_call(c, &x, 1, got, 2));
            OK(run_drawn(&b, &x, 1, want, 2));
            ck_assert(same_values(got[0], want[0]) && same_values(got[1], want[1]));
            ck_assert(same_values(a.w[0], b.w[0]) && same_values(a.w[1], b.w[1]));
        }
        ck_assert_int_eq(ts_compiled_get_stats(c).captures, 1);
        ts_compiled_free(c);
    }
    ck_assert_int_eq(ordered - before, 5);
    ck_assert_int_gt(swapped, exchanged);
}

/** in: gradient (n, 3), input (n, 4), weight (3, 4) -> gradients of input, weight and bias */
static ts_status layer_gradients(TRACED)
{
    return ts_linear_backward(in[0], in[1], in[2], &out[0], &out[1], &out[2]);
}

TS_TEST(gradients_of_a_layer_are_two_calls_of_a_graph, MOCK, .loop = 2)
{
    TS_SCOPE;
    ts_tensor *x[] = {remote(1, TS_SIZES(5, 3)), remote(2, TS_SIZES(5, 4)),
                      remote(3, TS_SIZES(3, 4))};
    ts_compiled *c = ts_compile(layer_gradients, NULL,
                                TS_OPTS(ts_compile_opts, .graph = _i == 1));
    for (int k = 0; k < 4; k++) {
        TS_SCOPE;
        ts_tensor *got[3], *want[3];
        OK(ts_compiled_call(c, x, 3, got, 3));
        OK(layer_gradients(NULL, x, 3, want, 3));
        for (int i = 0; i < 3; i++)
            ck_assert(same_values(got[i], want[i]));
    }
    ck_assert_int_eq(ts_compiled_get_stats(c).nodes, _i == 1 ? 2 : 1);
    ts_compiled_free(c);
}
