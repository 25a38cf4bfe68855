/** @file call.h  Calls op samples (conformance/sample.h), with or without backward, and compares
 * outputs and gradients of several calls. */
// SPDX-License-Identifier: MIT
#ifndef TESTS_SAMPLES_CALL_H
#define TESTS_SAMPLES_CALL_H

#include "conformance/drive.h"
#include "tests/harness.h"

#include <stdio.h>

static int complaints;     /* failures printed so far */
static bool counts = true; /* false while samples that were already counted run again */
static inline void passed(void *ctx, const ts_case *c)
{
    (void)ctx, (void)c;
    ts_tally(counts, 0, 0);
}
static inline void failed(void *ctx, const ts_case *c, const char *text)
{
    (void)ctx, (void)c;
    ts_tally(0, 1, 0);
    if (++complaints <= 20)
        printf("%s\n", text);
    fflush(stdout);
}

/** A case and the arguments of its call. */
typedef struct call {
    const ts_case *c;
    const ts_made *m;
} call;

/** A ts_trace_fn that calls the op; ctx is a call. Outputs: the results, then written arguments. */
static inline ts_status run(void *ctx, ts_tensor *const *inputs, int n, ts_tensor **outputs,
                            int noutputs)
{
    const call *x = ctx;
    ts_value rets[TS_MAX_RETS] = {ts_value_none(), ts_value_none(), ts_value_none(),
                                  ts_value_none()};
    (void)inputs, (void)n, (void)noutputs;
    TS_TRY(sample_call(x->c, x->m, rets));
    int k = 0;
    for (int i = 0; i < x->c->info->nrets; i++)
        outputs[k++] = rets[i].tag == TS_TAG_TENSOR ? rets[i].t : TS_NONE;
    for (int i = 0; i < x->m->ntensors; i++)
        if (x->m->tensors[i].written)
            outputs[k++] = x->m->tensors[i].t;
    return TS_OK;
}

/** run(), then a backward from each differentiable result with the result itself as gradient. */
static inline ts_status run_backward(void *ctx, ts_tensor *const *inputs, int n,
                                     ts_tensor **outputs, int noutputs)
{
    const call *x = ctx;
    TS_TRY(run(ctx, inputs, n, outputs, noutputs));
    for (int i = 0; i < x->c->info->nrets; i++) {
        ts_tensor *y = outputs[i];
        if (!ts_requires_grad(y) || (x->c->s->grad_rets && !(x->c->s->grad_rets >> i & 1)))
            continue;
        ts_backward_opts opts = {.size = sizeof opts, .retain_graph = true};
        TS_TRY(ts_backward_ex(y, ts_detach(y), &opts));
    }
    return TS_OK;
}

/** Up to SETS_MOST sets of arguments for one sample, with equal bits, and the outputs of their
 *  calls. */
enum { SETS_MOST = 3 };
typedef struct sets {
    int count, n, noutputs; /* number of sets built; tensors per set; outputs per set */
    ts_made m[SETS_MOST];
    call call[SETS_MOST];
    ts_tensor *inputs[SETS_MOST][MADE_MOST], *outputs[SETS_MOST][TS_MAX_RETS + MADE_MOST];
} sets;

/** Builds `count` sets for calls of fn. False if fewer could be built. Free them by sets_free(). */
static inline bool sets_build(sets *s, const ts_case *c, ts_trace_fn fn, int count)
{
    s->noutputs = c->info->nrets;
    s->n = s->count = 0;
    for (ts_made *m = s->m; s->count < count && made_build(m, c, NULL); m++, s->count++) {
        s->call[s->count] = (call){c, m};
        s->n = m->ntensors;
        for (int i = 0; i < s->n; i++) {
            ts_made_tensor *x = &m->tensors[i];
            s->inputs[s->count][i] = x->t;
            s->noutputs += x->written && s->count == 0;
            if (fn == run_backward && x->differentiable)
                ts_set_requires_grad(x->t, true);
        }
    }
    return s->count == count;
}
static inline void sets_free(sets *s)
{
    while (s->count)
        made_free(&s->m[--s->count]);
}
static inline ts_status sets_run(sets *s, ts_trace_fn fn, int set)
{
    return fn(&s->call[set], s->inputs[set], s->n, s->outputs[set], s->noutputs);
}

static inline bool same(const ts_tensor *a, const ts_tensor *b)
{
    return (a == TS_NONE && b == TS_NONE) || (a != TS_NONE && b != TS_NONE && tensor_equal(a, b));
}
/** True if sets a and b have equal outputs, unless these are undefined, and equal gradients;
 *  otherwise reports a failed sample. */
static inline bool sets_equal(const sets *s, int a, int b)
{
    const ts_case *c = s->call->c;
    for (int i = 0; i < s->noutputs && !c->s->undefined; i++)
        if (!same(s->outputs[a][i], s->outputs[b][i])) {
            sample_failed(c, "output %d differs", i);
            return false;
        }
    for (int i = 0; i < s->n; i++)
        if (!same(ts_grad(s->inputs[a][i]), ts_grad(s->inputs[b][i]))) {
            sample_failed(c, "the gradient of tensor %d differs", i);
            return false;
        }
    return true;
}

/** Calls check() for each sample of a family: with run in each of its dtypes and, unless the sample
 * excludes layouts, in mixed layouts; with run_backward if the sample has gradients. */
static inline void each_sample(const ts_sample_family *family, const char *form,
                               void (*check)(const ts_case *c, ts_trace_fn fn))
{
    sample_run = (ts_sample_run){.passed = passed, .failed = failed};
    for (int i = 0; i < family->count; i++) {
        ts_case c;
        if (!sample_case(&family->samples[i], &c))
            continue;
        uint16_t dtypes = sample_dtypes(c.s);
        c.sweep = 17 <= (c.s->most ? c.s->most : 17) ? 17 : 3;
        c.form = form;
        for (int dtype = 0; dtype < TS_DTYPE_COUNT; dtype++) {
            c.dtype = (ts_dtype)dtype;
            if (dtypes >> dtype & 1)
                check(&c, run);
        }
        c.dtype = dtypes & TS_DT(TS_F32) ? TS_F32 : (ts_dtype)__builtin_ctz(dtypes);
        if (!c.s->no_layouts) {
            c.layout = LAYOUT_MIXED;
            check(&c, run);
            c.layout = LAYOUT_CONTIGUOUS;
        }
        c.sweep = 3;
        if (c.s->grad && sample_is_differentiable(c.info) && ts_dtype_is_float(c.dtype))
            check(&c, run_backward);
    }
}

#endif
