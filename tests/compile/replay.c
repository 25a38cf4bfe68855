/** @file replay.c  Compiled calls without their function: what grants and what forbids them, and
 * the state that they leave. */
#include "core/tensor.h"
#include "tests/threads.h"
#include "tests/tracing/net.h"

#include <math.h>

static int ran; /* calls in which a function ran */

static ts_compiled *replays_of(ts_trace_fn fn, void *ctx)
{
    ran = 0;
    return ts_compile(fn, ctx, TS_OPTS(ts_compile_opts, .name = "fn", .replay = true));
}

/** Whether ts_explain() says so. */
static bool explains(ts_compiled *c, const char *words)
{
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    OK(ts_explain(c, file));
    fclose(file);
    bool is = strstr(text, words) != NULL;
    if (!is)
        fprintf(stderr, "expected '%s' in:\n%s", words, text);
    free(text);
    return is;
}

/* ------------------------------------------------------------------------------ training ---- */

static ts_status step(TRACED)
{
    const net *t = ctx;
    TS_SCOPE;
    ran++;
    ts_tensor *loss = ts_mse_loss(ts_forward(t->module, in[0]), in[1]);
    TS_TRY(ts_backward(loss));
    TS_TRY(ts_optimizer_step(t->optimizer));
    ts_optimizer_zero_grad(t->optimizer);
    out[0] = ts_keep(ts_detach(loss));
    return TS_OK;
}

/** The state of both optimizers has equal names and bits, and so have their numbers. */
static void check_same_states(net a, net b)
{
    ts_named_tensors x, y;
    ts_named_number p[16], q[16];
    OK(ts_optimizer_state(a.optimizer, &x));
    OK(ts_optimizer_state(b.optimizer, &y));
    ck_assert_int_eq(x.n, y.n);
    for (int64_t i = 0; i < x.n; i++) {
        ck_assert_str_eq(x.names[i], y.names[i]);
        ck_assert(same(x.tensors[i], y.tensors[i]));
    }
    ts_named_tensors_free(&x), ts_named_tensors_free(&y);
    int64_t n = ts_optimizer_numbers(a.optimizer, p, 16);
    ck_assert_int_eq(ts_optimizer_numbers(b.optimizer, q, 16), n);
    for (int64_t i = 0; i < n; i++)
        ck_assert(p[i].value == q[i].value);
    ts_tensor *const *u = ts_optimizer_params(a.optimizer, &n),
                     *const *v = ts_optimizer_params(b.optimizer, &n);
    for (int64_t i = 0; i < n; i++)
        ck_assert_uint_eq(ts_version(u[i]), ts_version(v[i]));
}

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
        double read, read_too; /* after the call: no reason against a replay */
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

/** Gradients of several calls are summed in place; a step ends them. */
static ts_status accumulate(TRACED)
{
    const net *t = ctx;
    TS_SCOPE;
    ran++;
    return ts_backward(ts_mse_loss(ts_forward(t->module, in[0]), in[1]));
}
/** The gradients of the call before are there when it begins. */
static ts_status clear_first(TRACED)
{
    const net *t = ctx;
    TS_SCOPE;
    ran++;
    ts_optimizer_zero_grad(t->optimizer);
    TS_TRY(ts_backward(ts_mse_loss(ts_forward(t->module, in[0]), in[1])));
    return ts_optimizer_step(t->optimizer);
}

TS_TEST(gradients_stay_add_up_and_are_replaced_as_in_calls, .loop = 2)
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
        if (!_i && k % 4 == 3) { /* outside of the function */
            OK(ts_optimizer_step(a.optimizer));
            OK(ts_optimizer_step(b.optimizer));
            ts_optimizer_zero_grad(a.optimizer);
            ts_optimizer_zero_grad(b.optimizer);
        }
    }
    check_same_states(a, b);
    ck_assert_int_le(ran, 4); /* with and without gradients before the call */
    ts_compiled_free(c);
    net_free(a);
    net_free(b);
}

/* --------------------------------------------------------------------- what forbids them ---- */

typedef struct hooks {
    double factor, other;
    int64_t count;
    int branch;
    ts_tensor *w, *kept;
    const char *op;
} hooks;

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

TS_TEST(functions_that_a_replay_could_not_stand_for_run_on_each_call, .loop = 9)
{
    static const struct {
        ts_trace_fn fn;
        const char *why;
    } cases[] = {
        {reads, "a read of values, called from "},
        {reads_an_input, "a read of values, called from "},
        {keeps, "the function keeps a tensor that is no output, of exp, called from "},
        {keeps_output, "the function keeps a tensor that is no output, of exp, called from "},
        {makes_a_constant, "a tensor that is no input is another one in each call, of mul"},
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

TS_TEST(layers_anomaly_mode_and_traces_see_every_call, .loop = 3)
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
        a.other = b.other = k % 3; /* equal to the other one, or not */
        OK(ts_compiled_call(c, &x, 1, &got, 1));
        ck_assert_int_eq(ran, k < 2 ? k + 1 : 2);
        OK(declared(&b, &x, 1, &want, 1));
        ran = k < 2 ? k + 1 : 2;
        ck_assert(same(got, want));
    }
    ts_compiled_free(c);
}

static ts_status wrongly_declared(TRACED)
{
    hooks *h = ctx;
    ran++;
    switch (h->branch) {
    case 0: /* the function changes it */
        h->factor += 1;
        TS_TRY(ts_number_from("mul", "other", &h->factor));
        break;
    case 1: /* no call takes it */ TS_TRY(ts_number_from("add", "other", &h->factor)); break;
    case 2: /* it is no number of the call */
        TS_TRY(ts_number_from("mul", "self", &h->factor));
        break;
    case 3: /* another one */ TS_TRY(ts_number_from("mul", "other", &h->other)); break;
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
    SAYS("number_from: argument 'op': no operator 'mull'");
    FAILS(TS_ERR_VALUE, ts_number_from("mul", "lr", ctx));
    SAYS("'mul' has no argument 'lr'");
    FAILS(TS_ERR_NULL, ts_number_from("mul", "other", NULL));
    ts_error_clear();
    return TS_STATUS_OF(out[0] = ts_neg(in[0]));
}
TS_TEST(declarations_are_checked_in_functions_and_do_nothing_elsewhere)
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

/* -------------------------------------------------------------------------------- guards ---- */

static ts_status guarded(TRACED)
{
    hooks *h = ctx;
    ran++;
    TS_TRY(ts_depends_on(&h->branch, sizeof h->branch));
    ts_tensor *t = ts_mul(in[0], h->branch ? ts_exp(h->w) : h->w);
    return TS_STATUS_OF(out[0] = ts_add(ts_dropout(t, 0.25, true), in[1]));
}

/** Calls compiled function and function, which must do the same. */
static void check_call(ts_compiled *c, ts_trace_fn fn, void *other,
                       ts_tensor *const *in, int n)
{
    ts_tensor *got, *want;
    int before = ran;
    ts_rng_state begin = ts_rng_get_state();
    OK(ts_compiled_call(c, in, n, &got, 1));
    int after = ran;
    ts_rng_state end = ts_rng_get_state();
    ts_rng_set_state(begin);
    OK(fn(other, in, n, &want, 1));
    ran = after;
    ck_assert(same(got, want));
    ck_assert_uint_eq(ts_rng_get_state().offset, end.offset);
    ck_assert_int_le(ran - before, 1);
}

/** One thing that a guard watches, `odd` or as at first. */
static void change(int what, hooks *h, ts_tensor **in, bool odd)
{
    static ts_tensor *const *before;
    static ts_tensor *first[2];
    if (!before)
        first[0] = in[0], first[1] = in[1], before = first;
    in[0] = before[0], in[1] = before[1];
    switch (what) {
    case 0: in[0] = odd ? numbers(3, TS_SIZES(1, 4)) : in[0]; break;             /* sizes */
    case 1: in[0] = odd ? ts_to(in[0], TS_F64) : in[0]; break;                   /* dtype */
    case 2:                                                                      /* strides */
        if (odd)
            in[0] = ts_transpose(ts_contiguous(ts_transpose(in[0], 0, 1)), 0, 1);
        break;
    case 3: in[1] = odd ? ts_narrow(numbers(4, TS_SIZES(9)), 0, 1, 4) : in[1]; break; /* offset */
    case 4: in[1] = odd ? ts_select(in[0], 0, 1) : in[1]; break;                 /* alias */
    case 5: h->branch = odd; break;                                              /* memory */
    case 6: /* the mode that a layer knows */
        ts_state_changed();
        break;
    case 7: OK(ts_set_deterministic(odd)); break;
    case 8: in[1] = odd ? h->w : in[1]; break; /* an input that the function has as well */
    }
}

TS_TEST(each_guard_brings_the_function_back_and_only_where_it_fails, .loop = 9)
{
    TS_SCOPE;
    TS_NO_GRAD;
    hooks a = {.w = numbers(7, TS_SIZES(3, 4))};
    ts_tensor *in[] = {numbers(1, TS_SIZES(3, 4)), numbers(2, TS_SIZES(4))};
    if (_i == 8)
        in[1] = numbers(2, TS_SIZES(3, 4));
    ts_compiled *c = replays_of(guarded, &a);
    ts_manual_seed(4);
    for (int k = 0; k < 5; k++)
        check_call(c, guarded, &a, in, 2);
    ck_assert_int_eq(ran, 2);
    for (int turn = 0; turn < 3; turn++)
        for (int odd = 1; odd >= 0; odd--) {
            change(_i, &a, in, odd);
            int before = ran;
            for (int k = 0; k < 4; k++)
                check_call(c, guarded, &a, in, 2);
            /* one replay a plan: where both use one, it is made of the last two calls */
            ck_assert_msg(ran - before <= (_i == 7 || (turn == 0 && odd) ? 2 : 1),
                          "turn %d, odd %d: ran %d times", turn, odd, ran - before);
            ck_assert(ran > before || turn || !odd);
        }
    ck_assert_int_le(ts_compiled_get_stats(c).compiles, 2);
    ts_compiled_free(c);
}

TS_TEST(new_inputs_are_no_reason_and_inputs_that_meet_are)
{
    TS_SCOPE;
    TS_NO_GRAD;
    hooks a = {.w = numbers(7, TS_SIZES(4))};
    ts_compiled *c = replays_of(guarded, &a);
    ts_tensor *one = numbers(50, TS_SIZES(4));
    for (int k = 0; k < 30; k++) {
        TS_SCOPE;
        ts_tensor *in[] = {numbers((uint64_t)k, TS_SIZES(4)), numbers(99, TS_SIZES(4))};
        if (k == 10 || k == 20)
            in[0] = in[1] = one; /* the same tensor twice is another call */
        if (k == 15)
            in[1] = a.w; /* and so is a tensor that the function has */
        check_call(c, guarded, &a, in, 2);
    }
    ck_assert_int_le(ran, 6);
    ck_assert_int_ge(ts_compiled_get_stats(c).skipped, 24);
    ts_compiled_free(c);
}

static ts_tensor *doubled(void *payload, ts_tensor *g)
{
    (void)payload;
    return ts_mul_scalar(g, 2);
}

TS_TEST(the_mode_of_a_module_and_another_optimizer_bring_the_function_back)
{
    TS_SCOPE;
    net a = net_new(0.5, TS_ADAMW), b = net_new(0.5, TS_ADAMW);
    ts_compiled *c = replays_of(step, &a);
    for (int k = 0; k < 60; k++) {
        TS_SCOPE;
        ts_tensor *batch[] = {numbers(10 + (uint64_t)k, TS_SIZES(4, 6)),
                              numbers(20 + (uint64_t)k, TS_SIZES(4, 3))};
        if (k % 10 == 5) {
            ts_module_train(a.module, k % 20 == 5);
            ts_module_train(b.module, k % 20 == 5);
        }
        if (k == 30) { /* an optimizer ends, another one begins */
            ts_group_opts opts = ts_optimizer_defaults(TS_ADAMW, 0.05);
            ts_optimizer_free(a.optimizer), ts_optimizer_free(b.optimizer);
            OK(a.optimizer = ts_optimizer_for(a.module, TS_ADAMW, &opts));
            OK(b.optimizer = ts_optimizer_for(b.module, TS_ADAMW, &opts));
        }
        if (k == 40) { /* a parameter is frozen: its moments do not move any more */
            int64_t n;
            OK(ts_set_requires_grad(ts_optimizer_params(a.optimizer, &n)[0], false));
            OK(ts_set_requires_grad(ts_optimizer_params(b.optimizer, &n)[0], false));
        }
        if (k == 50 || k == 55) { /* a hook doubles a gradient */
            static ts_hook *hooks[2];
            int64_t n;
            ts_tensor *p = ts_optimizer_params(a.optimizer, &n)[1],
                      *q = ts_optimizer_params(b.optimizer, &n)[1];
            if (k == 50) {
                OK(ts_register_hook(p, doubled, NULL, &hooks[0]));
                OK(ts_register_hook(q, doubled, NULL, &hooks[1]));
            } else {
                ts_hook_remove(p, hooks[0]), ts_hook_remove(q, hooks[1]);
            }
        }
        check_call(c, step, &b, batch, 2);
        check_same_nets(a, b, false);
        check_same_states(a, b);
    }
    ck_assert_int_ge(ts_compiled_get_stats(c).skipped, 35);
    ts_compiled_free(c);
    net_free(a);
    net_free(b);
}

static ts_status with_buffer(TRACED)
{
    hooks *h = ctx;
    ran++;
    TS_TRY(ts_add_(h->w, in[0]));
    return TS_STATUS_OF(out[0] = ts_mul(h->w, in[0]));
}

TS_TEST(a_tensor_that_the_program_gave_up_brings_the_function_back)
{
    TS_SCOPE;
    hooks a = {0}, b = {.w = numbers(7, TS_SIZES(5))};
    {
        TS_SCOPE;
        a.w = ts_retain(numbers(7, TS_SIZES(5)));
    }
    ts_compiled *c = replays_of(with_buffer, &a);
    for (int k = 0; k < 20; k++) {
        TS_SCOPE;
        ts_tensor *x = numbers((uint64_t)k, TS_SIZES(5));
        if (k == 10) {
            ts_release(a.w);
            a.w = ts_retain(numbers(8, TS_SIZES(5)));
            OK(ts_copy_(b.w, a.w));
        }
        check_call(c, with_buffer, &b, &x, 1);
        ck_assert(same(a.w, b.w));
        ck_assert_uint_eq(ts_version(a.w) + (k >= 10 ? 11 : 0), ts_version(b.w));
    }
    ck_assert_int_le(ran, 4);
    ts_compiled_free(c);
    ts_release(a.w);
}

/* ------------------------------------------------------------------------------ aliasing ---- */

static ts_status write_input(TRACED)
{
    ran++;
    ts_tensor *row = ts_select(in[0], 0, 1);
    TS_TRY(ts_mul_scalar_(in[0], 2));
    TS_TRY(ts_add_(row, in[1]));
    out[0] = in[0];
    out[1] = row;
    return TS_STATUS_OF(out[2] = ts_add(row, in[1]));
}
static ts_status same_twice(TRACED)
{
    ran++;
    out[0] = out[1] = ts_add(ts_select(in[0], 0, 0), in[1]);
    out[2] = ts_select(ts_reshape(out[0], TS_SIZES(2, 2)), 0, 1); /* a view of an output */
    return TS_STATUS_OF(out[2]);
}
static ts_status captured_output(TRACED)
{
    hooks *h = ctx;
    ran++;
    TS_TRY(ts_add_(h->w, in[1]));
    out[0] = h->w;
    out[1] = ts_narrow(h->w, 0, 1, 2);
    out[2] = TS_NONE;
    return TS_STATUS_OF(out[1]);
}

TS_TEST(outputs_alias_what_they_alias_in_calls, .loop = 3)
{
    static const ts_trace_fn all[] = {write_input, same_twice, captured_output};
    enum { CALLS = 8 };
    TS_SCOPE;
    hooks a = {.w = numbers(7, TS_SIZES(4))}, b = {.w = numbers(7, TS_SIZES(4))};
    ts_compiled *c = replays_of(all[_i], &a);
    ts_tensor *got[CALLS][3], *want[CALLS][3];
    for (int k = 0; k < CALLS; k++) {
        ts_tensor *in[] = {numbers((uint64_t)k, TS_SIZES(2, 4)), numbers(9, TS_SIZES(4))},
                  *too[] = {ts_clone(in[0]), ts_clone(in[1])};
        OK(ts_compiled_call(c, in, 2, got[k], 3));
        int before = ran;
        OK(all[_i](&b, too, 2, want[k], 3));
        ran = before;
        ck_assert(same(in[0], too[0]));
        ck_assert_uint_eq(ts_version(in[0]), ts_version(too[0]));
        for (int i = 0; i < 3; i++)
            for (int j = 0; j < 3; j++)
                if (got[k][i] != TS_NONE && got[k][j] != TS_NONE) {
                    ck_assert_int_eq(got[k][i] == got[k][j], want[k][i] == want[k][j]);
                    bool alias = want[k][i]->storage == want[k][j]->storage;
                    ck_assert_int_eq(got[k][i]->storage == got[k][j]->storage, alias);
                    ck_assert_int_eq(alias ? got[k][i]->data - got[k][j]->data : 0,
                                     alias ? want[k][i]->data - want[k][j]->data : 0);
                }
        ck_assert_int_eq(got[k][0] == in[0], want[k][0] == too[0]);
        ck_assert_int_eq(got[k][0] == a.w, want[k][0] == b.w);
    }
    for (int k = 0; k < CALLS; k++)
        for (int i = 0; i < 3; i++) /* later calls have not overwritten it */
            ck_assert(same(got[k][i], want[k][i]));
    ck_assert_int_eq(ran, 2);
    ts_compiled_free(c);
}

static ts_status decay(TRACED)
{
    ran++;
    return TS_STATUS_OF(out[0] = ts_tanh(ts_mul_scalar(in[0], 0.5)));
}

TS_TEST(an_output_may_be_the_next_input_and_draws_between_calls_stay_in_order)
{
    TS_SCOPE;
    ts_compiled *c = replays_of(decay, NULL);
    ts_tensor *x = numbers(1, TS_SIZES(300)), *y = x, *next;
    for (int k = 0; k < 20; k++) {
        OK(ts_compiled_call(c, &x, 1, &next, 1));
        x = next;
        OK(decay(NULL, &y, 1, &next, 1));
        y = next;
        ck_assert(same(x, y));
    }
    ck_assert_int_eq(ran, 22);
    ts_compiled_free(c);
}

static ts_status drops(TRACED)
{
    ran++;
    ts_tensor *t = ts_dropout(in[0], 0.5, true);
    return TS_STATUS_OF(out[0] = ts_add(t, ts_dropout(in[0], 0.5, true)));
}

TS_TEST(masks_are_those_of_calls_wherever_the_generator_is)
{
    TS_SCOPE;
    ts_compiled *c = replays_of(drops, NULL);
    ts_tensor *x = ts_ones(TS_SIZES(64), TS_F32), *last = NULL, *y;
    for (int k = 0; k < 30; k++) {
        if (k % 7 == 6)
            ts_manual_seed((uint64_t)k); /* between calls */
        if (k % 5 == 4)
            OK(ts_normal(TS_SIZES(3), 0, 1, TS_F32));
        ts_rng_state begin = ts_rng_get_state();
        check_call(c, drops, NULL, &x, 1);
        ts_rng_set_state(begin);
        OK(ts_compiled_call(c, &x, 1, &y, 1));
        ck_assert(!last || !same(last, y));
        last = y;
    }
    ck_assert_int_eq(ran, 2);
    ts_compiled_free(c);
}

/* ------------------------------------------------------------------ what they cannot see ---- */

static ts_status counts_calls(TRACED)
{
    hooks *h = ctx;
    ran++;
    h->count++;
    return TS_STATUS_OF(out[0] = h->count % h->branch ? ts_neg(in[0]) : ts_exp(in[0]));
}

TS_TEST(a_call_that_differs_although_no_guard_does_is_not_granted)
{
    TS_SCOPE;
    hooks a = {.branch = 2}, b = a; /* every other call is another one */
    ts_compiled *c = replays_of(counts_calls, &a);
    ts_tensor *x = numbers(1, TS_SIZES(3)), *got, *want;
    for (int k = 0; k < 20; k++) {
        OK(ts_compiled_call(c, &x, 1, &got, 1));
        OK(counts_calls(&b, &x, 1, &want, 1));
        ck_assert(same(got, want));
    }
    ck_assert_int_eq(ran, 40);
    ck_assert(explains(c, "calls differ although no guard does"));
    ts_compiled_free(c);
}

static int warnings;
static void on_log(void *payload, const char *topic, const char *text)
{
    (void)payload;
    warnings += strcmp(topic, "warning") == 0 && strstr(text, "no more replays") != NULL;
}

TS_TEST(verify_finds_a_branch_that_no_guard_sees)
{
    TS_SCOPE;
    hooks a = {.branch = 1000}, b = a;
    warnings = 0;
    ran = 0;
    ts_log_set_callback(on_log, NULL);
    ts_compiled *c = ts_compile(
        counts_calls, &a, TS_OPTS(ts_compile_opts, .replay = true, .verify = 5));
    ts_tensor *x = numbers(1, TS_SIZES(3)), *got, *want;
    for (int k = 0; k < 40; k++) {
        if (k == 20)
            a.branch = b.branch = 1; /* from now on it calls exp */
        OK(ts_compiled_call(c, &x, 1, &got, 1));
        int before = ran;
        OK(counts_calls(&b, &x, 1, &want, 1));
        ran = before;
        if (k < 20 || k > 25)
            ck_assert(same(got, want));
    }
    ts_log_set_callback(NULL, NULL);
    ts_compile_stats stats = ts_compiled_get_stats(c);
    ck_assert_int_ge(stats.verified, 4);
    ck_assert_int_ge(stats.skipped, 10);
    ck_assert_int_eq(warnings, 1);
    ck_assert(explains(c, "a check found another call than a replay makes"));
    ck_assert(explains(c, "mode: the function runs on each call"));
    ts_compiled_free(c);
}

/* ----------------------------------------------------------------------------- the rest ---- */

static ts_status fails_at_a_place(TRACED)
{
    ran++;
    return TS_STATUS_OF(out[0] = ts_index_select(in[0], 0, in[1]));
}

TS_TEST(an_error_of_a_replay_is_that_of_the_call_and_the_next_one_works)
{
    TS_SCOPE;
    ts_compiled *c = replays_of(fails_at_a_place, NULL);
    ts_tensor *x = numbers(1, TS_SIZES(3, 2)), *y;
    for (int k = 0; k < 8; k++) {
        TS_SCOPE;
        int64_t places[] = {0, k == 5 ? 7 : 2};
        ts_tensor *in[] = {x, ts_from_array(places, TS_I64, TS_SIZES(2))};
        if (k == 5) {
            FAILS(TS_ERR_INDEX, ts_compiled_call(c, in, 2, &y, 1));
            SAYS("7");
            ck_assert_ptr_null(y);
        } else {
            OK(ts_compiled_call(c, in, 2, &y, 1));
        }
    }
    ck_assert_int_eq(ran, 2);
    ts_compiled_free(c);
}

static ts_status pure(TRACED)
{
    return TS_STATUS_OF(out[0] = ts_gelu(ts_mul(in[0], in[0])));
}
static ts_compiled *shared;
static bool call_shared(int number, void *ctx)
{
    (void)ctx;
    bool good = true;
    for (int k = 0; k < 50 && good; k++) {
        TS_SCOPE;
        ts_tensor *x = numbers((uint64_t)(100 * number + k), TS_SIZES(40)), *got = NULL, *want;
        good = ts_compiled_call(shared, &x, 1, &got, 1) == TS_OK &&
               pure(NULL, &x, 1, &want, 1) == TS_OK && same(got, want);
    }
    return good;
}

TS_TEST(threads_replay_and_run_the_function_beside_each_other, .threads = true)
{
    shared = replays_of(pure, NULL);
    ck_assert_int_eq(ts_together(4, call_shared, NULL), 4);
    ck_assert_int_gt(ts_compiled_get_stats(shared).skipped, 20);
    ts_compiled_free(shared);
}

TS_TEST(storages_that_replays_hold_are_written_in_place_as_ever)
{
    TS_SCOPE;
    hooks a = {.w = numbers(7, TS_SIZES(5))};
    ts_compiled *c = replays_of(with_buffer, &a);
    ts_tensor *x = numbers(1, TS_SIZES(5)), *y;
    for (int k = 0; k < 4; k++)
        OK(ts_compiled_call(c, &x, 1, &y, 1));
    ts_tensor *leaf = ts_set_requires_grad(numbers(2, TS_SIZES(5)), true);
    OK(ts_mul_(a.w, leaf)); /* recorded: an error for memory that another tensor shares */
    ts_compiled_free(c);
}
