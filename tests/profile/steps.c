/** @file steps.c  Tests of where steps end, also in programs that compile their steps. */
// SPDX-License-Identifier: MIT
#include <pthread.h>
#include <stdlib.h>

#include "compile/compile.h"
#include "profile/profile.h"
#include "tests/compile/stages.h"
#include "tests/dispatch/common.h"
#include "tests/profile/take.h"

/** A training step. */
typedef struct step {
    ts_tensor *w;
    ts_optimizer *optimizer;
    bool reads_before, reads_after, cleans; /* before the update, after it; clears gradients */
    bool sizes; /* an op whose result's size depends on values, so that it cannot be recorded */
} step;

static ts_status train(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)n, (void)m;
    TS_SCOPE;
    step *s = ctx;
    ts_tensor *loss = ts_sum(ts_square(ts_mul(s->w, in[0])));
    TS_TRY(ts_backward(loss));
    double value;
    if (s->reads_before)
        TS_TRY(ts_item(loss, &value));
    TS_TRY(ts_optimizer_step(s->optimizer));
    if (s->sizes)
        TS_TRY(TS_STATUS_OF(ts_nonzero(s->w)));
    if (s->reads_after)
        TS_TRY(ts_item(ts_sum(s->w), &value));
    if (s->cleans)
        ts_optimizer_zero_grad(s->optimizer);
    return TS_STATUS_OF(out[0] = ts_keep(ts_detach(loss)));
}

static step make_step(uint32_t kind)
{
    step s = {.w = ts_set_requires_grad(ts_ones(TS_SIZES(3), TS_F32), true),
              .optimizer = ts_optimizer_new(kind & 1 ? TS_SGD : TS_ADAMW),
              .reads_before = kind & 2, .reads_after = kind & 4, .cleans = kind & 8,
              .sizes = kind & 16};
    OK(s.optimizer);
    OK(ts_optimizer_add_group(s.optimizer, (const char *[]){"w"}, &s.w, 1,
                              TS_OPTS(ts_group_opts, .lr = 1e-3, .eps = 1e-8, .beta1 = 0.9,
                                      .beta2 = 0.99)));
    return s;
}

/** Number of calls of the op's kernels. */
static int64_t calls_of(const ts_profile *p, const char *op)
{
    int64_t calls = 0;
    for (int64_t i = 0; i < p->count; i++)
        calls += p->entries[i].kernel && strcmp(p->entries[i].op, op) == 0 ? p->entries[i].calls
                                                                           : 0;
    return calls;
}

enum { STEPS = 6, KINDS = 32 };

/** A call after the update, before the program marks its first step. */
static void run_step(const step *s, bool marks)
{
    TS_SCOPE;
    OK(ts_backward(ts_sum(ts_square(s->w))));
    OK(ts_optimizer_step(s->optimizer));
    if (s->cleans)
        OK(ts_exp(ts_ones(TS_SIZES(2), TS_F32)));
    if (marks)
        ts_prof_step();
}

/** The last step ends with the recording or with its thread, and steps that updates end become part
 *  of the first step that the program marks. */
TS_TEST(each_step_is_counted_although_nothing_follows, .loop = 32)
{
    BEGIN;
    bool marks = _i & 1;
    step s = make_step((uint32_t)_i);
    for (int turn = 0; turn < 3; turn++) { /* an update before a recording ends no step of it */
        OK(ts_prof_start(turn == 2 ? TS_OPTS(ts_prof_opts, .first_step = 2) : NULL));
        OK(ts_exp(ts_ones(TS_SIZES(2), TS_F32)));
        for (int i = 0; i < STEPS; i++)
            run_step(&s, marks);
        ts_profile *p = take();
        ck_assert_int_eq(p->first_step, 1 + (turn == 2));
        ck_assert_int_eq(p->nsteps, STEPS - (turn == 2));
        ck_assert_int_eq(calls_of(p, _i & 1 ? "sgd" : "adamw"), p->nsteps);
        sums(p);
        ts_profile_free(p);
    }
    ts_optimizer_free(s.optimizer);
}

static void *run_three(void *s)
{
    for (int i = 0; i < 3; i++)
        run_step(s, false);
    return NULL;
}

TS_TEST(the_last_step_of_a_thread_ends_with_it, .threads = true)
{
    BEGIN;
    pthread_t thread;
    step s = make_step(1);
    OK(ts_prof_start(NULL));
    pthread_create(&thread, NULL, run_three, &s);
    pthread_join(thread, NULL);
    ts_profile *p = take();
    ck_assert_int_eq(p->nsteps, 3);
    ts_profile_free(p);
    ts_optimizer_free(s.optimizer);
}

/** In a schedule that waits, the step that an update has ended is not ended again by a mark. */
static int64_t firsts[4], counts[4];
static void receive(ts_profile *p, int64_t cycle, void *unused)
{
    (void)unused;
    firsts[cycle % 4] = p->first_step;
    counts[cycle % 4] = calls_of(p, "sgd");
    ts_profile_free(p);
}

TS_TEST(marks_of_a_waiting_schedule_do_not_count_twice, .loop = 3)
{
    BEGIN;
    step s = make_step(1 | 8);
    OK(ts_prof_start(TS_OPTS(ts_prof_opts, .skip_first = _i, .active = 2, .repeat = 2,
                             .ready = receive)));
    for (int i = 0; i < 7; i++)
        run_step(&s, true);
    for (int k = 1; k <= 2; k++) {
        ck_assert_int_eq(firsts[k], _i + 2 * k - 1);
        ck_assert_int_eq(counts[k], 2);
    }
    ts_optimizer_free(s.optimizer);
}

/** A recorded call is no update and no call of a kernel: those are the calls of the plan. */
TS_TEST(compiled_steps_are_counted_once, .loop = KINDS * STAGES)
{
    BEGIN;
    set_stage(stages[_i / KINDS]);
    step s = make_step((uint32_t)_i % KINDS);
    ts_compiled *c = ts_compile(train, &s, NULL);
    OK(c);
    ts_tensor *x = ts_ones(TS_SIZES(3), TS_F32);
    OK(ts_prof_start(NULL));
    for (int i = 0; i < STEPS; i++) {
        ts_tensor *loss;
        OK(ts_compiled_call(c, &x, 1, &loss, 1));
        ts_release(loss);
    }
    ts_profile *p = take();
    ck_assert_int_eq(p->nsteps, STEPS);
    ck_assert_int_eq(calls_of(p, _i & 1 ? "sgd" : "adamw"), STEPS);
    for (int64_t i = 0; i < p->count; i++)
        ck_assert(!p->entries[i].kernel || strcmp(p->entries[i].layer, "LAZY") != 0);
    sums(p);
    ts_profile_free(p);
    ts_compiled_free(c);
    ts_optimizer_free(s.optimizer);
    set_stage("full");
}

static ts_status chain(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)ctx, (void)n, (void)m;
    out[0] = ts_relu(ts_mul(ts_add(in[0], in[0]), in[0]));
    return TS_STATUS_OF(out[0]);
}

/** A group on the CPU has a row with the work of its calls; its bytes are those of its argument and
 *  its result. */
TS_TEST(a_group_on_the_cpu_has_a_row)
{
    BEGIN;
    enum { N = 1 << 18, CALLS = 4 };
    TS_SCOPE;
    ts_compiled *c = ts_compile(chain, NULL, NULL);
    ts_tensor *x = ts_ones(TS_SIZES(N), TS_F32), *y = NULL;
    for (int i = 0; i < 3; i++) /* recorded and planned */
        OK(ts_compiled_call(c, &x, 1, &y, 1));
    OK(ts_prof_start(NULL));
    for (int i = 0; i < CALLS; i++) {
        TS_SCOPE;
        OK(ts_compiled_call(c, &x, 1, &y, 1));
    }
    ts_profile *p = take();
    const ts_entry *group = NULL;
    for (int64_t i = 0; i < p->count; i++)
        group = strcmp(p->entries[i].op, "(fused group)") == 0 ? &p->entries[i] : group;
    OK(group);
    ck_assert_str_eq(group->layer, "CPU");
    ck_assert_str_eq(group->call, "add mul relu");
    ck_assert_int_eq(group->calls, CALLS);
    ck_assert_double_eq(group->flops, 3.0 * CALLS * N);
    ck_assert_double_eq(group->bytes, 2.0 * CALLS * N * sizeof(float));
    ck_assert_double_gt(group->self_ns, 0.5 * p->wall_ns);
    sums(p);
    ts_profile_free(p);
    ts_compiled_free(c);
}
