/**
 * @file samples.c  Each row of the table of op samples is recorded and replayed to equal bits:
 * results, written arguments, and gradients through a backward. One case per family.
 */
// SPDX-License-Identifier: MIT
#include "conformance/drive.h"
#include "tests/samples/call.h"

/** Records a call on one of three equal sets of arguments, replays it on the second, and compares
 *  it with a call on the third. */
static void replay_equals_call(const ts_case *c, ts_trace_fn fn)
{
    enum { RECORDED, REPLAYED, CALLED, SETS };
    static sets s;
    TS_SCOPE;
    ts_graph *graph = NULL;
    if (!sets_build(&s, c, fn, SETS))
        goto done;
    ts_rng_set_state((ts_rng_state){1234, 0});
    if (ts_trace(fn, &s.call[RECORDED], s.inputs[RECORDED], s.n, s.outputs[RECORDED], s.noutputs,
                 &graph) != TS_OK) {
        sample_failed(c, "recording: %s", ts_error_message());
        goto done;
    }
    ts_rng_state after = ts_rng_get_state();
    ts_graph_info info = ts_graph_get_info(graph);
    ts_rng_set_state((ts_rng_state){1234, 0});
    if (!info.complete || info.captures || info.calls < 1)
        sample_failed(c, "the graph is %s, with %d captured tensors and %d calls",
                      info.complete ? "complete" : info.reason, (int)info.captures,
                      (int)info.calls);
    else if (ts_replay(graph, s.inputs[REPLAYED], s.n, s.outputs[REPLAYED], s.noutputs) != TS_OK)
        sample_failed(c, "replaying: %s", ts_error_message());
    else if (ts_rng_get_state().offset != after.offset)
        sample_failed(c, "the replay drew other counters");
    else if (sets_run(&s, fn, CALLED) != TS_OK)
        sample_failed(c, "calling: %s", ts_error_message());
    else if (sets_equal(&s, REPLAYED, CALLED) && sets_equal(&s, RECORDED, CALLED))
        sample_passed(c);
done:
    ts_graph_free(graph);
    sets_free(&s);
}

/** Runs a second time to detect leaks: the first run fills free lists. */
static void drive(const ts_sample_family *family)
{
    each_sample(family, "traced", replay_equals_call);
    int64_t before = ts_memory_get_stats().in_use;
    counts = false;
    each_sample(family, "traced", replay_equals_call);
    counts = true;
    ck_assert_int_eq(ts_memory_get_stats().in_use, before);
}

#define TS_FAMILY(family) \
    TS_TEST(family##_samples_are_replayed_to_equal_bits) { drive(&ts_family_##family); }
#include "conformance/families.def"
