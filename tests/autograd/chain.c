/** @file chain.c  Deep and wide graphs: backward and release need a bounded stack and linear time,
 * and each leaf gets its gradient. */
// SPDX-License-Identifier: MIT
#include "tests/autograd/common.h"
#include "tests/growth.h"

#include <limits.h>
#include <pthread.h>

/** Adds 1 to x n times. Drops each intermediate result as soon as the next one exists. */
static ts_tensor *chain(ts_tensor *x, int n)
{
    ts_tensor *y = x;
    for (int i = 0; i < n; i++) {
        ts_tensor *next = ts_add_scalar(y, 1);
        if (y != x)
            ts_drop(y);
        y = next;
    }
    return y;
}

/** Builds a chain of n + 1 leaves, each the gradient of the one before, and releases it. */
static void nested_gradients(int n)
{
    TS_SCOPE;
    ts_tensor *t = leaf(0);
    for (int i = 0; i < n; i++) {
        ts_tensor *g = leaf(i);
        OK(ts_set_grad(t, g));
        ts_drop(g); /* t holds a reference */
        t = g;
    }
}

static ts_status part(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)ctx, (void)n, (void)m;
    out[0] = ts_mul(in[0], in[0]);
    return TS_STATUS_OF(out[0]);
}

/** Runs forward and two orders of gradients over a chain of n calls. way: 0: views, 1: a function
 *  with its own backward, 2: ts_recompute(), 3: products. */
static void recorded_links(int way, int n)
{
    static const ts_function f = {
        .size = sizeof f, .name = "square", .forward = square_forward, .backward = square_backward};
    TS_SCOPE;
    ts_tensor *x = ts_set_requires_grad(ts_ones(TS_SIZES(1, 1), TS_F64), true), *y = x, *g, *gg;
    for (int i = 0; i < n; i++) {
        ts_tensor *next = NULL;
        switch (way) {
        case 0: next = i % 2 ? ts_transpose(y, 0, 1) : ts_slice(y, 0, 0, 1, 1); break;
        case 1: OK(ts_function_apply(&f, NULL, &y, 1, &next, 1)); break;
        case 2: OK(ts_recompute(part, NULL, &y, 1, &next, 1)); break;
        default: next = ts_mul(y, y);
        }
        OK(next);
        if (y != x)
            ts_drop(y);
        y = next;
    }
    ts_backward_opts create = {.size = sizeof create, .create_graph = true};
    OK(ts_backward_ex(y, TS_NONE, &create)); /* the leaf's gradient reaches the leaf */
    g = ts_grad(x);
    if (ts_requires_grad(g)) /* views are linear: nothing is left to differentiate */
        OK(ts_grad_of(ts_sum(g), TS_NONE, &x, 1, &gg, &create));
    ts_zero_grad(x);
}

/** Runs forward and backward of a chain of n additions, and releases it. */
static void build_and_release(void *unused, int n)
{
    (void)unused;
    TS_SCOPE;
    ts_tensor *x = leaf(1), *y = chain(x, n);
    OK(ts_backward(y));
    ck_assert_double_eq(value(ts_grad(x)), 1);
}

static void *long_chain(void *null)
{
    int most = getenv("TS_TEST_BRIEF") ? 100000 : 1000000;
    build_and_release(NULL, most);
    {
        /* a saved tensor holds the node that made it: the release alternates between both */
        TS_SCOPE;
        ts_tensor *x = leaf(1), *y = x;
        for (int i = 0; i < 100000; i++) {
            ts_tensor *next = ts_mul(y, y);
            if (y != x)
                ts_drop(y);
            y = next;
        }
        OK(y);
    }
    {
        TS_SCOPE; /* also a graph that a backward with create_graph recorded */
        ts_tensor *x = leaf(1), *g = NULL;
        ts_backward_opts create = {.size = sizeof create, .create_graph = true};
        OK(ts_grad_of(ts_mul(chain(x, 20000), x), TS_NONE, &x, 1, &g, &create));
        ck_assert_double_eq(value(g), 20002);
        FILE *nowhere = fopen("/dev/null", "w");
        OK(ts_autograd_write(chain(x, 20000), nowhere, TS_AUTOGRAD_DOT));
        fclose(nowhere);
    }
    nested_gradients(most);
    for (int way = 0; way < 4; way++)
        recorded_links(way, 20000);
    return null;
}

TS_TEST(a_chain_of_a_million_nodes_needs_a_small_stack)
{
    pthread_attr_t attr;
    pthread_t thread;
    long least = PTHREAD_STACK_MIN, stack = 128 << 10;
    ck_assert_int_eq(pthread_attr_init(&attr), 0);
    ck_assert_int_eq(pthread_attr_setstacksize(&attr, (size_t)(stack > least ? stack : least)), 0);
    ck_assert_int_eq(pthread_create(&thread, &attr, long_chain, NULL), 0);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attr);
}

TS_TEST(the_time_of_a_chain_grows_with_its_length)
{
    ck_assert_double_lt(ts_growth(build_and_release, NULL, 6000, 200000), TS_GROWTH_BOUND);
}

TS_TEST(a_list_of_100000_leaves_gives_each_its_gradient)
{
    enum { N = 100000 };
    TS_SCOPE;
    ts_tensor **leaves = malloc(N * sizeof *leaves);
    ck_assert_ptr_nonnull(leaves);
    for (int i = 0; i < N; i++)
        leaves[i] = leaf(i);
    ts_tensor *all = ts_cat(leaves, N, 0);
    OK(ts_backward(ts_sum(ts_mul(all, all))));
    for (int i = 0; i < N; i++)
        ck_assert_double_eq(*(const double *)ts_data(ts_grad(leaves[i])), 2.0 * i);
    free(leaves);
}

TS_TEST(a_chain_of_100000_leaves_gives_each_its_gradient)
{
    enum { N = 100000 };
    TS_SCOPE;
    ts_tensor **leaves = malloc(N * sizeof *leaves);
    ck_assert_ptr_nonnull(leaves);
    ts_tensor *sum = leaf(0);
    for (int i = 0; i < N; i++)
        sum = ts_add(sum, leaves[i] = leaf(i));
    OK(ts_backward(sum));
    for (int i = 0; i < N; i++)
        ck_assert_double_eq(*(const double *)ts_data(ts_grad(leaves[i])), 1);
    free(leaves);
}
