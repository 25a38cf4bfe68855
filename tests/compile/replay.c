/** @file replay.c  Replays, which are compiled calls that do not run the function: the state after
 * them, functions that cannot be replayed, and declared sources of numbers. */
// SPDX-License-Identifier: MIT
#include "tests/compile/replay.h"

#include <math.h>

/* ------------------------------------------------------------------------------ training ---- */

TS_TEST(a_hundred_steps_with_a_schedule_leave_the_state_of_calls, .loop = 8)
{
    TS_SCOPE;
    ts_optimizer_kind kind = _i / 2 % 2 ? TS_ADAMW : TS_SGD;
    net a = net_new(_i % 2 ? 0.5 : 0, kind), b = net_new(_i % 2 ? 0.5 : 0, kind);
    if (_i / 4) {
        OK(ts_optimizer_set_max_norm(a.optimizer, 0.5));
        OK(ts_optimizer_set_max_norm(b.optimizer, 0.5));
    }
    ts_schedule schedule = {.kind = TS_SCHEDULE_COSINE, .warmup_steps = 10, .total_steps = 100,
                            .final_ratio = 0.1};
    ts_compiled *c = replays_of(step, &a);
    ts_manual_seed(9);
    for (int k = 0; k < 100; k++) {
        TS_SCOPE;
        ts_tensor *loss, *want;
        ts_tensor *batch[] = {numbers(10 + (uint64_t)k, TS_SIZES(4, 6)),
                              numbers(20 + (uint64_t)k, TS_SIZES(4, 3))};
        OK(ts_schedule_apply(&schedule, a.optimizer, k));
        OK(ts_schedule_apply(&schedule, b.optimizer, k));
        ts_rng_state begin = ts_rng_get_state();
        OK(ts_compiled_call(c, batch, 2, &loss, 1));
        ts_rng_state end = ts_rng_get_state();
        ts_rng_set_state(begin);
        int before = ran;
        OK(step(&b, batch, 2, &want, 1));
        ran = before;
        double read, read_too; /* reads after the call do not prevent a replay */
        OK(ts_item(loss, &read));
        OK(ts_item(want, &read_too));
        ck_assert(read == read_too);
        ck_assert_uint_eq(ts_rng_get_state().offset, end.offset);
        check_same_nets(a, b, false);
        check_same_nets(a, b, true);
    }
    check_same_states(a, b);
    ck_assert_int_eq(ran, 2);
    ts_compile_stats stats = ts_compiled_get_stats(c);
    ck_assert_int_eq(stats.calls, 100);
    ck_assert_int_eq(stats.skipped, 98);
    ck_assert(explains(c, "mode: replay, 98 calls ran without the function"));
    ts_compiled_free(c);
    net_free(a);
    net_free(b);
}

/** Backward only: gradients of several calls are accumulated until the caller makes a step. */
static ts_status accumulate(TRACED)
{
    const net *t = ctx;
    TS_SCOPE;
    ran++;
    return ts_backward(ts_mse_loss(ts_forward(t->module, in[0]), in[1]));
}
/** Clears the gradients of the previous call at its beginning. */
static ts_status clear_first(TRACED)
{
    const net *t = ctx;
    TS_SCOPE;
    ran++;
    ts_optimizer_zero_grad(t->optimizer);
    TS_TRY(ts_backward(ts_mse_loss(ts_forward(t->module, in[0]), in[1])));
    return ts_optimizer_step(t->optimizer);
}

TS_TEST(gradients_are_kept_accumulated_and_replaced_as_in_eager_calls, .loop = 2)
{
    TS_SCOPE;
    net a = net_new(0, TS_ADAMW), b = net_new(0, TS_ADAMW);
    ts_trace_fn fn = _i ? clear_first : accumulate;
    ts_compiled *c = replays_of(fn, &a);
    for (int k = 0; k < 40; k++) {
        TS_SCOPE;
        ts_tensor *batch[] = {numbers(10 + (uint64_t)k, TS_SIZES(4, 6)),
                              numbers(20 + (uint64_t)k, TS_SIZES(4, 3))};
        OK(ts_compiled_call(c, batch, 2, NULL, 0));
        int before = ran;
        OK(fn(&b, batch, 2, NULL, 0));
        ran = before;
        check_same_nets(a, b, true);
        check_same_nets(a, b, false);
        if (!_i && k % 4 == 3) { /* the step, outside of the function */
            OK(ts_optimizer_step(a.optimizer));
            OK(ts_optimizer_step(b.optimizer));
            ts_optimizer_zero_grad(a.optimizer);
            ts_optimizer_zero_grad(b.optimizer);
        }
    }
    check_same_states(a, b);
    ck_assert_int_le(ran, 4); /* two plans: with and without gradients before the call */
    ts_compiled_free(c);
    net_free(a);
    net_free(b);
}

/** A gradient penalty: adds the squared gradient at a leaf that the function makes to the loss.
 *  branch 0: the leaf is a mixture of the inputs; 1: it is an alias of input 0; 2: `kept` holds it
 *  for one more call. */
static ts_status penalty(TRACED)
{
    hooks *h = ctx;
    TS_SCOPE;
    ran++;
    ts_tensor *e = ts_uniform(TS_SIZES(ts_size(in[0], 0), 1), 0, 1, TS_F32), *g;
    ts_tensor *x = h->branch == 1 ? in[0] : ts_lerp(in[0], in[1], e);
    x = ts_set_requires_grad(ts_detach(x), true);
    ts_tensor *y = ts_sum(ts_tanh(ts_matmul(x, h->w)));
    TS_TRY(ts_grad_of(y, TS_NONE, &x, 1, &g, TS_OPTS(ts_backward_opts, .create_graph = true)));
    ts_tensor *loss = ts_add(y, ts_sum(ts_mul(g, g)));
    TS_TRY(ts_backward(loss)); /* also makes the gradient of x */
    if (h->branch == 2) {
        ts_release(h->kept);
        h->kept = ts_retain(x);
    }
    out[0] = ts_keep(ts_detach(ts_grad(h->w)));
    ts_zero_grad(h->w);
    return TS_STATUS_OF(out[0]);
}

TS_TEST(leaves_that_the_function_makes_and_releases_allow_replays, .loop = 3)
{
    TS_SCOPE;
    for (int round = 0; round < 4; round++) {
        TS_SCOPE;
        ts_manual_seed(100 * (uint64_t)round + 7);
        int64_t rows, inner, columns;
        OK(ts_item_int(ts_randint(NULL, 0, 1, 40), &rows));
        OK(ts_item_int(ts_randint(NULL, 0, 1, 40), &inner));
        OK(ts_item_int(ts_randint(NULL, 0, 1, 40), &columns));
        ts_tensor *w = ts_uniform(TS_SIZES(inner, columns), -1, 1, TS_F32);
        hooks h = {.branch = _i, .w = ts_set_requires_grad(w, true)};
        hooks eager = {.branch = _i, .w = ts_set_requires_grad(ts_clone(ts_detach(w)), true)};
        ts_compiled *c = replays_of(penalty, &h);
        for (int i = 0; i < 6; i++) {
            TS_SCOPE;
            ts_tensor *x[] = {ts_uniform(TS_SIZES(rows, inner), -1, 1, TS_F32),
                              ts_uniform(TS_SIZES(rows, inner), -1, 1, TS_F32)};
            check_call(c, penalty, &eager, x, 2);
        }
        ck_assert_msg(ran == (_i == 2 ? 6 : 2), "the function ran %d times", ran);
        ck_assert(_i != 2 || explains(c, "the function keeps a tensor that is not an output"));
        ts_compiled_free(c);
        ts_release(h.kept);
        ts_release(eager.kept);
    }
}

/* --------------------------------------------------------------------- what forbids them ---- */

static ts_status reads(TRACED)
{
    double sum;
    ran++;
    TS_TRY(ts_item(ts_sum(in[0]), &sum));
    return TS_STATUS_OF(out[0] = ts_add_scalar(in[0], sum));
}
static ts_status reads_an_input(TRACED)
{
    double first;
    ran++;
    TS_TRY(ts_item(ts_select(ts_reshape(in[0], TS_SIZES(-1)), 0, 0), &first));
    return TS_STATUS_OF(out[0] = ts_neg(in[0]));
}
static ts_status keeps(TRACED)
{
    hooks *h = ctx;
    ran++;
    ts_tensor *t = ts_exp(in[0]);
    ts_release(h->kept);
    h->kept = ts_retain(t);
    return TS_STATUS_OF(out[0] = ts_neg(t));
}
static ts_status keeps_output(TRACED)
{
    hooks *h = ctx;
    ran++;
    TS_TRY(out[0] = ts_exp(in[0]));
    ts_release(h->kept);
    h->kept = ts_retain(out[0]);
    return TS_OK;
}
static ts_status makes_a_constant(TRACED)
{
    hooks *h = ctx;
    ran++;
    float value = (float)++h->branch;
    return TS_STATUS_OF(out[0] = ts_mul(in[0], ts_from_array(&value, TS_F32, TS_SIZES(1))));
}
static ts_status has_history(TRACED)
{
    hooks *h = ctx;
    ran++;
    return TS_STATUS_OF(out[0] = ts_mul(in[0], h->w));
}
static ts_status seeds(TRACED)
{
    ran++;
    ts_manual_seed(3);
    return TS_STATUS_OF(out[0] = ts_dropout(in[0], 0.5, true));
}
static ts_status number_changes(TRACED)
{
    hooks *h = ctx;
    ran++;
    return TS_STATUS_OF(out[0] = ts_mul_scalar(in[0], h->factor));
}
static ts_status calls_nothing(TRACED)
{
    ran++;
    out[0] = in[0];
    return TS_OK;
}

TS_TEST(functions_that_cannot_be_replayed_run_on_each_call, .loop = 9)
{
    static const struct {
        ts_trace_fn fn;
        const char *why;
    } cases[] = {
        {reads, "a read of values, called from "},
        {reads_an_input, "a read of values, called from "},
        {keeps, "the function keeps a tensor that is not an output, of exp, called from "},
        {keeps_output, "the function keeps a tensor that is not an output, of exp, called from "},
        {makes_a_constant, "a tensor that is not an input differs from call to call, of mul"},
        {has_history, "an output with a history"},
        {seeds, "a new state of the generator"},
        {number_changes, "number 'other' of mul, called from "},
        {calls_nothing, "no two calls in a row were equal"},
    };
    TS_SCOPE;
    hooks a = {.w = ts_set_requires_grad(numbers(7, TS_SIZES(3, 4)), true)}, b = a;
    ts_compiled *c = replays_of(cases[_i].fn, &a);
    for (int k = 0; k < 6; k++) {
        TS_SCOPE;
        a.factor = b.factor = 1 + 0.5 * k;
        ts_tensor *x = numbers(10 + (uint64_t)k, TS_SIZES(3, 4)), *got, *want;
        OK(ts_compiled_call(c, &x, 1, &got, 1));
        ck_assert_int_eq(ran, k + 1);
        OK(cases[_i].fn(&b, &x, 1, &want, 1));
        ran = k + 1;
        ck_assert(same(got, want));
        if (a.kept)
            ck_assert(same(a.kept, b.kept));
    }
    ck_assert(explains(c, "mode: the function runs on each call"));
    ck_assert(explains(c, cases[_i].why));
    ts_compiled_free(c);
    ts_release(a.kept), ts_release(b.kept);
}

TS_TEST(layers_anomaly_mode_and_traces_prevent_replays, .loop = 3)
{
    TS_SCOPE;
    hooks a = {.factor = 2};
    ts_compiled *c = replays_of(number_changes, &a);
    ts_tensor *x = numbers(1, TS_SIZES(3, 4)), *y;
    for (int k = 0; k < 4; k++)
        OK(ts_compiled_call(c, &x, 1, &y, 1));
    ck_assert_int_eq(ran, 2);
    if (_i == 0)
        OK(ts_shape_logger(TS_THIS_THREAD, true));
    else if (_i == 1)
        ts_anomaly_enable(true);
    for (int k = 0; k < 3; k++)
        if (_i < 2) {
            OK(ts_compiled_call(c, &x, 1, &y, 1));
        } else {
            ts_graph *graph;
            OK(ts_trace(number_changes, &a, &x, 1, &y, 1, &graph));
            ts_graph_free(graph);
        }
    ck_assert_int_eq(ran, 5);
    ts_anomaly_enable(false);
    OK(ts_shape_logger(TS_THIS_THREAD, false));
    ts_compiled_free(c);
}

/* ------------------------------------------------------------------------------- numbers ---- */

static ts_status declared(TRACED)
{
    hooks *h = ctx;
    ran++;
    TS_TRY(ts_number_from("mul", "other", &h->factor));
    ts_tensor *t = ts_mul_scalar(in[0], h->factor);
    TS_TRY(ts_number_from("mul", "other", &h->other));
    return TS_STATUS_OF(out[0] = ts_mul_scalar(ts_relu(t), h->other));
}

TS_TEST(a_thousand_declared_numbers_need_the_function_twice)
{
    TS_SCOPE;
    hooks a = {0}, b = {0};
    ts_compiled *c = replays_of(declared, &a);
    ts_tensor *x = numbers(1, TS_SIZES(3, 50)), *got, *want;
    for (int k = 0; k < 1000; k++) {
        TS_SCOPE;
        a.factor = b.factor = sin(k);
        a.other = b.other = k % 3; /* both are 0 in call 0 */
        OK(ts_compiled_call(c, &x, 1, &got, 1));
        ck_assert_int_eq(ran, k < 2 ? k + 1 : 2);
        OK(declared(&b, &x, 1, &want, 1));
        ran = k < 2 ? k + 1 : 2;
        ck_assert(same(got, want));
    }
    ts_compiled_free(c);
}

/** Keeps a running mean in h->kept, a tensor that each call replaces. */
static ts_status averages(TRACED)
{
    hooks *h = ctx;
    ran++;
    TS_TRY(ts_replaces(&h->kept));
    ts_tensor *mean = ts_exp(in[0]);
    if (h->kept)
        TS_TRY(mean = ts_add(ts_mul_scalar(h->kept, 0.75), ts_mul_scalar(mean, 0.25)));
    TS_TRY(out[0] = ts_neg(mean));
    ts_release(h->kept);
    h->kept = ts_retain(mean);
    return TS_OK;
}

TS_TEST(a_declared_variable_gets_a_new_tensor_in_each_replay)
{
    TS_SCOPE;
    hooks a = {0}, b = {0};
    ts_compiled *c = replays_of(averages, &a);
    ts_tensor *held = NULL, *copy = NULL;
    for (int k = 0; k < 20; k++) {
        TS_SCOPE;
        ts_tensor *x = numbers((uint64_t)k, TS_SIZES(7)), *got, *want;
        if (k == 12) { /* the program resets the mean */
            ts_release(a.kept), ts_release(b.kept);
            a.kept = b.kept = NULL;
        }
        OK(ts_compiled_call(c, &x, 1, &got, 1));
        int before = ran;
        OK(averages(&b, &x, 1, &want, 1));
        ran = before;
        ck_assert(same(got, want) && same(a.kept, b.kept));
        if (k == 5) {
            held = ts_retain(a.kept);
            copy = ts_retain(ts_clone(a.kept));
        }
    }
    ck_assert(same(held, copy)); /* later calls did not write a.kept of an earlier call */
    ck_assert_int_eq(ran, 4); /* two calls without a tensor in h->kept, two with one */
    ts_compiled_free(c);
    ts_release(held), ts_release(copy), ts_release(a.kept), ts_release(b.kept);
}

typedef struct scaled_net {
    net n;
    ts_grad_scaler *scaler;
    bool update;
} scaled_net;

static ts_status scaled_step(TRACED)
{
    const scaled_net *t = ctx;
    TS_SCOPE;
    ran++;
    ts_tensor *loss = ts_mse_loss(ts_forward(t->n.module, in[0]), in[1]);
    TS_TRY(ts_backward(ts_grad_scaler_scale(t->scaler, loss)));
    TS_TRY(ts_grad_scaler_step(t->scaler, t->n.optimizer));
    ts_optimizer_zero_grad(t->n.optimizer);
    if (t->update)
        TS_TRY(ts_grad_scaler_update(t->scaler));
    out[0] = ts_keep(ts_detach(loss));
    return TS_OK;
}

TS_TEST(steps_with_a_gradient_scaler_skip_and_scale_as_eager_steps, .loop = 2)
{
    TS_SCOPE;
    scaled_net a = {.n = net_new(0, TS_ADAMW), .update = !_i}, b = a;
    b.n = net_new(0, TS_ADAMW);
    ts_grad_scaler_opts opts = {.size = sizeof opts, .init_scale = 1024, .growth_interval = 5};
    OK(a.scaler = ts_grad_scaler_new(&opts));
    OK(b.scaler = ts_grad_scaler_new(&opts));
    ts_compiled *c = replays_of(scaled_step, &a);
    for (int k = 0; k < 30; k++) {
        TS_SCOPE;
        ts_tensor *batch[] = {numbers(10 + (uint64_t)k, TS_SIZES(4, 6)),
                              numbers(20 + (uint64_t)k, TS_SIZES(4, 3))};
        if (k % 9 == 8)
            OK(ts_mul_scalar_(batch[1], 1e38)); /* makes the gradients infinite */
        check_call(c, scaled_step, &b, batch, 2);
        if (_i) {
            OK(ts_grad_scaler_update(a.scaler));
            OK(ts_grad_scaler_update(b.scaler));
        }
        ck_assert(ts_grad_scaler_get_scale(a.scaler) == ts_grad_scaler_get_scale(b.scaler));
        check_same_nets(a.n, b.n, false);
    }
    ck_assert_int_eq(ts_grad_scaler_skipped(a.scaler), ts_grad_scaler_skipped(b.scaler));
    ck_assert_int_gt(ts_grad_scaler_skipped(a.scaler), 2);
    check_same_states(a.n, b.n);
    if (_i) /* the update, outside of the function, changes what the scaler depends on */
        ck_assert(explains(c, "a change of memory that ts_depends_on() declares"));
    else
        ck_assert_int_le(ran, 4);
    ts_compiled_free(c);
    ts_grad_scaler_free(a.scaler), ts_grad_scaler_free(b.scaler);
    net_free(a.n), net_free(b.n);
}

static ts_status wrongly_declared(TRACED)
{
    hooks *h = ctx;
    ran++;
    switch (h->branch) {
    case 0: /* the function changes its declared number */
        h->factor += 1;
        TS_TRY(ts_number_from("mul", "other", &h->factor));
        break;
    case 1: /* the function never calls add */
        TS_TRY(ts_number_from("add", "other", &h->factor));
        break;
    case 2: /* `self` is a tensor */
        TS_TRY(ts_number_from("mul", "self", &h->factor));
        break;
    case 3: /* the call gets h->factor */
        TS_TRY(ts_number_from("mul", "other", &h->other));
        break;
    }
    return TS_STATUS_OF(out[0] = ts_mul_scalar(in[0], h->factor));
}

TS_TEST(wrong_declarations_forbid_replays, .loop = 4)
{
    static const char *const why[] = {"is changed by the function itself", "no call of add took",
                                      "no call of mul took its declared number",
                                      "is not the declared one"};
    TS_SCOPE;
    hooks a = {.factor = 2, .other = 3, .branch = _i};
    ts_compiled *c = replays_of(wrongly_declared, &a);
    ts_tensor *x = numbers(1, TS_SIZES(5)), *y;
    for (int k = 0; k < 5; k++)
        OK(ts_compiled_call(c, &x, 1, &y, 1));
    ck_assert_int_eq(ran, 5);
    ck_assert(explains(c, why[_i]));
    ts_compiled_free(c);
}

static ts_status bad_names(TRACED)
{
    FAILS(TS_ERR_VALUE, ts_number_from("mull", "other", ctx));
    SAYS("number_from: argument 'op': expected an operator, got 'mull'");
    FAILS(TS_ERR_VALUE, ts_number_from("mul", "lr", ctx));
    SAYS("expected an argument of 'mul', got 'lr'");
    FAILS(TS_ERR_NULL, ts_number_from("mul", "other", NULL));
    ts_error_clear();
    return TS_STATUS_OF(out[0] = ts_neg(in[0]));
}
TS_TEST(declarations_are_checked_in_compiled_functions_and_ignored_elsewhere)
{
    TS_SCOPE;
    double cell = 1;
    ts_tensor *x = numbers(1, TS_SIZES(5)), *y;
    ts_compiled *c = replays_of(bad_names, &cell);
    OK(ts_compiled_call(c, &x, 1, &y, 1));
    OK(ts_number_from("mull", "other", &cell));
    OK(ts_counts_from("mull", "steps", NULL, 0));
    OK(ts_depends_on(&cell, sizeof cell));
    FAILS(TS_ERR_NULL, ts_depends_on(NULL, 8));
    ts_state_changed();
    ts_compiled_free(c);
}
