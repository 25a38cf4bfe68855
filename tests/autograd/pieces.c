/** @file pieces.c  Gradients of many parts of one tensor: their values, their time. */
// SPDX-License-Identifier: MIT
#include "tests/autograd/common.h"
#include "tests/blocks.h"
#include "tests/growth.h"

#include <math.h>

/* ------------------------------------------------------------------------------- values ---- */

enum { ROWS = 7, COLUMNS = 5, ALL = ROWS * COLUMNS };

static int below(uint64_t *state, int n)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (int)((*state >> 33) % (uint64_t)n);
}

/** A part of a (ROWS, COLUMNS) tensor that is drawn, and which elements it has. */
static ts_tensor *draw(uint64_t *state, ts_tensor *x, bool *has)
{
    int dim = below(state, 2), n = dim ? COLUMNS : ROWS, way = below(state, 4);
    int from = below(state, n), length = below(state, n - from + 1), step = 1;
    ts_tensor *part;
    ts_tensor *parts[4] = {NULL};
    if (way == 0) {
        length = 1;
        part = ts_select(x, below(state, 2) ? dim : dim - 2, below(state, 2) ? from : from - n);
    } else if (way == 1) {
        part = ts_narrow(x, dim, from, length);
    } else if (way == 2) {
        step = 1 + below(state, 3);
        part = ts_slice(x, dim, from, below(state, 2) ? from + length : from + length - n, step);
        length = from + length == n && part && ts_size(part, dim) == 0 ? 0 : length;
    } else { /* one of the parts of a split */
        int made, half = (n + 1) / 2, which = below(state, 2);
        OK(ts_chunk(x, 2, dim, parts, &made));
        part = parts[which];
        from = which * half;
        length = which ? n - half : half;
    }
    OK(part);
    for (int e = 0; e < ALL; e++) {
        int at = dim ? e % COLUMNS : e / COLUMNS;
        has[e] = at >= from && at < from + length && (at - from) % step == 0;
    }
    return part;
}

/**
 * loss = sum over parts p of w p^3, and of the whole tensor when it is used too:
 * dloss/dx = 3 w x^2 and d(sum of gradients)/dx = 6 w x for each part that has x.
 */
static void check_parts(uint64_t seed, bool whole, bool inner, bool create)
{
    TS_SCOPE;
    double values[ALL], first[ALL] = {0}, second[ALL] = {0};
    uint64_t state = seed;
    for (int e = 0; e < ALL; e++)
        values[e] = below(&state, 1000) / 250.0 - 2;
    ts_tensor *leaf = ts_from_array(values, TS_F64, TS_SIZES(ROWS, COLUMNS)), *g, *gg, *loss;
    leaf = ts_set_requires_grad(leaf, true);
    ts_tensor *x = inner ? ts_mul_scalar(leaf, 1) : leaf;
    int parts = 1 + below(&state, 40);
    OK(loss = whole ? ts_sum(ts_mul(ts_square(x), x)) : ts_sum(ts_mul_scalar(x, 0)));
    for (int e = 0; e < ALL && whole; e++) {
        first[e] = 3 * values[e] * values[e];
        second[e] = 6 * values[e];
    }
    for (int k = 0; k < parts; k++) {
        bool has[ALL];
        double w = 1 + below(&state, 5);
        ts_tensor *p = draw(&state, x, has);
        OK(loss = ts_add(loss, ts_mul_scalar(ts_sum(ts_mul(ts_square(p), p)), w)));
        for (int e = 0; e < ALL; e++) {
            first[e] += has[e] * 3 * w * values[e] * values[e];
            second[e] += has[e] * 6 * w * values[e];
        }
    }
    double got[ALL];
    ts_backward_opts opts = {.size = sizeof opts, .create_graph = create};
    OK(ts_grad_of(loss, TS_NONE, &leaf, 1, &g, &opts));
    OK(ts_copy_to(g, got, sizeof got));
    for (int e = 0; e < ALL; e++)
        ck_assert_double_eq_tol(got[e], first[e], 1e-12 * (1 + fabs(first[e])));
    if (!create)
        return;
    OK(ts_grad_of(ts_sum(g), TS_NONE, &leaf, 1, &gg, NULL));
    OK(ts_copy_to(gg, got, sizeof got));
    for (int e = 0; e < ALL; e++)
        ck_assert_double_eq_tol(got[e], second[e], 1e-12 * (1 + fabs(second[e])));
}

TS_TEST(gradients_of_drawn_parts_are_summed_where_they_lie, .loop = 8)
{
    for (uint64_t seed = 1; seed <= 60; seed++)
        check_parts(seed, _i & 1, _i & 2, _i & 4);
}

static ts_tensor *count_rows(void *payload, ts_tensor *g)
{
    ck_assert_int_eq(ts_size(g, 0), *(int *)payload);
    return g;
}
static ts_status rows_of_input(void *payload, ts_node *node, ts_tensor **made, int n,
                               ts_tensor *const *grads, int m)
{
    (void)node, (void)grads, (void)m;
    ck_assert_int_eq(n, 1);
    ck_assert_int_eq(ts_size(made[0], 0), *(int *)payload);
    return TS_OK;
}

TS_TEST(hooks_see_whole_gradients_of_tensors_whose_parts_are_used)
{
    TS_SCOPE;
    int n = 3;
    ts_tensor *x = ts_set_requires_grad(ts_ones(TS_SIZES(3, 2), TS_F64), true);
    ts_tensor *y = ts_mul(x, x), *a = ts_select(y, 0, 1), *b = ts_narrow(y, 0, 0, 2);
    OK(ts_register_hook(y, count_rows, &n, NULL));
    OK(ts_register_hook(x, count_rows, &n, NULL));
    OK(ts_node_hook_after(ts_grad_node(b), rows_of_input, &n, NULL));
    OK(ts_retain_grad(y));
    OK(ts_backward(ts_add(ts_sum(a), ts_sum(b))));
    const double *g = ts_data(ts_grad(y)), expected[] = {1, 1, 2, 2, 0, 0};
    for (int e = 0; e < 6; e++)
        ck_assert_double_eq(g[e], expected[e]);
}

/** Gradients of the third order go through the sum of slices like others. */
TS_TEST(parts_differentiate_three_times)
{
    TS_SCOPE;
    ts_backward_opts create = {.size = sizeof create, .create_graph = true};
    ts_tensor *x = ts_set_requires_grad(ts_full(TS_SIZES(4), TS_SCALAR(2), TS_F64), true);
    ts_tensor *parts[4], *y = NULL, *g = x;
    OK(ts_unbind(x, 0, parts, 4));
    for (int i = 0; i < 4; i++) {
        ts_tensor *term = ts_square(ts_square(parts[i])); /* x^4 */
        y = y ? ts_add(y, term) : term;
    }
    for (int order = 1; order <= 3; order++) {
        OK(ts_grad_of(y, TS_NONE, &x, 1, &g, &create));
        OK(ts_unbind(g, 0, parts, 4));
        y = ts_add(ts_add(parts[0], parts[1]), ts_add(parts[2], parts[3]));
    }
    for (int i = 0; i < 4; i++)
        ck_assert_double_eq(((const double *)ts_data(g))[i], 24 * 2);
}

static int failing_after;
static bool fail_alloc(size_t bytes) { (void)bytes; return failing_after-- == 0; }

TS_TEST(out_of_memory_among_parts_loses_nothing, .loop = 2)
{
    if (!blocks_from_malloc())
        TS_SKIP(TOO_LATE);
    ts_backward_opts opts = {.size = sizeof opts, .create_graph = _i};
    int failures = 0;
    ts_status s = TS_ERR_MEMORY;
    for (int n = 0; s != TS_OK; n++) {
        int64_t before = ts_memory_get_stats().in_use;
        {
            TS_SCOPE;
            ts_tensor *x = parameter(6, 2), *parts[6], *sum = NULL, *g;
            OK(ts_unbind(x, 0, parts, 6));
            for (int k = 0; k < 6; k++)
                OK(sum = sum ? ts_add(sum, ts_square(parts[k])) : parts[k]);
            sum = ts_sum(sum);
            ts_error_clear();
            failing_after = n;
            ts_alloc_fault = fail_alloc;
            s = ts_grad_of(sum, TS_NONE, &x, 1, &g, &opts);
            ts_alloc_fault = NULL;
            failures += s == TS_ERR_MEMORY;
            ck_assert(s == TS_OK || s == TS_ERR_MEMORY);
        }
        if (n) /* the first round makes the thread's tables */
            ck_assert_int_eq(ts_memory_get_stats().in_use, before);
    }
    ck_assert_int_gt(failures, 20);
}

/* --------------------------------------------------------------------------------- time ---- */

enum { WAYS = 5 };

/** The k-th of n parts of x, which is (n, width). */
static ts_tensor *part_of(int way, ts_tensor *x, ts_tensor **parts, int k, int n)
{
    switch (way) {
    case 0: return parts[k]; /* of ts_unbind() */
    case 1: return parts[k]; /* of ts_split() */
    case 2: return ts_select(x, 0, k - n);
    case 3: return ts_narrow(x, 0, k, 1);
    default: return ts_slice(x, 0, k, k + 2, 1);
    }
}

typedef struct use {
    int way;
    bool create;
} use;

static void use_parts(void *ctx, int n)
{
    const use *u = ctx;
    TS_SCOPE;
    ts_backward_opts create = {.size = sizeof create, .create_graph = u->create};
    ts_tensor *leaf = ts_set_requires_grad(ts_ones(TS_SIZES(n, 128), TS_F32), true), *loss = NULL;
    ts_tensor *x = ts_mul_scalar(leaf, 2), *g, *gg, **parts = malloc((size_t)n * sizeof *parts);
    ck_assert_ptr_nonnull(parts);
    if (u->way == 0)
        OK(ts_unbind(x, 0, parts, n));
    if (u->way == 1)
        OK(ts_split(x, 1, 0, parts, n));
    for (int k = 0; k < n; k++) {
        ts_tensor *term = ts_sum(ts_square(part_of(u->way, x, parts, k, n)));
        OK(loss = loss ? ts_add(loss, term) : term);
    }
    OK(ts_grad_of(loss, TS_NONE, &leaf, 1, &g, &create));
    if (u->create)
        OK(ts_grad_of(ts_sum(ts_square(g)), TS_NONE, &leaf, 1, &gg, NULL));
    free(parts);
}

TS_TEST(the_time_of_many_parts_grows_with_their_size, .loop = 2 * WAYS)
{
    use u = {_i / 2, _i % 2};
    ck_assert_double_lt(ts_growth(use_parts, &u, 100, 3000), TS_GROWTH_BOUND);
}
