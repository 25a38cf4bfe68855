/** @file call.h  A row of the table of op samples, called and differentiated. */
// SPDX-License-Identifier: MIT
#ifndef TESTS_SAMPLES_CALL_H
#define TESTS_SAMPLES_CALL_H

#include "conformance/drive.h"
#include "tests/harness.h"

#include <stdio.h>

static int complaints;
static inline void passed(void *ctx, const ts_case *c)
{
    (void)ctx, (void)c;
    ts_tally(1, 0, 0);
}
static inline void failed(void *ctx, const ts_case *c, const char *text)
{
    (void)ctx, (void)c;
    ts_tally(0, 1, 0);
    if (++complaints <= 20)
        printf("%s\n", text);
    fflush(stdout);
}

/** What is called, and the arguments that it is called with. */
typedef struct call {
    const ts_case *c;
    const ts_made *m;
} call;

/** The op; outputs are its results, then the arguments that it writes. */
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

/** The op, then a backward from each result with the result itself as gradient. */
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

static inline bool same(const ts_tensor *a, const ts_tensor *b)
{
    return (a == TS_NONE && b == TS_NONE) || (a != TS_NONE && b != TS_NONE && tensor_equal(a, b));
}

#endif
