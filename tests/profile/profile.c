/** @file profile.c  Tests of profiles: each call is counted with its work, time, scope and step. */
// SPDX-License-Identifier: MIT
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "core/testing.h"
#include "dispatch/timers_state.h"
#include "profile/profile.h"
#include "tests/dispatch/common.h"
#include "tests/profile/take.h"

TS_TEST(calls_have_rows_by_shape_with_their_work)
{
    BEGIN;
    TS_SCOPE;
    ts_tensor *a = ts_ones(TS_SIZES(6, 10), TS_F32), *b = ts_ones(TS_SIZES(10, 14), TS_F32),
              *row = ts_ones(TS_SIZES(10), TS_F32);
    OK(ts_prof_start(NULL));
    for (int i = 0; i < 5; i++)
        OK(ts_mm(a, b));
    for (int i = 0; i < 3; i++)
        OK(ts_add(a, row));
    OK(ts_add(a, a));
    OK(ts_transpose(a, 0, 1));
    ts_profile *p = take();
    const ts_entry *mm = must_find(p, "mm((6, 10) f32, (10, 14) f32)");
    ck_assert_int_eq(mm->calls, 5);
    ck_assert_double_eq(mm->flops, 5 * 2.0 * 6 * 10 * 14);
    ck_assert_double_eq(mm->bytes, 5 * 4.0 * (60 + 140 + 84));
    const ts_entry *wide = must_find(p, "add((6, 10) f32, (10) f32)");
    ck_assert_int_eq(wide->calls, 3);
    ck_assert_double_eq(wide->flops, 3 * 60.0);
    ck_assert_double_eq(wide->bytes, 3 * 4.0 * (60 + 10 + 60));
    ck_assert_int_eq(must_find(p, "add((6, 10) f32, (6, 10) f32)")->calls, 1);
    ck_assert_double_eq(must_find(p, "transpose(")->bytes, 0);
    sums(p);
    ts_profile_free(p);
}

/** The work of a composite's inner calls is counted once. */
TS_TEST(composites_and_calls_inside_calls_count_once)
{
    BEGIN;
    TS_SCOPE;
    ts_tensor *x = ts_ones(TS_SIZES(4, 6), TS_F32), *w = ts_ones(TS_SIZES(8, 6), TS_F32),
              *h = ts_ones(TS_SIZES(4, 6), TS_BF16);
    OK(ts_prof_start(NULL));
    OK(ts_matmul(x, ts_t(w)));
    OK(ts_linear_gelu(x, w, TS_NONE, false, NULL));
    OK(ts_cumsum(h, 0));
    ts_profile *p = take();
    double products = 0;
    for (int64_t i = 0; i < p->count; i++)
        if (p->entries[i].product)
            products += p->entries[i].flops;
    ck_assert_double_eq(products, 2 * 2.0 * 4 * 6 * 8);
    sums(p);
    ts_profile_free(p);
}

TS_TEST(backward_scopes_and_layers_have_rows_of_their_own)
{
    BEGIN;
    ts_tensor *w = ts_set_requires_grad(ts_ones(TS_SIZES(3), TS_F32), true);
    OK(ts_prof_start(NULL));
    for (int i = 0; i < 4; i++) {
        TS_SCOPE;
        TS_PROF_SCOPE("train");
        ts_tensor *y;
        {
            TS_PROF_SCOPE("data");
            y = ts_full(TS_SIZES(3), ts_scalar_int(2), TS_F32);
        }
        OK(ts_backward(ts_sum(ts_mul(w, y))));
        OK(ts_prof_enter("odd;name/x"));
        OK(ts_exp(y));
        ts_prof_leave();
    }
    OK(ts_exp(w));
    ts_profile *p = take();
    int in_data = 0, in_backward = 0, odd = 0, at_top = 0;
    for (int64_t i = 0; i < p->count; i++) {
        const ts_entry *e = &p->entries[i];
        bool exp = strcmp(e->op, "exp") == 0 && e->kernel;
        if (strcmp(e->scope, "train/data") == 0 && strcmp(e->op, "full") == 0)
            in_data += (int)e->calls;
        in_backward += strcmp(e->scope, "train/backward") == 0 && e->kernel ? (int)e->calls : 0;
        odd += exp && strcmp(e->scope, "train/odd_name_x") == 0 ? (int)e->calls : 0;
        at_top += exp && !e->scope[0] ? (int)e->calls : 0;
        if (strcmp(e->scope, "train/data") == 0)
            ck_assert_str_eq(ts_entry_phase(e), "data");
        if (strcmp(e->scope, "train/backward") == 0)
            ck_assert_str_eq(ts_entry_phase(e), "backward");
    }
    ck_assert_int_eq(in_data, 4);
    ck_assert_int_ge(in_backward, 4);
    ck_assert_int_eq(odd, 4);
    ck_assert_int_eq(at_top, 1);
    sums(p);
    ts_profile_free(p);
    FAILS(TS_ERR_NULL, ts_prof_enter(NULL));
    ts_prof_leave(); /* none is open */
}

/** Trains `steps` steps with SGD. marks: calls ts_prof_step() after each. */
static void train(int steps, bool marks)
{
    ts_tensor *w = ts_set_requires_grad(ts_ones(TS_SIZES(3), TS_F32), true);
    ts_optimizer *o = ts_optimizer_new(TS_SGD);
    OK(o);
    OK(ts_optimizer_add_group(o, (const char *[]){"w"}, &w, 1, TS_OPTS(ts_group_opts, .lr = 0.1)));
    for (int i = 0; i < steps; i++) {
        TS_SCOPE;
        OK(ts_backward(ts_sum(ts_mul(w, w))));
        OK(ts_optimizer_step(o));
        ts_optimizer_zero_grad(o);
        if (marks)
            ts_prof_step();
    }
    ts_optimizer_free(o);
}

TS_TEST(steps_end_after_updates_or_at_marks_of_the_program)
{
    BEGIN;
    OK(ts_prof_start(NULL));
    train(7, false);
    OK(ts_ones(TS_SIZES(1), TS_F32)); /* time after the last update */
    ts_profile *p = take();
    ck_assert_int_eq(p->nsteps, 7);
    double sum = 0;
    for (int64_t i = 0; i < p->nsteps; i++) {
        const ts_step_times *s = &p->steps[i];
        ck_assert_double_gt(s->wall_ns, 0);
        ck_assert_double_eq_tol(s->kernels_ns + s->layers_ns + s->outside_ns + s->profiler_ns,
                                s->wall_ns, 1);
        sum += s->wall_ns;
    }
    ck_assert_double_le(sum, p->wall_ns + 1);
    ts_profile_free(p);

    OK(ts_prof_start(NULL));
    ts_prof_step(); /* from here on the program marks them */
    train(4, true);
    p = take();
    ck_assert_int_eq(p->nsteps, 5);
    ts_profile_free(p);
}

TS_TEST(only_the_requested_steps_are_recorded)
{
    BEGIN;
    OK(ts_prof_start(TS_OPTS(ts_prof_opts, .first_step = 3, .last_step = 5)));
    train(9, true);
    ck_assert(!ts_prof_active());
    ts_profile *p = ts_profile_take();
    OK(p);
    ck_assert_int_eq(p->first_step, 3);
    ck_assert_int_eq(p->nsteps, 3);
    ck_assert_int_eq(must_find(p, "sgd")->calls, 3);
    sums(p);
    ts_profile_free(p);
    FAILS(TS_ERR_VALUE, ts_prof_start(TS_OPTS(ts_prof_opts, .first_step = 3, .last_step = 2)));
    FAILS(TS_ERR_VALUE, ts_prof_start(TS_OPTS(ts_prof_opts, .first_step = -1)));
}

/** Calls after the last step, timed by the program, are not part of the profile. */
TS_TEST(a_profile_may_end_while_timers_continue)
{
    BEGIN;
    OK(ts_timers_enable(true));
    OK(ts_prof_start(TS_OPTS(ts_prof_opts, .last_step = 2)));
    train(5, false);
    double begin = seconds();
    while (seconds() - begin < 0.05)
        OK(ts_fill_(one(), 3));
    ts_profile *p = ts_profile_take();
    OK(p);
    ck_assert_int_eq(p->nsteps, 2);
    ck_assert_int_eq(must_find(p, "sgd")->calls, 2);
    ck_assert_int_eq(ts_timers_get("sgd", "CPU").calls, 5);
    ck_assert_double_lt(p->wall_ns, 0.05e9);
    sums(p);
    ts_timer_totals t = ts_timers_totals();
    ck_assert_double_eq_tol(t.attributed_ns + t.overhead_ns + t.unattributed_ns, t.wall_ns,
                            1e-9 * t.wall_ns + 1);
    ck_assert_double_gt(t.wall_ns, 0.05e9);
    ts_profile_free(p);
}

TS_TEST(a_profile_and_the_timers_read_the_same_counters)
{
    BEGIN;
    ts_tensor *a = one();
    OK(ts_timers_enable(true));
    OK(ts_prof_start(NULL));
    for (int i = 0; i < 11; i++)
        ts_drop(ts_add(a, a));
    ck_assert_uint_eq(ts_timers_get("add", "CPU").calls, 11);
    OK(ts_timers_enable(false)); /* the profile continues */
    ts_drop(ts_add(a, a));
    ts_profile *p = take();
    ck_assert_int_eq(must_find(p, "add(")->calls, 12);
    ck_assert_uint_eq(ts_timers_get("add", "CPU").calls, 12);
    ts_timer_totals t = ts_timers_totals();
    ck_assert_double_eq_tol(t.attributed_ns + t.overhead_ns + t.unattributed_ns, t.wall_ns,
                            1e-9 * t.wall_ns + 1);
    ts_profile_free(p);
    ts_drop(ts_add(a, a));
    ck_assert_uint_eq(ts_timers_get("add", "CPU").calls, 12);
    FAILS(TS_ERR_STATE, (ts_prof_start(NULL), ts_prof_start(NULL)));
    FAILS(TS_ERR_STATE, ts_profile_take());
    ts_prof_machine m = {.size = sizeof m};
    FAILS(TS_ERR_STATE, ts_prof_calibrate(false, &m));
    OK(ts_prof_stop());
    OK(ts_prof_stop());
}

TS_TEST(calls_with_shapes_beyond_the_limit_are_counted)
{
    BEGIN;
    enum { SHAPES = TS_TALLY_CHUNK * TS_TALLY_CHUNKS + 100 };
    OK(ts_prof_start(NULL));
    for (int i = 1; i <= SHAPES; i++) {
        TS_SCOPE;
        ts_tensor *t = ts_empty(TS_SIZES(1 + i % 7, i), TS_U8);
        OK(ts_fill_(t, 1));
    }
    ts_profile *p = take();
    int64_t calls = 0;
    for (int64_t i = 0; i < p->count; i++)
        calls += strcmp(p->entries[i].op, "fill") == 0 ? p->entries[i].calls : 0;
    ck_assert_int_eq(calls, SHAPES);
    ck_assert_int_gt(p->shared_calls, 0);
    sums(p);
    ts_profile_free(p);
}

/** Enters `scopes` scopes inside "around", each with two calls in a scope "inside". */
static void call_in_scopes(int scopes)
{
    char name[32];
    TS_PROF_SCOPE("around");
    for (int i = 0; i < scopes; i++) {
        TS_SCOPE;
        snprintf(name, sizeof name, "part %d", i);
        TS_PROF_SCOPE(name);
        TS_PROF_SCOPE("inside");
        OK(ts_exp(ts_ones(TS_SIZES(1 + i % 5), TS_F32)));
    }
    OK(ts_sin(one()));
}

/** Full tables: for rows by shape, for rows by scope, and for the names of scopes. */
TS_TEST(calls_in_scopes_beyond_the_limit_are_counted, .loop = 6)
{
    BEGIN;
    static const int scopes[] = {2000, 3000, 9000};
    OK(ts_prof_start(TS_OPTS(ts_prof_opts, .detail = _i % 2, .trace = _i % 2)));
    call_in_scopes(scopes[_i / 2]);
    ts_profile *p = take();
    int64_t calls[2] = {0}, in_rest = 0, shared = 0;
    for (int64_t i = 0; i < p->count; i++) {
        const ts_entry *e = &p->entries[i];
        bool rest = strcmp(e->scope, "(further scopes)") == 0, exp = strcmp(e->op, "exp") == 0;
        if (!e->kernel)
            continue;
        calls[exp] += exp || strcmp(e->op, "full") == 0 ? e->calls : 0;
        in_rest += rest ? e->calls : 0;
        shared += strcmp(e->call, e->op) == 0 ? e->calls : 0;
        ck_assert(!exp || rest || strncmp(e->scope, "around/part ", 12) == 0);
        if (strcmp(e->op, "sin") == 0)
            ck_assert_str_eq(e->scope, "around");
    }
    ck_assert_int_eq(calls[true], scopes[_i / 2]);
    ck_assert_int_eq(calls[false], scopes[_i / 2] + 1);
    ck_assert_int_eq(p->shared_calls, shared);
    ck_assert_int_eq(in_rest > 0, scopes[_i / 2] * 2 >= TS_SCOPES_MOST);
    sums(p);
    ts_profile_free(p);
}

static ts_status slow_kernel(ts_frame *f)
{
    double begin = seconds();
    while (seconds() - begin < 2e-3)
        ;
    return ts_kernel_give(f, 0, f->args[0].t);
}

TS_TEST(an_op_without_a_cost_is_unknown_and_not_zero)
{
    BEGIN;
    OK(ts_register_op_ex("test.secret(Tensor a) -> Tensor", NULL, NULL));
    OK(ts_register_kernel_ex("test.secret", TS_KEY_CPU, slow_kernel, NULL, NULL));
    ts_tensor *a = one();
    ts_value args[] = {ts_value_tensor(a)}, ret = ts_value_none();
    OK(ts_prof_start(NULL));
    OK(ts_call_boxed(ts_op_by_name("test.secret"), args, 1, &ret, 1));
    ts_release(ret.t);
    ts_profile *p = take();
    const ts_entry *e = must_find(p, "test.secret");
    ck_assert_int_eq(e->unknown, 1);
    ck_assert_int_eq(e->regime, TS_REGIME_UNKNOWN);
    ck_assert_double_gt(p->shares.unknown, 0.5);
    ck_assert_str_eq(p->shares.verdict, "unreliable");
    ts_profile_free(p);
}

TS_TEST(failed_calls_have_no_work)
{
    BEGIN;
    TS_SCOPE;
    ts_tensor *a = ts_ones(TS_SIZES(2, 3), TS_F32);
    OK(ts_prof_start(NULL));
    FAILS(TS_ERR_SHAPE, ts_mm(a, a));
    ts_profile *p = take();
    ck_assert_int_eq(must_find(p, "mm(")->calls, 1);
    ck_assert_double_eq(must_find(p, "mm(")->flops, 0);
    sums(p);
    ts_profile_free(p);
}

static ts_work cost_of_hundred(const ts_frame *f)
{
    (void)f;
    return (ts_work){100, 100};
}

static ts_status resetting_kernel(ts_frame *f)
{
    ts_timers_reset();
    OK(ts_exp(f->args[0].t)); /* the thread clears its rows at the next call */
    return ts_kernel_give(f, 0, f->args[0].t);
}

TS_TEST(a_reset_inside_a_call_adds_no_earlier_work_to_it)
{
    BEGIN;
    TS_SCOPE;
    ts_tensor *square = ts_ones(TS_SIZES(64, 64), TS_F32);
    OK(ts_register_op_ex("test.resets(Tensor a) -> Tensor",
                         TS_OPTS(ts_op_opts, .cost = cost_of_hundred), NULL));
    OK(ts_register_kernel_ex("test.resets", TS_KEY_CPU, resetting_kernel, NULL, NULL));
    ts_value args[] = {ts_value_tensor(one())}, ret = ts_value_none();
    OK(ts_prof_start(NULL));
    for (int i = 0; i < 10; i++)
        OK(ts_mm(square, square));
    OK(ts_call_boxed(ts_op_by_name("test.resets"), args, 1, &ret, 1));
    ts_release(ret.t);
    ts_profile *p = take();
    double flops = 0;
    for (int64_t i = 0; i < p->count; i++)
        flops += p->entries[i].flops;
    ck_assert_double_gt(flops, 0);
    ck_assert_double_le(flops, 100);
    ts_profile_free(p);
}

TS_TEST(a_profile_keeps_no_tensor_alive)
{
    BEGIN;
    ts_memory_stats before = {0}, after;
    OK(ts_prof_start(NULL));
    for (int turn = 0; turn < 2; turn++) {
        if (turn == 1)
            before = ts_memory_get_stats();
        for (int i = 0; i < 200; i++) {
            TS_SCOPE;
            OK(ts_exp(ts_ones(TS_SIZES(64, 64), TS_F32)));
        }
    }
    after = ts_memory_get_stats();
    ck_assert_int_eq(after.in_use, before.in_use);
    OK(ts_prof_stop());
}

TS_TEST(calls_of_a_module_are_in_its_scope_forward_and_backward)
{
    BEGIN;
    TS_SCOPE;
    char *text = NULL;
    size_t size = 0;
    ts_module *net = ts_sequential_new(), *tail = ts_sequential_new();
    OK(ts_sequential_add(tail, ts_activation_new("ReLU", ts_relu)));
    OK(ts_sequential_add(tail, ts_linear_new(3, 2, true)));
    OK(ts_sequential_add(net, ts_linear_new(4, 3, true)));
    OK(ts_sequential_add(net, tail));
    ts_tensor *x = ts_ones(TS_SIZES(5, 4), TS_F32);
    OK(ts_prof_start(NULL));
    {
        TS_PROF_SCOPE("forward");
        x = ts_forward(net, x);
    }
    OK(ts_backward(ts_sum(x)));
    ts_profile *p = take();
    sums(p);
    FILE *out = open_memstream(&text, &size);
    OK(ts_profile_write(p, out, TS_PROFILE_FOLDED));
    fclose(out);
    static const char *const wanted[] = {
        "forward;Sequential;0;linear",     "backward;Sequential;0;linear_backward",
        "forward;Sequential;1;0;relu",     "backward;Sequential;1;0;threshold_backward",
        "forward;Sequential;1;1;linear",   "backward;Sequential;1;1;linear_backward",
    };
    for (int i = 0; i < 6; i++)
        ck_assert_msg(strstr(text, wanted[i]), "no %s in\n%s", wanted[i], text);
    ck_assert_ptr_null(strstr(text, "backward;forward"));
    free(text);
    ts_profile_free(p);
    ts_module_free(net);
}
