/** @file threads.c  Threads that share leaves and retained graphs, and graphs that are recorded in
 * one thread and run in another. */
// SPDX-License-Identifier: MIT
#include "tests/autograd/common.h"
#include "tests/threads.h"

#include <stdatomic.h>

enum { THREADS = 4, ROUNDS = 200 };

static bool use_leaves(int number, void *ctx)
{
    ts_tensor **leaves = ctx;
    bool good = true;
    for (int i = 0; i < ROUNDS; i++) {
        TS_SCOPE;
        good &= ts_backward(ts_mul_scalar(ts_mul(leaves[0], leaves[1]), number + 1)) == TS_OK;
    }
    return good;
}

TS_TEST(threads_with_graphs_of_their_own_add_to_the_same_leaves, .threads = true)
{
    /* new leaves in each round, so that all threads make the first use of a leaf at once */
    for (int round = 0; round < 20; round++) {
        TS_SCOPE;
        ts_tensor *leaves[2] = {leaf(3), leaf(5)};
        ck_assert_int_eq(ts_together(THREADS, use_leaves, leaves), THREADS);
        ck_assert_double_eq(value(ts_grad(leaves[0])), 5.0 * ROUNDS * (1 + 2 + 3 + 4));
        ck_assert_double_eq(value(ts_grad(leaves[1])), 3.0 * ROUNDS * (1 + 2 + 3 + 4));
    }
}

static bool run_shared(int number, void *y)
{
    (void)number;
    ts_backward_opts retain = {.size = sizeof retain, .retain_graph = true};
    bool good = true;
    for (int i = 0; i < ROUNDS; i++)
        good &= ts_backward_ex(y, TS_NONE, &retain) == TS_OK;
    return good;
}

TS_TEST(threads_run_one_retained_graph_at_once, .threads = true)
{
    TS_SCOPE;
    ts_tensor *x = leaf(2), *y = x;
    for (int i = 0; i < 20; i++)
        y = ts_mul(ts_tanh(y), ts_exp(ts_neg(y)));
    ts_backward_opts retain = {.size = sizeof retain, .retain_graph = true};
    OK(ts_backward_ex(y, TS_NONE, &retain));
    double once = value(ts_grad(x));
    ts_zero_grad(x);
    ck_assert_int_eq(ts_together(THREADS, run_shared, y), THREADS);
    ck_assert_double_eq_tol(value(ts_grad(x)), once * ROUNDS * THREADS, 1e-9 * ROUNDS);
}

typedef struct one_graph {
    ts_tensor *y;
    atomic_int refused; /* number of threads whose backward found the graph freed: an error */
} one_graph;

static bool run_once(int number, void *ctx)
{
    (void)number;
    one_graph *g = ctx;
    if (ts_backward(g->y) == TS_OK)
        return true;
    g->refused += ts_error_code() == TS_ERR_AUTOGRAD && strstr(ts_error_message(), "second time");
    return false;
}

TS_TEST(a_thread_that_reaches_a_freed_graph_gets_an_error, .threads = true)
{
    for (int round = 0; round < 50; round++) {
        TS_SCOPE;
        ts_tensor *x = leaf(2), *y = x;
        for (int i = 0; i < 10; i++)
            y = ts_mul(y, ts_exp(ts_neg(y)));
        one_graph g = {.y = y};
        ck_assert_int_eq(ts_together(THREADS, run_once, &g), 1);
        ck_assert_int_eq(g.refused, THREADS - 1);
    }
}

static ts_status part(void *w, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)n, (void)m;
    out[0] = ts_dropout(ts_tanh(ts_mul(in[0], w)), 0.5, true);
    return TS_OK;
}

TS_TEST(each_thread_computes_parts_of_a_retained_graph_again_for_itself, .threads = true)
{
    TS_SCOPE;
    ts_manual_seed(11);
    ts_tensor *w = ts_set_requires_grad(ts_full(TS_SIZES(64), ts_scalar_float(0.5), TS_F64), true);
    ts_tensor *x = ts_ones(TS_SIZES(64), TS_F64), *y = x;
    for (int i = 0; i < 5; i++)
        OK(ts_recompute(part, w, &y, 1, &y, 1));
    y = ts_sum(y);
    ts_backward_opts retain = {.size = sizeof retain, .retain_graph = true};
    OK(ts_backward_ex(y, TS_NONE, &retain));
    ts_tensor *once = ts_clone(ts_grad(w));
    ts_zero_grad(w);
    ck_assert_int_eq(ts_together(THREADS, run_shared, y), THREADS);
    ck_assert_double_le(distance(ts_mul_scalar(once, ROUNDS * THREADS), ts_grad(w)), 1e-9 * ROUNDS);
}

static bool record_and_hand_over(int number, void *ctx)
{
    TS_SCOPE;
    ts_tensor **t = ctx, *y = t[THREADS];
    for (int i = 0; i < 50; i++)
        y = ts_mul(ts_add(y, t[THREADS]), y);
    t[number] = ts_retain(ts_sum(ts_sin(y)));
    return t[number] != NULL;
}

TS_TEST(graphs_recorded_in_many_threads_run_and_are_freed_in_one, .threads = true)
{
    TS_SCOPE;
    ts_tensor *t[THREADS + 1] = {0}, *one_alone;
    t[THREADS] = leaf(0.01);
    ck_assert_int_eq(ts_together(THREADS, record_and_hand_over, t), THREADS);
    OK(ts_grad_of(t[0], TS_NONE, &t[THREADS], 1, &one_alone,
                  TS_OPTS(ts_backward_opts, .retain_graph = true)));
    ts_tensor *sum = t[0];
    for (int i = 1; i < THREADS; i++)
        sum = ts_add(sum, t[i]); /* joins graphs whose seq is from different threads */
    OK(ts_backward(sum));
    ck_assert_double_eq_tol(value(ts_grad(t[THREADS])), THREADS * value(one_alone), 1e-9);
    for (int i = 0; i < THREADS; i++)
        ts_release(t[i]);
}

/** Thread 0 releases the last handle of t[THREADS]; meanwhile the others run a backward over their
 *  own graphs, which contain it. */
static bool run_or_drop(int number, void *ctx)
{
    ts_tensor **t = ctx;
    ts_backward_opts retain = {.size = sizeof retain, .retain_graph = true};
    bool good = true;
    if (number == 0)
        ts_release(t[THREADS]);
    for (int i = 0; i < 20 && number; i++)
        good &= ts_backward_ex(t[number], TS_NONE, &retain) == TS_OK;
    return good;
}

TS_TEST(a_leaf_may_be_released_while_other_threads_run_its_graph, .threads = true)
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
        ck_assert_int_eq(ts_together(THREADS, run_or_drop, t), THREADS);
        for (int i = 0; i < THREADS; i++)
            ts_release(t[i]);
    }
}

TS_TEST(a_kept_gradient_may_be_released_while_other_threads_run_its_graph, .threads = true)
{
    for (int round = 0; round < 50; round++) {
        TS_SCOPE;
        ts_tensor *x = leaf(2), *t[THREADS + 1];
        {
            TS_SCOPE;
            t[THREADS] = ts_retain(ts_mul_scalar(x, 3));
            OK(ts_retain_grad(t[THREADS]));
            for (int i = 0; i < THREADS; i++)
                t[i] = ts_retain(ts_add_scalar(t[THREADS], i));
        }
        ck_assert_int_eq(ts_together(THREADS, run_or_drop, t), THREADS);
        ck_assert_double_eq(value(ts_grad(x)), 3 * 20 * (THREADS - 1));
        for (int i = 0; i < THREADS; i++)
            ts_release(t[i]);
    }
}

static ts_tensor *count_gradient(void *calls, ts_tensor *grad)
{
    ++*(atomic_int *)calls;
    return ts_mul_scalar(grad, 2);
}
static ts_status count_before(void *calls, ts_node *node, ts_tensor **grads, int n)
{
    (void)node, (void)grads, (void)n;
    ++*(atomic_int *)calls;
    return TS_OK;
}
static ts_status count_after(void *calls, ts_node *node, ts_tensor **in, int n,
                             ts_tensor *const *out, int m)
{
    (void)node, (void)in, (void)n, (void)out, (void)m;
    ++*(atomic_int *)calls;
    return TS_OK;
}

static ts_status square(ts_function_call *call, void *ctx, ts_tensor *const *in, int n,
                        ts_tensor **out, int m)
{
    (void)ctx, (void)n, (void)m;
    out[0] = ts_mul(in[0], in[0]);
    return ts_function_save(call, in, 1);
}
static ts_status square_back(ts_function_call *call, void *calls, ts_tensor *const *g, int m,
                             ts_tensor **out, int n)
{
    (void)m, (void)n;
    ++*(atomic_int *)calls;
    out[0] = ts_mul_scalar(ts_mul(g[0], ts_function_saved_tensor(call, 0)), 2);
    return TS_STATUS_OF(out[0]);
}

TS_TEST(hooks_and_functions_of_a_shared_graph_are_called_by_all_its_threads, .threads = true)
{
    TS_SCOPE;
    atomic_int calls = 0;
    ts_function f = {
        .size = sizeof f, .name = "square", .forward = square, .backward = square_back};
    ts_tensor *x = leaf(3), *y;
    OK(ts_function_apply(&f, &calls, &x, 1, &y, 1));
    OK(ts_register_hook(y, count_gradient, &calls, NULL));
    OK(ts_node_hook_before(ts_grad_node(y), count_before, &calls, NULL));
    OK(ts_node_hook_after(ts_grad_node(y), count_after, &calls, NULL));
    ck_assert_int_eq(ts_together(THREADS, run_shared, y), THREADS);
    ck_assert_int_eq(calls, 4 * ROUNDS * THREADS);
    ck_assert_double_eq(value(ts_grad(x)), 2 * 2 * 3 * ROUNDS * THREADS);
}

static bool differentiate_twice(int number, void *ctx)
{
    (void)number;
    ts_tensor **xy = ctx, *first, *second;
    ts_backward_opts create = {.size = sizeof create, .create_graph = true};
    ts_backward_opts retain = {.size = sizeof retain, .retain_graph = true};
    for (int i = 0; i < ROUNDS; i++) {
        TS_SCOPE;
        double v;
        if (ts_grad_of(xy[1], TS_NONE, xy, 1, &first, &create) != TS_OK ||
            ts_grad_of(first, TS_NONE, xy, 1, &second, &retain) != TS_OK ||
            ts_item(second, &v) != TS_OK || v != 12)
            return false;
    }
    return true;
}

TS_TEST(threads_take_second_gradients_of_one_graph, .threads = true)
{
    TS_SCOPE;
    ts_tensor *xy[2] = {leaf(2)};
    xy[1] = ts_mul(ts_mul(xy[0], xy[0]), xy[0]); /* x³: 6 x */
    ck_assert_int_eq(ts_together(THREADS, differentiate_twice, xy), THREADS);
}

static ts_status nothing(ts_function_call *call, void *ctx, ts_tensor *const *in, int n,
                         ts_tensor **out, int m)
{
    (void)call, (void)ctx, (void)n, (void)m;
    out[0] = ts_clone(in[0]);
    return TS_OK;
}

static ts_status into_itself(ts_function_call *call, void *ctx, ts_tensor *const *g, int m,
                             ts_tensor **out, int n)
{
    (void)call, (void)m, (void)n;
    ts_backward_opts retain = {.size = sizeof retain, .retain_graph = true};
    out[0] = g[0];
    return ts_backward_ex(*(ts_tensor **)ctx, TS_NONE, &retain);
}

TS_TEST(a_backward_inside_its_own_backward_is_an_error)
{
    TS_SCOPE;
    ts_function f = {.size = sizeof f, .name = "loop", .forward = nothing, .backward = into_itself};
    ts_tensor *x = leaf(2), *y;
    OK(ts_function_apply(&f, &y, &x, 1, &y, 1));
    FAILS(TS_ERR_AUTOGRAD, ts_backward(y));
    SAYS("started a backward through it");
}
