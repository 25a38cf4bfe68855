/**
 * @file arrays.c  Lessons about arrays: repeated operations, softmax, chains of small calls.
 */
// SPDX-License-Identifier: MIT
#include <string.h>

#include "study.h"

/* ------------------------------------------------------------------------------- repeat ---- */

typedef struct repeated {
    ts_tensor *x;
    bool cosine;
    int64_t times;
    ts_compiled *compiled;
} repeated;

static ts_status repeat(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)n, (void)m;
    const repeated *r = ctx;
    ts_tensor *y = in[0];
    for (int64_t i = 0; i < r->times; i++)
        TS_TRY(y = r->cosine ? ts_cos(y) : ts_mul_scalar(y, 1.0001));
    *out = y;
    return TS_OK;
}

static ts_status repeat_eagerly(void *ctx)
{
    repeated *r = ctx;
    ts_tensor *y = r->x, *last;
    for (int64_t i = 0; i < r->times; i++) { /* releases each result after its last use */
        last = y;
        TS_TRY(y = r->cosine ? ts_cos(y) : ts_mul_scalar(y, 1.0001));
        if (i)
            ts_drop(last);
    }
    return TS_OK;
}

static ts_status repeat_compiled(void *ctx)
{
    repeated *r = ctx;
    ts_tensor *y;
    return ts_compiled_call(r->compiled, &r->x, 1, &y, 1);
}

/** Applies an operation repeatedly to an array that is larger than the caches: in one eager call
 *  per operation (up to 64), and in one compiled function, whose groups of up to 64 operations load
 *  and store each element once. GB/s count one load and one store of the array. */
ts_status study_repeat(study *s)
{
    const int64_t n = s->gpu ? 64 << 20 : 32 << 20, most[] = {s->gpu ? 512 : 128, 8};
    repeated r = {.x = study_normal(s, TS_SIZES(n), TS_F32)};
    TS_TRY(r.x);
    TS_NO_GRAD;
    for (int cosine = 0; cosine < 2; cosine++)
        for (int64_t times = 1; times <= most[cosine]; times *= 2)
            for (int fused = 0; fused < 2; fused++) {
                double ns, bytes = 8 * (double)n;
                char line[48];
                r.cosine = cosine;
                r.times = times;
                if (!fused && times > 64)
                    continue;
                TS_TRY(r.compiled = ts_compile(repeat, &r, NULL));
                TS_TRY(study_time(s, fused ? repeat_compiled : repeat_eagerly, &r, &ns));
                ts_compiled_free(r.compiled);
                study_row(s, "%s\t%lld\t%s\t%.1f\t%.1f\t%.1f", cosine ? "cos" : "multiply",
                          (long long)times, fused ? "compiled" : "eager", ns / 1e3,
                          (double)(n * times) / ns, bytes / ns);
                snprintf(line, sizeof line, "%s, %s", cosine ? "cos" : "multiply",
                         fused ? "compiled" : "eager");
                TS_TRY(study_point(s, line, (double)times, ns / 1e3));
            }
    return TS_OK;
}

/* ------------------------------------------------------------------------------ softmax ---- */

static ts_status naive(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)ctx, (void)n, (void)m;
    ts_tensor *e = ts_exp(ts_sub(in[0], ts_amax_dim(in[0], 1, true)));
    *out = ts_div(e, ts_sum_dim(e, 1, true));
    return TS_STATUS_OF(*out);
}

typedef struct rows {
    ts_tensor *x;
    ts_compiled *compiled;
} rows;

static ts_status run_naive(void *ctx)
{
    ts_tensor *y;
    return naive(NULL, &((rows *)ctx)->x, 1, &y, 1);
}
static ts_status run_compiled(void *ctx)
{
    rows *r = ctx;
    ts_tensor *y;
    return ts_compiled_call(r->compiled, &r->x, 1, &y, 1);
}
static ts_status run_softmax(void *ctx) { return TS_STATUS_OF(ts_softmax(((rows *)ctx)->x, 1)); }

ts_status study_softmax(study *s)
{
    static const struct {
        const char *name;
        ts_status (*run)(void *ctx);
    } ways[] = {{"five calls", run_naive}, {"compiled", run_compiled}, {"softmax", run_softmax}};
    const int64_t count = 8192;
    TS_NO_GRAD;
    for (int64_t width = 128; width <= (s->gpu ? 32768 : 4096); width *= 4) {
        TS_SCOPE;
        rows r = {.x = study_normal(s, TS_SIZES(count, width), TS_F32)};
        TS_TRY(r.x);
        TS_TRY(r.compiled = ts_compile(naive, NULL, NULL));
        for (int i = 0; i < 3; i++) {
            double ns, bytes = 8 * (double)(count * width);
            TS_TRY(study_time(s, ways[i].run, &r, &ns));
            study_row(s, "%lld\t%lld\t%s\t%.1f\t%.1f", (long long)count, (long long)width,
                      ways[i].name, ns / 1e3, bytes / ns);
            TS_TRY(study_point(s, ways[i].name, (double)width, bytes / ns));
        }
        ts_compiled_free(r.compiled);
    }
    return TS_OK;
}

/* ------------------------------------------------------------------- launches, streams ---- */

enum { CHAIN = 64, STREAMS = 8 };

typedef struct chain {
    ts_device device;
    ts_tensor *x, *one, *many[STREAMS];
    ts_compiled *compiled;
    ts_stream *streams[STREAMS];
    int nstreams;
} chain;

static ts_status add_all(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)ctx, (void)n, (void)m;
    ts_tensor *y = in[0];
    for (int i = 0; i < CHAIN; i++)
        TS_TRY(y = ts_add(y, in[1]));
    *out = y;
    return TS_OK;
}

static ts_status run_chain(void *ctx)
{
    chain *c = ctx;
    ts_tensor *y, *in[] = {c->x, c->one};
    return c->compiled ? ts_compiled_call(c->compiled, in, 2, &y, 1)
                       : add_all(NULL, in, 2, &y, 1);
}

/** Times a chain of 64 additions in four modes: eager calls; a replayed plan without groups, which
 *  runs the calls one by one; the same plan as one graph (GPU only); one fused group. */
ts_status study_launch(study *s)
{
    static const struct {
        const char *name;
        bool compiled, graph, fused;
    } modes[] = {{"eager", false, false, false},
                 {"replayed", true, false, false},
                 {"graph", true, true, false},
                 {"fused", true, true, true}};
    TS_NO_GRAD;
    for (int64_t n = 1; n <= (s->gpu ? 16 << 20 : 1 << 20); n *= n < 1024 ? 1024 : 4)
        for (int i = 0; i < 4; i++) {
            TS_SCOPE;
            chain c = {.x = study_normal(s, TS_SIZES(n), TS_F32),
                       .one = study_normal(s, TS_SIZES(n), TS_F32)};
            double ns;
            TS_TRY(c.one);
            if (modes[i].graph && !modes[i].fused && !s->gpu)
                continue;
            if (modes[i].compiled)
                TS_TRY(c.compiled = ts_compile(
                           add_all, NULL,
                           TS_OPTS(ts_compile_opts, .graph = modes[i].graph && s->gpu,
                                   .replay = true, .max_groups = modes[i].fused ? 0 : -1)));
            ts_status status = study_time(s, run_chain, &c, &ns);
            ts_compiled_free(c.compiled);
            TS_TRY(status);
            study_row(s, "%lld\t%s\t%.3f", (long long)n, modes[i].name, ns / 1e3 / CHAIN);
            TS_TRY(study_point(s, modes[i].name, (double)n, ns / 1e3 / CHAIN));
        }
    return TS_OK;
}

/** Runs eight independent chains of eight additions. Chain i uses stream i modulo nstreams; with
 *  one stream, the default stream. */
static ts_status run_chains(void *ctx)
{
    chain *c = ctx;
    for (int i = 0; i < CHAIN; i++) {
        int of = i % STREAMS;
        TS_TRY(ts_stream_use(c->device, c->nstreams > 1 ? c->streams[of % c->nstreams] : NULL));
        TS_TRY(ts_add_(c->many[of], c->one));
    }
    return ts_stream_use(c->device, NULL);
}

/** The same additions on one stream, for a graph. `out` needs a tensor, so it returns c->one. */
static ts_status run_many(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)in, (void)n, (void)m;
    chain *c = ctx;
    for (int i = 0; i < CHAIN; i++)
        TS_TRY(ts_add_(c->many[i % STREAMS], c->one));
    *out = c->one;
    return TS_OK;
}
static ts_status run_graph(void *ctx)
{
    chain *c = ctx;
    ts_tensor *y;
    return ts_compiled_call(c->compiled, NULL, 0, &y, 1);
}

ts_status study_streams(study *s)
{
    TS_NO_GRAD;
    if (!s->gpu)
        return ts_error_set(TS_ERR_DEVICE, "study: the CPU has no streams; use --device cuda");
    for (int64_t n = 1 << 10; n <= 16 << 20; n *= 16) {
        TS_SCOPE;
        double ns;
        chain c = {.device = s->device, .one = study_normal(s, TS_SIZES(n), TS_F32)};
        for (int i = 0; i < STREAMS; i++) {
            TS_TRY(c.many[i] = study_normal(s, TS_SIZES(n), TS_F32));
            TS_TRY(ts_stream_new(s->device, &c.streams[i]));
        }
        for (c.nstreams = 1; c.nstreams <= STREAMS; c.nstreams *= 2) {
            TS_TRY(study_time(s, run_chains, &c, &ns));
            study_row(s, "%lld\t%d\teager\t%.3f", (long long)n, c.nstreams, ns / 1e3 / CHAIN);
        }
        TS_TRY(c.compiled = ts_step_graph(run_many, &c));
        ts_status status = study_time(s, run_graph, &c, &ns);
        ts_compiled_free(c.compiled);
        TS_TRY(status);
        study_row(s, "%lld\t1\tgraph\t%.3f", (long long)n, ns / 1e3 / CHAIN);
        for (int i = 0; i < STREAMS; i++)
            ts_stream_free(s->device, c.streams[i]);
    }
    return TS_OK;
}
