/**
 * @file samples.c  Each row of the table of op samples is recorded and replayed to equal bits:
 * results, written arguments, and gradients through a backward. One case per family.
 */
// SPDX-License-Identifier: MIT
#include "conformance/drive.h"
#include "tests/samples/call.h"

/** Recorded on one set of equal arguments, replayed on a second,
 * compared with a call on a third. */
static void replay_equals_call(const ts_case *c, ts_trace_fn fn)
{
    TS_SCOPE;
    enum { RECORDED, REPLAYED, CALLED, SETS };
    ts_made m[SETS];
    ts_tensor *inputs[SETS][MADE_MOST], *outputs[SETS][TS_MAX_RETS + MADE_MOST];
    ts_graph *graph = NULL;
    int built = 0, noutputs = c->info->nrets, n = 0;
    while (built < SETS && made_build(&m[built], c, NULL)) {
        n = m[built].ntensors;
        for (int i = 0; i < n; i++) {
            ts_made_tensor *x = &m[built].tensors[i];
            inputs[built][i] = x->t;
            noutputs += x->written && built == 0;
            if (fn == run_backward && x->differentiable)
                ts_set_requires_grad(x->t, true);
        }
        built++;
    }
    if (built < SETS)
        goto done;
    ts_rng_set_state((ts_rng_state){1234, 0});
    call recorded = {c, &m[RECORDED]}, called = {c, &m[CALLED]};
    if (ts_trace(fn, &recorded, inputs[RECORDED], n, outputs[RECORDED], noutputs, &graph) !=
        TS_OK) {
        sample_failed(c, "recording: %s", ts_error_message());
        goto done;
    }
    ts_rng_state after = ts_rng_get_state();
    ts_graph_info info = ts_graph_get_info(graph);
    bool good = false;
    ts_rng_set_state((ts_rng_state){1234, 0});
    if (!info.complete || info.captures || info.calls < 1)
        sample_failed(c, "the graph is %s, with %d captured tensors and %d calls",
                      info.complete ? "complete" : info.reason, (int)info.captures,
                      (int)info.calls);
    else if (ts_replay(graph, inputs[REPLAYED], n, outputs[REPLAYED], noutputs) != TS_OK)
        sample_failed(c, "replaying: %s", ts_error_message());
    else if (ts_rng_get_state().offset != after.offset)
        sample_failed(c, "the replay drew other counters");
    else if (fn(&called, inputs[CALLED], n, outputs[CALLED], noutputs) != TS_OK)
        sample_failed(c, "calling: %s", ts_error_message());
    else
        good = true;
    for (int i = 0; good && i < noutputs; i++)
        if (!c->s->undefined && (!same(outputs[REPLAYED][i], outputs[CALLED][i]) ||
                                 !same(outputs[RECORDED][i], outputs[CALLED][i]))) {
            sample_failed(c, "output %d of the replay differs", i);
            good = false;
        }
    for (int i = 0; good && i < n; i++)
        if (!same(ts_grad(inputs[REPLAYED][i]), ts_grad(inputs[CALLED][i]))) {
            sample_failed(c, "the gradient of tensor %d differs", i);
            good = false;
        }
    if (good)
        sample_passed(c);
done:
    ts_graph_free(graph);
    while (built)
        made_free(&m[--built]);
}

static void drive_once(const ts_sample_family *family)
{
    for (int i = 0; i < family->count; i++) {
        ts_case c;
        if (!sample_case(&family->samples[i], &c))
            continue;
        uint16_t dtypes = sample_dtypes(c.s);
        c.sweep = 17 <= (c.s->most ? c.s->most : 17) ? 17 : 3;
        c.form = "traced";
        for (int dtype = 0; dtype < TS_DTYPE_COUNT; dtype++) {
            c.dtype = (ts_dtype)dtype;
            if (dtypes >> dtype & 1)
                replay_equals_call(&c, run);
        }
        c.dtype = dtypes & TS_DT(TS_F32) ? TS_F32 : (ts_dtype)__builtin_ctz(dtypes);
        if (!c.s->no_layouts) {
            c.layout = LAYOUT_MIXED;
            replay_equals_call(&c, run);
            c.layout = LAYOUT_CONTIGUOUS;
        }
        if (!c.s->grad || !sample_is_differentiable(c.info) || !ts_dtype_is_float(c.dtype))
            continue;
        c.sweep = 3;
        c.form = "traced with backward";
        replay_equals_call(&c, run_backward);
    }
}

/** A second time, for what is left behind: the first one fills free lists. */
static void drive(const ts_sample_family *family)
{
    sample_run = (ts_sample_run){.passed = passed, .failed = failed};
    drive_once(family);
    int64_t before = ts_memory_get_stats().in_use;
    drive_once(family);
    ck_assert_int_eq(ts_memory_get_stats().in_use, before);
}

#define TS_FAMILY(family) \
    TS_TEST(family##_samples_are_replayed_to_equal_bits) { drive(&ts_family_##family); }
#include "conformance/families.def"
