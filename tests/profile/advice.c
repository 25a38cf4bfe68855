/** @file advice.c  Tests of advice: each rule fires for a profile with its condition and not for
 * one without it; ts_prof_try() measures the known gain of a knob. */
// SPDX-License-Identifier: MIT
#include <unistd.h>

#include "profile/advice.h"
#include "tests/dispatch/common.h"
#include "tests/profile/machine.h"

enum { ROWS = 8, STEPS = 10 };

/** A profile of one second, without rows. Ceilings: 1 TFLOP/s, on a device 4 in bf16; 1 TB/s. */
static ts_profile *empty(bool device)
{
    ts_profile *p = ts_profile_new(ROWS, STEPS);
    OK(p);
    ts_prof_machine m = {.size = sizeof m, .name = "m", .threads = 1, .gemm_flops = 1e12,
                         .vector_flops = 1e12, .call_ns = 100, .entry_ns = 10};
    for (int i = 0; i < TS_PROF_CURVE; i++) {
        m.bytes_at[i] = 32768 * (double)(1 << 2 * i);
        m.bandwidth[i] = 1e12;
    }
    p->machine = m;
    p->measured = true;
    p->wall_ns = 1e9;
    p->nsteps = STEPS;
    for (int i = 0; i < STEPS; i++)
        p->steps[i].wall_ns = 1e8;
    if (device) {
        p->device.machine = m;
        p->device.machine.half_flops = 4e12;
        p->device.measured = true;
        p->device.busy_ns = 0.6e9;
        p->device.idle_ns = 0.4e9;
        p->device.kernels = 1000;
        snprintf(p->device.source, sizeof p->device.source, "test");
    }
    return p;
}

/** Adds a kernel's row: its time on the host, or on the device if the profile has one. */
static ts_entry *row(ts_profile *p, const char *op, const char *call, const char *dtype,
                     double calls, double ns)
{
    ts_entry *e = &p->entries[p->count++];
    snprintf(e->op, sizeof e->op, "%s", op);
    snprintf(e->call, sizeof e->call, "%s", call);
    snprintf(e->dtype, sizeof e->dtype, "%s", dtype);
    snprintf(e->layer, sizeof e->layer, "%s", p->device.measured ? "CUDA" : "CPU");
    e->kernel = true;
    e->calls = (int64_t)calls;
    e->chained = calls;
    e->self_ns = p->device.measured ? 1 : ns;
    e->device_ns = p->device.measured ? ns : 0;
    e->kernels = (int64_t)calls;
    return e;
}

static ts_entry *product(ts_profile *p, const char *call, const char *dtype, double ns,
                         double flops)
{
    ts_entry *e = row(p, "mm", call, dtype, 10, ns);
    e->product = true;
    e->flops = flops;
    e->bytes = 1;
    return e;
}

static ts_entry *pointwise(ts_profile *p, double calls, double ns)
{
    ts_entry *e = row(p, "add", "add(a)", "f32", calls, ns);
    e->bytes = 0.9 * ns * 1000; /* at 90 % of the bandwidth */
    e->flops = 1;
    return e;
}

/* For each rule, two profiles that differ in one value: the rule fires only if `yes`. */

static ts_profile *a1(bool yes)
{
    ts_profile *p = empty(true);
    p->device.idle[TS_IDLE_HOST] = 0.4e9;
    p->device.kernels = yes ? 100000 : 1000; /* 6 us each; 600 us each */
    return p;
}
static ts_profile *a1_host(bool yes)
{
    ts_profile *p = empty(false);
    row(p, "add", "add(a)", "f32", 1e5, 0.2e9)->bytes = yes ? 1 : 1.8e11; /* work: none; 90 % */
    return p;
}
static ts_profile *a2(bool yes)
{
    ts_profile *p = empty(false);
    pointwise(p, 2 * STEPS, yes ? 0.3e9 : 0.03e9);
    return p;
}
static ts_profile *a2_alone(bool yes) /* one call a step is no chain */
{
    ts_profile *p = empty(false);
    pointwise(p, yes ? 2 * STEPS : STEPS, 0.3e9);
    return p;
}
static ts_profile *a2_fills(bool yes) /* calls that no group can contain */
{
    static const char *const ops[] = {"uniform", "full", "fill", "embedding", "transpose"};
    ts_profile *p = empty(false);
    for (int i = 0; i < TS_COUNTOF(ops); i++)
        snprintf(pointwise(p, 10, 0.1e9)->op, 48, "%s", ops[i]);
    if (yes)
        pointwise(p, 2 * STEPS, 0.15e9);
    return p;
}
static ts_profile *a2_apart(bool yes) /* half of the calls read no result of one another */
{
    ts_profile *p = empty(false);
    pointwise(p, 4 * STEPS, 0.3e9)->chained = yes ? 2 * STEPS : 0;
    return p;
}
static ts_profile *a2_short(bool yes) /* kernels that take no longer than one of one element */
{
    ts_profile *p = empty(true);
    p->device.machine.kernel_ns = 2000;
    ts_entry *e = row(p, "add", "add(a)", "f32", 1e5, yes ? 0.15e9 : 0.05e9);
    e->bytes = 1;
    return p;
}
static ts_profile *a3(bool yes)
{
    ts_profile *p = empty(true);
    product(p,
            yes ? "mm((512, 768) bf16, (768, 50257) bf16)"
                : "mm((512, 768) bf16, (768, 50264) bf16)",
            "bf16", 0.3e9, 4e8);
    return p;
}
static ts_profile *a4(bool yes)
{
    ts_profile *p = empty(true);
    product(p, "mm((8, 8) f32, (8, 8) f32)", "f32", 0.5e9, 4e8)->partial_ns = yes ? 0.2e9 : 0.02e9;
    return p;
}
static ts_profile *a5(bool yes)
{
    ts_profile *p = empty(true);
    product(p, "mm((8, 8) f32, (8, 8) f32)", yes ? "f32" : "bf16", 0.5e9, 4e8);
    return p;
}
static ts_profile *a5_wide(bool yes)
{
    ts_profile *p = empty(false);
    row(p, "mul", "mul(a)", yes ? "f64" : "f32", 10, 0.5e9)->bytes = 1e9;
    return p;
}
static ts_profile *a5_wide_product(bool yes) /* f64 is as fast as f32 if not `yes` */
{
    ts_profile *p = empty(true);
    p->device.machine.double_flops = yes ? 0.4e12 : 4e12;
    product(p, "mm((8, 8) f64, (8, 8) f64)", "f64", 0.5e9, 1e8);
    return p;
}
static ts_profile *a6(bool yes)
{
    ts_profile *p = empty(true);
    p->device.waits = STEPS;
    p->device.idle[TS_IDLE_SYNC] = yes ? 0.1e9 : 0.01e9;
    return p;
}
static ts_profile *a7(bool yes)
{
    ts_profile *p = empty(true);
    row(p, "to_device", "to_device(a)", "f32", 10, 0.1e9)->pageable_ns = yes ? 0.1e9 : 0;
    return p;
}
static ts_profile *a8(bool yes)
{
    ts_profile *p = empty(true);
    p->device.idle[TS_IDLE_DATA] = yes ? 0.2e9 : 0.02e9;
    return p;
}
static ts_profile *a8_host(bool yes)
{
    ts_profile *p = empty(false);
    snprintf(row(p, "add", "add(a)", "f32", 1, 0.2e9)->scope, TS_SCOPE_TEXT, yes ? "data" : "date");
    return p;
}
static ts_profile *a9(bool yes)
{
    ts_profile *p = empty(false);
    ts_entry *e = row(p, "adamw", "adamw(a)", "f32", yes ? 1000 * STEPS : 4 * STEPS, 0.1e9);
    p->machine.call_ns = 2500;
    e->update = true;
    e->bytes = 5e10;
    return p;
}
static ts_profile *a10(bool yes)
{
    ts_profile *p = empty(true);
    p->device.idle[TS_IDLE_ALLOCATOR] = 0.1e9;
    p->device.late_allocations = yes ? 2 * STEPS : 3; /* in each step, or while it warms up */
    return p;
}
static ts_profile *a11(bool yes)
{
    ts_profile *p = empty(false);
    ts_entry *e = row(p, "add", "add", "-", 10, yes ? 0.1e9 : 0.01e9);
    e->kernel = false;
    snprintf(e->layer, sizeof e->layer, "AUTOGRAD");
    return p;
}
static ts_profile *a11_device(bool yes)
{
    ts_profile *p = empty(true);
    row(p, "add", "add(a)", "f32", 10, 0.1e9);
    p->exposed = calloc(1, sizeof *p->exposed);
    p->exposed[0] = (ts_exposed){.layer = true, .ns = 0.2e9};
    snprintf(p->exposed[0].name, sizeof p->exposed[0].name, yes ? "AUTOGRAD" : "CUDA");
    p->nexposed = 1;
    return p;
}
static ts_profile *a12(bool yes)
{
    ts_profile *p = empty(true);
    row(p, yes ? "to" : "relu", "to(a)", "f32", 10, 0.1e9);
    return p;
}
static ts_profile *a13(bool yes)
{
    ts_profile *p = empty(false);
    p->memory.capacity = 100;
    p->memory.peak_bytes = yes ? 90 : 80;
    p->memory.peak[TS_OWNER_SAVED] = 60;
    return p;
}
static ts_profile *a14(bool yes)
{
    ts_profile *p = empty(true);
    p->device.busy_ns = 1e9;
    p->device.idle_ns = 0;
    p->device.machine.half_flops = p->device.machine.gemm_flops;
    product(p, "mm((8, 8) f32, (8, 8) f32)", "f32", 1e9, yes ? 0.9e12 * 1 : 0.7e12);
    return p;
}
static ts_profile *a14_wide(bool yes) /* A5 advises a dtype with a higher ceiling */
{
    ts_profile *p = a14(true);
    p->device.machine.half_flops *= yes ? 1 : 4;
    return p;
}
static ts_profile *a15(bool yes)
{
    ts_profile *p = empty(false);
    p->steps[0].wall_ns = yes ? 5e8 : 1.5e8;
    return p;
}

static const struct {
    const char *id;
    ts_profile *(*make)(bool yes);
    double gain; /* expected gain of the profile make(true) */
} fixtures[] = {
    {"A1", a1, 0.4},          {"A1", a1_host, 0.2},
    {"A2", a2, 0.2},          {"A2", a2_short, 0.1}, {"A2", a2_fills, 0.1},
    {"A2", a2_alone, 0.2},    {"A2", a2_apart, 0.1},
    {"A3", a3, 0.2999},       {"A4", a4, 0.2},       {"A5", a5, 0.375},
    {"A5", a5_wide, 0.25},    {"A5", a5_wide_product, 0.45},
    {"A6", a6, 0.1},          {"A7", a7, 0.1},
    {"A8", a8, 0.2},          {"A8", a8_host, 0.2},  {"A9", a9, 0.025},
    {"A10", a10, 0.1},        {"A11", a11, 0.1},     {"A11", a11_device, 0.2},
    {"A12", a12, 0.1},        {"A13", a13, 0},       {"A14", a14, 0},
    {"A14", a14_wide, 0},
    {"A15", a15, 0.4 / 1.4},
};

static ts_advice ask(const char *id, const ts_profile *p)
{
    for (int i = 0; i < TS_RULES; i++)
        if (strcmp(ts_rules[i].id, id) == 0)
            return ts_rules[i].ask(p);
    ck_abort_msg("no rule %s", id);
}

TS_TEST(each_rule_fires_only_under_its_condition)
{
    bool seen[TS_RULES] = {0};
    for (int i = 0; i < TS_COUNTOF(fixtures); i++)
        for (int yes = 0; yes < 2; yes++) {
            ts_profile *p = fixtures[i].make(yes);
            ts_profile_judge(p);
            ts_advice a = ask(fixtures[i].id, p);
            ck_assert_msg(a.fires == yes, "fixture %d of %s: fires %d (%s)", i, fixtures[i].id,
                          a.fires, a.evidence);
            if (yes)
                ck_assert_msg(a.gain > fixtures[i].gain * 0.99 - 1e-9 &&
                                  a.gain < fixtures[i].gain * 1.01 + 1e-9,
                              "fixture %d of %s: gain %f", i, fixtures[i].id, a.gain);
            ck_assert(a.evidence[0] != 0);
            free(p->exposed);
            p->exposed = NULL;
            ts_profile_free(p);
        }
    for (int i = 0; i < TS_COUNTOF(fixtures); i++)
        seen[atoi(fixtures[i].id + 1) - 1] = true;
    for (int i = 0; i < TS_RULES; i++)
        ck_assert_msg(seen[i], "%s has no fixture", ts_rules[i].id);
}

/** There is no advice for one matrix product below its ceiling. */
TS_TEST(a_profile_that_meets_no_condition_gets_no_advice)
{
    ts_profile *p = empty(false);
    product(p, "mm((64, 64) f32, (64, 64) f32)", "f32", 0.9e9, 0.6e9);
    ts_profile_judge(p);
    ck_assert_int_eq(ts_profile_write_advice(p, stderr, false), 0);
    ts_profile_free(p);
}

/** A comparison shows for each advice of the first profile how much of its bound the second one
 *  saves: here 0.3 s of 0.4 s in steps of 1 s that then take 0.7 s. */
TS_TEST(a_comparison_has_the_saved_part_of_each_advice)
{
    ts_profile *before = a1(true), *after = a1(true);
    after->device.idle_ns = after->device.idle[TS_IDLE_HOST] = 0.1e9;
    ts_profile_judge(before);
    ts_profile_judge(after);
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    OK(ts_profile_compare(before, after, out));
    fclose(out);
    const char *at = strstr(text, "\nA1 ");
    double most, left, saved, step;
    ck_assert_msg(at && sscanf(at, " A1 %lf%% %lf%% %lf%%", &most, &left, &saved) == 3, "%s", text);
    ck_assert_double_eq(most, 40);
    ck_assert_double_eq(left, 10);
    ck_assert_double_eq(saved, 30);
    ck_assert_msg(sscanf(strstr(at, "\nstep "), " step %lf%%", &step) == 1, "%s", text);
    ck_assert_double_eq(step, 30);
    free(text);
    out = open_memstream(&text, &size);
    OK(ts_profile_compare(after, after, out)); /* no advice fires below 15 % */
    fclose(out);
    ck_assert_msg(!strstr(text, "advice"), "%s", text);
    free(text);
    ts_profile_free(before);
    ts_profile_free(after);
}

TS_TEST(sizes_of_products_are_read_from_calls)
{
    const struct {
        const char *op, *call;
        ts_gemm_sizes sizes;
    } cases[] = {
        {"mm", "mm((3, 4) f32, (4, 5) f32)", {3, 4, 5}},
        {"linear", "linear((2, 3, 4) f32, (5, 4) f32, (5) f32)", {6, 4, 5}},
        {"linear_backward", "linear_backward((2, 3, 5) f32, (2, 3, 4) f32, (5, 4) f32)", {6, 5, 4}},
        {"matmul", "matmul((7, 4) f32, (4, 2) f32)", {7, 4, 2}},
    };
    ts_entry e = {0};
    ts_gemm_sizes s;
    for (int i = 0; i < TS_COUNTOF(cases); i++) {
        snprintf(e.op, sizeof e.op, "%s", cases[i].op);
        snprintf(e.call, sizeof e.call, "%s", cases[i].call);
        ck_assert(ts_advice_product(&e, &s));
        ck_assert_msg(memcmp(&s, &cases[i].sizes, sizeof s) == 0, "%s: %lld %lld %lld", e.call,
                      (long long)s.m, (long long)s.k, (long long)s.n);
    }
    static const char *const others[] = {"mm(", "mm(none, (4, 5) f32)", "mm((3, 4", "mm"};
    snprintf(e.op, sizeof e.op, "mm");
    for (int i = 0; i < TS_COUNTOF(others); i++) {
        snprintf(e.call, sizeof e.call, "%s", others[i]);
        ck_assert(!ts_advice_product(&e, &s));
    }
    snprintf(e.op, sizeof e.op, "bmm");
    ck_assert(!ts_advice_product(&e, &s));
}

/* ---------------------------------------------------------------------------------- try ---- */

typedef struct program {
    int64_t batch, fixed_us, each_us, fails;
    ts_tensor *one;
    int64_t steps;
} program;

/** A step whose time is a fixed part and a part per sample. */
static ts_status sleep_step(void *user)
{
    program *p = user;
    p->steps++;
    if (p->fails)
        return ts_error_set(TS_ERR_VALUE, "the step fails");
    TS_TRY(ts_add_(p->one, p->one));
    usleep((useconds_t)(p->fixed_us + p->batch * p->each_us));
    return TS_OK;
}

TS_TEST(a_knob_is_timed_and_restored)
{
#if !TS_TIMERS
    TS_SKIP("built without timers");
#endif
    use_fixed_machine();
    program p = {.batch = 10, .fixed_us = 4000, .each_us = 100, .one = one()};
    ts_knob knobs[] = {{.name = "batch", .kind = TS_KNOB_BATCH, .value = &p.batch, .trial = 40},
                       {.name = "fixed", .kind = TS_KNOB_GRAPH, .value = &p.fixed_us, .trial = 0}};
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    OK(ts_prof_try(sleep_step, &p, knobs, 2,
                   TS_OPTS(ts_try_opts, .steps = 5, .warmup = 1, .rounds = 2, .out = out)));
    fclose(out);
    ck_assert_int_eq(p.batch, 10);
    ck_assert_int_eq(p.fixed_us, 4000);
    /* 10 samples in 5 ms, 40 in 8 ms: 0.5 and 0.2 ms per sample */
    ck_assert_msg(knobs[0].before_ns > 4.9e6 && knobs[0].before_ns < 9e6, "%f", knobs[0].before_ns);
    ck_assert_msg(knobs[0].measured > 0.45 && knobs[0].measured < 0.7, "%f", knobs[0].measured);
    ck_assert_msg(knobs[1].measured > 0.6 && knobs[1].measured < 0.85, "%f", knobs[1].measured);
    ck_assert_msg(strstr(text, "batch") && strstr(text, "4.00 times the work takes"), "%s", text);
    ck_assert_msg(strstr(text, "within noise") == NULL, "%s", text);
    free(text);
}

/** Each pair of blocks has another ratio of its times, which are 1 ms to 5 ms. */
static ts_status noisy_step(void *user)
{
    static const int us[] = {1000, 5000, 1000, 1000, 5000, 1000};
    program *p = user;
    usleep((useconds_t)us[p->steps++ % TS_COUNTOF(us)]);
    return TS_OK;
}

TS_TEST(a_gain_below_the_noise_is_no_result)
{
#if !TS_TIMERS
    TS_SKIP("built without timers");
#endif
    use_fixed_machine();
    program p = {0};
    ts_knob k = {.name = "none", .kind = TS_KNOB_GRAPH, .value = &p.batch, .trial = 1};
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    OK(ts_prof_try(noisy_step, &p, &k, 1,
                   TS_OPTS(ts_try_opts, .steps = 1, .warmup = 6, .rounds = 9, .out = out)));
    fclose(out);
    ck_assert_msg(strstr(text, "within noise") != NULL, "%s", text);
    free(text);
    OK(ts_prof_start(NULL));
    FAILS(TS_ERR_STATE, ts_prof_try(noisy_step, &p, &k, 1, NULL));
    ck_assert_ptr_nonnull(strstr(ts_error_hint(), "TS_PROF"));
    OK(ts_prof_stop());
}

TS_TEST(bad_knobs_and_failing_steps_are_errors)
{
#if !TS_TIMERS
    TS_SKIP("built without timers");
#endif
    use_fixed_machine();
    program p = {.batch = 1, .one = one()};
    ts_knob k = {.name = "batch", .kind = TS_KNOB_BATCH, .value = &p.batch, .trial = 0};
    FAILS(TS_ERR_VALUE, ts_prof_try(sleep_step, &p, &k, 1, NULL));
    k.trial = 2;
    FAILS(TS_ERR_VALUE, ts_prof_try(sleep_step, &p, &k, 0, NULL));
    FAILS(TS_ERR_NULL, ts_prof_try(NULL, &p, &k, 1, NULL));
    FAILS(TS_ERR_NULL, ts_prof_try(sleep_step, &p, NULL, 1, NULL));
    k.kind = (ts_knob_kind)77;
    FAILS(TS_ERR_VALUE, ts_prof_try(sleep_step, &p, &k, 1, NULL));
    k = (ts_knob){.name = "batch", .kind = TS_KNOB_BATCH, .trial = 2};
    FAILS(TS_ERR_NULL, ts_prof_try(sleep_step, &p, &k, 1, NULL));
    ck_assert_int_eq(p.steps, 0);
    k = (ts_knob){.name = "fails", .kind = TS_KNOB_GRAPH, .value = &p.fails, .trial = 1};
    FAILS(TS_ERR_VALUE, ts_prof_try(sleep_step, &p, &k, 1, NULL));
    ck_assert_int_eq(p.fails, 0);
    ck_assert(!ts_prof_active());
}
