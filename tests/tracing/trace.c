/** @file trace.c  Recording graphs and replaying them: training steps, arguments, writes, random
 * numbers, higher derivatives. */
// SPDX-License-Identifier: MIT
#include "tests/tracing/net.h"

/* ------------------------------------------------------------------------------ training ---- */

static ts_status step(TRACED)
{
    const net *t = ctx;
    TS_SCOPE;
    ts_tensor *loss = ts_mse_loss(ts_forward(t->module, in[0]), in[1]);
    TS_TRY(ts_backward(loss));
    if (!t->accumulate) {
        TS_TRY(ts_optimizer_step(t->optimizer));
        ts_optimizer_zero_grad(t->optimizer);
    }
    out[0] = ts_keep(ts_detach(loss));
    return TS_OK;
}

TS_TEST(a_training_step_is_replayed_to_the_bits_of_calls, .loop = 2)
{
    TS_SCOPE;
    net a = net_new(_i ? 0.5 : 0, TS_SGD), b = net_new(_i ? 0.5 : 0, TS_SGD);
    ts_tensor *loss, *want;
    ts_graph *graph;
    ts_manual_seed(9);
    for (int k = 0; k < 4; k++) { /* the first is recorded, the others are replayed */
        ts_tensor *batch[] = {numbers(10 + (uint64_t)k, TS_SIZES(4, 6)),
                              numbers(20 + (uint64_t)k, TS_SIZES(4, 3))};
        ts_rng_state begin = ts_rng_get_state();
        if (k == 0)
            OK(ts_trace(step, &a, batch, 2, &loss, 1, &graph));
        else
            OK(ts_replay(graph, batch, 2, &loss, 1));
        ts_rng_state end = ts_rng_get_state();
        ts_rng_set_state(begin);
        OK(step(&b, batch, 2, &want, 1));
        ck_assert(same(loss, want));
        ck_assert_uint_eq(ts_rng_get_state().offset, end.offset);
        check_same_nets(a, b, false);
    }
    ts_graph_info info = ts_graph_get_info(graph);
    ck_assert_int_eq(info.captures, 4); /* the parameters */
    ck_assert_int_eq(info.regions, 1);
    ck_assert_int_eq(ts_graph_count(graph, "linear"), 2);
    ck_assert_int_eq(ts_graph_count(graph, "dropout"), _i);
    ck_assert_int_eq(ts_graph_count(graph, "sgd"), 1);
    ts_graph_free(graph);
    net_free(a);
    net_free(b);
}

TS_TEST(gradients_are_accumulated_by_a_replay_as_by_calls)
{
    TS_SCOPE;
    net a = net_new(0, TS_SGD), b = net_new(0, TS_SGD);
    a.accumulate = b.accumulate = true;
    ts_tensor *loss, *batch[] = {numbers(1, TS_SIZES(4, 6)), numbers(2, TS_SIZES(4, 3))};
    ts_graph *first, *later;
    OK(ts_trace(step, &a, batch, 2, &loss, 1, &first)); /* makes new gradients */
    OK(step(&b, batch, 2, &loss, 1));
    check_same_nets(a, b, true);
    OK(ts_trace(step, &a, batch, 2, &loss, 1, &later)); /* adds to these gradients */
    OK(step(&b, batch, 2, &loss, 1));
    check_same_nets(a, b, true);
    OK(ts_replay(later, batch, 2, &loss, 1));
    OK(step(&b, batch, 2, &loss, 1));
    check_same_nets(a, b, true);
    ts_optimizer_zero_grad(a.optimizer);
    ts_optimizer_zero_grad(b.optimizer);
    FAILS(TS_ERR_STATE, ts_replay(later, batch, 2, &loss, 1));
    SAYS("has no gradient");
    OK(ts_replay(first, batch, 2, &loss, 1));
    OK(step(&b, batch, 2, &loss, 1));
    check_same_nets(a, b, true);
    ts_graph_free(first);
    ts_graph_free(later);
    net_free(a);
    net_free(b);
}

/** A block of a transformer: norm, attention with projections and dropout, norm, MLP. */
typedef struct block {
    ts_module *ln1, *attention, *ln2, *mlp;
} block;

static ts_status block_step(TRACED)
{
    const block *b = ctx;
    TS_SCOPE;
    ts_tensor *x = ts_add(in[0], ts_forward(b->attention, ts_forward(b->ln1, in[0])));
    x = ts_add(x, ts_forward(b->mlp, ts_forward(b->ln2, x)));
    ts_tensor *loss =
        ts_cross_entropy(ts_reshape(x, TS_SIZES(-1, 8)), ts_reshape(in[1], TS_SIZES(-1)));
    TS_TRY(ts_backward(loss));
    out[0] = ts_keep(ts_detach(loss));
    out[1] = ts_keep(ts_detach(x));
    return TS_OK;
}

TS_TEST(a_block_of_a_transformer_is_replayed_to_the_bits_of_calls)
{
    TS_SCOPE;
    ts_multihead_opts dropout = {.size = sizeof dropout, .causal = true, .dropout = 0.25};
    block b = {
        ts_layer_norm_new(8, 0, true), ts_multihead_new(8, 2, &dropout),
        ts_layer_norm_new(8, 0, true),
        ts_mlp_new(8, 32, TS_OPTS(ts_mlp_opts, .activation = ts_gelu_tanh))};
    ts_tensor *in[3][2];
    for (int k = 0; k < 3; k++) {
        in[k][0] = ts_set_requires_grad(numbers(k == 0 ? 1 : 2, TS_SIZES(2, 5, 8)), true);
        in[k][1] = ts_remainder_scalar(ts_arange(0, k ? 30 : 10, k ? 3 : 1, TS_I64), 8);
        in[k][1] = ts_reshape(in[k][1], TS_SIZES(2, 5));
        OK(in[k][1]);
    }
    check_replay(block_step, &b, in[0], in[1], in[2], 2, 2);
    ck_assert(ts_grad(in[1][0]) != TS_NONE);
    ck_assert(same(ts_grad(in[1][0]), ts_grad(in[2][0]))); /* the input is a leaf */
    ts_module *parts[] = {b.ln1, b.attention, b.ln2, b.mlp};
    for (int i = 0; i < 4; i++)
        ts_module_free(parts[i]);
}

TS_TEST(the_results_of_a_replay_without_backward_have_a_history)
{
    TS_SCOPE;
    net a = net_new(0, TS_SGD);
    ts_tensor *x = numbers(1, TS_SIZES(4, 6)), *y;
    ts_graph *graph;
    OK(ts_trace(forward, &a, &x, 1, &y, 1, &graph));
    OK(ts_replay(graph, &x, 1, &y, 1));
    ck_assert(ts_requires_grad(y));
    OK(ts_backward(ts_sum(y)));
    ck_assert(ts_grad(ts_optimizer_params(a.optimizer, NULL)[0]) != TS_NONE);
    {
        TS_NO_GRAD;
        OK(ts_replay(graph, &x, 1, &y, 1));
        ck_assert(!ts_requires_grad(y));
    }
    ts_graph_free(graph);
    net_free(a);
}

/* ---------------------------------------------------------------------- kinds of arguments ---- */

static ts_status kinds(TRACED)
{
    ts_tensor *parts[3], *mean, *x = in[0]; // (6, 4)
    TS_SCOPE;
    TS_TRY(ts_split(x, 2, 0, parts, 3));                             // several results, views
    x = ts_cat((ts_tensor *[]){parts[2], parts[0], parts[1]}, 3, 0); // a list
    x = ts_layer_norm(x, TS_NONE, TS_NONE);                          // absent tensors
    x = ts_clamp(x, TS_SCALAR(-1), TS_SCALAR(0.5));                  // an int and a float
    x = ts_add(x, ts_full(TS_SIZES(4), TS_SCALAR(3), TS_F32));       // ints, dtype, device
    x = ts_where(ts_gt_scalar(x, 2), x, ts_zeros(TS_SIZES(6, 4), TS_F32)); // bool tensors
    x = ts_permute(ts_expand(ts_unsqueeze(x, 0), TS_SIZES(2, 6, 4)),
                   TS_SIZES(2, 0, 1)); // views of views
    mean = ts_mean(x);
    out[0] = ts_keep(ts_contiguous(x));
    out[1] = ts_keep(ts_to(mean, TS_F64));
    out[2] = TS_NONE;
    return TS_OK;
}

TS_TEST(arguments_of_every_kind_are_replayed)
{
    TS_SCOPE;
    ts_tensor *a = numbers(1, TS_SIZES(6, 4)), *b = numbers(2, TS_SIZES(6, 4));
    check_replay(kinds, NULL, &a, &b, &b, 1, 3);
}

/** Kernel of an op with a string and a bool argument; stores them in `seen`. */
static char seen[64];
static ts_status say(ts_frame *f)
{
    snprintf(seen, sizeof seen, "%s %d %s", f->args[1].str, (int)f->args[2].i,
             f->args[3].tag == TS_TAG_NONE ? "none" : "some");
    return TS_OK;
}

static ts_status call_say(TRACED)
{
    char text[] = "hello"; /* gone when the graph is replayed */
    ts_value args[] = {ts_value_tensor(in[0]), ts_value_string(text), ts_value_bool(true),
                       ts_value_none()};
    TS_TRY(ts_call_boxed(ts_op_by_name("test.say"), args, 4, NULL, 0));
    memset(text, 'x', sizeof text - 1);
    return TS_OK;
}

TS_TEST(strings_and_bools_of_ops_registered_at_run_time_are_replayed)
{
    TS_SCOPE;
    OK(ts_register_op("test.say(Tensor a, str text, bool loud, Tensor? b) -> ()", NULL));
    OK(ts_register_kernel("test.say", TS_KEY_CPU, say, NULL, NULL));
    ts_tensor *x = ts_ones(TS_SIZES(1), TS_F32);
    ts_graph *graph;
    OK(ts_trace(call_say, NULL, &x, 1, NULL, 0, &graph));
    seen[0] = 0;
    OK(ts_replay(graph, &x, 1, NULL, 0));
    ck_assert_str_eq(seen, "hello 1 none");
    ts_graph_free(graph);
}

/* --------------------------------------------------------------------------------- writes ---- */

static ts_status writes(TRACED)
{
    TS_SCOPE;
    ts_tensor *x = in[0], *place = ts_zeros(TS_SIZES(4, 3), TS_F32);
    TS_TRY(ts_add_(ts_select(place, 0, 1), ts_select(x, 0, 2))); // through a view
    TS_TRY(ts_mul_out(in[1], x, x));                             // a given result that is an input
    TS_TRY(ts_add_(x, in[1]));                                   // an input in place
    TS_TRY(
        ts_mul_(ts_slice(x, 1, 0, 2, 1), place)); // does not broadcast: fails, and is not recorded
    return TS_OK;
}

static ts_status writes_that_succeed(TRACED)
{
    TS_SCOPE;
    ts_tensor *x = in[0], *place = ts_zeros(TS_SIZES(4, 3), TS_F32);
    TS_TRY(ts_add_(ts_select(place, 0, 1), ts_select(x, 0, 2)));
    TS_TRY(ts_mul_out(in[1], x, x));
    TS_TRY(ts_add_(x, in[1]));
    if (!ts_view(ts_transpose(x, 0, 1), TS_SIZES(12))) /* fails, so the next call differs */
        ts_error_clear();
    out[0] = ts_keep(ts_add(place, ts_reshape(ts_transpose(x, 0, 1), TS_SIZES(4, 3))));
    return TS_OK;
}

TS_TEST(writes_in_place_and_into_given_results_are_replayed)
{
    TS_SCOPE;
    ts_tensor *in[3][2];
    for (int k = 0; k < 3; k++) {
        in[k][0] = numbers(k == 0 ? 1 : 2, TS_SIZES(4, 3));
        in[k][1] = numbers(3, TS_SIZES(4, 3));
    }
    check_replay(writes_that_succeed, NULL, in[0], in[1], in[2], 2, 1);
}

TS_TEST(a_function_that_fails_leaves_an_incomplete_graph)
{
    TS_SCOPE;
    ts_tensor *in[2] = {numbers(1, TS_SIZES(4, 3)), numbers(2, TS_SIZES(4, 3))};
    ts_graph *graph;
    FAILS(TS_ERR_SHAPE, ts_trace(writes, NULL, in, 2, NULL, 0, &graph));
    ck_assert_str_eq(ts_error_op(), "mul");
    ts_graph_info info = ts_graph_get_info(graph);
    ck_assert(!info.complete);
    ck_assert_str_eq(info.reason, "the function failed");
    ck_assert_int_eq(ts_graph_count(graph, "add"), 2); /* earlier calls are visible */
    FAILS(TS_ERR_STATE, ts_replay(graph, in, 2, NULL, 0));
    SAYS("the function failed");
    ts_graph_free(graph);
    ck_assert(!ts_tracing());
}

TS_TEST(arrays_of_the_program_are_constants_that_each_replay_copies)
{
    TS_SCOPE;
    ts_tensor *x = ts_ones(TS_SIZES(1), TS_F32), *y;
    ts_graph *graph;
    OK(ts_trace(three_times, NULL, &x, 1, &y, 1, &graph));
    ck_assert_int_eq(ts_graph_get_info(graph).constants, 1);
    ck_assert_int_eq(ts_graph_get_info(graph).captures, 0);
    for (int i = 0; i < 2; i++) {
        double value;
        OK(ts_replay(graph, &x, 1, &y, 1));
        OK(ts_item(y, &value));
        ck_assert_double_eq(value, 3);
    }
    ts_graph_free(graph);
}

static ts_status scaled(TRACED) { return TS_STATUS_OF(out[0] = ts_mul(in[0], ctx)); }

TS_TEST(a_replay_reads_current_values_of_captured_tensors)
{
    TS_SCOPE;
    double value;
    ts_tensor *x = ts_ones(TS_SIZES(1), TS_F32), *y,
              *w = ts_retain(ts_full(TS_SIZES(1), TS_SCALAR(2), TS_F32));
    ts_graph *graph;
    OK(ts_trace(scaled, w, &x, 1, &y, 1, &graph));
    ck_assert_int_eq(ts_graph_get_info(graph).captures, 1);
    OK(ts_fill_(w, ts_scalar_float(5)));
    ts_release(w); /* the graph holds it */
    OK(ts_replay(graph, &x, 1, &y, 1));
    OK(ts_item(y, &value));
    ck_assert_double_eq(value, 5);
    ts_graph_free(graph);
}

static ts_status drops_its_input(TRACED)
{
    ts_tensor *y = ts_neg(in[0]);
    ts_drop(in[0]);
    for (int i = 0; i < 20; i++) { /* a new tensor must not be mistaken for the input */
        ts_tensor *z = ts_neg(y);
        ts_drop(y);
        y = z;
    }
    return TS_STATUS_OF(out[0] = y);
}

TS_TEST(an_input_that_the_function_drops_is_not_mistaken_for_a_new_tensor)
{
    TS_SCOPE;
    ts_tensor *x = ts_ones(TS_SIZES(3), TS_F32), *again = numbers(1, TS_SIZES(3)), *y;
    ts_graph *graph;
    OK(ts_trace(drops_its_input, NULL, &x, 1, &y, 1, &graph));
    OK(ts_replay(graph, &again, 1, &y, 1));
    again = numbers(1, TS_SIZES(3));
    ck_assert(same(y, ts_neg(again)));
    ck_assert_int_eq(ts_graph_get_info(graph).captures, 0);
    ts_graph_free(graph);
}

static ts_status identity(TRACED)
{
    out[0] = in[0];
    out[1] = ctx;
    out[2] = out[3] = ts_neg(in[0]);
    return TS_OK;
}

TS_TEST(outputs_may_be_inputs_captured_tensors_and_the_same_twice)
{
    TS_SCOPE;
    ts_tensor *w = ts_ones(TS_SIZES(2), TS_F32), *a = numbers(1, TS_SIZES(3)),
              *b = numbers(2, TS_SIZES(3)), *out[4];
    ts_graph *graph;
    OK(ts_trace(identity, w, &a, 1, out, 4, &graph));
    OK(ts_replay(graph, &b, 1, out, 4));
    ck_assert_ptr_eq(out[0], b);
    ck_assert_ptr_eq(out[1], w);
    ck_assert(same(out[2], ts_neg(b)));
    ck_assert_ptr_eq(out[3], out[2]);
    ts_graph_free(graph);
}

/* ---------------------------------------------------------------------- random numbers ---- */

static ts_status draws(TRACED)
{
    TS_SCOPE;
    out[0] = ts_keep(ts_dropout(in[0], 0.5, true));
    out[1] = ts_keep(ts_uniform(TS_SIZES(5), 0, 1, TS_F32));
    return TS_OK;
}

static ts_status draws_from_a_seed(TRACED)
{
    TS_SCOPE;
    TS_TRY(out[0] = ts_keep(ts_dropout(in[0], 0.5, true)));
    ts_manual_seed(77);
    out[1] = ts_keep(ts_uniform(TS_SIZES(5), 0, 1, TS_F32));
    return TS_OK;
}

TS_TEST(random_ops_of_a_replay_draw_from_the_current_generator_state)
{
    TS_SCOPE;
    ts_tensor *x = numbers(1, TS_SIZES(7)), *got[2], *want[2];
    ts_trace_fn const fns[] = {draws, draws_from_a_seed};
    for (int k = 0; k < 2; k++) {
        ts_graph *graph;
        ts_rng_set_state((ts_rng_state){1, 40});
        OK(ts_trace(fns[k], NULL, &x, 1, got, 2, &graph));
        ts_rng_set_state((ts_rng_state){8, 1000}); /* another seed, another place */
        OK(ts_replay(graph, &x, 1, got, 2));
        ts_rng_state end = ts_rng_get_state();
        ts_rng_set_state((ts_rng_state){8, 1000});
        OK(fns[k](NULL, &x, 1, want, 2));
        ck_assert(same(got[0], want[0]) && same(got[1], want[1]));
        ck_assert_uint_eq(end.seed, ts_rng_get_state().seed);
        ck_assert_uint_eq(end.offset, ts_rng_get_state().offset);
        ts_graph_free(graph);
    }
}

/* ---------------------------------------------------------------------- higher derivatives ---- */

static ts_status penalty(TRACED) // gradient of |d sum(tanh(x w)) / dx|² with respect to w
{
    TS_SCOPE;
    ts_backward_opts opts = {.size = sizeof opts, .create_graph = true};
    ts_tensor *g, *y = ts_sum(ts_tanh(ts_mm(in[0], in[1])));
    TS_TRY(ts_grad_of(y, TS_NONE, &in[0], 1, &g, &opts));
    TS_TRY(ts_backward(ts_sum(ts_mul(g, g))));
    out[0] = ts_keep(ts_detach(g));
    return TS_STATUS_OF(out[0]);
}

TS_TEST(a_gradient_of_a_gradient_is_replayed)
{
    TS_SCOPE;
    ts_tensor *in[3][2], *y, *want;
    for (int k = 0; k < 3; k++) {
        in[k][0] = ts_set_requires_grad(numbers(k == 0 ? 1 : 2, TS_SIZES(4, 3)), true);
        in[k][1] = ts_set_requires_grad(numbers(k == 0 ? 3 : 4, TS_SIZES(3, 2)), true);
    }
    ts_graph *graph;
    OK(ts_trace(penalty, NULL, in[0], 2, &y, 1, &graph));
    ck_assert_int_eq(ts_graph_get_info(graph).captures, 0);
    ck_assert_int_eq(ts_graph_get_info(graph).regions, 2);
    OK(ts_replay(graph, in[1], 2, &y, 1));
    OK(penalty(NULL, in[2], 2, &want, 1));
    ck_assert(same(y, want));
    for (int i = 0; i < 2; i++)
        ck_assert(same(ts_grad(in[1][i]), ts_grad(in[2][i])));
    ts_graph_free(graph);
}

static ts_status shapes(TRACED) // (4, 6) with weights (3, 6)
{
    TS_SCOPE;
    return TS_STATUS_OF(
        out[0] = ts_keep(ts_transpose(ts_linear(ts_add_(in[0], in[0]), ctx, TS_NONE), 0, 1)));
}

TS_TEST(a_graph_of_tensors_without_memory_is_replayed)
{
    TS_SCOPE;
    ts_tensor *x = ts_empty_on(TS_SIZES(4, 6), TS_F32, TS_DEVICE_META), *y;
    ts_tensor *w = ts_empty_on(TS_SIZES(3, 6), TS_F32, TS_DEVICE_META);
    ts_graph *graph;
    OK(ts_trace(shapes, w, &x, 1, &y, 1, &graph));
    OK(ts_replay(graph, &x, 1, &y, 1));
    ck_assert(ts_size(y, 0) == 3 && ts_size(y, 1) == 4);
    ck_assert_int_eq(ts_device_of(y).backend, TS_DEVICE_META.backend);
    char *text = written(graph, TS_GRAPH_TEXT);
    ck_assert_ptr_nonnull(strstr(text, "(3, 4) f32 meta = transpose("));
    free(text);
    ts_graph_free(graph);
}
