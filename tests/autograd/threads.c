/** @file threads.c  Graphs between threads: made here and run there, leaves and retained graphs shared. */
// SPDX-License-Identifier: MIT
#include "tests/autograd/common.h"

#include <pthread.h>
#include <stdatomic.h>

enum { THREADS = 4, ROUNDS = 200 };

/** Starts `body` in all threads at once, each with its number in the context, and waits for them. */
typedef struct job {
    void (*body)(struct job *j);
    int number;
    pthread_barrier_t *start;
    ts_tensor **tensors;
    atomic_int *failures;
} job;

static void *run_job(void *ctx)
{
    job *j = ctx;
    pthread_barrier_wait(j->start);
    j->body(j);
    return NULL;
}

static int together(void (*body)(job *), ts_tensor **tensors)
{
    pthread_t threads[THREADS];
    job jobs[THREADS];
    pthread_barrier_t start;
    atomic_int failures = 0;
    pthread_barrier_init(&start, NULL, THREADS);
    for (int i = 0; i < THREADS; i++) {
        jobs[i] = (job){body, i, &start, tensors, &failures};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, run_job, &jobs[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&start);
    return failures;
}

static void use_leaves(job *j)
{
    for (int i = 0; i < ROUNDS; i++) {
        TS_SCOPE;
        ts_tensor *y = ts_mul_scalar(ts_mul(j->tensors[0], j->tensors[1]), j->number + 1);
        if (ts_backward(y) != TS_OK)
            atomic_fetch_add(j->failures, 1);
    }
}

TS_TEST(threads_with_graphs_of_their_own_add_to_the_same_leaves)
{
    for (int round = 0; round < 20; round++) { /* each time the leaves are used for the first time by all at once */
        TS_SCOPE;
        ts_tensor *leaves[2] = {leaf(3), leaf(5)};
        ck_assert_int_eq(together(use_leaves, leaves), 0);
        ck_assert_double_eq(value(ts_grad(leaves[0])), 5.0 * ROUNDS * (1 + 2 + 3 + 4));
        ck_assert_double_eq(value(ts_grad(leaves[1])), 3.0 * ROUNDS * (1 + 2 + 3 + 4));
    }
}

static void run_shared(job *j)
{
    ts_backward_opts retain = {.size = sizeof retain, .retain_graph = true};
    for (int i = 0; i < ROUNDS; i++)
        if (ts_backward_ex(j->tensors[0], &retain) != TS_OK)
            atomic_fetch_add(j->failures, 1);
}

TS_TEST(threads_run_over_one_retained_graph)
{
    TS_SCOPE;
    ts_tensor *x = leaf(2), *y = x;
    for (int i = 0; i < 20; i++)
        y = ts_mul(ts_tanh(y), ts_exp(ts_neg(y)));
    ts_backward_opts retain = {.size = sizeof retain, .retain_graph = true};
    OK(ts_backward_ex(y, &retain));
    double once = value(ts_grad(x));
    ts_zero_grad(x);
    ck_assert_int_eq(together(run_shared, &y), 0);
    ck_assert_double_eq_tol(value(ts_grad(x)), once * ROUNDS * THREADS, 1e-9 * ROUNDS);
}

static void run_once(job *j)
{
    if (ts_backward(j->tensors[0]) != TS_OK) {
        atomic_fetch_add(j->failures, 1);
        if (ts_error_code() != TS_ERR_AUTOGRAD || !strstr(ts_error_message(), "second time"))
            atomic_fetch_add(j->failures, 100);
    }
}

TS_TEST(of_threads_that_free_one_graph_the_later_ones_are_told)
{
    for (int round = 0; round < 50; round++) {
        TS_SCOPE;
        ts_tensor *x = leaf(2), *y = x;
        for (int i = 0; i < 10; i++)
            y = ts_mul(y, ts_exp(ts_neg(y)));
        int failures = together(run_once, &y);
        ck_assert_int_eq(failures, THREADS - 1);
    }
}

static ts_status part(void *w, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)n, (void)m;
    out[0] = ts_dropout(ts_tanh(ts_mul(in[0], w)), 0.5, true);
    return TS_OK;
}

TS_TEST(each_thread_computes_parts_of_a_retained_graph_again_for_itself)
{
    TS_SCOPE;
    ts_manual_seed(11);
    ts_tensor *w = ts_set_requires_grad(ts_full(TS_SIZES(64), ts_scalar_float(0.5), TS_F64), true);
    ts_tensor *x = ts_ones(TS_SIZES(64), TS_F64), *y = x;
    for (int i = 0; i < 5; i++)
        OK(ts_recompute(part, w, &y, 1, &y, 1));
    y = ts_sum(y);
    ts_backward_opts retain = {.size = sizeof retain, .retain_graph = true};
    OK(ts_backward_ex(y, &retain));
    ts_tensor *once = ts_clone(ts_grad(w));
    ts_zero_grad(w);
    ck_assert_int_eq(together(run_shared, &y), 0);
    ck_assert_double_le(distance(ts_mul_scalar(once, ROUNDS * THREADS), ts_grad(w)), 1e-9 * ROUNDS);
}

static void record_and_hand_over(job *j)
{
    TS_SCOPE;
    ts_tensor *y = j->tensors[THREADS];
    for (int i = 0; i < 50; i++)
        y = ts_mul(ts_add(y, j->tensors[THREADS]), y);
    ts_tensor *z = ts_sum(ts_sin(y));
    j->tensors[j->number] = ts_retain(z);
}

TS_TEST(graphs_made_in_many_threads_run_in_one_and_end_there)
{
    TS_SCOPE;
    ts_tensor *t[THREADS + 1] = {0}, *one_alone;
    t[THREADS] = leaf(0.01);
    ck_assert_int_eq(together(record_and_hand_over, t), 0);
    OK(ts_grad_of(t[0], &t[THREADS], 1, &one_alone, &(ts_backward_opts){.size = sizeof(ts_backward_opts), .retain_graph = true}));
    ts_tensor *sum = t[0];
    for (int i = 1; i < THREADS; i++)
        sum = ts_add(sum, t[i]); /* joins graphs whose clocks know nothing of each other */
    OK(ts_backward(sum));
    ck_assert_double_eq_tol(value(ts_grad(t[THREADS])), THREADS * value(one_alone), 1e-9);
    for (int i = 0; i < THREADS; i++)
        ts_release(t[i]);
}

static void run_or_drop(job *j)
{
    ts_backward_opts retain = {.size = sizeof retain, .retain_graph = true};
    if (j->number == 0)
        ts_release(j->tensors[THREADS]); /* the last owner of the leaf */
    for (int i = 0; i < 20 && j->number; i++)
        if (ts_backward_ex(j->tensors[j->number], &retain) != TS_OK)
            atomic_fetch_add(j->failures, 1);
}

TS_TEST(a_leaf_may_end_while_others_run_over_its_graph)
{
    for (int round = 0; round < 50; round++) {
        TS_SCOPE;
        ts_tensor *t[THREADS + 1];
        {
            TS_SCOPE;
            t[THREADS] = ts_retain(leaf(2));
            for (int i = 0; i < THREADS; i++)
                t[i] = ts_retain(ts_add_scalar(ts_mul_scalar(t[THREADS], 3), i));
        }
        ck_assert_int_eq(together(run_or_drop, t), 0);
        for (int i = 0; i < THREADS; i++)
            ts_release(t[i]);
    }
}

static ts_status nothing(ts_function_call *call, void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)call, (void)ctx, (void)n, (void)m;
    out[0] = ts_clone(in[0]);
    return TS_OK;
}

static ts_status into_itself(ts_function_call *call, void *ctx, ts_tensor *const *g, int m, ts_tensor **out, int n)
{
    (void)call, (void)m, (void)n;
    ts_backward_opts retain = {.size = sizeof retain, .retain_graph = true};
    out[0] = g[0];
    return ts_backward_ex(*(ts_tensor **)ctx, &retain);
}

TS_TEST(a_backward_through_itself_is_an_error_and_no_deadlock)
{
    TS_SCOPE;
    ts_function f = {.size = sizeof f, .name = "loop", .forward = nothing, .backward = into_itself};
    ts_tensor *x = leaf(2), *y;
    OK(ts_function_apply(&f, &y, &x, 1, &y, 1));
    FAILS(TS_ERR_AUTOGRAD, ts_backward(y));
    SAYS("started a backward through it");
}
