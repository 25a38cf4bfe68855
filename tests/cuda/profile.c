/** @file profile.c  Profiles of a GPU: workloads with a known bottleneck get the right verdict,
 * work in graphs is assigned to its ops, kernels of known length have their time, calls are as fast
 * after a profile as before, and events time calls without CUPTI. */
// SPDX-License-Identifier: MIT
#include "tests/cuda/driver.h"

#include <math.h>
#include <time.h>
#include <unistd.h>

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static char *text_of(const ts_profile *p, ts_profile_format format)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    OK(ts_profile_write(p, out, format));
    fclose(out);
    return text;
}

static ts_profile *profiled(ts_device device, void (*body)(void))
{
    body(); /* loads kernels */
    OK(ts_synchronize(device));
    OK(ts_prof_start(NULL));
    body();
    OK(ts_prof_stop());
    ts_profile *p = ts_profile_take();
    OK(p);
    return p;
}

/** Sum of a column of a profile's CSV over the rows of an op; -1: there is no such column. */
static double column(const ts_profile *p, const char *op, const char *name)
{
    char *text = text_of(p, TS_PROFILE_CSV), *line = text;
    int wanted = -1, at = 0;
    double sum = 0;
    for (char *c = line; *c && *c != '\n'; at++) {
        size_t n = strcspn(c, ",\n");
        wanted = strlen(name) == n && strncmp(c, name, n) == 0 ? at : wanted;
        c += n + (c[n] == ',');
    }
    while ((line = strchr(line, '\n')) && *++line && wanted >= 0) {
        size_t n = strcspn(line, ",");
        bool quoted = false;
        if (strlen(op) != n || strncmp(line, op, n) != 0)
            continue;
        at = 0;
        for (char *c = line; *c && *c != '\n' && at < wanted; c++) {
            quoted ^= *c == '"';
            at += *c == ',' && !quoted;
            if (at == wanted)
                sum += atof(c + 1);
        }
    }
    free(text);
    return wanted < 0 ? -1 : sum;
}

/* ------------------------------------------------------------------------------ regimes ---- */

static ts_tensor *a, *b, *out;

static void call_tiny(void)
{
    for (int i = 0; i < 2000; i++)
        ts_add_out(out, a, b);
}
static void copy_large(void)
{
    for (int i = 0; i < 20; i++)
        ts_copy_(out, a);
}
static void multiply(void)
{
    for (int i = 0; i < 10; i++)
        ts_mm_out(out, a, b);
}
static void sleep_between(void)
{
    for (int i = 0; i < 10; i++) {
        usleep(3000);
        ts_copy_(out, a);
    }
}
static void multiply_one_row(void) /* batch 1 reads weights once */
{
    for (int i = 0; i < 20; i++)
        ts_mm_out(out, a, b);
}

static void make(ts_device device, int64_t m, int64_t k, int64_t n, ts_dtype dtype)
{
    a = ts_fill_(ts_empty_on(TS_SIZES(m, k), dtype, device), 0.37);
    b = ts_fill_(ts_empty_on(TS_SIZES(k, n), dtype, device), 0.71);
    out = ts_fill_(ts_empty_on(TS_SIZES(m, n), dtype, device), 0);
    OK(out);
}

static void has_verdict(ts_device device, const char *verdict, void (*body)(void))
{
    ts_profile *p = profiled(device, body);
    ts_profile_shares s = {.size = sizeof s};
    OK(ts_profile_get_shares(p, &s));
    char *text = text_of(p, TS_PROFILE_TABLES);
    ck_assert_msg(strcmp(s.verdict, verdict) == 0, "expected %s, got %s:\n%s", verdict, s.verdict,
                  text);
    free(text);
    ts_profile_free(p);
}

TS_TEST(planted_regimes_of_a_gpu_are_found)
{
    GPU(device);
    make(device, 1, 1, 1, TS_F32);
    has_verdict(device, "overhead-bound", call_tiny);
    make(device, 8192, 8192, 8192, TS_F32);
    has_verdict(device, "memory-bound", copy_large);
    make(device, 1024, 1024, 1024, TS_F32);
    has_verdict(device, "overhead-bound", sleep_between);
    make(device, 8192, 8192, 8192, TS_BF16);
    has_verdict(device, "compute-bound", multiply);
    make(device, 1, 16384, 16384, TS_BF16);
    has_verdict(device, "memory-bound", multiply_one_row);
}

/** The GPU's idle time while the host sleeps is assigned to the scope of the sleep. */
TS_TEST(idle_time_of_a_gpu_belongs_to_the_scope_that_sleeps)
{
    GPU(device);
    make(device, 1024, 1024, 1024, TS_F32);
    copy_large();
    OK(ts_synchronize(device));
    OK(ts_prof_start(NULL));
    copy_large();
    for (int i = 0; i < 5; i++) {
        {
            TS_PROF_SCOPE("nap");
            usleep(2000);
        }
        copy_large();
    }
    OK(ts_prof_stop());
    ts_profile *p = ts_profile_take();
    OK(p);
    char *text = text_of(p, TS_PROFILE_JSON);
    const char *nap = strstr(text, "\"name\": \"nap\", \"ns\": ");
    ck_assert_msg(nap, "%s", text);
    double ns = atof(nap + strlen("\"name\": \"nap\", \"ns\": "));
    ck_assert_msg(ns > 0.9 * 5 * 2e6 && ns < 1.3 * 5 * 2e6, "%f", ns);
    free(text);
    ts_profile_free(p);
}

/* ------------------------------------------------------------------------------- graphs ---- */

static ts_status chain(void *ctx, ts_tensor *const *in, int n, ts_tensor **result, int m)
{
    (void)ctx, (void)n, (void)m;
    TS_SCOPE;
    ts_tensor *x = ts_mm(in[0], in[0]);
    x = ts_softmax(ts_relu(x), 1);
    result[0] = ts_keep(ts_mm(x, in[0]));
    return TS_STATUS_OF(result[0]);
}

/** In a replayed graph, the kernels of each op belong to it and take as long as in an eager
 *  call. */
TS_TEST(kernels_of_a_graph_belong_to_their_ops)
{
    enum { ROUNDS = 4, CALLS = 20, OPS = 3 };
    static const char *const ops[OPS] = {"mm", "relu", "softmax"};
    GPU(device);
    TS_SCOPE;
    ts_tensor *x = ts_fill_(ts_empty_on(TS_SIZES(4096, 4096), TS_F32, device), 0.001), *y;
    ts_compiled *c =
        ts_compile(chain, NULL, TS_OPTS(ts_compile_opts, .graph = true, .max_groups = -1));
    double shortest[2][OPS];
    for (int i = 0; i < 2 * ROUNDS; i++) { /* rounds alternate, because the GPU's clock varies */
        int graph = i % 2;
        for (int pass = 0; pass < 2; pass++) {
            if (pass)
                OK(ts_prof_start(NULL));
            for (int k = 0; k < CALLS; k++) {
                TS_SCOPE;
                OK(graph ? ts_compiled_call(c, &x, 1, &y, 1) : chain(NULL, &x, 1, &y, 1));
            }
            OK(ts_synchronize(device));
        }
        OK(ts_prof_stop());
        ts_profile *p = ts_profile_take();
        OK(p);
        char *text = text_of(p, TS_PROFILE_TABLES);
        double kernels = column(p, "mm", "kernels");
        ck_assert_msg(kernels >= 2 * CALLS, "%.0f kernels of mm:\n%s", kernels, text);
        ck_assert_msg(column(p, "(unattributed)", "device_ns") < 1000, "%s", text);
        for (int op = 0; op < OPS; op++) {
            double ns = column(p, ops[op], "device_ns") / CALLS;
            if (i < 2 || ns < shortest[graph][op])
                shortest[graph][op] = ns;
        }
        free(text);
        ts_profile_free(p);
    }
    for (int op = 0; op < OPS; op++)
        ck_assert_msg(fabs(shortest[1][op] / shortest[0][op] - 1) < 0.05,
                      "%s takes %.0f ns, in a graph %.0f ns", ops[op], shortest[0][op],
                      shortest[1][op]);
    ts_compiled_free(c);
}

/* --------------------------------------------------------------------------- known times ---- */

/* A kernel of one thread that waits for `ns` ns and adds the time that passed to *sum. */
static const char spin_ptx[] =
    ".version 7.0\n.target sm_80\n.address_size 64\n"
    ".visible .entry spin(.param .u64 sum, .param .u64 ns)\n{\n"
    "    .reg .b64 %at, %ns, %start, %now, %passed;\n    .reg .pred %p;\n"
    "    mov.u64 %start, %globaltimer;\n"
    "    ld.param.u64 %at, [sum];\n    ld.param.u64 %ns, [ns];\n"
    "again:\n    mov.u64 %now, %globaltimer;\n    sub.u64 %passed, %now, %start;\n"
    "    setp.lt.u64 %p, %passed, %ns;\n    @%p bra again;\n"
    "    red.global.add.u64 [%at], %passed;\n    ret;\n}\n";

static int64_t spin_ns;

static ts_status spin(ts_frame *f)
{
    void *sum = ts_data_mut(f->args[0].t);
    launch_ptx(spin_ptx, "spin", ts_kernel_stream(f), (void *[]){&sum, &spin_ns});
    return ts_kernel_give(f, 0, f->args[0].t);
}

/** Profiles calls of `test.spin`; returns the GPU time of a call in the profile. *known: the time
 *  that a call's loop measured. */
static double time_spin(ts_device device, ts_tensor *sum, double *known)
{
    enum { CALLS = 20 };
    int64_t passed;
    ts_value arg = ts_value_tensor(sum);
    OK(ts_fill_(sum, 0));
    OK(ts_synchronize(device));
    OK(ts_prof_start(NULL));
    for (int i = 0; i < CALLS; i++) {
        ts_value ret = ts_value_none();
        OK(ts_call_boxed(ts_op_by_name("test.spin"), &arg, 1, &ret, 1));
        ts_release(ret.t);
    }
    OK(ts_prof_stop());
    ts_profile *p = ts_profile_take();
    OK(p);
    OK(ts_copy_to(sum, &passed, sizeof passed));
    *known = (double)passed / CALLS;
    double ns = column(p, "test.spin", "device_ns") / CALLS;
    ck_assert_double_eq(column(p, "test.spin", "kernels"), CALLS);
    ts_profile_free(p);
    return ns;
}

/** A kernel that waits for 10 us to 10 ms has this time in the profile, within 2 % and 1 us. A
 *  kernel that does not wait measures the time outside of the loop. */
TS_TEST(a_kernel_of_known_duration_has_this_time_in_the_profile)
{
    GPU(device);
    ts_tensor *sum = ts_empty_on(TS_SIZES(1), TS_I64, device);
    OK(ts_register_op_ex("test.spin(Tensor a) -> Tensor", NULL, NULL));
    OK(ts_register_kernel_ex("test.spin", device.backend, spin, NULL, NULL));
    double known, rest = time_spin(device, sum, &known);
    rest -= known;
    ck_assert_msg(rest < 5000, "a kernel that does not wait takes %.0f ns", rest);
    for (spin_ns = 10000; spin_ns <= 10000000; spin_ns *= 10) {
        double ns = time_spin(device, sum, &known);
        ck_assert_double_ge(known, (double)spin_ns);
        ck_assert_double_le(known, 1.02 * (double)spin_ns + 1000);
        ck_assert_msg(fabs(ns - rest - known) <= 0.02 * known + 1000,
                      "a kernel of %.0f ns and %.0f ns outside of its loop has %.0f ns", known,
                      rest, ns);
    }
}

/* -------------------------------------------------------------------------------- costs ---- */

static double time_tiny(ts_device device)
{
    double best = 1e9;
    for (int i = 0; i < 12; i++) {
        OK(ts_synchronize(device));
        double begin = seconds();
        call_tiny();
        double took = seconds() - begin;
        best = took < best ? took : best;
    }
    return best;
}

TS_TEST(calls_are_as_fast_after_a_profile_as_before)
{
    GPU(device);
    make(device, 1, 1, 1, TS_F32);
    double before = time_tiny(device), after = 1e9;
    for (int i = 0; i < 2; i++) { /* a second profile also has times from CUPTI */
        ts_profile *p = profiled(device, call_tiny);
        ck_assert_double_ge(column(p, "add", "kernels"), 2000);
        ts_profile_free(p);
        double took = time_tiny(device);
        after = took < after ? took : after;
    }
    ck_assert_msg(after < 1.05 * before, "%.3f us before, %.3f us after", before * 500,
                  after * 500);
}

TS_TEST(without_cupti_events_time_the_calls)
{
    setenv("TS_CUDA_CUPTI", "0", 1);
    GPU(device);
    make(device, 4096, 4096, 4096, TS_F32);
    ts_profile *p = profiled(device, copy_large);
    char *text = text_of(p, TS_PROFILE_TABLES);
    ck_assert_msg(strstr(text, "events, gaps included"), "%s", text);
    double ns = column(p, "copy", "device_ns") / 20, least = 2 * 64e6 * 1.048576 / 5000;
    ck_assert_msg(ns > least && ns < 4 * least, "%f ns a copy:\n%s", ns, text);
    free(text);
    ts_profile_free(p);
}
