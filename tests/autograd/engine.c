/** @file engine.c  The graph: recording, running, sharing, ending. */
// SPDX-License-Identifier: MIT
#include "core/testing.h"
#include "tests/autograd/common.h"
#include "tests/blocks.h"

#include <pthread.h>

char ran[64];

TS_TEST(gradients_follow_the_chain_rule)
{
    TS_SCOPE;
    ts_tensor *x = leaf(3), *y = leaf(4);
    ts_tensor *z = ts_mul(ts_add(x, y), ts_sub(ts_mul(x, x), y)); /* (x + y)(x² − y) */
    OK(ts_backward(z));
    ck_assert_double_eq_tol(value(ts_grad(x)), (9 - 4) + 7 * 6, 1e-12);
    ck_assert_double_eq_tol(value(ts_grad(y)), (9 - 4) - 7, 1e-12);
}

TS_TEST(gradients_accumulate_until_they_are_removed)
{
    TS_SCOPE;
    ts_tensor *x = leaf(2);
    for (int i = 1; i <= 3; i++) {
        OK(ts_backward(ts_mul(x, x)));
        ck_assert_double_eq(value(ts_grad(x)), 4.0 * i);
    }
    ts_zero_grad(x);
    ck_assert_ptr_eq(ts_grad(x), TS_NONE);
    OK(ts_set_grad(x, ts_full(TS_SIZES(1), ts_scalar_float(10), TS_F64)));
    OK(ts_backward(ts_mul(x, x)));
    ck_assert_double_eq(value(ts_grad(x)), 14);
    FAILS(TS_ERR_SHAPE, ts_set_grad(x, ts_ones(TS_SIZES(2), TS_F64)));
    FAILS(TS_ERR_SHAPE, ts_set_grad(x, ts_ones(TS_SIZES(1), TS_F32)));
}

TS_TEST(broadcast_arguments_get_summed_gradients)
{
    TS_SCOPE;
    ts_tensor *m = ts_set_requires_grad(ts_ones(TS_SIZES(2, 3), TS_F64), true);
    ts_tensor *r = ts_set_requires_grad(ts_ones(TS_SIZES(3), TS_F64), true);
    ts_tensor *c = ts_set_requires_grad(ts_ones(TS_SIZES(2, 1), TS_F64), true);
    OK(ts_backward_ex(ts_add(ts_mul(m, r), c), ts_ones(TS_SIZES(2, 3), TS_F64), NULL));
    double g[3];
    OK(ts_copy_to(ts_grad(r), g, sizeof g));
    ck_assert(g[0] == 2 && g[1] == 2 && g[2] == 2);
    OK(ts_copy_to(ts_grad(c), g, 2 * sizeof *g));
    ck_assert(g[0] == 3 && g[1] == 3);
}

TS_TEST(no_grad_records_nothing_and_nests)
{
    TS_SCOPE;
    ts_tensor *x = leaf(2);
    {
        TS_NO_GRAD;
        ck_assert(!ts_grad_enabled());
        ck_assert(!ts_requires_grad(ts_mul(x, x)));
        {
            TS_ENABLE_GRAD;
            ck_assert(ts_requires_grad(ts_mul(x, x)));
        }
        ck_assert(!ts_requires_grad(ts_mul(x, x)));
    }
    ck_assert(ts_grad_enabled() && ts_requires_grad(ts_mul(x, x)));
    ck_assert(!ts_requires_grad(ts_mul(ts_detach(x), ts_detach(x))));
}

TS_TEST(a_graph_runs_twice_only_when_it_is_retained)
{
    TS_SCOPE;
    ts_tensor *x = leaf(3), *y = ts_mul(x, x);
    ts_backward_opts retain = {.size = sizeof retain, .retain_graph = true};
    OK(ts_backward_ex(y, TS_NONE, &retain));
    OK(ts_backward(y));
    ck_assert_double_eq(value(ts_grad(x)), 12);
    FAILS(TS_ERR_AUTOGRAD, ts_backward(y));
    SAYS("mul");
    SAYS("second time");
    ck_assert_double_eq(value(ts_grad(x)), 12); /* the failure added nothing */
}

TS_TEST(rules_differentiate_again_when_the_backward_is_recorded)
{
    TS_SCOPE;
    ts_tensor *x = leaf(3), *g = NULL, *gg = NULL, *ggg = NULL;
    ts_backward_opts create = {.size = sizeof create, .create_graph = true};
    OK(ts_grad_of(ts_mul(ts_mul(x, x), x), TS_NONE, &x, 1, &g, &create)); /* 3x² */
    ck_assert_double_eq_tol(value(g), 27, 1e-12);
    OK(ts_grad_of(g, TS_NONE, &x, 1, &gg, &create)); /* 6x */
    ck_assert_double_eq_tol(value(gg), 18, 1e-12);
    OK(ts_grad_of(gg, TS_NONE, &x, 1, &ggg, NULL));
    ck_assert_double_eq_tol(value(ggg), 6, 1e-12);
    ck_assert_ptr_eq(ts_grad(x), TS_NONE); /* ts_grad_of() does not accumulate */
}

TS_TEST(an_unused_input_gets_no_gradient)
{
    TS_SCOPE;
    ts_tensor *in[2] = {leaf(1), leaf(2)}, *g[2];
    OK(ts_grad_of(ts_mul(in[0], in[0]), TS_NONE, in, 2, g, NULL));
    ck_assert_double_eq(value(g[0]), 2);
    ck_assert_ptr_eq(g[1], TS_NONE);
}

TS_TEST(gradients_of_intermediates_are_given_and_kept_on_request)
{
    TS_SCOPE;
    ts_tensor *x = leaf(2), *y = ts_mul(x, x), *z = ts_mul(y, y), *g;
    ts_backward_opts retain = {.size = sizeof retain, .retain_graph = true};
    OK(ts_grad_of(z, TS_NONE, &y, 1, &g, &retain));
    ck_assert_double_eq(value(g), 8);
    OK(ts_retain_grad(y));
    OK(ts_backward(z));
    ck_assert_double_eq(value(ts_grad(y)), 8);
    ck_assert_double_eq(value(ts_grad(x)), 32);
}

/* ---------------------------------------------------------------------------- versions ---- */

TS_TEST(a_saved_tensor_that_was_written_is_an_error_that_names_the_writer)
{
    TS_SCOPE;
    ts_tensor *x = leaf(3), *c = ts_full(TS_SIZES(1), ts_scalar_float(5), TS_F64);
    ts_tensor *y = ts_mul(x, c); /* saves c */
    OK(ts_add_(c, c));
    FAILS(TS_ERR_AUTOGRAD, ts_backward(y));
    SAYS("argument 'other'");
    SAYS("last by 'add'");
    ck_assert_ptr_eq(ts_grad(x), TS_NONE);
    OK(ts_backward(ts_mul(x, c)));
}

TS_TEST(every_kind_of_write_increments_the_version)
{
    TS_SCOPE;
    ts_tensor *x = leaf(3), *c = ts_ones(TS_SIZES(4), TS_F64);
    ts_tensor *one_of = ts_detach(c); /* a view shares the version */
    for (int way = 0; way < 5; way++) {
        ts_tensor *y = ts_mul(x, c);
        uint32_t before = ts_version(c);
        switch (way) {
        case 0: OK(ts_fill_(c, 2)); break;
        case 1: OK(ts_copy_(one_of, ts_ones(TS_SIZES(4), TS_F64))); break;
        case 2: OK(ts_data_mut(c)); break;
        case 3: OK(ts_add_out(c, one_of, one_of)); break;
        default: OK(ts_zero_(one_of)); break;
        }
        ck_assert_uint_gt(ts_version(c), before);
        FAILS(TS_ERR_AUTOGRAD, ts_backward_ex(y, ts_ones(TS_SIZES(4), TS_F64), NULL));
        SAYS("written in place");
    }
}

/* ----------------------------------------------------------------------------- in place ---- */

TS_TEST(in_place_writes_that_would_change_history_are_refused)
{
    TS_SCOPE;
    ts_tensor *x = leaf(3), *c = ts_ones(TS_SIZES(1), TS_F64);
    FAILS(TS_ERR_AUTOGRAD, ts_add_(x, c));
    SAYS("is a leaf that requires grad");
    ck_assert_ptr_nonnull(strstr(ts_error_hint(), "ts_clone"));
    ck_assert_ptr_nonnull(strstr(ts_error_hint(), "ts_slice_scatter"));
    ts_tensor *view = ts_detach(c);
    FAILS(TS_ERR_AUTOGRAD, ts_mul_(view, x));
    SAYS("is a view");
    FAILS(TS_ERR_AUTOGRAD, ts_mul_(c, x));
    SAYS("shares its memory");
    FAILS(TS_ERR_AUTOGRAD, ts_add_out(ts_ones(TS_SIZES(1), TS_F64), x, x));
    SAYS("out= forms have no gradient");
    FAILS(TS_ERR_AUTOGRAD, ts_fill_(x, 1));
    ck_assert_double_eq(value(x), 3);
    ck_assert_double_eq(value(c), 1);
    TS_NO_GRAD; /* allowed in no-grad mode; the version counts the write */
    uint32_t before = ts_version(x);
    OK(ts_add_(x, c));
    ck_assert_uint_gt(ts_version(x), before);
}

TS_TEST(in_place_on_a_fresh_result_is_recorded)
{
    TS_SCOPE;
    ts_tensor *x = leaf(3), *y = ts_add(x, x);
    OK(ts_mul_scalar_(y, 5));
    OK(ts_add_(y, x));
    OK(ts_backward(y));
    ck_assert_double_eq(value(ts_grad(x)), 11);
    ts_tensor *z = ts_add(x, x), *t = leaf(7);
    ts_zero_grad(x);
    OK(ts_mul_(z, t)); /* the gradient of t needs z before the write */
    OK(ts_backward(z));
    ck_assert_double_eq(value(ts_grad(t)), 6);
    ck_assert_double_eq(value(ts_grad(x)), 14);
}

/* -------------------------------------------------------------------------------- hooks ---- */

static ts_tensor *double_it(void *payload, ts_tensor *g)
{
    ++*(int *)payload;
    return ts_mul_scalar(g, 2);
}
static ts_tensor *refuse(void *payload, ts_tensor *g)
{
    (void)payload, (void)g;
    ts_error_set(TS_ERR_STATE, "the hook refuses");
    return NULL;
}

TS_TEST(hooks_see_the_complete_gradient_and_may_replace_it)
{
    TS_SCOPE;
    int count = 0;
    ts_hook *hook;
    ts_tensor *x = leaf(3);
    OK(ts_register_hook(x, double_it, &count, &hook));
    OK(ts_backward(ts_add(ts_mul(x, x), x))); /* two paths, one call of the hook */
    ck_assert_int_eq(count, 1);
    ck_assert_double_eq(value(ts_grad(x)), 14);
    ts_hook_remove(x, hook);
    ts_zero_grad(x);
    ts_tensor *y = ts_mul(x, x);
    OK(ts_register_hook(y, double_it, &count, NULL));
    OK(ts_backward(ts_add(y, x)));
    ck_assert_int_eq(count, 2);
    ck_assert_double_eq(value(ts_grad(x)), 13);
    OK(ts_register_hook(x, refuse, NULL, NULL));
    FAILS(TS_ERR_STATE, ts_backward(ts_mul(x, x)));
    SAYS("the hook refuses");
    FAILS(TS_ERR_AUTOGRAD, ts_register_hook(ts_detach(x), double_it, &count, NULL));
}

/* ---------------------------------------------------------------------- wrong use, memory ---- */

TS_TEST(misuse_of_backward_is_named)
{
    TS_SCOPE;
    FAILS(TS_ERR_NULL, ts_backward(NULL));
    FAILS(TS_ERR_AUTOGRAD, ts_backward(ts_ones(TS_SIZES(1), TS_F32)));
    SAYS("requires grad");
    ts_tensor *m = ts_set_requires_grad(ts_ones(TS_SIZES(2, 2), TS_F32), true);
    FAILS(TS_ERR_SHAPE, ts_backward(ts_mul(m, m)));
    SAYS("(2, 2)");
    FAILS(TS_ERR_SHAPE, ts_backward_ex(ts_mul(m, m), ts_ones(TS_SIZES(2), TS_F32), NULL));
    FAILS(TS_ERR_DTYPE, ts_set_requires_grad(ts_ones(TS_SIZES(1), TS_I64), true));
    FAILS(TS_ERR_AUTOGRAD, ts_set_requires_grad(ts_mul(m, m), false));
    SAYS("mul");
}

static ts_tensor *to_meta(void *payload, ts_tensor *g)
{
    (void)payload;
    return ts_to_device(g, TS_DEVICE_META);
}

/** Each function that takes a gradient from the caller refuses wrong sizes, dtype and device. */
TS_TEST(a_gradient_of_wrong_sizes_is_refused_with_the_expected_sizes)
{
    TS_SCOPE;
    ts_tensor *x = ts_set_requires_grad(ts_ones(TS_SIZES(2, 3), TS_F64), true), *g;
    ts_tensor *y = ts_mul(x, x), *like = ts_ones(TS_SIZES(2, 3), TS_F64);
    const struct {
        ts_tensor *grad;
        ts_status code;
        const char *expected, *got;
    } wrong[] = {
        {ts_ones(TS_SIZES(3, 2), TS_F64), TS_ERR_SHAPE, "(2, 3) f64", "(3, 2) f64"},
        {ts_ones(TS_SIZES(3), TS_F64), TS_ERR_SHAPE, "(2, 3) f64", "(3) f64"},
        {ts_ones(NULL, 0, TS_F64), TS_ERR_SHAPE, "(2, 3) f64", "() f64"},
        {ts_ones(TS_SIZES(2, 3), TS_F32), TS_ERR_SHAPE, "(2, 3) f64", "(2, 3) f32"},
        {ts_ones(TS_SIZES(2, 3), TS_I64), TS_ERR_SHAPE, "(2, 3) f64", "(2, 3) i64"},
        {ts_to_device(like, TS_DEVICE_META), TS_ERR_DEVICE, "on cpu", "on meta"},
    };
    for (int i = 0; i < (int)(sizeof wrong / sizeof *wrong); i++)
        for (int way = 0; way < 3; way++) {
            ts_tensor *w = wrong[i].grad;
            OK(w);
            FAILS(wrong[i].code, way == 0   ? ts_backward_ex(y, w, NULL)
                                 : way == 1 ? ts_grad_of(y, w, &x, 1, &g, NULL)
                                            : ts_set_grad(x, w));
            SAYS(way == 0 ? "backward" : way == 1 ? "grad_of" : "set_grad");
            SAYS(way == 2 ? "argument 'grad'" : "argument 'gradient'");
            SAYS(wrong[i].expected);
            SAYS(wrong[i].got);
        }
    OK(ts_register_hook(y, to_meta, NULL, NULL));
    FAILS(TS_ERR_DEVICE, ts_backward_ex(y, like, NULL));
    SAYS("on meta");
    ck_assert_ptr_eq(ts_grad(x), TS_NONE);
    ts_tensor *m = ts_set_requires_grad(ts_to_device(like, TS_DEVICE_META), true);
    FAILS(TS_ERR_DEVICE, ts_backward_ex(ts_mul(m, m), like, NULL));
    OK(ts_backward_ex(ts_mul(m, m), ts_to_device(like, TS_DEVICE_META), NULL));
}

TS_TEST(graphs_leak_no_memory)
{
    int64_t before[2];
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 200; i++) {
            TS_SCOPE;
            ts_tensor *x = ts_set_requires_grad(ts_ones(TS_SIZES(5000), TS_F32), true);
            ts_tensor *y = ts_mul(ts_add(x, x), x);
            ts_mul_(y, x); /* overwrites a tensor that its node saves: no reference cycle */
            if (i % 2) {
                ts_backward_opts opts = {.size = sizeof opts, .create_graph = i % 4 == 1};
                ts_tensor *z = ts_mul(ts_add(x, x), x);
                OK(ts_backward_ex(z, ts_ones(TS_SIZES(5000), TS_F32), &opts));
                ts_zero_grad(x);
            }
        }
        before[round] = ts_memory_get_stats().in_use;
    }
    ck_assert_int_eq(before[0], before[1]);
}

static void *backward_there(void *loss)
{
    OK(ts_backward(loss));
    return NULL;
}

TS_TEST(a_graph_made_in_one_thread_runs_in_another, .threads = true)
{
    TS_SCOPE;
    ts_tensor *x = leaf(3), *y = ts_mul(ts_mul(x, x), x);
    pthread_t thread;
    pthread_create(&thread, NULL, backward_there, y);
    pthread_join(thread, NULL);
    ck_assert_double_eq(value(ts_grad(x)), 27);
}

static ts_tensor *source;
static void *consume_there(void *out)
{
    /* this thread's seq is below that of the thread that made `source`, so the order of nodes must
     * come from the graph */
    ts_tensor *y = ts_mul(source, source);
    *(ts_tensor **)out = ts_retain(ts_mul(y, source));
    return NULL;
}

TS_TEST(a_graph_that_crosses_threads_keeps_its_order, .threads = true)
{
    TS_SCOPE;
    ts_tensor *x = leaf(2), *y = x, *z = NULL;
    for (int i = 0; i < 50; i++)
        y = ts_add(y, x); /* 51 x */
    source = y;
    pthread_t thread;
    pthread_create(&thread, NULL, consume_there, &z);
    pthread_join(thread, NULL);
    OK(ts_backward(z)); /* y³ */
    ck_assert_double_eq_tol(value(ts_grad(x)), 3 * 102.0 * 102.0 * 51, 1e-6);
    ts_release(z);
}

static int failing_after;
static bool fail_alloc(size_t bytes) { (void)bytes; return failing_after-- == 0; }

TS_TEST(out_of_memory_in_forward_or_backward_is_an_ordinary_error)
{
    if (!blocks_from_malloc())
        TS_SKIP(TOO_LATE);
    int failures = 0;
    for (int n = 0; n < 200; n++) {
        TS_SCOPE;
        ts_tensor *x = leaf(3);
        ts_error_clear();
        failing_after = n;
        ts_alloc_fault = fail_alloc;
        ts_tensor *y = ts_mul(ts_add(x, x), x);
        ts_status s = y ? ts_backward(y) : ts_error_code();
        ts_alloc_fault = NULL;
        if (s == TS_OK)
            break;
        failures++;
        ck_assert_int_eq(s, TS_ERR_MEMORY);
        ts_zero_grad(x);
        ts_error_clear();
        OK(ts_backward(ts_mul(ts_add(x, x), x)));
        ck_assert_double_eq(value(ts_grad(x)), 12);
    }
    ck_assert_int_gt(failures, 10);
    ck_assert_int_lt(failures, 199);
}

/* The fused backward kernels broadcast their arguments, like any pointwise op. */
TS_TEST(a_second_gradient_has_the_sizes_of_the_broadcast_argument)
{
    TS_SCOPE;
    ts_tensor *g = ts_set_requires_grad(ts_ones(TS_SIZES(2, 3), TS_F32), true);
    ts_tensor *y = ts_set_requires_grad(ts_full(TS_SIZES(3), TS_SCALAR(0.25), TS_F32), true);
    ck_assert_int_eq(ts_backward(ts_sum(ts_sigmoid_backward(g, y))), TS_OK);
    ck_assert_int_eq(ts_ndim(ts_grad(y)), 1);
    float values[3];
    ck_assert_int_eq(ts_copy_to(ts_grad(y), values, sizeof values), TS_OK);
    for (int i = 0; i < 3; i++) /* two rows of 1 - 2 y */
        ck_assert_float_eq(values[i], 1);
}
