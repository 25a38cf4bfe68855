/**
 * @file bench_dispatch.c  Host cost of calls: nanoseconds (minimum over short batches) and mallocs
 * of each case.
 *
 *     bench_dispatch                        all cases: key<TAB>value<TAB>unit
 *     bench_dispatch --only NAME            one case
 *     bench_dispatch --only NAME --iters N  exactly N calls, no timing: for instruction counts
 *     bench_dispatch --list
 */
// SPDX-License-Identifier: MIT
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <tessera/tessera.h>

#include "compare_gpt.h"

/* ------------------------------------------------------------- every malloc is counted ---- */

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t n, size_t bytes);
extern void *__libc_realloc(void *block, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);
static _Atomic uint64_t mallocs;

static void count(void) { atomic_fetch_add_explicit(&mallocs, 1, memory_order_relaxed); }
void *malloc(size_t bytes) { count(); return __libc_malloc(bytes); }
void *calloc(size_t n, size_t bytes) { count(); return __libc_calloc(n, bytes); }
void *realloc(void *block, size_t bytes) { count(); return __libc_realloc(block, bytes); }
void *aligned_alloc(size_t alignment, size_t bytes)
{
    count();
    return __libc_memalign(alignment, bytes);
}
int posix_memalign(void **block, size_t alignment, size_t bytes)
{
    count();
    *block = __libc_memalign(alignment, bytes);
    return *block ? 0 : 12;
}

/* --------------------------------------------------------------------------------- cases ---- */

static ts_tensor *a, *b, *out, *w; // (1)
static ts_tensor *m, *n;           // (8, 8)
static ts_tensor *x, *y;           // (8, 16), (8, 4)
static ts_module *mlp;             // (8, 16) -> (8, 4), with a hidden layer of 32
static ts_module *identities;      // 20 modules that return their input
static ts_optimizer *sgd;
static ts_key layers[4];
static ts_tensor *c, *d;           // (1) on META
static ts_compiled *recording;
static compare_gpt *gpt;           // a training step of about PLANNED calls

static ts_status pass_on(ts_frame *f) { return ts_redispatch(f); }

static ts_tensor *same(ts_tensor *t) { return t; }

static void make(void)
{
    a = ts_retain(ts_ones(TS_SIZES(1), TS_F32));
    b = ts_retain(ts_ones(TS_SIZES(1), TS_F32));
    out = ts_retain(ts_ones(TS_SIZES(1), TS_F32));
    w = ts_retain(ts_set_requires_grad(ts_ones(TS_SIZES(1), TS_F32), true));
    m = ts_retain(ts_ones(TS_SIZES(8, 8), TS_F32));
    n = ts_retain(ts_ones(TS_SIZES(8, 8), TS_F32));
    x = ts_retain(ts_ones(TS_SIZES(8, 16), TS_F32));
    y = ts_retain(ts_ones(TS_SIZES(8, 4), TS_F32));
    ts_manual_seed(1);
    mlp = ts_sequential_new();
    ts_sequential_add(mlp, ts_linear_new(16, 32, true));
    ts_sequential_add(mlp, ts_activation_new("ReLU", ts_relu));
    ts_sequential_add(mlp, ts_linear_new(32, 4, true));
    identities = ts_sequential_new();
    for (int i = 0; i < 20; i++)
        ts_sequential_add(identities, ts_activation_new("Same", same));
    ts_group_opts opts = ts_optimizer_defaults(TS_SGD, 0.01);
    sgd = ts_optimizer_for(mlp, TS_SGD, &opts);
    c = ts_retain(ts_empty_on(TS_SIZES(1), TS_F32, TS_DEVICE_META));
    d = ts_retain(ts_empty_on(TS_SIZES(1), TS_F32, TS_DEVICE_META));
    for (int i = 0; i < 4; i++) {
        char name[16];
        snprintf(name, sizeof name, "BENCH%d", i);
        if (ts_register_layer(name, "backends", &layers[i]) != TS_OK ||
            ts_register_kernel("noop", layers[i], pass_on, NULL, NULL) != TS_OK)
            break;
    }
    if (ts_error_code() != TS_OK) {
        ts_error_print();
        exit(1);
    }
}

static void layers_on(int count, bool on)
{
    for (int i = 0; i < count; i++)
        ts_layer_enable(layers[i], on);
}
static void one_layer(bool on) { layers_on(1, on); }
static void four_layers(bool on) { layers_on(4, on); }
static void with_timers(bool on) { ts_timers_enable(on); }
static void with_profile(bool on) { on ? ts_prof_start(NULL) : ts_prof_stop(); }
static void with_trace(bool on)
{
    on ? ts_prof_start(TS_OPTS(ts_prof_opts, .trace = true)) : ts_prof_stop();
}

static void noop_call(void) { ts_noop(a, b, ts_scalar_int(3)); }
static void add_1(void) { ts_drop(ts_add(a, b)); }
static void add_1_out(void) { ts_add_out(out, a, b); }
static void add_1_inplace(void) { ts_add_(out, b); }
static void add_1_grad(void) { ts_drop(ts_add(w, b)); }
static void add_1_fwd_bwd(void)
{
    TS_SCOPE;
    ts_backward(ts_add(w, b));
    ts_zero_grad(w);
}
static void empty_1(void) { ts_drop(ts_empty(TS_SIZES(1), TS_F32)); }
static void view_1(void) { ts_drop(ts_view(a, TS_SIZES(1, 1))); }
static void mm_8(void) { ts_drop(ts_mm(m, n)); }
static void forward_20(void)
{
    TS_SCOPE;
    ts_forward(identities, a);
}
static void mlp_step(void)
{
    TS_SCOPE;
    ts_backward(ts_mse_loss(ts_forward(mlp, x), y));
    ts_optimizer_step(sgd);
    ts_optimizer_zero_grad(sgd);
}

/* Number of calls in a trace; they share the cost of starting and ending it. */
enum { TRACED = 1000 };
static ts_status many_adds(void *ctx, ts_tensor *const *inputs, int n, ts_tensor **outputs, int m)
{
    (void)ctx, (void)n, (void)outputs, (void)m;
    for (int i = 0; i < TRACED; i++)
        ts_drop(ts_add(inputs[0], b));
    return TS_OK;
}
static void add_1_traced(void)
{
    ts_graph *graph;
    ts_trace(many_adds, NULL, &a, 1, NULL, 0, &graph);
    ts_graph_free(graph);
}
static ts_graph *graph;
static void tracing(bool on)
{
    if (on)
        ts_trace(many_adds, NULL, &a, 1, NULL, 0, &graph);
    else
        ts_graph_free(graph);
}
static void add_1_replayed(void) { ts_replay(graph, &a, 1, NULL, 0); }

static void add_1_meta(void) { ts_drop(ts_add(c, d)); }
/* Nothing reads the results of the recorded calls, so the plan runs none of them. With fullgraph
 * the function is recorded in each call. */
static void compiling(bool on)
{
    if (on)
        recording = ts_compile(many_adds, NULL, TS_OPTS(ts_compile_opts, .fullgraph = true));
    else
        ts_compiled_free(recording);
}
static void add_1_recorded(void) { ts_compiled_call(recording, &a, 1, NULL, 0); }

/* The training step of a GPT with small tensors: forward, backward, clipping, AdamW. */
enum { PLANNED = 500 /* about the number of calls that its plan has */, BLOCKS = 24 };
static void make_gpt(bool on)
{
    static const int64_t dims[] = {1, 8, 16, 2, BLOCKS, 32, 0};
    if (on)
        gpt = compare_gpt_new(dims, 0, NULL, NULL, NULL);
    else
        compare_gpt_free(gpt);
}
static ts_status gpt_step(void *ctx, ts_tensor *const *inputs, int n, ts_tensor **outputs, int m)
{
    (void)ctx, (void)inputs, (void)n, (void)outputs, (void)m;
    return compare_gpt_step(gpt);
}
/** Compiles the step and calls it once, which makes its plan. */
static ts_compile_stats plan(void)
{
    ts_compiled *step = ts_compile(gpt_step, NULL, NULL);
    ts_compiled_call(step, NULL, 0, NULL, 0);
    ts_compile_stats stats = ts_compiled_get_stats(step);
    ts_compiled_free(step);
    return stats;
}
static void step_planned(void) { plan(); }

typedef struct bench_case {
    const char *name;
    void (*run)(void);
    void (*mode)(bool on); /* switched on around the case */
    int calls;             /* of the op in one run */
} bench_case;

static const bench_case cases[] = {
    {"noop_call", noop_call, NULL, 1},
    {"noop_call_layers_1", noop_call, one_layer, 1},
    {"noop_call_layers_4", noop_call, four_layers, 1},
    {"add_1", add_1, NULL, 1},
    {"add_1_out", add_1_out, NULL, 1},
    {"add_1_inplace", add_1_inplace, NULL, 1},
    {"add_1_grad", add_1_grad, NULL, 1},
    {"add_1_fwd_bwd", add_1_fwd_bwd, NULL, 1},
    {"empty_1", empty_1, NULL, 1},
    {"view_1", view_1, NULL, 1},
    {"mm_8", mm_8, NULL, 1},
    {"mlp_step", mlp_step, NULL, 1},
    {"forward_20", forward_20, NULL, 1},
    {"add_1_timed", add_1, with_timers, 1},
    {"add_1_profiled", add_1, with_profile, 1},
    {"add_1_kept", add_1, with_trace, 1},
    {"add_1_traced", add_1_traced, NULL, TRACED},
    {"add_1_replayed", add_1_replayed, tracing, TRACED},
    {"add_1_meta", add_1_meta, NULL, 1},
    {"add_1_recorded", add_1_recorded, compiling, TRACED},
    {"step_planned", step_planned, make_gpt, PLANNED},
};

/* ------------------------------------------------------------------------------ measuring ---- */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/** Nanoseconds per call: the fastest of 2,000 batches of about 20 µs each; of fewer batches if a
 *  run takes longer than a millisecond, but at least 20. */
static double measure(const bench_case *c, double *mallocs_per_call)
{
    for (int i = 0; i < 2000; i += c->calls)
        c->run();
    double t0 = now();
    for (int i = 0; i < 200; i += c->calls)
        c->run();
    int turns = (200 + c->calls - 1) / c->calls;
    double each = (now() - t0) / turns, best = 1e18;
    int batch = (int)(20000.0 / each) + 1, batches = each > 1e6 ? (int)(2e9 / each) + 20 : 2000;
    uint64_t before = atomic_load(&mallocs);
    for (int k = 0; k < batches; k++) {
        t0 = now();
        for (int i = 0; i < batch; i++)
            c->run();
        double t = (now() - t0) / batch;
        best = t < best ? t : best;
    }
    *mallocs_per_call =
        (double)(atomic_load(&mallocs) - before) / ((double)batch * batches * c->calls);
    return best / c->calls;
}

/** Prints the calls of a training step's plan, and the least time in which the plan is made. */
static void report_plan(void)
{
    double best = 1e18;
    ts_compile_stats stats = {0};
    make_gpt(true);
    for (int i = 0; i < 50; i++) {
        stats = plan();
        best = stats.compile_ms < best ? stats.compile_ms : best;
    }
    make_gpt(false);
    printf("plan_calls\t%lld\tcalls\nplan\t%.3f\tms\n", (long long)stats.nodes, best);
}

static double report(const bench_case *c)
{
    double per_call;
    if (c->mode)
        c->mode(true);
    double ns = measure(c, &per_call);
    if (c->mode)
        c->mode(false);
    printf("%s\t%.2f\tns\n%s.mallocs\t%.6g\tmallocs/call\n", c->name, ns, c->name, per_call);
    fflush(stdout);
    return ns;
}

/** Nanoseconds of noop_call in the program SELF_notimers, which is built without timers; negative
 *  if it cannot be run. */
static double without_timers(const char *self)
{
    char command[4096];
    snprintf(command, sizeof command, "%s_notimers --only noop_call 2>/dev/null", self);
    FILE *p = popen(command, "r");
    double ns = -1;
    if (p) {
        if (fscanf(p, "noop_call %lf", &ns) != 1)
            ns = -1;
        pclose(p);
    }
    return ns;
}

int main(int argc, char **argv)
{
    const char *only = NULL;
    int64_t iters = 0;
    bool list = false;
    int status;
    const ts_argument arguments[] = {
        {"--list", "print the names of the cases", .flag = &list},
        {"--only", "run only this case", .text = &only, .value = "CASE"},
        {"--iters", "make N calls of the case without timing; 0: time the calls",
         .number = &iters, .most = INT64_MAX},
    };
    if (!ts_program_begin(argc, argv, "Times calls of the dispatcher.", arguments, 3, &status))
        return status;
    for (size_t k = 0; list && k < sizeof cases / sizeof *cases; k++)
        puts(cases[k].name);
    if (list)
        return ts_program_end(0);
    ts_set_num_threads(1);
    TS_SCOPE;
    make();
    double found = -1, noop = 0, add = 0, layer_1 = 0, layer_4 = 0;
    double add_timed = 0, add_profiled = 0, add_kept = 0, add_meta = 0, add_recorded = 0;
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const bench_case *c = &cases[k];
        if (only && strcmp(c->name, only) != 0)
            continue;
        found = 0;
        if (iters) {
            if (c->mode)
                c->mode(true);
            for (int64_t i = 0; i < iters; i += c->calls)
                c->run();
            if (ts_error_code() != TS_OK)
                ts_error_print();
            return ts_error_code() != TS_OK;
        }
        double ns = report(c);
        if (c->run == noop_call && !c->mode) noop = ns;
        if (c->mode == one_layer) layer_1 = ns;
        if (c->mode == four_layers) layer_4 = ns;
        if (c->run == add_1 && !c->mode) add = ns;
        if (c->mode == with_timers) add_timed = ns;
        if (c->mode == with_profile) add_profiled = ns;
        if (c->mode == with_trace) add_kept = ns;
        if (c->run == add_1_meta) add_meta = ns;
        if (c->run == add_1_recorded) add_recorded = ns;
        if (ts_error_code() != TS_OK) {
            ts_error_print();
            return 1;
        }
    }
    if (found < 0) {
        char shown[80];
        fprintf(stderr, "bench_dispatch: no case '%s'; see --list\n",
                ts_escape_text(shown, sizeof shown, only));
        return 2;
    }
    if (only)
        return ts_program_end(0);
    printf("layer_added\t%.2f\tns\n", (layer_4 - layer_1) / 3);
    printf("timers_on_per_op\t%.2f\tns\n", add_timed - add);
    printf("profile_on_per_op\t%.2f\tns\n", add_profiled - add);
    printf("trace_on_per_op\t%.2f\tns\n", add_kept - add);
    printf("recording_per_op\t%.2f\tns\n", add_recorded - add_meta);
    report_plan();
    double bare = 1e18;
    for (int turn = 0; turn < 3; turn++) { /* alternates, so other load affects both programs */
        double ns, mallocs_per_call;
        if ((ns = without_timers(argv[0])) < 0)
            return 0;
        bare = ns < bare ? ns : bare;
        ns = measure(&cases[0], &mallocs_per_call);
        noop = ns < noop ? ns : noop;
    }
    printf("timers_off\t%.2f\tns\n", noop - bare);
    return ts_program_end(0);
}
