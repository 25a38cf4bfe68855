/** @file layers.c  The TRACING layer together with others: parts of calls, composites, AUTOCAST,
 * replays inside traces, threads. */
// SPDX-License-Identifier: MIT
#include "tests/tracing/net.h"

#include <pthread.h>

static ts_status product(TRACED) // by parts: (2, 3, 4) with (2, 4, 5)
{
    TS_SCOPE;
    ts_tensor *y = ts_matmul(in[0], in[1]);
    TS_TRY(ts_backward(ts_sum(ts_mul(y, y))));
    out[0] = ts_keep(ts_detach(y));
    return TS_OK;
}

TS_TEST(an_op_that_is_differentiated_by_parts_is_recorded_with_its_parts)
{
    TS_SCOPE;
    ts_tensor *in[3][2];
    for (int k = 0; k < 3; k++) {
        in[k][0] = ts_set_requires_grad(numbers(k == 0 ? 1 : 2, TS_SIZES(2, 3, 4)), true);
        in[k][1] = ts_set_requires_grad(numbers(3, TS_SIZES(2, 4, 5)), true);
    }
    ts_tensor *y;
    ts_graph *graph;
    OK(ts_trace(product, NULL, in[0], 2, &y, 1, &graph));
    ts_graph_info info = ts_graph_get_info(graph);
    ck_assert_int_eq(info.regions, 2); /* matmul, backward */
    ck_assert_int_eq(ts_graph_count(graph, "matmul"), 1);
    ck_assert_int_eq(info.captures, 0);
    OK(ts_replay(graph, in[1], 2, &y, 1));
    ts_tensor *want;
    OK(product(NULL, in[2], 2, &want, 1));
    ck_assert(same(y, want));
    for (int i = 0; i < 2; i++)
        ck_assert(same(ts_grad(in[1][i]), ts_grad(in[2][i])));
    ts_graph_free(graph);
}

static ts_status product_alone(TRACED) { return TS_STATUS_OF(out[0] = ts_matmul(in[0], in[1])); }

TS_TEST(ops_inside_a_composite_are_not_recorded)
{
    TS_SCOPE;
    ts_tensor *in[2] = {numbers(1, TS_SIZES(2, 3, 4)), numbers(2, TS_SIZES(2, 4, 5))}, *y;
    ts_graph *graph;
    OK(ts_trace(product_alone, NULL, in, 2, &y, 1, &graph));
    ck_assert_int_eq(ts_graph_get_info(graph).calls, 1);
    ck_assert_int_eq(ts_graph_get_info(graph).regions, 0);
    ts_graph_free(graph);
}

/** x², with a user-defined backward that reads saved tensors. */
static ts_status square_forward(ts_function_call *call, void *ctx, ts_tensor *const *in, int n,
                                ts_tensor **out, int m)
{
    (void)ctx, (void)n, (void)m;
    out[0] = ts_mul(in[0], in[0]);
    return ts_function_save(call, (ts_tensor *[]){in[0], out[0]}, 2);
}

static ts_status square_backward(ts_function_call *call, void *ctx, ts_tensor *const *grads, int m,
                                 ts_tensor **out, int n)
{
    (void)ctx, (void)n, (void)m;
    ts_tensor *x = ts_function_saved_tensor(call, 0), *y = ts_function_saved_tensor(call, 1);
    return TS_STATUS_OF(out[0] = ts_mul(grads[0], ts_div(ts_mul_scalar(y, 2), x)));
}

static const ts_function square = {.size = sizeof square,
                                   .name = "square",
                                   .forward = square_forward,
                                   .backward = square_backward};

/** A function for ts_recompute() with norms, whose extra results only backward reads, and random
 *  numbers. */
static ts_status part(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)n, (void)m;
    TS_SCOPE;
    ts_tensor *x = ts_layer_norm(ts_matmul(in[0], ctx), TS_NONE, TS_NONE);
    return TS_STATUS_OF(out[0] = ts_keep(ts_dropout(ts_tanh(x), 0.5, true)));
}

static ts_status function_and_part(TRACED) // (3, 4), captured (4, 4)
{
    TS_SCOPE;
    ts_tensor *y, *x = in[0];
    TS_TRY(ts_function_apply(&square, NULL, &x, 1, &y, 1));
    TS_TRY(ts_recompute(part, ctx, &y, 1, &y, 1));
    TS_TRY(ts_backward(ts_mean(ts_mul(y, y))));
    out[0] = ts_keep(ts_detach(y));
    out[1] = ts_keep(ts_contiguous(ts_grad(x)));
    return TS_STATUS_OF(out[1]);
}

TS_TEST(functions_with_their_own_backward_and_parts_computed_again_are_replayed)
{
    TS_SCOPE;
    ts_tensor *w = ts_set_requires_grad(numbers(7, TS_SIZES(4, 4)), true), *in[3];
    for (int k = 0; k < 3; k++)
        in[k] = ts_set_requires_grad(numbers(k == 0 ? 1 : 2, TS_SIZES(3, 4)), true);
    ts_tensor *recorded[2], *replayed[2], *called[2];
    ts_graph *graph;
    OK(ts_trace(function_and_part, w, &in[0], 1, recorded, 2, &graph));
    ck_assert_str_eq(ts_graph_get_info(graph).reason, "");
    ck_assert_int_eq(ts_graph_get_info(graph).captures, 1);
    ck_assert_int_eq(ts_graph_count(graph, "layer_norm"), 2); /* forward, and again in backward */
    ck_assert_int_eq(ts_graph_count(graph, "dropout"), 2);
    ts_zero_grad(w);
    ts_rng_set_state((ts_rng_state){4, 8});
    OK(ts_replay(graph, &in[1], 1, replayed, 2));
    ts_tensor *g = ts_clone(ts_grad(w));
    ts_zero_grad(w);
    ts_rng_set_state((ts_rng_state){4, 8});
    OK(function_and_part(w, &in[2], 1, called, 2));
    ck_assert(same(replayed[0], called[0]) && same(replayed[1], called[1]));
    ck_assert(same(g, ts_contiguous(ts_grad(w))));
    ts_graph_free(graph);
}

static ts_status autocast_step(TRACED)
{
    const net *t = ctx;
    TS_SCOPE;
    ts_tensor *loss;
    {
        TS_AUTOCAST(TS_DEVICE_CPU, TS_BF16);
        loss = ts_mse_loss(ts_forward(t->module, in[0]), in[1]);
    }
    TS_TRY(ts_backward(loss));
    out[0] = ts_keep(ts_detach(loss));
    return TS_OK;
}

TS_TEST(casts_of_autocast_are_recorded_marked_and_replayed_as_they_were)
{
    TS_SCOPE;
    net a = net_new(0, TS_SGD), b = net_new(0, TS_SGD);
    ts_tensor *in[2] = {numbers(1, TS_SIZES(4, 6)), numbers(2, TS_SIZES(4, 3))}, *loss, *want;
    ts_graph *graph;
    OK(ts_trace(autocast_step, &a, in, 2, &loss, 1, &graph));
    OK(autocast_step(&b, in, 2, &want, 1));
    ck_assert(same(loss, want));
    ts_graph_info info = ts_graph_get_info(graph);
    ck_assert_int_ge(info.casts, 4); /* input and weights */
    ck_assert_int_ge(ts_graph_count(graph, "to"), info.casts);
    ts_optimizer_zero_grad(a.optimizer);
    {
        TS_AUTOCAST(TS_DEVICE_CPU, TS_F16); /* a change after the recording has no effect */
        OK(ts_replay(graph, in, 2, &loss, 1));
    }
    ck_assert(same(loss, want));
    check_same_nets(a, b, true);
    char *text = written(graph, TS_GRAPH_TEXT);
    ck_assert_ptr_nonnull(strstr(text, "inserted by AUTOCAST"));
    free(text);
    ts_graph_free(graph);
    net_free(a);
    net_free(b);
}

static ts_status replays(TRACED) { return ts_replay(ctx, in, n, out, m); }

TS_TEST(a_replay_inside_a_trace_is_recorded_call_by_call)
{
    TS_SCOPE;
    ts_tensor *x = ts_ones(TS_SIZES(1), TS_F32), *y;
    ts_graph *inner, *outer;
    OK(ts_trace(three_times, NULL, &x, 1, &y, 1, &inner));
    OK(ts_trace(replays, inner, &x, 1, &y, 1, &outer));
    ts_graph_info a = ts_graph_get_info(inner), b = ts_graph_get_info(outer);
    ck_assert_int_eq(a.calls, b.calls);
    ck_assert_int_eq(a.constants, b.constants);
    ts_graph_free(inner);
    double value;
    OK(ts_replay(outer, &x, 1, &y, 1));
    OK(ts_item(y, &value));
    ck_assert_double_eq(value, 3);
    ts_graph_free(outer);
}

static ts_status nothing(TRACED)
{
    out[0] = ts_noop(in[0], in[0], ts_scalar_int(1)) == TS_OK ? in[0] : NULL;
    return TS_OK;
}

static char order[8];
static ts_status above(ts_frame *f) { strcat(order, "a"); return ts_redispatch(f); }
static ts_status below(ts_frame *f) { strcat(order, "b"); return ts_redispatch(f); }

TS_TEST(a_replay_visits_the_layers_that_are_on)
{
    TS_SCOPE;
    ts_key high, low;
    OK(ts_register_layer("HIGH", "TRACING", &high));
    OK(ts_register_layer("LOW", "backends", &low));
    OK(ts_register_kernel("noop", high, above, NULL, NULL));
    OK(ts_register_kernel("noop", low, below, NULL, NULL));
    OK(ts_layer_enable(high, true));
    OK(ts_layer_enable(low, true));
    ts_tensor *x = ts_ones(TS_SIZES(1), TS_F32), *y;
    ts_graph *graph;
    OK(ts_trace(nothing, NULL, &x, 1, &y, 1, &graph));
    ck_assert_str_eq(order, "ab"); /* each layer saw the call once */
    ck_assert_int_eq(ts_graph_get_info(graph).calls, 1);
    order[0] = 0;
    OK(ts_replay(graph, &x, 1, &y, 1));
    OK(ts_layer_enable(high, false));
    OK(ts_layer_enable(low, false));
    ck_assert_str_eq(order, "ab");
    ts_graph_free(graph);
}

static int visits;
static ts_status count_visit(ts_frame *f)
{
    visits++;
    return ts_redispatch(f);
}

TS_TEST(without_a_trace_no_call_visits_the_layer)
{
    TS_SCOPE;
    ts_registration *counter;
    /* a kernel that replaces TRACING's fallback for this op */
    OK(ts_register_kernel("noop", TS_KEY_TRACING, count_visit, NULL, &counter));
    ts_tensor *x = ts_ones(TS_SIZES(1), TS_F32), *y;
    OK(ts_noop(x, x, ts_scalar_int(1)));
    ck_assert_int_eq(visits, 0);
    ts_graph *graph;
    OK(ts_trace(nothing, NULL, &x, 1, &y, 1, &graph));
    ck_assert_int_eq(visits, 1);
    OK(ts_replay(graph, &x, 1, &y, 1));
    OK(ts_noop(x, x, ts_scalar_int(1)));
    OK(ts_unregister(counter));
    ck_assert_int_eq(visits, 1);
    ts_graph_free(graph);
}

TS_TEST(the_timers_have_a_row_for_the_layer)
{
    TS_SCOPE;
    if (ts_timers_enable(true) != TS_OK)
        TS_SKIP("built without timers");
    ts_timers_reset();
    ts_tensor *x = ts_ones(TS_SIZES(1), TS_F32), *y;
    ts_graph *graph;
    OK(ts_trace(three_times, NULL, &x, 1, &y, 1, &graph));
    OK(ts_replay(graph, &x, 1, &y, 1));
    OK(ts_timers_enable(false));
    ck_assert_uint_eq(ts_timers_get("add", "TRACING").calls, 3); /* the replay does not visit it */
    ck_assert_uint_eq(ts_timers_get("add", "CPU").calls, 6);
    ck_assert_double_gt(ts_timers_get("add", "TRACING").self_ns, 0);
    ts_graph_free(graph);
}

/* --------------------------------------------------------------------------------- threads ---- */

static void *call_elsewhere(void *arg)
{
    (void)arg;
    TS_SCOPE;
    return ts_tracing() || !ts_neg(ts_ones(TS_SIZES(1), TS_F32)) ? (void *)1 : NULL;
}

static ts_status with_another_thread(TRACED)
{
    pthread_t thread;
    void *bad = NULL;
    if (pthread_create(&thread, NULL, call_elsewhere, NULL) != 0 ||
        pthread_join(thread, &bad) != 0 || bad)
        return ts_error_set(TS_ERR_STATE, "the other thread failed");
    return TS_STATUS_OF(out[0] = ts_abs(in[0]));
}

TS_TEST(calls_of_other_threads_are_not_recorded, .threads = true)
{
    TS_SCOPE;
    ts_tensor *x = ts_ones(TS_SIZES(1), TS_F32), *y;
    ts_graph *graph;
    OK(ts_trace(with_another_thread, NULL, &x, 1, &y, 1, &graph));
    ck_assert_int_eq(ts_graph_get_info(graph).calls, 1);
    ts_graph_free(graph);
}

typedef struct job {
    const ts_graph *graph;
    net *net; /* not NULL: the thread traces a step of it instead of replaying graph */
    bool good;
} job;

static void *work(void *arg)
{
    job *j = arg;
    j->good = true;
    for (int i = 0; i < 50 && j->good; i++) {
        TS_SCOPE;
        ts_tensor *x = numbers((uint64_t)i, TS_SIZES(4, 6)), *y, *want;
        ts_graph *mine = NULL;
        j->good = (j->net ? ts_trace(forward, j->net, &x, 1, &y, 1, &mine)
                          : ts_replay(j->graph, &x, 1, &y, 1)) == TS_OK;
        j->good =
            j->good && (!mine || (ts_graph_get_info(mine).captures == 4 &&
                                  ts_replay(mine, &x, 1, &want, 1) == TS_OK && same(y, want)));
        ts_graph_free(mine);
    }
    return NULL;
}

TS_TEST(threads_record_and_replay_over_shared_parameters, .threads = true)
{
    TS_SCOPE;
    net a = net_new(0, TS_SGD);
    ts_tensor *x = numbers(1, TS_SIZES(4, 6)), *y;
    ts_graph *graph;
    OK(ts_trace(forward, &a, &x, 1, &y, 1, &graph));
    pthread_t threads[4];
    job jobs[4];
    for (int i = 0; i < 4; i++) {
        jobs[i] = (job){graph, i % 2 ? &a : NULL, false};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, work, &jobs[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        ck_assert(jobs[i].good);
    }
    ts_graph_free(graph);
    net_free(a);
}
