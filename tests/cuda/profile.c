/** @file profile.c  Profiles of a GPU: workloads with a known bottleneck get the right verdict,
 * work in graphs is assigned to its ops, calls are as fast after a profile as before, and events
 * time calls without CUPTI. */
// SPDX-License-Identifier: MIT
#include "tests/cuda/cuda.h"

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

TS_TEST(kernels_of_a_graph_belong_to_their_ops)
{
    GPU(device);
    TS_SCOPE;
    ts_tensor *x = ts_fill_(ts_empty_on(TS_SIZES(2048, 2048), TS_F32, device), 0.001), *y;
    ts_compiled *c = ts_compile(chain, NULL, TS_OPTS(ts_compile_opts, .graph = true));
    double per_call[2];
    for (int graph = 0; graph < 2; graph++) {
        for (int i = 0; i < 6; i++) {
            TS_SCOPE;
            OK(graph ? ts_compiled_call(c, &x, 1, &y, 1) : chain(NULL, &x, 1, &y, 1));
        }
        OK(ts_synchronize(device));
        OK(ts_prof_start(NULL));
        for (int i = 0; i < 20; i++) {
            TS_SCOPE;
            OK(graph ? ts_compiled_call(c, &x, 1, &y, 1) : chain(NULL, &x, 1, &y, 1));
        }
        OK(ts_prof_stop());
        ts_profile *p = ts_profile_take();
        OK(p);
        char *text = text_of(p, TS_PROFILE_TABLES);
        double kernels = column(p, "mm", "kernels");
        ck_assert_msg(kernels >= 40, "%.0f kernels of mm:\n%s", kernels, text);
        ck_assert_msg(column(p, "(unattributed)", "device_ns") < 1000, "%s", text);
        per_call[graph] = column(p, "mm", "device_ns") / 40;
        free(text);
        ts_profile_free(p);
    }
    ck_assert_msg(per_call[1] > 0.9 * per_call[0] && per_call[1] < 1.1 * per_call[0],
                  "a product takes %.0f ns, in a graph %.0f ns", per_call[0], per_call[1]);
    ts_compiled_free(c);
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
    for (int i = 0; i < 2; i++) { /* CUPTI works a second time, too */
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
