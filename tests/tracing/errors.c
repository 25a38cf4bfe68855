/** @file errors.c  Traces and replays with wrong arguments, writes without a call, no memory. */
// SPDX-License-Identifier: MIT
#include "core/testing.h"
#include "tests/blocks.h"
#include "tests/tracing/common.h"

static ts_status sum_of_two(TRACED) { return TS_STATUS_OF(out[0] = ts_add(in[0], in[1])); }

static ts_status traces(TRACED)
{
    ts_graph *inner = (ts_graph *)ctx;
    ts_status status = ts_trace(sum_of_two, NULL, in, n, out, m, &inner);
    ck_assert_ptr_null(inner);
    return status;
}

TS_TEST(a_trace_inside_a_trace_is_refused)
{
    TS_SCOPE;
    ts_tensor *in[2] = {numbers(1, TS_SIZES(3)), numbers(2, TS_SIZES(3))}, *out;
    ts_graph *graph;
    FAILS(TS_ERR_STATE, ts_trace(traces, NULL, in, 2, &out, 1, &graph));
    SAYS("got a trace inside a trace");
    ck_assert(!ts_graph_get_info(graph).complete);
    ts_graph_free(graph);
    OK(ts_trace(sum_of_two, NULL, in, 2, &out, 1, &graph)); /* the failed trace has ended */
    ts_graph_free(graph);
}

static ts_status tracing_kernel(ts_frame *f)
{
    ts_graph *graph;
    ts_tensor *in[2] = {f->args[0].t, f->args[1].t}, *out;
    return ts_trace(sum_of_two, NULL, in, 2, &out, 1, &graph);
}

static ts_status call_noop(TRACED) { return ts_noop(in[0], in[1], ts_scalar_int(1)); }

TS_TEST(a_trace_inside_a_kernel_is_refused)
{
    TS_SCOPE;
    ts_tensor *in[2] = {numbers(1, TS_SIZES(3)), numbers(2, TS_SIZES(3))};
    ts_key layer;
    OK(ts_register_layer("BELOW", "backends", &layer));
    OK(ts_register_kernel("noop", layer, tracing_kernel, NULL, NULL));
    OK(ts_layer_enable(layer, true));
    ts_graph *graph;
    FAILS(TS_ERR_STATE, ts_trace(call_noop, NULL, in, 2, NULL, 0, &graph));
    ts_graph_free(graph);
    OK(ts_layer_enable(layer, false));
    ts_mask_guard guard = ts_mask_push(0, TS_KEYSET(TS_KEY_TRACING));
    FAILS(TS_ERR_STATE, ts_trace(call_noop, NULL, in, 2, NULL, 0, &graph));
    SAYS("excludes the TRACING layer");
    ck_assert_ptr_null(graph);
    ts_mask_pop(guard);
}

TS_TEST(arguments_of_ts_trace_are_checked)
{
    TS_SCOPE;
    ts_tensor *in[2] = {numbers(1, TS_SIZES(3)), TS_NONE}, *out;
    ts_graph *graph = (ts_graph *)&out;
    FAILS(TS_ERR_NULL, ts_trace(NULL, NULL, in, 1, &out, 1, &graph));
    ck_assert_ptr_null(graph);
    FAILS(TS_ERR_NULL, ts_trace(sum_of_two, NULL, NULL, 2, &out, 1, &graph));
    /* TS_NONE is no input */
    FAILS(TS_ERR_NULL, ts_trace(sum_of_two, NULL, in, 2, &out, 1, &graph));
    FAILS(TS_ERR_NULL, ts_trace(sum_of_two, NULL, in, 1, NULL, 1, &graph));
    FAILS(TS_ERR_NULL, ts_trace(sum_of_two, NULL, in, 1, &out, 1, NULL));
    FAILS(TS_ERR_VALUE, ts_trace(sum_of_two, NULL, in, -1, &out, 1, &graph));
    in[1] = in[0];
    ts_tensor *two[2];
    FAILS(TS_ERR_NULL, ts_trace(sum_of_two, NULL, in, 2, two, 2, &graph)); /* sets only out[0] */
    SAYS("left output 1 NULL");
    ck_assert(!ts_graph_get_info(graph).complete);
    ts_graph_free(graph);
    ts_graph_free(NULL);
    ck_assert_int_eq(ts_graph_get_info(NULL).calls, 0);
}

TS_TEST(inputs_of_a_replay_must_have_recorded_sizes_dtypes_and_devices)
{
    TS_SCOPE;
    ts_tensor *in[2] = {numbers(1, TS_SIZES(2, 3)), numbers(2, TS_SIZES(2, 3))}, *out,
              *bad[2] = {in[0], NULL};
    ts_graph *graph;
    OK(ts_trace(sum_of_two, NULL, in, 2, &out, 1, &graph));
    FAILS(TS_ERR_VALUE, ts_replay(graph, in, 1, &out, 1));
    SAYS("expected 2 inputs and 1 outputs, got 1 and 1");
    FAILS(TS_ERR_VALUE, ts_replay(graph, in, 2, &out, 0));
    FAILS(TS_ERR_NULL, ts_replay(graph, bad, 2, &out, 1));
    FAILS(TS_ERR_NULL, ts_replay(NULL, in, 2, &out, 1));
    FAILS(TS_ERR_NULL, ts_replay(graph, NULL, 2, &out, 1));
    bad[1] = numbers(2, TS_SIZES(3));
    /* sizes must equal the recorded ones, also if they would broadcast */
    FAILS(TS_ERR_SHAPE, ts_replay(graph, bad, 2, &out, 1));
    SAYS("input 1: expected (2, 3) f32 on cpu, got (3) f32 on cpu");
    bad[1] = ts_to(in[1], TS_F64);
    FAILS(TS_ERR_DTYPE, ts_replay(graph, bad, 2, &out, 1));
    bad[1] = ts_empty_on(TS_SIZES(2, 3), TS_F32, TS_DEVICE_META);
    FAILS(TS_ERR_DEVICE, ts_replay(graph, bad, 2, &out, 1));
    SAYS("on meta");
    FAILS(TS_ERR_REGISTRY, ts_graph_count(graph, "nothing") < 0 ? ts_error_code() : TS_OK);
    ts_graph_free(graph);
}

static ts_status add_in_place(TRACED) { return TS_STATUS_OF(ts_add_(in[0], in[1])); }

TS_TEST(inputs_that_are_written_must_share_memory_as_recorded)
{
    TS_SCOPE;
    ts_tensor *a = numbers(1, TS_SIZES(3)), *b = numbers(2, TS_SIZES(3)),
              *view = ts_view(a, TS_SIZES(3));
    ts_tensor *apart[2] = {a, b}, *one[2] = {a, a}, *shared[2] = {a, view};
    ts_graph *graph;
    OK(ts_trace(add_in_place, NULL, apart, 2, NULL, 0, &graph));
    FAILS(TS_ERR_VALUE, ts_replay(graph, one, 2, NULL, 0));
    SAYS("input 0, which is written, shares memory with input 1; in the trace it did not");
    FAILS(TS_ERR_VALUE, ts_replay(graph, shared, 2, NULL, 0));
    ts_graph_free(graph);
    OK(ts_trace(add_in_place, NULL, one, 2, NULL, 0, &graph));
    FAILS(TS_ERR_VALUE, ts_replay(graph, apart, 2, NULL, 0));
    SAYS("inputs 0 and 1: expected one tensor, as in the trace, got two");
    OK(ts_replay(graph, (ts_tensor *[]){b, b}, 2, NULL, 0));
    ts_graph_free(graph);
}

static ts_status writes_by_pointer(TRACED)
{
    ts_tensor *x = ts_zeros(TS_SIZES(1), TS_F32);
    TS_TRY(x);
    *(float *)ts_data_mut(x) = 4;
    return TS_STATUS_OF(out[0] = ts_add(x, in[0]));
}

TS_TEST(a_write_without_a_call_makes_the_graph_incomplete)
{
    TS_SCOPE;
    ts_tensor *x = ts_ones(TS_SIZES(1), TS_F32), *y;
    double value;
    ts_graph *graph;
    OK(ts_trace(writes_by_pointer, NULL, &x, 1, &y, 1, &graph)); /* the function itself succeeds */
    OK(ts_item(y, &value));
    ck_assert_double_eq(value, 5);
    FAILS(TS_ERR_STATE, ts_replay(graph, &x, 1, &y, 1));
    SAYS("ts_data_mut");
    ts_graph_free(graph);
}

static ts_status divides(TRACED) // fails at the replay: the index is an input
{
    TS_SCOPE;
    ts_tensor *noise = ts_dropout(in[0], 0.5, true);
    out[0] = ts_keep(ts_index_select(noise, 0, in[1]));
    return TS_STATUS_OF(out[0]);
}

TS_TEST(a_call_that_fails_in_a_replay_returns_its_error_and_restores_the_generator)
{
    TS_SCOPE;
    int64_t two = 2, nine = 9;
    ts_tensor *in[2] = {numbers(1, TS_SIZES(3, 2)), ts_from_array(&two, TS_I64, TS_SIZES(1))}, *out;
    ts_graph *graph;
    OK(ts_trace(divides, NULL, in, 2, &out, 1, &graph));
    in[1] = ts_from_array(&nine, TS_I64, TS_SIZES(1));
    ts_rng_state before = ts_rng_get_state();
    FAILS(TS_ERR_INDEX, ts_replay(graph, in, 2, &out, 1));
    ck_assert_str_eq(ts_error_op(), "index_select");
    ck_assert_ptr_null(out);
    ck_assert_uint_eq(ts_rng_get_state().offset, before.offset);
    ts_graph_free(graph);
}

/* ------------------------------------------------------------------------------- memory ---- */

static ts_module *net;

static ts_status step(TRACED)
{
    static const float half = 0.5f;
    TS_SCOPE;
    ts_tensor *x = ts_mul(in[0], ts_from_array(&half, TS_F32, TS_SIZES(1)));
    ts_tensor *loss = ts_mean(
        ts_matmul(ts_dropout(ts_forward(net, x), 0.5, true), in[1])); // (2, 4, 3) with (3, 5)
    TS_TRY(ts_backward(loss));
    out[0] = ts_keep(ts_detach(loss));
    return TS_OK;
}

static void release_gradient(void *ctx, const char *name, ts_tensor *t)
{
    (void)ctx, (void)name;
    ts_zero_grad(t);
}
static ts_status release_member_gradient(void *ctx, const char *name, ts_tensor *t,
                                         ts_member_kind kind)
{
    (void)kind;
    release_gradient(ctx, name, t);
    return TS_OK;
}

static int failing_after;
static bool fail_once(size_t bytes)
{
    (void)bytes;
    return failing_after-- == 0;
}
static bool fail_each(size_t bytes)
{
    (void)bytes;
    return failing_after-- <= 0;
}

TS_TEST(out_of_memory_while_recording_does_not_affect_the_function, .loop = 2)
{
    if (!blocks_from_malloc())
        TS_SKIP(TOO_LATE);
    TS_SCOPE;
    OK(net = ts_linear_new(4, 3, true));
    ts_tensor *in[2] = {numbers(1, TS_SIZES(2, 4, 4)), numbers(2, TS_SIZES(3, 5))}, *out, *want;
    ts_rng_state begin = ts_rng_get_state();
    OK(step(NULL, in, 2, &want, 1));
    int incomplete = 0, failed = 0;
    for (int n = 0;; n++) {
        ck_assert_int_lt(n, 2000);
        OK(ts_module_each(net, release_member_gradient, NULL));
        ts_rng_set_state(begin);
        ts_error_clear();
        int64_t before = ts_memory_get_stats().in_use;
        failing_after = n;
        ts_alloc_fault = _i ? fail_each : fail_once;
        ts_graph *graph;
        ts_status status;
        {
            TS_SCOPE;
            status = ts_trace(step, NULL, in, 2, &out, 1, &graph);
            ts_alloc_fault = NULL;
            ts_graph_info info = ts_graph_get_info(graph);
            if (status == TS_OK) {
                ck_assert(same(out, want)); /* the function ran with its effects */
                ck_assert_int_eq(ts_error_code(), TS_OK);
                if (!info.complete)
                    ck_assert_ptr_nonnull(strstr(info.reason, "out of memory"));
                incomplete += !info.complete;
            } else {
                ck_assert_msg(status == TS_ERR_MEMORY && ts_error_code() == TS_ERR_MEMORY,
                              "allocation %d: %s: %s", n, ts_status_name(status),
                              ts_error_message());
                ck_assert(!info.complete);
                failed++;
            }
            for (int format = TS_GRAPH_TEXT; graph && format <= TS_GRAPH_JSON; format++)
                free(written(graph, (ts_graph_format)format));
            ts_graph_free(graph);
        }
        OK(ts_module_each(net, release_member_gradient, NULL));
        ck_assert_int_eq(ts_memory_get_stats().in_use, before);
        if (status == TS_OK && failing_after >= 0)
            break;
    }
    if (!_i)
        ck_assert_int_gt(incomplete, 10);
    ck_assert_int_gt(failed, 10);
    ts_module_free(net);
}

TS_TEST(out_of_memory_in_a_replay_is_an_error_that_leaks_nothing)
{
    if (!blocks_from_malloc())
        TS_SKIP(TOO_LATE);
    TS_SCOPE;
    OK(net = ts_linear_new(4, 3, true));
    ts_tensor *in[2] = {numbers(1, TS_SIZES(2, 4, 4)), numbers(2, TS_SIZES(3, 5))}, *out;
    ts_graph *graph;
    OK(ts_trace(step, NULL, in, 2, &out, 1, &graph));
    int64_t empty = 0;
    for (int n = 0;; n++) {
        ck_assert_int_lt(n, 2000);
        OK(ts_module_each(net, release_member_gradient, NULL));
        if (n == 0)
            empty = ts_memory_get_stats().in_use;
        ck_assert_int_eq(ts_memory_get_stats().in_use, empty);
        failing_after = n;
        TS_SCOPE;
        ts_alloc_fault = fail_once;
        ts_status status = ts_replay(graph, in, 2, &out, 1);
        ts_alloc_fault = NULL;
        if (status == TS_OK)
            break;
        ck_assert_int_eq(status, TS_ERR_MEMORY);
        ck_assert_ptr_null(out);
        ts_error_clear();
    }
    ts_graph_free(graph);
    ts_module_free(net);
}

static ts_status many(TRACED)
{
    for (int i = 0; i < 1000; i++)
        ts_drop(ts_add(in[0], in[1]));
    return TS_OK;
}

TS_TEST(a_trace_in_steady_state_requests_no_memory_from_the_system)
{
    if (ts_alloc_system)
        TS_SKIP("each allocation goes to the system here");
    TS_SCOPE;
    ts_tensor *in[2] = {numbers(1, TS_SIZES(3)), numbers(2, TS_SIZES(3))};
    ts_graph *graph;
    OK(ts_trace(many, NULL, in, 2, NULL, 0, &graph));
    ts_graph_info info = ts_graph_get_info(graph);
    ck_assert_int_eq(info.calls, 1000);
    ck_assert_int_ge(ts_memory_get_stats().in_use, info.bytes);
    ck_assert_int_lt(info.bytes, 1000 * 512);
    ts_graph_free(graph);
    ts_memory_stats before = ts_memory_get_stats();
    for (int i = 0; i < 10; i++) {
        OK(ts_trace(many, NULL, in, 2, NULL, 0, &graph));
        OK(ts_replay(graph, in, 2, NULL, 0));
        ts_graph_free(graph);
    }
    ts_memory_stats after = ts_memory_get_stats();
    ck_assert_uint_eq(after.system_allocs, before.system_allocs);
    ck_assert_int_eq(after.in_use, before.in_use);
}

static ts_status keeps_nothing(TRACED) // (1 << 16) numbers an intermediate
{
    TS_SCOPE;
    ts_tensor *x = in[0];
    for (int i = 0; i < 20; i++)
        TS_TRY(x = ts_neg(x));
    out[0] = ts_keep(ts_sum(x));
    return TS_OK;
}

TS_TEST(a_replay_releases_results_after_their_last_use)
{
    TS_SCOPE;
    ts_tensor *x = numbers(1, TS_SIZES(1 << 16)), *y;
    ts_graph *graph;
    OK(ts_trace(keeps_nothing, NULL, &x, 1, &y, 1, &graph));
    ts_memory_reset_peak();
    int64_t before = ts_memory_get_stats().in_use;
    OK(ts_replay(graph, &x, 1, &y, 1));
    ck_assert_int_lt(ts_memory_get_stats().peak - before, 4 << 18); /* not 20 results at once */
    ts_graph_free(graph);
}
