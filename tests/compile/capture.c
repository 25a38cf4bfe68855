/** @file capture.c  Plans that a device captures as graphs, on a mock device. */
// SPDX-License-Identifier: MIT
#include "tests/compile/explains.h"
#include "tests/compile/tape.h"
#include "tests/profile/take.h"
#include "tests/threads.h"

static int flavour;   /* which of two kernels mul launches: 0 or 1 */
static bool keeps;    /* neg does not give its scratch memory back */
static void *kept;

/* ------------------------------------------------------------------------------- kernels ---- */

FORMULA(add, x + y)
FORMULA(mul, x * y)
FORMULA(mul_again, y * x)
FORMULA(relu, x > 0 ? x : 0)
FORMULA(twice, 2 * x)

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

/* ----------------------------------------------------------------------------------- cases ---- */

typedef struct weights {
    ts_tensor *w, *moment;
    double rate;
    bool draws;
} weights;

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
static weights weights_new(void)
{
    return (weights){remote(1, TS_SIZES(5, 7)), remote(2, TS_SIZES(5, 7)), 0.25, true};
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
