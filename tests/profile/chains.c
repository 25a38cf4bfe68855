/** @file chains.c  Tests of chains of calls in a profile, and of the scopes of modules and
 * loaders. */
// SPDX-License-Identifier: MIT
#include "tests/dispatch/common.h"
#include "tests/profile/take.h"

/** Number of calls of op in chains; the profile must have a row of it. */
static double chained(const ts_profile *p, const char *op)
{
    double sum = 0;
    int64_t rows = 0;
    for (int64_t i = 0; i < p->count; i++)
        if (p->entries[i].kernel && strcmp(p->entries[i].op, op) == 0) {
            ck_assert_double_le(p->entries[i].chained, (double)p->entries[i].calls);
            sum += p->entries[i].chained;
            rows++;
        }
    ck_assert_msg(rows > 0, "no row of %s", op);
    return sum;
}

TS_TEST(calls_that_read_results_of_others_are_a_chain)
{
    BEGIN;
    TS_SCOPE;
    ts_tensor *x = ts_ones(TS_SIZES(40, 30), TS_F32);
    OK(ts_prof_start(NULL));
    for (int i = 0; i < 3; i++) {
        TS_SCOPE;
        ts_tensor *m = ts_mul(x, x);
        OK(ts_exp(m)); /* two calls read m: each counts once */
        OK(ts_neg(m));
        OK(ts_relu(ts_transpose(ts_sub(x, x), 0, 1))); /* through an alias */
        OK(ts_abs_(ts_sqrt(x)));                       /* in place */
        OK(ts_cos(ts_softmax(x, 1)));
    }
    ts_profile *p = take();
    static const char *const ops[] = {"mul", "exp", "neg", "sub", "relu", "sqrt", "abs", "cos",
                                      "softmax"};
    for (int i = 0; i < TS_COUNTOF(ops); i++)
        ck_assert_msg(chained(p, ops[i]) == 3, "%s: %f", ops[i], chained(p, ops[i]));
    ts_profile_free(p);
}

TS_TEST(calls_without_a_neighbour_are_no_chain)
{
    BEGIN;
    TS_SCOPE;
    ts_tensor *x = ts_ones(TS_SIZES(32, 32), TS_F32), *y = ts_ones(TS_SIZES(32, 32), TS_F32);
    OK(ts_prof_start(NULL));
    for (int i = 0; i < 5; i++) {
        TS_SCOPE;
        OK(ts_abs(x));                                         /* reads a tensor of the program */
        OK(ts_relu(ts_mm(x, y)));                              /* reads a product */
        OK(ts_exp(ts_uniform(TS_SIZES(32, 32), 0, 1, TS_F32))); /* reads random numbers */
        OK(ts_mm(ts_cos(x), y));                               /* a product reads it */
        ts_drop(ts_neg(x));
        OK(ts_sin(ts_ones(TS_SIZES(32, 32), TS_F32))); /* its operand reuses the memory of neg */
    }
    ts_profile *p = take();
    static const char *const ops[] = {"abs", "relu", "exp", "cos", "neg", "sin", "mm", "uniform"};
    for (int i = 0; i < TS_COUNTOF(ops); i++)
        ck_assert_msg(chained(p, ops[i]) == 0, "%s: %f", ops[i], chained(p, ops[i]));
    ts_profile_free(p);
}

/** Later calls count like the first ones of their row. */
TS_TEST(the_calls_of_a_long_run_are_chained_like_its_first_ones)
{
    enum { RUNS = 2 * TS_TALLY_EXAMINED };
    BEGIN;
    TS_SCOPE;
    ts_tensor *x = ts_ones(TS_SIZES(8), TS_F32);
    OK(ts_prof_start(NULL));
    for (int i = 0; i < RUNS; i++) {
        TS_SCOPE;
        ts_tensor *m = ts_mul(x, x);
        OK(i % 2 ? ts_exp(m) : ts_exp(x)); /* half of them read a product */
    }
    ts_profile *p = take();
    ck_assert_double_eq_tol(chained(p, "mul"), RUNS / 2, 2);
    ck_assert_double_eq_tol(chained(p, "exp"), RUNS / 2, 2);
    ts_profile_free(p);
}

/** The next profile does not see results of the one before. */
TS_TEST(a_profile_begins_without_results)
{
    BEGIN;
    TS_SCOPE;
    ts_tensor *x = ts_ones(TS_SIZES(8), TS_F32), *m = NULL;
    for (int i = 0; i < 2; i++) {
        OK(ts_prof_start(NULL));
        if (m)
            OK(ts_exp(m));
        m = ts_mul(x, x);
        ts_profile *p = take();
        ck_assert_double_eq(chained(p, i ? "exp" : "mul"), 0);
        ts_profile_free(p);
    }
}

enum { SPIN_NS = 3000000, HOOK_NS = 2000000, FORWARDS = 5 };

static void spin(int64_t ns)
{
    double end = seconds() + 1e-9 * (double)ns;
    while (seconds() < end)
        ;
}

static ts_tensor *spin_forward(ts_module *m, ts_tensor *x)
{
    (void)m;
    ts_tensor *y = ts_neg(x);
    spin(SPIN_NS);
    return ts_neg(y);
}
static ts_tensor *spin_after(void *payload, ts_module *m, ts_tensor *x, ts_tensor *y)
{
    (void)payload, (void)m, (void)x;
    spin(HOOK_NS);
    return y;
}

/** The time of a forward function and of hooks is time outside of calls in the module's scope. */
TS_TEST(time_of_a_module_outside_of_calls_is_in_its_scope)
{
    static const ts_module_type type = {sizeof type, "Spin", 0, spin_forward, NULL};
    BEGIN;
    TS_SCOPE;
    ts_module *net = ts_sequential_new(), *slow = ts_module_new(&type);
    OK(ts_sequential_add(net, ts_activation_new("ReLU", ts_relu)));
    OK(ts_sequential_add(net, slow));
    OK(ts_module_add_forward_hook(slow, TS_OPTS(ts_forward_hook, .after = spin_after), NULL));
    ts_tensor *x = ts_ones(TS_SIZES(2, 2), TS_F32);
    OK(ts_prof_start(NULL));
    for (int i = 0; i < FORWARDS; i++)
        OK(ts_forward(net, x));
    ts_profile *p = take();
    sums(p);
    double outside = 0;
    for (int64_t i = 0; i < p->count; i++) {
        const ts_entry *e = &p->entries[i];
        if (strcmp(e->scope, "Sequential/1") == 0 && !e->kernel) {
            ck_assert_int_eq(e->regime, TS_REGIME_OUTSIDE);
            outside += e->self_ns;
        }
    }
    double least = (double)FORWARDS * (SPIN_NS + HOOK_NS);
    ck_assert_msg(outside >= 0.95 * least, "%f of %f", outside, least);
    ts_profile_free(p);
    ts_module_free(net);
}

static int64_t length(void *payload)
{
    (void)payload;
    return 64;
}
static ts_status get(void *payload, int64_t index, ts_tensor **sample)
{
    (void)payload, (void)index;
    return TS_STATUS_OF(sample[0] = ts_cos(ts_ones(TS_SIZES(3), TS_F32)));
}

/** Calls of a loader's threads are no part of a phase of the training step; those that the caller
 *  makes for itself belong to the phase "data". */
TS_TEST(calls_that_prepare_batches_are_not_of_the_forward_pass, .loop = 2, .threads = true)
{
    BEGIN;
    const ts_dataset set = {sizeof set, length, get, NULL, 1};
    TS_SCOPE;
    OK(ts_prof_start(NULL));
    ts_loader *loader = ts_loader_new(
        &set, TS_OPTS(ts_loader_opts, .batch = 4, .workers = 2, .no_thread = _i));
    OK(loader);
    for (int i = 0; i < 20; i++) {
        TS_SCOPE;
        ts_batch batch;
        OK(ts_loader_next(loader, &batch));
        OK(ts_sin(batch.x));
    }
    ts_loader_close(loader);
    ts_profile *p = take();
    int64_t prepared = 0, used = 0;
    for (int64_t i = 0; i < p->count; i++) {
        const ts_entry *e = &p->entries[i];
        if (strcmp(e->op, "cos") == 0) {
            ck_assert_str_eq(e->scope, _i ? "data" : "loader thread");
            ck_assert_str_eq(ts_entry_phase(e), _i ? "data" : "other");
            prepared += e->calls;
        } else if (strcmp(e->op, "sin") == 0) {
            ck_assert_str_eq(ts_entry_phase(e), "forward");
            used += e->calls;
        }
    }
    ck_assert_int_ge(prepared, 80);
    ck_assert_int_eq(used, 20);
    ts_profile_free(p);
}
