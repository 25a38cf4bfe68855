/** @file regimes.c  Tests that programs with a known regime get it, with the ceilings of this
 * machine. */
// SPDX-License-Identifier: MIT
#include <math.h>

#include "dispatch/timers.h"
#include "tests/dispatch/common.h"
#include "tests/profile/take.h"

enum { TRIES = 6 };

/** Asserts that the profile of body gets a verdict in one of TRIES runs; other load on the machine
 *  may change single runs. */
static void has_verdict(const char *verdict, void (*body)(void))
{
    char seen[256] = "";
    for (int i = 0; i < TRIES; i++) {
        OK(ts_prof_start(NULL));
        body();
        OK(ts_prof_stop());
        ts_profile *p = ts_profile_take();
        OK(p);
        ts_profile_shares s = p->shares;
        ts_profile_free(p);
        if (strcmp(s.verdict, verdict) == 0)
            return;
        snprintf(seen, sizeof seen, "%s: compute %.3f, memory %.3f, overhead %.3f, outside %.3f, "
                                    "unknown %.3f",
                 s.verdict, s.compute, s.memory, s.overhead, s.outside, s.unknown);
    }
    ck_abort_msg("expected %s, got %s", verdict, seen);
}

static ts_tensor *a, *b, *out;

static void call_tiny(void)
{
    for (int i = 0; i < 20000; i++)
        ts_add_out(out, a, b);
}
static void add_large(void)
{
    for (int i = 0; i < 6; i++)
        ts_add_out(out, a, b);
}
static void copy_large(void)
{
    for (int i = 0; i < 6; i++)
        ts_copy_(out, a);
}
static void multiply_matrices(void)
{
    for (int i = 0; i < 6; i++)
        ts_mm_out(out, a, b);
}
static void call_small(void)
{
    for (int i = 0; i < 5000; i++) {
        TS_SCOPE;
        ts_softmax(ts_mm(a, b), 1);
    }
}
static void sleep_outside(void)
{
    for (int i = 0; i < 10; i++) {
        usleep(2000);
        ts_add_out(out, a, b);
    }
}

static void make(int64_t rows, int64_t columns)
{
    a = ts_fill_(ts_empty(TS_SIZES(rows, columns), TS_F32), 0.5);
    b = ts_fill_(ts_empty(TS_SIZES(rows, columns), TS_F32), 0.5);
    out = ts_fill_(ts_empty(TS_SIZES(rows, columns), TS_F32), 0.5);
    OK(out);
}

TS_TEST(planted_regimes_are_found, .timeout = 600)
{
#if !TS_TIMERS
    TS_SKIP("built without timers");
#endif
#ifdef __SANITIZE_ADDRESS__
    TS_SKIP("a sanitizer's checks are overhead everywhere");
#endif
#ifdef __SANITIZE_THREAD__
    TS_SKIP("a sanitizer's checks are overhead everywhere");
#endif
    own_cache();
    make(1, 1);
    has_verdict("overhead-bound", call_tiny);
    has_verdict("outside-bound", sleep_outside);
    make(4, 4);
    has_verdict("overhead-bound", call_small);
    make(4096, 2048);
    has_verdict("memory-bound", add_large);
    has_verdict("memory-bound", copy_large);
    make(768, 768);
    has_verdict("compute-bound", multiply_matrices);
    end_cache();
}

/* ------------------------------------------------------------------------ a known cost ---- */

static double spin_seconds, spun_ns;

/** Waits for spin_seconds; adds the time that passed to spun_ns. */
static ts_status spin(ts_frame *f)
{
    double begin = seconds(), passed;
    while ((passed = seconds() - begin) < spin_seconds)
        ;
    spun_ns += 1e9 * passed;
    return ts_kernel_give(f, 0, f->args[0].t);
}

/** A call of 10 us to 10 ms has this time in the profile, within 2 % and 1 us. Other programs may
 *  take the processor outside of the kernel's loop, so one of TRIES profiles has to agree. */
TS_TEST(a_call_of_known_length_has_this_time)
{
#if !TS_TIMERS
    TS_SKIP("built without timers");
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    TS_SKIP("a sanitizer's checks take more than 1 us of a call");
#endif
    use_fixed_machine();
    OK(ts_register_op_ex("test.spin(Tensor a) -> Tensor", NULL, NULL));
    OK(ts_register_kernel_ex("test.spin", TS_KEY_CPU, spin, NULL, NULL));
    ts_value arg = ts_value_tensor(one());
    for (int us = 10; us <= 10000; us *= 10) {
        double ns = 0;
        int calls = us < 1000 ? 20 : 3, tries = TRIES;
        do {
            spin_seconds = 1e-6 * us;
            spun_ns = 0;
            OK(ts_prof_start(NULL));
            for (int i = 0; i < calls; i++) {
                ts_value ret = ts_value_none();
                OK(ts_call_boxed(ts_op_by_name("test.spin"), &arg, 1, &ret, 1));
                ts_release(ret.t);
            }
            OK(ts_prof_stop());
            ts_profile *p = ts_profile_take();
            OK(p);
            ns = 0;
            for (int64_t i = 0; i < p->count; i++)
                if (p->entries[i].kernel && strcmp(p->entries[i].op, "test.spin") == 0)
                    ns += p->entries[i].self_ns;
            ts_profile_free(p);
        } while (fabs(ns - spun_ns) > 0.02 * spun_ns + 1000 * calls && --tries);
        ck_assert_msg(tries, "%d calls of %.0f ns together have %.0f ns", calls, spun_ns, ns);
    }
}

/** Least ns of a call, over short batches. */
static double time_call(void)
{
    double best = 1e9;
    for (int batch = 0; batch < 300; batch++) {
        double begin = seconds();
        for (int i = 0; i < 100; i++)
            ts_add_out(out, a, b);
        double ns = 1e9 * (seconds() - begin) / 100;
        best = ns < best ? ns : best;
    }
    return best;
}

/** The profiler's own time in a profile is the time that it adds to a call, within 20 %. */
TS_TEST(the_cost_of_a_profile_is_the_reported_cost)
{
#if !TS_TIMERS
    TS_SKIP("built without timers");
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    TS_SKIP("the cost of a sanitizer's checks varies");
#endif
    use_fixed_machine();
    make(1, 1);
    for (int trace = 0; trace < 2; trace++) {
        double said = 0, added = 0;
        int tries = 8 * TRIES; /* others' load changes each of the three times alone */
        do {
            double before = time_call();
            OK(ts_prof_start(TS_OPTS(ts_prof_opts, .trace = trace)));
            added = time_call() - before;
            OK(ts_prof_stop());
            ts_profile *p = ts_profile_take();
            OK(p);
            said = p->profiler_ns / (300 * 100);
            ts_profile_free(p);
        } while (fabs(said / added - 1) > 0.2 && --tries);
        ck_assert_msg(tries, "%s says %.1f ns a call and adds %.1f",
                      trace ? "a trace" : "a profile", said, added);
    }
}

/* ----------------------------------------------------------------- a sweep over FLOPs ---- */

static int64_t repeats;
static double lie = 1;

/** out[i] = a[i] * 1.0001^repeats, one pass over memory. */
static ts_status multiply_repeatedly(ts_frame *f)
{
    const float *x = ts_kernel_data(f->args[0].t);
    float *y = ts_kernel_data(f->rets[0].t);
    for (int64_t i = 0; i < f->rets[0].t->numel; i++) {
        float v = x[i];
        for (int64_t k = 0; k < repeats; k++)
            v *= 1.0001f;
        y[i] = v;
    }
    return TS_OK;
}

static ts_status same_as_argument(ts_frame *f)
{
    const ts_tensor *t = f->args[0].t;
    return ts_rule_result(f, 0, t->sizes, t->ndim, TS_F32);
}

static ts_work work_of(const ts_frame *f)
{
    double n = (double)f->args[0].t->numel;
    return (ts_work){lie * n * (double)repeats, lie * 2 * n * 4};
}

static int sweep_op(void)
{
    int op;
    OK(ts_register_op_ex("test.repeat(Tensor a) -> Tensor",
                         TS_OPTS(ts_op_opts, .rule = same_as_argument, .cost = work_of), &op));
    OK(ts_register_kernel_ex("test.repeat", TS_KEY_CPU, multiply_repeatedly, NULL, NULL));
    return op;
}

static ts_entry profiled(int op, ts_tensor *x)
{
    OK(ts_prof_start(NULL));
    for (int i = 0; i < 3; i++) {
        ts_value arg = ts_value_tensor(x), ret = ts_value_none();
        OK(ts_call_boxed(op, &arg, 1, &ret, 1));
        ts_release(ret.t);
    }
    OK(ts_prof_stop());
    ts_profile *p = ts_profile_take();
    OK(p);
    ts_entry found = {0};
    for (int64_t i = 0; i < p->count; i++)
        if (p->entries[i].kernel && strcmp(p->entries[i].op, "test.repeat") == 0)
            found = p->entries[i];
    ck_assert_int_eq(found.calls, 3);
    ts_profile_free(p);
    return found;
}

static bool is_memory(ts_regime r)
{
    return r == TS_REGIME_MEMORY || r == TS_REGIME_SLOW_MEMORY || r == TS_REGIME_CACHE;
}
static bool is_compute(ts_regime r)
{
    return r == TS_REGIME_COMPUTE || r == TS_REGIME_SLOW_COMPUTE;
}

/** More work for the same bytes: the regime turns at the machine's ridge. */
TS_TEST(repeated_multiplication_turns_from_memory_to_compute)
{
#if !TS_TIMERS
    TS_SKIP("built without timers");
#endif
    use_fixed_machine(); /* its ridge, 5 FLOPs per byte, is at 40 multiplications */
    int op = sweep_op();
    ts_tensor *x = ts_fill_(ts_empty(TS_SIZES(1 << 19), TS_F32), 0.5);
    for (repeats = 1; repeats <= 512; repeats *= 2) {
        ts_entry e = profiled(op, x);
        ck_assert_double_eq(e.flops, 3.0 * (1 << 19) * (double)repeats);
        ck_assert_msg(repeats <= 32 ? is_memory(e.regime) : is_compute(e.regime),
                      "%lld multiplications: %s", (long long)repeats, ts_regime_names[e.regime]);
    }
}

/** A row above a ceiling, because its op claims too much work, has the regime ERROR. */
TS_TEST(rates_above_a_ceiling_are_errors)
{
#if !TS_TIMERS
    TS_SKIP("built without timers");
#endif
    use_fixed_machine();
    int op = sweep_op();
    ts_tensor *x = ts_fill_(ts_empty(TS_SIZES(1 << 19), TS_F32), 0.5);
    repeats = 4;
    lie = 1e5;
    ck_assert_int_eq(profiled(op, x).regime, TS_REGIME_ERROR);
    x = ts_fill_(ts_empty(TS_SIZES(1 << 12), TS_F32), 0.5);
    repeats = 40000; /* a row that exceeds the compute ceiling */
    lie = 1e5;
    ck_assert_int_eq(profiled(op, x).regime, TS_REGIME_ERROR);
}

static ts_entry kernel(const char *dtype, double calls, double self_ns, double flops, double bytes)
{
    ts_entry e = {.kernel = true, .calls = (int64_t)calls, .self_ns = self_ns, .flops = flops,
                  .bytes = bytes};
    snprintf(e.op, sizeof e.op, "op");
    snprintf(e.layer, sizeof e.layer, "CPU");
    snprintf(e.dtype, sizeof e.dtype, "%s", dtype);
    return e;
}

/** On a device, kernels that take no longer than kernels of one element are overhead, and products
 *  in f64 and 16 bits have ceilings of their own. */
TS_TEST(a_device_has_ceilings_by_dtype_and_a_least_kernel)
{
    const struct {
        const char *dtype;
        double kernels, ns, flops;
        ts_regime regime;
    } cases[] = {
        {"f32", 10, 1e6, 0.9e6, TS_REGIME_COMPUTE},  {"f32", 10, 1e6, 1.5e6, TS_REGIME_ERROR},
        {"f64", 10, 1e6, 1.9e6, TS_REGIME_COMPUTE},  {"f64", 10, 1e6, 2.6e6, TS_REGIME_ERROR},
        {"bf16", 10, 1e6, 3.9e6, TS_REGIME_COMPUTE}, {"bf16", 10, 1e6, 2e6, TS_REGIME_SLOW_COMPUTE},
        {"f32", 600, 1e6, 0.9e6, TS_REGIME_OVERHEAD}, {"f32", 400, 1e6, 0.9e6, TS_REGIME_COMPUTE},
        {"f32", 600, 1e6, 1.5e6, TS_REGIME_ERROR},
    };
    for (int i = 0; i < (int)(sizeof cases / sizeof cases[0]); i++) {
        ts_profile *p = ts_profile_new(1, 0);
        OK(p);
        p->device.machine = (ts_prof_machine){
            .size = sizeof p->device.machine, .threads = 1, .gemm_flops = 1e9,
            .double_flops = 2e9, .half_flops = 4e9, .vector_flops = 1e9, .kernel_ns = 2000};
        for (int k = 0; k < TS_PROF_CURVE; k++)
            p->device.machine.bandwidth[k] = 1e12;
        p->device.measured = true;
        p->device.busy_ns = cases[i].ns;
        p->count = 1;
        p->entries[0] = kernel(cases[i].dtype, cases[i].kernels, 0, cases[i].flops, 1);
        ts_entry *e = &p->entries[0];
        e->device_ns = cases[i].ns;
        e->kernels = (int64_t)cases[i].kernels;
        e->product = true;
        ts_profile_judge(p);
        ck_assert_msg(e->regime == cases[i].regime, "case %d: expected %s, got %s", i,
                      ts_regime_names[cases[i].regime], ts_regime_names[e->regime]);
        if (e->regime == TS_REGIME_OVERHEAD)
            ck_assert_double_eq(p->shares.overhead, 1);
        ts_profile_free(p);
    }
}

/** The rule at its borders, on a machine of round numbers: 1 FLOP and 1 byte a ns from DRAM, 4 from
 *  caches up to 1 MiB, 100 ns a call. */
TS_TEST(the_rule_decides_by_the_nearer_ceiling)
{
    ts_prof_machine m = {.size = sizeof m, .threads = 1, .gemm_flops = 2e9, .vector_flops = 1e9,
                         .call_ns = 100};
    for (int i = 0; i < TS_PROF_CURVE; i++) {
        m.bytes_at[i] = 32768 * (double)(1 << 2 * i);
        m.bandwidth[i] = m.bytes_at[i] <= 1 << 20 ? 4e9 : 1e9;
    }
    const struct {
        ts_entry e;
        ts_regime regime;
    } cases[] = {
        {kernel("f32", 1, 1e6, 0.9e6, 1e3), TS_REGIME_COMPUTE},
        {kernel("f32", 1, 1e6, 0.55e6, 1e3), TS_REGIME_SLOW_COMPUTE},
        {kernel("f32", 1, 1e6, 1e3, 0.9e6), TS_REGIME_MEMORY},
        {kernel("f32", 1, 1e6, 1e3, 0.55e6), TS_REGIME_SLOW_MEMORY},
        {kernel("f32", 1, 1e6, 1e3, 3e6), TS_REGIME_ERROR},
        {kernel("f32", 100, 1e6, 1e3, 3e6), TS_REGIME_CACHE},
        {kernel("f32", 100, 1e6, 1e3, 6e6), TS_REGIME_ERROR},
        {kernel("f32", 1, 1e6, 1.2e6, 1e3), TS_REGIME_COMPUTE},
        {kernel("f32", 1, 1e6, 1.3e6, 1e3), TS_REGIME_ERROR},
        {kernel("f64", 1, 1e6, 0.45e6, 1e3), TS_REGIME_COMPUTE},
        {kernel("f32", 6000, 1e6, 1e3, 1e3), TS_REGIME_OVERHEAD},
        {kernel("f32", 1000, 1e6, 0, 0), TS_REGIME_OVERHEAD},
    };
    for (int i = 0; i < (int)(sizeof cases / sizeof cases[0]); i++) {
        ts_profile *p = ts_profile_new(1, 0);
        OK(p);
        p->machine = m;
        p->measured = true;
        p->wall_ns = cases[i].e.self_ns;
        p->count = 1;
        p->entries[0] = cases[i].e;
        ts_profile_judge(p);
        ck_assert_msg(p->entries[0].regime == cases[i].regime, "case %d: expected %s, got %s", i,
                      ts_regime_names[cases[i].regime], ts_regime_names[p->entries[0].regime]);
        ts_profile_free(p);
    }
}

/** If recording is cheaper than its cost was measured, no row gets a negative time. */
TS_TEST(too_large_costs_make_no_time_negative, .loop = 2)
{
    BEGIN;
    ts_tensor *a = ts_ones(TS_SIZES(1), TS_F32);
    OK(ts_prof_start(TS_OPTS(ts_prof_opts, .trace = _i)));
    ts_timers_record_cost(1e4, 1e4);
    for (int i = 0; i < 4; i++) {
        for (int k = 0; k < 100; k++)
            ts_release(ts_add(a, a));
        ts_prof_step();
    }
    ts_profile *p = take();
    for (int64_t i = 0; i < p->count; i++)
        ck_assert_double_ge(p->entries[i].self_ns, 0);
    for (int64_t i = 0; i < p->nsteps; i++) {
        const ts_step_times *s = &p->steps[i];
        ck_assert_double_ge(s->kernels_ns, 0);
        ck_assert_double_ge(s->layers_ns, 0);
        ck_assert_double_ge(s->outside_ns, 0);
        ck_assert_double_eq_tol(s->kernels_ns + s->layers_ns + s->outside_ns + s->profiler_ns,
                                s->wall_ns, 1);
    }
    ck_assert_double_ge(p->shares.outside, 0);
    sums(p);
    ts_profile_free(p);
}

TS_TEST(a_profile_without_calls_is_empty, .loop = 2)
{
    BEGIN;
    OK(ts_prof_start(NULL));
    for (int i = 0; i < 3 * _i; i++)
        ts_prof_step();
    ts_profile *p = take();
    ck_assert_str_eq(p->shares.verdict, "empty");
    ts_profile_free(p);
}

TS_TEST(the_median_of_two_steps_is_their_mean)
{
    ck_assert_double_eq(ts_median_of((const double[]){1, 2}, 2), 1.5);
    ck_assert_double_eq(ts_median_of((const double[]){1, 2, 7}, 3), 2);
    ck_assert_double_eq(ts_median_of((const double[]){5}, 1), 5);
}
