/** @file pieces.c  Gradients of many parts of one tensor: their values, their time. */
// SPDX-License-Identifier: MIT
#include "core/testing.h"
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

/** A random view of part of x (at least one dim). The same *state selects the same part of another
 *  tensor of x's sizes. */
static ts_tensor *draw_part(uint64_t *state, ts_tensor *x, int way)
{
    int ndim = ts_ndim(x), dim = below(state, ndim), n = (int)ts_size(x, dim), made;
    int from = below(state, n), length = below(state, n - from + 1);
    ts_tensor *parts[4] = {NULL};
    switch (way) {
    case 0:
        return ts_select(x, below(state, 2) ? dim : dim - ndim, below(state, 2) ? from : from - n);
    case 1: return ts_narrow(x, dim, from, length);
    case 2:
        return ts_slice(x, dim, from, from + length == n ? TS_END : from + length - n,
                        1 + below(state, 3));
    case 3: /* a part of ts_split() */
        OK(ts_chunk(x, 1 + below(state, 4), dim, parts, &made));
        return parts[below(state, made)];
    default:
        return ndim < 2 ? x : ts_diagonal(x, below(state, 5) - 2, dim, (dim + 1) % ndim);
    }
}

/** x with other sizes or dims, by a random transpose, expand, flatten or reshape. */
static ts_tensor *draw_shape(uint64_t *state, ts_tensor *x, int way)
{
    int ndim = ts_ndim(x), a = below(state, ndim), b = below(state, ndim);
    int64_t sizes[TS_MAX_DIMS] = {1 + below(state, 2)}, dims[TS_MAX_DIMS];
    for (int d = 0; d < ndim; d++) {
        sizes[d + 1] = ts_size(x, d);
        dims[d] = (d + a) % ndim;
    }
    switch (way) {
    case 0: return ts_transpose(x, a, b);
    case 1: return ts_permute(x, dims, ndim);
    case 2: return ndim < 5 ? ts_expand(x, sizes, ndim + 1) : ts_flatten(x, 0, -1);
    case 3: return ndim < 5 ? ts_unsqueeze(x, a) : ts_squeeze(x);
    case 4: return ts_flatten(x, a < b ? a : b, a < b ? b : a);
    default: return ts_reshape(x, (int64_t[]){sizes[1], -1}, 2);
    }
}

/**
 * A random chain of up to five parts and shapes of x, (ROWS, COLUMNS). The same *state gives the
 * same elements of another tensor, such as one of element numbers. Only the first step may be
 * as_strided, which can repeat elements.
 */
static ts_tensor *draw(uint64_t *state, ts_tensor *x)
{
    int depth = 1 + below(state, 5);
    for (int k = 0; k < depth && ts_ndim(x) && ts_numel(x); k++) {
        if (k == 0 && below(state, 8) == 0) {
            int64_t strides[] = {below(state, 9), below(state, 4)};
            x = ts_as_strided(x, (int64_t[]){3, 4}, strides, 2, below(state, 8));
        } else {
            x = below(state, 2) ? draw_part(state, x, below(state, 5))
                                : draw_shape(state, x, below(state, 6));
        }
        OK(x);
    }
    return x;
}

/**
 * Compares the gradients of loss = sum over random parts p of w sum(p^3), plus sum(x^3) if `whole`,
 * with a formula: each part that contains x adds 3 w x^2 to dloss/dx, and 6 w x to the second
 * derivative, which is checked if `create`.
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
    ts_tensor *numbers = ts_reshape(ts_arange(0, ALL, 1, TS_I64), TS_SIZES(ROWS, COLUMNS));
    for (int k = 0; k < parts; k++) {
        double w = 1 + below(&state, 5);
        uint64_t again = state;
        ts_tensor *p = draw(&state, x), *number = ts_contiguous(draw(&again, numbers));
        OK(loss = ts_add(loss, ts_mul_scalar(ts_sum(ts_mul(ts_square(p), p)), w)));
        for (int64_t i = 0; i < ts_numel(p); i++) {
            int64_t e = ((const int64_t *)ts_data(number))[i];
            first[e] += 3 * w * values[e] * values[e];
            second[e] += 6 * w * values[e];
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

TS_TEST(gradients_of_drawn_parts_are_summed_at_their_positions, .loop = 8)
{
    for (uint64_t seed = 1; seed <= 60; seed++)
        check_parts(seed, _i & 1, _i & 2, _i & 4);
}

/** Gradients of empty parts, also of empty tensors. */
TS_TEST(parts_without_elements_have_gradients, .loop = 8)
{
    TS_SCOPE;
    const int64_t all[][3] = {{0, 2, 3}, {3, 0, 2}, {2, 3, 0}, {2, 3, 2}}, *sizes = all[_i / 2];
    ts_tensor *x = ts_set_requires_grad(ts_ones(sizes, 3, TS_F64), true), *parts[2];
    ts_tensor *empty[8], *loss = NULL;
    int made, n = 0, dim = sizes[0] ? 0 : 1, last = sizes[2] ? 2 : 1;
    OK(ts_chunk(x, 2, last, parts, &made));
    empty[n++] = ts_narrow(parts[made - 1], last, 1, 0);
    empty[n++] = ts_select(x, dim, 1);
    empty[n++] = ts_narrow(x, last, 1, 0);
    empty[n++] = ts_narrow(ts_select(x, dim, 1), -1, 0, 0);
    empty[n++] = ts_diagonal(x, 1, dim, last);
    empty[n++] = ts_slice(ts_transpose(x, 0, 2), 1, 2, 2, 1);
    empty[n++] = ts_as_strided(x, (int64_t[]){2, 0}, (int64_t[]){1, 1}, 2, ts_numel(x));
    empty[n++] = ts_narrow(ts_expand(x, (int64_t[]){2, sizes[0], sizes[1], sizes[2]}, 4), 0, 1, 0);
    for (int k = 0; k <= n; k++) {
        ts_tensor *sum = k < n ? ts_sum(empty[k]) : loss, *g;
        OK(loss = loss && k < n ? ts_add(loss, sum) : sum);
        OK(ts_grad_of(sum, TS_NONE, &x, 1, &g,
                      TS_OPTS(ts_backward_opts, .retain_graph = true, .create_graph = _i % 2)));
        ck_assert_int_eq(ts_numel(g), ts_numel(x));
    }
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

static ts_status rows_of_result(void *payload, ts_node *node, ts_tensor **grads, int n)
{
    (void)node;
    ck_assert_int_eq(n, 1);
    return TS_STATUS_OF(count_rows(payload, grads[0]));
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

/** A hook, ts_retain_grad() or ts_grad_of() on a view between x and its parts gets the view's whole
 *  gradient. */
TS_TEST(gradients_of_views_between_are_whole, .loop = 4)
{
    TS_SCOPE;
    int n = 3;
    ts_tensor *x = ts_set_requires_grad(ts_ones(TS_SIZES(2, 3), TS_F64), true), *grads[2];
    ts_tensor *y = ts_transpose(x, 0, 1), *part = ts_select(y, 0, 1), *g = NULL;
    ts_tensor *loss = ts_add(ts_sum(part), ts_sum(ts_narrow(y, 1, 0, 1)));
    if (_i == 0)
        OK(ts_register_hook(y, count_rows, &n, NULL));
    if (_i == 1)
        OK(ts_retain_grad(y));
    if (_i == 2)
        OK(ts_node_hook_before(ts_grad_node(y), rows_of_result, &n, NULL));
    if (_i == 3)
        OK(ts_grad_of(loss, TS_NONE, (ts_tensor *[]){y, x}, 2, grads,
                      TS_OPTS(ts_backward_opts, .retain_graph = true)));
    OK(ts_backward(loss));
    g = _i == 1 ? ts_grad(y) : _i == 3 ? grads[0] : TS_NONE;
    const double of_y[] = {1, 0, 2, 1, 1, 0}, of_x[] = {1, 2, 1, 0, 1, 0};
    for (int e = 0; e < 6; e++) {
        ck_assert_double_eq(((const double *)ts_data(ts_grad(x)))[e], of_x[e]);
        if (_i == 3)
            ck_assert_double_eq(((const double *)ts_data(ts_contiguous(grads[1])))[e], of_x[e]);
        if (g != TS_NONE)
            ck_assert_double_eq(((const double *)ts_data(g))[e], of_y[e]);
    }
}

/** Third-order gradients through parts of a tensor. */
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

TS_TEST(out_of_memory_among_parts_leaks_nothing, .loop = 4)
{
    if (!blocks_from_malloc())
        TS_SKIP(TOO_LATE);
    ts_backward_opts opts = {.size = sizeof opts, .create_graph = _i & 1};
    int failures = 0;
    ts_status s = TS_ERR_MEMORY;
    for (int n = 0; s != TS_OK; n++) {
        int64_t before = ts_memory_get_stats().in_use;
        {
            TS_SCOPE;
            ts_tensor *x = parameter(6, 2), *parts[6], *sum = NULL, *g;
            OK(ts_unbind(_i & 2 ? ts_transpose(ts_transpose(x, 0, 1), 0, 1) : x, 0, parts, 6));
            for (int k = 0; k < 5; k++)
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
        if (n) /* round 0 allocates the thread's tables */
            ck_assert_int_eq(ts_memory_get_stats().in_use, before);
    }
    ck_assert_int_gt(failures, 20);
}

/* --------------------------------------------------------------------------------- time ---- */

enum { WAYS = 15 };

/** Part k of the n parts of x, (n, width). way: how the part is made, some by views of views. */
static ts_tensor *part_of(int way, ts_tensor *x, ts_tensor **parts, int k, int n)
{
    int64_t width = ts_size(x, 1);
    int made, half = n / 2;
    ts_tensor *halves[2];
    switch (way) {
    case 0: return parts[k]; /* of ts_unbind() */
    case 1: return parts[k]; /* of ts_split() */
    case 2: return ts_select(x, 0, k - n);
    case 3: return ts_narrow(x, 0, k, 1);
    case 4: return ts_slice(x, 0, k, k + 2, 1);
    case 5: return ts_select(ts_transpose(x, 0, 1), 1, k);
    case 6: return ts_select(ts_select(ts_reshape(x, TS_SIZES(half, 2, -1)), 0, k / 2), 0, k % 2);
    case 7: return ts_select(ts_unsqueeze(x, 0), 1, k);
    case 8: return ts_select(ts_permute(x, (int64_t[]){1, 0}, 2), 1, k);
    case 9: return ts_select(ts_expand(x, TS_SIZES(2, n, width)), 1, k);
    case 10: return ts_diagonal(x, -k, 0, 1);
    case 11: return ts_as_strided(x, &width, (int64_t[]){1}, 1, k * width);
    case 12: return ts_select(ts_narrow(x, 0, k / 2, half), 0, k - k / 2 < half ? k - k / 2 : 0);
    case 13: return ts_flatten(ts_narrow(ts_transpose(x, 0, 1), 1, k, 1), 0, -1);
    default: OK(ts_chunk(x, 2, 0, halves, &made)); return ts_select(halves[k % 2], 0, k / 2);
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
