/** @file capture.c  Plans that a device captures as graphs, on a mock device. */
// SPDX-License-Identifier: MIT
#include "tests/compile/graphs.h"
#include "tests/profile/take.h"
#include "tests/threads.h"

/* ----------------------------------------------------------------------------------- cases ---- */

/** Reads in[0], writes the weights in place, and uses scratch memory and, if p->draws, random
 *  numbers. */
static ts_status update(TRACED)
{
    const weights *p = ctx;
    ts_tensor *h = ts_relu(ts_add(ts_mul(in[0], p->w), in[0])), *g = ts_neg(ts_mul(h, h));
    if (p->draws)
        g = ts_add(g, ts_uniform_on(ts_sizes(g), ts_ndim(g), 0, 1, TS_F32, device));
    TS_TRY(ts_mul_scalar_(p->moment, 0.5));
    TS_TRY(ts_add_(p->moment, ts_mul_scalar(g, p->rate)));
    TS_TRY(ts_add_(p->w, p->moment));
    out[0] = ts_mul_scalar(h, p->rate);
    return TS_STATUS_OF(out[1] = ts_add(ts_neg(h), p->moment));
}
TS_TEST(replays_have_the_bits_of_calls_and_results_stay, MOCK)
{
    TS_SCOPE;
    weights a = weights_new(), b = weights_new();
    ts_compiled *c = graph_of(update, &a);
    enum { CALLS = 40 };
    ts_tensor *got[CALLS][2], *want[CALLS][2];
    ts_manual_seed(3);
    for (int k = 0; k < CALLS; k++) {
        ts_tensor *x = remote(10 + (uint64_t)k, TS_SIZES(5, 7)); /* a new address in each call */
        a.rate = b.rate = k < 20 ? 0.01 * k : 0.3;
        uint32_t version = a.w->storage->version;
        ts_rng_state begin = ts_rng_get_state();
        OK(ts_compiled_call(c, &x, 1, got[k], 2));
        ts_rng_state end = ts_rng_get_state();
        ts_rng_set_state(begin);
        uint32_t before = b.w->storage->version;
        OK(update(&b, &x, 1, want[k], 2));
        ck_assert_uint_eq(ts_rng_get_state().offset, end.offset);
        ck_assert_uint_eq(a.w->storage->version - version, b.w->storage->version - before);
        ck_assert(same_values(a.w, b.w) && same_values(a.moment, b.moment));
    }
    for (int k = 0; k < CALLS; k++)
        ck_assert(same_values(got[k][0], want[k][0]) && same_values(got[k][1], want[k][1]));
    ts_compile_stats stats = ts_compiled_get_stats(c);
    ck_assert_int_eq(stats.compiles, 1);
    ck_assert_int_eq(stats.captures, 1);
    ck_assert_int_eq(stats.replays, CALLS - 2);
    ck_assert_int_eq(begun, CALLS - 2); /* each replay captured changed calls again */
    ck_assert(explains(c, "graph of 1"));
    ts_compiled_free(c);
}

#if TS_TIMERS
typedef struct counted {
    int64_t calls;
    double flops, bytes;
} counted;

/** Calls and work of an op's kernels on the mock device in CALLS updates with new numbers. */
static void count_updates(ts_compiled *c, weights *p, const char *const *ops, counted *of)
{
    enum { CALLS = 10 };
    OK(ts_prof_start(NULL));
    for (int k = 0; k < CALLS; k++) {
        TS_SCOPE;
        ts_tensor *x = remote((uint64_t)k, TS_SIZES(5, 7)), *got[2];
        p->rate += 0.01;
        OK(c ? ts_compiled_call(c, &x, 1, got, 2) : update(p, &x, 1, got, 2));
    }
    ts_profile *profile = take();
    for (; *ops; ops++, of++)
        for (int64_t i = 0; i < profile->count; i++) {
            const ts_entry *e = &profile->entries[i];
            if (e->kernel && strcmp(e->layer, "TAPE") == 0 && strcmp(e->op, *ops) == 0) {
                of->calls += e->calls;
                of->flops += e->flops;
                of->bytes += e->bytes;
            }
        }
    ts_profile_free(profile);
}
#endif

TS_TEST(a_profile_counts_a_captured_call_at_its_launches_only, MOCK)
{
    BEGIN;
#if TS_TIMERS
    static const char *const ops[] = {"add", "mul", "relu", "neg", "uniform", NULL};
    counted run[5] = {{0}}, launched[5] = {{0}};
    TS_SCOPE;
    weights p = weights_new();
    ts_compiled *c = graph_of(update, &p);
    for (int k = 0; k < 2; k++) { /* the next call is captured */
        ts_tensor *x = remote(99, TS_SIZES(5, 7)), *got[2];
        OK(ts_compiled_call(c, &x, 1, got, 2));
    }
    count_updates(NULL, &p, ops, run);
    count_updates(c, &p, ops, launched);
    ck_assert_int_eq(begun, 10);
    for (int i = 0; ops[i]; i++) {
        ck_assert_int_gt(run[i].calls, 0);
        ck_assert_int_eq(launched[i].calls, run[i].calls);
        ck_assert_double_eq(launched[i].flops, run[i].flops);
        ck_assert_double_eq(launched[i].bytes, run[i].bytes);
    }
    ts_compiled_free(c);
#endif
}

static ts_status in_place(TRACED)
{
    const weights *p = ctx;
    for (int i = 0; i < 3; i++)
        TS_TRY(ts_add_(p->w, ts_mul(ts_relu(p->w), p->moment)));
    return TS_OK;
}

TS_TEST(a_replay_without_changes_captures_nothing_and_takes_no_memory, MOCK)
{
    TS_SCOPE;
    weights a = weights_new(), b = weights_new();
    ts_compiled *c = graph_of(in_place, &a);
    for (int k = 0; k < 10; k++) {
        TS_SCOPE;
        int64_t live = memory.live;
        OK(ts_compiled_call(c, NULL, 0, NULL, 0));
        ck_assert(k == 2 ? memory.live > live : memory.live == live); /* call 2: the arena */
        OK(in_place(&b, NULL, 0, NULL, 0));
        ck_assert(same_values(a.w, b.w));
        ck_assert_int_eq(begun, k >= 2);
    }
    ck_assert_int_eq(ts_compiled_get_stats(c).replaced, 0);
    ck_assert_int_eq(ts_compiled_get_stats(c).replays, 8);
    int64_t live = memory.live;
    ts_compiled_free(c);
    ck_assert_int_lt(memory.live, live);
}

TS_TEST(a_graph_is_freed_with_its_plan, MOCK)
{
    TS_SCOPE;
    weights a = weights_new();
    ts_compiled *c = ts_compile(in_place, &a,
                                TS_OPTS(ts_compile_opts, .graph = true, .max_plans = 1));
    for (int k = 0; k < 12; k++) {
        if (k % 4 == 0) { /* other sizes: another plan */
            a.w = remote(20, TS_SIZES(3 + k));
            a.moment = remote(21, TS_SIZES(3 + k));
        }
        OK(ts_compiled_call(c, NULL, 0, NULL, 0));
        ck_assert_int_eq(captures, k % 4 >= 2);
    }
    ck_assert_int_eq(ts_compiled_get_stats(c).captures, 3);
    ts_compiled_free(c);
}

TS_TEST(a_plan_is_captured_again_for_other_kernels_at_most_eight_times, MOCK)
{
    TS_SCOPE;
    weights a = weights_new(), b = weights_new();
    ts_compiled *c = graph_of(update, &a);
    ts_tensor *x = remote(5, TS_SIZES(5, 7)), *got[2], *want[2];
    for (int k = 0; k < 30; k++) {
        flavour = k >= 5 && k % 2; /* the mul that reads the rate is another kernel */
        a.rate = b.rate = k;
        ts_rng_state begin = ts_rng_get_state();
        OK(ts_compiled_call(c, &x, 1, got, 2));
        ts_rng_set_state(begin);
        OK(update(&b, &x, 1, want, 2));
        ck_assert(same_values(got[0], want[0]) && same_values(got[1], want[1]));
        ck_assert(same_values(a.w, b.w));
        if (k == 5)
            ck_assert_int_eq(ts_compiled_get_stats(c).captures, 2);
    }
    ck_assert_int_eq(ts_compiled_get_stats(c).captures, 8);
    ck_assert(explains(c, "no graph: its calls choose other kernels from run to run"));
    ck_assert_int_eq(captures, 0);
    flavour = 0;
    ts_compiled_free(c);
}

TS_TEST(deterministic_mode_is_captured_again, MOCK)
{
    TS_SCOPE;
    weights a = weights_new();
    ts_compiled *c = graph_of(in_place, &a);
    for (int k = 0; k < 8; k++) {
        OK(ts_set_deterministic(k == 5));
        OK(ts_compiled_call(c, NULL, 0, NULL, 0));
        ck_assert_int_eq(ts_compiled_get_stats(c).captures, k < 2 ? 0 : k < 5 ? 1 : k < 6 ? 2 : 3);
    }
    ts_compiled_free(c);
}

FORMULA(twice, 2 * x)
static ts_status relu_of_a_plugin(ts_frame *f) { return pointwise(f, run_twice); }

TS_TEST(a_kernel_that_is_registered_later_is_captured, MOCK)
{
    TS_SCOPE;
    weights a = weights_new(), b = weights_new();
    ts_compiled *c = graph_of(in_place, &a);
    ts_kernel_opts opts = {.size = sizeof opts, .dtypes = TS_DTYPE_BIT(TS_F32), .strided = true};
    for (int k = 0; k < 8; k++) {
        if (k == 5)
            OK(ts_register_kernel_ex("relu", (ts_key)device.backend, relu_of_a_plugin, &opts,
                                     NULL));
        OK(ts_compiled_call(c, NULL, 0, NULL, 0));
        OK(in_place(&b, NULL, 0, NULL, 0));
        ck_assert_msg(same_values(a.w, b.w), "call %d differs", k);
    }
    ck_assert_int_eq(ts_compiled_get_stats(c).captures, 2);
    ts_compiled_free(c);
}

/* ------------------------------------------------------------------------------- refusals ---- */

static ts_status one_through_the_cpu(TRACED) { return TS_STATUS_OF(out[0] = ts_tanh(in[0])); }
static ts_status through_the_cpu(TRACED)
{
    const weights *p = ctx;
    TS_TRY(ts_add_(p->w, ts_tanh(p->w))); /* the mock has no kernel of tanh */
    return TS_STATUS_OF(out[0] = ts_relu(p->w));
}

TS_TEST(a_call_through_the_host_is_named_and_runs, MOCK)
{
    TS_SCOPE;
    weights a = weights_new(), b = weights_new();
    ts_compiled *c = graph_of(through_the_cpu, &a);
    ts_tensor *got, *want;
    for (int k = 0; k < 6; k++) {
        OK(ts_compiled_call(c, NULL, 0, &got, 1));
        ck_assert_int_eq(ts_error_code(), TS_OK);
        OK(through_the_cpu(&b, NULL, 0, &want, 1));
        ck_assert(same_values(got, want) && same_values(a.w, b.w));
    }
    ck_assert_int_eq(begun, 1);
    ck_assert_int_eq(ts_compiled_get_stats(c).replays, 0);
    ck_assert(explains(c, "no graph: tanh, called from "));
    ck_assert(explains(c, "cannot be captured"));
    ts_compiled_free(c);
    c = graph_of(one_through_the_cpu, NULL); /* a plan without intermediates and scratch */
    for (int k = 0; k < 6; k++)
        OK(ts_compiled_call(c, &a.w, 1, &got, 1));
    ck_assert(explains(c, "no graph: tanh, called from "));
    ts_compiled_free(c);
}

/** Copies between host and device, and groups on the host, before the graph and after it. */
static ts_status from_host_and_back(TRACED)
{
    const weights *p = ctx;
    ts_tensor *h = ts_to_device(ts_neg(ts_relu(in[0])), device);
    TS_TRY(ts_add_(p->w, ts_mul(h, ts_to_device(in[1], device))));
    ts_tensor *sum = ts_to_device(ts_relu(ts_add(p->w, h)), TS_DEVICE_CPU);
    out[0] = ts_neg(ts_add(sum, ts_tanh(sum)));
    return TS_STATUS_OF(out[1] = ts_to_device(in[0], device));
}
/** A value of the device is copied to the host and back. */
static ts_status copied_to_host_and_back(TRACED)
{
    ts_tensor *h = ts_to_device(ts_relu(ts_to_device(in[0], device)), TS_DEVICE_CPU);
    return TS_STATUS_OF(out[0] = ts_neg(ts_to_device(h, device)));
}

TS_TEST(calls_on_the_host_run_before_and_after_the_graph, MOCK)
{
    TS_SCOPE;
    weights a = weights_new(), b = weights_new();
    ts_compiled *c = graph_of(from_host_and_back, &a);
    enum { CALLS = 12 };
    ts_tensor *got[CALLS][2], *want[CALLS][2];
    for (int k = 0; k < CALLS; k++) {
        uint64_t seed = 30 + (uint64_t)k;
        ts_tensor *x[] = {numbers(seed, TS_SIZES(5, 7)), numbers(seed + 50, TS_SIZES(5, 7))};
        OK(ts_compiled_call(c, x, 2, got[k], 2));
        OK(from_host_and_back(&b, x, 2, want[k], 2));
        ck_assert(same_values(a.w, b.w));
    }
    for (int k = 0; k < CALLS; k++)
        ck_assert(same(got[k][0], want[k][0]) && same_values(got[k][1], want[k][1]));
    ck_assert_int_eq(ts_compiled_get_stats(c).replays, CALLS - 2);
    ck_assert_int_eq(ts_compiled_get_stats(c).replaced, 0); /* inputs are copied to the arena */
    ts_compiled_free(c);
}

TS_TEST(a_plan_that_cannot_be_captured_names_the_reason, MOCK)
{
    TS_SCOPE;
    ts_tensor *x = numbers(3, TS_SIZES(4)), *y, *want = ts_neg(ts_relu(x));
    ts_compiled *c = graph_of(copied_to_host_and_back, NULL);
    for (int k = 0; k < 4; k++) {
        OK(ts_compiled_call(c, &x, 1, &y, 1));
        ck_assert(same(ts_to_device(y, TS_DEVICE_CPU), want));
    }
    ck_assert(explains(c, "no graph: to_device, called from"));
    ck_assert(explains(c, "a call on cpu between calls on tape:0"));
    ts_compiled_free(c);
    weights a = {numbers(1, TS_SIZES(4)), numbers(2, TS_SIZES(4)), 0, false};
    c = graph_of(in_place, &a);
    for (int k = 0; k < 4; k++)
        OK(ts_compiled_call(c, NULL, 0, NULL, 0));
    ck_assert(explains(c, "cpu cannot capture"));
    ts_compiled_free(c);
}

TS_TEST(with_fullgraph_a_plan_without_a_graph_is_an_error, MOCK)
{
    TS_SCOPE;
    ts_tensor *x = numbers(3, TS_SIZES(4)), *y;
    ts_compiled *c = ts_compile(
        copied_to_host_and_back, NULL,
        TS_OPTS(ts_compile_opts, .name = "copies", .graph = true, .fullgraph = true));
    for (int k = 0; k < 3; k++) {
        ck_assert_int_eq(ts_compiled_call(c, &x, 1, &y, 1), TS_ERR_UNSUPPORTED);
        ck_assert_ptr_nonnull(
            strstr(ts_error_message(), "copies: no graph: to_device, called from"));
        ck_assert_ptr_null(y);
    }
    ts_compiled_free(c);
    weights a = weights_new();
    c = ts_compile(in_place, &a, TS_OPTS(ts_compile_opts, .graph = true, .fullgraph = true));
    for (int k = 0; k < 5; k++)
        OK(ts_compiled_call(c, NULL, 0, NULL, 0));
    ck_assert_int_eq(ts_compiled_get_stats(c).replays, 3);
    ts_compiled_free(c);
}

TS_TEST(a_plan_that_the_backend_refuses_to_capture_runs_call_by_call, MOCK)
{
    TS_SCOPE;
    weights a = weights_new(), b = weights_new();
    ts_compiled *c = graph_of(in_place, &a);
    refuses = true;
    for (int k = 0; k < 6; k++) {
        OK(ts_compiled_call(c, NULL, 0, NULL, 0));
        OK(in_place(&b, NULL, 0, NULL, 0));
        ck_assert(same_values(a.w, b.w));
    }
    refuses = false;
    ck_assert(explains(c, "the mock refuses"));
    ts_compiled_free(c);
}

static ts_status negate(TRACED)
{
    return TS_STATUS_OF(out[0] = ts_relu(ts_neg(ts_add(in[0], in[0]))));
}

TS_TEST(memory_that_outlives_its_call_is_not_captured, MOCK)
{
    TS_SCOPE;
    ts_tensor *x = remote(3, TS_SIZES(4)), *y;
    ts_compiled *c = graph_of(negate, NULL);
    for (int k = 0; k < 5; k++) {
        keeps = k == 1; /* in the call that measures scratch memory */
        OK(ts_compiled_call(c, &x, 1, &y, 1));
    }
    ts_scratch_give(device, kept, 16);
    kept = NULL;
    ck_assert(explains(c, "no graph: neg, called from "));
    ck_assert(explains(c, ": memory that the call allocated outlives it"));
    ck_assert_int_eq(begun, 0);
    ts_compiled_free(c);
}

/* -------------------------------------------------------------------------------- threads ---- */

static ts_status polynomial(TRACED)
{
    ts_tensor *x = in[0], *y = ts_add(ts_mul(x, x), ts_neg(x));
    return TS_STATUS_OF(out[0] = ts_mul(ts_relu(y), ts_add(y, x)));
}
static bool call_often(int number, void *ctx)
{
    bool good = true;
    for (int k = 0; k < 200 && good; k++) {
        TS_SCOPE;
        ts_tensor *x = remote((uint64_t)(1000 * number + k), TS_SIZES(9)), *got, *want;
        good = ts_compiled_call(ctx, &x, 1, &got, 1) == TS_OK &&
               polynomial(NULL, &x, 1, &want, 1) == TS_OK && same_values(got, want);
    }
    return good;
}

TS_TEST(a_thread_whose_graph_is_in_use_runs_call_by_call, .threads = true, MOCK)
{
    ts_compiled *c = graph_of(polynomial, NULL);
    ck_assert_int_eq(ts_together(4, call_often, c), 4);
    ck_assert_int_eq(ts_compiled_get_stats(c).captures, 1);
    ck_assert_int_gt(ts_compiled_get_stats(c).replays, 100);
    ts_compiled_free(c);
}
