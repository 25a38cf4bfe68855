/**
 * @file try.c  ts_prof_try(): changes the knobs that the program declares, one at a time, and
 * compares the measured gain of each with a prediction from a profile.
 *
 * For knobs of padding and bf16 the prediction times the profile's matrix products with both sizes
 * or dtypes. Steps are timed without a profile, in blocks that alternate between both values.
 */
// SPDX-License-Identifier: MIT
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/alloc.h"
#include "core/checked.h"
#include "core/device.h"
#include "core/error.h"
#include "dispatch/device_times.h"
#include "dispatch/timers.h"
#include "include/tessera/check.h"
#include "include/tessera/compile.h"
#include "include/tessera/ops.h"
#include "include/tessera/program.h"
#include "profile/advice.h"

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/** Waits for the thread's default device, for the device of the last profile, and for the first
 *  device of each backend. A device that nothing uses is not opened. */
static ts_status wait_for_devices(void)
{
    TS_TRY(ts_synchronize(ts_default_device()));
    TS_TRY(ts_synchronize(ts_device_of_times()));
    for (uint8_t k = 1; k < TS_KEY_LAZY; k++) {
        const ts_backend *b = ts_backend_of((ts_device){k, 0});
        if (b && b->synchronize && ts_device_count(k) > 0)
            TS_TRY(ts_synchronize((ts_device){k, 0}));
    }
    return TS_OK;
}

/** The program's step, and how often to run it. */
typedef struct trial {
    ts_status (*step)(void *user);
    void *user;
    int64_t warmup, steps;
    int rounds;
} trial;

static ts_status run_steps(const trial *t, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        TS_SCOPE;
        TS_TRY(t->step(t->user));
    }
    return TS_OK;
}

/** Time of a step in ns, on average over a block. */
static ts_status time_block(const trial *t, double *ns)
{
    TS_TRY(wait_for_devices());
    double begin = seconds();
    TS_TRY(run_steps(t, t->steps));
    TS_TRY(wait_for_devices());
    *ns = 1e9 * (seconds() - begin) / (double)t->steps;
    return TS_OK;
}

/** The factor by which the work of a step grows with the trial value. */
static double work_factor(const ts_knob *k)
{
    return k->kind == TS_KNOB_BATCH ? (double)k->trial / (double)*k->value : 1;
}

/** Times blocks of steps with the knob's own value and with its trial value in turn. Sets before_ns
 *  and after_ns to the time of a step in the shortest block of each, and noise to half the range of
 *  the gains of single pairs of blocks; INFINITY for one pair. Restores the own value. */
static ts_status time_knob(const trial *t, ts_knob *k)
{
    const int64_t own = *k->value;
    const double work = work_factor(k);
    double before = 1, least_gain = INFINITY, most_gain = -INFINITY;
    ts_status status = TS_OK;
    k->before_ns = k->after_ns = 1e30;
    for (int i = 0; i < 2 * t->rounds && status == TS_OK; i++) {
        double *least = i % 2 ? &k->after_ns : &k->before_ns, ns = 0;
        *k->value = i % 2 ? k->trial : own;
        status = run_steps(t, t->warmup);
        if (status == TS_OK)
            status = time_block(t, &ns);
        *least = ns < *least ? ns : *least;
        double gain = 1 - ns / work / before;
        if (i % 2) {
            least_gain = gain < least_gain ? gain : least_gain;
            most_gain = gain > most_gain ? gain : most_gain;
        } else {
            before = ns;
        }
    }
    *k->value = own;
    k->measured = status == TS_OK ? 1 - k->after_ns / work / k->before_ns : 0;
    k->noise = t->rounds > 1 ? (most_gain - least_gain) / 2 : INFINITY;
    return status;
}

/* -------------------------------------------------------------------------- predictions ---- */

/** Operands of a timed product: ts_mm(a, b), or ts_linear_backward(gradient, a, b) unless gradient
 *  is NULL. */
typedef struct again {
    ts_tensor *a, *b, *gradient;
} again;

static ts_status run_again(const again *x)
{
    TS_SCOPE;
    ts_tensor *d[3];
    return x->gradient ? ts_linear_backward(x->gradient, x->a, x->b, &d[0], &d[1], &d[2])
                       : TS_STATUS_OF(ts_mm(x->a, x->b));
}

/** Shortest time in ns of a matrix product on a device. backward: both products of
 *  linear_backward, of a gradient (m, k) and a weight (k, n). */
static ts_status time_product(ts_device device, ts_gemm_sizes s, bool backward, ts_dtype dtype,
                              double *ns)
{
    enum { RUNS = 4 };
    TS_SCOPE;
    PLAIN_CALLS;
    again x = {.b = ts_fill_(ts_empty_on(TS_SIZES(s.k, s.n), dtype, device), 0.71)};
    TS_TRY(x.b);
    TS_TRY(x.a = ts_fill_(ts_empty_on(backward ? (int64_t[]){s.m, s.n} : (int64_t[]){s.m, s.k}, 2,
                                      dtype, device), 0.37));
    if (backward)
        TS_TRY(x.gradient = ts_fill_(ts_empty_on(TS_SIZES(s.m, s.k), dtype, device), 0.53));
    int64_t calls = 1;
    *ns = 1e30;
    for (int run = 0; run < RUNS; run++) {
        TS_TRY(wait_for_devices());
        double begin = seconds();
        for (int64_t i = 0; i < calls; i++)
            TS_TRY(run_again(&x));
        TS_TRY(wait_for_devices());
        double took = seconds() - begin;
        if (run && 1e9 * took / (double)calls < *ns) /* the first run warms up */
            *ns = 1e9 * took / (double)calls;
        if (!run)
            calls = took > 2e-3 ? 1 : ts_min64(100, (int64_t)(2e-3 / (took + 1e-9)) + 1);
    }
    return TS_OK;
}

/** `size`, or the trial value if k is a knob of padding whose value is `size`. */
static int64_t trial_size(int64_t size, const ts_knob *k)
{
    return k->kind == TS_KNOB_PADDING && size == *k->value ? k->trial : size;
}

/** True if the row is a matrix product that time_product() can run; sets *s and *dtype. */
static bool is_timed(const ts_profile *p, const ts_entry *e, ts_gemm_sizes *s, ts_dtype *dtype)
{
    bool half = strcmp(e->dtype, "bf16") == 0;
    *dtype = half ? TS_BF16 : TS_F32;
    return e->kernel && e->product && ts_advice_share(p, ts_entry_time(p, e)) >= 0.002 &&
           ts_advice_product(e, s) && (half || strcmp(e->dtype, "f32") == 0);
}

static bool is_backward(const ts_entry *e) { return strcmp(e->op, "linear_backward") == 0; }

/** Adds to *gain the share of the profile's time that its matrix products save with the knob's
 *  trial value (another size, or bf16). Each product is timed as it is and as changed. */
static ts_status predict_products(const ts_profile *p, const ts_knob *k, double *gain)
{
    ts_device device = ts_profile_is_of_device(p) ? ts_device_of_times() : TS_DEVICE_CPU;
    for (int64_t i = 0; i < p->count; i++) {
        const ts_entry *e = &p->entries[i];
        ts_gemm_sizes s;
        ts_dtype dtype;
        double share = ts_advice_share(p, ts_entry_time(p, e)), before, after;
        if (!is_timed(p, e, &s, &dtype))
            continue;
        ts_gemm_sizes padded = {trial_size(s.m, k), trial_size(s.k, k), trial_size(s.n, k)};
        bool casts = k->kind == TS_KNOB_AUTOCAST && dtype == TS_F32;
        if (!casts && memcmp(&s, &padded, sizeof s) == 0)
            continue;
        TS_TRY(time_product(device, s, is_backward(e), dtype, &before));
        TS_TRY(time_product(device, padded, is_backward(e), casts ? TS_BF16 : dtype, &after));
        *gain += share * (1 - after / before);
    }
    return TS_OK;
}

/** Converts a share of the profile's time to a share of a step that takes `ns` without a profile.
 *  idle: the share is idle time of the device. It contains the profiler's cost per launch, which is
 *  subtracted. Without device times the share is returned unchanged. */
static double unprofiled(const ts_profile *p, double share, bool idle, double ns)
{
    double profiled = p->nsteps ? ts_profile_time(p) / (double)p->nsteps : 0;
    if (!ts_profile_is_of_device(p) || profiled <= ns || ns <= 0)
        return share;
    double of = share * profiled - (idle ? profiled - ns : 0);
    return of > 0 ? of / ns : 0;
}

/** True if `calls` has a kernel row of the same call: its sizes do not depend on the batch. */
static bool has_call(const ts_profile *calls, const ts_entry *e)
{
    for (int64_t i = 0; i < calls->count; i++)
        if (calls->entries[i].kernel && strcmp(calls->entries[i].call, e->call) == 0)
            return true;
    return false;
}

/** Calls and work (FLOPs and bytes) of a profile's kernels. */
static void sum_kernels(const ts_profile *p, double *calls, double *work)
{
    *calls = *work = 0;
    for (int64_t i = 0; i < p->count; i++)
        if (p->entries[i].kernel) {
            *calls += (double)p->entries[i].calls;
            *work += p->entries[i].flops + p->entries[i].bytes;
        }
}

/** True if the one step of `calls` differs from those of p in number, work or sizes of calls. */
static bool has_effect(const ts_profile *p, const ts_profile *calls)
{
    double ncalls, work, own_ncalls, own_work, n = (double)p->nsteps;
    sum_kernels(p, &ncalls, &work);
    sum_kernels(calls, &own_ncalls, &own_work);
    if (fabs(ncalls - own_ncalls * n) > 0.5 || fabs(work - own_work * n) > 1e-6 * work)
        return true;
    for (int64_t i = 0; i < calls->count; i++)
        if (calls->entries[i].kernel && !has_call(p, &calls->entries[i]))
            return true;
    return false;
}

/** Sets *gain to the share of a sample's time that k, with `factor` times as many samples, saves.
 *  Overhead, idle time and calls whose sizes do not grow shrink to 1 / factor per sample; the gain
 *  of matrix products is measured by time_product(). calls: a profile of steps with the trial
 *  value, from which only the calls' sizes are read. ns: time of a step without a profile. */
static ts_status predict_batch(const ts_profile *p, const ts_profile *calls, const ts_knob *k,
                               double ns, double *gain)
{
    ts_device device = ts_profile_is_of_device(p) ? ts_device_of_times() : TS_DEVICE_CPU;
    double factor = (double)k->trial / (double)*k->value;
    double fixed = unprofiled(p, p->shares.overhead, true, ns), work = 0, products = 0;
    if (!has_effect(p, calls))
        ts_log_write("warning", "prof_try: knob '%s': the step makes the same calls with %lld as "
                     "with %lld; its gain assumes that the work outside of calls grows",
                     k->name, (long long)k->trial, (long long)*k->value);
    for (int64_t i = 0; i < p->count; i++) {
        const ts_entry *e = &p->entries[i];
        double share = ts_advice_share(p, ts_entry_time(p, e) - e->overhead_ns), before, after;
        ts_gemm_sizes s;
        ts_dtype dtype;
        if (!e->kernel)
            continue;
        if (e->update || has_call(calls, e)) {
            work += share;
        } else if (is_timed(p, e, &s, &dtype)) {
            ts_gemm_sizes larger = {(int64_t)((double)s.m * factor), s.k, s.n};
            TS_TRY(time_product(device, s, is_backward(e), dtype, &before));
            TS_TRY(time_product(device, larger, is_backward(e), dtype, &after));
            products += share * (1 - after / before / factor);
        }
    }
    fixed += unprofiled(p, work, false, ns);
    *gain = (fixed < 1 ? fixed : 1) * (1 - 1 / factor) + unprofiled(p, products, false, ns);
    return TS_OK;
}

enum { TINY = 100 };

static ts_status tiny_calls(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)in, (void)n, (void)m;
    ts_tensor *one = ctx;
    for (int i = 0; i < TINY; i++)
        TS_TRY(ts_add_(one, one));
    *out = one;
    return TS_OK;
}

/** Sets *ns to the shortest time of TINY dependent kernels, by events on the device. The product
 *  before them keeps the device busy while the host queues them. graph: NULL, or tiny_calls() as
 *  one graph. */
static ts_status time_tiny(ts_device device, ts_tensor *one, ts_tensor *busy, ts_compiled *graph,
                           ts_event *const *events, double *ns)
{
    enum { RUNS = 8 }; /* runs 0 to RUNS / 2 are not timed: they capture the graph */
    *ns = 1e30;
    for (int run = 0; run < RUNS; run++) {
        TS_SCOPE;
        ts_tensor *out;
        double ms;
        for (int i = 0; i < 2; i++)
            TS_TRY(ts_mm(busy, busy));
        TS_TRY(ts_event_record(device, events[0]));
        TS_TRY(graph ? ts_compiled_call(graph, NULL, 0, &out, 1)
                     : tiny_calls(one, NULL, 0, &out, 1));
        TS_TRY(ts_event_record(device, events[1]));
        TS_TRY(ts_event_synchronize(device, events[1]));
        TS_TRY(ts_event_elapsed(device, events[0], events[1], &ms));
        *ns = run > RUNS / 2 && 1e6 * ms < *ns ? 1e6 * ms : *ns;
    }
    return TS_OK;
}

/** Sets *ns to the time that a graph saves between two kernels of a stream. */
static ts_status time_gap(ts_device device, double *ns)
{
    enum { BUSY = 4096 };
    TS_SCOPE;
    PLAIN_CALLS;
    double queued = 0, launched = 0;
    ts_event *events[2] = {NULL, NULL};
    ts_tensor *busy = ts_fill_(ts_empty_on(TS_SIZES(BUSY, BUSY), TS_F32, device), 0.37),
              *one = ts_fill_(ts_empty_on(TS_SIZES(1), TS_F32, device), 0);
    TS_TRY(busy);
    TS_TRY(one);
    ts_compiled *graph = ts_step_graph(tiny_calls, one);
    ts_status status = TS_STATUS_OF(graph);
    for (int i = 0; i < 2 && status == TS_OK; i++)
        status = ts_event_new(device, &events[i]);
    if (status == TS_OK)
        status = time_tiny(device, one, busy, NULL, events, &queued);
    if (status == TS_OK)
        status = time_tiny(device, one, busy, graph, events, &launched);
    ts_event_free(device, events[0]);
    ts_event_free(device, events[1]);
    ts_compiled_free(graph);
    *ns = queued > launched ? (queued - launched) / TINY : 0;
    return status;
}

/** Share of a step that a graph saves: `late`, the share in which the device waits for the host,
 *  and a part of each gap between two kernels. ns: time of a step without a profile. */
static double predict_graph(const ts_profile *p, double late, double ns)
{
    double gap = 0, works = (double)(p->device.kernels + p->device.copies);
    if (!ts_profile_is_of_device(p) || !p->nsteps || ns <= 0)
        return late;
    if (time_gap(ts_device_of_times(), &gap) != TS_OK)
        ts_error_clear(); /* a device without events or graphs */
    return late + works / (double)p->nsteps * gap / ns;
}

static ts_profile *profile_steps(const trial *t, int64_t steps);

/** Sets k->predicted. ns: time of a step without a profile. */
static ts_status predict(const trial *t, const ts_profile *p, ts_knob *k, double ns)
{
    double late = ts_profile_is_of_device(p) ? unprofiled(p, ts_advice_late_host(p), true, ns) : 0;
    k->predicted = 0;
    switch (k->kind) {
    case TS_KNOB_BATCH: {
        const int64_t own = *k->value;
        *k->value = k->trial;
        ts_profile *calls = profile_steps(t, 1);
        *k->value = own;
        TS_TRY(calls);
        ts_status status = predict_batch(p, calls, k, ns, &k->predicted);
        ts_profile_free(calls);
        return status;
    }
    case TS_KNOB_PADDING:
    case TS_KNOB_AUTOCAST: return predict_products(p, k, &k->predicted);
    case TS_KNOB_COMPILE:
        k->predicted = unprofiled(p, ts_advice_fusion(p), false, ns) + late;
        return TS_OK;
    case TS_KNOB_GRAPH: k->predicted = predict_graph(p, late, ns); return TS_OK;
    default: return TS_OK;
    }
}

/* ------------------------------------------------------------------------------- report ---- */

static const struct {
    const char *name, *rule;
} kinds[] = {{"batch", "A1"},   {"padding", "A3"}, {"autocast", "A5"},
             {"compile", "A2"}, {"graph", "A1"},   {"dry", "-"}};

/** For knobs BATCH and DRY, writes what limits the step. device_ns: busy time in the profile. */
static void conclude(const ts_knob *k, double device_ns, FILE *out)
{
    double factor = (double)k->trial / (double)*k->value, grew = k->after_ns / k->before_ns;
    if (isfinite(k->noise) && fabs(k->measured) <= k->noise)
        return;
    if (k->kind == TS_KNOB_BATCH && factor >= 1.5)
        fprintf(out, "  %s: %.2f times the work takes %.2f times as long: %s\n", k->name, factor,
                grew,
                grew <= 1 + 0.25 * (factor - 1)   ? "overhead or an underfilled device is the limit"
                : grew >= 1 + 0.75 * (factor - 1) ? "the work is the limit"
                                                  : "both the work and its fixed cost count");
    if (k->kind == TS_KNOB_DRY)
        fprintf(out, "  %s: the host needs %.3f ms a step without kernels, %s: %s\n", k->name,
                k->after_ns / 1e6,
                device_ns > 0 ? "the device is busy for the rest" : "the kernels take the rest",
                k->after_ns > 0.7 * k->before_ns ? "the host is the limit"
                                                 : "the kernels are the limit");
}

static void print_gains(const ts_knob *k, FILE *out)
{
    char range[16] = "-", ratio[16] = "-";
    if (isfinite(k->noise))
        snprintf(range, sizeof range, "%.1f%%", fmin(100 * k->noise, 99999));
    if (isfinite(k->noise) && fabs(k->measured) <= k->noise)
        snprintf(ratio, sizeof ratio, "within noise");
    else if (k->predicted != 0)
        snprintf(ratio, sizeof ratio, "%.2f", k->measured / k->predicted);
    fprintf(out, " %9.1f%% %9.1f%% %8s %12s\n", 100 * k->predicted, 100 * k->measured, range,
            ratio);
}

static void report(const ts_profile *p, const ts_knob *knobs, int count, FILE *out)
{
    TS_C_LOCALE;
    double least = knobs[0].before_ns, most = least;
    for (int i = 1; i < count; i++) {
        least = knobs[i].before_ns < least ? knobs[i].before_ns : least;
        most = knobs[i].before_ns > most ? knobs[i].before_ns : most;
    }
    fprintf(out, "%s; a step takes %.4g to %.4g ms\n", p->shares.verdict, least / 1e6, most / 1e6);
    fprintf(out, "%-20s %-9s %4s %10s %10s %10s %10s %8s %12s\n", "knob", "kind", "rule", "from",
            "to", "predicted", "measured", "noise", "ratio");
    for (int i = 0; i < count; i++) {
        const ts_knob *k = &knobs[i];
        fprintf(out, "%-20.20s %-9s %4s %10lld %10lld", k->name, kinds[k->kind].name,
                kinds[k->kind].rule, (long long)*k->value, (long long)k->trial);
        if (k->kind == TS_KNOB_DRY)
            fprintf(out, " %10s %10s %8s %12s\n", "-", "-", "-", "-");
        else
            print_gains(k, out);
    }
    for (int i = 0; i < count; i++)
        conclude(&knobs[i], ts_profile_is_of_device(p) ? p->device.busy_ns : 0, out);
}

/* ---------------------------------------------------------------------------------- try ---- */

static ts_status check_knobs(const ts_knob *knobs, int count)
{
    for (int i = 0; i < count; i++) {
        if (!knobs[i].name || !knobs[i].value)
            return ts_error_set(TS_ERR_NULL, "prof_try: knob %d has no %s", i,
                                knobs[i].name ? "value" : "name");
        if ((unsigned)knobs[i].kind >= TS_COUNTOF(kinds))
            return ts_error_set(TS_ERR_VALUE, "prof_try: knob '%s': expected a ts_knob_kind, got "
                                "%d",
                                knobs[i].name, (int)knobs[i].kind);
        if (knobs[i].kind == TS_KNOB_BATCH && (knobs[i].trial < 1 || *knobs[i].value < 1))
            return ts_error_set(TS_ERR_VALUE,
                                "prof_try: knob '%s': expected batch sizes of at least 1, got %lld "
                                "and %lld",
                                knobs[i].name, (long long)*knobs[i].value,
                                (long long)knobs[i].trial);
    }
    return TS_OK;
}

/** Runs warm-up steps, then profiles `steps` steps. NULL with an error. */
static ts_profile *profile_steps(const trial *t, int64_t steps)
{
    TS_TRY_NULL(run_steps(t, t->warmup));
    TS_TRY_NULL(wait_for_devices());
    TS_TRY_NULL(ts_prof_start(NULL));
    ts_prof_step(); /* marks the steps itself, so that programs without updates have steps */
    ts_status status = TS_OK;
    for (int64_t i = 0; i < steps && status == TS_OK; i++) {
        status = run_steps(t, 1);
        ts_prof_step();
    }
    ts_prof_stop();
    return status == TS_OK ? ts_profile_take() : NULL;
}

ts_status ts_prof_try(ts_status (*step)(void *user), void *user, ts_knob *knobs, int count,
                      const ts_try_opts *opts)
{
    ts_try_opts o;
    TS_TRY(TS_CHECK_OPTS(&o, opts));
    TS_TRY(TS_CHECK_POINTERS(step, knobs));
    TS_TRY(TS_CHECK_VALUE(count, count > 0, "at least one knob"));
    TS_TRY(check_knobs(knobs, count));
    TS_TRY(TS_CHECK_VALUE(o.steps, o.steps >= 0, "at least 0"));
    TS_TRY(TS_CHECK_VALUE(o.warmup, o.warmup >= 0, "at least 0"));
    TS_TRY(TS_CHECK_VALUE(o.rounds, o.rounds >= 0 && o.rounds <= INT32_MAX, "0 to 2147483647"));
    if (ts_prof_active())
        return ts_error_set_hint(TS_ERR_STATE, "call ts_prof_stop() first, or run without TS_PROF",
                                 "prof_try: a profile is already being recorded");
    trial t = {step, user, o.warmup ? o.warmup : 3, o.steps ? o.steps : 10,
               o.rounds ? (int)o.rounds : 3};
    ts_profile *p = profile_steps(&t, t.steps);
    if (!p)
        return ts_error_code();
    enum { LEAST_NS = 2000000, MOST_STEPS = 100000 };
    double ns = 0;
    ts_status status = time_block(&t, &ns);
    if (!o.steps && status == TS_OK) /* the clock and the waits for devices need longer blocks */
        t.steps = ts_max64(t.steps, ts_min64((int64_t)(LEAST_NS / (ns + 1)), MOST_STEPS));
    for (int i = 0; i < count && status == TS_OK; i++)
        status = predict(&t, p, &knobs[i], ns);
    for (int i = 0; i < count && status == TS_OK; i++)
        status = time_knob(&t, &knobs[i]);
    if (status == TS_OK) {
        report(p, knobs, count, o.out ? o.out : stdout);
        status = ts_profile_flush(o.out ? o.out : stdout, "prof_try");
    }
    ts_profile_free(p);
    return status;
}
